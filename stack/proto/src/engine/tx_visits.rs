//! Visits of ready connections while the transmit queue is full.

use crate::time::{Instant, MILLISECOND};

/// Interval between such visits, at least.
const INTERVAL_NS: u64 = MILLISECOND;
/// The interval is at least so many times the duration of a pass with a visit, or hardly anything
/// else would be done.
const DURATION_FACTOR: u64 = 8;
/// Longest duration that is taken into account: a thread that was not scheduled says nothing.
const DURATION_NS_MAX: u64 = 50 * MILLISECOND;

/// While the transmit queue is full a pass ends with the connections that have sent, and the others
/// come first in the next one. Now and then it visits as many more as a pass may, in turn: their
/// timers are armed by it, and entries of ended connections leave the list.
#[derive(Debug)]
pub(super) struct TxVisits {
    /// Earliest time of the next visit.
    due_at: Instant,
    /// Time of the pass with the last one, until the next pass tells how long that took.
    begun_at: Option<Instant>,
}

impl TxVisits {
    pub(super) const fn new() -> Self {
        Self { due_at: Instant::ZERO, begun_at: None }
    }

    /// Called at the beginning of a pass that may transmit.
    #[inline]
    pub(super) fn on_pass(&mut self, now: Instant) {
        if let Some(begun_at) = self.begun_at.take() {
            let duration = now.since(begun_at).min(DURATION_NS_MAX);
            self.due_at = self.due_at.max(now + duration * DURATION_FACTOR);
        }
    }

    /// True if a pass that finds the transmit queue full has to visit connections
    /// nevertheless; the next one after it has not, for a while.
    #[cold]
    pub(super) fn begin_if_due(&mut self, now: Instant) -> bool {
        let is_due = self.due_at <= now;
        if is_due {
            self.due_at = now + INTERVAL_NS;
            self.begun_at = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of visits among 10,000 passes, of which one with a visit takes `long_ns`
    /// and any other `short_ns`, and the share of the time that they take.
    fn visits(long_ns: u64, short_ns: u64) -> (u32, f64) {
        let (mut visits, mut now, mut visiting_ns) = (TxVisits::new(), Instant::ZERO, 0);
        let mut count = 0;
        for _ in 0..10_000 {
            visits.on_pass(now);
            if visits.begin_if_due(now) {
                count += 1;
                visiting_ns += long_ns;
                now = now + long_ns;
            } else {
                now = now + short_ns;
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let share = visiting_ns as f64 / now.as_nanos() as f64;
        (count, share)
    }

    #[test]
    fn short_visits_have_a_fixed_interval() {
        let (count, _) = visits(MILLISECOND / 10, MILLISECOND / 10);
        assert_eq!(count, 1000, "in a second");
    }

    #[test]
    fn long_visits_take_a_small_part_of_the_time() {
        for long_ms in [5, 20, 50] {
            let (count, share) = visits(long_ms * MILLISECOND, MILLISECOND / 10);
            assert!(count >= 2 && share < 0.2, "{long_ms} ms: {count}, {share}");
            let (_, share) = visits(long_ms * MILLISECOND, MILLISECOND);
            assert!(share < 0.2, "{long_ms} ms: {share}");
        }
    }
}
