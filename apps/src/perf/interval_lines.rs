//! Figures of a run for each interval, while it goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counts the messages of all workers for the lines of intervals, which one worker prints.
pub struct IntervalLines {
    interval: Duration,
    /// This worker prints the lines.
    prints: bool,
    /// Messages of all workers that have completed, in all runs.
    total: Arc<AtomicU64>,
    /// Messages of this worker and run that were added to `total`.
    added: u64,
    /// `total` at the last line, and the time.
    total_before: u64,
    before: Instant,
    /// Time of the next line.
    due: Instant,
}

impl IntervalLines {
    /// Prepares the lines. The workers share `total`.
    #[must_use]
    pub fn new(interval: Duration, prints: bool, total: Arc<AtomicU64>) -> Self {
        let now = Instant::now();
        let due = now + interval;
        Self { interval, prints, total, added: 0, total_before: 0, before: now, due }
    }

    /// Starts the first interval of a run.
    pub fn start(&mut self, now: Instant) {
        self.added = 0;
        self.total_before = self.total.load(Ordering::Relaxed);
        (self.before, self.due) = (now, now + self.interval);
    }

    /// Counts the messages of this worker: `completed` since the run began. Once per interval,
    /// returns the messages of all workers in it and its length in nanoseconds.
    pub fn poll(&mut self, now: Instant, completed: u64) -> Option<(u64, u64)> {
        let more = completed - self.added;
        if more > 0 {
            self.total.fetch_add(more, Ordering::Relaxed);
            self.added = completed;
        }
        if !self.prints || now < self.due {
            return None;
        }
        let total = self.total.load(Ordering::Relaxed);
        let elapsed = u64::try_from((now - self.before).as_nanos()).unwrap_or(u64::MAX);
        let line = (total - self.total_before, elapsed);
        (self.total_before, self.before) = (total, now);
        self.due += self.interval;
        if self.due <= now {
            // The program was stopped for longer.
            self.due = now + self.interval;
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_messages_of_all_workers() {
        let (total, start) = (Arc::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let lines =
            |prints| IntervalLines::new(Duration::from_millis(100), prints, Arc::clone(&total));
        let (mut first, mut second) = (lines(true), lines(false));
        for before in [0, 7000] {
            first.start(at(before));
            second.start(at(before));
            assert_eq!(second.poll(at(before + 90), 30), None);
            assert_eq!(first.poll(at(before + 99), 10), None);
            assert_eq!(first.poll(at(before + 110), 12), Some((42, 110_000_000)));
            assert_eq!(second.poll(at(before + 200), 40), None);
            assert_eq!(first.poll(at(before + 200), 12), Some((10, 90_000_000)));
            // After a pause of the program there is one line, not several.
            assert_eq!(first.poll(at(before + 950), 12), Some((0, 750_000_000)));
            assert_eq!(first.poll(at(before + 1049), 13), None);
            assert_eq!(first.poll(at(before + 1050), 13), Some((1, 100_000_000)));
        }
    }
}
