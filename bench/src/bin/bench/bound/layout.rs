//! Segments of the messages: what the stack sends for RDMA Writes that follow one another.

use std::ops::Range;

use ferrowarp_proto::mpa::fpdu::{CRC_LEN, LENGTH_LEN, fpdu_len};
use ferrowarp_proto::mpa::framing::Framing;
use ferrowarp_proto::rdmap::segment::Chunk;
use ferrowarp_proto::wire::ddp::TAGGED_LEN;
use ferrowarp_proto::wire::ethernet::ETHERNET_LEN;
use ferrowarp_proto::wire::ip::IPV4_LEN;
use ferrowarp_proto::wire::tcp::{TCP_LEN, TIMESTAMPS_LEN};

/// Bytes of a frame before the first FPDU: Ethernet, IPv4, TCP with timestamps, the default of
/// `iwperf`.
pub(crate) const FRAME_HEADER_LEN: usize =
    ETHERNET_LEN + IPV4_LEN + TCP_LEN + TIMESTAMPS_LEN as usize;
/// Bytes of an FPDU before its payload: MPA length and DDP header.
pub(crate) const FPDU_HEADER_LEN: usize = LENGTH_LEN + TAGGED_LEN;

/// Returns the bytes of a segment after its headers on a link of `mtu` bytes.
pub(crate) const fn emss(mtu: u16) -> usize {
    mtu as usize + ETHERNET_LEN - FRAME_HEADER_LEN
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fpdu {
    /// Offset in the frame in bytes.
    pub(crate) at: usize,
    /// Bytes of the message that it carries.
    pub(crate) payload: Range<usize>,
    pub(crate) is_last: bool,
}

impl Fpdu {
    /// Length of the ULPDU in bytes: DDP header and payload.
    pub(crate) const fn ulpdu_len(&self) -> usize {
        TAGGED_LEN + self.payload.end - self.payload.start
    }

    /// Bytes that the CRC covers: MPA length, ULPDU and padding.
    pub(crate) const fn covered_len(&self) -> usize {
        self.wire_len() - CRC_LEN
    }

    /// Length in the frame in bytes, with padding and CRC.
    pub(crate) const fn wire_len(&self) -> usize {
        fpdu_len(self.ulpdu_len())
    }
}

/// A segment: as many whole FPDUs as the engine packs into it.
pub(crate) type Segment = Vec<Fpdu>;

/// Segments of RDMA Writes of one length, posted faster than they are sent.
///
/// They repeat: a message that the engine would have to cut begins in a segment of its own, so a
/// large one is split alike each time, and small ones fill segments in the same number.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) message_len: usize,
    pub(crate) segments: Vec<Segment>,
}

impl Layout {
    /// Splits messages of `message_len` bytes for a link of `mtu` bytes, as the engine does without
    /// markers.
    pub(crate) fn new(mtu: u16, message_len: usize) -> Self {
        assert!(message_len > 0, "a message has at least one byte");
        let emss = emss(mtu);
        let mut segments = Vec::new();
        let mut segment = Segment::new();
        let mut used = 0;
        let mut sent = 0;
        loop {
            let remaining = message_len - sent;
            let ulpdu_max = Framing::ulpdu_max(emss - used, None);
            if used > 0 && TAGGED_LEN + remaining > ulpdu_max {
                // The rest of the message, or the next one, would be cut.
                segments.push(std::mem::take(&mut segment));
                used = 0;
                if sent == 0 {
                    return Self { message_len, segments };
                }
                continue;
            }
            let chunk = Chunk { offset: sent as u64, remaining: remaining as u64 };
            let (len, is_last) = chunk.next_segment(ulpdu_max - TAGGED_LEN);
            let at = FRAME_HEADER_LEN + used;
            let fpdu = Fpdu { at, payload: sent..sent + len, is_last };
            used += fpdu.wire_len();
            segment.push(fpdu);
            sent = if is_last { 0 } else { sent + len };
        }
    }

    /// Splits one message behind which none waits.
    pub(crate) fn alone(mtu: u16, message_len: usize) -> Self {
        let Self { mut segments, .. } = Self::new(mtu, message_len);
        // Small messages share a segment: keep the first.
        segments.last_mut().expect("a message has a segment").truncate(1);
        Self { message_len, segments }
    }

    /// Returns the lengths of bytes under one CRC, each once.
    pub(crate) fn covered_lens(&self) -> Vec<usize> {
        let mut lens: Vec<_> = self.segments.iter().flatten().map(Fpdu::covered_len).collect();
        lens.sort_unstable();
        lens.dedup();
        lens
    }
}
