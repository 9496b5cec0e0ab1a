//! The options that say where a program runs, the same for all of them.

use std::net::IpAddr;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use ferrowarp::device::DeviceSpec;
use ferrowarp::{Config, Context, DriveMode};

use crate::machine::Placement;

/// Address of the end that connects, when both are in this process (benchmark range).
const LOOP_CLIENT: Cidr =
    Cidr { address: IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 0, 1)), len: 24 };
/// Address of the end that listens.
const LOOP_SERVER: Cidr =
    Cidr { address: IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 0, 2)), len: 24 };

/// Frames for full windows of more connections than this are not set aside: they share.
const WINDOWS_MAX: u32 = 64;

/// Where.
#[derive(Clone, Debug, Args)]
pub struct DeviceArgs {
    /// DPDK port: ring (both ends in one process), memif:SOCKET[,server|client], tap:NAME,
    /// af_packet:IFACE, af_xdp:IFACE, pci:BDF, or eal:ARGS.
    #[arg(long, default_value = "ring", value_name = "DEVICE")]
    pub dev: String,
    /// Address of this end and length of its prefix, such as 198.18.0.1/24.
    #[arg(long, value_name = "ADDRESS/LEN", value_parser = cidr)]
    pub ip: Option<Cidr>,
    /// Router towards other networks.
    #[arg(long, value_name = "ADDRESS")]
    pub gateway: Option<IpAddr>,
    /// Octets of the largest IP packet.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(576..=9000))]
    pub mtu: u16,
    /// TCP and IP checksums also where the device does not need them.
    #[arg(long)]
    pub checksum: bool,
    /// Cores to pin the ends to: A,B for one each, A for both on one.
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    pub cores: Vec<usize>,
}

/// An address and the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// The address.
    pub address: IpAddr,
    /// Bits of the prefix.
    pub len: u8,
}

fn cidr(text: &str) -> Result<Cidr, String> {
    let parse = || {
        let (address, len) = text.split_once('/')?;
        let (address, len): (IpAddr, u8) = (address.parse().ok()?, len.parse().ok()?);
        let most = if address.is_ipv4() { 32 } else { 128 };
        (len <= most).then_some(Cidr { address, len })
    };
    parse().ok_or_else(|| "give an address and a prefix length, such as 198.18.0.1/24".to_owned())
}

impl DeviceArgs {
    fn config(&self, cidr: Cidr, connections: u16) -> anyhow::Result<Config> {
        let device: DeviceSpec = self.dev.parse().map_err(|error| anyhow!("--dev: {error}"))?;
        let mut config = Config::new(device, cidr.address, cidr.len);
        config.gateway = self.gateway;
        config.mtu = self.mtu;
        config.checksum = self.checksum;
        config.drive = DriveMode::Inline;
        let windows = u32::from(connections).clamp(config.pools.windows, WINDOWS_MAX);
        config.pools.windows = windows;
        Ok(config)
    }

    /// Who makes TCP and IP checksums: `none` needs to on `ring`, which is memory; elsewhere it
    /// is `software`.
    #[must_use]
    pub fn checksum_kind(&self) -> &'static str {
        if self.dev == "ring" && !self.checksum { "none" } else { "software" }
    }

    /// Opens one end on the device, for as many connections that are busy at a time.
    ///
    /// # Errors
    /// If the device is missing or of no use here, or `--ip` is.
    pub fn open(&self, connections: u16) -> anyhow::Result<Context> {
        if self.dev == "ring" {
            bail!("ring joins two ends of one process: use loop, or --dev memif:/tmp/iwarp.sock");
        }
        let cidr = self.ip.context("give this end an address: --ip 198.18.0.1/24")?;
        // The error names the device and says what to do; its causes would say it again.
        Context::open(self.config(cidr, connections)?).map_err(|error| anyhow!("{error}"))
    }

    /// Opens both ends in this process, for as many busy connections: first the one that
    /// connects, then the one that listens.
    ///
    /// # Errors
    /// If the device cannot join two ends of one process.
    pub fn open_pair(&self, connections: u16) -> anyhow::Result<(Context, Context)> {
        if self.dev != "ring" {
            bail!("loop runs over ring: leave --dev away, or start a server and a client");
        }
        let (left, right) =
            (self.config(LOOP_CLIENT, connections)?, self.config(LOOP_SERVER, connections)?);
        Context::ring_pair(left, right).map_err(|error| anyhow!("{error}"))
    }

    /// Address of the listening end of a pair.
    #[must_use]
    pub const fn loop_server() -> IpAddr {
        LOOP_SERVER.address
    }

    /// Where the two ends of a pair run.
    ///
    /// # Errors
    /// If `--cores` is wrong.
    pub fn placement(&self) -> anyhow::Result<Placement> {
        Placement::from_cores(&self.cores)
    }

    /// Pins the calling thread to the only core of `--cores`, if there is one. Returns it.
    ///
    /// # Errors
    /// If `--cores` is wrong.
    pub fn pin_single(&self) -> anyhow::Result<Vec<usize>> {
        if self.cores.is_empty() {
            return Ok(Vec::new());
        }
        let Placement::Together(core) = self.placement()? else {
            bail!("--cores takes one core here: the other end is another program");
        };
        crate::machine::pin(core);
        Ok(vec![core])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_prefix_that_fits() {
        let parsed = cidr("198.18.0.1/24").unwrap();
        assert_eq!((parsed.address.to_string().as_str(), parsed.len), ("198.18.0.1", 24));
        assert!(cidr("fd00::1/64").is_ok());
        for wrong in ["", "198.18.0.1", "198.18.0.1/33", "fd00::1/129", "x/24", "1.2.3.4/", "/8"] {
            assert!(cidr(wrong).is_err(), "{wrong}");
        }
    }
}
