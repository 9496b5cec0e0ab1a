//! Options of servers: the address on which they listen.

use anyhow::{anyhow, ensure};
use clap::Args;
use ferrowarp::{Config, ListenAddr};
use ferrowarp_settings::address::{Zoned, check_host, parse_ip};

use crate::network::check_zone;

/// Address on which a server listens.
#[derive(Clone, Debug, Default, Args)]
pub struct ListenArgs {
    /// Listens on this local address alone: others get no answer but a reset. 0.0.0.0 and :: are
    /// all of one family [default: all addresses].
    #[arg(
        long,
        value_name = "ADDRESS",
        visible_alias = "bind_source_ip",
        value_parser = parse_bind
    )]
    pub bind: Option<Zoned>,
}

impl ListenArgs {
    /// The address with a port.
    #[must_use]
    pub fn on_port(&self, port: u16) -> ListenAddr {
        self.bind.as_ref().map_or(port.into(), |address| (address.ip, port).into())
    }

    /// Checks that a context of this configuration has the address.
    ///
    /// # Errors
    /// If it has not, or the zone is that of another link.
    pub fn check(&self, config: &Config) -> anyhow::Result<()> {
        let Some(address) = &self.bind else { return Ok(()) };
        let ip = address.ip;
        let is_covered = config
            .addresses
            .iter()
            .any(|own| own.ip == ip || (ip.is_unspecified() && own.ip.is_ipv4() == ip.is_ipv4()));
        ensure!(is_covered, "--bind {ip}: give an address that --address has, or omit it");
        check_zone(address, &config.device).map_err(|error| anyhow!("--bind: {error}"))
    }
}

/// Names what a server listens on: a port, or the port of an address.
#[must_use]
pub fn place(addr: ListenAddr) -> String {
    match addr.ip() {
        None => format!("port {}", addr.port()),
        Some(_) => addr.to_string(),
    }
}

/// Parses a local address, or all of one family.
fn parse_bind(text: &str) -> Result<Zoned, String> {
    let form = "give a local address, such as 198.18.0.1, or 0.0.0.0 or ::";
    let address = parse_ip(text)?.ok_or(form)?;
    if !address.ip.is_unspecified() {
        check_host(address.ip)?;
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use ferrowarp::InterfaceAddress;

    use super::*;

    fn check(bind: &str, addresses: &[&str]) -> Result<String, String> {
        let listen = ListenArgs { bind: Some(parse_bind(bind)?) };
        let ips: Vec<IpAddr> = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
        let mut config = Config::new("tap:tap0".parse().unwrap(), ips[0], 24);
        config.addresses = ips.iter().map(|&ip| InterfaceAddress { ip, prefix_len: 24 }).collect();
        listen.check(&config).map_err(|error| error.to_string())?;
        Ok(place(listen.on_port(4791)))
    }

    #[test]
    fn server_listens_on_an_address_that_it_has() {
        let addresses = ["198.18.0.1", "fe80::1"];
        for (bind, expected) in [
            ("198.18.0.1", "198.18.0.1:4791"),
            ("fe80::1", "[fe80::1]:4791"),
            ("fe80::1%tap0", "[fe80::1]:4791"),
            ("0.0.0.0", "0.0.0.0:4791"),
            ("::", "[::]:4791"),
        ] {
            assert_eq!(check(bind, &addresses).as_deref(), Ok(expected));
        }
        assert_eq!(place(ListenArgs::default().on_port(4791)), "port 4791");
        for (bind, reason) in [
            ("198.18.0.2", "--bind 198.18.0.2: give an address that --address has, or omit it"),
            ("fe80::1%tap1", "fe80::1%tap1 is on another link"),
            ("198.18.0.1%tap0", "give a local address"),
            ("db1", "give a local address"),
            ("127.0.0.1", "loopback"),
            ("::ffff:198.18.0.1", "write the IPv4 address as 198.18.0.1"),
        ] {
            let error = check(bind, &addresses).unwrap_err();
            assert!(error.contains(reason), "{bind}: {error}");
        }
        assert!(check("::", &addresses[..1]).is_err(), "it has no address of the family");
    }
}
