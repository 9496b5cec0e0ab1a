//! Options of the length of a run, named as in perftest.

use std::time::Duration;

use anyhow::ensure;
use clap::Args;

use crate::option_values::{count, seconds};
use crate::perf::control::ENDLESS_MS;
use crate::perf::kind::Test;

/// Interval of the lines of --run_infinitely: perftest's.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(5);

/// Length of a run, and the lines that it prints meanwhile.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct LengthArgs {
    /// Messages per queue pair [default: 5000 for write-bw, 1000 otherwise].
    #[arg(short = 'n', long, value_parser = count)]
    pub iters: Option<u64>,
    /// Seconds to run for each size, instead of a number of messages.
    #[arg(short = 'D', long, value_name = "SECONDS", value_parser = seconds)]
    #[arg(conflicts_with = "iters")]
    pub duration: Option<Duration>,
    /// Runs until a signal, Ctrl-C for instance, and then prints the result (bandwidth only).
    /// Prints a line every 5 seconds, or as -i or -D requests.
    #[arg(long = "run_infinitely", alias = "run-infinitely", conflicts_with_all = ["iters", "all"])]
    pub run_infinitely: bool,
    /// Prints a line with the figures of each interval (bandwidth only), as perftest without a
    /// peak. With --bidirectional it has the client's direction only.
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    pub interval: Option<Duration>,
}

impl LengthArgs {
    /// Checks combinations of options.
    ///
    /// # Errors
    /// One line that names a remedy.
    pub(super) fn check(&self, test: Test) -> anyhow::Result<()> {
        for (option, is_given) in
            [("--run_infinitely", self.run_infinitely), ("-i", self.interval.is_some())]
        {
            ensure!(
                !(is_given && test.is_latency()),
                "{option} needs a bandwidth test: omit it, or use -D"
            );
        }
        ensure!(
            !(self.run_infinitely && self.duration.is_some() && self.interval.is_some()),
            "-D is the interval of --run_infinitely, as in perftest: give -i or -D"
        );
        Ok(())
    }

    /// Returns the interval of the lines, if there are any.
    #[must_use]
    pub fn interval(&self) -> Option<Duration> {
        match self.run_infinitely {
            true => self.interval.or(self.duration).or(Some(INTERVAL_DEFAULT)),
            false => self.interval,
        }
    }

    /// Returns the messages of a run; 0: it ends after a time.
    pub(super) fn iterations(&self, test: Test) -> u64 {
        match (self.duration, self.iters, test) {
            _ if self.run_infinitely => 0,
            (Some(_), _, _) => 0,
            (None, Some(iterations), _) => iterations,
            (None, None, Test::WriteBw) => 5000,
            (None, None, _) => 1000,
        }
    }

    /// Returns the time of a run without a number of messages, in milliseconds.
    pub(super) fn duration_ms(&self) -> u64 {
        if self.run_infinitely {
            return ENDLESS_MS;
        }
        let duration_ms = self.duration.map_or(0, |duration| duration.as_millis().max(1));
        u64::try_from(duration_ms).unwrap_or(u64::MAX)
    }
}
