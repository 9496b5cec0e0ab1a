//! File descriptors: those that drivers open, and sockets that never block.

use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Has the sockets that this process has bound to a path, whoever owns them, closed in programs
/// that it executes: the server's, and its ends of connections. As far as /proc tells.
pub(crate) fn close_sockets_on_exec(path: &Path) {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers = open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for fd in numbers.collect::<Vec<RawFd>>() {
        if is_bound_to(fd, path) {
            // SAFETY: sets a flag of a descriptor; touches no memory. If another thread has just
            // closed it, this fails, or marks the file that has taken its number.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}

/// Sends a byte on a socket if there is space for it. Never waits, whatever the flags of the
/// descriptor, and raises no signal.
pub fn send_byte(socket: BorrowedFd<'_>) {
    let (byte, flags) = (0_u8, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    // SAFETY: a descriptor that is open meanwhile, and one byte to read.
    unsafe { libc::send(socket.as_raw_fd(), (&raw const byte).cast(), 1, flags) };
}

/// Receives a byte from a socket if there is one. Never waits, whatever the flags of the
/// descriptor.
pub fn receive_byte(socket: BorrowedFd<'_>) {
    let mut byte = 0_u8;
    // SAFETY: a descriptor that is open meanwhile, and one byte to write.
    unsafe { libc::recv(socket.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) };
}

fn is_bound_to(fd: RawFd, path: &Path) -> bool {
    let mut address = libc::sockaddr_un { sun_family: 0, sun_path: [0; 108] };
    let mut len = libc::socklen_t::try_from(size_of::<libc::sockaddr_un>()).unwrap_or(0);
    // SAFETY: a number, and a structure of that length to fill.
    let status = unsafe { libc::getsockname(fd, (&raw mut address).cast(), &raw mut len) };
    let bytes = address.sun_path.iter().map(|byte| u8::from_ne_bytes(byte.to_ne_bytes()));
    status == 0
        && i32::from(address.sun_family) == libc::AF_UNIX
        && bytes.take_while(|&byte| byte != 0).eq(path.as_os_str().as_bytes().iter().copied())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn sockets_bound_to_the_path_are_closed_on_exec() {
        let path = std::env::temp_dir().join(format!("fw-test-fd-{}", std::process::id()));
        let server = UnixListener::bind(&path).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        let (accepted, _) = server.accept().unwrap();
        let ends = [server.as_raw_fd(), accepted.as_raw_fd(), client.as_raw_fd()];
        let flags = || {
            // SAFETY: descriptors of this function.
            ends.map(|fd| unsafe { libc::fcntl(fd, libc::F_GETFD) })
        };
        for fd in ends {
            // SAFETY: as above.
            unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
        }
        close_sockets_on_exec(Path::new("/fw-test-other"));
        assert_eq!(flags(), [0, 0, 0]);
        close_sockets_on_exec(&path);
        assert_eq!(flags(), [libc::FD_CLOEXEC, libc::FD_CLOEXEC, 0]);
        std::fs::remove_file(path).unwrap();
    }
}
