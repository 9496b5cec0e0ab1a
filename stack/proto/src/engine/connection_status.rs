//! List of an engine's connections, for reports.

use core::net::SocketAddr;
use core::time::Duration;

use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::steering::mesh::MeshPort;
use crate::tcp;
use crate::time::Instant;
use crate::verbs::qp::QpState;
use crate::verbs::wc::{Completions, QpId};

/// One TCP connection, as it is at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionStatus {
    /// Queue pair. `None` if it has none yet, because its request waits to be accepted, and if it
    /// has none any more: it lingers after the queue pair is gone, or in TIME-WAIT.
    pub qp: Option<QpId>,
    /// State of the queue pair.
    pub qp_state: Option<QpState>,
    /// State of TCP.
    pub tcp_state: tcp::State,
    /// Local address.
    pub local: SocketAddr,
    /// Address of the peer.
    pub peer: SocketAddr,
    /// True if the peer has connected, false if this end has.
    pub is_passive: bool,
    /// Time since the first SYN was sent or received, with an error of some 20 ms.
    pub age: Duration,
    /// Time since the last acceptable segment of the peer.
    pub idle: Duration,
    /// Shard.
    pub shard: usize,
    /// Counts of its TCP.
    pub stats: tcp::Stats,
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Returns all connections, those included whose queue pair is gone and that wait for the peer
    /// or for stray segments. Visits each: for reports.
    #[must_use]
    pub fn connections(&self, now: Instant) -> Vec<ConnectionStatus> {
        let shard = self.cx.mesh.as_deref().map_or(0, |mesh| MeshPort::id(mesh).index());
        let status = |conn: &crate::connection::Connection<_>| {
            let qp = conn.qp.and_then(|qp| self.cx.qps.get(qp));
            let tuple = conn.tcb.tuple();
            ConnectionStatus {
                qp: qp.map(|qp| qp.id),
                qp_state: qp.map(|qp| qp.state()),
                tcp_state: conn.tcb.state(),
                local: tuple.local,
                peer: tuple.remote,
                is_passive: conn.tcb.is_passive(),
                age: Duration::from_nanos(self.connections.age(conn.id.index, now)),
                idle: Duration::from_nanos(now.since(conn.tcb.last_rx_at())),
                shard,
                stats: conn.tcb.stats(),
            }
        };
        self.connections.iter().map(status).collect()
    }
}
