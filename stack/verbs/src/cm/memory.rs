//! Memory of the program and for the program: addresses, private data and values of options.

use std::ffi::{c_char, c_void};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;
use std::slice;

use libc::{c_int, sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use crate::errno::{Errno, Outcome};

/// Reads an address of IPv4 or IPv6.
///
/// # Errors
/// `EINVAL` for a null pointer, and for another family.
pub(super) fn socket_addr(address: *const sockaddr) -> Outcome<SocketAddr> {
    // SAFETY: the program passes a null pointer, or an address, which begins with its family.
    let family = unsafe { address.as_ref() }.ok_or(Errno::EINVAL)?.sa_family;
    match c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says how long the address is.
            let address = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
            Ok(SocketAddrV4::new(ip, u16::from_be(address.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            let port = u16::from_be(address.sin6_port);
            let (flow, scope) = (address.sin6_flowinfo, address.sin6_scope_id);
            Ok(SocketAddrV6::new(ip, port, flow, scope).into())
        }
        _ => Err(Errno::EINVAL),
    }
}

/// As [`socket_addr`]; `None` for a null pointer, and for `AF_UNSPEC`, which is any address.
pub(super) fn optional_socket_addr(address: *const sockaddr) -> Outcome<Option<SocketAddr>> {
    // SAFETY: as above.
    match unsafe { address.as_ref() } {
        Some(known) if c_int::from(known.sa_family) != libc::AF_UNSPEC => {
            socket_addr(address).map(Some)
        }
        _ => Ok(None),
    }
}

/// Returns the address as the program reads it, and its length.
pub(super) fn storage(address: SocketAddr) -> (sockaddr_storage, socklen_t) {
    // SAFETY: zeros are an address of no family.
    let mut storage = unsafe { std::mem::zeroed::<sockaddr_storage>() };
    let place = ptr::from_mut(&mut storage);
    let len = match address {
        SocketAddr::V4(address) => {
            let sin = sockaddr_in {
                sin_family: family(libc::AF_INET),
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage has room for addresses of all families, and their alignment.
            unsafe { place.cast::<sockaddr_in>().write(sin) };
            size_of::<sockaddr_in>()
        }
        SocketAddr::V6(address) => {
            let sin6 = sockaddr_in6 {
                sin6_family: family(libc::AF_INET6),
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            // SAFETY: as above.
            unsafe { place.cast::<sockaddr_in6>().write(sin6) };
            size_of::<sockaddr_in6>()
        }
    };
    (storage, socklen_t::try_from(len).unwrap_or(0))
}

/// A number of an address family, as addresses have it.
fn family(number: c_int) -> sa_family_t {
    sa_family_t::try_from(number).unwrap_or_default()
}

/// Copies bytes of the program; a null pointer: none.
pub(super) fn bytes(start: *const c_void, len: u8) -> Vec<u8> {
    if start.is_null() {
        return Vec::new();
    }
    // SAFETY: the program passes `len` bytes.
    unsafe { slice::from_raw_parts(start.cast::<u8>(), len.into()) }.to_vec()
}

/// Reads the value of an option: a number of `len` bytes.
///
/// # Errors
/// `EINVAL` for a null pointer, and if `T` has another length.
pub(super) fn option_value<T: Copy + Into<i64>>(value: *const c_void, len: usize) -> Outcome<i64> {
    if value.is_null() || len != size_of::<T>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the program passes a number of this length.
    Ok(unsafe { value.cast::<T>().read_unaligned() }.into())
}

/// Looks up a node and a service, either of which may be a null pointer, and returns the first
/// address.
///
/// # Errors
/// A code of `getaddrinfo`.
pub(super) fn look_up(
    node: *const c_char,
    service: *const c_char,
    flags: c_int,
    family: c_int,
) -> Result<SocketAddr, c_int> {
    // SAFETY: zeros are hints that hint at nothing.
    let mut hints = unsafe { std::mem::zeroed::<libc::addrinfo>() };
    (hints.ai_flags, hints.ai_family) = (flags, family);
    (hints.ai_socktype, hints.ai_protocol) = (libc::SOCK_STREAM, libc::IPPROTO_TCP);
    let mut list = ptr::null_mut();
    // SAFETY: the program passes null pointers, or texts.
    let code = unsafe { libc::getaddrinfo(node, service, &raw const hints, &raw mut list) };
    if code != 0 {
        return Err(code);
    }
    // SAFETY: a list has at least one entry, which has an address.
    let address = unsafe { list.as_ref() }.map(|first| socket_addr(first.ai_addr));
    // SAFETY: `getaddrinfo` has made it.
    unsafe { libc::freeaddrinfo(list) };
    address.and_then(Result::ok).ok_or(libc::EAI_FAMILY)
}

/// A value that the program may read and write, until it is dropped.
#[derive(Debug)]
pub(super) struct Lent<T>(*mut T);

// SAFETY: the memory has one owner; what the program does with it is not known here.
unsafe impl<T: Send> Send for Lent<T> {}
// SAFETY: as above: nothing here reads it.
unsafe impl<T: Send> Sync for Lent<T> {}

impl<T> Lent<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Box::into_raw(Box::new(value)))
    }

    /// The pointer for the program.
    pub(super) const fn as_ptr(&self) -> *mut T {
        self.0
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        // SAFETY: `new` has made it, and the program has freed what has the pointer.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_back(address: SocketAddr) -> Outcome<SocketAddr> {
        let (storage, _) = storage(address);
        socket_addr(ptr::from_ref(&storage).cast())
    }

    #[test]
    fn addresses_are_read_as_they_were_written() {
        for text in ["198.18.0.1:7174", "0.0.0.0:0", "[2001:2::1]:65535", "[fe80::1%7]:1"] {
            let address = text.parse().expect(text);
            assert_eq!(read_back(address), Ok(address));
        }
    }

    #[test]
    fn lengths_are_those_of_the_family() {
        let len = |text: &str| storage(text.parse().expect(text)).1;
        assert_eq!((len("198.18.0.1:1"), len("[::]:1")), (16, 28));
    }

    #[test]
    fn other_families_and_null_pointers_are_invalid() {
        assert_eq!(socket_addr(ptr::null()), Err(Errno::EINVAL));
        let (mut storage, _) = storage("198.18.0.1:1".parse().expect("an address"));
        storage.ss_family = 27;
        assert_eq!(socket_addr(ptr::from_ref(&storage).cast()), Err(Errno::EINVAL));
    }

    #[test]
    fn an_address_of_no_family_is_any() {
        let (mut storage, _) = storage("198.18.0.1:1".parse().expect("an address"));
        storage.ss_family = family(libc::AF_UNSPEC);
        assert_eq!(optional_socket_addr(ptr::from_ref(&storage).cast()), Ok(None));
        assert_eq!(optional_socket_addr(ptr::null()), Ok(None));
        storage.ss_family = 27;
        let other = optional_socket_addr(ptr::from_ref(&storage).cast());
        assert_eq!(other, Err(Errno::EINVAL));
    }

    #[test]
    fn bytes_of_a_null_pointer_are_none() {
        assert!(bytes(ptr::null(), 9).is_empty());
        assert_eq!(bytes(ptr::from_ref(b"iwarp").cast(), 4), b"iwar");
    }

    #[test]
    fn options_have_the_length_of_their_type() {
        let value = 7_i32;
        let place = ptr::from_ref(&value).cast();
        assert_eq!(option_value::<i32>(place, 4), Ok(7));
        assert_eq!(option_value::<u8>(place, 4), Err(Errno::EINVAL));
        assert_eq!(option_value::<i32>(ptr::null(), 4), Err(Errno::EINVAL));
    }
}
