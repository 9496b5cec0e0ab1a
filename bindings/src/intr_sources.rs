//! Interrupt sources: the descriptors that EAL's interrupt thread waits for.

use core::ffi::c_void;
use core::ptr::NonNull;

use crate::sys;

/// Events that the interrupt thread waits for, without `EPOLLHUP`, which `poll` always reports.
const EVENTS: libc::c_short = libc::POLLIN | libc::POLLPRI | libc::POLLRDHUP;

/// `RTE_INTR_INSTANCE_F_PRIVATE`, whose macro bindgen cannot evaluate: in this process's memory.
const PRIVATE: u32 = 0;

/// True if any interrupt source is ready. False also if that cannot be determined: without /proc,
/// or without memory.
///
/// In the interrupt thread, false means that no event remains of those that `epoll_wait` returned
/// last, except perhaps of sources that other threads read: an event that is not handled yet leaves
/// its source ready.
pub(crate) fn any_ready() -> bool {
    let Some(handle) = Handle::new() else { return false };
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return false };
    let mut sources: Vec<_> = open
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&fd| handle.is_source(fd))
        .map(|fd| libc::pollfd { fd, events: EVENTS, revents: 0 })
        .collect();
    // SAFETY: an array to update, with its length.
    let ready = unsafe { libc::poll(sources.as_mut_ptr(), sources.len() as libc::nfds_t, 0) };
    ready > 0
}

/// Interrupt handle, used to query EAL about descriptors.
pub(crate) struct Handle(pub(crate) NonNull<sys::rte_intr_handle>);

impl Handle {
    pub(crate) fn new() -> Option<Self> {
        // SAFETY: allocates memory.
        NonNull::new(unsafe { sys::rte_intr_instance_alloc(PRIVATE) }).map(Self)
    }

    /// True if a callback is registered for this descriptor.
    pub(crate) fn is_source(&self, fd: libc::c_int) -> bool {
        // SAFETY: a handle that this value owns, and a number to store in it.
        if unsafe { sys::rte_intr_fd_set(self.0.as_ptr(), fd) } != 0 {
            return false;
        }
        // Marks the callbacks with this function for removal: none, as it is never registered. The
        // return value tells whether the descriptor has a source.
        // SAFETY: EAL runs, or has no sources; a live handle and a function, which is not called.
        let status = unsafe {
            sys::rte_intr_callback_unregister_pending(
                self.0.as_ptr(),
                Some(never_registered),
                core::ptr::null_mut(),
                None,
            )
        };
        status != -libc::ENOENT && status != -libc::EINVAL
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: this value owns the handle, and EAL kept no reference to it.
        unsafe { sys::rte_intr_instance_free(self.0.as_ptr()) };
    }
}

extern "C" fn never_registered(_: *mut c_void) {}
