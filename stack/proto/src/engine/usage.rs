//! Resources in use by an engine: for monitoring, and for leak checks in tests.

use super::Engine;
use super::connection::Phase;
use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::tcp;
use crate::verbs::wc::{Completions, QpId};

/// Resources in use. Without connections all are 0 except `timers`, which become 0 as they fire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Connections, those that linger after their end included.
    pub connections: usize,
    /// Passive connections whose handshake is not complete.
    pub half_open: usize,
    /// Passive connections whose handshake is complete and whose MPA Request Frame is not, or waits
    /// for a free slot in the backlog.
    pub awaiting_request: usize,
    /// Connections whose request the application has not accepted or rejected yet.
    pub awaiting_decision: usize,
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

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Returns the resources in use. Visits each connection: for reports, not for every pass.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let mut awaiting_decision = 0;
        let (mut retained_segments, mut retained_segments_most) = (0, 0);
        for index in self.connections.indices() {
            let Some(conn) = self.connections.get(index) else { continue };
            awaiting_decision += usize::from(matches!(conn.phase, Phase::AwaitDecision(_)));
            let retained = conn.tcb.records();
            retained_segments += retained;
            retained_segments_most = retained_segments_most.max(retained);
        }
        Usage {
            connections: self.connections.len(),
            half_open: self.half_open,
            awaiting_request: self.awaiting_request.len(),
            awaiting_decision,
            tuples: self.by_tuple.len(),
            ooo_frames: self.ooo_pool.frames(),
            ooo_bytes: self.ooo_pool.bytes(),
            sent_copies: self.tx_reclaim.copy_pool.count(),
            partial_fpdus: self.fpdu_pool.buffers_in_use(),
            partial_bytes: self.fpdu_pool.bytes_in_use(),
            retained_segments,
            retained_segments_max: retained_segments_most,
            window_growth: self.window_growth,
            unresolved: self.unresolved.len(),
            timers: self.wheel.len(),
        }
    }

    /// Returns the counters of a queue pair's TCP connection; `None` if it has none.
    #[must_use]
    pub fn tcp_stats(&self, qp: QpId) -> Option<tcp::Stats> {
        let qp = self.verbs.get(self.verbs.index(qp)?)?;
        Some(self.connections.get(qp.conn?)?.tcb.stats())
    }
}
