//! Trains of received segments: in order, with equal headers but for sequence number, length and
//! PSH. TCP processes one like a single long segment.

mod tcb;

use crate::wire::seq::Seq;

/// Payload of a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainPayload {
    /// Length in bytes.
    pub len: u32,
    /// Length in bytes of the longest segment.
    pub segment_len_max: u16,
    /// Length in bytes of the last segment.
    pub last_len: u32,
    /// Number of segments.
    pub segments: u32,
}

impl TrainPayload {
    /// Returns the payload of a single segment, of `len` bytes.
    #[inline]
    #[must_use]
    pub fn single(len: u32) -> Self {
        let segment_len_max = u16::try_from(len).unwrap_or(u16::MAX);
        Self { len, segment_len_max, last_len: len, segments: 1 }
    }

    /// Adds the next segment, of `len` bytes.
    #[inline]
    pub fn push(&mut self, len: u32) {
        self.len += len;
        self.segment_len_max = self.segment_len_max.max(u16::try_from(len).unwrap_or(u16::MAX));
        self.last_len = len;
        self.segments += 1;
    }

    /// Returns the sequence number of the last segment of a train that begins at `first`.
    #[inline]
    pub(in crate::tcp) fn last_seq(&self, first: Seq) -> Seq {
        first + (self.len - self.last_len)
    }
}

#[cfg(test)]
mod tests;
