//! Progress bar on standard error during long runs; none if that is no terminal.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::perf::control::Run;

/// Runs shorter than this show no bar.
const SHOW_AFTER: Duration = Duration::from_secs(1);
/// Redraw interval: drawing the bar costs a system call.
const REDRAW_INTERVAL: Duration = Duration::from_millis(200);
const BAR_LEN: u64 = 1000;

/// Progress of one run.
pub struct Progress {
    is_terminal: bool,
    bar: Option<ProgressBar>,
    started: Instant,
    /// Bytes when it was last drawn, and the time.
    bytes_before: u64,
    last_drawn: Instant,
}

impl Progress {
    /// Creates the progress bar of a run that begins at `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { is_terminal, bar: None, started: now, bytes_before: 0, last_drawn: now }
    }

    /// Shows the progress, every 200 ms: the messages of each data connection so far, which `done`
    /// returns with the bytes of all of them, and their rate. No bytes: the rate is not shown.
    pub fn show(&mut self, now: Instant, run: &Run, done: impl FnOnce() -> (u64, u64)) {
        let elapsed = now - self.started;
        if !self.is_terminal || elapsed < SHOW_AFTER || now - self.last_drawn < REDRAW_INTERVAL {
            return;
        }
        let (messages, bytes) = done();
        let bar = self.bar.get_or_insert_with(bar);
        bar.set_message(match bytes {
            0 => format!("{} bytes", run.size),
            _ => {
                let rate = gbit_s(bytes - self.bytes_before, now - self.last_drawn);
                format!("{} bytes, {rate:.2} Gb/sec", run.size)
            }
        });
        bar.set_position(bar_position(run, elapsed, messages));
        (self.bytes_before, self.last_drawn) = (bytes, now);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Spinner shown while the program waits for the peer for long.
pub struct WaitSpinner {
    is_terminal: bool,
    bar: Option<ProgressBar>,
    since: Instant,
}

impl WaitSpinner {
    /// Creates a spinner for a wait that begins at `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), bar: None, since: now }
    }

    /// Shows what the program waits for, if the wait is longer than a second.
    pub fn show(&mut self, now: Instant, what: &str) {
        self.show_with(now, || what.to_owned());
    }

    /// As [`WaitSpinner::show`], with how many of something there are already.
    pub fn show_count(&mut self, now: Instant, what: &str, count: usize, total: usize) {
        self.show_with(now, || format!("{count} of {total} {what}"));
    }

    fn show_with(&mut self, now: Instant, what: impl FnOnce() -> String) {
        if !self.is_terminal || now - self.since < SHOW_AFTER {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(REDRAW_INTERVAL);
            bar
        });
        bar.set_message(format!("waiting for the peer: {}", what()));
    }

    /// Removes the spinner and restarts the wait.
    pub fn clear(&mut self, now: Instant) {
        self.since = now;
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for WaitSpinner {
    fn drop(&mut self) {
        self.clear(self.since);
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures are shown with few digits")]
fn gbit_s(bytes: u64, elapsed: Duration) -> f64 {
    bytes as f64 * 8.0 / elapsed.as_secs_f64() / 1e9
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(BAR_LEN), ProgressDrawTarget::hidden());
    if let Ok(style) = ProgressStyle::with_template(" {msg} [{bar:40}] {percent:>3}% {elapsed}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_draw_target(ProgressDrawTarget::stderr());
    bar
}

/// Returns the progress of the run, of [`BAR_LEN`].
fn bar_position(run: &Run, elapsed: Duration, messages: u64) -> u64 {
    let (done, total) = match run.iterations {
        0 => (elapsed.as_millis(), run.duration_ms),
        iterations => (messages.into(), iterations),
    };
    u64::try_from(done * u128::from(BAR_LEN) / u128::from(total.max(1)))
        .unwrap_or(BAR_LEN)
        .min(BAR_LEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_follows_messages_or_time() {
        let run = Run { size: 1, iterations: 200, stride: 64, slots: 1, ..Run::default() };
        assert_eq!(bar_position(&run, Duration::ZERO, 50), 250);
        assert_eq!(bar_position(&run, Duration::ZERO, u64::MAX), BAR_LEN);
        let run = Run { iterations: 0, duration_ms: 4000, ..run };
        assert_eq!(bar_position(&run, Duration::from_secs(1), u64::MAX), 250);
        assert_eq!(bar_position(&run, Duration::from_secs(9), 0), BAR_LEN);
    }
}
