//! Eviction of partial FPDUs when there is no memory for more of them.
//!
//! Bytes that TCP has acknowledged are not retransmitted, so a stream in the middle of an FPDU
//! keeps its memory or ends. Other streams wait: bytes for which they have no memory count as not
//! received. Without eviction, peers that leave long FPDUs unfinished could block them forever.

use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::engine::connection::Phase;
use crate::time::{Instant, MILLISECOND};
use crate::verbs::wc::Completions;

/// Minimum interval of scans over all connections.
const SCAN_INTERVAL_NS: u64 = 100 * MILLISECOND;
/// Connections ended per scan, at most: enough for the longest FPDU out of buffers of any length.
const EVICTED_MAX: usize = 8;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Evicts partial FPDUs after bytes found no memory: ends the connections, oldest partial FPDU
    /// first, that have kept more than the guaranteed minimum for longer than `partial_timeout_ns`.
    ///
    /// Cost: visits each connection, at most ten times per second.
    #[cold]
    pub(super) fn evict_partial_fpdus(&mut self, now: Instant) {
        if now < self.evict_partials_at {
            return;
        }
        self.evict_partials_at = now + SCAN_INTERVAL_NS;
        let mut old: Vec<(Instant, u32)> = Vec::new();
        for index in self.connections.indices() {
            let Some(conn) = self.connections.get(index) else { continue };
            if let (Phase::Rdma { deframer: receiver }, Some(qp)) = (&conn.phase, conn.qp)
                && let Some(begun) = receiver.large_partial_since()
                && now.since(begun) >= self.config.partial_timeout_ns
            {
                old.push((begun, qp));
            }
        }
        old.sort_unstable();
        for &(_, qp) in old.iter().take(EVICTED_MAX) {
            self.verbs.counters.partials_evicted += 1;
            self.fail_locally(now, qp);
        }
    }
}
