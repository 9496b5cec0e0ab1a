//! Watchdog of the programs: ends a wait for a peer that is silent for too long.

use std::time::{Duration, Instant};

/// Time between two looks that counts in full. The programs look thousands of times a second; a
/// longer time is a pause of this program, in which it could not have noticed any progress.
const LOOK_INTERVAL_MAX: Duration = Duration::from_millis(100);

/// Detects that there has been no progress for too long.
///
/// Only time in which the program itself ran counts. A program that was stopped (Ctrl-Z, a
/// debugger, a paused virtual machine) does not take its own pause for silence of the peer.
#[derive(Debug)]
pub struct Watchdog {
    timeout: Duration,
    /// Time between two looks that counts in full.
    interval_max: Duration,
    /// Time without progress so far, without pauses.
    waited: Duration,
    looked_at: Instant,
}

impl Watchdog {
    /// Starts a timeout.
    #[must_use]
    pub fn new(timeout: Duration) -> Self {
        Self::started_at(Instant::now(), timeout)
    }

    fn started_at(now: Instant, timeout: Duration) -> Self {
        // A pause must not exhaust a short timeout either.
        let interval_max = LOOK_INTERVAL_MAX.min(timeout / 4);
        Self { timeout, interval_max, waited: Duration::ZERO, looked_at: now }
    }

    /// Records progress.
    pub const fn progress(&mut self, now: Instant) {
        self.waited = Duration::ZERO;
        self.looked_at = now;
    }

    /// True if there was no progress for longer than the timeout.
    pub fn has_expired(&mut self, now: Instant) -> bool {
        let since_last = now.saturating_duration_since(self.looked_at);
        self.waited += since_last.min(self.interval_max);
        self.looked_at = self.looked_at.max(now);
        self.waited > self.timeout
    }

    /// Checks the timeout while the program waits for `what`.
    ///
    /// # Errors
    /// If there was no progress for longer than the timeout.
    pub fn check(&mut self, now: Instant, what: &str) -> anyhow::Result<()> {
        anyhow::ensure!(
            !self.has_expired(now),
            "nothing from the peer for {} s while waiting for {what}: is it still running?",
            self.timeout.as_secs_f64()
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(1);

    /// A watchdog with a clock of its own.
    struct TimedWatchdog {
        watchdog: Watchdog,
        now: Instant,
    }

    impl TimedWatchdog {
        fn new(timeout: Duration) -> Self {
            let now = Instant::now();
            Self { watchdog: Watchdog::started_at(now, timeout), now }
        }

        /// Looks every millisecond for so many of them. False if the timeout expires.
        fn run(&mut self, milliseconds: u32) -> bool {
            (0..milliseconds).all(|_| {
                self.now += Duration::from_millis(1);
                !self.watchdog.has_expired(self.now)
            })
        }

        fn pause(&mut self, seconds: u64) {
            self.now += Duration::from_secs(seconds);
        }
    }

    #[test]
    fn silence_longer_than_the_timeout_is_an_error() {
        let mut fx = TimedWatchdog::new(TIMEOUT);
        assert!(fx.run(900));
        fx.watchdog.progress(fx.now);
        assert!(fx.run(1000));
        let error = fx.watchdog.check(fx.now + Duration::from_millis(1), "x").unwrap_err();
        assert!(error.to_string().contains("nothing from the peer for 1 s while waiting for x"));
    }

    #[test]
    fn pause_of_the_program_does_not_count() {
        let mut fx = TimedWatchdog::new(TIMEOUT);
        assert!(fx.run(500));
        fx.pause(4);
        assert!(fx.run(300), "the peer gets time to answer after the pause");
        fx.pause(3600);
        assert!(!fx.run(300), "the silence before and after the pauses counts");
    }

    #[test]
    fn pause_does_not_exhaust_a_short_timeout() {
        let mut fx = TimedWatchdog::new(Duration::from_millis(20));
        assert!(fx.run(10));
        fx.pause(4);
        assert!(fx.run(5));
        assert!(!fx.run(10));
    }

    #[test]
    fn clock_of_an_earlier_look_is_no_error() {
        let mut fx = TimedWatchdog::new(TIMEOUT);
        let before = fx.now;
        assert!(fx.run(500));
        assert!(!fx.watchdog.has_expired(before));
        assert!(fx.run(400) && !fx.run(200));
    }
}
