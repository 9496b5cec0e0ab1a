//! End of a connection: close, abort, TIME-WAIT, and its reuse by a new connection with the same
//! four-tuple (RFC 9293 sections 3.10.4 and 3.10.5, RFC 6191).

use super::Tcb;
use super::connection_state::{State, StateEvent};
use super::control_block::Pending;
use super::rx::window::DsackQueue;
use super::timer::{RareTimers, Timers};
use super::tx::send::Fin;
use super::upper_layer::Event;
use crate::device::{Retained, RxFrame};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::{Flags, Segment};

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Closes the send direction: a FIN follows the last record, including those still to be
    /// written (as long as [`Tcb::next_transmit`] is given them). Receiving continues.
    pub fn close(&mut self) {
        match self.state {
            State::SynSent => self.kill(),
            State::SynReceived => self.close_pending = true,
            _ => {
                if self.transition(StateEvent::Close) {
                    self.snd.fin = Fin::Due;
                }
            }
        }
        self.update_fast_path();
    }

    /// Shuts the receive direction: the upper layer takes no more bytes. New data resets the
    /// connection, as the peer must learn that it is lost (RFC 9293 section 3.6.1).
    pub fn shut_receive(&mut self) {
        self.receive_shut = true;
        self.update_fast_path();
    }

    /// Aborts the connection. A RST is sent in the states in which the peer may still send or wait
    /// for data (RFC 9293 section 3.10.5).
    pub fn abort(&mut self) {
        self.pending.reset |= matches!(
            self.state,
            State::SynReceived
                | State::Established
                | State::FinWait1
                | State::FinWait2
                | State::CloseWait
        );
        self.kill();
        self.update_fast_path();
    }

    /// True if the SYN `seg` may replace this connection by a new one: in TIME-WAIT, if no old
    /// segment can be mistaken for one of the new connection (RFC 6191 section 2); or in
    /// SYN-RECEIVED, which returns to LISTEN for another SYN in the window (RFC 9293 section
    /// 3.10.7.4, fourth check).
    #[inline]
    #[must_use]
    pub fn may_recycle(&self, seg: &Segment) -> bool {
        seg.flags.has(Flags::SYN) && self.may_recycle_slow(seg)
    }

    #[cold]
    fn may_recycle_slow(&self, syn: &Segment) -> bool {
        if syn.flags.any(Flags::ACK | Flags::RST) {
            return false;
        }
        let is_next = syn.seq > self.rcv.nxt;
        match (self.state, syn.options.ts) {
            (State::SynReceived, _) => {
                self.passive && syn.seq != self.peer.irs && self.is_acceptable(syn)
            }
            (State::TimeWait, Some((val, _))) if self.ts_on => {
                let newer = val.wrapping_sub(self.ts.recent).cast_signed();
                newer > 0 || (newer == 0 && is_next)
            }
            // The new connection will have timestamps, by which PAWS rejects old segments.
            (State::TimeWait, Some(_)) if self.cfg.timestamps => true,
            (State::TimeWait, _) => is_next,
            _ => false,
        }
    }

    /// Returns the initial sequence number for the next connection between the same ends: beyond
    /// all that this one has used and that its peer could still accept (RFC 9293 section 3.10.7.4,
    /// MAY-2).
    #[must_use]
    pub fn successor_seq(&self) -> Seq {
        self.snd.nxt + self.snd.max_wnd.max(0xffff)
    }

    /// Moves to CLOSED from any state.
    pub(super) fn kill(&mut self) {
        if self.transition(StateEvent::Kill) {
            self.on_closed();
        }
    }

    /// Cleans up on entry to CLOSED: releases sent frames and stops the timers. Received frames are
    /// released by [`Tcb::release_ooo`].
    pub(super) fn on_closed(&mut self) {
        self.raise_event(Event::Closed);
        self.scoreboard.clear();
        self.recovery.release_memory();
        (self.timers, self.rare, self.paced) = (Timers::OFF, RareTimers::OFF, false);
        self.rcv.clear_acks();
        self.dsack_queue = DsackQueue::default();
        self.pending = Pending { reset: self.pending.reset, ..Pending::default() };
    }

    /// Enters TIME-WAIT, or restarts its timer.
    pub(super) fn enter_time_wait(&mut self, now: Instant) {
        self.raise_event(Event::TimeWait);
        self.scoreboard.release_memory();
        self.recovery.release_memory();
        self.dsack_queue.release_memory();
        let wait_end = now + self.cfg.time_wait_ns;
        // A pending delayed ACK is still sent.
        self.timers = Timers { delayed_ack: self.timers.delayed_ack, ..Timers::OFF };
        (self.rare, self.paced) = (RareTimers { wait_end, ..RareTimers::OFF }, false);
    }
}
