//! File descriptor that is readable while events are pending.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// Socket pair that holds one byte while events are pending.
///
/// A socket, because it can be made non-blocking: whatever the application does with the
/// descriptor, the shard is not blocked. A child made by `fork` shares it with its parent: no
/// call of the child gets here.
pub(crate) struct NotifyFd {
    reader: UnixStream,
    writer: UnixStream,
}

impl NotifyFd {
    pub(crate) fn new() -> std::io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        Ok(Self { reader, writer })
    }

    /// Makes the descriptor readable: events are pending, and none were before. One system call.
    pub(crate) fn set(&self) {
        // The buffer is empty, so one byte fits.
        let _ = (&self.writer).write(&[0]);
    }

    /// Makes the descriptor unreadable: the last event was taken. One system call.
    pub(crate) fn clear(&self) {
        // Finds nothing only if the application took the byte itself.
        let _ = (&self.reader).read(&mut [0]);
    }
}

impl AsFd for NotifyFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}
