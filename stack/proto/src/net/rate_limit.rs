//! Rate limiter.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::time::{Instant, SECOND};

/// Limit on events per second, counted in fixed windows of one second. Clones share the count: all
/// engines over the queues of one port have one limit.
///
/// Cost: one compare-and-swap per event admitted.
#[derive(Clone, Debug)]
pub struct RateLimit {
    per_second: u32,
    /// The window and the events in it: 32 bits each.
    state: Arc<AtomicU64>,
}

impl RateLimit {
    /// At most `per_second` events in each second of the clock.
    #[must_use]
    pub fn new(per_second: u32) -> Self {
        Self { per_second, state: Arc::default() }
    }

    /// True if one more event is allowed now; it is then counted.
    pub fn admits(&self, now: Instant) -> bool {
        let second = (now.as_nanos() / SECOND) & u64::from(u32::MAX);
        let next = |state: u64| {
            // Engines read the clock apart: one that lags does not open a window again.
            let is_new = second > state >> 32;
            let (window, count) =
                if is_new { (second, 0) } else { (state >> 32, state & u64::from(u32::MAX)) };
            (count < u64::from(self.per_second)).then(|| window << 32 | (count + 1))
        };
        self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_applies_to_each_second() {
        let rate = RateLimit::new(3);
        for second in 0..3 {
            let now = Instant::from_nanos(second * SECOND + 5);
            let admitted = (0..10).filter(|_| rate.admits(now)).count();
            assert_eq!(admitted, 3);
        }
    }

    #[test]
    fn clones_share_the_limit() {
        let (rate, now) = (RateLimit::new(3), Instant::from_nanos(5 * SECOND));
        let shards = [rate.clone(), rate];
        assert_eq!((0..10).filter(|at| shards[at % 2].admits(now)).count(), 3);
        let late = Instant::from_nanos(4 * SECOND);
        assert!(!shards[0].admits(late), "a clock that lags");
    }
}
