//! The expedited private `membarrier(2)`: a full memory barrier on every processor that runs a
//! thread of this process, so that the other threads need none of their own.

use std::sync::OnceLock;

// `linux/membarrier.h`.
const PRIVATE_EXPEDITED: libc::c_long = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_long = 1 << 4;

/// Registers the process, once. False if the kernel lacks the call (before Linux 4.14), or a filter
/// refuses it.
#[must_use]
pub(crate) fn register() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| call(REGISTER_PRIVATE_EXPEDITED))
}

/// Executes the barrier: what any thread of this process did before some point is visible after
/// this call to the calling thread, and what the calling thread did before is visible to that
/// thread after that point. False if the process is not registered. Takes some microseconds.
#[must_use]
pub(crate) fn expedited() -> bool {
    call(PRIVATE_EXPEDITED)
}

fn call(command: libc::c_long) -> bool {
    const FLAGS: libc::c_long = 0;
    // Miri lacks the call, as an old kernel does: no queue pair becomes hot.
    if cfg!(miri) {
        return false;
    }
    // SAFETY: these commands take no pointers and change no memory of the process.
    unsafe { libc::syscall(libc::SYS_membarrier, command, FLAGS) == 0 }
}

#[cfg(test)]
mod tests {
    #[test]
    fn registered_process_executes_the_barrier() {
        if super::register() {
            assert!(super::expedited());
        }
    }
}
