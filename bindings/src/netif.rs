//! Kernel network interfaces: existence and MTU, in the network namespace of the calling thread,
//! and the state of the one below a port.

use core::mem::MaybeUninit;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

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
        *slot = libc::c_char::from_ne_bytes([byte]);
    }
    Ok(request)
}

/// True if the interface exists.
#[must_use]
pub fn exists(name: &str) -> bool {
    index(name).is_some()
}

/// Returns the index of the interface; `None` if it does not exist.
#[must_use]
pub fn index(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: a NUL-terminated string that lives through the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
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
    let bytes = name
        .iter()
        .take_while(|&&byte| byte != 0)
        .map(|byte| u8::from_ne_bytes(byte.to_ne_bytes()));
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

/// State of a kernel interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceState {
    /// It is set up, and has a carrier.
    Up,
    /// It is set down, or has no carrier.
    Down,
    /// It is in another network namespace, and a tap's: frames still cross it.
    Elsewhere,
    /// It was deleted, or is in another network namespace: nothing crosses it ever again.
    Gone,
}

/// Kernel interface below a port. Any thread may read its state, also in another network namespace.
///
/// It is found by its index. A name may change, and may belong to another interface later.
#[derive(Debug)]
pub struct Interface {
    index: i32,
    /// Requests go to the namespace in which this was opened.
    socket: OwnedFd,
    /// Files of the kernel that describe the descriptors of a tap.
    taps: Vec<PathBuf>,
}

impl Interface {
    /// Opens the interface with this index in the network namespace of the calling thread; its
    /// driver has opened it already.
    ///
    /// # Errors
    /// If there is no such interface, or no descriptor for it.
    pub fn open(index: u32) -> io::Result<Self> {
        let name = name(index)?;
        let index = i32::try_from(index).map_err(io::Error::other)?;
        Ok(Self { index, socket: ioctl_socket()?, taps: taps_named(&name) })
    }

    /// True if this process has it open as a tap.
    #[must_use]
    pub const fn is_tap(&self) -> bool {
        !self.taps.is_empty()
    }

    /// Returns its state now: two system calls, which wait for nothing.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn state(&self) -> io::Result<InterfaceState> {
        /// It may be renamed between the two calls, so often.
        const RENAMES_MAX: usize = 4;
        let fd = self.socket.as_raw_fd();
        let mut result = Err(io::Error::other("it is renamed all the time"));
        for _ in 0..RENAMES_MAX {
            // SAFETY: all-zero is a valid request: integers, and an empty name.
            let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
            request.ifr_ifru.ifru_ifindex = self.index;
            // SAFETY: SIOCGIFNAME reads the union and writes the name, both inside `request`.
            match os_result(unsafe { libc::ioctl(fd, libc::SIOCGIFNAME, &raw mut request) }) {
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                    let is_there = self.taps.iter().any(|tap| tap_name(tap).is_some());
                    let elsewhere = InterfaceState::Elsewhere;
                    return Ok(if is_there { elsewhere } else { InterfaceState::Gone });
                }
                found => found?,
            };
            // SAFETY: SIOCGIFFLAGS reads the name and writes the union, both inside `request`.
            result = os_result(unsafe { libc::ioctl(fd, libc::SIOCGIFFLAGS, &raw mut request) });
            if result.is_ok() {
                const WANTED: i32 = libc::IFF_UP | libc::IFF_RUNNING;
                // SAFETY: the call above filled this member.
                let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
                let is_up = flags & WANTED == WANTED;
                return Ok(if is_up { InterfaceState::Up } else { InterfaceState::Down });
            }
        }
        result.map(|_| InterfaceState::Down)
    }
}

/// Returns the files that describe the descriptors of this process that have the tap of this name
/// open; none without /proc.
fn taps_named(name: &str) -> Vec<PathBuf> {
    let Ok(files) = std::fs::read_dir("/proc/self/fdinfo") else { return Vec::new() };
    let files = files.filter_map(|file| Some(file.ok()?.path()));
    files.filter(|file| tap_name(file).as_deref() == Some(name)).collect()
}

/// Returns the name of the tap that a descriptor has open, in whatever namespace; `None` if its
/// interface was deleted, or it is no tap's.
fn tap_name(descriptor: &Path) -> Option<String> {
    let text = std::fs::read_to_string(descriptor).ok()?;
    let name = text.lines().find_map(|line| line.strip_prefix("iff:"))?.trim();
    (!name.is_empty()).then(|| name.to_owned())
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
