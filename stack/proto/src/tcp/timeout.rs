//! Timers fire: retransmission, tail-loss probe, persist, delayed ACK, TIME-WAIT, keepalive.

use super::send::{Fin, Phase};
use super::state::{Event, State};
use super::{NEVER, Notice, Plan, Tcb};
use crate::device::{Retained, RxFrame};
use crate::time::Instant;

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Fires what is due at `now`; [`Tcb::next_transmit`] then says what follows from it. The
    /// engine drains the receive queue first: an ACK that waits there stops a timer.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        self.plan = Plan::Nothing;
        if now >= self.ack.delayed {
            self.ack.delayed = NEVER;
            self.ack.due = true;
        }
        if now >= self.timers.linger {
            self.timers.linger = NEVER;
            if self.step(Event::TimeWaitOver) {
                self.gone();
                return;
            }
        }
        if now >= self.timers.tail {
            self.tail_expired(now);
        }
        if now >= self.timers.rto {
            self.rto_expired(now);
        }
        if now >= self.timers.persist {
            self.persist_expired(now);
        }
        if now >= self.timers.keepalive {
            self.keepalive_expired(now);
        }
    }

    /// True if `timer` is found so late that time must have jumped (the process or its machine
    /// stood still), for the first time in a row.
    fn found_late(&mut self, now: Instant, timer: Instant) -> bool {
        let late = !self.rearmed && now.since(timer) > self.cfg.tick_ns;
        self.rearmed |= late;
        late
    }

    /// RFC 6298 section 5, steps 5.4 to 5.7.
    fn rto_expired(&mut self, now: Instant) {
        if self.found_late(now, self.timers.rto) {
            self.timers.rto = now + self.rtt.rto(&self.cfg);
            return;
        }
        self.retries = self.retries.saturating_add(1);
        self.unanswered = self.unanswered.saturating_add(1);
        // A peer that answers with a closed window is alive (RFC 9293 section 3.8.6.1).
        let closed = self.snd.wnd == 0 && self.state.is_synchronised();
        let (tries, limit) = match self.state {
            State::SynSent | State::SynReceived => (self.retries, self.cfg.syn_retries),
            _ if closed => (self.unanswered, self.cfg.data_retries),
            _ => (self.retries, self.cfg.data_retries),
        };
        let overdue = now.since(self.progress_at) >= self.cfg.user_timeout_ns && !closed;
        if tries > limit || overdue {
            self.give_up();
            return;
        }
        self.rtt.back_off();
        self.timers.rto = now + self.rtt.rto(&self.cfg);
        if !self.state.is_synchronised() {
            self.due.syn = true;
            return;
        }
        self.stats.timeouts += 1;
        let first = self.recovery.phase != Phase::Timeout;
        self.recovery.enter(Phase::Timeout, self.snd.una, self.snd.nxt, self.cc);
        self.cc.on_timeout(self.snd.flight(), self.emss, first);
        self.board.lose_all();
        self.timers.tail = NEVER;
        self.due.tail = false;
        if self.snd.fin == Fin::Sent {
            self.snd.fin = Fin::Due;
        }
    }

    /// Nothing was heard of the tail of a flight: send its last record again, so that the peer
    /// reports what it lacks (after RFC 8985 section 7.3).
    fn tail_expired(&mut self, now: Instant) {
        if self.found_late(now, self.timers.tail) {
            self.arm_tail(now);
            return;
        }
        self.timers.tail = NEVER;
        self.due.tail = self.recovery.phase == Phase::Open && self.board.sent_len() > 0;
    }

    /// Starts the tail-loss probe's timer, if it applies: one probe per flight, while no loss is
    /// known, and with SACK, without which the answer would say nothing.
    #[inline]
    pub(super) fn arm_tail(&mut self, now: Instant) {
        let applies = self.cfg.tail_loss_probe
            && self.sack
            && !self.tail_sent
            && self.recovery.phase == Phase::Open;
        self.timers.tail = match self.rtt.probe_timeout(&self.cfg) {
            Some(timeout) if applies => now + timeout,
            _ => NEVER,
        };
    }

    /// RFC 9293 section 3.8.6.1 for a closed window; section 3.8.6.2.1 for a small one, where the
    /// timer permits a segment that is not full.
    fn persist_expired(&mut self, now: Instant) {
        if self.snd.usable() > 0 {
            self.override_silly = true;
        } else {
            self.unanswered = self.unanswered.saturating_add(1);
            if self.unanswered > self.cfg.data_retries {
                self.give_up();
                return;
            }
            self.due.probe = true;
        }
        self.persist_backoff = (self.persist_backoff + 1).min(16);
        self.timers.persist = now + self.persist_interval();
    }

    fn persist_interval(&self) -> u64 {
        (self.rtt.rto(&self.cfg) << self.persist_backoff).min(self.cfg.rto_max_ns)
    }

    /// The window holds something back and no ACK is under way that could open it.
    pub(super) fn arm_persist(&mut self, now: Instant) {
        if self.timers.persist == NEVER && self.snd.flight() == 0 {
            self.persist_backoff = 0;
            self.timers.persist = now + self.persist_interval();
        }
    }

    /// RFC 9293 section 3.8.4. While octets are outstanding, the retransmission timer watches.
    fn keepalive_expired(&mut self, now: Instant) {
        let Some(idle) = self.cfg.keepalive_ns else {
            self.timers.keepalive = NEVER;
            return;
        };
        let due = self.heard_at + idle;
        if now < due || self.snd.flight() > 0 {
            self.timers.keepalive = due.max(now + idle / 4);
            return;
        }
        self.unanswered = self.unanswered.saturating_add(1);
        if self.unanswered > self.cfg.data_retries {
            self.give_up();
            return;
        }
        self.due.probe = true;
        self.timers.keepalive = now + idle / 4;
    }

    /// The peer no longer answers.
    fn give_up(&mut self) {
        self.notify(Notice::TimedOut);
        self.due.reset = self.state != State::SynSent;
        self.kill();
    }
}
