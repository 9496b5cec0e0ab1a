//! Peak bandwidth of a run.

use std::time::{Duration, Instant};

/// Minimum length of a window: shorter ones measure the clock and the caches.
const WINDOW: Duration = Duration::from_millis(10);

/// Highest rate over consecutive windows of at least 10 ms. A window begins and ends at a
/// completion, so that a large message is not attributed to a shorter time than it took.
#[derive(Clone, Copy, Debug)]
pub struct Peak {
    window_start: Instant,
    bytes: u64,
    last_total: u64,
    best_gbit_s: f64,
}

impl Peak {
    /// Starts the first window.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self { window_start: now, bytes: 0, last_total: 0, best_gbit_s: 0.0 }
    }

    /// Records that `bytes` have completed since the run began.
    #[inline]
    pub fn record(&mut self, now: Instant, bytes: u64) {
        if bytes == self.last_total {
            return;
        }
        self.last_total = bytes;
        let elapsed = now - self.window_start;
        if elapsed < WINDOW {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "figures are shown with few digits")]
        let bits = (bytes - self.bytes) as f64 * 8.0;
        self.best_gbit_s = self.best_gbit_s.max(bits / elapsed.as_secs_f64() / 1e9);
        self.window_start = now;
        self.bytes = bytes;
    }

    /// Returns the highest rate, in gigabits per second; 0 if the run was shorter than a window.
    #[must_use]
    pub const fn gbit_s(&self) -> f64 {
        self.best_gbit_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_is_highest_rate_of_full_windows() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut peak = Peak::new(start);
        peak.record(at(5), 1 << 40);
        assert_eq!(peak.gbit_s(), 0.0);
        let mut peak = Peak::new(start);
        for (ms, bytes) in [(10, 1_250_000), (20, 3_750_000), (30, 5_000_000)] {
            peak.record(at(ms), bytes);
        }
        assert!((peak.gbit_s() - 2.0).abs() < 1e-6);

        // A message that completes after 100 ms without completions took these 100 ms.
        let mut peak = Peak::new(start);
        for (ms, bytes) in [(50, 0), (99, 0), (100, 1_250_000)] {
            peak.record(at(ms), bytes);
        }
        assert!((peak.gbit_s() - 0.1).abs() < 1e-6);
    }
}
