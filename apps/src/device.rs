//! The options that say where a program runs, the same for all of them.

use std::net::IpAddr;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use ferrowarp::device::{ChecksumMode, DeviceSpec};
use ferrowarp::{Config, Context, DriveMode, InterfaceAddress};

use crate::network::NetworkArgs;
use crate::run_loop::CorePlacement;
use crate::tcp_options::TcpArgs;

/// Frames for full windows of more connections than this are not set aside: they share.
const WINDOWS_MAX: u32 = 64;

/// Queue pairs that there may be besides those of the connections at a time.
const SPARE_QPS: usize = 64;
/// Regions that a connection of these programs has at most.
const REGIONS_PER_CONNECTION: usize = 2;

/// Where.
#[derive(Clone, Debug, Args)]
pub struct DeviceArgs {
    /// DPDK port: ring (both ends in one process), memif:SOCKET[,server|client], tap:NAME,
    /// af_packet:IFACE, af_xdp:IFACE, pci:BDF, or eal:ARGS.
    #[arg(long, default_value = "ring", value_name = "DEVICE")]
    pub dev: String,
    /// Where in the network.
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Bytes of the largest IP packet. Over tap it counts for what is received; DPDK sends 1500
    /// there at most.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(576..=9000))]
    pub mtu: u16,
    /// TCP and IP checksums also where the device does not need them.
    #[arg(long)]
    pub checksum: bool,
    /// How TCP behaves.
    #[command(flatten)]
    pub tcp: TcpArgs,
    /// Cores to pin the ends to: A,B for one each, A for both on one.
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    pub cores: Vec<usize>,
}

impl DeviceArgs {
    fn config(
        &self,
        addresses: Vec<InterfaceAddress>,
        busy: u16,
        connections: u16,
    ) -> anyhow::Result<Config> {
        let device: DeviceSpec = self.dev.parse().map_err(|error| anyhow!("--dev: {error}"))?;
        let first = addresses.first().context("there is at least one address")?;
        let mut config = Config::new(device, first.ip, first.prefix_len);
        config.addresses = addresses;
        config.routes = self.network.routes()?;
        config.vlan = self.network.vlan;
        config.mtu = self.mtu;
        config.checksum = self.checksum.then_some(ChecksumMode::Software);
        config.tcp = self.tcp.settings();
        config.drive = DriveMode::Inline;
        // The programs end by dropping what they have.
        config.drop_linger = config.linger;
        config.pools.windows = u32::from(busy).clamp(config.pools.windows, WINDOWS_MAX);
        // Queue pairs and regions of those that are going while others come.
        let connections = usize::from(connections) + SPARE_QPS;
        config.qps_max = config.qps_max.max(connections);
        config.regions_max = config.regions_max.max(REGIONS_PER_CONNECTION * connections);
        config.limits.connections_max = config.limits.connections_max.max(2 * connections);
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
    /// If the device is missing or of no use here, or the addresses are.
    pub fn open(&self, connections: u16) -> anyhow::Result<Context> {
        self.open_for(connections, connections)
    }

    /// As [`DeviceArgs::open`], for `connections` of which so many are `busy` at a time.
    ///
    /// # Errors
    /// As [`DeviceArgs::open`].
    pub fn open_for(&self, busy: u16, connections: u16) -> anyhow::Result<Context> {
        if self.dev == "ring" {
            bail!("ring joins two ends of one process: use loop, or --dev memif:/tmp/iwarp.sock");
        }
        let config = self.config(self.network.addresses()?, busy, connections)?;
        // The error names the device and says what to do; its causes would say it again.
        Context::open(config).map_err(|error| anyhow!("{error}"))
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
        let config =
            |end| self.config(vec![self.network.loop_address(end)], connections, connections);
        Context::ring_pair(config(0)?, config(1)?).map_err(|error| anyhow!("{error}"))
    }

    /// Address of the listening end of a pair.
    #[must_use]
    pub fn loop_server(&self) -> IpAddr {
        self.network.loop_address(1).ip
    }

    /// Where the two ends of a pair run.
    ///
    /// # Errors
    /// If `--cores` is wrong.
    pub fn placement(&self) -> anyhow::Result<CorePlacement> {
        CorePlacement::from_cores(&self.cores)
    }

    /// Pins the calling thread to the only core of `--cores`, if there is one. Returns it.
    ///
    /// # Errors
    /// If `--cores` is wrong.
    pub fn pin_single(&self) -> anyhow::Result<Vec<usize>> {
        if self.cores.is_empty() {
            return Ok(Vec::new());
        }
        let CorePlacement::OneCore(core) = self.placement()? else {
            bail!("--cores takes one core here: the other end is another program");
        };
        crate::run_loop::pin(core);
        Ok(vec![core])
    }
}
