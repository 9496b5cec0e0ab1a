//! Runs comparisons, round by round.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::Test;
use super::results::{Comparison, Metric};
use super::sample::Sample;
use crate::baseline::report::size_name;

/// Runs all tests of all peers `rounds` times. In a round the peers run a test one after the other,
/// each round beginning with another one, so that other load of the machine affects all of them.
/// Failures are appended to `failures`, one line each. Begins no round that, if it takes as long as
/// the one before, ends after `limit`. Returns the number of rounds.
pub fn run(
    comparisons: &mut [Comparison],
    rounds: usize,
    seconds: f64,
    limit: Option<Duration>,
    failures: &mut Vec<String>,
) -> usize {
    let started = Instant::now();
    let count: usize = comparisons.iter().map(Comparison::run_count).sum();
    let mut progress = Progress::new(count * rounds);
    for round in 0..rounds {
        let elapsed = started.elapsed();
        let longest = elapsed / u32::try_from(round.max(1)).unwrap_or(u32::MAX);
        if limit.is_some_and(|limit| round > 0 && elapsed + longest > limit) {
            progress.finish();
            return round;
        }
        for comparison in &mut *comparisons {
            let setting = comparison.setting.title();
            for (index, &test) in comparison.tests.iter().enumerate() {
                let peers = comparison.entries.len();
                for step in 0..peers {
                    let entry = &mut comparison.entries[(step + round) % peers];
                    if !entry.peer.supports(test) {
                        continue;
                    }
                    let result = entry.peer.run(test, seconds);
                    let label = format!("{setting}: {}, {}", entry.peer.name(), title(test));
                    let text = match &result {
                        Ok(sample) => format!("{label}: {}", summary(sample)),
                        Err(error) => {
                            failures.push(format!("round {}: {label}: {error:#}", round + 1));
                            format!("{label}: failed: {error:#}")
                        }
                    };
                    progress.advance(&format!("round {} of {rounds}: {text}", round + 1));
                    entry.cells[index].rounds.push(result.ok());
                }
            }
        }
    }
    progress.finish();
    rounds
}

/// Formats a test.
#[must_use]
pub fn title(test: Test) -> String {
    match test {
        Test::Stream { size, connections: 1 } => format!("stream of {}", size_name(size)),
        Test::Stream { size, connections } => {
            format!("stream of {} by {connections}", size_name(size))
        }
        Test::PingPong { size } => format!("ping-pong of {}", size_name(size)),
    }
}

fn summary(sample: &Sample) -> String {
    match (sample.gbit_s, sample.rate_mops, sample.latency) {
        (Some(gbit_s), Some(rate), _) => format!("{gbit_s:.2} Gb/s, {rate:.3} M/s"),
        (_, _, Some(latency)) => {
            let (name, value) = match latency.p50 {
                Some(p50) => (Metric::P50.title(), p50),
                None => (Metric::Mean.title(), latency.mean.unwrap_or_default()),
            };
            format!("{name} {value:.2} us")
        }
        _ => "no result".to_owned(),
    }
}

/// A bar on a terminal; elsewhere a line for each run.
struct Progress {
    bar: Option<ProgressBar>,
    started: Instant,
    done: usize,
    count: usize,
}

impl Progress {
    fn new(count: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style =
                ProgressStyle::with_template("{bar:20} {pos}/{len}, {eta} left: {wide_msg}");
            let bar = ProgressBar::new(count as u64);
            bar.with_style(style.expect("a constant template"))
        });
        Self { bar, started: Instant::now(), done: 0, count }
    }

    fn advance(&mut self, text: &str) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.set_message(text.to_owned());
            bar.inc(1);
            return;
        }
        let remaining = (self.count - self.done) as f64 / self.done as f64;
        let left = self.started.elapsed().mul_f64(remaining).as_secs();
        eprintln!("{}/{}, {left} s left: {text}", self.done, self.count);
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::results::tests::comparison;

    #[test]
    fn each_peer_runs_each_test_in_each_round() {
        let mut comparisons = [comparison()];
        let mut failures = Vec::new();
        assert_eq!(run(&mut comparisons, 3, 0.0, None, &mut failures), 3);
        assert!(failures.is_empty(), "{failures:?}");
        for entry in &comparisons[0].entries {
            assert!(entry.cells.iter().all(|cell| cell.rounds.iter().flatten().count() == 3));
        }
    }

    #[test]
    fn no_round_begins_after_the_limit() {
        let mut comparisons = [comparison()];
        let limit = Some(Duration::ZERO);
        assert_eq!(run(&mut comparisons, 3, 0.0, limit, &mut vec![]), 1);
    }
}
