//! System calls without a safe form elsewhere.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::libc;

/// Makes an open `/dev/net/tun` a new TAP interface of this name.
pub(crate) fn make_tap(tun: &File, name: &str) -> io::Result<()> {
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_newname: [0; libc::IFNAMSIZ] },
    };
    // The last byte stays zero.
    for (slot, byte) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
        *slot = libc::c_char::from_ne_bytes([byte]);
    }
    let flags = libc::IFF_TAP | libc::IFF_NO_PI;
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(flags).map_err(io::Error::other)?;
    // SAFETY: TUNSETIFF reads and writes `request`, of the kernel's layout.
    let done = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// True if the file has an extended attribute of this name, as far as the file system tells.
pub(crate) fn has_attribute(path: &Path, name: &str) -> bool {
    let path = CString::new(path.as_os_str().as_bytes());
    let (Ok(path), Ok(name)) = (path, CString::new(name)) else { return false };
    // SAFETY: strings that end with a NUL and live through the call, and no buffer.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}
