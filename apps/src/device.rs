//! Device options of all programs.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use ferrowarp::device::{ChecksumMode, DeviceSpec};
use ferrowarp::{Config, Context, DriveMode, InterfaceAddress};

use crate::host::Host;
use crate::listen_options::ListenArgs;
use crate::network::NetworkArgs;
use crate::option_values::mtu_parser;
use crate::run_loop::CorePlacement;
use crate::shard_options::ShardArgs;
use crate::tcp_options::TcpArgs;

/// The mempools are sized for full windows of at most this many connections.
const WINDOWS_MAX: u32 = 64;

/// Most connections of these programs to one port of a peer. Each uses a source port; enough stay
/// free that a search finds one soon.
pub const CONNECTIONS_PER_PORT: u32 = 1 << 15;
/// Source ports if the dynamic ones (RFC 6335 section 6) do not suffice.
const SOURCE_PORTS_ALL: RangeInclusive<u16> = 1024..=65_535;
/// Most entries of all work queues, and of all completion queues: some 2 GiB.
pub const QUEUE_ENTRIES_MAX: u64 = 1 << 24;
/// Queue pairs in addition to one per connection.
const SPARE_QPS: usize = 64;
/// Most memory regions per connection of these programs.
const REGIONS_PER_CONNECTION: usize = 2;

/// Device, network and TCP options.
#[derive(Clone, Debug, Args)]
pub struct DeviceArgs {
    /// DPDK port: ring (client and server in one process), memif:SOCKET[,server|client],
    /// vhost:SOCKET (back end), virtio-user:SOCKET, tap:NAME, af_packet:IFACE, af_xdp:IFACE,
    /// pci:BDF, or eal:ARGS.
    #[arg(long, default_value = "ring", value_name = "DEVICE")]
    pub dev: String,
    /// Addresses and routes.
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Largest IP packet in bytes, 576 to 65280. Devices may support less: virtio-user 9698,
    /// af_packet 32000 and its interface's MTU. DPDK's tap driver receives such packets, but sends
    /// at most 1500 bytes.
    #[arg(long, default_value_t = 1500, value_name = "BYTES", value_parser = mtu_parser())]
    pub mtu: u16,
    /// Computation of TCP and IP checksums: by the stack (software), by the NIC as far as it can
    /// (offload), or omitted on a link in memory (none) [default: none on ring, offload on pci,
    /// software elsewhere]. --checksum alone is software.
    #[arg(long, value_enum, value_name = "MODE", num_args = 0..=1, require_equals = true,
          default_missing_value = "software")]
    pub checksum: Option<Checksum>,
    /// Cuts messages into TCP segments in the stack, even if the NIC offers it (TSO).
    #[arg(long)]
    pub no_tso: bool,
    /// Thread that polls the device: the program's own (inline); while that sleeps or is busy, a
    /// thread of the stack that sleeps when there is nothing to do (park), or first spins for 50 ms
    /// after traffic (hot); or hot if there are more cores than shards, else park (auto) [default:
    /// inline; park if the program sleeps].
    #[arg(long, value_enum, value_name = "MODE")]
    pub poller: Option<Poller>,
    /// TCP settings.
    #[command(flatten)]
    pub tcp: TcpArgs,
    /// Cores of client and server: A,B for one each, A for both on one core. With --shards: one
    /// core for each shard; in a loop both ends share it.
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    pub cores: Vec<usize>,
}

/// Thread that polls the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Poller {
    /// Hot if there are more cores than shards, else park.
    Auto,
    /// The program, or a thread that spins for a while after traffic.
    Hot,
    /// The program, or a thread that sleeps while there is nothing to do.
    Park,
    /// The program alone.
    Inline,
}

impl Poller {
    const fn mode(self) -> DriveMode {
        match self {
            Self::Auto => DriveMode::Auto,
            Self::Hot => DriveMode::Hot,
            Self::Park => DriveMode::Helper,
            Self::Inline => DriveMode::Inline,
        }
    }
}

/// Computation of TCP and IP checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Checksum {
    /// By the stack.
    Software,
    /// By the NIC, as far as it can.
    Offload,
    /// Omitted: the link is memory.
    None,
}

impl Checksum {
    const fn mode(self) -> ChecksumMode {
        match self {
            Self::Software => ChecksumMode::Software,
            Self::Offload => ChecksumMode::Offload,
            Self::None => ChecksumMode::NotNeeded,
        }
    }
}

/// Returns the computation of a context's checksums, for reports: `none`, `software`, `offload`,
/// or `offload (TCP)` if the stack computes the IPv4 header's checksum.
#[must_use]
pub fn checksum_kind(context: &Context) -> &'static str {
    match context.capabilities().checksum {
        ChecksumMode::NotNeeded => "none",
        ChecksumMode::Software => "software",
        ChecksumMode::OffloadTcp => "offload (TCP)",
        ChecksumMode::Offload => "offload",
    }
}

/// Load for which a context is sized.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Connections at a time.
    pub connections: u32,
    /// Busy connections among them at a time.
    pub busy: u32,
    /// Shards.
    pub shards: usize,
    /// Time within which the clients of a server have to make progress; `None`: no server.
    pub serves: Option<Duration>,
    /// The threads that use the context may sleep: one of the stack polls the device meanwhile.
    pub sleeps: bool,
}

impl Demand {
    /// `connections` busy connections on one shard.
    #[must_use]
    pub const fn connections(connections: u32) -> Self {
        Self { connections, busy: connections, shards: 1, serves: None, sleeps: false }
    }

    /// The same of a server with this timeout.
    #[must_use]
    pub const fn serving(self, timeout: Duration) -> Self {
        Self { serves: Some(timeout), ..self }
    }

    /// Connections to one port of the peer.
    fn connections_per_port(self) -> usize {
        usize::try_from(self.connections.min(CONNECTIONS_PER_PORT)).unwrap_or(usize::MAX)
    }
}

impl DeviceArgs {
    fn config(&self, addresses: Vec<InterfaceAddress>, demand: Demand) -> anyhow::Result<Config> {
        let device: DeviceSpec = self.dev.parse().map_err(|error| anyhow!("--dev: {error}"))?;
        let first = addresses.first().context("there is at least one address")?;
        self.tcp.check()?;
        let mut config = Config::new(device, first.ip, first.prefix_len);
        config.addresses = addresses;
        self.network.check_zones(&config.device)?;
        config.routes = self.network.routes(&config.device)?;
        self.network.apply_to(&mut config);
        config.mtu = self.mtu;
        config.checksum = self.checksum.map(Checksum::mode);
        config.tso = !self.no_tso;
        config.tcp = match demand.serves {
            Some(timeout) => self.tcp.server_settings(timeout),
            None => self.tcp.settings(),
        };
        config.drive = match self.poller {
            Some(Poller::Inline) if demand.sleeps => {
                bail!("--poller inline: nobody polls while the program sleeps: use park or hot")
            }
            Some(poller) => poller.mode(),
            None if demand.sleeps => DriveMode::Helper,
            None => DriveMode::Inline,
        };
        // The programs exit by dropping their contexts.
        config.drop_linger = config.linger;
        config.shards = demand.shards;
        // Each shard has pools of its own.
        let busy = demand.busy.div_ceil(u32::try_from(demand.shards)?.max(1));
        config.pools.windows = busy.clamp(config.pools.windows, WINDOWS_MAX);
        if demand.connections_per_port() + SPARE_QPS > config.source_ports.len() {
            config.source_ports = SOURCE_PORTS_ALL;
        }
        // Closing connections still hold queue pairs and regions while new ones are set up.
        let connections = usize::try_from(demand.connections)? + SPARE_QPS;
        config.qps_max = config.qps_max.max(connections);
        config.regions_max = config.regions_max.max(REGIONS_PER_CONNECTION * connections);
        let limits = &mut config.limits;
        limits.connections_max = limits.connections_max.max(2 * connections);
        limits.cq_entries_max = limits.cq_entries_max.max(QUEUE_ENTRIES_MAX);
        limits.queue_entries_max = limits.queue_entries_max.max(QUEUE_ENTRIES_MAX);
        Ok(config)
    }

    /// Checks the options of a client, which connects to `peer`.
    ///
    /// # Errors
    /// If the device or the addresses are missing or cannot work.
    pub fn check_client(&self, peer: &Host) -> anyhow::Result<()> {
        peer.socket(&self.checked_config()?, 0).map(|_| ())
    }

    /// Checks the options of a server.
    ///
    /// # Errors
    /// As [`DeviceArgs::check_client`].
    pub fn check_server(&self, listen: &ListenArgs) -> anyhow::Result<()> {
        listen.check(&self.checked_config()?)
    }

    /// Returns a configuration of one end that can work.
    fn checked_config(&self) -> anyhow::Result<Config> {
        ensure!(
            self.dev != "ring",
            "ring joins two ends of one process: use loop, or --dev memif:/tmp/iwarp.sock"
        );
        let config = self.config(self.network.addresses()?, Demand::connections(1))?;
        config.validate().map_err(|error| anyhow!("{error}"))?;
        Ok(config)
    }

    /// Checks the options of both ends in one process.
    ///
    /// # Errors
    /// If the device is not `ring`, or the network cannot work.
    pub fn check_pair(&self) -> anyhow::Result<()> {
        ensure!(
            self.dev == "ring",
            "loop runs over ring: omit --dev, or start a server and a client"
        );
        let address = self.network.loop_address(0);
        let config = self.config(vec![address], Demand::connections(1))?;
        config.validate().map_err(|error| anyhow!("{error}"))
    }

    /// Opens a context on the device.
    ///
    /// # Errors
    /// If the device or the addresses are missing or unusable.
    pub fn open(&self, demand: Demand) -> anyhow::Result<Context> {
        let config = self.config(self.network.addresses()?, demand)?;
        // The error names the device and a remedy; its causes would repeat that.
        Context::open(config).map_err(|error| anyhow!("{error}"))
    }

    /// Opens the context of a client or a server. Returns it with the cores of its workers. With
    /// one shard, pins the calling thread to the core of `--cores`.
    ///
    /// # Errors
    /// As [`DeviceArgs::open`], and if there are not as many cores as shards.
    pub fn open_end(
        &self,
        shards: ShardArgs,
        demand: Demand,
    ) -> anyhow::Result<(Context, Vec<usize>)> {
        let cores =
            if shards.shards == 1 { self.pin_single()? } else { shards.cores(&self.cores)? };
        Ok((self.open(demand)?, cores))
    }

    /// Opens two connected contexts in this process: first the client's, then the server's.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn open_pair(&self, demand: Demand) -> anyhow::Result<(Context, Context)> {
        let config = |end| self.config(vec![self.network.loop_address(end)], demand);
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
