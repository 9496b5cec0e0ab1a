//! Trains of received segments: in order, with equal headers but for sequence number, length and
//! PSH. TCP processes one like a single long segment.

use crate::device::{Retained, RxFrame};
use crate::tcp::Tcb;
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::{PlainHeader, PlainSegment};

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

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Parses a received frame if it is a plain segment of this connection; see
    /// [`HeaderTemplate::parse_plain`](crate::wire::tcp::HeaderTemplate::parse_plain).
    #[inline(always)]
    #[must_use]
    pub fn parse_plain(&self, frame: &impl RxFrame) -> Option<PlainSegment> {
        self.template.parse_plain(frame, self.cfg.checksum)
    }

    /// Processes a plain segment with this header and `len` bytes of payload, or the train that
    /// begins with it, on the fast path. `find_train` returns the payload together with that of the
    /// segments that continue it, up to a total length, and is called only if they are processed as
    /// well. The whole payload returned is delivered: the caller consumes it in order, as of
    /// [`Delivered::InOrder`](crate::tcp::Delivered::InOrder), and nothing buffered follows.
    ///
    /// If it returns `None` nothing was processed: the segment is to be passed to
    /// [`Tcb::handle_segment`].
    #[inline(always)]
    #[must_use]
    pub fn handle_plain(
        &mut self,
        now: Instant,
        header: &PlainHeader,
        len: u32,
        find_train: impl FnOnce(&Self, u32) -> TrainPayload,
    ) -> Option<TrainPayload> {
        let len_max = self.predict(now, header, len)?;
        let payload = if len > 0 { find_train(self, len_max) } else { TrainPayload::single(0) };
        self.receive_plain(now, header, &payload);
        Some(payload)
    }

    #[inline(never)]
    fn receive_plain(&mut self, now: Instant, header: &PlainHeader, payload: &TrainPayload) {
        self.receive_predicted(now, header, payload);
        let counts = &mut self.segment_counts;
        counts.segments_in = counts.segments_in.wrapping_add(payload.segments);
    }
}

#[cfg(test)]
mod tests;
