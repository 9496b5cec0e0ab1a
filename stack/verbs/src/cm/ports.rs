//! Local ports that IDs have bound.
//!
//! A port is known before there is a listener or a connection on it: `rdma_get_src_port` returns it
//! after `rdma_bind_addr`.

use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrowarp::ListenAddr;

use crate::errno::{Errno, Outcome};

/// What IDs have bound.
#[derive(Debug)]
struct Ports {
    bound: Vec<Bound>,
    /// Ports that were given out one after the other, so that each rests for long.
    given: u16,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Bound {
    address: ListenAddr,
    /// `RDMA_OPTION_ID_REUSEADDR`.
    shares: bool,
}

static PORTS: Mutex<Ports> = Mutex::new(Ports { bound: Vec::new(), given: 0 });

fn lock() -> MutexGuard<'static, Ports> {
    PORTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A local address with a port that an ID has bound, as long as this value lives.
#[derive(Debug)]
pub(super) struct Lease(Bound);

impl Lease {
    /// Binds an address; port 0 stands for one of `range`. An address that `shares` its port does
    /// so with others that do.
    ///
    /// # Errors
    /// `EADDRINUSE`: another ID has the port; `EADDRNOTAVAIL`: no port of `range` is free.
    pub(super) fn take(
        address: ListenAddr,
        shares: bool,
        range: RangeInclusive<u16>,
    ) -> Outcome<Self> {
        let mut ports = lock();
        let address = match address.port() {
            0 => ports.find_free(address, range).ok_or(Errno(libc::EADDRNOTAVAIL))?,
            _ => address,
        };
        let bound = Bound { address, shares };
        if !ports.is_free(bound) {
            return Err(Errno(libc::EADDRINUSE));
        }
        ports.bound.push(bound);
        Ok(Self(bound))
    }

    /// From now on it shares its port with others that do.
    pub(super) fn share(&mut self) {
        let mut ports = lock();
        if let Some(bound) = ports.bound.iter_mut().find(|bound| **bound == self.0) {
            bound.shares = true;
        }
        self.0.shares = true;
    }

    pub(super) const fn port(&self) -> u16 {
        self.0.address.port()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let bound = &mut lock().bound;
        if let Some(index) = bound.iter().position(|other| *other == self.0) {
            bound.swap_remove(index);
        }
    }
}

impl Ports {
    fn is_free(&self, new: Bound) -> bool {
        let conflicts =
            |old: &&Bound| old.address.overlaps(new.address) && !(old.shares && new.shares);
        self.bound.iter().find(conflicts).is_none()
    }

    fn find_free(&mut self, address: ListenAddr, range: RangeInclusive<u16>) -> Option<ListenAddr> {
        let (first, len) = (*range.start(), range.len());
        for _ in 0..len {
            self.given = self.given.wrapping_add(1);
            let port = first + u16::try_from(usize::from(self.given) % len).ok()?;
            let address = address.with_port(port);
            if port != 0 && self.is_free(Bound { address, shares: false }) {
                return Some(address);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(address: &str, shares: bool) -> Outcome<Lease> {
        Lease::take(address.parse().expect(address), shares, 30_000..=30_001)
    }

    #[test]
    fn a_port_has_one_owner_for_each_address_and_family() {
        let one = take("198.18.7.1:20001", false).expect("free");
        let other = take("198.18.7.2:20001", false).expect("another address");
        let v6 = take("[::]:20001", false).expect("another family");
        assert_eq!(take("0.0.0.0:20001", false).err(), Some(Errno(libc::EADDRINUSE)));
        assert_eq!(take("[2001:2::1]:20001", true).err(), Some(Errno(libc::EADDRINUSE)));
        drop((one, other, v6));
        assert!(take("0.0.0.0:20001", false).is_ok());
    }

    #[test]
    fn addresses_are_shared_by_those_that_agree() {
        let one = take("0.0.0.0:20002", true).expect("free");
        let two = take("0.0.0.0:20002", true).expect("both share");
        assert!(take("0.0.0.0:20002", false).is_err());
        drop(one);
        assert!(take("0.0.0.0:20002", false).is_err());
        drop(two);
        assert!(take("0.0.0.0:20002", false).is_ok());
    }

    #[test]
    fn an_address_may_be_shared_once_it_is_bound() {
        let mut one = take("0.0.0.0:20003", false).expect("free");
        assert!(take("0.0.0.0:20003", true).is_err());
        one.share();
        let two = take("0.0.0.0:20003", true).expect("both share");
        drop((one, two));
        assert!(take("0.0.0.0:20003", false).is_ok());
    }

    #[test]
    fn port_0_is_one_of_the_range_while_any_is_free() {
        let leases = ["0.0.0.0:0", "0.0.0.0:0"].map(|address| take(address, false).expect("free"));
        let mut ports = leases.each_ref().map(Lease::port);
        ports.sort_unstable();
        assert_eq!(ports, [30_000, 30_001]);
        assert_eq!(take("0.0.0.0:0", false).err(), Some(Errno(libc::EADDRNOTAVAIL)));
    }
}
