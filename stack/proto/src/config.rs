//! Settings of an engine.

use core::net::IpAddr;
use core::ops::RangeInclusive;

use crate::net::fragments::ReassemblyConfig;
use crate::net::interface::InterfaceConfig;
use crate::net::neighbor::{NeighborConfig, StaticNeighbor};
use crate::net::routing::{InterfaceAddress, Route};
use crate::tcp;
use crate::time::{MILLISECOND, SECOND};
use crate::wire::ip::IpFields;

/// Least limit on partial FPDUs that makes sense, in bytes: a buffer for the FPDUs of jumbo frames,
/// and the short one that it grows from.
pub const PARTIAL_BYTES_MIN: usize = 18 * 1024;

/// Settings of an engine, fixed for its lifetime.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineConfig {
    /// Local addresses, of one family or both.
    pub addresses: Vec<InterfaceAddress>,
    /// Routes to destinations off the link; see [`Route::default_via`].
    pub routes: Vec<Route>,
    /// VLAN ID of all frames, 1 to 4094; `None`: untagged.
    pub vlan: Option<u16>,
    /// DSCP and time to live of TCP segments, unless their connection has its own.
    pub ip: IpFields,
    /// Neighbors that are not resolved, as configured.
    pub static_neighbors: Vec<StaticNeighbor>,
    /// Timing of the neighbor cache.
    pub neighbors: NeighborConfig,
    /// Limits of IP reassembly.
    pub fragments: ReassemblyConfig,
    /// Seed of everything random: sequence numbers, ports, hash keys. From the operating system in
    /// production.
    pub seed: u64,
    /// TCP settings of every connection; `mss`, `send_mss` and `checksum` are set from device and
    /// address family.
    pub tcp: tcp::Config,
    /// Maximum number of connections, those that linger after their end included.
    pub connections_max: usize,
    /// Ports from which connections are opened. The default is that of RFC 6335 section 6, 16,383
    /// ports: between two addresses there are as many connections to one port of the peer at most.
    pub source_ports: RangeInclusive<u16>,
    /// Maximum number of half-open passive connections, over all listeners; beyond it SYNs are
    /// answered with SYN cookies. Well below `connections_max`.
    pub half_open_max: usize,
    /// The same limit per listener.
    pub half_open_per_listener_max: usize,
    /// Maximum number of passive connections whose handshake is complete and whose MPA Request
    /// Frame is not, over all listeners. Beyond it one of them is reset: the oldest of the peer
    /// address (or IPv6 /64) that has most of them. If other peers connect `n` times per second, a
    /// connection is safe for at least `awaiting_request_max / n` seconds. Well below
    /// `connections_max`.
    pub awaiting_request_max: usize,
    /// SYN cookies sent per second, at most.
    pub cookies_per_second: u32,
    /// Maximum number of connections in TIME-WAIT; beyond it the oldest is removed.
    pub time_wait_max: usize,
    /// Challenge ACKs per second (RFC 5961), at most, if all connections are attacked at once. Each
    /// connection has an equal share: at least ten, and at most what the TCP settings allow.
    pub challenge_acks_per_second: usize,
    /// Maximum number of queue pairs.
    pub qps_max: usize,
    /// Maximum number of received frames held out of order, over all connections. Less than the
    /// port can spare: with its receive pool empty, the segments that fill the gaps could not
    /// arrive. From half of this limit on, bytes are copied instead.
    pub ooo_frames_max: usize,
    /// Bytes of memory for such copies, over all connections; allocated on demand and not returned.
    /// A path of 1 Gb/s and 20 ms takes 2.5 MB during loss recovery.
    pub ooo_bytes_max: usize,
    /// Bytes of memory for copies of retained frames, made when frames are short, over all
    /// connections; allocated on demand. Beyond this limit segments keep their frames, and in the
    /// end the connection without progress for the longest time is reset.
    pub sent_copies_bytes_max: usize,
    /// Bytes by which receive windows may grow beyond `tcp.recv_window`, over all connections. This
    /// is advertised window, not memory: data over the limits above is dropped.
    pub window_growth_max: u64,
    /// Bytes of memory for partial FPDUs of more than 2 KiB, over all connections; allocated on
    /// demand. Beyond this limit bytes of such FPDUs count as not received, and the peer
    /// retransmits them; one is admitted in any case. Shorter ones, those of a link with an MTU of
    /// 1500, do not count: each connection may keep one. At least [`PARTIAL_BYTES_MIN`].
    pub partial_bytes_max: usize,
    /// Maximum age in nanoseconds of a partial FPDU of more than 2 KiB while that limit is reached;
    /// then its connection ends. Its bytes were acknowledged, so the peer will not retransmit them,
    /// and other connections wait for the memory.
    pub partial_timeout_ns: u64,
    /// Enables atomic operations and immediate data (RFC 7306) with peers of the IETF's version. A
    /// peer without them ends the connection when it receives one; with `false` so does the local
    /// stack.
    pub extensions: bool,
    /// Siw workaround: time in nanoseconds after which an initiator that sent first and has been
    /// silent since sends a zero-length RDMA Write; 0: never. Linux siw may not process FPDUs that
    /// arrive right after its MPA Reply Frame until another segment follows. Repeated with doubled
    /// delay until the peer sends something.
    pub siw_wakeup_after_ns: u64,
    /// Siw workaround: time in nanoseconds that FIN is held back after the peer has acknowledged a
    /// reject, so that the peer closes first; 0: FIN follows at once. Linux siw may miss a reply
    /// that arrives together with FIN.
    pub siw_reject_fin_delay_ns: u64,
    /// Timeout of the startup exchange in nanoseconds: from the SYN until the peer's startup frame
    /// is complete, however slowly it arrives.
    pub startup_timeout_ns: u64,
    /// Linger timeout in nanoseconds after a local close: from the close, or from the last byte
    /// that the peer acknowledged or sent, until the peer has closed too. A peer with hardly any
    /// progress is reset at the 13th check, at least half of this time apart, that finds less than
    /// 4 KiB moved.
    pub linger_ns: u64,
    /// A frame or message that is alone takes the short way. With `false` it takes the general one,
    /// to the same effect in more time: to compare the two.
    pub short_way: bool,
}

impl EngineConfig {
    /// Creates the default settings for one address and a seed.
    #[must_use]
    pub fn new(address: IpAddr, prefix_len: u8, seed: u64) -> Self {
        Self {
            addresses: vec![InterfaceAddress { ip: address, prefix_len }],
            routes: Vec::new(),
            vlan: None,
            ip: IpFields::DEFAULT,
            static_neighbors: Vec::new(),
            neighbors: NeighborConfig::default(),
            fragments: ReassemblyConfig::default(),
            seed,
            tcp: tcp::Config::default(),
            connections_max: 16_384,
            source_ports: 49_152..=65_534,
            half_open_max: 1024,
            half_open_per_listener_max: 512,
            awaiting_request_max: 4096,
            cookies_per_second: 100_000,
            time_wait_max: 4096,
            challenge_acks_per_second: 500_000,
            qps_max: 65_536,
            ooo_frames_max: 512,
            ooo_bytes_max: 16 << 20,
            sent_copies_bytes_max: 16 << 20,
            window_growth_max: 1 << 30,
            partial_bytes_max: 128 << 20,
            partial_timeout_ns: 10 * SECOND,
            extensions: true,
            siw_wakeup_after_ns: 10 * MILLISECOND,
            siw_reject_fin_delay_ns: 100 * MILLISECOND,
            startup_timeout_ns: 10 * SECOND,
            linger_ns: 5 * SECOND,
            short_way: true,
        }
    }

    /// The settings of the IP interface.
    pub(crate) fn interface(&self) -> InterfaceConfig<'_> {
        InterfaceConfig {
            addresses: &self.addresses,
            routes: &self.routes,
            vlan: self.vlan,
            ip: self.ip,
            static_neighbors: &self.static_neighbors,
            neighbors: self.neighbors,
            fragments: self.fragments,
            seed: self.seed,
        }
    }

    /// Challenge ACKs that each connection may send per 100 ms, at least one: the engine's limit
    /// divided by the maximum number of connections.
    pub(crate) fn challenge_acks_per_connection(&self) -> u8 {
        let share = self.challenge_acks_per_second / 10 / self.connections_max.max(1);
        u8::try_from(share).unwrap_or(u8::MAX).clamp(1, self.tcp.challenge_acks.max(1))
    }
}
