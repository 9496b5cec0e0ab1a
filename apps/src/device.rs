//! Device options of all programs.

use std::net::IpAddr;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use ferrowarp::device::{ChecksumMode, DeviceSpec};
use ferrowarp::{Config, Context, DriveMode, InterfaceAddress};

use crate::network::NetworkArgs;
use crate::run_loop::CorePlacement;
use crate::tcp_options::TcpArgs;

/// The mempools are sized for full windows of at most this many connections.
const WINDOWS_MAX: u32 = 64;

/// Queue pairs in addition to one per connection.
const SPARE_QPS: usize = 64;
/// Most memory regions per connection of these programs.
const REGIONS_PER_CONNECTION: usize = 2;

/// Device, network and TCP options.
#[derive(Clone, Debug, Args)]
pub struct DeviceArgs {
    /// DPDK port: ring (client and server in one process), memif:SOCKET[,server|client], tap:NAME,
    /// af_packet:IFACE, af_xdp:IFACE, pci:BDF, or eal:ARGS.
    #[arg(long, default_value = "ring", value_name = "DEVICE")]
    pub dev: String,
    /// Addresses and routes.
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Largest IP packet in bytes. On tap it applies to reception; DPDK's tap driver sends at most
    /// 1500.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(576..=9000))]
    pub mtu: u16,
    /// Computes TCP and IP checksums even where the device needs none (ring).
    #[arg(long)]
    pub checksum: bool,
    /// TCP settings.
    #[command(flatten)]
    pub tcp: TcpArgs,
    /// Cores to pin client and server to: A,B for one each, A for both on one core.
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
        // The programs exit by dropping their contexts.
        config.drop_linger = config.linger;
        config.pools.windows = u32::from(busy).clamp(config.pools.windows, WINDOWS_MAX);
        // Closing connections still hold queue pairs and regions while new ones are set up.
        let connections = usize::from(connections) + SPARE_QPS;
        config.qps_max = config.qps_max.max(connections);
        config.regions_max = config.regions_max.max(REGIONS_PER_CONNECTION * connections);
        config.limits.connections_max = config.limits.connections_max.max(2 * connections);
        Ok(config)
    }

    /// Returns how TCP and IP checksums are computed: `none` on `ring`, which is memory, else
    /// `software`.
    #[must_use]
    pub fn checksum_kind(&self) -> &'static str {
        if self.dev == "ring" && !self.checksum { "none" } else { "software" }
    }

    /// Opens a context on the device for `connections` busy connections.
    ///
    /// # Errors
    /// If the device or the addresses are missing or unusable.
    pub fn open(&self, connections: u16) -> anyhow::Result<Context> {
        self.open_for(connections, connections)
    }

    /// As [`DeviceArgs::open`], for `connections` of which at most `busy` are busy at a time.
    ///
    /// # Errors
    /// As [`DeviceArgs::open`].
    pub fn open_for(&self, busy: u16, connections: u16) -> anyhow::Result<Context> {
        if self.dev == "ring" {
            bail!("ring joins two ends of one process: use loop, or --dev memif:/tmp/iwarp.sock");
        }
        let config = self.config(self.network.addresses()?, busy, connections)?;
        // The error names the device and a remedy; its causes would repeat that.
        Context::open(config).map_err(|error| anyhow!("{error}"))
    }

    /// Opens two connected contexts in this process for `connections` busy connections: first that
    /// of the client, then that of the server.
    ///
    /// # Errors
    /// If the device is not `ring`.
    pub fn open_pair(&self, connections: u16) -> anyhow::Result<(Context, Context)> {
        if self.dev != "ring" {
            bail!("loop runs over ring: omit --dev, or start a server and a client");
        }
        let config =
            |end| self.config(vec![self.network.loop_address(end)], connections, connections);
        Context::ring_pair(config(0)?, config(1)?).map_err(|error| anyhow!("{error}"))
    }

    /// Returns the server's address in a pair.
    #[must_use]
    pub fn loop_server(&self) -> IpAddr {
        self.network.loop_address(1).ip
    }

    /// Returns the cores for client and server of a pair.
    ///
    /// # Errors
    /// If `--cores` is wrong.
    pub fn placement(&self) -> anyhow::Result<CorePlacement> {
        CorePlacement::from_cores(&self.cores)
    }

    /// Pins the calling thread to the one core of `--cores`, if given. Returns it.
    ///
    /// # Errors
    /// If `--cores` is wrong.
    pub fn pin_single(&self) -> anyhow::Result<Vec<usize>> {
        if self.cores.is_empty() {
            return Ok(Vec::new());
        }
        let CorePlacement::OneCore(core) = self.placement()? else {
            bail!("--cores takes one core here: the peer is another program");
        };
        crate::run_loop::pin(core);
        Ok(vec![core])
    }
}
