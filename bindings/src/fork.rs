//! Detection of `fork`: a child process shares DPDK's memory, but has none of its threads.
//!
//! A child that polled a port would receive the parent's frames; one that closed it would close
//! the parent's device; and mbufs in mempool caches would be freed twice. So a child is detected,
//! and does none of this.

use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Installs a `pthread_atfork` handler that marks child processes. Called when EAL is started.
pub fn install_atfork() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a function that lives as long as the process and only stores a flag, which is
        // allowed after a fork. If there is no memory for the handler, children are not marked.
        unsafe { libc::pthread_atfork(None, None, Some(on_fork_in_child)) };
    });
}

extern "C" fn on_fork_in_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
}

/// True if this process is a child of one that had called [`install_atfork`]. One load.
#[inline]
#[must_use]
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// Runs `act` in a forked child, which exits when `act` returns, or after a minute. True if `act`
/// returned true. For tests.
///
/// # Errors
/// The operating system cannot create another process.
pub fn run_in_child(act: impl FnOnce() -> bool) -> io::Result<bool> {
    const SECONDS_MAX: u32 = 60;
    // SAFETY: the child has one thread, a copy of this one. It may block on a lock that a thread
    // of the parent holds; then the alarm ends it.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    if child == 0 {
        // SAFETY: sets a timer of the child, whose signal ends it.
        unsafe { libc::alarm(SECONDS_MAX) };
        let done = catch_unwind(AssertUnwindSafe(act)).unwrap_or(false);
        // SAFETY: ends the process without running exit handlers, which belong to the parent.
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
