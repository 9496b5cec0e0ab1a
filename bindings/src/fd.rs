//! File descriptors that drivers open.

use std::io;
use std::os::fd::RawFd;

/// Has a descriptor of this process, whoever owns it, closed in programs that it executes.
///
/// # Errors
/// There is no such descriptor.
pub fn set_close_on_exec(fd: RawFd) -> io::Result<()> {
    // SAFETY: changes a flag of a descriptor, or fails if there is none; touches no memory.
    match unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
