//! End of a connection: close, abort, TIME-WAIT (RFC 9293 sections 3.10.4 and 3.10.5).

use super::Tcb;
use super::connection_state::{State, StateEvent};
use super::timer::{RareTimers, Timers};
use super::tx::send::{Fin, Pending};
use super::upper_layer::Event;
use crate::device::{Retained, RxFrame};
use crate::time::Instant;

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

    /// Ends the connection without a RST: the peer has everything, and there is nobody for what it
    /// may still send. If it does, it gets a RST then.
    pub fn forget(&mut self) {
        self.kill();
        self.update_fast_path();
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
        self.dsack_queue.clear();
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
