//! Meter of the longest poll of a test.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Longest poll of a test of one engine. Most take a thousandth of it, but tests are not optimized,
/// and machines are busy.
pub const LIMIT: Duration = Duration::from_millis(50);

/// Meter of the longest poll of a test, in CPU time of the polling thread.
///
/// One poll serves every connection, queue pair and application of its shard: a test that fills a
/// shared resource passes each poll through [`Self::time`] and ends with [`Self::assert_below`].
/// Fixtures do both. CPU time leaves out other programs that take the core meanwhile.
#[derive(Debug, Default)]
pub struct LongestPoll {
    longest: Duration,
    polls: u64,
}

impl LongestPoll {
    /// Calls `poll` and returns its result.
    pub fn time<R>(&mut self, poll: impl FnOnce() -> R) -> R {
        let begin = thread_cpu_time();
        let result = poll();
        self.longest = self.longest.max(thread_cpu_time().saturating_sub(begin));
        self.polls += 1;
        result
    }

    /// Returns the CPU time of the longest poll.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// For the end of a fixture: as [`Self::assert_below`] with [`LIMIT`], in the name of the test,
    /// unless that has failed or polled nothing.
    pub fn end(&self) {
        let thread = std::thread::current();
        if self.polls > 0 && !std::thread::panicking() {
            self.assert_below(thread.name().unwrap_or("a test"), LIMIT);
        }
    }

    /// Prints the longest poll of the test `name`.
    ///
    /// # Panics
    /// If it took `limit` or more, or if there was none.
    pub fn assert_below(&self, name: &str, limit: Duration) {
        let Self { longest, polls } = self;
        println!("{name}: longest of {polls} polls {longest:?}, limit {limit:?}");
        assert!(*polls > 0, "{name}: nothing was polled");
        assert!(*longest < limit, "{name}: a poll took {longest:?}, limit {limit:?}");
    }
}

fn thread_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has this clock").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_poll_counts() {
        let mut polls = LongestPoll::default();
        polls.time(|| ());
        let busy = || {
            let begin = thread_cpu_time();
            while thread_cpu_time() - begin < Duration::from_millis(2) {}
        };
        polls.time(busy);
        polls.time(|| std::thread::sleep(Duration::from_millis(30)));
        assert!(polls.longest() >= Duration::from_millis(2), "{polls:?}");
        assert!(polls.longest() < Duration::from_millis(30), "sleep takes no CPU time: {polls:?}");
    }
}
