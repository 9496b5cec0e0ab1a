//! Trains of DDP segments: consecutive segments of one message with equally long payloads, none of
//! them its last. Their headers differ in the offset alone, and their payloads lie one after
//! another in one range of memory, which is resolved once.

use crate::ddp::memory::{Memory, MemoryRange, PageFault};
use crate::wire::ddp::{TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged, Version};

/// Bytes at the end of a header that hold the offset: TO of a tagged segment, MSN and MO of an
/// untagged one. MO is the low half, and does not overflow: a message has less than 2^32 bytes.
pub(super) const OFFSET_LEN: usize = 8;

/// Source of a ULPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TxSource {
    Terminate,
    Requests,
    Responses,
}

/// Segments that a train may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrainShape {
    /// Length of a segment, header included.
    pub(super) ulpdu_len: usize,
    /// Number of segments, at most.
    pub(super) count_max: usize,
}

impl TrainShape {
    /// Returns the payload length of a segment with a header of `header_len` bytes, and the number
    /// of segments without the last of a message of which `remaining` bytes are to be sent.
    pub(super) fn payload(self, header_len: usize, remaining: u64) -> (usize, usize) {
        let len = self.ulpdu_len - header_len;
        let full = remaining.saturating_sub(1) / len as u64;
        (len, usize::try_from(full).map_or(self.count_max, |full| full.min(self.count_max)))
    }
}

/// Train of DDP segments, in the order in which they are sent. Valid within the pass.
#[derive(Debug)]
#[must_use = "the stream counts its segments as built in `end_train`"]
pub struct SegmentTrain {
    pub(super) source: TxSource,
    header: [u8; UNTAGGED_LEN],
    header_len: usize,
    /// The last bytes of the next header.
    offset: u64,
    payload_len: usize,
    /// Payload of the segments that were not emitted.
    rest: MemoryRange,
    emitted: usize,
}

impl SegmentTrain {
    /// Creates a train of tagged segments that begins with `header`, from as much of `payload` as
    /// holds whole segments.
    pub(super) fn tagged(
        source: TxSource,
        header: &Tagged,
        version: Version,
        payload: MemoryRange,
        payload_len: usize,
    ) -> Self {
        let mut bytes = [0; UNTAGGED_LEN];
        header.emit(version, &mut bytes);
        Self::new(source, bytes, TAGGED_LEN, payload, payload_len)
    }

    /// As [`SegmentTrain::tagged`], of untagged segments.
    pub(super) fn untagged(
        source: TxSource,
        header: &Untagged,
        version: Version,
        payload: MemoryRange,
        payload_len: usize,
    ) -> Self {
        let mut bytes = [0; UNTAGGED_LEN];
        header.emit(version, &mut bytes);
        Self::new(source, bytes, UNTAGGED_LEN, payload, payload_len)
    }

    fn new(
        source: TxSource,
        header: [u8; UNTAGGED_LEN],
        header_len: usize,
        rest: MemoryRange,
        payload_len: usize,
    ) -> Self {
        let mut offset = [0; OFFSET_LEN];
        offset.copy_from_slice(&header[header_len - OFFSET_LEN..header_len]);
        let offset = u64::from_be_bytes(offset);
        Self { source, header, header_len, offset, payload_len, rest, emitted: 0 }
    }

    /// Returns the header of the first segment.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.header[..self.header_len]
    }

    /// Returns the number of segments that were not emitted.
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.rest.len() / self.payload_len
    }

    /// Returns the payload bytes of the segments that were emitted.
    pub(super) const fn emitted_len(&self) -> usize {
        self.emitted * self.payload_len
    }

    /// Completes the next segment in `ulpdu`, at whose start is [`SegmentTrain::header`]: updates
    /// the offset, and copies the payload.
    ///
    /// # Errors
    /// [`PageFault`]: the segment does not count as emitted, and no further one may be.
    ///
    /// # Panics
    /// If none remains, or `ulpdu` has another length.
    #[inline]
    pub fn emit_next(&mut self, memory: &impl Memory, ulpdu: &mut [u8]) -> Result<(), PageFault> {
        let (header, payload) = ulpdu.split_at_mut(self.header_len);
        header[self.header_len - OFFSET_LEN..].copy_from_slice(&self.offset.to_be_bytes());
        self.offset = self.offset.wrapping_add(self.payload_len as u64);
        memory.fetch(self.rest.take_front(self.payload_len), payload)?;
        self.emitted += 1;
        Ok(())
    }
}
