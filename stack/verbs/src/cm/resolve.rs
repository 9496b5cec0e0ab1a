//! Addresses of IDs: `rdma_bind_addr`, `rdma_resolve_addr`, `rdma_resolve_route`.
//!
//! There is nothing to wait for: routes are static, and the neighbor is looked up when the ID
//! connects. So the events are there when the calls return.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ferrowarp::ListenAddr;
use libc::sockaddr;

use crate::abi::{RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED};
use crate::cm::event::Param;
use crate::cm::id::{Id, Inner, State, call_with_event};
use crate::cm::memory::{optional_socket_addr, socket_addr};
use crate::cm::ports::Lease;
use crate::errno::{Errno, MinusOne, Outcome, run};
use crate::object::exposed::Handle;

/// True for an address that stands for all local ones: loopback as well, as in the kernel.
fn is_any(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_unspecified() || ip.is_loopback()
}

const fn unspecified(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

fn zoned(address: SocketAddr, device: Option<u32>) -> Outcome<SocketAddr> {
    let SocketAddr::V6(mut address) = address else { return Ok(address) };
    match device {
        Some(index) if ![0, index].contains(&address.scope_id()) => return Err(Errno::ENODEV),
        Some(_) => {}
        None => address.set_scope_id(0),
    }
    Ok(address.into())
}

impl Id {
    fn is_local(&self, ip: IpAddr) -> bool {
        self.engine.context.config().addresses.iter().any(|local| local.ip == ip.to_canonical())
    }

    /// Returns the address as the stack takes it. A device that is no interface of the kernel has
    /// no zone that a scope ID could name; programs have to name one, and take that of any.
    ///
    /// # Errors
    /// `ENODEV`: the zone is that of another interface than the device.
    pub(super) fn zoned(&self, address: SocketAddr) -> Outcome<SocketAddr> {
        zoned(address, self.engine.context.config().device.interface_index())
    }

    /// Binds a local address, with a port of its own if that is 0.
    pub(super) fn bind(&self, inner: &mut Inner, address: SocketAddr) -> Outcome {
        if !matches!(inner.state, State::Idle) {
            return Err(Errno::EINVAL);
        }
        let is_any = is_any(address.ip());
        self.zoned(address)?;
        if !is_any && !self.is_local(address.ip()) {
            return Err(Errno::ENODEV);
        }
        let ip = if is_any { unspecified(address.ip()) } else { address.ip() };
        let lease = self.lease(inner, ip, address.port())?;
        inner.has_own_port = address.port() != 0;
        let mut local = address;
        local.set_port(lease.port());
        inner.lease = Some(lease);
        self.set_addresses(inner, local, None);
        if !is_any {
            self.set_device()?;
        }
        inner.state = State::Bound;
        Ok(())
    }

    fn lease(&self, inner: &Inner, ip: IpAddr, port: u16) -> Outcome<Lease> {
        let range = self.engine.context.config().source_ports.clone();
        Lease::take(ListenAddr::from((ip, port)), inner.options.reuse_address, range)
    }

    /// Finds the way to a peer.
    pub(super) fn resolve_address(
        handle: Handle<Self>,
        source: *const sockaddr,
        destination: *const sockaddr,
    ) -> Outcome {
        let id = handle.get()?;
        let destination = socket_addr(destination)?;
        let mut inner = id.lock();
        if matches!(inner.state, State::Idle)
            && let Some(source) = optional_socket_addr(source)?
        {
            if source.is_ipv4() != destination.is_ipv4() {
                return Err(Errno::EINVAL);
            }
            id.bind(&mut inner, source)?;
        }
        if !matches!(inner.state, State::Idle | State::Bound) {
            return Err(Errno::EINVAL);
        }
        let local = id.select_local(&mut inner, destination)?;
        id.set_addresses(&mut inner, local, Some(destination));
        id.set_device()?;
        inner.state = State::AddrResolved;
        id.report(&inner, RDMA_CM_EVENT_ADDR_RESOLVED, 0, Param::default());
        Ok(())
    }

    /// Returns the local address for a connection: that which is bound, as far as it is.
    fn select_local(&self, inner: &mut Inner, destination: SocketAddr) -> Outcome<SocketAddr> {
        let config = self.engine.context.config();
        let peer = self.peer_of(destination)?.ip();
        let source = config.source_to(peer).ok_or(Errno(libc::ENETUNREACH))?;
        let Some(mut local) = inner.local else {
            let lease = self.lease(inner, source, 0)?;
            let local = SocketAddr::new(source, lease.port());
            inner.lease = Some(lease);
            return Ok(local);
        };
        if local.is_ipv4() != destination.is_ipv4() {
            return Err(Errno::EINVAL);
        }
        if is_any(local.ip()) {
            local.set_ip(source);
        }
        Ok(local)
    }

    /// Returns where to connect to: instead of a loopback address one of the device, which another
    /// ID of this host listens on.
    ///
    /// # Errors
    /// As [`Id::zoned`].
    pub(super) fn peer_of(&self, destination: SocketAddr) -> Outcome<SocketAddr> {
        let mut peer = destination;
        peer.set_ip(destination.ip().to_canonical());
        if is_any(peer.ip()) {
            let addresses = &self.engine.context.config().addresses;
            let mut of_family =
                addresses.iter().filter(|local| local.ip.is_ipv4() == peer.is_ipv4());
            if let Some(local) = of_family.next() {
                peer.set_ip(local.ip);
            }
        }
        self.zoned(peer)
    }

    /// Ends the search for the way to the peer.
    pub(super) fn resolve_route(handle: Handle<Self>) -> Outcome {
        let id = handle.get()?;
        let mut inner = id.lock();
        if !matches!(inner.state, State::AddrResolved) {
            return Err(Errno::EINVAL);
        }
        inner.state = State::RouteResolved;
        id.report(&inner, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, Param::default());
        Ok(())
    }
}

#[unsafe(no_mangle)]
extern "C" fn rdma_bind_addr(id: Handle<Id>, address: *const sockaddr) -> MinusOne {
    MinusOne::of(|| {
        let id = id.get()?;
        id.bind(&mut id.lock(), socket_addr(address)?)
    })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_resolve_addr(
    id: Handle<Id>,
    source: *const sockaddr,
    destination: *const sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    call_with_event(id, || Id::resolve_address(id, source, destination), || Id::complete(id))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_resolve_route(id: Handle<Id>, _timeout_ms: c_int) -> c_int {
    call_with_event(id, || Id::resolve_route(id), || Id::complete(id))
}

/// In network byte order; 0 if there is none.
fn port(id: Handle<Id>, of: impl FnOnce(&Inner) -> Option<SocketAddr>) -> u16 {
    let port = run(|| Ok(of(&id.get()?.lock()).map_or(0, |address| address.port())));
    port.unwrap_or(0).to_be()
}

#[unsafe(no_mangle)]
extern "C" fn rdma_get_src_port(id: Handle<Id>) -> u16 {
    port(id, |inner| inner.local)
}

#[unsafe(no_mangle)]
extern "C" fn rdma_get_dst_port(id: Handle<Id>) -> u16 {
    port(id, |inner| inner.remote)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_unspecified_addresses_stand_for_all() {
        let any = |text: &str| is_any(text.parse().expect(text));
        for text in ["0.0.0.0", "127.0.0.1", "127.9.9.9", "::", "::1", "::ffff:127.0.0.1"] {
            assert!(any(text), "{text}");
        }
        assert!(!any("198.18.0.1") && !any("2001:2::1"));
    }

    #[test]
    fn scope_ids_are_those_of_the_device_or_of_no_meaning() {
        let address = |text: &str| text.parse::<SocketAddr>().expect(text);
        let (plain, scoped) = (address("[fe80::1]:1"), address("[fe80::1%7]:1"));
        assert_eq!(zoned(scoped, None), Ok(plain));
        assert_eq!(zoned(scoped, Some(7)), Ok(scoped));
        assert_eq!(zoned(plain, Some(7)), Ok(plain));
        assert_eq!(zoned(scoped, Some(8)), Err(Errno::ENODEV));
    }
}
