//! Receive windows that grow beyond their initial size: the growth is shared by all connections.

use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::time::{Instant, MILLISECOND, SECOND};
use crate::verbs::wc::Completions;

/// Idle time of a peer after which its grown receive window is reset, when other connections need
/// window growth.
const WINDOW_IDLE_NS: u64 = 10 * SECOND;
/// Minimum interval of such scans, and connections visited in one, at most.
const WINDOW_RECLAIM_INTERVAL_NS: u64 = MILLISECOND;
const WINDOW_RECLAIM_SCAN_MAX: usize = 64;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Grows a receive window that limits its peer, by half of the growth left for all connections
    /// at most, so that some remains for others.
    #[cold]
    pub(super) fn grow_rcv_window(&mut self, now: Instant, index: u32) {
        let Some(conn) = self.connections.get_mut(index) else { return };
        let limit = conn.tcb.window_limit();
        let wanted = conn.tcb.window_wanted().saturating_sub(limit);
        if u64::from(wanted) > self.growth_left() / 2 {
            self.reclaim_windows(now);
        }
        let increment = wanted.min(u32::try_from(self.growth_left() / 2).unwrap_or(u32::MAX));
        let Some((conn, cx)) = self.at(index) else { return };
        conn.tcb.grow_window(limit + increment);
        conn.window_growth += increment;
        cx.pools.window_growth += u64::from(increment);
    }

    /// Returns the bytes by which windows may still grow.
    fn growth_left(&self) -> u64 {
        self.cx.config.window_growth_max.saturating_sub(self.cx.pools.window_growth)
    }

    /// Resets grown receive windows of idle peers to their initial size. The window advertised is
    /// not retracted, only not renewed. Cost: bounded, at most once a millisecond.
    fn reclaim_windows(&mut self, now: Instant) {
        let Self { connections, cx, window_reclaim_at, window_reclaim_cursor, .. } = self;
        if now < *window_reclaim_at {
            return;
        }
        *window_reclaim_at = now + WINDOW_RECLAIM_INTERVAL_NS;
        let slot_count = connections.slot_count();
        for _ in 0..WINDOW_RECLAIM_SCAN_MAX.min(slot_count) {
            let index = *window_reclaim_cursor;
            let is_last = index as usize + 1 >= slot_count;
            *window_reclaim_cursor = if is_last { 0 } else { index + 1 };
            let Some(conn) = connections.get_mut(index) else { continue };
            if conn.window_growth > 0 && now.since(conn.tcb.last_rx_at()) > WINDOW_IDLE_NS {
                conn.tcb.reset_window();
                cx.pools.window_growth -= u64::from(core::mem::take(&mut conn.window_growth));
                cx.verbs.counters.windows_reclaimed += 1;
            }
        }
    }
}
