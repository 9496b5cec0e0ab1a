//! Configuration of a context.

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use ferrowarp_proto::device::ChecksumMode;
use ferrowarp_proto::engine::PARTIAL_BYTES_MIN;
use ferrowarp_proto::net::neighbor::StaticNeighbor;
use ferrowarp_proto::net::routing::{self, InterfaceAddress, Route, RoutingTable};
use ferrowarp_proto::setters;
use ferrowarp_proto::steering::mesh::SHARD_COUNT_MAX;
use ferrowarp_proto::verbs::cm::TIME_MIN;
use ferrowarp_proto::wire::ethernet::{self, VLAN_MAX};
use ferrowarp_proto::wire::ip::{DSCP_MAX, IpFields};

use crate::cores;
use crate::device::{DeviceSpec, Hugepages, MTU_MIN, OpenConfig, PoolNeeds};
use crate::error::OpenError;
use crate::limits::Limits;
use crate::tcp::TcpSettings;

/// Minimum link MTU for IPv6 (RFC 8200 section 5).
const MTU_MIN_V6: u16 = 1280;

/// Static neighbors of a context, at most: half of the neighbor cache.
const NEIGHBORS_MAX: usize = 512;

/// Memory regions and windows of a context, at most.
const REGIONS_MAX: usize = 1 << 20;
/// Queue pairs of a context, at most.
const QPS_MAX: usize = 1 << 20;

/// Connections of a context, at most.
const CONNECTIONS_MAX: usize = 1 << 20;
/// Largest receive window (RFC 7323 section 2.3).
const WINDOW_MAX: usize = 1 << 30;

/// Thread that polls a shard.
///
/// Give each such thread a core: control calls, and the deregistration of memory, wait for a poll
/// that is under way. If the thread was preempted in it, that takes until it runs again, which
/// next to another task on its core is a time slice of the scheduler, some milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriveMode {
    /// The application's polling calls. Without them nothing happens, not even acknowledgments.
    /// Calls that wait poll, too: they spin for 2 ms, then they sleep, on `tap` and `af_packet`
    /// until a frame arrives, elsewhere for 50 us to 1 ms. Answers to peers wait as long.
    #[default]
    Inline,
    /// A dedicated thread for each shard, pinned to a core that it keeps busy:
    /// [`Config::cores`].
    Dedicated,
    /// The application's polling calls. When there have been none for 20 us, or immediately when a
    /// call sleeps, a helper thread takes over: after a time of polling later, by a sixteenth of
    /// it, 4 ms at most. While there is nothing to do it sleeps: on `tap`, `af_packet`,
    /// `virtio-user` and cards with receive interrupts until a frame or a post arrives or a timer
    /// expires. An idle context then uses no processor time worth mentioning.
    ///
    /// Other ports have no interrupt: the helper polls every 50 us. The interval grows to 1 ms
    /// after 20 ms without traffic, or after 2 s while a thread sleeps on the context, a completion
    /// queue is armed, or the event channel's descriptor was requested. Each call that sleeps, arms
    /// a queue or requests that descriptor shortens it to 50 us again, for 100 ms.
    ///
    /// With several shards every helper wakes each millisecond, also on ports with an interrupt:
    /// frames that another shard passes on raise none.
    Helper,
    /// As `Helper`, for latencies of about a microsecond although the application does not poll,
    /// such as one that waits for a byte of its memory to change. The helper takes over after 1.5
    /// us without a polling call. It spins for [`Config::hot_time`] after traffic, and then sleeps
    /// as in `Helper`. Give each shard's helper a core next to those of the application.
    Hot,
    /// `Hot` if the process may use more cores than the context has shards (by its affinity mask
    /// and the CPU quota of its control group), otherwise `Helper`. Cores of shards in `Dedicated`
    /// or `Hot` of contexts that are open do not count. [`Context::drive_mode`] returns the choice,
    /// which is logged; it stays when other contexts open or close.
    ///
    /// [`Context::drive_mode`]: crate::Context::drive_mode
    Auto,
}

/// Settings of a context. Start from [`Config::new`] and set what differs.
///
/// ```
/// # use ferrowarp::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::new("pci:0000:01:00.1".parse()?, "198.18.0.1".parse()?, 24)
///     .route(Route::default_via("198.18.0.254".parse()?))
///     .mtu(9000)
///     .drive(DriveMode::Dedicated)
///     .cores([2])
///     .tcp(TcpSettings::new().congestion(CongestionControl::Dctcp).ecn(EcnMode::Request))
///     .limits(Limits::new().connections_max(100));
/// config.validate()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Device to open.
    pub device: DeviceSpec,
    /// Local addresses, of one or both families; a listener accepts on all of them unless it names
    /// one or a family. They are used as given: there is no duplicate address detection for IPv6
    /// (RFC 4862 section 5.4; advertisements of one of them by another node are counted,
    /// `address_conflicts`), no autoconfiguration, and router advertisements and redirects are
    /// ignored.
    pub addresses: Vec<InterfaceAddress>,
    /// Routes to other links; the longest matching prefix is used. See [`Route::default_via`].
    pub routes: Vec<Route>,
    /// Neighbors with a known hardware address. No ARP or neighbor discovery message is sent for
    /// them, none changes them, and they do not time out. The last one for an address counts.
    pub neighbors: Vec<StaticNeighbor>,
    /// VLAN ID (802.1Q) of all frames, 1 to 4094; `None`: frames have no tag.
    pub vlan: Option<u16>,
    /// Maximum IP packet length in bytes, at least [`MTU_MIN`], with an IPv6 address 1280; the
    /// device may allow less than [`MTU_MAX`].
    ///
    /// [`MTU_MIN`]: crate::device::MTU_MIN
    /// [`MTU_MAX`]: crate::device::MTU_MAX
    pub mtu: u16,
    /// Maximum IP packet length in bytes between the context's own addresses, and to other contexts
    /// on the same port of a host program, within the same limits. It may exceed `mtu`: these
    /// packets stay in memory. All buffers for frames to be sent are then as long. `None`: `mtu`.
    pub hairpin_mtu: Option<u16>,
    /// Computation and check of TCP and IPv4 checksums. `None`: disabled on `ring`, whose peer is
    /// in the same memory; left to a NIC as far as it offers that; in software elsewhere.
    /// `Offload` leaves to the port what it offers, of TCP at least, and is an error where that is
    /// nothing.
    pub checksum: Option<ChecksumMode>,
    /// TCP segmentation offload (TSO), where checksums are left to the port: the segments of a
    /// message, each with one FPDU, are passed to it as one frame if it cuts frames. On by default.
    pub tso: bool,
    /// Use of hugepages for frames. The first device of the process decides, unless the program
    /// has started the EAL itself.
    pub hugepages: Hugepages,
    /// Slots in each direction of `ring`, a power of two from 2 to 1,048,576; one of them stays
    /// empty. Those of the left context are used.
    pub ring_slots: u32,
    /// Settings of TCP.
    pub tcp: TcpSettings,
    /// DSCP (RFC 2474) of all TCP segments, 0 to 63: 0, best effort. [`ConnParam::dscp`] sets it
    /// for one connection. The ECN bits next to it are the stack's ([`TcpSettings::ecn`]).
    ///
    /// [`ConnParam::dscp`]: crate::ConnParam::dscp
    #[doc(alias = "IP_TOS")]
    pub dscp: u8,
    /// Time to live of all TCP segments, over IPv6 their hop limit: 64, at least 1.
    /// [`ConnParam::ttl`] sets it for one connection.
    ///
    /// [`ConnParam::ttl`]: crate::ConnParam::ttl
    #[doc(alias = "IP_TTL")]
    #[doc(alias = "hop limit")]
    pub ttl: u8,
    /// Demands for which the device's pools are sized.
    pub pools: PoolNeeds,
    /// Number of shards: queues of the port, each with connections of its own, and polled by one
    /// thread at a time. 1 is right for a program of one thread. `ring`, `memif` and `vhost` with
    /// `virtio-user` connect shard `i` to the peer's shard `i`. Of a port of the host program, as
    /// many as there are queues lent ([`Config::new`] sets that).
    pub shards: usize,
    /// Thread that polls a shard.
    pub drive: DriveMode,
    /// Time after traffic for which the helper of [`DriveMode::Hot`] spins before it sleeps: 50 ms
    /// by default. [`Duration::MAX`]: it never sleeps.
    pub hot_time: Duration,
    /// Cores of the threads that poll, as numbered by the operating system: one for each shard.
    /// Empty: those of [`DriveMode::Dedicated`] get the first ones that the process may use, and
    /// helpers run on any.
    pub cores: Vec<usize>,
    /// Memory regions and windows at a time (rounded up to a power of two): at most 1,048,576.
    #[doc(alias = "max_mr")]
    pub regions_max: usize,
    /// Queue pairs at a time: 1 to 1,048,576.
    #[doc(alias = "max_qp")]
    pub qps_max: usize,
    /// Ports from which connections are opened: 49152 to 65534 by default (RFC 6335 section 6).
    /// There are as many connections to one port of a peer, from one address, at most. A listener
    /// on port 0 gets one of them as well.
    pub source_ports: RangeInclusive<u16>,
    /// Atomic operations and immediate data (RFC 7306). On by default: it changes nothing on the
    /// wire until it is used. A peer without them, such as `siw`, ends the connection when it
    /// receives one, and so does this stack if they are off.
    pub extensions: bool,
    /// Other resource limits.
    pub limits: Limits,
    /// Maximum time that closing waits for the peers to acknowledge completed work
    /// ([`Context::close`]), and that an ended connection waits for a peer that acknowledges
    /// nothing more, before it is reset.
    ///
    /// [`Context::close`]: crate::Context::close
    pub linger: Duration,
    /// The same limit for dropping the last handle of a context, if it is less: 1 s. A program that
    /// ends by dropping its handles, and has nothing else to do, sets more.
    pub drop_linger: Duration,
    /// Page faults in registered memory end the connection, and not the process: where memory was
    /// unmapped, protected, or truncated with its file after it was registered. The local request
    /// completes with [`WcStatus::LocalProtection`], and the peer receives a Terminate. Off by
    /// default, as it installs handlers of `SIGSEGV` and `SIGBUS`, for the whole process and for
    /// good. Other faults go to the handlers that were installed before. If the program installs
    /// some later, those get the others; the shards see to it within a millisecond of polling. One
    /// that calls what it has replaced needs `SA_SIGINFO`, and passes on all three arguments.
    /// Costs nothing where there is no fault. On x86-64 alone.
    ///
    /// [`WcStatus::LocalProtection`]: crate::WcStatus::LocalProtection
    pub catch_page_faults: bool,
    /// Time for which the link to another process may be down before connections over it end with
    /// [`EndReason::LinkDown`]: zero by default, so within 0.2 s of the process's end. Over
    /// `memif`, `vhost` and `virtio-user` alone: the peer is that process, and a program that takes
    /// its place on the link knows nothing of its connections. `None`: they never end so, and TCP
    /// retransmits until its timeouts. Set a time or `None` if the process is a switch that may be
    /// restarted. The time begins anew whenever the link goes down: if it comes up before it is
    /// over, however often, connections stay, and TCP's timeouts decide. Connections that begin
    /// after the link went down for the last time stay in any case: their peer is the next process.
    /// Over other devices TCP always rides it out.
    ///
    /// [`EndReason::LinkDown`]: crate::EndReason::LinkDown
    pub link_down_grace: Option<Duration>,
    /// Seed for STags, ports and sequence numbers. `None` takes one from the operating system:
    /// right for all but tests, because STags must be hard to guess.
    pub seed: Option<u64>,
    /// Virtual time: each poll of the shard and each control call advances the stack's clock by
    /// this much, 1 ns to 1 s, and nothing else does. `None`, the default, is real time. For counts
    /// that have to be reproducible, such as under an emulator. All such contexts of a process
    /// share the clock; timeouts of blocking calls are in real time.
    pub virtual_time: Option<Duration>,
}

impl Config {
    /// Defaults for `address`/`prefix_len` on `device`: MTU 1500, pools as the device needs them,
    /// inline polling.
    #[must_use]
    pub fn new(device: DeviceSpec, address: IpAddr, prefix_len: u8) -> Self {
        let pools = PoolNeeds::of(&device);
        let shards = device.lent_queues().unwrap_or(1);
        let OpenConfig { mtu, checksum, tso, hugepages, ring_slots, .. } = OpenConfig::new();
        Self {
            device,
            addresses: vec![InterfaceAddress { ip: address, prefix_len }],
            routes: Vec::new(),
            neighbors: Vec::new(),
            vlan: None,
            mtu,
            hairpin_mtu: None,
            checksum,
            tso,
            hugepages,
            ring_slots,
            tcp: TcpSettings::new(),
            dscp: IpFields::DEFAULT.dscp,
            ttl: IpFields::DEFAULT.ttl,
            pools,
            shards,
            drive: DriveMode::Inline,
            hot_time: Duration::from_millis(50),
            cores: Vec::new(),
            regions_max: 1 << 14,
            qps_max: 1 << 12,
            source_ports: 49_152..=65_534,
            extensions: true,
            limits: Limits::new(),
            linger: Duration::from_secs(5),
            drop_linger: Duration::from_secs(1),
            catch_page_faults: false,
            link_down_grace: Some(Duration::ZERO),
            seed: None,
            virtual_time: None,
        }
    }

    /// Adds one to [`addresses`](field@Self::addresses).
    #[must_use]
    pub fn address(mut self, address: InterfaceAddress) -> Self {
        self.addresses.push(address);
        self
    }

    /// Adds one to [`routes`](field@Self::routes).
    #[must_use]
    pub fn route(mut self, route: Route) -> Self {
        self.routes.push(route);
        self
    }

    /// Adds the neighbor `ip` with the hardware address `mac` to
    /// [`neighbors`](field@Self::neighbors).
    #[must_use]
    pub fn neighbor(mut self, ip: IpAddr, mac: [u8; 6]) -> Self {
        self.neighbors.push(StaticNeighbor { ip, mac });
        self
    }

    /// Sets [`cores`](field@Self::cores).
    #[must_use]
    pub fn cores(mut self, cores: impl Into<Vec<usize>>) -> Self {
        self.cores = cores.into();
        self
    }

    setters! {
        vlan: Option<u16>,
        mtu: u16,
        hairpin_mtu: Option<u16>,
        checksum: Option<ChecksumMode>,
        tso: bool,
        hugepages: Hugepages,
        ring_slots: u32,
        tcp: TcpSettings,
        dscp: u8,
        ttl: u8,
        pools: PoolNeeds,
        shards: usize,
        drive: DriveMode,
        hot_time: Duration,
        regions_max: usize,
        qps_max: usize,
        source_ports: RangeInclusive<u16>,
        extensions: bool,
        limits: Limits,
        linger: Duration,
        drop_linger: Duration,
        catch_page_faults: bool,
        link_down_grace: Option<Duration>,
        seed: Option<u64>,
        virtual_time: Option<Duration>,
    }

    /// Checks the shards, numbers, addresses, routes, neighbors and VLAN, as opening a context does
    /// before anything else.
    ///
    /// # Errors
    /// [`OpenError`] for values that cannot work together.
    pub fn validate(&self) -> Result<(), OpenError> {
        self.validate_shards()?;
        self.validate_numbers()?;
        let (limit, shards) = (self.limits.partial_bytes_max, self.shards);
        let min = PARTIAL_BYTES_MIN * shards;
        if limit < min {
            return Err(OpenError::PartialBytes { limit, shards, min });
        }
        if self.addresses.is_empty() {
            return Err(OpenError::NoAddress);
        }
        for &InterfaceAddress { ip, prefix_len } in &self.addresses {
            if !routing::is_unicast_host(ip) {
                return Err(OpenError::Address { address: ip });
            }
            if !fits(ip, prefix_len) {
                return Err(OpenError::Prefix { address: ip, prefix_len });
            }
            if !(InterfaceAddress { ip, prefix_len }).is_host() {
                return Err(OpenError::LinkAddress { address: ip, prefix_len });
            }
            let least = self.mtu.min(self.hairpin_mtu.unwrap_or(self.mtu));
            if ip.is_ipv6() && least < MTU_MIN_V6 {
                return Err(OpenError::MtuV6 { mtu: least, address: ip });
            }
        }
        self.validate_routes()?;
        self.validate_neighbors()?;
        match self.vlan {
            Some(vlan) if !(1..=VLAN_MAX).contains(&vlan) => Err(OpenError::Vlan { vlan }),
            _ => Ok(()),
        }
    }

    fn validate_routes(&self) -> Result<(), OpenError> {
        let links = RoutingTable::new(&self.addresses, &[]);
        for &Route { destination, prefix_len, via, mtu } in &self.routes {
            if !fits(destination, prefix_len) {
                return Err(OpenError::Prefix { address: destination, prefix_len });
            }
            if destination.is_multicast() || destination.is_loopback() {
                return Err(OpenError::Address { address: destination });
            }
            if destination.is_ipv4() != via.is_ipv4() || !links.is_neighbor(via) {
                return Err(OpenError::Router { via });
            }
            let min = if destination.is_ipv6() { MTU_MIN_V6 } else { MTU_MIN };
            if let Some(mtu) = mtu.filter(|&mtu| mtu < min) {
                return Err(OpenError::RouteMtu { destination, prefix_len, mtu, min });
            }
        }
        Ok(())
    }

    fn validate_neighbors(&self) -> Result<(), OpenError> {
        let links = RoutingTable::new(&self.addresses, &[]);
        for &StaticNeighbor { ip, mac } in &self.neighbors {
            if !links.is_neighbor(ip) {
                return Err(OpenError::Neighbor { ip });
            }
            if !ethernet::is_unicast(mac) {
                return Err(OpenError::NeighborMac { ip, mac });
            }
        }
        Ok(())
    }

    /// Local address of connections to a peer: a host on a link of one of the addresses or behind a
    /// router, or one of the addresses itself. `None`: it cannot be reached.
    #[must_use]
    pub fn source_to(&self, peer: IpAddr) -> Option<IpAddr> {
        let routing = RoutingTable::new(&self.addresses, &self.routes);
        routing.select_source(peer, routing.next_hop(peer)?)
    }

    fn validate_numbers(&self) -> Result<(), OpenError> {
        let TcpSettings { keepalive, user_timeout, stall_timeout, .. } = self.tcp;
        for (setting, value, min, max) in [
            ("neighbors", self.neighbors.len(), 0, NEIGHBORS_MAX),
            ("regions_max", self.regions_max, 0, REGIONS_MAX),
            ("qps_max", self.qps_max, 1, QPS_MAX),
            ("limits.connections_max", self.limits.connections_max, 1, CONNECTIONS_MAX),
            // With none a connection would end before its request was complete.
            ("limits.awaiting_request_max", self.limits.awaiting_request_max, 1, usize::MAX),
            ("tcp.recv_window", self.tcp.recv_window as usize, 0, WINDOW_MAX),
            ("tcp.recv_window_max", self.tcp.recv_window_max as usize, 0, WINDOW_MAX),
            ("tcp.keepalive.probes", keepalive.map_or(1, |each| each.probes.into()), 1, 255),
            ("dscp", self.dscp.into(), 0, DSCP_MAX.into()),
            ("ttl", self.ttl.into(), 1, 255),
        ] {
            if !(min..=max).contains(&value) {
                return Err(OpenError::OutOfRange { setting, value, min, max });
            }
        }
        for (setting, time) in [
            ("tcp.keepalive.idle", keepalive.map(|each| each.idle)),
            ("tcp.keepalive.interval", keepalive.map(|each| each.interval)),
            ("tcp.user_timeout", Some(user_timeout)),
            ("tcp.stall_timeout", stall_timeout),
        ] {
            if let Some(value) = time.filter(|&time| time < TIME_MIN) {
                return Err(OpenError::TooShort { setting, value, min: TIME_MIN });
            }
        }
        let (first, last) = (*self.source_ports.start(), *self.source_ports.end());
        if first == 0 || first > last {
            return Err(OpenError::SourcePorts { first, last });
        }
        let is_step = |step: Duration| !step.is_zero() && step <= Duration::from_secs(1);
        if self.virtual_time.is_some_and(|step| !is_step(step)) {
            return Err(OpenError::VirtualTime);
        }
        Ok(())
    }

    fn validate_shards(&self) -> Result<(), OpenError> {
        let shards = self.shards;
        if !(1..=SHARD_COUNT_MAX).contains(&shards) {
            return Err(OpenError::Shards { shards, max: SHARD_COUNT_MAX });
        }
        let cores = match self.drive {
            DriveMode::Dedicated if self.cores.is_empty() => cores::available().len(),
            _ => self.cores.len(),
        };
        let fits = match self.drive {
            DriveMode::Dedicated if self.cores.is_empty() => cores >= shards,
            _ => self.cores.is_empty() || cores == shards,
        };
        if fits { Ok(()) } else { Err(OpenError::Cores { shards, cores }) }
    }

    /// Returns the core to which each shard's thread is pinned, in order; none: to no core.
    pub(crate) fn shard_cores(&self) -> Vec<usize> {
        if self.cores.is_empty() && self.drive == DriveMode::Dedicated {
            cores::available()
        } else {
            self.cores.clone()
        }
    }

    /// Returns the settings with which the device is opened.
    pub(crate) fn open_config(&self) -> OpenConfig {
        OpenConfig {
            mtu: self.mtu,
            hairpin_mtu: self.hairpin_mtu,
            checksum: self.checksum,
            tso: self.tso,
            pools: self.pools,
            ring_slots: self.ring_slots,
            hugepages: self.hugepages,
            queues: u16::try_from(self.shards).unwrap_or(u16::MAX),
            rx_interrupts: matches!(
                self.drive,
                DriveMode::Helper | DriveMode::Hot | DriveMode::Auto
            ),
            ..OpenConfig::new()
        }
    }
}

/// True if the prefix length is possible for an address of this family.
const fn fits(ip: IpAddr, prefix_len: u8) -> bool {
    prefix_len <= if ip.is_ipv4() { 32 } else { 128 }
}
