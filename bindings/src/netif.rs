//! Kernel network interfaces: existence and MTU, in the network namespace of the calling thread.

use core::mem::MaybeUninit;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

fn os_result(value: i32) -> io::Result<i32> {
    if value < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Opens a socket for requests about interfaces.
fn ioctl_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: a plain system call; the descriptor is taken into ownership at once.
    let raw = os_result(unsafe { libc::socket(libc::AF_INET, kind, 0) })?;
    // SAFETY: a new descriptor that has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Returns a request for the interface `name`, with all other fields zero.
fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all-zero is a valid request: integers, and an empty name.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (slot, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *slot = byte.cast_signed();
    }
    Ok(request)
}

/// True if the interface exists.
#[must_use]
pub fn exists(name: &str) -> bool {
    // SAFETY: a NUL-terminated string that lives through the call.
    CString::new(name).is_ok_and(|name| unsafe { libc::if_nametoindex(name.as_ptr()) } != 0)
}

/// Returns the name of the interface with this index.
///
/// # Errors
/// `ENXIO` if there is none.
pub fn name(index: u32) -> io::Result<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: space for a name of the largest size.
    if unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    let bytes = name.iter().take_while(|&&byte| byte != 0).map(|byte| byte.cast_unsigned());
    Ok(String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned())
}

/// Returns the interface's MTU in bytes.
///
/// # Errors
/// `ENODEV` if it does not exist.
pub fn mtu(name: &str) -> io::Result<u32> {
    let socket = ioctl_socket()?;
    let mut request = request(name)?;
    // SAFETY: SIOCGIFMTU reads the name and writes the union, both inside `request`.
    os_result(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) })?;
    // SAFETY: the call above filled this member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(u32::try_from(mtu).unwrap_or(0))
}

/// Sets the interface's MTU in bytes.
///
/// # Errors
/// `EPERM` without CAP_NET_ADMIN, `EINVAL` if the interface does not support it, `ENODEV`.
pub fn set_mtu(name: &str, mtu: u16) -> io::Result<()> {
    let socket = ioctl_socket()?;
    let mut request = request(name)?;
    request.ifr_ifru.ifru_mtu = i32::from(mtu);
    // SAFETY: SIOCSIFMTU reads `request`.
    os_result(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFMTU, &raw mut request) })?;
    Ok(())
}

/// Parameters of `ETHTOOL_GCHANNELS` (linux/ethtool.h, `struct ethtool_channels`).
#[derive(Default)]
#[repr(C)]
struct Channels {
    cmd: u32,
    max_rx: u32,
    max_tx: u32,
    max_other: u32,
    max_combined: u32,
    counts: [u32; 4],
}

/// Returns how many queue pairs the interface can have (`ethtool -l`, combined), at least 1.
///
/// # Errors
/// `EOPNOTSUPP` if its driver does not tell, `ENODEV` if it does not exist.
pub fn max_queue_pairs(name: &str) -> io::Result<u32> {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    let socket = ioctl_socket()?;
    let mut request = request(name)?;
    let mut channels = Channels { cmd: ETHTOOL_GCHANNELS, ..Channels::default() };
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    // SAFETY: SIOCETHTOOL reads `request` and writes the structure it points to, of the kernel's
    // layout for this command.
    os_result(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) })?;
    Ok(channels.max_combined.max(1))
}

/// Moves the calling thread to a new, empty network namespace, which exists until its last thread,
/// socket and tap device are gone. For tests.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN.
pub fn enter_new_namespace() -> io::Result<()> {
    // SAFETY: a plain system call, which changes the calling thread alone.
    os_result(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map(drop)
}
