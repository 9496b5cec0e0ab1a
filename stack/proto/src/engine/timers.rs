//! Timers of connections, and the events of TCP.

use crate::cm::connection::Connection;
use crate::cm::context::Context;
use crate::cm::env::Env;
use crate::cm::schedule::ConnId;
use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::tcp::Event;
use crate::time::{Instant, NEVER};
use crate::verbs::cm::EndReason;
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

    /// Handles the events of TCP; removes the connection once it is closed, or else arms its timer.
    pub(super) fn handle_tcp_events_and_arm(&mut self, now: Instant, index: u32) {
        self.handle_tcp_events(now, index);
        if let Some((conn, cx)) = self.at(index) {
            conn.arm_timer(&mut cx.schedule);
        }
    }

    /// Handles the events of TCP and runs the deferred effects on other connections; removes the
    /// connection once it is closed.
    pub(super) fn handle_tcp_events(&mut self, now: Instant, index: u32) {
        if self.connections.get(index).is_some_and(|conn| conn.tcb.has_events()) {
            self.handle_tcp_events_cold(now, index);
        }
        if !self.cx.deferred.is_empty() {
            self.run_deferred(now);
        }
    }

    #[cold]
    fn handle_tcp_events_cold(&mut self, now: Instant, index: u32) {
        while let Some((conn, cx)) = self.at(index)
            && let Some(event) = conn.tcb.poll_event()
        {
            match event {
                Event::RcvWndLimited => self.grow_rcv_window(now, index),
                event => conn.on_tcp_event(cx, now, event),
            }
            self.run_deferred(now);
        }
        if self.connections.get(index).is_some_and(|conn| conn.tcb.is_closed()) {
            self.remove_connection(index);
        }
    }
}

impl<E: Env> Connection<E> {
    fn on_tcp_event(&mut self, cx: &mut Context<E>, now: Instant, event: Event) {
        match event {
            Event::Established => {
                self.on_handshake_complete(cx);
                if let Some(fpdus) = self.start_unframed(cx) {
                    self.process_buffered_fpdus(cx, now, &fpdus);
                }
            }
            Event::DataAfterFin => self.on_data_after_fin(cx),
            Event::PeerClosed => {
                self.tcb.release_ooo(&mut cx.pools.ooo);
                // req: MPA-054, MPA-147, MPA-152
                self.on_fin(cx, now);
            }
            // The next FPDU is built for the new EMSS.
            Event::EmssChanged => cx.verbs.counters.emss_changes += 1,
            Event::Reset => self.on_tcp_lost(cx, EndReason::Reset),
            Event::TimedOut => self.on_tcp_lost(cx, EndReason::TimedOut),
            Event::TimeWait => self.on_time_wait(cx),
            Event::R1Exceeded => self.next_hop.mark_suspect(now),
            // The engine's: it concerns the windows of others.
            Event::RcvWndLimited => {}
            Event::Closed => {}
        }
    }
}
