//! Files read straight into registered memory, and written from it.
//!
//! To the kernel registered memory is memory like any other: it copies, and what races with the
//! copy is any mixture of old and new bytes, as in [`opaque`](super::opaque). It returns `EFAULT`
//! for memory that is not mapped, or is mapped for reading only.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::memory::Span;

impl Span {
    /// Reads from the file at `position`. Returns the number of bytes read.
    pub(crate) fn pread(self, fd: BorrowedFd<'_>, position: u64) -> io::Result<usize> {
        let (fd, start, len) = (fd.as_raw_fd(), self.as_mut_ptr().cast(), self.len());
        transfer(position, |position| {
            // SAFETY: `Span::new` guarantees that the bytes may change at any moment.
            unsafe { libc::pread(fd, start, len, position) }
        })
    }

    /// Writes to the file at `position`. Returns the number of bytes written.
    pub(crate) fn pwrite(self, fd: BorrowedFd<'_>, position: u64) -> io::Result<usize> {
        let (fd, start, len) = (fd.as_raw_fd(), self.as_mut_ptr().cast_const().cast(), self.len());
        transfer(position, |position| {
            // SAFETY: `Span::new` guarantees that the bytes are readable.
            unsafe { libc::pwrite(fd, start, len, position) }
        })
    }
}

/// Makes the system call, again if a signal interrupted it.
fn transfer(
    position: u64,
    mut call: impl FnMut(libc::off_t) -> libc::ssize_t,
) -> io::Result<usize> {
    let position =
        position.try_into().map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    loop {
        if let Ok(count) = usize::try_from(call(position)) {
            return Ok(count);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
