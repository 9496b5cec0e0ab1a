//! What an engine is configured with.

use core::net::IpAddr;

use crate::net::fragments::ReassemblyConfig;
use crate::net::neighbor::NeighborConfig;
use crate::net::routing::{InterfaceAddress, Route};
use crate::tcp;
use crate::time::{MILLISECOND, SECOND};

/// Settings of an engine, fixed while it lives.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Our addresses, of both families as need be; listeners answer on all of them.
    pub addresses: Vec<InterfaceAddress>,
    /// Ways to what is not on the link; see [`Route::default_via`].
    pub routes: Vec<Route>,
    /// The VLAN that all frames belong to, 1 to 4094, or none: then they have no tag.
    pub vlan: Option<u16>,
    /// Times of the neighbour cache.
    pub neighbors: NeighborConfig,
    /// Bounds of reassembly.
    pub fragments: ReassemblyConfig,
    /// Source of all chance: sequence numbers, ports, hash keys. From the operating system in
    /// production.
    pub seed: u64,
    /// Settings of every connection; `mss`, `send_mss` and `checksum` are set from device and
    /// address family.
    pub tcp: tcp::Config,
    /// Connections at a time, lingering ones included.
    pub connections_max: usize,
    /// Connections of peers whose handshake is not complete, at a time, over all listeners; beyond
    /// it SYNs are answered with cookies. Well below `connections_max`.
    pub half_open_max: usize,
    /// The same for each listener.
    pub half_open_per_listener_max: usize,
    /// Connections of peers whose handshake is complete and whose start-up request is not, at a
    /// time, over all listeners. Beyond it one of them is reset: of the peer address (or IPv6 /64)
    /// that has most of them, the oldest. A peer is safe from others that connect `n` times in a
    /// second for `awaiting_request_max / n` seconds at least. Well below `connections_max`.
    pub awaiting_request_max: usize,
    /// Cookies sent in a second, at most.
    pub cookies_per_second: u32,
    /// Connections in TIME-WAIT at a time; the oldest gives way.
    pub time_wait_max: usize,
    /// Answers in a second to segments that may be forged, at most, if all connections are
    /// attacked at once: each has an equal share (RFC 5961), at least ten and at most what the
    /// settings of TCP say.
    pub challenge_acks_per_second: usize,
    /// Queue pairs at a time.
    pub qps_max: usize,
    /// Received frames held out of order at a time, over all connections. Less than the port can
    /// spare: with its receive pool drained, what fills the gaps would not arrive either. From
    /// half of it on, bytes are copied instead.
    pub ooo_frames_max: usize,
    /// Bytes of memory for such copies, over all connections; taken as they are needed, and
    /// kept. A path of 1 Gb/s and 20 ms takes 2.5 MB while a loss is repaired.
    pub ooo_bytes_max: usize,
    /// Bytes of memory for copies of sent frames that others were in want of, over all
    /// connections; taken as they are needed. What is over that stays in the frames, and in the end
    /// the slowest connection is reset.
    pub sent_copies_bytes_max: usize,
    /// Bytes by which receive windows may have grown beyond `tcp.recv_window` at a time, over all
    /// connections. A promise rather than memory: what is over the bounds above is dropped.
    pub window_growth_max: u64,
    /// Bytes of memory for FPDUs that have arrived in part, over all connections; taken as they
    /// are needed. Beyond it each connection still keeps what fits 2 KiB, as the FPDUs of an
    /// ordinary link do; bytes of longer ones count as not received, and the peer sends them
    /// again.
    pub partial_bytes_max: usize,
    /// While that bound is reached, connections whose FPDU takes more than 2 KiB and has not been
    /// completed for so long, in nanoseconds, are ended: what was acknowledged cannot be asked for
    /// again, and others wait for the memory.
    pub partial_timeout_ns: u64,
    /// Atomic operations and immediate data (RFC 7306) are spoken with peers of the IETF's version.
    /// A peer without them ends the connection when it is sent one, and so does this end, if off.
    pub extensions: bool,
    /// How long an initiator that fell silent after its first bytes waits before it sends an empty
    /// RDMA Write behind them, in nanoseconds; 0: never. Linux's siw may overlook what comes right
    /// after its reply until something follows. Twice as long, and so on, until the peer is heard.
    pub siw_wakeup_after_ns: u64,
    /// How long FIN waits behind a reject that the peer has acknowledged, in nanoseconds, for the
    /// peer to close first; 0: it follows at once. Linux's siw may overlook a reply that it finds
    /// together with FIN.
    pub siw_reject_fin_delay_ns: u64,
    /// Time for the start-up exchange, in nanoseconds: from the SYN until the whole of the peer's
    /// frame is here, however it arrives.
    pub startup_timeout_ns: u64,
    /// Patience with a peer after we have ended a connection, in nanoseconds: from the end, or from
    /// the last byte that it acknowledged or sent, until it has closed as well. Where hardly
    /// anything moves that lasts for twelve times as long at most.
    pub linger_ns: u64,
}

impl EngineConfig {
    /// Defaults around one address and a seed.
    #[must_use]
    pub fn new(address: IpAddr, prefix_len: u8, seed: u64) -> Self {
        Self {
            addresses: vec![InterfaceAddress { ip: address, prefix_len }],
            routes: Vec::new(),
            vlan: None,
            neighbors: NeighborConfig::default(),
            fragments: ReassemblyConfig::default(),
            seed,
            tcp: tcp::Config::default(),
            connections_max: 16_384,
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
        }
    }

    /// Answers per 100 ms to segments that may be forged that each connection may give, so that
    /// all together stay within the engine's bound whatever they are asked.
    pub(super) fn challenge_acks_per_connection(&self) -> u8 {
        let share = self.challenge_acks_per_second / 10 / self.connections_max.max(1);
        u8::try_from(share).unwrap_or(u8::MAX).clamp(1, self.tcp.challenge_acks.max(1))
    }
}
