//! Segments of the messages: what the stack sends for RDMA Writes that follow one another.

use std::ops::Range;

use ferrowarp_proto::mpa::fpdu::{CRC_LEN, LENGTH_LEN, fpdu_len};
use ferrowarp_proto::mpa::framing::Framing;
use ferrowarp_proto::rdmap::segment::Chunk;
use ferrowarp_proto::wire::ddp::{TAGGED_LEN, Tagged, Version};
use ferrowarp_proto::wire::ethernet::ETHERNET_LEN;
use ferrowarp_proto::wire::ip::IPV4_LEN;
use ferrowarp_proto::wire::rdmap::Opcode;
use ferrowarp_proto::wire::tcp::{TCP_LEN, TIMESTAMPS_LEN};

use super::crc::Crc;

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

/// Tagged Buffer that the messages are written to, as in the DDP headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) stag: u32,
    /// Tagged Offset of the message's first byte.
    pub(crate) to: u64,
}

/// An FPDU, and how it is processed.
#[derive(Clone, Debug)]
pub(crate) struct Fpdu {
    /// Range in the frame that the CRC covers: MPA length, ULPDU and padding.
    pub(crate) covered: Range<usize>,
    /// MPA length and DDP header. They are written for each segment, because the CRC covers them.
    pub(crate) header: [u8; FPDU_HEADER_LEN],
    /// Tagged Offset in the first slot.
    pub(crate) to: u64,
    /// Bytes of the message that it carries.
    pub(crate) payload: Range<usize>,
    pub(crate) crc: Crc,
}

/// A segment: as many whole FPDUs as the engine packs into it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segment {
    pub(crate) fpdus: Vec<Fpdu>,
    pub(crate) payload_len: usize,
}

impl Segment {
    /// Appends an FPDU with a part of the message.
    fn push(
        &mut self,
        payload: Range<usize>,
        last: bool,
        target: Target,
        crc_of: impl FnOnce(usize) -> Crc,
    ) {
        let ulpdu_len = TAGGED_LEN + payload.len();
        let covered_len = fpdu_len(ulpdu_len) - CRC_LEN;
        let at = FRAME_HEADER_LEN + self.len();
        let to = target.to + payload.start as u64;
        let mut header = [0; FPDU_HEADER_LEN];
        let (length, ddp) = header.split_at_mut(LENGTH_LEN);
        let len = u16::try_from(ulpdu_len).expect("at most the EMSS");
        length.copy_from_slice(&len.to_be_bytes());
        let rsvd_ulp = Opcode::Write.control(Version::Ietf);
        Tagged { last, rsvd_ulp, stag: target.stag, to }.emit(Version::Ietf, ddp);
        self.payload_len += payload.len();
        let covered = at..at + covered_len;
        self.fpdus.push(Fpdu { covered, header, to, payload, crc: crc_of(covered_len) });
    }

    /// Returns the bytes of its FPDUs.
    fn len(&self) -> usize {
        self.fpdus.last().map_or(0, |last| last.covered.end + CRC_LEN - FRAME_HEADER_LEN)
    }
}

/// Splits RDMA Writes of `message_len` bytes, posted faster than they are sent, for a link of `mtu`
/// bytes, as the engine does without markers. `crc_of` returns the CRC for so many bytes.
///
/// The segments repeat: a message that the engine would have to cut begins in a segment of its own,
/// so a large one is split alike each time, and small ones fill segments in the same number.
pub(crate) fn segments(
    mtu: u16,
    message_len: usize,
    target: Target,
    mut crc_of: impl FnMut(usize) -> Crc,
) -> Vec<Segment> {
    assert!(message_len > 0, "a message has at least one byte");
    let mut segments = Vec::new();
    let mut segment = Segment::default();
    let mut sent = 0;
    loop {
        let remaining = message_len - sent;
        let ulpdu_max = Framing::ulpdu_max(emss(mtu) - segment.len(), None);
        if segment.len() > 0 && TAGGED_LEN + remaining > ulpdu_max {
            // The rest of the message, or the next one, would be cut.
            segments.push(std::mem::take(&mut segment));
            if sent == 0 {
                return segments;
            }
            continue;
        }
        let chunk = Chunk { offset: sent as u64, remaining: remaining as u64 };
        let (len, is_last) = chunk.next_segment(ulpdu_max - TAGGED_LEN);
        segment.push(sent..sent + len, is_last, target, &mut crc_of);
        sent = if is_last { 0 } else { sent + len };
    }
}
