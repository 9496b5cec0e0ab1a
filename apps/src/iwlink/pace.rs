//! When to look again: soon enough for what is due, seldom enough to leave the core to others.

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};

/// After so long without a frame it looks less often.
const QUIET_NS: u64 = 1_000_000_000;
/// How often then.
const QUIET_POLL_NS: u64 = 1_000_000;

/// What to do until the next pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// Nothing: there may be more.
    None,
    /// Stay awake: a frame is due very soon.
    Spin,
    /// Sleep for so many nanoseconds.
    Sleep(u64),
}

/// Decides how to wait.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    poll_ns: u64,
    spin_ns: u64,
    busy_ns: u64,
}

impl Pace {
    /// Looks every `poll_ns`, and waits awake for what is due within `spin_ns`.
    #[must_use]
    pub fn new(poll_ns: u64, spin_ns: u64) -> Self {
        // The kernel lets ordinary sleeps last 50 us longer. Without the call they do.
        let _ = nix::sys::prctl::set_timerslack(1);
        Self { poll_ns, spin_ns, busy_ns: 0 }
    }

    /// Frames have flowed until `now_ns`.
    pub const fn worked(&mut self, now_ns: u64) {
        self.busy_ns = now_ns;
    }

    /// Waits after a pass that ended at `now_ns`. A signal of a tap that has frames ends the sleep.
    pub fn rest(&mut self, now_ns: u64, due_ns: Option<u64>, is_busy: bool) {
        match self.decide(now_ns, due_ns, is_busy) {
            Rest::None => {}
            Rest::Spin => std::hint::spin_loop(),
            Rest::Sleep(ns) => {
                // At most a minute: both parts fit.
                let time = TimeSpec::new(
                    i64::try_from(ns / 1_000_000_000).unwrap_or(0),
                    i64::try_from(ns % 1_000_000_000).unwrap_or(0),
                );
                // Interrupted or not: the next pass finds out.
                let _ =
                    clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::empty(), &time);
            }
        }
    }

    fn decide(&mut self, now_ns: u64, due_ns: Option<u64>, is_busy: bool) -> Rest {
        if is_busy {
            self.worked(now_ns);
            return Rest::None;
        }
        let due_in_ns = due_ns.map(|due_ns| due_ns.saturating_sub(now_ns));
        if due_in_ns.is_some_and(|ns| ns <= self.spin_ns) {
            return Rest::Spin;
        }
        let is_quiet = now_ns.saturating_sub(self.busy_ns) > QUIET_NS;
        let poll_ns = if is_quiet { self.poll_ns.max(QUIET_POLL_NS) } else { self.poll_ns };
        match due_in_ns.map_or(poll_ns, |ns| ns.min(poll_ns)) {
            0 => Rest::Spin,
            ns => Rest::Sleep(ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_sleeps_no_longer_than_the_next_frame_allows() {
        let mut pace = Pace::new(50_000, 20_000);
        let mut decide = |now_ns, due_ns, is_busy| pace.decide(now_ns, due_ns, is_busy);
        assert_eq!(decide(1000, None, true), Rest::None);
        assert_eq!(decide(2000, None, false), Rest::Sleep(50_000));
        assert_eq!(decide(2000, Some(1000), false), Rest::Spin);
        assert_eq!(decide(2000, Some(22_000), false), Rest::Spin);
        assert_eq!(decide(2000, Some(32_000), false), Rest::Sleep(30_000));
        assert_eq!(decide(2000, Some(1 << 40), false), Rest::Sleep(50_000));
    }

    #[test]
    fn a_quiet_wire_is_looked_at_less_often_until_a_frame_comes() {
        let mut pace = Pace::new(50_000, 20_000);
        assert_eq!(pace.decide(2 * QUIET_NS, None, false), Rest::Sleep(QUIET_POLL_NS));
        pace.decide(2 * QUIET_NS, None, true);
        assert_eq!(pace.decide(2 * QUIET_NS, None, false), Rest::Sleep(50_000));
    }

    #[test]
    fn without_spinning_or_sleeping_it_still_waits() {
        let mut pace = Pace::new(0, 0);
        assert_eq!(pace.decide(1, None, false), Rest::Spin);
        let mut pace = Pace::new(50_000, 0);
        assert_eq!(pace.decide(1000, Some(1001), false), Rest::Sleep(1));
        assert_eq!(pace.decide(1000, Some(1000), false), Rest::Spin);
    }
}
