//! Events of TCP, and the deferred effects of one connection on others.

use crate::connection::context::Deferred;
use crate::connection::setup::listeners::ListenerRef;
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
    #[cold]
    pub(super) fn handle_tcp_events(&mut self, now: Instant, index: u32) {
        while let Some((conn, cx)) = self.at(index) {
            match conn.tcb.poll_event() {
                Some(Event::RcvWndLimited) => self.grow_rcv_window(now, index),
                Some(event) => conn.on_tcp_event(cx, now, event),
                None if conn.tcb.is_closed() => self.remove_connection(index),
                None => break,
            }
            self.run_deferred(now);
        }
        self.run_deferred(now);
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
                Deferred::OfferPendingRequests(listener) => {
                    self.offer_pending_requests(listener, 1);
                }
                Deferred::EvictPartialFpdus => self.evict_partial_fpdus(now),
                Deferred::RecycleTimeWait => {
                    self.recycle_oldest_time_wait();
                }
            }
        }
    }

    /// Offers the complete requests to a listener that waited for its backlog, as far as it has
    /// free slots, and `max` at most. Returns their number.
    #[cold]
    pub(super) fn offer_pending_requests(&mut self, listener: ListenerRef, max: usize) -> usize {
        for count in 0..max {
            let Some(index) = self.cx.listeners.next_pending(listener) else { return count };
            let Some((conn, cx)) = self.at(index) else { return count };
            // Another shard may take the slot first: then the request waits on.
            if !conn.process_mpa_request(cx) {
                return count;
            }
        }
        max
    }
}
