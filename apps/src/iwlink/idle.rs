//! Idle strategy: busy-waits for frames that are due soon, and sleeps otherwise.

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};

/// Time without frames after which the polling interval grows.
const IDLE_AFTER_NS: u64 = 1_000_000_000;
/// Polling interval after that, unless the configured one is longer.
const IDLE_POLL_NS: u64 = 1_000_000;

/// Wait before the next poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Not at all: there may be more frames.
    None,
    /// Busy-wait: a frame is due soon.
    Spin,
    /// Sleep for so many nanoseconds.
    Sleep(u64),
}

/// Decides how to wait between polls.
#[derive(Clone, Copy, Debug)]
pub struct IdleStrategy {
    poll_ns: u64,
    spin_ns: u64,
    last_busy_ns: u64,
}

impl IdleStrategy {
    /// Creates a strategy that polls every `poll_ns` and busy-waits for frames due within
    /// `spin_ns`.
    #[must_use]
    pub fn new(poll_ns: u64, spin_ns: u64) -> Self {
        // The default timer slack lengthens sleeps by 50 us; failure only leaves it as it is.
        let _ = nix::sys::prctl::set_timerslack(1);
        Self { poll_ns, spin_ns, last_busy_ns: 0 }
    }

    /// Records that frames were forwarded until `now_ns`.
    pub const fn on_frames(&mut self, now_ns: u64) {
        self.last_busy_ns = now_ns;
    }

    /// Waits after a poll that ended at `now_ns`. The signal of a tap device that has frames ends
    /// the sleep.
    pub fn wait(&mut self, now_ns: u64, due_ns: Option<u64>, is_busy: bool) {
        match self.decide(now_ns, due_ns, is_busy) {
            Wait::None => {}
            Wait::Spin => std::hint::spin_loop(),
            Wait::Sleep(ns) => {
                // At most a minute, so both parts fit.
                let time = TimeSpec::new(
                    i64::try_from(ns / 1_000_000_000).unwrap_or(0),
                    i64::try_from(ns % 1_000_000_000).unwrap_or(0),
                );
                // Interrupted or not, the next poll follows.
                let _ =
                    clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::empty(), &time);
            }
        }
    }

    fn decide(&mut self, now_ns: u64, due_ns: Option<u64>, is_busy: bool) -> Wait {
        if is_busy {
            self.on_frames(now_ns);
            return Wait::None;
        }
        let due_in_ns = due_ns.map(|due_ns| due_ns.saturating_sub(now_ns));
        if due_in_ns.is_some_and(|ns| ns <= self.spin_ns) {
            return Wait::Spin;
        }
        let is_quiet = now_ns.saturating_sub(self.last_busy_ns) > IDLE_AFTER_NS;
        let poll_ns = if is_quiet { self.poll_ns.max(IDLE_POLL_NS) } else { self.poll_ns };
        match due_in_ns.map_or(poll_ns, |ns| ns.min(poll_ns)) {
            0 => Wait::Spin,
            ns => Wait::Sleep(ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_is_bounded_by_next_due_frame() {
        let mut pace = IdleStrategy::new(50_000, 20_000);
        let mut decide = |now_ns, due_ns, is_busy| pace.decide(now_ns, due_ns, is_busy);
        assert_eq!(decide(1000, None, true), Wait::None);
        assert_eq!(decide(2000, None, false), Wait::Sleep(50_000));
        assert_eq!(decide(2000, Some(1000), false), Wait::Spin);
        assert_eq!(decide(2000, Some(22_000), false), Wait::Spin);
        assert_eq!(decide(2000, Some(32_000), false), Wait::Sleep(30_000));
        assert_eq!(decide(2000, Some(1 << 40), false), Wait::Sleep(50_000));
    }

    #[test]
    fn poll_interval_grows_when_idle() {
        let mut pace = IdleStrategy::new(50_000, 20_000);
        assert_eq!(pace.decide(2 * IDLE_AFTER_NS, None, false), Wait::Sleep(IDLE_POLL_NS));
        pace.decide(2 * IDLE_AFTER_NS, None, true);
        assert_eq!(pace.decide(2 * IDLE_AFTER_NS, None, false), Wait::Sleep(50_000));
    }

    #[test]
    fn zero_poll_or_spin_interval_still_waits() {
        let mut pace = IdleStrategy::new(0, 0);
        assert_eq!(pace.decide(1, None, false), Wait::Spin);
        let mut pace = IdleStrategy::new(50_000, 0);
        assert_eq!(pace.decide(1000, Some(1001), false), Wait::Sleep(1));
        assert_eq!(pace.decide(1000, Some(1000), false), Wait::Spin);
    }
}
