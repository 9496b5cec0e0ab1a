//! Processes made by `fork`: the memory of DPDK is shared with them, its threads are not.
//!
//! A child that polled a port would take the parent's frames, one that closed it would take down
//! the parent's device, and what its threads' caches hold would be given back twice. So a child is
//! told from its parent, and does none of this.

use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Has children of this process know what they are from now on. Done by starting EAL.
pub fn install_atfork() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a function that lives as long as the process; all it does is to store a flag,
        // which is allowed after a fork. If there is no memory for it, children are not told.
        unsafe { libc::pthread_atfork(None, None, Some(on_fork_in_child)) };
    });
}

extern "C" fn on_fork_in_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
}

/// Whether this process is a child of one that had called [`install_atfork`]. One load.
#[inline]
#[must_use]
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// Runs `act` in a child of this process, which ends with it at once, or after a minute. Returns
/// whether it returned true. For tests.
///
/// # Errors
/// The operating system makes no further process.
pub fn run_in_child(act: impl FnOnce() -> bool) -> io::Result<bool> {
    const SECONDS_MAX: u32 = 60;
    // SAFETY: the child has one thread, a copy of this one. It may find locks taken that threads
    // of the parent hold, and then waits until the alarm ends it.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    if child == 0 {
        // SAFETY: sets a timer of the child's own, whose signal ends it.
        unsafe { libc::alarm(SECONDS_MAX) };
        let done = catch_unwind(AssertUnwindSafe(act)).unwrap_or(false);
        // SAFETY: ends the process; nothing of the parent's is undone.
        unsafe { libc::_exit(i32::from(!done)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above, with a number to write.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0)
}
