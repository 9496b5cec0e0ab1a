//! File descriptors: those that drivers open, sockets that never block, and waits for several.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

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
/// descriptor, and raises no signal. No cancellation point, unlike `send`: nor are the others here
/// that threads of the application call while they poll or post.
pub fn send_byte(socket: BorrowedFd<'_>) {
    let (byte, flags) = (0_u8, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    let (fd, address) = (socket.as_raw_fd(), core::ptr::null::<u8>());
    // SAFETY: a descriptor that is open meanwhile, one byte to read, and no address.
    unsafe { libc::syscall(libc::SYS_sendto, fd, &raw const byte, 1_usize, flags, address, 0) };
}

/// Receives a byte from a socket if there is one. Never waits, whatever the flags of the
/// descriptor.
pub fn receive_byte(socket: BorrowedFd<'_>) {
    let (mut byte, flags) = (0_u8, libc::MSG_DONTWAIT);
    let (fd, address) = (socket.as_raw_fd(), core::ptr::null_mut::<u8>());
    // SAFETY: a descriptor that is open meanwhile, one byte to write, and no place for an address.
    unsafe {
        libc::syscall(libc::SYS_recvfrom, fd, &raw mut byte, 1_usize, flags, address, address)
    };
}

/// Waits until one of the descriptors is readable, has an error or is at its end, for `timeout` at
/// most. Returns which are; none of them also after a signal.
#[must_use]
pub fn wait_readable<const N: usize>(fds: [BorrowedFd<'_>; N], timeout: Duration) -> [bool; N] {
    let mut polled =
        fds.map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    // The longest time that the kernel's clock takes is more than any sleep.
    let seconds = timeout.as_secs().min(u64::from(u32::MAX));
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(seconds).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let count = libc::nfds_t::try_from(N).unwrap_or(0);
    // SAFETY: an array to update with its length, descriptors that are open meanwhile, a time to
    // read, and no signal mask.
    let ready =
        unsafe { libc::ppoll(polled.as_mut_ptr(), count, &raw const timeout, core::ptr::null()) };
    polled.map(|polled| ready > 0 && polled.revents != 0)
}

/// An eventfd: readable from [`EventFd::set`] until [`EventFd::clear`]. Neither ever waits.
#[derive(Debug)]
pub struct EventFd(File);

impl EventFd {
    /// Creates one that is not readable.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a plain system call.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that has no other owner.
        Ok(Self(File::from(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Makes it readable. One system call.
    pub fn set(&self) {
        let (fd, one) = (self.0.as_raw_fd(), 1_u64);
        // Fails only if it has been set 2^64 times: it is readable then.
        // SAFETY: an open descriptor, and eight bytes to read.
        unsafe { libc::syscall(libc::SYS_write, fd, &raw const one, size_of::<u64>()) };
    }

    /// Makes it unreadable. One system call.
    pub fn clear(&self) {
        let (fd, mut count) = (self.0.as_raw_fd(), 0_u64);
        // Fails if it is not readable.
        // SAFETY: an open descriptor, and eight bytes to write.
        unsafe { libc::syscall(libc::SYS_read, fd, &raw mut count, size_of::<u64>()) };
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
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
    fn wait_ends_when_a_descriptor_is_readable() {
        let [first, second] = [(); 2].map(|()| EventFd::new().unwrap());
        let wait = |time| wait_readable([first.as_fd(), second.as_fd()], time);
        assert_eq!(wait(Duration::from_millis(1)), [false, false]);
        second.set();
        second.set();
        assert_eq!(wait(Duration::MAX), [false, true]);
        second.clear();
        assert_eq!(wait(Duration::ZERO), [false, false]);
        std::thread::scope(|scope| {
            scope.spawn(|| first.set());
            while wait(Duration::MAX) != [true, false] {}
        });
    }

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
