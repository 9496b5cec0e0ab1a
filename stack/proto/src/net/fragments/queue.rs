//! Reassembly queue of one packet: its fragments, and the packet built of them.

use core::net::IpAddr;

use crate::device::{ChecksumState, RxFrame};
use crate::time::Instant;
use crate::wire::checksum;
use crate::wire::ip::{Fragment, IPV6_LEN, PROTOCOL_TCP, Packet};
use crate::wire::tcp::TCP_LEN;

/// Largest length that an IP header can express.
const PACKET_LEN_MAX: usize = 65_535;
/// Limit on the fragments of one packet: 64 KiB at an MTU of 576 are 119.
const FRAGMENT_COUNT_MAX: usize = 128;
/// Least bytes after the IP header in the first fragment.
const FIRST_FRAGMENT_LEN_MIN: usize = 8;
/// Payload bytes that an ICMP error quotes.
const QUOTED_LEN: usize = 64;
/// Memory charged per fragment in addition to its bytes, and per packet.
pub(super) const FRAGMENT_OVERHEAD: usize = 64;
pub(super) const PACKET_OVERHEAD: usize = 256;

/// Frame with a reassembled packet, in memory of its own.
#[derive(Debug, PartialEq, Eq)]
pub struct Reassembled(pub(super) Vec<u8>);

impl RxFrame for Reassembled {
    fn head(&self) -> &[u8] {
        &self.0
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn copy_out(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.0[offset..offset + out.len()]);
    }

    fn checksum(&self) -> ChecksumState {
        // The port checks single frames, not reassembled packets.
        ChecksumState::Unknown
    }
}

/// Reason for which an incomplete packet was discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReason {
    /// The reassembly timeout expired.
    Timeout,
    /// The memory or packet limit was reached.
    Evicted,
}

/// Incomplete packet that was discarded, with a TCP segment whose first fragment had arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReassemblyFailure {
    /// Reason.
    pub reason: FailureReason,
    /// Source hardware address of the first fragment.
    pub mac: [u8; 6],
    /// First fragment without its link header, as far as ICMP errors quote it.
    pub quote: Vec<u8>,
    /// Length of that fragment in bytes, IP header included.
    pub fragment_len: u16,
}

/// Identifies the packet that a fragment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) id: u32,
    /// IPv4 only.
    pub(super) protocol: Option<u8>,
}

#[derive(Debug)]
pub(super) struct StoredFragment {
    pub(super) start: usize,
    pub(super) bytes: Box<[u8]>,
}

impl StoredFragment {
    const fn end(&self) -> usize {
        self.start + self.bytes.len()
    }
}

/// Reassembly queue of one packet.
#[derive(Debug)]
pub(super) struct FragmentQueue {
    pub(super) key: Key,
    pub(super) created_at: Instant,
    /// Link and IP header of the reassembled packet, from the first fragment; the lengths are not
    /// set yet.
    header: Option<Header>,
    /// Sorted by offset; no two overlap.
    fragments: Vec<StoredFragment>,
    /// Bytes of all stored fragments.
    received_len: usize,
    /// Bytes of the payload of the packet; known once the last fragment arrived.
    total_len: Option<usize>,
    /// A fragment was CE-marked (RFC 3168 section 5.3).
    ce_marked: bool,
    /// Discarded: later fragments are rejected.
    pub(super) rejected: bool,
}

#[derive(Debug)]
pub(super) struct Header {
    bytes: Vec<u8>,
    l3: usize,
    /// IP header of the first fragment as received, including the fragment header.
    raw: Vec<u8>,
    is_tcp: bool,
}

/// Result of [`FragmentQueue::insert`].
pub(super) enum InsertOutcome {
    Inserted,
    /// Same offset and bytes as a stored fragment.
    Duplicate,
    /// Overlaps or contradicts a stored fragment, or there are too many.
    Conflict,
}

impl FragmentQueue {
    pub(super) const fn new(now: Instant, key: Key) -> Self {
        Self {
            key,
            created_at: now,
            header: None,
            fragments: Vec::new(),
            received_len: 0,
            total_len: None,
            ce_marked: false,
            rejected: false,
        }
    }

    /// Memory charged, in bytes.
    pub(super) fn cost(&self) -> usize {
        PACKET_OVERHEAD + self.received_len + self.fragments.len() * FRAGMENT_OVERHEAD
    }

    /// Failure to be reported to the source, if the first fragment is present: no errors are sent
    /// about others (RFC 1122 section 3.2.2).
    pub(super) fn failure(&self, reason: FailureReason) -> Option<ReassemblyFailure> {
        let header = self.header.as_ref().filter(|header| header.is_tcp)?;
        let first = self.fragments.first().filter(|fragment| fragment.start == 0)?;
        let mut quote = header.raw.clone();
        quote.extend(first.bytes.iter().take(QUOTED_LEN));
        let fragment_len = u16::try_from(header.raw.len() + first.bytes.len()).ok()?;
        let mac = *header.bytes.get(6..)?.first_chunk()?;
        Some(ReassemblyFailure { reason, mac, quote, fragment_len })
    }

    pub(super) fn is_complete(&self) -> bool {
        self.total_len == Some(self.received_len) && self.header.is_some()
    }

    /// Discards the fragments; later ones are rejected.
    pub(super) fn reject(&mut self) {
        *self = Self { rejected: true, ..Self::new(self.created_at, self.key) };
    }

    /// Builds the packet, of which all fragments are present.
    pub(super) fn reassemble(self) -> Option<Reassembled> {
        reassemble(self.header?, &self.fragments, self.ce_marked)
    }

    pub(super) fn insert(
        &mut self,
        head: &[u8],
        packet: &Packet,
        part: &Fragment,
        bytes: Box<[u8]>,
    ) -> InsertOutcome {
        let fragment = StoredFragment { start: part.offset, bytes };
        let at = self.fragments.partition_point(|other| other.start < fragment.start);
        if let Some(other) = self.fragments.get(at).filter(|other| other.start == fragment.start) {
            // The network may duplicate a packet.
            return if other.bytes == fragment.bytes {
                InsertOutcome::Duplicate
            } else {
                InsertOutcome::Conflict
            };
        }
        // RFC 5722: overlapping fragments discard the packet.
        let overlaps = at > 0 && self.fragments[at - 1].end() > fragment.start
            || self.fragments.get(at).is_some_and(|next| next.start < fragment.end());
        let end = fragment.end();
        let fits = match (part.more, self.total_len) {
            // Only one fragment has MF clear, and no fragment lies after it.
            (false, total) => total.is_none() && at == self.fragments.len(),
            (true, total) => total.is_none_or(|total| end <= total),
        };
        if overlaps || !fits || self.fragments.len() >= FRAGMENT_COUNT_MAX {
            return InsertOutcome::Conflict;
        }
        // RFC 8200 section 4.5: the first fragment has the headers of the packet.
        if part.offset == 0 {
            let Some(header) = Header::from_first_fragment(head, packet, part) else {
                return InsertOutcome::Conflict;
            };
            self.header = Some(header);
        }
        // The last one has its length.
        if !part.more {
            self.total_len = Some(end);
        }
        // RFC 3168 section 5.3: CE in one fragment marks the packet.
        self.ce_marked |= has_ce(packet);
        self.received_len += fragment.bytes.len();
        // req: MPA-168, MPA-170
        self.fragments.insert(at, fragment);
        InsertOutcome::Inserted
    }
}

impl Header {
    /// Copies the headers in front of the payload, without the fragment header.
    pub(super) fn from_first_fragment(
        head: &[u8],
        packet: &Packet,
        part: &Fragment,
    ) -> Option<Self> {
        let end = if packet.src.is_ipv4() { packet.l4 } else { packet.l4.checked_sub(8)? };
        let mut bytes = head.get(..end)?.to_vec();
        *bytes.get_mut(part.protocol_at)? = packet.protocol;
        let raw = head.get(packet.l3..packet.l4)?.to_vec();
        let is_tcp = packet.protocol == PROTOCOL_TCP;
        Some(Self { bytes, l3: packet.l3, raw, is_tcp })
    }
}

/// Copies the payload of a fragment; `None` if no valid packet can contain it.
pub(super) fn fragment_payload(
    frame: &impl RxFrame,
    packet: &Packet,
    part: &Fragment,
) -> Option<Box<[u8]>> {
    let len = packet.end.checked_sub(packet.l4).filter(|&len| len > 0)?;
    if part.offset + len > PACKET_LEN_MAX || part.more && len % 8 != 0 {
        return None;
    }
    let mut bytes = vec![0; len].into_boxed_slice();
    frame.copy_out(packet.l4, &mut bytes);
    // The first fragment must contain the start of the upper-layer header, for TCP all of it
    // (RFC 1858, RFC 7112).
    if part.offset == 0 {
        let needed = if packet.protocol == PROTOCOL_TCP {
            bytes.get(12).map_or(TCP_LEN, |byte| usize::from(byte >> 4) * 4).max(TCP_LEN)
        } else {
            FIRST_FRAGMENT_LEN_MIN
        };
        if len < needed {
            return None;
        }
    }
    Some(bytes)
}

pub(super) const fn has_ce(packet: &Packet) -> bool {
    packet.traffic_class & 3 == 3
}

/// Builds the packet; `None` if it is longer than an IP packet can be.
pub(super) fn reassemble(
    header: Header,
    fragments: &[StoredFragment],
    congested: bool,
) -> Option<Reassembled> {
    let Header { mut bytes, l3, .. } = header;
    bytes.reserve(fragments.iter().map(|fragment| fragment.bytes.len()).sum());
    let header_end = bytes.len();
    for fragment in fragments {
        bytes.extend_from_slice(&fragment.bytes);
    }
    let len = bytes.len() - l3;
    let ip = &mut bytes[l3..];
    if ip[0] >> 4 == 4 {
        let total = u16::try_from(len).ok()?;
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[6..8].fill(0);
        // A Not-ECT packet stays Not-ECT: a conforming router has not marked it.
        if congested && ip[1] & 3 != 0 {
            ip[1] |= 3;
        }
        ip[10..12].fill(0);
        let sum = !checksum::sum(&ip[..header_end - l3]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        let payload_len = u16::try_from(len - IPV6_LEN).ok()?;
        ip[4..6].copy_from_slice(&payload_len.to_be_bytes());
        if congested && ip[1] & 0x30 != 0 {
            ip[1] |= 0x30;
        }
    }
    Some(Reassembled(bytes))
}
