//! Network options: local addresses, routes and neighbors.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{anyhow, ensure};
use clap::Args;
use ferrowarp::cm::dscp_of_tos;
use ferrowarp::device::DeviceSpec;
use ferrowarp::{Config, InterfaceAddress, Route, StaticNeighbor};
use ferrowarp_settings::address::{
    Cidr, Neighbor, Router, Zoned, parse_local, parse_neighbor, parse_route, parse_router,
};

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
    /// Default gateway, with the MTU of its route if that is less than --mtu: 198.18.0.254 or
    /// 198.18.0.254,mtu=1400; one for each address family.
    #[arg(long = "gateway", value_name = "ADDRESS[,mtu=N]", value_parser = parse_router)]
    pub gateways: Vec<Router>,
    /// Static route: --route 203.0.113.0/24 via 198.18.0.254[,mtu=N]; may be given several times,
    /// the longest prefix match counts.
    #[arg(long = "route", num_args = 3, value_names = ["DEST/LEN", "via", "HOP"])]
    pub routes: Vec<String>,
    /// Hardware address of a host or router on the link, which is not asked for it by ARP or
    /// neighbor discovery: 198.18.0.2=02:00:00:00:00:02; may be given several times.
    #[arg(long = "neighbor", value_name = "ADDRESS=MAC", value_parser = parse_neighbor)]
    pub neighbors: Vec<Neighbor>,
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

/// Checks that the zone of an address is that of the device, which is one link.
///
/// # Errors
/// A sentence that states the remedy.
pub fn check_zone(address: &Zoned, device: &DeviceSpec) -> Result<(), String> {
    let Zoned { ip, zone: Some(zone) } = address else { return Ok(()) };
    let Some(interface) = device.interface() else {
        return Err(format!("write {ip} without %{zone}: {device} is one link without a zone"));
    };
    let is_index = || zone.parse().is_ok_and(|index: u32| device.interface_index() == Some(index));
    if zone == interface || is_index() {
        return Ok(());
    }
    Err(format!("{ip}%{zone} is on another link: {device} has the zone %{interface}"))
}

/// Parses a type-of-service byte, and returns its DSCP.
fn parse_tos(text: &str) -> Result<u8, String> {
    let digits = text.strip_prefix("0x");
    let parsed = digits.map_or_else(|| text.parse(), |digits| u8::from_str_radix(digits, 16));
    let tos = parsed.map_err(|_| "give a multiple of 4, 0 to 252, such as 0xb8".to_owned())?;
    dscp_of_tos(tos).map_err(|error| error.to_string())
}

impl NetworkArgs {
    /// Returns the local addresses.
    ///
    /// # Errors
    /// If none was given.
    pub fn addresses(&self) -> anyhow::Result<Vec<InterfaceAddress>> {
        ensure!(!self.addresses.is_empty(), "give the local address: --address 198.18.0.1/24");
        Ok(self.addresses.iter().map(Cidr::on_interface).collect())
    }

    /// Sets VLAN, neighbors, DSCP and time to live of a configuration.
    pub fn apply_to(&self, config: &mut Config) {
        config.vlan = self.vlan;
        config.neighbors = self.neighbors();
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

    /// Checks the zones of addresses, neighbors and gateways.
    ///
    /// # Errors
    /// If one is that of another link than the device.
    pub fn check_zones(&self, device: &DeviceSpec) -> anyhow::Result<()> {
        let given = self.addresses.iter().map(|cidr| &cidr.address);
        let neighbors = self.neighbors.iter().map(|neighbor| &neighbor.address);
        let gateways = self.gateways.iter().map(|router| &router.address);
        let mut addresses = given.chain(neighbors).chain(gateways);
        addresses
            .try_for_each(|address| check_zone(address, device))
            .map_err(|error| anyhow!(error))
    }

    /// Returns the routes, default routes included.
    ///
    /// # Errors
    /// If one is malformed, mixes address families or leads to another link than the device's.
    pub fn routes(&self, device: &DeviceSpec) -> anyhow::Result<Vec<Route>> {
        let default = |router: &Router| match router.address.ip {
            IpAddr::V4(_) => router.route(Ipv4Addr::UNSPECIFIED.into(), 0),
            IpAddr::V6(_) => router.route(Ipv6Addr::UNSPECIFIED.into(), 0),
        };
        let mut routes: Vec<Route> = self.gateways.iter().map(default).collect();
        for words in self.routes.chunks(3) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let hop = parse_route(&words).and_then(|hop| {
                check_zone(&hop.router.address, device)?;
                Ok(hop)
            });
            let hop = hop.map_err(|error| anyhow!("--route {}: {error}", words.join(" ")))?;
            routes.push(hop.route());
        }
        Ok(routes)
    }

    /// Returns the neighbors.
    #[must_use]
    fn neighbors(&self) -> Vec<StaticNeighbor> {
        self.neighbors.iter().map(Neighbor::entry).collect()
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
    fn addresses_that_no_host_has_are_rejected() {
        for (text, reason) in [
            ("::ffff:198.18.0.1", "write the IPv4 address as 198.18.0.1"),
            ("2001:2::1%eth0", "only a link-local address has a zone"),
            ("fe80::1%", "only a link-local address has a zone"),
            ("0.0.0.0", "unspecified"),
            ("::", "unspecified"),
            ("127.0.0.1", "loopback"),
            ("::1", "loopback"),
            ("224.0.0.1", "multicast"),
            ("ff02::1", "multicast"),
            ("255.255.255.255", "reserved"),
            ("0.1.2.3", "reserved"),
        ] {
            let error = text.parse::<crate::host::Host>().unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn addresses_gateways_and_routes_are_parsed() {
        let line = "--address 198.18.0.1/24 --ip 2001:2::1/64 --gateway 198.18.0.254 \
                    --route 203.0.113.0/24 via 198.18.0.253 --vlan 7 \
                    --gateway fe80::1 --route 2001:db8::/32 via 2001:2::fe";
        let device: DeviceSpec = "tap:tap0".parse().unwrap();
        let args = parse(line).unwrap();
        assert_eq!(args.addresses().unwrap().len(), 2);
        assert_eq!(args.vlan, Some(7));
        let routes: Vec<String> = args
            .routes(&device)
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
            assert!(parse(wrong).unwrap().routes(&device).is_err(), "{wrong}");
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
    fn routes_have_mtus_and_neighbors_hardware_addresses() {
        let device: DeviceSpec = "tap:tap0".parse().unwrap();
        let line = "--gateway 198.18.0.254,mtu=1400 --gateway fe80::fe%tap0 \
                    --route 203.0.113.0/24 via 198.18.0.253,mtu=576 \
                    --neighbor 198.18.0.2=02:00:00:00:00:02 --neighbor fe80::2%tap0=0A:b:c:d:e:f";
        assert!(parse(line).is_err(), "two digits each");
        let line = line.replace("0A:b:c:d:e:f", "0A:0b:0c:0d:0e:0f");
        let args = parse(&line).unwrap();
        let mtus: Vec<_> = args.routes(&device).unwrap().iter().map(|route| route.mtu).collect();
        assert_eq!(mtus, [Some(1400), None, Some(576)]);
        let macs: Vec<_> = args.neighbors().iter().map(|neighbor| neighbor.mac).collect();
        assert_eq!(macs, [[2, 0, 0, 0, 0, 2], [10, 11, 12, 13, 14, 15]]);
        args.check_zones(&device).unwrap();
        let other = "tap:tap1".parse().unwrap();
        let error = args.check_zones(&other).unwrap_err().to_string();
        assert_eq!(error, "fe80::2%tap0 is on another link: tap:tap1 has the zone %tap1");
        for wrong in [
            "--gateway 198.18.0.254,mtu=575",
            "--gateway 2001:2::fe,mtu=1279",
            "--gateway 198.18.0.254,1400",
            "--neighbor 198.18.0.2",
            "--neighbor 198.18.0.2=02:00:00:00:00",
            "--neighbor 127.0.0.1=02:00:00:00:00:02",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    /// The kinds of devices that the settings of verbs programs accept.
    #[test]
    fn devices_of_settings_are_devices() {
        for kind in ferrowarp_settings::DEVICE_KINDS {
            let argument = if kind == "pci" { "0000:01:00.0" } else { "x" };
            let device: DeviceSpec = format!("{kind}:{argument}").parse().unwrap();
            assert!(!device.is_pair(), "{device}");
        }
    }
}
