//! Timers of connections, and the events of TCP.

use crate::connection::schedule::ConnId;
use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::time::{Instant, NEVER};
use crate::verbs::wc::Completions;

/// Timers that fire in one pass, at most; the others are late by a pass. Many connections may have
/// begun to wait at the same time.
const TIMERS_PER_PASS: usize = 256;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Handles expired timers, within the budget of a pass.
    #[inline(always)]
    pub(super) fn fire_timers(&mut self, now: Instant) {
        if self.cx.schedule.wheel.is_due(now) {
            self.fire_due_timers(now);
        }
    }

    #[inline(never)]
    fn fire_due_timers(&mut self, now: Instant) {
        let mut fired = std::mem::take(&mut self.fired);
        self.cx.schedule.wheel.advance(now, TIMERS_PER_PASS, &mut fired);
        for timer in fired.drain(..) {
            let id = ConnId { index: timer.owner, generation: timer.generation };
            let Some((conn, cx)) = self.by_id(id) else { continue };
            if !conn.armed_timers.disarm(timer.tick) {
                continue;
            }
            if conn.deadline <= now {
                conn.deadline = NEVER;
                conn.on_deadline(cx, now);
            }
            if conn.tcb.deadline().is_some_and(|deadline| deadline <= now) {
                conn.tcb.handle_timeout(now);
            }
            conn.make_ready(&mut cx.schedule);
            self.handle_tcp_events_and_arm(now, id.index);
        }
        self.fired = fired;
    }
}
