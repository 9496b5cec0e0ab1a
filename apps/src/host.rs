//! Peer of a client: an address or a host name, optionally with a port.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use anyhow::{anyhow, ensure};
use ferrowarp::Config;
use ferrowarp_settings::address::{Zoned, check_host, parse_ip};

use crate::network::check_zone;

/// A peer: an address, `198.18.0.1` or `2001:2::1`, or a name, `db1`; with a port, `db1:4420` or
/// `[2001:2::1]:4420`. A name is resolved as it is parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The text without the port.
    name: String,
    /// Addresses of it, the preferred one first. At least one.
    candidates: Vec<Zoned>,
    /// The port, if given.
    port: Option<u16>,
}

impl Host {
    /// Parses the text; `resolve` returns the addresses of a name.
    fn parse_with(
        text: &str,
        resolve: impl FnOnce(&str) -> io::Result<Vec<IpAddr>>,
    ) -> Result<Self, String> {
        let (name, port) = split_port(text)?;
        if let Some(address) = parse_ip(name)? {
            check_host(address.ip)?;
            let name = name.to_owned();
            return Ok(Self { name, candidates: vec![address], port });
        }
        if !is_host_name(name) {
            let form =
                "give an address or a host name, such as 198.18.0.1, [2001:2::1]:4420 or db1";
            return Err(form.to_owned());
        }
        let found = resolve(name).map_err(|error| format!("no address of {name}: {error}"))?;
        let mut candidates: Vec<Zoned> = Vec::new();
        for ip in found.iter().map(IpAddr::to_canonical).filter(|&ip| check_host(ip).is_ok()) {
            let candidate = Zoned { ip, zone: None };
            if !candidates.contains(&candidate) {
                candidates.push(candidate);
            }
        }
        if candidates.is_empty() {
            let found = listed(&found);
            return Err(format!("{name} is {found}: no host on a link has such an address"));
        }
        Ok(Self { name: name.to_owned(), candidates, port })
    }

    /// Returns the address to connect to: the first that the configuration reaches. `port` is used
    /// unless the peer has its own.
    ///
    /// # Errors
    /// If it reaches none; the message has all that were tried.
    pub fn socket(&self, config: &Config, port: u16) -> anyhow::Result<SocketAddr> {
        let port = self.port.unwrap_or(port);
        let is_own = |ip| config.addresses.iter().any(|own| own.ip == ip);
        let reached = |peer: &&Zoned| !is_own(peer.ip) && config.source_to(peer.ip).is_some();
        if let Some(peer) = self.candidates.iter().find(reached) {
            check_zone(peer, &config.device).map_err(|error| anyhow!("{error}"))?;
            return Ok(SocketAddr::new(peer.ip, port));
        }
        let tried: Vec<IpAddr> = self.candidates.iter().map(|peer| peer.ip).collect();
        let who = match &tried[..] {
            [ip] if self.name.parse() == Ok(*ip) => self.name.clone(),
            ips => format!("{} ({})", self.name, listed(ips)),
        };
        let has_other = tried.iter().any(|&ip| !is_own(ip));
        ensure!(
            has_other,
            "{who} is an address of this end, and the server is another program: give its address"
        );
        Err(anyhow!(
            "{who} cannot be reached: give an --address with a prefix that contains it as a host, \
             or a --gateway"
        ))
    }
}

/// Splits off the port.
fn split_port(text: &str) -> Result<(&str, Option<u16>), String> {
    let (name, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, "")) => (address, None),
        Some((address, rest)) => {
            let port = rest.strip_prefix(':').ok_or("give the port as [2001:2::1]:4420")?;
            (address, Some(port))
        }
        // More than one colon: an IPv6 address.
        None => match text.split_once(':') {
            Some((name, port)) if !port.contains(':') => (name, Some(port)),
            _ => (text, None),
        },
    };
    let Some(port) = port else { return Ok((name, None)) };
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse() {
        Ok(0) => Err("no server listens on port 0: give 1 to 65535".to_owned()),
        Ok(port) if is_number => Ok((name, Some(port))),
        _ => Err(format!("{port:?} is no port: give 1 to 65535")),
    }
}

/// True for a name as in a hosts file or in the DNS: labels of letters, digits, hyphens and
/// underscores, not all of digits.
fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    name.len() <= 253
        && name.strip_suffix('.').unwrap_or(name).split('.').all(is_label)
        && name.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// Returns the addresses of a name as the C library finds them: in /etc/hosts, the DNS, or wherever
/// /etc/nsswitch.conf says.
fn resolve(name: &str) -> io::Result<Vec<IpAddr>> {
    Ok((name, 0).to_socket_addrs()?.map(|socket| socket.ip()).collect())
}

/// Returns a list of addresses.
fn listed(ips: &[IpAddr]) -> String {
    ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}

impl From<SocketAddr> for Host {
    fn from(socket: SocketAddr) -> Self {
        let candidates = vec![Zoned { ip: socket.ip(), zone: None }];
        Self { name: socket.ip().to_string(), candidates, port: Some(socket.port()) }
    }
}

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse_with(text, resolve)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, port, .. } = self;
        match port {
            Some(port) if name.contains(':') => write!(f, "[{name}]:{port}"),
            Some(port) => write!(f, "{name}:{port}"),
            None => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use ferrowarp::{InterfaceAddress, Route};

    use super::*;

    fn config() -> Config {
        Config::new("tap:tap7".parse().unwrap(), "198.18.0.1".parse().unwrap(), 24)
            .address(InterfaceAddress { ip: "2001:2::1".parse().unwrap(), prefix_len: 64 })
            .address(InterfaceAddress { ip: "fe80::1".parse().unwrap(), prefix_len: 64 })
    }

    /// Parses with these addresses for every name.
    fn parse(text: &str, found: &[&str]) -> Result<Host, String> {
        let found = found.iter().map(|ip| ip.parse().unwrap()).collect();
        Host::parse_with(text, |_| Ok(found))
    }

    fn chosen(text: &str, found: &[&str]) -> Result<String, String> {
        let socket = parse(text, found)?.socket(&config(), 7);
        socket.map(|socket| socket.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn port_is_optional() {
        for (text, expected) in [
            ("198.18.0.2", "198.18.0.2:7"),
            ("198.18.0.2:80", "198.18.0.2:80"),
            ("2001:2::2", "[2001:2::2]:7"),
            ("[2001:2::2]", "[2001:2::2]:7"),
            ("[2001:2::2]:80", "[2001:2::2]:80"),
            ("fe80::2%tap7", "[fe80::2]:7"),
            ("[fe80::2%tap7]:80", "[fe80::2]:80"),
        ] {
            assert_eq!(chosen(text, &[]).as_deref(), Ok(expected));
            let shown = text.parse::<Host>().unwrap().to_string();
            assert_eq!(shown, if text == "[2001:2::2]" { "2001:2::2" } else { text });
        }
        let wrong = ["", "198.18.0.2:0", "[2001:2::2", "198.18.0.2:x", "2::1:x", "db/1", "-db1"];
        for wrong in wrong.into_iter().chain(["db1:", "db1:+80", "db1:65536", "1.2.3", "a..b"]) {
            assert!(parse(wrong, &["198.18.0.2"]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reached_address_of_a_name_is_chosen() {
        let found = ["192.0.2.9", "127.0.1.1", "198.18.0.1", "2001:2::9", "198.18.0.9"];
        assert_eq!(chosen("db1", &found).as_deref(), Ok("[2001:2::9]:7"));
        assert_eq!(chosen("db1.example.:80", &found[4..]).as_deref(), Ok("198.18.0.9:80"));
        assert_eq!(chosen("db1", &["::ffff:198.18.0.9"]).as_deref(), Ok("198.18.0.9:7"));
        let error = chosen("db1", &found[..3]).unwrap_err();
        assert!(error.starts_with("db1 (192.0.2.9, 198.18.0.1) cannot be reached"), "{error}");
        let error = chosen("db1", &["127.0.0.1", "::1"]).unwrap_err();
        assert_eq!(error, "db1 is 127.0.0.1, ::1: no host on a link has such an address");
        let error = chosen("db1", &["198.18.0.1"]).unwrap_err();
        assert_eq!(
            error,
            "db1 (198.18.0.1) is an address of this end, and the server is another program: give \
             its address"
        );
        let unknown = Host::parse_with("db1", |_| Err(io::Error::other("unknown"))).unwrap_err();
        assert_eq!(unknown, "no address of db1: unknown");
        let routed = config().route(Route::default_via("198.18.0.254".parse().unwrap()));
        let host = parse("db1", &found).unwrap();
        assert_eq!(host.socket(&routed, 7).unwrap().to_string(), "192.0.2.9:7");
    }

    /// The hosts file has this name on every system.
    #[test]
    fn names_of_the_hosts_file_are_resolved() {
        let error = "localhost".parse::<Host>().unwrap_err();
        assert!(error.starts_with("localhost is "), "{error}");
    }

    #[test]
    fn zone_is_that_of_the_device() {
        let other = chosen("fe80::2%eth0", &[]).unwrap_err();
        assert_eq!(other, "fe80::2%eth0 is on another link: tap:tap7 has the zone %tap7");
        let index = chosen("fe80::2%4294967295", &[]).unwrap_err();
        assert!(index.ends_with("has the zone %tap7"), "{index}");
        let global = chosen("2001:2::2%tap7", &[]).unwrap_err();
        assert!(global.contains("write 2001:2::2"), "{global}");
        let mut memif = config();
        memif.device = "memif:/tmp/fw.sock".parse().unwrap();
        let error = parse("fe80::2%tap7", &[]).unwrap().socket(&memif, 7).unwrap_err();
        let expected = "write fe80::2 without %tap7: memif:/tmp/fw.sock is one link without a zone";
        assert_eq!(error.to_string(), expected);
    }
}
