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
