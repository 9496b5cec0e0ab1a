//! `rdma_getaddrinfo`: addresses by names, as the operating system resolves them.

use std::ffi::{c_char, c_int};
use std::net::SocketAddr;
use std::ptr;

use libc::sockaddr_storage;

use crate::abi::{
    IBV_QPT_RC, RAI_FAMILY, RAI_NOROUTE, RAI_NUMERICHOST, RAI_PASSIVE, RDMA_PS_TCP, rdma_addrinfo,
};
use crate::cm::memory::{Lent, look_up, socket_addr, storage};
use crate::errno::{Errno, Outcome, run};
use crate::object::exposed::{Exposed, Handle, Registry, expose};
use crate::object::users::Users;
use crate::program;

/// A result. There is one of each call, as with rdma-core.
#[derive(Debug)]
struct AddrInfo {
    _addresses: [Option<Lent<sockaddr_storage>>; 2],
    users: Users,
}

impl Exposed for AddrInfo {
    type Public = rdma_addrinfo;
    type Pointee = rdma_addrinfo;

    fn registry() -> &'static Registry<Self> {
        static INFOS: Registry<AddrInfo> = Registry::new();
        &INFOS
    }

    fn users(&self) -> &Users {
        &self.users
    }
}

/// What a result has.
#[derive(Debug, Default)]
struct Found {
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
}

impl AddrInfo {
    /// Makes a result, with what `hints` has of it.
    fn show(found: &Found, hints: &rdma_addrinfo) -> Handle<Self> {
        let or = |value, default: u32| if value == 0 { default.cast_signed() } else { value };
        let mut public = rdma_addrinfo {
            ai_flags: hints.ai_flags,
            ai_qp_type: or(hints.ai_qp_type, IBV_QPT_RC),
            ai_port_space: or(hints.ai_port_space, RDMA_PS_TCP),
            ai_family: hints.ai_family,
            ..rdma_addrinfo::default()
        };
        if let Some(address) = found.destination.or(found.source) {
            public.ai_family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        }
        let addresses = [found.source, found.destination].map(|address| address.map(storage));
        let addresses = addresses.map(|address| {
            address.map_or((None, 0), |(storage, len)| (Some(Lent::new(storage)), len))
        });
        let pointer = |lent: &Option<Lent<sockaddr_storage>>| {
            lent.as_ref().map_or(ptr::null_mut(), |lent| Lent::as_ptr(lent).cast())
        };
        let [(source, source_len), (destination, destination_len)] = addresses;
        (public.ai_src_addr, public.ai_src_len) = (pointer(&source), source_len);
        (public.ai_dst_addr, public.ai_dst_len) = (pointer(&destination), destination_len);
        let users = Users::default();
        expose(Self { _addresses: [source, destination], users }, public)
    }
}

/// An address of the hints; `None` without a length.
fn hinted(address: *const libc::sockaddr, len: u32) -> Outcome<Option<SocketAddr>> {
    if len == 0 { Ok(None) } else { socket_addr(address).map(Some) }
}

/// Looks a node and a service up. Returns an error of `getaddrinfo` as that does.
fn resolve(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
) -> Outcome<Result<Found, c_int>> {
    let flags = hints.ai_flags.cast_unsigned();
    if flags & !(RAI_PASSIVE | RAI_NUMERICHOST | RAI_NOROUTE | RAI_FAMILY) != 0 {
        return Ok(Err(libc::EAI_BADFLAGS));
    }
    let is_passive = flags & RAI_PASSIVE != 0;
    let mut found = Found::default();
    if node.is_null() && service.is_null() {
        found.destination = hinted(hints.ai_dst_addr, hints.ai_dst_len)?;
    } else {
        let passive = if is_passive { libc::AI_PASSIVE } else { 0 };
        let numeric = if flags & RAI_NUMERICHOST != 0 { libc::AI_NUMERICHOST } else { 0 };
        let address = match look_up(node, service, passive | numeric, hints.ai_family) {
            Ok(address) => Some(address),
            Err(code) => return Ok(Err(code)),
        };
        *if is_passive { &mut found.source } else { &mut found.destination } = address;
    }
    if found.source.is_none() {
        found.source = hinted(hints.ai_src_addr, hints.ai_src_len)?;
    }
    Ok(Ok(found))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
    info: *mut *mut rdma_addrinfo,
) -> c_int {
    let result = run(|| {
        if info.is_null() || node.is_null() && service.is_null() && hints.is_none() {
            return Err(Errno::EINVAL);
        }
        let no_hints = rdma_addrinfo::default();
        let hints = hints.unwrap_or(&no_hints);
        match resolve(node, service, hints)? {
            Ok(found) => {
                program::write(info, AddrInfo::show(&found, hints).as_ptr())?;
                Ok(0)
            }
            Err(code) => Ok(code),
        }
    });
    result.unwrap_or(-1)
}

#[unsafe(no_mangle)]
extern "C" fn rdma_freeaddrinfo(info: Handle<AddrInfo>) {
    if !info.is_null() {
        let _ = run(|| info.destroy());
    }
}
