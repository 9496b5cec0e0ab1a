//! Replacement of a connection's retained frames by copies.

use super::CopyPool;
use crate::device::{Retained, RxFrame};
use crate::tcp::tcb::Tcb;
use crate::time::Instant;

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Returns the earlier of the last transmission of the first record and the last progress;
    /// `None` if there is no record.
    #[must_use]
    pub fn stalled_since(&self, now: Instant) -> Option<Instant> {
        Some(self.scoreboard.front_sent_at()?.min(self.progress_at(now)))
    }

    /// Replaces frames of records by copies, at most `count_max` and as far as `pool` admits;
    /// returns how many. Nothing else changes: retransmissions use the copies.
    pub fn copy_out(&mut self, pool: &CopyPool, count_max: usize) -> usize {
        self.scoreboard.copy_out(pool, count_max)
    }

    /// As [`Tcb::copy_out`] for one frame of at most `len_max` bytes; true if there is one.
    pub fn copy_out_short(&mut self, pool: &CopyPool, len_max: usize) -> bool {
        self.scoreboard.copy_out_short(pool, len_max)
    }
}
