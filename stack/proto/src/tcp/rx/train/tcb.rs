//! Plain segments, and trains of them, received by a connection.

use super::TrainPayload;
use crate::device::{Retained, RxFrame};
use crate::tcp::tcb::Tcb;
use crate::time::Instant;
use crate::wire::tcp::{PlainHeader, PlainSegment};

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Parses a received frame if it is a plain segment of this connection; see
    /// [`HeaderTemplate::parse_plain`](crate::wire::tcp::HeaderTemplate::parse_plain).
    #[inline(always)]
    #[must_use]
    pub fn parse_plain(&self, frame: &impl RxFrame) -> Option<PlainSegment> {
        self.template.parse_plain(frame, self.cfg.checksum)
    }

    /// True if a train may start with a segment that has payload and this header: it is the next in
    /// order, and eligible for the fast path.
    #[inline]
    #[must_use]
    pub fn may_start_train(&self, header: &PlainHeader) -> bool {
        self.fast_path.is_rx_eligible() && header.seq == self.rcv.nxt
    }

    /// Processes a plain segment with this header, or the train that begins with it, on the fast
    /// path. If it returns true, the whole payload is delivered: the caller consumes it in order,
    /// as of [`Delivered::InOrder`](crate::tcp::Delivered::InOrder), and nothing buffered follows.
    ///
    /// If it returns false nothing was processed: each segment is to be passed to
    /// [`Tcb::handle_segment`].
    #[inline(never)]
    #[must_use]
    pub fn handle_plain(
        &mut self,
        now: Instant,
        header: &PlainHeader,
        payload: &TrainPayload,
    ) -> bool {
        let is_processed = self.try_fast_path(now, header, payload);
        if is_processed {
            let counts = &mut self.segment_counts;
            counts.segments_in = counts.segments_in.wrapping_add(payload.segments);
        }
        is_processed
    }
}
