//! Early stop of a program's tasks: because of a signal, or of output that fails.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use nix::sys::signal::Signal;

/// Reason to end that is no failure of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A signal arrived.
    Signal(Signal),
    /// Standard output cannot be written.
    Output,
}

impl core::fmt::Display for Stop {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Signal(_) => "interrupted",
            Self::Output => "cannot write to standard output",
        })
    }
}

impl core::error::Error for Stop {}

/// No reason.
const NONE: i32 = 0;
/// [`Stop::Output`]; all other values are signal numbers.
const OUTPUT: i32 = -1;

/// The first reason.
static REASON: AtomicI32 = AtomicI32::new(NONE);

/// Tasks end by themselves after a signal.
static SPARES_TASKS: AtomicBool = AtomicBool::new(false);

/// Leaves it to the tasks to end after a signal: the run of one of them is meant to end by it.
pub fn spare_tasks() {
    SPARES_TASKS.store(true, Ordering::Relaxed);
}

/// Asks the tasks to end; without effect if they have been asked before.
pub fn request(stop: Stop) {
    let reason = match stop {
        Stop::Signal(signal) => signal as i32,
        Stop::Output => OUTPUT,
    };
    let _ = REASON.compare_exchange(NONE, reason, Ordering::Relaxed, Ordering::Relaxed);
}

/// Returns why the tasks have to end.
#[inline]
#[must_use]
pub fn requested() -> Option<Stop> {
    match REASON.load(Ordering::Relaxed) {
        NONE => None,
        OUTPUT => Some(Stop::Output),
        number => Signal::try_from(number).ok().map(Stop::Signal),
    }
}

/// True after a signal.
#[must_use]
pub fn was_interrupted() -> bool {
    matches!(requested(), Some(Stop::Signal(_)))
}

/// Checks that nothing has to end.
///
/// # Errors
/// The reason why it has to.
#[inline]
pub fn check() -> Result<(), Stop> {
    requested().map_or(Ok(()), Err)
}

/// As [`check`], to be called at each step of a task.
///
/// # Errors
/// The reason why the tasks have to end.
#[inline]
pub fn check_tasks() -> Result<(), Stop> {
    match requested() {
        Some(Stop::Signal(_)) if SPARES_TASKS.load(Ordering::Relaxed) => Ok(()),
        stop => stop.map_or(Ok(()), Err),
    }
}

/// Returns the reason among the causes of an error.
#[must_use]
pub fn of_error(error: &anyhow::Error) -> Option<Stop> {
    error.chain().find_map(|cause| cause.downcast_ref()).copied()
}
