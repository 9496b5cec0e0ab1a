//! Waiting for events of a descriptor, as `abi/wait.c` does it.

use std::ffi::c_int;

use crate::errno::{Outcome, run};

unsafe extern "C-unwind" {
    /// Returns -1 and sets `errno` if the descriptor did not become readable. A cancellation point:
    /// the caller has nothing to drop, and no `catch_unwind` is around it.
    safe fn ferrowarp_wait_readable(fd: c_int) -> c_int;
    /// A cancellation point, as above.
    safe fn ferrowarp_wait_for_ever();
}

unsafe extern "C" {
    /// The thread is not cancelled any more. Returns what [`ferrowarp_restore_cancel`] takes.
    pub(crate) safe fn ferrowarp_disable_cancel() -> c_int;
    pub(crate) safe fn ferrowarp_restore_cancel(before: c_int);
}

/// What a look for an event found.
pub(crate) enum Taken {
    /// An event, which the program has got.
    Event,
    /// None yet: wait for this descriptor, and look again.
    Wait(c_int),
    /// None any more: the process is ending.
    Never,
}

/// Looks for an event by `take` until there is one. Returns 0, or -1 with `errno`.
///
/// While it waits, nothing is left to drop: see `abi/wait.c`.
#[inline(always)]
pub(crate) fn take_event(take: impl Fn() -> Outcome<Taken> + Copy) -> c_int {
    loop {
        match run(take) {
            Ok(Taken::Event) => return 0,
            Err(_) => return -1,
            Ok(Taken::Wait(fd)) if ferrowarp_wait_readable(fd) < 0 => return -1,
            Ok(Taken::Wait(_)) => {}
            Ok(Taken::Never) => ferrowarp_wait_for_ever(),
        }
    }
}
