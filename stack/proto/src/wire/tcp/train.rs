//! Trains: runs of received segments of one connection that follow each other without a gap, and
//! whose headers differ in nothing else. They are processed as one segment, like those that a NIC
//! or generic receive offload merges.

use core::ops::Range;

use super::{IPV4_LEN, IPV6_LEN, Segment, TCP_LEN, TIMESTAMPS_LEN, tcp_sum, unverified};
use crate::device::{ChecksumMode, RxFrame};
use crate::wire::bytes::{be16, be32};
use crate::wire::checksum;
use crate::wire::seq::Seq;
use crate::wire::tcp::Flags;

/// Headers of the first segment of a train, with its IP header at offset `L3`.
#[derive(Clone, Copy)]
pub struct TrainHead<'a, const L3: usize> {
    /// All headers.
    headers: &'a [u8],
    is_v6: bool,
    mode: ChecksumMode,
}

impl<'a, const L3: usize> TrainHead<'a, L3> {
    /// Returns the headers of `segment`, which was parsed from a frame with this `head`; `None` if
    /// no train starts with it: it has IP options or extension headers, or TCP options other than
    /// timestamps in their common layout.
    #[inline(always)]
    #[must_use]
    pub fn new(head: &'a [u8], segment: &Segment, mode: ChecksumMode) -> Option<Self> {
        let headers = head.get(..segment.payload.start)?;
        let version_ihl = *headers.get(L3)?;
        let is_v6 = version_ihl >> 4 == 6;
        let ip_len = match version_ihl {
            0x45 => IPV4_LEN,
            _ if is_v6 => IPV6_LEN,
            _ => return None,
        };
        let base = L3 + ip_len + TCP_LEN;
        let has_ts = headers.len() == base + usize::from(TIMESTAMPS_LEN);
        (headers.len() == base || (has_ts && segment.options.ts.is_some())).then_some(Self {
            headers,
            is_v6,
            mode,
        })
    }

    /// Returns the position of the payload of the next segment of the train in `frame`. Its
    /// sequence number has to be `seq`. Only lengths, checksums, the IPv4 identification and PSH
    /// may differ; in particular a change of the ECN codepoint ends a train (RFC 8257 section 3.2).
    ///
    /// `None` if the train ends before this frame, which is then to be parsed. Checksums are
    /// verified as by [`Segment::parse`].
    #[inline(always)]
    pub fn payload_of_next(&self, frame: &impl RxFrame, seq: Seq) -> Option<Range<usize>> {
        if self.is_v6 { self.payload_v6(frame, seq) } else { self.payload_v4(frame, seq) }
    }

    #[inline(always)]
    fn payload_v4(&self, frame: &impl RxFrame, seq: Seq) -> Option<Range<usize>> {
        let head = frame.head();
        let (first, next) = (self.headers, head.get(..self.headers.len())?);
        if first.len() < L3 + IPV4_LEN + TCP_LEN {
            return None;
        }
        // Link header, version, IHL, DSCP and ECN; then flags and offset of fragments, time to live
        // and protocol; then addresses and ports.
        let is_same_flow = first[..L3 + 2] == next[..L3 + 2]
            && first[L3 + 6..L3 + 10] == next[L3 + 6..L3 + 10]
            && first[L3 + 12..L3 + 24] == next[L3 + 12..L3 + 24];
        if !is_same_flow || !is_next_tcp::<L3, IPV4_LEN>(first, next, seq) {
            return None;
        }
        let end = L3 + usize::from(be16(next, L3 + 2));
        let verify = unverified(frame, self.mode).ok()?;
        if verify && checksum::sum(&next[L3..L3 + IPV4_LEN]) != 0xffff {
            return None;
        }
        let addresses = L3 + 12..L3 + IPV4_LEN;
        self.payload::<IPV4_LEN>(frame, end, verify.then_some(addresses))
    }

    #[inline(always)]
    fn payload_v6(&self, frame: &impl RxFrame, seq: Seq) -> Option<Range<usize>> {
        let head = frame.head();
        let (first, next) = (self.headers, head.get(..self.headers.len())?);
        if first.len() < L3 + IPV6_LEN + TCP_LEN {
            return None;
        }
        // Link header, version, traffic class and flow label; then next header, hop limit,
        // addresses and ports.
        let is_same_flow = first[..L3 + 4] == next[..L3 + 4]
            && first[L3 + 6..L3 + IPV6_LEN + 4] == next[L3 + 6..L3 + IPV6_LEN + 4];
        if !is_same_flow || !is_next_tcp::<L3, IPV6_LEN>(first, next, seq) {
            return None;
        }
        let end = L3 + IPV6_LEN + usize::from(be16(next, L3 + 4));
        let verify = unverified(frame, self.mode).ok()?;
        let addresses = L3 + 8..L3 + IPV6_LEN;
        self.payload::<IPV6_LEN>(frame, end, verify.then_some(addresses))
    }

    /// Returns the payload of a frame whose IP packet ends at `end`, unless it is empty or the
    /// frame is shorter. Verifies the TCP checksum if given the position of the addresses.
    #[inline(always)]
    fn payload<const IP_LEN: usize>(
        &self,
        frame: &impl RxFrame,
        end: usize,
        addresses: Option<Range<usize>>,
    ) -> Option<Range<usize>> {
        let start = self.headers.len();
        // A frame of several segments is left to the parser.
        if end <= start || end > frame.head().len() {
            return None;
        }
        if let Some(addresses) = addresses {
            let address_sum = checksum::sum(&frame.head()[addresses]);
            if tcp_sum(frame, address_sum, L3 + IP_LEN..end) != 0xffff {
                return None;
            }
        }
        Some(start..end)
    }
}

/// True if the TCP header of `next` is that of `first` with this sequence number. Ports are
/// compared by the caller; PSH and checksum may differ.
#[inline(always)]
fn is_next_tcp<const L3: usize, const IP_LEN: usize>(first: &[u8], next: &[u8], seq: Seq) -> bool {
    let l4 = L3 + IP_LEN;
    let psh = u16::from(Flags::PSH.0);
    // Sequence number; acknowledgment number; data offset and flags; window; urgent pointer.
    be32(next, l4 + 4) == seq.0
        && first[l4 + 8..l4 + 12] == next[l4 + 8..l4 + 12]
        && (be16(first, l4 + 12) ^ be16(next, l4 + 12)) & !psh == 0
        && first[l4 + 14..l4 + 16] == next[l4 + 14..l4 + 16]
        && first[l4 + 18..l4 + 20] == next[l4 + 18..l4 + 20]
        && (first.len() == l4 + TCP_LEN
            || (first.len() == l4 + TCP_LEN + 12
                && first[l4 + 20..l4 + 32] == next[l4 + 20..l4 + 32]))
}

#[cfg(test)]
mod tests;
