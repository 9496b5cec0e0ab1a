//! Text forms of addresses, routes and neighbors.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferrowarp_proto::net::neighbor::StaticNeighbor;
use ferrowarp_proto::net::routing::{InterfaceAddress, Route};
use ferrowarp_proto::wire::ethernet;

/// Least MTU of a link with IPv4: the packet that each host can receive (RFC 791 section 3.1, Total
/// Length).
pub const MTU_MIN: u16 = 576;
/// Least MTU of a link with IPv6 (RFC 8200 section 5).
pub const MTU_MIN_V6: u16 = 1280;

/// An address, with the zone of a link-local one if given (RFC 4007 section 11): `fe80::1%tap0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zoned {
    /// The address.
    pub ip: IpAddr,
    /// Name or index of an interface.
    pub zone: Option<String>,
}

impl Zoned {
    /// Returns the address, which has no zone where one device is the only link.
    ///
    /// # Errors
    /// A sentence that states the remedy.
    pub fn without_zone(&self) -> Result<IpAddr, String> {
        let Self { ip, zone: Some(zone) } = self else { return Ok(self.ip) };
        Err(format!("write {ip} without %{zone}: the device is one link"))
    }
}

/// An address and its prefix length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// The address.
    pub address: Zoned,
    /// Prefix length in bits.
    pub len: u8,
}

impl Cidr {
    /// Returns it as an address of an interface, without the zone.
    #[must_use]
    pub const fn on_interface(&self) -> InterfaceAddress {
        InterfaceAddress { ip: self.address.ip, prefix_len: self.len }
    }
}

/// A router, and the MTU of its route if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Router {
    /// The router's address.
    pub address: Zoned,
    /// The MTU.
    pub mtu: Option<u16>,
}

impl Router {
    /// Returns a route through the router, without the zone.
    #[must_use]
    pub fn route(&self, destination: IpAddr, prefix_len: u8) -> Route {
        let route = Route::new(destination, prefix_len, self.address.ip);
        self.mtu.map_or(route, |mtu| route.mtu(mtu))
    }
}

/// A route: its destination, and the router that leads there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Destination.
    pub destination: IpAddr,
    /// Prefix length of the destination in bits; 0 is a default route.
    pub len: u8,
    /// The router.
    pub router: Router,
}

impl Hop {
    /// Returns the route, without the zone.
    #[must_use]
    pub fn route(&self) -> Route {
        self.router.route(self.destination, self.len)
    }
}

/// A host on the link, and its hardware address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbor {
    /// The address.
    pub address: Zoned,
    /// The hardware address.
    pub mac: [u8; 6],
}

impl Neighbor {
    /// Returns it as an entry of the neighbor cache, without the zone.
    #[must_use]
    pub const fn entry(&self) -> StaticNeighbor {
        StaticNeighbor { ip: self.address.ip, mac: self.mac }
    }
}

/// Parses an address and a prefix length.
fn parse_cidr(text: &str) -> Result<Cidr, String> {
    let example = || "give an address and a prefix length, such as 198.18.0.1/24".to_owned();
    let (address, len) = text.split_once('/').ok_or_else(example)?;
    let address = parse_ip(address)?.ok_or_else(example)?;
    let most = if address.ip.is_ipv4() { 32 } else { 128 };
    if len.is_empty() || !len.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(example());
    }
    match len.parse() {
        Ok(len) if len <= most => Ok(Cidr { address, len }),
        _ => Err(format!("the prefix is too long: give 0 to {most} bits")),
    }
}

/// Parses a local address and its prefix length.
///
/// # Errors
/// A sentence that states the form.
pub fn parse_local(text: &str) -> Result<Cidr, String> {
    let cidr = parse_cidr(text)?;
    check_host(cidr.address.ip)?;
    if !cidr.on_interface().is_host() {
        return Err("it is the address of the whole link: give one of a host on it".to_owned());
    }
    Ok(cidr)
}

/// Parses the address of a router, and an MTU: `198.18.0.254,mtu=1400`.
///
/// # Errors
/// A sentence that states the form.
pub fn parse_router(text: &str) -> Result<Router, String> {
    let form = "give an address, such as 198.18.0.254 or 198.18.0.254,mtu=1400";
    let (address, mtu) = match text.split_once(',') {
        None => (text, None),
        Some((address, rest)) => {
            let mtu = rest.strip_prefix("mtu=").and_then(|mtu| mtu.parse().ok()).ok_or(form)?;
            (address, Some(mtu))
        }
    };
    let address = parse_ip(address)?.ok_or(form)?;
    check_host(address.ip)?;
    let min = if address.ip.is_ipv4() { MTU_MIN } else { MTU_MIN_V6 };
    if mtu.is_some_and(|mtu| mtu < min) {
        return Err(format!("the MTU is too small: give {min} or more"));
    }
    Ok(Router { address, mtu })
}

/// Parses a route: the words `203.0.113.0/24`, `via` and `198.18.0.254[,mtu=N]`. The destination
/// `default` is 0.0.0.0/0 or ::/0.
///
/// # Errors
/// A sentence that states the form.
pub fn parse_route(words: &[&str]) -> Result<Hop, String> {
    let form = || "give DEST/LEN via HOP, both of one family".to_owned();
    let &[destination, "via", router] = words else { return Err(form()) };
    let router = parse_router(router)?;
    if destination == "default" {
        let unspecified = match router.address.ip {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        return Ok(Hop { destination: unspecified, len: 0, router });
    }
    let Cidr { address, len } = parse_cidr(destination)?;
    let destination = address.ip;
    if destination.is_ipv4() != router.address.ip.is_ipv4() {
        return Err(form());
    }
    if destination.is_multicast() || destination.is_loopback() {
        return Err("no route leads to multicast or loopback addresses".to_owned());
    }
    Ok(Hop { destination, len, router })
}

/// Parses an address and a hardware address: `198.18.0.2=02:00:00:00:00:02`.
///
/// # Errors
/// A sentence that states the form.
pub fn parse_neighbor(text: &str) -> Result<Neighbor, String> {
    let form = "give an address and a hardware address, such as 198.18.0.2=02:00:00:00:00:02";
    let (address, mac) = text.split_once('=').ok_or(form)?;
    let address = parse_ip(address)?.ok_or(form)?;
    check_host(address.ip)?;
    let mac = parse_mac(mac).ok_or(form)?;
    if !ethernet::is_unicast(mac) {
        return Err("the hardware address is no host's: give a unicast one".to_owned());
    }
    Ok(Neighbor { address, mac })
}

/// Parses six pairs of hexadecimal digits.
fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let byte = |pair: &str| {
        let is_pair = pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit());
        u8::from_str_radix(pair, 16).ok().filter(|_| is_pair)
    };
    let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
    bytes?.try_into().ok()
}

/// Parses an address; `None` if it is none.
///
/// # Errors
/// A sentence about a zone that is wrong.
pub fn parse_ip(text: &str) -> Result<Option<Zoned>, String> {
    let Some((address, zone)) = text.split_once('%') else {
        return Ok(text.parse().ok().map(|ip| Zoned { ip, zone: None }));
    };
    let Ok(ip) = address.parse::<Ipv6Addr>() else { return Ok(None) };
    if !ip.is_unicast_link_local() || zone.is_empty() {
        return Err(format!(
            "only a link-local address has a zone, as in fe80::1%eth0: write {ip}"
        ));
    }
    Ok(Some(Zoned { ip: ip.into(), zone: Some(zone.to_owned()) }))
}

/// Refuses an address that no other host can have.
///
/// # Errors
/// A sentence that states the reason.
pub fn check_host(ip: IpAddr) -> Result<(), String> {
    if let IpAddr::V6(v6) = ip
        && let Some(v4) = v6.to_ipv4_mapped()
    {
        return Err(format!("write the IPv4 address as {v4}"));
    }
    let kind = if ip.is_unspecified() {
        "unspecified"
    } else if ip.is_loopback() {
        "loopback"
    } else if ip.is_multicast() {
        "multicast"
    } else if !(InterfaceAddress { ip, prefix_len: 128 }).is_host() {
        "reserved"
    } else {
        return Ok(());
    };
    Err(format!("no host on a link has this {kind} address: give a unicast one"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_longer_than_address_is_rejected() {
        let parsed = parse_cidr("198.18.0.1/24").unwrap();
        assert_eq!((parsed.address.ip.to_string().as_str(), parsed.len), ("198.18.0.1", 24));
        assert!(parse_cidr("2001:2::1/64").is_ok());
        for wrong in ["", "198.18.0.1", "x/24", "1.2.3.4/", "/8", "1.2.3.4/+8", "1.2.3.4/-1"] {
            assert!(parse_cidr(wrong).unwrap_err().starts_with("give an address and"), "{wrong}");
        }
        for (wrong, most) in
            [("198.18.0.1/33", 32), ("198.18.0.1/99999999999", 32), ("2001:2::1/129", 128)]
        {
            let expected = format!("the prefix is too long: give 0 to {most} bits");
            assert_eq!(parse_cidr(wrong).unwrap_err(), expected, "{wrong}");
        }
    }

    #[test]
    fn addresses_that_no_host_has_are_rejected() {
        for (text, reason) in [
            ("::ffff:198.18.0.1", "write the IPv4 address as 198.18.0.1"),
            ("2001:2::1%eth0", "only a link-local address has a zone"),
            ("fe80::1%", "only a link-local address has a zone"),
            ("0.0.0.0", "unspecified"),
            ("::1", "loopback"),
            ("ff02::1", "multicast"),
            ("255.255.255.255", "reserved"),
        ] {
            let local = parse_local(&format!("{text}/32")).unwrap_err();
            for error in [parse_router(text).unwrap_err(), local] {
                assert!(error.contains(reason), "{text}: {error}");
            }
        }
        for link in ["198.18.0.255/24", "198.18.0.0/24", "2001:2::/64"] {
            assert!(parse_local(link).unwrap_err().contains("whole link"), "{link}");
        }
        for host in ["198.18.0.255/16", "198.18.0.0/31", "198.18.0.1/32", "fe80::1/64"] {
            assert!(parse_local(host).is_ok(), "{host}");
        }
        let zoned = parse_local("fe80::1%tap0/64").unwrap().address;
        let error = zoned.without_zone().unwrap_err();
        assert_eq!(error, "write fe80::1 without %tap0: the device is one link");
    }

    #[test]
    fn routes_have_a_default_and_an_mtu() {
        let parse = |text: &str| parse_route(&text.split(' ').collect::<Vec<_>>());
        let via = |text: &str| text.parse().unwrap();
        for (text, expected) in [
            ("default via 198.18.0.254", Route::default_via(via("198.18.0.254"))),
            ("default via fe80::1,mtu=1280", Route::default_via(via("fe80::1")).mtu(1280)),
            (
                "203.0.113.0/24 via 198.18.0.254,mtu=576",
                Route::new(via("203.0.113.0"), 24, via("198.18.0.254")).mtu(576),
            ),
        ] {
            assert_eq!(parse(text).unwrap().route(), expected, "{text}");
        }
        for wrong in [
            "default",
            "default via",
            "default via 198.18.0.254 dev",
            "default by 198.18.0.254",
            "203.0.113.0 via 198.18.0.254",
            "203.0.113.0/24 via 2001:2::1",
            "224.0.0.0/4 via 198.18.0.254",
            "default via 198.18.0.254,mtu=575",
            "default via 2001:2::fe,mtu=1279",
            "default via 198.18.0.254,1400",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn neighbors_have_the_hardware_address_of_a_host() {
        let found = parse_neighbor("198.18.0.2=0A:0b:0c:0d:0e:0f").unwrap().entry();
        assert_eq!(found.mac, [10, 11, 12, 13, 14, 15]);
        for wrong in [
            "198.18.0.2",
            "198.18.0.2=02:00:00:00:00",
            "198.18.0.2=0A:b:c:d:e:f",
            "198.18.0.2=01:00:5e:00:00:01",
            "127.0.0.1=02:00:00:00:00:02",
        ] {
            assert!(parse_neighbor(wrong).is_err(), "{wrong}");
        }
    }
}
