//! Yields of a helper.

use ferrowarp_proto::time::Instant;

/// Yields the helper's core between two polls: the scheduler may have put the thread that the
/// helper has just woken on this CPU, where it would not run before the next sleep. Next to a
/// thread that computes, a yield costs a time slice, while a wake-up from a sleep costs next to
/// nothing: after a long yield the helper stops yielding for a while.
pub(crate) struct YieldBackoff {
    resume_at: Instant,
}

impl YieldBackoff {
    /// A yield longer than this, in nanoseconds, did not go to a woken thread.
    const YIELD_NS_MAX: u64 = 500_000;
    /// Time without yields after that, in nanoseconds.
    const BACKOFF_NS: u64 = 100_000_000;

    /// A helper that begins at `now`.
    pub(crate) const fn new(now: Instant) -> Self {
        Self { resume_at: now }
    }

    /// Yields unless backing off. True if it yielded.
    pub(crate) fn yield_now(&mut self, mut clock: impl FnMut() -> Instant) -> bool {
        let start = clock();
        if start < self.resume_at {
            return false;
        }
        std::thread::yield_now();
        let end = clock();
        if end.since(start) > Self::YIELD_NS_MAX {
            self.resume_at = end + Self::BACKOFF_NS;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_yield_stops_yielding_for_a_while() {
        let mut yields = YieldBackoff::new(Instant::ZERO);
        let mut now = Instant::ZERO;
        // Yields for `step_ns`.
        let mut yielded = |step_ns: u64, now: &mut Instant| {
            let mut calls = 0;
            yields.yield_now(|| {
                calls += 1;
                if calls == 2 {
                    *now = *now + step_ns;
                }
                *now
            })
        };
        assert!(yielded(YieldBackoff::YIELD_NS_MAX, &mut now), "short enough");
        assert!(yielded(YieldBackoff::YIELD_NS_MAX + 1, &mut now));
        assert!(!yielded(0, &mut now));
        now = now + (YieldBackoff::BACKOFF_NS - 1);
        assert!(!yielded(0, &mut now));
        now = now + 1;
        assert!(yielded(0, &mut now));
    }
}
