//! Signals that end a program: SIGINT, SIGTERM and SIGHUP.
//!
//! They are blocked in all threads, and one thread waits for them. The first one ends the tasks, so
//! that devices are closed, peers are notified and reports are written; then the program dies of
//! that signal. Signals of the next second are the same request: `timeout` signals its child and
//! then its group, a closing terminal and its shell send SIGHUP each, systemd adds SIGHUP to
//! SIGTERM. A later one ends the program at once. SIGXFSZ is blocked. All other signals keep their
//! disposition. So do those of the three that the caller ignores or blocks, as `nohup` and a shell
//! with its background jobs do.

use std::fs::read_to_string;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, raise};

use crate::stop::{self, Stop};

const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Time after which a program that was asked to end dies in any case. It may be stuck in a write to
/// a pipe that nobody reads. Closing connections and devices takes less.
const GRACE: Duration = Duration::from_secs(15);

/// Time from the first signal in which others are the same request.
const REPEAT_TIME: Duration = Duration::from_secs(1);

/// Starts to wait for the signals. To be called while the program has one thread.
pub fn install() {
    // A file that reaches the limit on file sizes is an error of the write, and a line.
    let _ = core::iter::once(Signal::SIGXFSZ).collect::<SigSet>().thread_block();
    let taken = taken_set(ignored_set(), SigSet::thread_get_mask().ok());
    // Without the thread, signals have their default action.
    if taken.thread_block().is_ok()
        && std::thread::Builder::new().name("signals".into()).spawn(move || serve(taken)).is_err()
    {
        let _ = taken.thread_unblock();
    }
}

/// Returns the signals to wait for; `ignored` has a bit for each signal that the caller ignores.
fn taken_set(ignored: u64, blocked: Option<SigSet>) -> SigSet {
    let is_ignored = |signal: Signal| ignored >> (signal as u32 - 1) & 1 == 1;
    let is_blocked = |signal: Signal| blocked.is_some_and(|set| set.contains(signal));
    ENDING.into_iter().filter(|&signal| !is_ignored(signal) && !is_blocked(signal)).collect()
}

/// Returns the ignored signals. None are known where `/proc` is absent, and then no device opens.
fn ignored_set() -> u64 {
    let status = read_to_string("/proc/self/status").unwrap_or_default();
    let digits = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    digits.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0)
}

fn serve(taken: SigSet) {
    let Ok(first) = taken.wait() else { return };
    let since = Instant::now();
    stop::request(Stop::Signal(first));
    let late = move || {
        std::thread::sleep(GRACE);
        die_of(first)
    };
    let _ = std::thread::Builder::new().name("grace".into()).spawn(late);
    while let Ok(next) = taken.wait() {
        if since.elapsed() > REPEAT_TIME {
            die_of(next);
        }
    }
}

/// Ends the program by a signal, so that its caller is told of it.
pub fn die_of(signal: Signal) -> ! {
    let set: SigSet = core::iter::once(signal).collect();
    let _ = set.thread_unblock().and_then(|()| raise(signal));
    // The signal is ignored. What a shell returns for it:
    std::process::exit(128 + signal as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_and_blocked_signals_are_left_alone() {
        let taken = |ignored, blocked: &[Signal]| -> Vec<Signal> {
            let set = taken_set(ignored, Some(blocked.iter().copied().collect()));
            ENDING.into_iter().filter(|&signal| set.contains(signal)).collect()
        };
        assert_eq!(taken(0, &[]), ENDING);
        // SIGHUP, SIGINT, SIGQUIT and SIGPIPE.
        assert_eq!(taken(0x1007, &[]), [Signal::SIGTERM]);
        assert_eq!(taken(0, &[Signal::SIGTERM]), [Signal::SIGINT, Signal::SIGHUP]);
    }

    #[test]
    fn ignored_signals_are_read() {
        // The runtime of Rust ignores SIGPIPE.
        assert_eq!(ignored_set() >> (Signal::SIGPIPE as u32 - 1) & 1, 1);
    }
}
