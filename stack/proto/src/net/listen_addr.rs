//! Addresses of a listener.

use core::fmt;
use core::net::{AddrParseError, IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use core::str::FromStr;

use crate::net::routing::unspecified;

/// Port and local addresses of a listener: one address, all of one family, or all.
///
/// | From | Addresses |
/// |---|---|
/// | a port: `4791` | all, of both families |
/// | `0.0.0.0:4791` | all of IPv4 |
/// | `[::]:4791` | all of IPv6, as with `IPV6_V6ONLY` |
/// | any other [`SocketAddr`], or pair of address and port | this one |
///
/// An IPv4-mapped address counts as the IPv4 address. Listeners with the same port and other
/// addresses go together: the most specific one gets the request.
///
/// ```
/// # use core::net::Ipv4Addr;
/// # use ferrowarp_proto::net::listen_addr::ListenAddr;
/// let all = ListenAddr::from(4791);
/// let one: ListenAddr = (Ipv4Addr::new(198, 18, 0, 1), 4791).into();
/// assert_eq!((all.ip(), one.port()), (None, 4791));
/// assert!(all.overlaps(one) && !one.overlaps("[::]:4791".parse()?));
/// # Ok::<(), core::net::AddrParseError>(())
/// ```
#[doc(alias = "INADDR_ANY")]
#[doc(alias = "RDMA_OPTION_ID_AFONLY")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenAddr {
    // The order by port comes first.
    port: u16,
    /// Unspecified: all addresses of its family.
    ip: Option<IpAddr>,
    scope_id: u32,
}

impl ListenAddr {
    /// TCP port; 0: any that is free.
    #[must_use]
    pub const fn port(self) -> u16 {
        self.port
    }

    /// The address: `None` for all, `0.0.0.0` or `::` for all of that family.
    #[must_use]
    pub const fn ip(self) -> Option<IpAddr> {
        self.ip
    }

    /// Scope ID of the IPv6 address that it was made from (`sin6_scope_id`); 0: none. A device is
    /// one link, so that a listener in use has none.
    #[must_use]
    pub const fn scope_id(self) -> u32 {
        self.scope_id
    }

    /// The same addresses without a scope ID, as in received segments.
    #[must_use]
    pub const fn without_scope_id(self) -> Self {
        Self { scope_id: 0, ..self }
    }

    /// The same addresses with another port.
    #[must_use]
    pub const fn with_port(self, port: u16) -> Self {
        Self { port, ..self }
    }

    /// True if a request may be meant for both: they have the port in common, and an address.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.port == other.port && (self.covers_ip_of(other) || other.covers_ip_of(self))
    }

    /// True if each address of `other` is one of these.
    fn covers_ip_of(self, other: Self) -> bool {
        match (self.ip, other.ip) {
            (None, _) => true,
            (Some(ours), Some(ip)) if ours.is_unspecified() => ours.is_ipv4() == ip.is_ipv4(),
            (ours, ip) => ours == ip,
        }
    }

    /// Returns all listeners, the most specific first, that a segment to `local` may be meant for.
    pub(crate) fn covering(local: SocketAddr) -> [Self; 3] {
        let ip = local.ip();
        [Some(ip), Some(unspecified(ip)), None].map(|ip| Self {
            port: local.port(),
            ip,
            scope_id: 0,
        })
    }
}

impl From<u16> for ListenAddr {
    fn from(port: u16) -> Self {
        Self { port, ip: None, scope_id: 0 }
    }
}

impl<I: Into<IpAddr>> From<(I, u16)> for ListenAddr {
    fn from((ip, port): (I, u16)) -> Self {
        Self { port, ip: Some(ip.into().to_canonical()), scope_id: 0 }
    }
}

impl From<SocketAddr> for ListenAddr {
    fn from(addr: SocketAddr) -> Self {
        match addr {
            SocketAddr::V4(addr) => addr.into(),
            SocketAddr::V6(addr) => addr.into(),
        }
    }
}

impl From<SocketAddrV4> for ListenAddr {
    fn from(addr: SocketAddrV4) -> Self {
        (*addr.ip(), addr.port()).into()
    }
}

impl From<SocketAddrV6> for ListenAddr {
    fn from(addr: SocketAddrV6) -> Self {
        Self { scope_id: addr.scope_id(), ..(*addr.ip(), addr.port()).into() }
    }
}

/// Parses a port, or an address with a port.
impl FromStr for ListenAddr {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        text.parse::<u16>()
            .map_or_else(|_| Ok(text.parse::<SocketAddr>()?.into()), |p| Ok(p.into()))
    }
}

/// Shows `*:4791` for all addresses, else the address with the port.
impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            None => write!(f, "*:{}", self.port),
            Some(IpAddr::V4(ip)) => SocketAddrV4::new(ip, self.port).fmt(f),
            Some(IpAddr::V6(ip)) => SocketAddrV6::new(ip, self.port, 0, self.scope_id).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn listen(text: &str) -> ListenAddr {
        text.parse().unwrap()
    }

    #[test]
    fn address_stands_for_one_or_its_family_or_a_port_for_all() {
        for (text, ip) in [
            ("7", None),
            ("0.0.0.0:7", Some("0.0.0.0")),
            ("[::]:7", Some("::")),
            ("198.18.0.1:7", Some("198.18.0.1")),
            ("[2001:2::1]:7", Some("2001:2::1")),
            ("[fe80::1%3]:7", Some("fe80::1")),
            ("[::ffff:198.18.0.1]:7", Some("198.18.0.1")),
        ] {
            let addr = listen(text);
            assert_eq!((addr.port(), addr.ip()), (7, ip.map(|ip| ip.parse().unwrap())), "{text}");
        }
        for bad in ["", "65536", "198.18.0.1", "::", "host:7", "*:7"] {
            assert!(bad.parse::<ListenAddr>().is_err(), "{bad}");
        }
        let (v4, v6) = (Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
        let all = [(v4, 7).into(), SocketAddrV4::new(v4, 7).into(), listen("127.0.0.1:7")];
        assert!(all.iter().all(|addr| *addr == all[0]));
        let scoped = ListenAddr::from(SocketAddrV6::new(v6, 7, 5, 9));
        assert_eq!((scoped.scope_id(), scoped.with_port(8).scope_id()), (9, 9));
        assert_ne!(scoped, (v6, 7).into());
        assert_eq!(scoped.without_scope_id(), (v6, 7).into());
        let shown = ["*:7", "0.0.0.0:7", "[::]:7", "[fe80::1%3]:7"];
        let texts = ["7", shown[1], shown[2], shown[3]];
        assert_eq!(texts.map(|text| listen(text).to_string()), shown);
    }

    #[test]
    fn listeners_overlap_if_they_share_port_and_address() {
        const NESTED: [&str; 5] = ["7", "0.0.0.0:7", "198.18.0.1:7", "[::]:7", "[2001:2::1]:7"];
        let overlaps = |a, b| listen(a).overlaps(listen(b));
        for (a, b, expected) in [(1, 2, true), (3, 4, true), (1, 3, false), (2, 4, false)] {
            assert_eq!(overlaps(NESTED[a], NESTED[b]), expected);
            assert_eq!(overlaps(NESTED[b], NESTED[a]), expected);
        }
        for addr in NESTED {
            assert!(overlaps(addr, addr) && overlaps("7", addr) && overlaps(addr, "7"));
            assert!(!listen(addr).overlaps(listen(addr).with_port(8)));
        }
        assert!(!overlaps("198.18.0.1:7", "198.18.0.2:7"));
    }
}
