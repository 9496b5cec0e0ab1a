//! Local addresses, next hop lookup and source address selection.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Address of this host, with the prefix of its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address.
    pub ip: IpAddr,
    /// Prefix length of the link; larger values than the address has bits count as all bits.
    pub prefix_len: u8,
}

impl InterfaceAddress {
    /// True if a host can have the address: it is unicast, and neither network nor broadcast
    /// address of an IPv4 link, nor the Subnet-Router anycast address of an IPv6 link (RFC 4291
    /// section 2.6.1). Links of two addresses have none of these (RFC 3021, RFC 6164).
    #[must_use]
    pub const fn is_host(&self) -> bool {
        let is_network = match (self.ip, self.prefix_len) {
            (IpAddr::V6(ip), len @ 0..=126) => ip.to_bits() & (u128::MAX >> len) == 0,
            _ => false,
        };
        is_unicast_host(self.ip) && !self.is_broadcast(self.ip) && !is_network
    }

    /// True if `ip` is the directed broadcast address of the IPv4 link, or its network address.
    const fn is_broadcast(&self, ip: IpAddr) -> bool {
        let (IpAddr::V4(ours), IpAddr::V4(ip), len @ 0..=30) = (self.ip, ip, self.prefix_len)
        else {
            return false;
        };
        let host = u32::MAX >> len;
        let differing = (ours.to_bits() ^ ip.to_bits()) & !host;
        let bits = ip.to_bits() & host;
        differing == 0 && (bits == host || bits == 0)
    }
}

/// Route to destinations that are not on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination prefix; bits after `prefix_len` are ignored.
    pub destination: IpAddr,
    /// Prefix length of the destination; 0 for a default route.
    pub prefix_len: u8,
    /// Address of the router, on a link of this host.
    pub via: IpAddr,
    /// Largest IP packet in bytes that the route carries, if less than the port's MTU.
    pub mtu: Option<u16>,
}

impl Route {
    /// Route to `destination`/`prefix_len` through the router `via`.
    #[must_use]
    pub const fn new(destination: IpAddr, prefix_len: u8, via: IpAddr) -> Self {
        Self { destination, prefix_len, via, mtu: None }
    }

    /// Default route through `via`, for its address family.
    #[must_use]
    pub const fn default_via(via: IpAddr) -> Self {
        Self::new(unspecified(via), 0, via)
    }

    /// Sets [`mtu`](field@Self::mtu).
    #[must_use]
    pub const fn mtu(mut self, mtu: u16) -> Self {
        self.mtu = Some(mtu);
        self
    }
}

/// Entry of the table; sorted by descending prefix length.
#[derive(Clone, Copy, Debug)]
struct Row {
    destination: IpAddr,
    prefix_len: u8,
    /// Router; `None` if the destination is on the link.
    via: Option<IpAddr>,
    mtu: Option<u16>,
}

/// Routing table: addresses and routes, fixed while the engine runs. Searched linearly; not used
/// per TCP segment.
#[derive(Clone, Debug)]
pub struct RoutingTable {
    addresses: Vec<InterfaceAddress>,
    rows: Vec<Row>,
}

impl RoutingTable {
    /// Builds the table. Of two entries with the same prefix, the link precedes routers, and the
    /// first given precedes the second.
    #[must_use]
    pub fn new(addresses: &[InterfaceAddress], routes: &[Route]) -> Self {
        let on_link = addresses.iter().map(|address| Row {
            destination: address.ip,
            prefix_len: address.prefix_len.min(address_bits(address.ip)),
            via: None,
            mtu: None,
        });
        let routed = routes.iter().map(|route| Row {
            destination: route.destination,
            prefix_len: route.prefix_len.min(address_bits(route.destination)),
            via: Some(route.via),
            mtu: route.mtu,
        });
        let mut rows: Vec<Row> = on_link.chain(routed).collect();
        rows.sort_by_key(|row| core::cmp::Reverse(row.prefix_len));
        Self { addresses: addresses.to_vec(), rows }
    }

    /// True if it has a local address of the same family.
    #[must_use]
    pub fn has_family_of(&self, ip: IpAddr) -> bool {
        self.addresses().any(|ours| ours.is_ipv4() == ip.is_ipv4())
    }

    /// Local addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().map(|address| address.ip)
    }

    /// True if the address is local.
    #[must_use]
    pub fn is_local(&self, ip: IpAddr) -> bool {
        self.addresses().any(|ours| ours == ip)
    }

    /// True for a unicast address that another host can have, on one of our links or elsewhere.
    #[must_use]
    pub fn is_other_host(&self, ip: IpAddr) -> bool {
        is_unicast_host(ip)
            && self.addresses.iter().all(|ours| {
                let prefix_len = ours.prefix_len;
                let is_on_link = ours.ip.is_ipv4() == ip.is_ipv4()
                    && common_prefix_len(ours.ip, ip) >= prefix_len.into();
                ours.ip != ip && (!is_on_link || InterfaceAddress { ip, prefix_len }.is_host())
            })
    }

    /// True if `ip` is another host on one of the links, such as a router can be.
    #[must_use]
    pub fn is_neighbor(&self, ip: IpAddr) -> bool {
        self.row(ip).is_some_and(|row| row.via.is_none())
    }

    /// Returns the next hop for `remote`: `remote` itself if it is local or on the link, else the
    /// router of the longest matching prefix. `None` without a route, or if `remote` is not a
    /// unicast address of a host.
    #[must_use]
    pub fn next_hop(&self, remote: IpAddr) -> Option<IpAddr> {
        if self.is_local(remote) {
            return Some(remote);
        }
        Some(self.row(remote)?.via.unwrap_or(remote))
    }

    /// Returns the limit that the route to `remote` has on packets, if it has one.
    #[must_use]
    pub fn route_mtu(&self, remote: IpAddr) -> Option<u16> {
        self.row(remote)?.mtu
    }

    /// Limits that routes have on packets.
    pub(crate) fn route_mtus(&self) -> impl Iterator<Item = u16> {
        self.rows.iter().filter_map(|row| row.mtu)
    }

    /// Finds the route to another host.
    fn row(&self, remote: IpAddr) -> Option<&Row> {
        if !self.is_other_host(remote) {
            return None;
        }
        self.rows.iter().find(|row| row.covers(remote))
    }

    /// Selects the source address for packets to `remote` through `hop` (RFC 6724 section 5, as far
    /// as it applies to static addresses): `remote` itself if it is local, then same scope, then on
    /// the link of `hop`, then longest prefix in common with `remote`, then the first configured.
    /// `None` without an address of that family.
    #[must_use]
    pub fn select_source(&self, remote: IpAddr, hop: IpAddr) -> Option<IpAddr> {
        // Rule 1: prefer the same address.
        if self.is_local(remote) {
            return Some(remote);
        }
        let rank = |address: &InterfaceAddress| {
            let shares_scope = is_link_local(address.ip) == is_link_local(remote);
            let prefix_len = u32::from(address.prefix_len.min(address_bits(address.ip)));
            let shared = common_prefix_len(address.ip, hop);
            let on_link = if shared >= prefix_len { prefix_len + 1 } else { 0 };
            (shares_scope, on_link, common_prefix_len(address.ip, remote))
        };
        // Of equal ranks the first: `max_by_key` returns the last.
        let candidates = self.addresses.iter().rev();
        let best = candidates.filter(|address| address.ip.is_ipv4() == remote.is_ipv4());
        best.max_by_key(|address| rank(address)).map(|address| address.ip)
    }
}

impl Row {
    fn covers(&self, ip: IpAddr) -> bool {
        self.destination.is_ipv4() == ip.is_ipv4()
            && common_prefix_len(self.destination, ip) >= u32::from(self.prefix_len)
    }
}

/// True for a unicast address that a host can have, on whatever link.
#[must_use]
pub const fn is_unicast_host(ip: IpAddr) -> bool {
    match ip {
        // Network 0, loopback, classes D and E, limited broadcast.
        IpAddr::V4(ip) => !matches!(ip.octets()[0], 0 | 127 | 224..),
        // The first 96 bits of loopback, unspecified, IPv4-compatible and IPv4-mapped addresses
        // (RFC 4291 sections 2.5.2 to 2.5.5): none of them is on a link.
        IpAddr::V6(ip) => {
            !(ip.is_multicast() || matches!(ip.segments(), [0, 0, 0, 0, 0, 0 | 0xffff, ..]))
        }
    }
}

/// Returns the unspecified address of the same family.
pub(crate) const fn unspecified(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// True for an address of link-local scope.
const fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

const fn address_bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// Number of leading bits that two addresses of one family have in common.
const fn common_prefix_len(a: IpAddr, b: IpAddr) -> u32 {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn net(text: &str) -> (IpAddr, u8) {
        let (ip, len) = text.split_once('/').unwrap();
        (ip.parse().unwrap(), len.parse().unwrap())
    }

    fn routing(addresses: &[&str], routes: &[(&str, &str)]) -> RoutingTable {
        let address = |text: &&str| {
            let (ip, prefix_len) = net(text);
            InterfaceAddress { ip, prefix_len }
        };
        let route = |(text, via): &(&str, &str)| {
            let (destination, prefix_len) = net(text);
            Route::new(destination, prefix_len, ip(via))
        };
        let addresses: Vec<_> = addresses.iter().map(address).collect();
        RoutingTable::new(&addresses, &routes.iter().map(route).collect::<Vec<_>>())
    }

    #[test]
    fn longest_prefix_wins() {
        let table = routing(
            &["198.18.0.1/24", "2001:2::1/64", "fe80::1/64"],
            &[
                ("0.0.0.0/0", "198.18.0.254"),
                ("198.18.0.0/15", "198.18.0.253"),
                ("198.18.0.128/25", "198.18.0.252"),
                ("198.18.0.0/24", "198.18.0.251"),
                ("::/0", "fe80::fe"),
                ("2001:2:0:1::/64", "2001:2::fd"),
            ],
        );
        let hop = |to| table.next_hop(ip(to));
        assert_eq!(
            hop("198.18.0.9"),
            Some(ip("198.18.0.9")),
            "the connected prefix before a router"
        );
        assert_eq!(hop("198.18.0.200"), Some(ip("198.18.0.252")));
        assert_eq!(hop("198.18.1.1"), Some(ip("198.18.0.253")));
        assert_eq!(hop("203.0.113.1"), Some(ip("198.18.0.254")));
        assert_eq!(hop("2001:2::9"), Some(ip("2001:2::9")));
        assert_eq!(hop("2001:2:0:1::9"), Some(ip("2001:2::fd")));
        assert_eq!(hop("2001:db8::9"), Some(ip("fe80::fe")));
        assert_eq!(hop("fe80::9"), Some(ip("fe80::9")));
    }

    #[test]
    fn local_address_is_its_own_next_hop_and_source() {
        let table =
            routing(&["198.18.0.2/25", "198.18.0.1/24", "fe80::1/64"], &[("::/0", "fe80::fe")]);
        for own in ["198.18.0.1", "198.18.0.2", "fe80::1"].map(ip) {
            assert_eq!(table.next_hop(own), Some(own));
            assert_eq!(table.select_source(own, own), Some(own));
        }
    }

    #[test]
    fn mtu_is_that_of_the_route() {
        let address = InterfaceAddress { ip: ip("198.18.0.1"), prefix_len: 24 };
        let router = ip("198.18.0.254");
        let routes = [
            Route::default_via(router).mtu(1400),
            Route::new(ip("203.0.113.0"), 24, router),
            Route::new(ip("203.0.113.128"), 25, router).mtu(576),
        ];
        let table = RoutingTable::new(&[address], &routes);
        let mtu = |to| table.route_mtu(ip(to));
        assert_eq!(mtu("192.0.2.1"), Some(1400));
        assert_eq!(mtu("203.0.113.1"), None, "the longest prefix alone counts");
        assert_eq!(mtu("203.0.113.200"), Some(576));
        assert_eq!((mtu("198.18.0.9"), mtu("198.18.0.1")), (None, None));
        assert_eq!(table.route_mtus().collect::<Vec<_>>(), [576, 1400]);
    }

    #[test]
    fn group_and_broadcast_addresses_have_no_next_hop() {
        let table = routing(
            &["198.18.0.1/24", "198.18.8.0/31", "2001:2::1/64"],
            &[("0.0.0.0/0", "198.18.0.254"), ("::/0", "2001:2::fe")],
        );
        for none in [
            "198.18.0.255",
            "198.18.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "127.0.0.1",
            "0.0.0.0",
            "ff02::1",
            "::",
            "::1",
            "2001:2::",
            "::198.18.0.9",
            "::ffff:198.18.0.9",
        ] {
            assert_eq!(table.next_hop(ip(none)), None, "{none}");
        }
        // Links of two addresses have no broadcast address (RFC 3021).
        assert_eq!(table.next_hop(ip("198.18.8.1")), Some(ip("198.18.8.1")));
        assert_eq!(routing(&["198.18.0.1/24"], &[]).next_hop(ip("198.18.1.1")), None);
        assert_eq!(routing(&["198.18.0.1/0"], &[]).next_hop(ip("2001:2::1")), None);
    }

    #[test]
    fn hosts_have_neither_network_nor_broadcast_address() {
        let is_host = |text| {
            let (ip, prefix_len) = net(text);
            InterfaceAddress { ip, prefix_len }.is_host()
        };
        for host in ["198.18.0.1/24", "198.18.0.0/31", "198.18.0.255/32", "198.18.0.255/16"] {
            assert!(is_host(host), "{host}");
        }
        for host in ["2001:2::1/64", "2001:2::/127", "2001:2::/128", "fe80::1/0"] {
            assert!(is_host(host), "{host}");
        }
        for other in ["198.18.0.0/24", "198.18.0.255/24", "198.18.0.3/30", "224.0.0.1/24"] {
            assert!(!is_host(other), "{other}");
        }
        for other in ["2001:2::/64", "ff02::1/64", "::ffff:198.18.0.1/96", "::/128", "::1/128"] {
            assert!(!is_host(other), "{other}");
        }
    }

    #[test]
    fn source_is_selected_by_scope_then_next_hop_then_prefix() {
        let table = routing(
            &["fe80::1/64", "198.18.0.1/24", "2001:2::1/64", "2001:2:0:1::1/64", "198.18.4.1/24"],
            &[("::/0", "fe80::fe"), ("0.0.0.0/0", "198.18.4.254")],
        );
        let source = |to| table.select_source(ip(to), table.next_hop(ip(to)).unwrap());
        assert_eq!(source("198.18.0.9"), Some(ip("198.18.0.1")));
        assert_eq!(source("198.18.4.9"), Some(ip("198.18.4.1")));
        assert_eq!(source("203.0.113.1"), Some(ip("198.18.4.1")), "on the router's link");
        assert_eq!(source("fe80::9"), Some(ip("fe80::1")));
        assert_eq!(source("2001:2:0:1::9"), Some(ip("2001:2:0:1::1")));
        assert_eq!(source("2001:2:0:1:8000::"), Some(ip("2001:2:0:1::1")));
        assert_eq!(source("2001:2:0:2::9"), Some(ip("2001:2::1")), "never a link-local one");
        let v4 = routing(&["198.18.0.1/24", "198.18.0.2/24"], &[]);
        assert_eq!(v4.select_source(ip("198.18.0.9"), ip("198.18.0.9")), Some(ip("198.18.0.1")));
        assert_eq!(v4.select_source(ip("2001:2::1"), ip("2001:2::1")), None);
    }

    proptest! {
        #[test]
        fn lookup_agrees_with_linear_search(
            routes in prop::collection::vec((any::<u32>(), 0u8..=32, 1u32..200), 0..20),
            to: u32,
        ) {
            // Few bits differ, so that many routes match.
            let near = |bits: u32| 0xc612_0000 | bits & 0x0000_f00f;
            let routes: Vec<Route> = routes
                .into_iter()
                .map(|(bits, prefix_len, via)| {
                    let (destination, via) = (near(bits).into(), (0x0a00_0000 | via).into());
                    Route::new(IpAddr::V4(destination), prefix_len, IpAddr::V4(via))
                })
                .collect();
            let to = near(to);
            let mut best: Option<&Route> = None;
            for route in &routes {
                let IpAddr::V4(destination) = route.destination else { unreachable!() };
                let mask = u32::MAX.checked_shl(32 - u32::from(route.prefix_len)).unwrap_or(0);
                let covers = (destination.to_bits() ^ to) & mask == 0;
                if covers && best.is_none_or(|best| best.prefix_len < route.prefix_len) {
                    best = Some(route);
                }
            }
            let table = RoutingTable::new(&[], &routes);
            prop_assert_eq!(table.next_hop(IpAddr::V4(to.into())), best.map(|route| route.via));
        }
    }
}
