//! Scan over the connections for frames to reclaim: see [`TxReclaim`].
//!
//! [`TxReclaim`]: crate::connection::tx_reclaim::TxReclaim

use crate::connection::schedule::ConnId;
use crate::connection::tx_reclaim::{COPY_OUT_MAX, SCAN_MAX};
use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::time::Instant;
use crate::verbs::wc::Completions;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Reclaims frames after a pass in which one was needed and none was free. Cost: bounded, at
    /// most once per millisecond.
    #[inline]
    pub(super) fn reclaim_if_needed(&mut self, now: Instant) {
        if self.cx.pools.tx_reclaim.begin_scan(now) {
            self.reclaim_frames(now);
        }
    }

    #[cold]
    fn reclaim_frames(&mut self, now: Instant) {
        let slot_count = self.connections.slot_count();
        let mut budget = COPY_OUT_MAX;
        for _ in 0..SCAN_MAX.min(slot_count) {
            let reclaim = &mut self.cx.pools.tx_reclaim;
            let index = reclaim.cursor;
            if let Some(conn) = self.connections.get_mut(index) {
                let counters = &mut self.cx.verbs.counters;
                reclaim.visit(now, conn.id, &mut conn.tcb, &mut budget, counters);
            }
            let is_last = index as usize + 1 >= slot_count;
            reclaim.cursor = if is_last { 0 } else { index + 1 };
            if is_last && let Some(stalled) = reclaim.end_round(now) {
                self.reset_stalled(now, stalled);
            }
            if budget == 0 {
                break;
            }
        }
    }

    fn reset_stalled(&mut self, now: Instant, stalled: ConnId) {
        let Some((conn, cx)) = self.by_id(stalled) else { return };
        conn.tcb.give_up();
        cx.verbs.counters.stalled_resets += 1;
        conn.make_ready(&mut cx.schedule);
        self.handle_tcp_events_and_arm(now, stalled.index);
    }
}
