//! Events of TCP, and the deferred effects of one connection on others.

use crate::connection::context::Deferred;
use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::tcp::Event;
use crate::time::Instant;
use crate::verbs::wc::Completions;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
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

    /// Runs the deferred effects on other connections.
    #[cold]
    pub(super) fn run_deferred(&mut self, now: Instant) {
        while let Some(deferred) = self.cx.deferred.pop() {
            match deferred {
                Deferred::Evict(victim) => {
                    if let Some((conn, cx)) = self.at(victim) {
                        conn.abort(cx);
                    }
                }
                // There is one of these for each slot.
                Deferred::OfferPendingRequests(port) => {
                    self.offer_pending_requests(port, 1);
                }
                Deferred::EvictPartialFpdus => self.evict_partial_fpdus(now),
                Deferred::RecycleTimeWait => {
                    self.recycle_oldest_time_wait();
                }
            }
        }
    }

    /// Offers the complete requests to `port` that waited for the backlog, as far as it has free
    /// slots, and `max` at most. Returns their number.
    #[cold]
    pub(super) fn offer_pending_requests(&mut self, port: u16, max: usize) -> usize {
        for count in 0..max {
            let Some(index) = self.cx.listeners.next_pending(port) else { return count };
            let Some((conn, cx)) = self.at(index) else { return count };
            conn.process_mpa_request(cx);
            // It was offered or refused, and does not wait any longer; or another shard took the
            // slot.
            if cx.listeners.next_pending(port) == Some(index) {
                return count;
            }
        }
        max
    }
}
