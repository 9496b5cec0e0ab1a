//! A file descriptor that is readable while events wait.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// Holds one byte while events wait.
///
/// A socket, because that can be told never to block: whatever the application does with the
/// descriptor, the shard goes on. A child made by `fork` shares it with its parent, and neither
/// writes nor reads.
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

    /// Events wait, and none did before. One system call.
    pub(crate) fn set(&self) {
        if !dpdk_sys::is_child() {
            // There is room for one byte.
            let _ = (&self.writer).write(&[0]);
        }
    }

    /// The last event was taken. One system call.
    pub(crate) fn clear(&self) {
        if !dpdk_sys::is_child() {
            // Empty only if the application took the byte itself.
            let _ = (&self.reader).read(&mut [0]);
        }
    }
}

impl AsFd for NotifyFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}
