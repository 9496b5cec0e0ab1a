//! Trains received by a connection.

use super::TrainPayload;
use crate::device::{Retained, RxFrame};
use crate::tcp::tcb::Tcb;
use crate::time::Instant;
use crate::wire::tcp::Segment;

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// True if a train may start with `seg`, a segment with payload: it is the next in order, and
    /// eligible for the fast path.
    #[inline]
    #[must_use]
    pub fn may_start_train(&self, seg: &Segment) -> bool {
        self.fast_path.is_rx_eligible() && seg.seq == self.rcv.nxt && !seg.payload.is_empty()
    }

    /// Processes a train, whose first segment is `seg`, on the fast path. If it returns true, the
    /// whole payload is delivered: the caller consumes it in order, as of
    /// [`Delivered::InOrder`](crate::tcp::Delivered::InOrder).
    ///
    /// If it returns false nothing was processed: each segment is to be passed to
    /// [`Tcb::handle_segment`].
    #[inline]
    #[must_use]
    pub fn handle_train(&mut self, now: Instant, seg: &Segment, payload: &TrainPayload) -> bool {
        let is_processed = self.try_fast_path(now, seg, payload);
        if is_processed {
            let counts = &mut self.segment_counts;
            counts.segments_in = counts.segments_in.wrapping_add(payload.segments);
        }
        is_processed
    }
}
