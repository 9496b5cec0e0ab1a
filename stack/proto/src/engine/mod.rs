//! The engine: TCP connections and queue pairs of one port queue, driven by polling.
//!
//! A pass ([`Engine::drive`]) processes one burst of received frames to completion (TCP, placement,
//! completions), then expired timers. Then connections with something to send transmit in turn, a
//! burst in all, and the port gets the frames. A pass never waits to fill a burst, and every step
//! is bounded. Commands (post, connect, ...) send nothing themselves; the next pass does. You poll
//! events with [`Engine::next_event`]. The engine pushes completions to the completion queues.
//!
//! A connection and its methods are in `connection`.

mod api;
mod connection_status;
mod connections;
mod event_queue;
mod flow_groups;
mod prefetch;
mod rcv_window;
mod rx;
mod rx_icmp;
mod rx_resume;
mod shards;
mod tcp_events;
mod timers;
mod tx_reclaim;
mod tx_turns;
mod unresolved;
mod usage;

use crate::connection::schedule::{BURST_LEN, ConnId, Schedule};
use core::marker::PhantomData;
use std::sync::Arc;

pub use connection_status::ConnectionStatus;
pub use usage::Usage;

pub use crate::config::{EngineConfig, PARTIAL_BYTES_MIN};
pub use crate::counters::Counters;

use crate::connection::Connection;
use crate::connection::context::{Context, Env, Pools};
use crate::connection::setup::listeners::Listeners;
use crate::connection::setup::secrets::Secrets;
use crate::connection::tcp_configs::TcpConfigs;
use crate::connection::tx_reclaim::TxReclaim;
use crate::ddp::memory::Memory;
use crate::device::{Capabilities, Device, frame_capacity};
use crate::engine::connections::Connections;
use crate::engine::event_queue::EventSweep;
use crate::engine::tx_turns::TxVisits;
use crate::mpa::fpdu_pool::FpduPool;
use crate::net::interface::Interface;
use crate::net::reply_limits::ReplyLimits;
use crate::steering::backlog::Backlogs;
use crate::steering::mesh::MeshPort;
use crate::steering::owners::ShardId;
use crate::tcp::{CopyPool, OooPool};
use crate::time::Instant;
use crate::verbs::cm::EndReason;
use crate::verbs::qp::QpState;
use crate::verbs::qp_table::QueuePairs;
use crate::verbs::resources::{OverrunCq, Verbs};
use crate::verbs::wc::Completions;
use crate::wheel::Timer;
use crate::wire::tcp::{IPV4_LEN, TCP_LEN};

/// Budget of a pass to end the queue pairs of completion queues that overran: a look at a slot
/// counts 1, to end the queue pair in it [`OVERRUN_COST_OF_END`] more. So a pass ends 64 of many.
const OVERRUN_BUDGET: usize = 64 * (1 + OVERRUN_COST_OF_END);
const OVERRUN_COST_OF_END: usize = 8;

/// The types of an engine.
struct Types<D, M, C>(PhantomData<(D, M, C)>);

impl<D: Device, M: Memory, C: Completions> Env for Types<D, M, C> {
    type Device = D;
    type Memory = M;
    type Completions = C;
}

/// A connection, and what it shares with the others.
type At<'a, D, M, C> = (&'a mut Connection<Types<D, M, C>>, &'a mut Context<Types<D, M, C>>);

/// TCP connections and queue pairs of one port queue: see the [module's documentation](self).
pub struct Engine<D: Device, M: Memory, C: Completions> {
    connections: Connections<Types<D, M, C>>,
    /// State shared by the connections.
    cx: Context<Types<D, M, C>>,
    limits: ReplyLimits,
    /// Earliest time of the next scan for windows to shrink, and where it starts.
    window_reclaim_at: Instant,
    window_reclaim_cursor: u32,
    /// Start of the next search for a lingering connection.
    lingering_cursor: u32,
    /// Earliest time of the next scan for partial FPDUs to evict.
    evict_partials_at: Instant,
    /// Slot from which the scan in progress continues; 0 if none is.
    evict_partials_from: usize,
    /// Time of the next check of unresolved next hops, at the latest, and epoch of the neighbor
    /// cache at the last one.
    resolve_at: Instant,
    resolve_epoch: u32,
    /// Visits of all ready connections while the transmit queue is full.
    tx_visits: TxVisits,
    /// Removal of stale events.
    event_sweep: EventSweep,
    /// Received frames, the first of them last while they are processed.
    burst: Vec<D::Rx>,
    /// The burst of this pass was fetched, even if it was empty.
    rx_burst_done: bool,
    fired: Vec<Timer>,
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Creates an engine on `device`, without connections.
    #[must_use]
    pub fn new(config: EngineConfig, device: D, memory: M, completions: C) -> Self {
        Self::create(config, device, memory, completions, None)
    }

    /// Creates the engine of one of several shards of a port, over one of its queues. `config` is
    /// the same for all of them, the seed included.
    #[must_use]
    pub fn in_mesh(
        config: EngineConfig,
        device: D,
        memory: M,
        completions: C,
        mesh: MeshPort<D::Rx>,
    ) -> Self {
        Self::create(config, device, memory, completions, Some(mesh))
    }

    fn create(
        mut config: EngineConfig,
        mut device: D,
        memory: M,
        completions: C,
        mesh: Option<MeshPort<D::Rx>>,
    ) -> Self {
        let capabilities = device.capabilities();
        config.tcp.checksum = capabilities.checksum;
        config.tcp.challenge_acks = config.challenge_acks_per_connection();
        let Capabilities { mtu, send_mtu, hairpin_mtu, .. } = capabilities;
        let pools = Pools {
            fpdu: FpduPool::new(config.partial_bytes_max),
            ooo: OooPool::new(
                config.ooo_frames_max,
                config.ooo_bytes_max,
                usize::from(mtu.max(hairpin_mtu)).saturating_sub(IPV4_LEN + TCP_LEN),
            ),
            tx_reclaim: TxReclaim::new(CopyPool::new(
                config.sent_copies_bytes_max,
                frame_capacity(send_mtu.max(hairpin_mtu)),
            )),
            window_growth: 0,
        };
        let shard = mesh.as_ref().map_or(ShardId(0), MeshPort::id);
        let (limits, backlogs, first_port) = match &mesh {
            Some(mesh) => {
                // As far apart as possible: a port that one shard has released may still be in
                // use at the peer.
                let ports = config.source_ports.len() / mesh.shard_count();
                let first = u32::try_from(shard.index() * ports).unwrap_or(0);
                (mesh.limits().clone(), Arc::clone(mesh.backlogs()), first)
            }
            None => {
                let limits = ReplyLimits::new(config.seed, config.cookies_per_second);
                (limits, Arc::new(Backlogs::new(1)), 0)
            }
        };
        device.set_addresses(config.vlan, config.addresses.iter().map(|address| address.ip));
        let net = Interface::new(&config.interface(), &capabilities, limits.clone());
        let route_mtus = net.routing().route_mtus();
        let tcp_configs = TcpConfigs::new(&config.tcp, &capabilities, route_mtus);
        Self {
            connections: Connections::new(config.connections_max, config.seed),
            limits: limits.clone(),
            window_reclaim_at: Instant::ZERO,
            window_reclaim_cursor: 0,
            lingering_cursor: 0,
            evict_partials_at: Instant::ZERO,
            evict_partials_from: 0,
            resolve_at: Instant::ZERO,
            resolve_epoch: 0,
            tx_visits: TxVisits::new(),
            event_sweep: EventSweep::new(),
            burst: Vec::with_capacity(BURST_LEN),
            rx_burst_done: false,
            fired: Vec::new(),
            cx: Context {
                tcp_configs,
                capabilities,
                device,
                net,
                listeners: Listeners::new(config.seed, limits.cookies, shard, backlogs),
                secrets: Secrets::new(config.seed, first_port),
                qps: QueuePairs::new(config.qps_max),
                verbs: Verbs::new(memory, completions, config.qps_max),
                pools,
                schedule: Schedule::new(),
                deferred: Vec::new(),
                mesh: mesh.map(Box::new),
                config,
            },
        }
    }

    /// Runs one pass. True if anything was received, sent or reported.
    // Not inlined, so that its parts are inlined here.
    #[inline(never)]
    pub fn drive(&mut self, now: Instant) -> bool {
        self.drive_with(now, |_| ())
    }

    /// Runs one pass as [`Engine::drive`] does, and calls `on_received` once the received frames
    /// are processed, before connections transmit: completions of receives and RDMA Reads need not
    /// wait for that.
    #[inline(always)]
    pub fn drive_with(&mut self, now: Instant, on_received: impl FnOnce(&mut Self)) -> bool {
        self.sweep_events();
        if self.is_lead() {
            let Context { net, device, verbs, .. } = &mut self.cx;
            net.poll_transmit(now, device, &mut verbs.counters);
        }
        self.resume_contiguous(now);
        if !self.cx.schedule.awaiting_partial_memory.is_empty() {
            self.resume_held(now);
        }
        let mut worked = self.process_rx(now);
        on_received(self);
        self.fire_timers(now);
        self.resolve_next_hops(now);
        if self.cx.verbs.has_overrun_cqs() {
            self.end_overrun_qps(now);
            worked = true;
        }
        self.cx.qps.end_srq_pass(&mut self.cx.verbs);
        worked |= self.transmit_ready(now);
        debug_assert!(self.cx.deferred.is_empty(), "run after the call that caused it");
        worked |= self.cx.qps.flush(&mut self.cx.verbs);
        self.cx.device.flush();
        worked
    }

    /// Returns the number of frames received, and of those sent, by the short way
    /// ([`EngineConfig::short_way`]): for tests.
    #[must_use]
    pub const fn short_way_counts(&self) -> [u64; 2] {
        self.cx.schedule.short_way_counts
    }

    /// Returns the time at which the next pass is due, at the latest, if nothing arrives before;
    /// `None` if no timer runs.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let Context { schedule, verbs, net, pools, .. } = &self.cx;
        if !schedule.ready.is_empty()
            || !schedule.awaiting_frame.is_empty()
            || verbs.has_overrun_cqs()
            || verbs.has_due_flushes()
            || schedule.unresolved_due > 0
            || !schedule.ooo_backlog.is_empty()
            || self.has_messages()
            || self.cx.device.has_hairpinned()
        {
            return Some(Instant::ZERO);
        }
        let resolve = (!schedule.unresolved.is_empty()).then_some(self.resolve_at);
        let evict = (!schedule.awaiting_partial_memory.is_empty()).then(|| {
            if pools.fpdu.has_released() { Instant::ZERO } else { self.evict_partials_at }
        });
        [schedule.wheel.next_deadline(), net.poll_timeout(self.is_lead()), resolve, evict]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns a connection by its index, and what it shares with the others. A segment is matched
    /// to its connection once, by `Connections::find`.
    #[inline]
    fn at(&mut self, index: u32) -> Option<At<'_, D, M, C>> {
        Some((self.connections.get_mut(index)?, &mut self.cx))
    }

    /// Returns a connection by its handle, and what it shares with the others.
    #[inline]
    fn by_id(&mut self, id: ConnId) -> Option<At<'_, D, M, C>> {
        self.at(id.index).filter(|(conn, _)| conn.id == id)
    }

    /// Ends the queue pairs of completion queues that overran, connected or not, as many as one
    /// pass may; others are not affected.
    // req: RDMAP-286
    #[cold]
    fn end_overrun_qps(&mut self, now: Instant) {
        self.cx.verbs.report_overruns();
        let mut budget = OVERRUN_BUDGET;
        while let Some(OverrunCq { cq, next, .. }) = self.cx.verbs.overrun_cq() {
            let (cq, slot) = (*cq, *next);
            if slot as usize >= self.cx.qps.slot_count() {
                self.cx.verbs.end_overrun();
                continue;
            }
            let Some(left) = budget.checked_sub(1) else { return };
            budget = left;
            *next += 1;
            if let Some(qp) = self.cx.qps.get(slot)
                && qp.uses_cq(cq)
            {
                budget = budget.saturating_sub(OVERRUN_COST_OF_END);
                self.cx.verbs.completions.on_qp_overrun(cq, qp.id);
                self.end_with_cq(now, slot);
            }
        }
    }

    /// Ends a queue pair, unless it is in the error state.
    fn end_with_cq(&mut self, now: Instant, slot: u32) {
        let Some(qp) = self.cx.qps.get_mut(slot).filter(|qp| qp.state() != QpState::Error) else {
            return;
        };
        match qp.conn {
            None => qp.enter_error(&mut self.cx.verbs, EndReason::LocalError),
            Some(conn) => {
                if let Some((conn, cx)) = self.at(conn) {
                    conn.end_with_cq(cx, now);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
