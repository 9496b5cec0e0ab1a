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

    /// Processes a plain segment with this header, or the train that begins with it, on the fast
    /// path. `payload` is that of the segment; `find_train` adds the segments that continue it, up
    /// to a total length, and is called only if they are processed as well. If it returns true, the
    /// whole payload is delivered: the caller consumes it in order, as of
    /// [`Delivered::InOrder`](crate::tcp::Delivered::InOrder), and nothing buffered follows.
    ///
    /// If it returns false nothing was processed: the segment is to be passed to
    /// [`Tcb::handle_segment`].
    #[inline(never)]
    #[must_use]
    pub fn handle_plain(
        &mut self,
        now: Instant,
        header: &PlainHeader,
        payload: &mut TrainPayload,
        find_train: impl FnOnce(&Self, &mut TrainPayload, u32),
    ) -> bool {
        let Some(predicted) = self.predict(now, header, payload.len) else { return false };
        if payload.len > 0 {
            find_train(self, payload, predicted.train_len_max);
        }
        self.receive_predicted(now, header, payload, &predicted);
        let counts = &mut self.segment_counts;
        counts.segments_in = counts.segments_in.wrapping_add(payload.segments);
        true
    }
}
