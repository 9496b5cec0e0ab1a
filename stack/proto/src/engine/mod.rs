//! The engine: TCP connections and queue pairs of one port queue, driven by polling.
//!
//! A pass ([`Engine::drive`]) processes one burst of received frames to completion (TCP, placement,
//! completions), then expired timers. Then each connection with something to send transmits, and
//! the frames are flushed to the port. A pass never waits to fill a burst, and every step is
//! bounded. Commands (post, connect, ...) send nothing themselves; the next pass does. Events are
//! polled with [`Engine::next_event`], completions are pushed to the completion queues.

mod abort;
mod awaiting_request;
mod config;
mod connect;
mod connection;
mod cookie;
mod counters;
mod events;
mod graceful_close;
mod icmp_error;
mod jittered_rate_limit;
mod listen;
mod mpa_start;
mod multicast;
mod next_hop;
mod partial_fpdus;
mod queue_pairs;
mod rx;
mod rx_demux;
mod rx_ooo;
mod siw_reject;
mod siw_wakeup;
mod slab;
mod srq;
mod stateless;
mod terminate_drain;
mod tx;
mod tx_reclaim;
mod usage;
mod wheel;

use core::net::IpAddr;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use hashbrown::HashTable;

pub use config::EngineConfig;
pub use counters::Counters;
pub use usage::Usage;

use crate::ddp::memory::Memory;
use crate::ddp::regions::AccessScope;
use crate::device::{Capabilities, Device, frame_capacity};
use crate::engine::awaiting_request::AwaitingRequest;
use crate::engine::connection::{Connections, NEVER};
use crate::engine::cookie::SynCookies;
use crate::engine::jittered_rate_limit::JitteredRateLimit;
use crate::engine::listen::Listener;
use crate::engine::multicast::Memberships;
use crate::engine::queue_pairs::QueuePairs;
use crate::engine::slab::{PREALLOCATED_MAX, Slab};
use crate::engine::tx_reclaim::TxReclaim;
use crate::engine::wheel::{Timer, Wheel};
use crate::mpa::fpdu_pool::FpduPool;
use crate::net::fragments::Reassembler;
use crate::net::neighbor::NeighborCache;
use crate::net::rate_limit::RateLimit;
use crate::net::routing::RoutingTable;
use crate::net::siphash_keys::{KeyPurpose, Secret, SipBuildHasher};
use crate::tcp::{self, CopyPool, OooPool};
use crate::time::Instant;
use crate::verbs::cm::CmError;
use crate::verbs::qp::{QpInit, QpState};
use crate::verbs::wc::{Completions, CqId, QpId};
use crate::verbs::wr::{PostError, RecvWr, SendWr};
use crate::wire::ethernet::EthernetLink;
use crate::wire::seq::Seq;
use crate::wire::tcp::{FourTuple, IPV4_LEN, IPV6_LEN, TCP_LEN};

/// Frames received in one pass, at most.
const BURST_LEN: usize = 32;
/// RSTs for unmatched segments per second, at most.
const RSTS_PER_SECOND: u32 = 1000;
/// Replies to ARP requests and neighbor solicitations per second, at most.
const NEIGHBOR_REPLIES_PER_SECOND: u32 = 1000;
/// Echo replies per second, at most.
const ECHO_REPLIES_PER_SECOND: u32 = 1000;
/// ICMP errors sent per second, at most.
const ICMP_ERRORS_OUT_PER_SECOND: u32 = 100;
/// ICMP errors processed per second, at most.
const ICMP_ERRORS_IN_PER_SECOND: u32 = 1000;

/// Keys for values that an off-path attacker must not guess: ISS (RFC 6528), timestamp offset (RFC
/// 7323), ephemeral ports (RFC 6056), flow labels (RFC 6437).
struct Secrets {
    sequence_numbers: Secret,
    timestamps: Secret,
    ports: Secret,
    flow_labels: Secret,
}

impl Secrets {
    fn new(seed: u64) -> Self {
        Self {
            sequence_numbers: Secret::new(seed, KeyPurpose::SequenceNumbers),
            timestamps: Secret::new(seed, KeyPurpose::Timestamps),
            ports: Secret::new(seed, KeyPurpose::Ports),
            flow_labels: Secret::new(seed, KeyPurpose::FlowLabels),
        }
    }
}

/// See the [module's documentation](self).
pub struct Engine<D: Device, M, C> {
    config: EngineConfig,
    /// TCP settings for IPv4 and for IPv6.
    tcp_configs: [Arc<tcp::Config>; 2],
    capabilities: Capabilities,
    device: D,
    verbs: QueuePairs<M, C>,
    connections: Connections<D::Rx, D::Retained>,
    /// Connections by four-tuple. The table holds indices; the four-tuple is stored in the
    /// connection.
    by_tuple: HashTable<u32>,
    hash: SipBuildHasher,
    /// Connection of the last segment matched by four-tuple; may be stale.
    last_match: u32,
    listeners: HashMap<u16, Listener, SipBuildHasher>,
    /// Passive connections whose MPA Request Frame is incomplete or waits for the backlog.
    awaiting_request: AwaitingRequest,
    link: EthernetLink,
    routing: RoutingTable,
    neighbors: NeighborCache,
    fragments: Reassembler,
    /// Local addresses not announced on the link yet.
    unannounced: Vec<IpAddr>,
    /// Membership reports for the solicited-node multicast groups of our addresses (MLD).
    memberships: Memberships,
    fpdu_pool: FpduPool,
    /// Earliest time of the next scan for partial FPDUs to evict.
    evict_partials_at: Instant,
    /// Out-of-order segments of all connections.
    ooo_pool: OooPool<D::Rx>,
    /// Connections with contiguous data that earlier passes had no budget to deliver, each at most
    /// once; stale entries are skipped. `ooo_budget` counts the segments this pass may still
    /// deliver.
    ooo_backlog: VecDeque<(u32, u32)>,
    ooo_budget: usize,
    /// Retained frames of sent segments: the share of each connection, and reclaim.
    tx_reclaim: TxReclaim,
    /// Bytes by which receive windows have grown beyond their initial size.
    window_growth: u64,
    /// Earliest time of the next scan for windows to shrink, and where it starts.
    window_reclaim_at: Instant,
    window_reclaim_cursor: u32,
    wheel: Wheel,
    /// Connections to be served, in round-robin order, each at most once.
    ready: VecDeque<u32>,
    /// Connections that wait for a hardware address.
    unresolved: VecDeque<u32>,
    /// How many of them, from the front, are to be checked.
    unresolved_due: usize,
    /// Time of the next check, at the latest.
    resolve_at: Instant,
    /// Epoch of the neighbor cache at the last check.
    resolve_epoch: u32,
    next_ephemeral: u16,
    secrets: Secrets,
    cookies: SynCookies,
    cookie_limit: JitteredRateLimit,
    /// Passive connections whose handshake is not complete.
    half_open: usize,
    /// Connections in TIME-WAIT, oldest first; stale entries are skipped.
    time_waits: VecDeque<(u32, u32)>,
    /// Four-tuple of the connection just removed in favor of a new one between the same ends, and
    /// the lower bound of the new ISS.
    recycled: Option<(FourTuple, Seq)>,
    rst_limit: JitteredRateLimit,
    echo_reply_limit: RateLimit,
    /// Replies to ARP requests and neighbor solicitations.
    neighbor_reply_limit: RateLimit,
    icmp_error_in_limit: RateLimit,
    /// ICMP errors sent.
    icmp_error_out_limit: RateLimit,
    /// Length of the event queue at which stale events are removed.
    sweep_events_at: usize,
    burst: Vec<D::Rx>,
    /// The burst of this pass was fetched, even if it was empty.
    rx_burst_done: bool,
    fired: Vec<Timer>,
    /// Completion queues that overran in this pass, each once.
    overrun_cqs: Vec<CqId>,
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Creates an engine on `device`, without connections.
    #[must_use]
    pub fn new(mut config: EngineConfig, device: D, memory: M, completions: C) -> Self {
        let capabilities = device.capabilities();
        config.tcp.checksum = capabilities.checksum;
        let hash = SipBuildHasher::new(config.seed);
        let limits = Secret::new(config.seed, KeyPurpose::Limits);
        config.tcp.challenge_acks = config.challenge_acks_per_connection();
        let tcp_configs = [IPV4_LEN, IPV6_LEN].map(|ip_len| {
            let [mss, send_mss] = [capabilities.mtu, capabilities.send_mtu].map(|mtu| {
                let mss = usize::from(mtu).saturating_sub(ip_len + TCP_LEN);
                u16::try_from(mss).unwrap_or(u16::MAX)
            });
            Arc::new(tcp::Config { mss, send_mss, ..config.tcp.clone() })
        });
        Self {
            tcp_configs,
            capabilities,
            device,
            verbs: QueuePairs::new(memory, completions, config.qps_max),
            connections: Slab::new(config.connections_max),
            by_tuple: HashTable::with_capacity(config.connections_max.min(PREALLOCATED_MAX)),
            hash,
            last_match: 0,
            listeners: HashMap::with_hasher(hash),
            awaiting_request: AwaitingRequest::new(hash),
            link: EthernetLink { mac: capabilities.mac, vlan: config.vlan },
            routing: RoutingTable::new(&config.addresses, &config.routes),
            neighbors: NeighborCache::new(config.neighbors, config.seed),
            fragments: Reassembler::new(config.fragments),
            unannounced: config.addresses.iter().rev().map(|address| address.ip).collect(),
            memberships: Memberships::new(
                config.addresses.iter().any(|address| address.ip.is_ipv6()),
            ),
            fpdu_pool: FpduPool::new(config.partial_bytes_max),
            evict_partials_at: Instant::ZERO,
            ooo_pool: OooPool::new(
                config.ooo_frames_max,
                config.ooo_bytes_max,
                usize::from(capabilities.mtu).saturating_sub(IPV4_LEN + TCP_LEN),
            ),
            ooo_backlog: VecDeque::new(),
            ooo_budget: 0,
            tx_reclaim: TxReclaim::new(CopyPool::new(
                config.sent_copies_bytes_max,
                frame_capacity(capabilities.send_mtu),
            )),
            window_growth: 0,
            window_reclaim_at: Instant::ZERO,
            window_reclaim_cursor: 0,
            wheel: Wheel::new(),
            ready: VecDeque::new(),
            unresolved: VecDeque::new(),
            unresolved_due: 0,
            resolve_at: Instant::ZERO,
            resolve_epoch: 0,
            next_ephemeral: 0,
            secrets: Secrets::new(config.seed),
            cookies: SynCookies::new(config.seed),
            cookie_limit: JitteredRateLimit::new(limits, config.cookies_per_second),
            half_open: 0,
            time_waits: VecDeque::new(),
            recycled: None,
            rst_limit: JitteredRateLimit::new(limits, RSTS_PER_SECOND),
            echo_reply_limit: RateLimit::new(ECHO_REPLIES_PER_SECOND),
            neighbor_reply_limit: RateLimit::new(NEIGHBOR_REPLIES_PER_SECOND),
            icmp_error_in_limit: RateLimit::new(ICMP_ERRORS_IN_PER_SECOND),
            icmp_error_out_limit: RateLimit::new(ICMP_ERRORS_OUT_PER_SECOND),
            sweep_events_at: events::SWEEP_MIN,
            burst: Vec::with_capacity(BURST_LEN),
            rx_burst_done: false,
            fired: Vec::new(),
            overrun_cqs: Vec::new(),
            config,
        }
    }

    /// Runs one pass. True if anything was received, sent or reported.
    pub fn drive(&mut self, now: Instant) -> bool {
        if !self.unannounced.is_empty() {
            self.announce_addresses();
        }
        if self.memberships.is_due(now) {
            self.send_mld_reports(now);
        }
        self.resume_contiguous(now);
        let mut worked = self.process_rx(now);
        self.fire_timers(now);
        self.resolve_next_hops(now);
        self.end_overrun_qps(now);
        worked |= self.transmit_ready(now);
        worked |= self.verbs.flush();
        self.device.flush();
        worked
    }

    /// Returns the time at which the next pass is due, at the latest, if nothing arrives before;
    /// `None` if no timer runs.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let has_work = !self.ready.is_empty() || !self.overrun_cqs.is_empty();
        if has_work || self.unresolved_due > 0 || !self.ooo_backlog.is_empty() {
            return Some(Instant::ZERO);
        }
        let resolve = (!self.unresolved.is_empty()).then_some(self.resolve_at);
        let report = self.memberships.deadline();
        [self.wheel.next_deadline(), self.neighbors.deadline(), resolve, report]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns the number of connections, those that linger after their end included.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    /// Returns the number of connections other than those in TIME-WAIT, which only wait for stray
    /// segments: those where one end or both do not know yet that everything arrived. Cost: visits
    /// each connection.
    #[must_use]
    pub fn unfinished_count(&self) -> usize {
        let is_unfinished = |index: &u32| {
            let conn = self.connections.get(*index);
            conn.is_some_and(|conn| conn.tcb.state() != tcp::State::TimeWait)
        };
        self.connections.indices().filter(is_unfinished).count()
    }

    /// Returns the memory held for out-of-order segments of all connections: received frames, and
    /// bytes of copies.
    #[must_use]
    pub const fn ooo_usage(&self) -> (usize, usize) {
        (self.ooo_pool.frames(), self.ooo_pool.bytes())
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.verbs.counters
    }

    /// Returns the registered memory.
    #[must_use]
    pub const fn memory(&self) -> &M {
        &self.verbs.memory
    }

    /// Returns the completion queues.
    pub const fn completions_mut(&mut self) -> &mut C {
        &mut self.verbs.completions
    }

    /// Returns the device.
    #[must_use]
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// Returns the device, for its owner's counters and settings.
    pub const fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Creates a queue pair.
    ///
    /// # Errors
    /// [`CmError::NoResources`] when the limit is reached.
    pub fn create_qp(&mut self, init: QpInit) -> Result<QpId, CmError> {
        self.sweep_events();
        self.verbs.create(init)
    }

    /// Destroys a queue pair. Its connection, if any, ends as by [`Engine::disconnect`];
    /// completions and events not reported yet are dropped.
    pub fn destroy_qp(&mut self, now: Instant, qp: QpId) {
        let _ = self.disconnect(now, qp);
        if let Some(conn) = self.verbs.index(qp).and_then(|i| self.verbs.get(i)?.conn)
            && let Some(conn) = self.connections.get_mut(conn)
        {
            conn.qp = None;
        }
        self.verbs.destroy(qp);
    }

    /// Ends a queue pair of an engine that will not be driven again, for example after a panic.
    /// Nothing is sent; outstanding requests are reported as flushed, as far as the completion
    /// queues have free slots.
    pub fn abandon_qp(&mut self, qp: QpId) {
        if let Some(index) = self.verbs.index(qp) {
            self.verbs.abandon(index);
        }
    }

    /// Returns the state of a queue pair; `Error` if there is none.
    #[must_use]
    pub fn qp_state(&self, qp: QpId) -> QpState {
        self.verbs
            .index(qp)
            .and_then(|index| self.verbs.get(index))
            .map_or(QpState::Error, |qp| qp.state)
    }

    /// Returns the access scope of a queue pair: its protection domain and the ID of its stream,
    /// which is unique among all engines that share the [`Memory`]. `None` if there is no such
    /// queue pair.
    #[must_use]
    pub fn qp_access_scope(&self, qp: QpId) -> Option<AccessScope> {
        self.verbs.access_scope(qp)
    }

    /// Returns the number of free slots in the send queue.
    #[must_use]
    pub fn free_send_slots(&self, qp: QpId) -> usize {
        self.verbs
            .index(qp)
            .and_then(|index| self.verbs.get(index))
            .map_or(0, |qp| qp.stream.requester.free_count())
    }

    /// Returns the number of free slots in the receive queue; all of them with a shared one.
    #[must_use]
    pub fn free_recv_slots(&self, qp: QpId) -> usize {
        self.verbs.index(qp).and_then(|index| self.verbs.get(index)).map_or(0, |qp| match qp.srq {
            Some(_) => qp.init.max_recv_wr,
            None => qp.stream.recv_queue.free_count(),
        })
    }

    /// Posts a work request to the send queue.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_send(&mut self, qp: QpId, wr: SendWr) -> Result<(), PostError> {
        let is_local = wr.operation.is_local();
        let index = self.verbs.post_send(qp, wr)?;
        if is_local && let Some(cq) = self.verbs.execute_local_ops(index) {
            rx::note_cq_overrun(&mut self.overrun_cqs, cq);
        }
        if let Some(conn) = self.verbs.get(index).and_then(|qp| qp.conn) {
            self.make_ready(conn);
        }
        Ok(())
    }

    /// Posts a buffer to the receive queue.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_recv(&mut self, qp: QpId, wr: RecvWr) -> Result<(), PostError> {
        self.verbs.post_recv(qp, wr)
    }

    /// Returns the TCP settings of a connection: the MSS depends on the address family.
    fn tcp_config(&self, tuple: &FourTuple) -> &Arc<tcp::Config> {
        &self.tcp_configs[usize::from(tuple.remote.is_ipv6())]
    }

    /// Puts a connection on the list of those to be served.
    fn make_ready(&mut self, index: u32) {
        if let Some(conn) = self.connections.get_mut(index)
            && !conn.in_ready_list
        {
            conn.in_ready_list = true;
            self.ready.push_back(index);
        }
    }

    /// Arms the connection's timer if its next timeout is earlier than what is armed.
    fn arm_timer(&mut self, index: u32) {
        let Some(conn) = self.connections.get_mut(index) else { return };
        let Some(deadline) = conn.next_timeout() else { return };
        let tick = self.wheel.tick_for(deadline);
        if conn.armed_timers.try_arm(tick) {
            let generation = self.connections.generation(index);
            self.wheel.arm(Timer { owner: index, generation, tick });
        }
    }

    fn fire_timers(&mut self, now: Instant) {
        let mut fired = std::mem::take(&mut self.fired);
        self.wheel.advance(now, &mut fired);
        for timer in fired.drain(..) {
            if self.connections.live_index(timer.owner, timer.generation).is_none() {
                continue;
            }
            let Some(conn) = self.connections.get_mut(timer.owner) else { continue };
            if !conn.armed_timers.disarm(timer.tick) {
                continue;
            }
            if conn.deadline <= now {
                conn.deadline = NEVER;
                self.on_deadline(now, timer.owner);
            }
            let Some(conn) = self.connections.get_mut(timer.owner) else { continue };
            if conn.tcb.deadline().is_some_and(|deadline| deadline <= now) {
                conn.tcb.handle_timeout(now);
            }
            self.handle_tcp_events_and_arm(now, timer.owner);
            self.make_ready(timer.owner);
        }
        self.fired = fired;
    }
}
