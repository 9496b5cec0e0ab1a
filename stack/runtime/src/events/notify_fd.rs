//! File descriptor that is readable while events are pending.

use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use dpdk_sys::fd;

/// Socket pair that holds one byte while events are pending.
///
/// A socket, because each call on it can be non-blocking: whatever the application does with the
/// descriptor, its flags included, neither the shard nor the application is blocked. A child made
/// by `fork` shares it with its parent: no call of the child gets here.
pub(crate) struct NotifyFd {
    reader: UnixStream,
    writer: UnixStream,
}

impl NotifyFd {
    pub(crate) fn new() -> std::io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        // For the application. The stack's own calls do not depend on it.
        reader.set_nonblocking(true)?;
        Ok(Self { reader, writer })
    }

    /// Makes the descriptor readable: events are pending, and none were before. One system call.
    pub(crate) fn set(&self) {
        // The buffer is empty, so one byte fits.
        fd::send_byte(self.writer.as_fd());
    }

    /// Makes the descriptor unreadable: the last event was taken. One system call.
    pub(crate) fn clear(&self) {
        // Finds nothing only if the application took the byte itself.
        fd::receive_byte(self.reader.as_fd());
    }

    /// Makes the descriptor readable for ever, at the end of the stream: no further event occurs.
    pub(crate) fn hang_up(&self) {
        let _ = self.writer.shutdown(Shutdown::Both);
    }
}

impl AsFd for NotifyFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}
