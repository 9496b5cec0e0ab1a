//! Eviction of partial FPDUs when there is no memory for more of them.
//!
//! Bytes that TCP has acknowledged are not retransmitted, so a stream in the middle of an FPDU
//! keeps its memory or ends. Other streams wait: bytes for which they have no memory count as not
//! received, or stay in the out-of-order queue if they were reported as received. Without eviction,
//! peers that leave long FPDUs unfinished could block them forever.

use crate::connection::phase::Phase;
use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::time::{Instant, MILLISECOND};
use crate::verbs::wc::Completions;

/// Minimum interval of scans over all connections.
const SCAN_INTERVAL_NS: u64 = 100 * MILLISECOND;
/// Connections that a pass visits in a scan: the rest follows in the next passes.
const SCAN_STEP: usize = 1024;
/// Connections ended per step, at most: enough for the longest FPDU out of buffers of any length.
const EVICTED_MAX: usize = 8;

/// Out-of-order segments delivered in one pass, over all connections. One segment that fills a gap
/// may make thousands contiguous; the rest follows in the next passes.
const OOO_BUDGET: usize = 256;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Continues where earlier passes stopped, in round-robin order.
    pub(super) fn resume_contiguous(&mut self, now: Instant) {
        self.cx.schedule.ooo_budget = OOO_BUDGET;
        for _ in 0..self.cx.schedule.ooo_backlog.len() {
            if self.cx.schedule.ooo_budget == 0 {
                break;
            }
            let Some(id) = self.cx.schedule.ooo_backlog.pop_front() else { break };
            let Some((conn, cx)) = self.by_id(id) else { continue };
            conn.deliver_contiguous(cx, now);
            conn.make_ready(&mut cx.schedule);
            self.handle_tcp_events_and_arm(now, id.index);
        }
    }

    /// Continues with contiguous data for which MPA had no memory: the next connection when memory
    /// was released, and all of them once per scan, of which some may have ended meanwhile.
    #[cold]
    pub(super) fn resume_held(&mut self, now: Instant) {
        let mut is_scan = now >= self.evict_partials_at;
        if is_scan {
            self.evict_partial_fpdus(now);
            is_scan = self.evict_partials_from == 0;
        }
        if !self.cx.pools.fpdu.take_released() && !is_scan {
            return;
        }
        for _ in 0..self.cx.schedule.awaiting_partial_memory.len() {
            let schedule = &mut self.cx.schedule;
            if schedule.ooo_budget == 0 {
                // The next pass goes on.
                self.cx.pools.fpdu.keep_released();
                break;
            }
            let Some(id) = schedule.awaiting_partial_memory.pop_front() else { break };
            schedule.ooo_budget -= 1;
            let Some((conn, cx)) = self.by_id(id) else { continue };
            conn.deliver_contiguous(cx, now);
            conn.make_ready(&mut cx.schedule);
            let is_held = cx.schedule.awaiting_partial_memory.back() == Some(&id);
            self.handle_tcp_events_and_arm(now, id.index);
            if is_held && !is_scan {
                break;
            }
        }
    }

    /// Evicts partial FPDUs after bytes found no memory: ends connections that have kept more than
    /// the guaranteed minimum for longer than `partial_timeout_ns`. Of those that a step of the
    /// scan finds, the ones with the oldest partial FPDU go first. A connection that only awaits
    /// the peer's Terminate does not await it any longer.
    ///
    /// Cost: visits [`SCAN_STEP`] connections, and each at most ten times per second.
    #[cold]
    pub(super) fn evict_partial_fpdus(&mut self, now: Instant) {
        if now < self.evict_partials_at {
            return;
        }
        let timeout_ns = self.cx.config.partial_timeout_ns;
        let mut old: Vec<(Instant, u32)> = Vec::new();
        let (from, slots) = (self.evict_partials_from, self.connections.slot_count());
        let end = slots.min(from + SCAN_STEP);
        let is_last = end == slots;
        self.evict_partials_from = if is_last { 0 } else { end };
        self.evict_partials_at = if is_last { now + SCAN_INTERVAL_NS } else { now };
        for index in from..end {
            let conn = u32::try_from(index).ok().and_then(|index| self.connections.get(index));
            let Some(conn) = conn else { continue };
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
