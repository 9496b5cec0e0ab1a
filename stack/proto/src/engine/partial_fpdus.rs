//! Eviction of partial FPDUs when there is no memory for more of them.
//!
//! Bytes that TCP has acknowledged are not retransmitted, so a stream in the middle of an FPDU
//! keeps its memory or ends. Other streams wait: bytes for which they have no memory count as not
//! received. Without eviction, peers that leave long FPDUs unfinished could block them forever.

use crate::cm::connection::Phase;
use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::time::{Instant, MILLISECOND};
use crate::verbs::wc::Completions;

/// Minimum interval of scans over all connections.
const SCAN_INTERVAL_NS: u64 = 100 * MILLISECOND;
/// Connections ended per scan, at most: enough for the longest FPDU out of buffers of any length.
const EVICTED_MAX: usize = 8;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Evicts partial FPDUs after bytes found no memory: ends the connections, oldest partial FPDU
    /// first, that have kept more than the guaranteed minimum for longer than `partial_timeout_ns`.
    /// A connection that only awaits the peer's Terminate does not await it any longer.
    ///
    /// Cost: visits each connection, at most ten times per second.
    #[cold]
    pub(super) fn evict_partial_fpdus(&mut self, now: Instant) {
        if now < self.evict_partials_at {
            return;
        }
        self.evict_partials_at = now + SCAN_INTERVAL_NS;
        let timeout_ns = self.cx.config.partial_timeout_ns;
        let mut old: Vec<(Instant, u32)> = Vec::new();
        for conn in self.connections.iter() {
            let deframer = match &conn.phase {
                Phase::Rdma { deframer } => deframer,
                Phase::DrainTerminate { deframer } => deframer,
                _ => continue,
            };
            if let Some(begun) = deframer.large_partial_since()
                && now.since(begun) >= timeout_ns
            {
                old.push((begun, conn.id.index));
            }
        }
        old.sort_unstable();
        for &(_, index) in old.iter().take(EVICTED_MAX) {
            let Some((conn, cx)) = self.at(index) else { continue };
            cx.verbs.counters.partials_evicted += 1;
            if matches!(conn.phase, Phase::Rdma { .. }) {
                conn.fail_locally(cx, now);
            }
            conn.end_stream(&mut cx.pools.fpdu);
        }
    }
}
