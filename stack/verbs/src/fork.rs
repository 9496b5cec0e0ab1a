//! `ibv_fork_init` and its companions. Nothing is to be done: no page is pinned, so copy-on-write
//! after a `fork` takes none away from the device.

use std::ffi::{c_int, c_void};

use crate::abi::IBV_FORK_UNNEEDED;

#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// Returns an `ibv_fork_status`.
#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> c_int {
    IBV_FORK_UNNEEDED.cast_signed()
}

/// Of providers: private.
#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_base: *mut c_void, _len: usize) -> c_int {
    0
}

/// Of providers: private.
#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_base: *mut c_void, _len: usize) -> c_int {
    0
}
