//! Network options: local addresses, routes, and the peer.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use anyhow::{anyhow, ensure};
use clap::Args;
use ferrowarp::cm::dscp_of_tos;
use ferrowarp::{Config, InterfaceAddress, Route};

/// Addresses of client and server of a pair in one process (benchmark ranges).
const LOOP_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)];
const LOOP_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2)];

/// Local addresses, routes and VLAN.
#[derive(Clone, Debug, Args)]
pub struct NetworkArgs {
    /// Local address and prefix length, such as 198.18.0.1/24 or 2001:2::1/64; may be given several
    /// times.
    #[arg(
        long = "address",
        visible_alias = "ip",
        value_name = "ADDRESS/LEN",
        value_parser = parse_local
    )]
    pub addresses: Vec<Cidr>,
    /// Default gateway; one for each address family.
    #[arg(long = "gateway", value_name = "ADDRESS", value_parser = parse_router)]
    pub gateways: Vec<IpAddr>,
    /// Static route: --route 203.0.113.0/24 via 198.18.0.254; may be given several times, the
    /// longest prefix match counts.
    #[arg(long = "route", num_args = 3, value_names = ["DEST/LEN", "via", "HOP"])]
    pub routes: Vec<String>,
    /// VLAN ID of all frames (802.1Q).
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(1..=4094))]
    pub vlan: Option<u16>,
    /// DSCP of all segments, 0 to 63, by which routers and switches give a class of service
    /// [default: 0].
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=63))]
    pub dscp: Option<u8>,
    /// The same as the whole type-of-service byte, as perftest has it: four times the DSCP.
    #[arg(long, value_name = "BYTE", value_parser = parse_tos, conflicts_with = "dscp")]
    pub tos: Option<u8>,
    /// Time to live of all segments, over IPv6 hop limit: routers on the path at most, and one
    /// [default: 64].
    #[arg(long, value_name = "HOPS", value_parser = clap::value_parser!(u8).range(1..))]
    pub ttl: Option<u8>,
    /// Uses IPv6 in loop mode.
    #[arg(short = '6', long, conflicts_with = "addresses")]
    pub ipv6: bool,
}

/// An address and its prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// The address.
    pub address: IpAddr,
    /// Prefix length in bits.
    pub len: u8,
}

/// Parses an address and a prefix length.
fn parse_cidr(text: &str) -> Result<Cidr, String> {
    let example = || "give an address and a prefix length, such as 198.18.0.1/24".to_owned();
    let (address, len) = text.split_once('/').ok_or_else(example)?;
    let address = parse_ip(address)?.ok_or_else(example)?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    if len.is_empty() || !len.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(example());
    }
    match len.parse() {
        Ok(len) if len <= most => Ok(Cidr { address, len }),
        _ => Err(format!("the prefix is too long: give 0 to {most} bits")),
    }
}

/// Parses a local address and its prefix length.
fn parse_local(text: &str) -> Result<Cidr, String> {
    let cidr = parse_cidr(text)?;
    check_host(cidr.address)?;
    let address = InterfaceAddress { ip: cidr.address, prefix_len: cidr.len };
    if !address.is_host() {
        return Err("it is the address of the whole link: give one of a host on it".to_owned());
    }
    Ok(cidr)
}

/// Parses the address of a router.
fn parse_router(text: &str) -> Result<IpAddr, String> {
    let ip = parse_ip(text)?.ok_or("give an address, such as 198.18.0.254")?;
    check_host(ip).map(|()| ip)
}

/// Parses a type-of-service byte, and returns its DSCP.
fn parse_tos(text: &str) -> Result<u8, String> {
    let digits = text.strip_prefix("0x");
    let parsed = digits.map_or_else(|| text.parse(), |digits| u8::from_str_radix(digits, 16));
    let tos = parsed.map_err(|_| "give a multiple of 4, 0 to 252, such as 0xb8".to_owned())?;
    dscp_of_tos(tos).map_err(|error| error.to_string())
}

/// Parses an address; `None` if it is none.
fn parse_ip(text: &str) -> Result<Option<IpAddr>, String> {
    if let Some((address, zone)) = text.split_once('%')
        && address.parse::<Ipv6Addr>().is_ok()
    {
        return Err(format!("write {address} without %{zone}: --dev names the link"));
    }
    Ok(text.parse().ok())
}

/// Refuses an address that no other host can have.
fn check_host(ip: IpAddr) -> Result<(), String> {
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

impl NetworkArgs {
    /// Returns the local addresses.
    ///
    /// # Errors
    /// If none was given.
    pub fn addresses(&self) -> anyhow::Result<Vec<InterfaceAddress>> {
        ensure!(!self.addresses.is_empty(), "give the local address: --address 198.18.0.1/24");
        let address = |cidr: &Cidr| InterfaceAddress { ip: cidr.address, prefix_len: cidr.len };
        Ok(self.addresses.iter().map(address).collect())
    }

    /// Sets VLAN, DSCP and time to live of a configuration.
    pub fn apply_to(&self, config: &mut Config) {
        config.vlan = self.vlan;
        config.dscp = self.dscp.or(self.tos).unwrap_or(config.dscp);
        config.ttl = self.ttl.unwrap_or(config.ttl);
    }

    /// Returns an address of a pair: 0 is the client, 1 the server.
    #[must_use]
    pub fn loop_address(&self, end: usize) -> InterfaceAddress {
        if self.ipv6 {
            InterfaceAddress { ip: LOOP_V6[end].into(), prefix_len: 64 }
        } else {
            InterfaceAddress { ip: LOOP_V4[end].into(), prefix_len: 24 }
        }
    }

    /// Returns the routes, default routes included.
    ///
    /// # Errors
    /// If a route is malformed or mixes address families.
    pub fn routes(&self) -> anyhow::Result<Vec<Route>> {
        let mut routes: Vec<Route> =
            self.gateways.iter().map(|&via| Route::default_via(via)).collect();
        for words in self.routes.chunks(3) {
            let route = parse_route(words)
                .map_err(|error| anyhow!("--route {}: {error}", words.join(" ")))?;
            routes.push(route);
        }
        Ok(routes)
    }
}

/// Parses `DEST/LEN`, `via`, `HOP`.
fn parse_route(words: &[String]) -> Result<Route, String> {
    let form = || "give DEST/LEN via HOP, both of one family".to_owned();
    let [destination, via, gateway] = words else { return Err(form()) };
    if via != "via" {
        return Err(form());
    }
    let (destination, gateway) = (parse_cidr(destination)?, parse_router(gateway)?);
    if destination.address.is_ipv4() != gateway.is_ipv4() {
        return Err(form());
    }
    Ok(Route::new(destination.address, destination.len, gateway))
}

/// A peer: an address, `198.18.0.1` or `2001:2::1`, or with a port, `198.18.0.1:4420` or
/// `[2001:2::1]:4420`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// The address.
    pub ip: IpAddr,
    /// The port, if given.
    pub port: Option<u16>,
}

impl Host {
    /// Returns the peer's socket address, with `port` unless it has its own.
    #[must_use]
    pub fn socket(self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, self.port.unwrap_or(port))
    }
}

impl From<SocketAddr> for Host {
    fn from(socket: SocketAddr) -> Self {
        Self { ip: socket.ip(), port: Some(socket.port()) }
    }
}

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        let host = match parse_ip(bare)? {
            Some(ip) => Self { ip, port: None },
            None => text.parse::<SocketAddr>().map(Self::from).map_err(|_| {
                match text.split_once('%') {
                    Some((address, _)) if address.starts_with('[') => {
                        format!("write {address}] without a zone: --dev names the link")
                    }
                    _ => "give an address, such as 198.18.0.1 or [2001:2::1]:4420".to_owned(),
                }
            })?,
        };
        if host.port == Some(0) {
            return Err("no server listens on port 0: give 1 to 65535".to_owned());
        }
        check_host(host.ip).map(|()| host)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.ip, port).fmt(f),
            None => self.ip.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        network: NetworkArgs,
    }

    fn parse(line: &str) -> Result<NetworkArgs, clap::Error> {
        let words = ["x"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.network)
    }

    #[test]
    fn prefix_longer_than_address_is_rejected() {
        let parsed = parse_cidr("198.18.0.1/24").unwrap();
        assert_eq!((parsed.address.to_string().as_str(), parsed.len), ("198.18.0.1", 24));
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
            ("fe80::1%eth0", "write fe80::1 without %eth0"),
            ("0.0.0.0", "unspecified"),
            ("::", "unspecified"),
            ("127.0.0.1", "loopback"),
            ("::1", "loopback"),
            ("224.0.0.1", "multicast"),
            ("ff02::1", "multicast"),
            ("255.255.255.255", "reserved"),
            ("0.1.2.3", "reserved"),
        ] {
            for error in [
                text.parse::<Host>().unwrap_err(),
                parse_router(text).unwrap_err(),
                parse_local(&format!("{text}/32")).unwrap_err(),
            ] {
                assert!(error.contains(reason), "{text}: {error}");
            }
        }
        let zone = "[fe80::1%eth0]:4420".parse::<Host>().unwrap_err();
        assert_eq!(zone, "write [fe80::1] without a zone: --dev names the link");
        for link in ["198.18.0.255/24", "198.18.0.0/24", "2001:2::/64"] {
            assert!(parse_local(link).unwrap_err().contains("whole link"), "{link}");
        }
        for host in ["198.18.0.255/16", "198.18.0.0/31", "198.18.0.1/32", "fe80::1/64"] {
            assert!(parse_local(host).is_ok(), "{host}");
        }
    }

    #[test]
    fn addresses_gateways_and_routes_are_parsed() {
        let line = "--address 198.18.0.1/24 --ip 2001:2::1/64 --gateway 198.18.0.254 \
                    --route 203.0.113.0/24 via 198.18.0.253 --vlan 7 \
                    --gateway fe80::1 --route 2001:db8::/32 via 2001:2::fe";
        let args = parse(line).unwrap();
        assert_eq!(args.addresses().unwrap().len(), 2);
        assert_eq!(args.vlan, Some(7));
        let routes: Vec<String> = args
            .routes()
            .unwrap()
            .iter()
            .map(|route| format!("{}/{} {}", route.destination, route.prefix_len, route.via))
            .collect();
        let expected = [
            "0.0.0.0/0 198.18.0.254",
            "::/0 fe80::1",
            "203.0.113.0/24 198.18.0.253",
            "2001:db8::/32 2001:2::fe",
        ];
        assert_eq!(routes, expected);
        assert!(parse("").unwrap().addresses().is_err());
        for wrong in [
            "--route 203.0.113.0/24 by 198.18.0.253",
            "--route 203.0.113.0 via 198.18.0.253",
            "--route 203.0.113.0/24 via 2001:2::1",
        ] {
            assert!(parse(wrong).unwrap().routes().is_err(), "{wrong}");
        }
        for wrong in ["--route 203.0.113.0/24", "--vlan 0", "--vlan 4095", "--gateway x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn dscp_and_ttl_reach_the_configuration() {
        let config = |line: &str| {
            let local = "198.18.0.1".parse().unwrap();
            let mut config = Config::new(ferrowarp::device::DeviceSpec::Ring, local, 24);
            parse(line).unwrap().apply_to(&mut config);
            (config.dscp, config.ttl, config.vlan)
        };
        assert_eq!(config(""), (0, 64, None));
        assert_eq!(config("--dscp 46 --ttl 1 --vlan 7"), (46, 1, Some(7)));
        for tos in ["184", "0xb8"] {
            assert_eq!(config(&format!("--tos {tos} --ttl 255")), (46, 255, None));
        }
        for wrong in [
            "--dscp 64",
            "--ttl 0",
            "--ttl 256",
            "--tos 185",
            "--tos 256",
            "--tos 0x",
            "--tos x",
            "--tos 0 --dscp 0",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn host_accepts_optional_port() {
        let socket = |text: &str| text.parse::<Host>().map(|host| host.socket(7).to_string());
        for (text, expected) in [
            ("198.18.0.1", "198.18.0.1:7"),
            ("198.18.0.1:80", "198.18.0.1:80"),
            ("2001:2::1", "[2001:2::1]:7"),
            ("[2001:2::1]", "[2001:2::1]:7"),
            ("[2001:2::1]:80", "[2001:2::1]:80"),
        ] {
            assert_eq!(socket(text).as_deref(), Ok(expected));
            assert_eq!(text.parse::<Host>().unwrap().socket(7).to_string(), expected);
        }
        for wrong in ["", "host.name", "198.18.0.1:0", "[2001:2::1", "198.18.0.1:x", "2::1:x"] {
            assert!(socket(wrong).is_err(), "{wrong}");
        }
    }
}
