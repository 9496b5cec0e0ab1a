//! Resources in use by an engine: for monitoring, and for leak checks in tests.

use core::ops::AddAssign;

use crate::connection::context::Context;
use crate::connection::phase::Phase;
use crate::counters::Counters;
use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::tcp;
use crate::verbs::wc::{Completions, QpId};

/// Resources in use. Without connections all are 0 except `timers`, which become 0 as they fire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Connections, those that linger after their end included.
    pub connections: usize,
    /// Half-open passive connections: their handshake is not complete.
    pub half_open: usize,
    /// Passive connections after the handshake, with an MPA Request Frame that is incomplete or
    /// waits for a free slot in the backlog.
    pub awaiting_request: usize,
    /// Connections with a request that the application has not accepted or rejected yet.
    pub awaiting_decision: usize,
    /// Connections in TIME-WAIT.
    pub time_waits: usize,
    /// Entries of the four-tuple table.
    pub tuples: usize,
    /// Received frames held out of order.
    pub ooo_frames: usize,
    /// Bytes of memory for copies of out-of-order data.
    pub ooo_bytes: usize,
    /// Copies of retained frames.
    pub sent_copies: usize,
    /// Buffers of partial FPDUs, and the bytes they take.
    pub partial_fpdus: usize,
    /// See `partial_fpdus`.
    pub partial_bytes: usize,
    /// Segments retained until acknowledged: each has a frame, or a copy.
    pub retained_segments: usize,
    /// Maximum of these on one connection.
    pub retained_segments_max: usize,
    /// Bytes by which receive windows have grown.
    pub window_growth: u64,
    /// Connections that wait for a hardware address.
    pub unresolved: usize,
    /// Entries of the timer wheel, stale ones included.
    pub timers: usize,
}

/// Adds the usage of another engine.
impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        let Self {
            connections,
            half_open,
            awaiting_request,
            awaiting_decision,
            time_waits,
            tuples,
            ooo_frames,
            ooo_bytes,
            sent_copies,
            partial_fpdus,
            partial_bytes,
            retained_segments,
            retained_segments_max,
            window_growth,
            unresolved,
            timers,
        } = other;
        self.connections += connections;
        self.half_open += half_open;
        self.awaiting_request += awaiting_request;
        self.awaiting_decision += awaiting_decision;
        self.time_waits += time_waits;
        self.tuples += tuples;
        self.ooo_frames += ooo_frames;
        self.ooo_bytes += ooo_bytes;
        self.sent_copies += sent_copies;
        self.partial_fpdus += partial_fpdus;
        self.partial_bytes += partial_bytes;
        self.retained_segments += retained_segments;
        self.retained_segments_max = self.retained_segments_max.max(retained_segments_max);
        self.window_growth += window_growth;
        self.unresolved += unresolved;
        self.timers += timers;
    }
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Returns the resources in use. Visits each connection: for reports, not for every pass.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let Context { pools, listeners, schedule, .. } = &self.cx;
        let mut usage = Usage {
            connections: self.connections.len(),
            half_open: listeners.half_open(),
            awaiting_request: listeners.awaiting_request.len(),
            tuples: self.connections.tuple_count(),
            ooo_frames: pools.ooo.frames(),
            ooo_bytes: pools.ooo.bytes(),
            sent_copies: pools.tx_reclaim.copy_pool.count(),
            partial_fpdus: pools.fpdu.buffers_in_use(),
            partial_bytes: pools.fpdu.bytes_in_use(),
            window_growth: pools.window_growth,
            unresolved: schedule.unresolved.len(),
            timers: schedule.wheel.len(),
            ..Usage::default()
        };
        for conn in self.connections.iter() {
            usage.awaiting_decision += usize::from(matches!(conn.phase, Phase::AwaitDecision(_)));
            usage.time_waits += usize::from(conn.tcb.state() == tcp::State::TimeWait);
            let retained = conn.tcb.records();
            usage.retained_segments += retained;
            usage.retained_segments_max = usage.retained_segments_max.max(retained);
        }
        usage
    }

    /// Returns the number of connections, those that linger after their end included.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    /// Returns the number of connections other than those in TIME-WAIT, which only wait for stray
    /// segments: those where one end or both do not know yet that everything arrived. Cost:
    /// constant.
    #[must_use]
    pub fn unfinished_count(&self) -> usize {
        self.connections.len() - self.cx.schedule.time_wait_count
    }

    /// Returns the memory held for out-of-order segments of all connections: received frames, and
    /// bytes of copies.
    #[must_use]
    pub const fn ooo_usage(&self) -> (usize, usize) {
        (self.cx.pools.ooo.frames(), self.cx.pools.ooo.bytes())
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.cx.verbs.counters
    }

    /// Returns the counters of a queue pair's TCP connection; `None` if it has none.
    #[must_use]
    pub fn tcp_stats(&self, qp: QpId) -> Option<tcp::Stats> {
        Some(self.connections.get(self.cx.qps.by_id(qp)?.conn?)?.tcb.stats())
    }

    /// Returns the registered memory.
    #[must_use]
    pub const fn memory(&self) -> &M {
        &self.cx.verbs.memory
    }

    /// Returns the completion queues.
    pub const fn completions_mut(&mut self) -> &mut C {
        &mut self.cx.verbs.completions
    }

    /// Returns the device.
    #[must_use]
    pub const fn device(&self) -> &D {
        &self.cx.device
    }

    /// Returns the device, for its owner's counters and settings.
    pub const fn device_mut(&mut self) -> &mut D {
        &mut self.cx.device
    }
}
