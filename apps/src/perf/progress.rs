//! A bar on standard error while a long run goes on; nothing if that is no terminal.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::perf::control::Run;

/// Runs shorter than this show no bar.
const QUIET: Duration = Duration::from_secs(1);
/// Time between two looks of the bar: drawing one costs a system call.
const EVERY: Duration = Duration::from_millis(200);
const UNITS: u64 = 1000;

/// Progress of one run.
pub struct Progress {
    is_terminal: bool,
    bar: Option<ProgressBar>,
    started: Instant,
    shown: Instant,
}

impl Progress {
    /// For a run that begins now.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { is_terminal, bar: None, started: now, shown: now }
    }

    /// Shows how far the run is: `messages` of each data connection so far. Cheap if it was shown
    /// less than 200 ms ago.
    pub fn show(&mut self, now: Instant, run: &Run, messages: u64) {
        let elapsed = now - self.started;
        if !self.is_terminal || elapsed < QUIET || now - self.shown < EVERY {
            return;
        }
        self.shown = now;
        self.bar.get_or_insert_with(|| bar(run.size)).set_position(share(run, elapsed, messages));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// What the other end is waited for, when that takes long.
pub struct Waiting {
    is_terminal: bool,
    bar: Option<ProgressBar>,
    since: Instant,
}

impl Waiting {
    /// Begins to wait now.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), bar: None, since: now }
    }

    /// Shows what is waited for, if that has taken a while already.
    pub fn show(&mut self, now: Instant, what: &'static str) {
        if !self.is_terminal || now - self.since < QUIET {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(EVERY);
            bar
        });
        bar.set_message(format!("waiting for the other end: {what}"));
    }

    /// The wait is over.
    pub fn clear(&mut self, now: Instant) {
        self.since = now;
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.clear(self.since);
    }
}

fn bar(size: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(UNITS), ProgressDrawTarget::hidden());
    if let Ok(style) = ProgressStyle::with_template(" {msg} [{bar:40}] {percent:>3}% {elapsed}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(format!("{size} octets"));
    bar.set_draw_target(ProgressDrawTarget::stderr());
    bar
}

/// How much of the run is over, in [`UNITS`].
fn share(run: &Run, elapsed: Duration, messages: u64) -> u64 {
    let (done, whole) = match run.iterations {
        0 => (elapsed.as_millis(), run.duration_ms),
        iterations => (messages.into(), iterations),
    };
    u64::try_from(done * u128::from(UNITS) / u128::from(whole.max(1))).unwrap_or(UNITS).min(UNITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_that_of_messages_or_of_time() {
        let run =
            Run { size: 1, iterations: 200, duration_ms: 0, stride: 64, slots: 1, credits: 0 };
        assert_eq!(share(&run, Duration::ZERO, 50), 250);
        assert_eq!(share(&run, Duration::ZERO, u64::MAX), UNITS);
        let run = Run { iterations: 0, duration_ms: 4000, ..run };
        assert_eq!(share(&run, Duration::from_secs(1), u64::MAX), 250);
        assert_eq!(share(&run, Duration::from_secs(9), 0), UNITS);
    }
}
