//! Timers of one connection, and the actions on their expiry: retransmission, reordering, tail loss
//! probe, persist, delayed ACK, FIN-WAIT-2, TIME-WAIT, keepalive. Each timer is a point in time,
//! [`NEVER`] if it does not run; the engine sees only the earliest.

use super::Tcb;
use super::connection_state::{State, StateEvent};
use super::rare_counts::Stall;
use super::recovery::ca_state::CaState;
use super::recovery::tlp::TlpProbe;
use super::recovery::undo::Frto;
use super::timestamps::CoarseInstant;
use super::upper_layer::Event;
use crate::device::{Retained, RxFrame};
use crate::time::{Instant, MICROSECOND, NEVER, SECOND};

/// Timers that most segments restart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timers {
    /// Retransmission (RFC 6298).
    pub(super) rto: Instant,
    /// Idle timer while nothing is in flight: releases memory. Otherwise probe timeout (PTO, RFC
    /// 8985 section 7).
    pub(super) pto: Instant,
    /// Delayed ACK.
    pub(super) delayed_ack: Instant,
    /// Earliest of the [`RareTimers`].
    pub(super) rare: Instant,
}

impl Timers {
    /// None runs.
    pub(super) const OFF: Self = Self { rto: NEVER, pto: NEVER, delayed_ack: NEVER, rare: NEVER };

    /// Returns the earliest, or [`NEVER`].
    #[inline]
    pub(super) fn earliest(&self) -> Instant {
        self.rto.min(self.pto).min(self.delayed_ack).min(self.rare)
    }
}

/// Timers that the fast path does not touch.
#[derive(Clone, Copy, Debug)]
pub(super) struct RareTimers {
    /// Reordering (RFC 8985 section 6.2, step 5).
    pub(super) reorder: Instant,
    /// Zero-window probe and SWS override (RFC 9293 sections 3.8.6.1 and 3.8.6.2.1).
    pub(super) persist: Instant,
    /// End of TIME-WAIT, or of the wait for a FIN in FIN-WAIT-2. In earlier states the stall timer:
    /// end of the wait for a peer that takes nothing.
    pub(super) wait_end: Instant,
    /// Keepalive.
    pub(super) keepalive: Instant,
    /// Start of the next paced burst; runs as a timer only while the burst waits for it.
    pub(super) pacing: Instant,
}

impl RareTimers {
    /// None runs.
    pub(super) const OFF: Self = Self {
        reorder: NEVER,
        persist: NEVER,
        wait_end: NEVER,
        keepalive: NEVER,
        pacing: Instant::ZERO,
    };

    /// Returns the earliest, or [`NEVER`]. `paced`: a burst waits for its time.
    pub(super) fn earliest(&self, paced: bool) -> Instant {
        let burst = if paced { self.pacing } else { NEVER };
        self.reorder.min(self.persist).min(self.wait_end).min(self.keepalive).min(burst)
    }
}

/// R1: retransmissions of one segment after which the next hop is suspect (RFC 9293 section 3.8.3,
/// which requires at least 3).
const R1_RETRIES: u8 = 3;
/// Longest wait for a larger window while a small one is open (RFC 9293 section 3.8.6.2.1).
const SWS_OVERRIDE_MAX_NS: u64 = SECOND;

/// Time for which the scoreboard's memory is kept with nothing in flight.
pub(super) const IDLE_NS: u64 = SECOND;

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Handles the timers that have expired at `now`; [`Tcb::next_transmit`] then returns what is
    /// to be sent. The engine drains the receive queue first, as an ACK in it may stop a timer.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.fire(now);
            self.update_fast_path();
        }
    }

    fn fire(&mut self, now: Instant) {
        if now >= self.timers.delayed_ack {
            self.timers.delayed_ack = NEVER;
            self.rcv.ack_now = true;
        }
        if now >= self.rare.wait_end {
            self.wait_expired(now);
        }
        if now >= self.rare.reorder {
            self.reorder_expired(now);
        }
        if now >= self.timers.pto {
            self.pto_expired(now);
        }
        if now >= self.timers.rto {
            self.rto_expired(now);
        }
        if now >= self.rare.persist {
            self.persist_expired(now);
        }
        if now >= self.rare.pacing {
            // `next_transmit` then admits the next burst.
            self.paced = false;
        }
        if now >= self.rare.keepalive {
            self.keepalive_expired(now);
        }
    }

    /// True if `timer` expired so long ago that the process or its machine was suspended, for the
    /// first time in a row. The RTO is then restarted without its backoff: what was received
    /// meanwhile is processed long before it expires.
    fn timer_overrun(&mut self, now: Instant, timer: Instant) -> bool {
        let overrun = !self.rearmed && now.since(timer) > self.cfg.timer_overrun_ns;
        if overrun {
            self.rearmed = true;
            self.timers.rto = now + self.rtt.base_rto(&self.cfg);
        }
        overrun
    }

    /// Restarts the timers after SND.UNA advanced, or stops them (RFC 6298 sections 5.2 and 5.3).
    #[inline]
    pub(super) fn rearm_timers(&mut self, now: Instant) {
        if self.snd.flight() > 0 {
            self.timers.rto = now + self.rtt.rto(&self.cfg);
            self.arm_pto(now);
            return;
        }
        self.timers.rto = NEVER;
        self.rare.reorder = NEVER;
        self.timers.pto = if self.scoreboard.holds_memory() { now + IDLE_NS } else { NEVER };
        self.pending.tlp = false;
    }

    /// Starts the retransmission timer if it is off: something is sent that the peer will
    /// acknowledge.
    #[inline]
    pub(super) fn arm_rto(&mut self, now: Instant) {
        if self.timers.rto == NEVER {
            self.timers.rto = now + self.rtt.rto(&self.cfg);
            self.progress_at = CoarseInstant::of(now);
        }
    }

    /// RFC 6298 section 5, steps 5.4 to 5.7; RFC 8985 section 6.3.
    fn rto_expired(&mut self, now: Instant) {
        let progress = self.progress_at.instant(now);
        if self.state.is_synchronized() {
            self.arm_stall(progress, 0);
        }
        if self.timer_overrun(now, self.timers.rto) {
            return;
        }
        self.retries = self.retries.saturating_add(1);
        self.unanswered = self.unanswered.saturating_add(1);
        // A peer that answers with a closed window is alive (RFC 9293 section 3.8.6.1).
        let closed = self.snd.wnd == 0 && self.state.is_synchronized();
        // RFC 9293 section 3.8.3: after R2 the connection is given up; R2 is in tries and in time.
        let (tries, limit) = match self.state {
            State::SynReceived if self.passive => (self.retries, self.cfg.syn_ack_retries),
            State::SynSent | State::SynReceived => (self.retries, self.cfg.syn_retries),
            _ if closed => (self.unanswered, self.cfg.data_retries),
            _ => (self.retries, self.cfg.data_retries),
        };
        let last_activity = if closed { progress.max(self.last_rx_at) } else { progress };
        let end = last_activity + self.cfg.user_timeout_ns;
        let timed = self.state.is_synchronized() && (!closed || self.unanswered > 1);
        if tries > limit || (timed && now >= end) {
            self.give_up();
            return;
        }
        // RFC 9293 section 3.8.3: R1 is reported to the layer below.
        if self.unanswered == R1_RETRIES {
            self.raise_event(Event::R1Exceeded);
        }
        // RFC 6298 steps 5.5 and 5.6: the timeout doubles, and the timer is restarted.
        self.rtt.back_off();
        self.timers.rto = now + self.rtt.rto(&self.cfg);
        if timed {
            self.timers.rto = self.timers.rto.min(end);
        }
        // RFC 6298 step 5.4: the earliest segment is sent again, here our SYN.
        if !self.state.is_synchronized() {
            self.pending.syn = true;
            return;
        }
        self.stats.record().timeouts += 1;
        let before = self.recovery.ca_state;
        self.recovery.enter(CaState::Loss, self.snd.una, self.snd.nxt, self.cc);
        // If the next ACK has a timestamp, Eifel detection decides instead.
        if before != CaState::Loss {
            self.recovery.frto = Frto::AwaitFirstAck;
        }
        // RFC 5681 section 3.1: ssthresh is reduced once per loss, the window falls to one segment.
        let first = before == CaState::Open && !self.ecn.covers(self.snd.una);
        let flight = self.loss_flight(self.snd.una, self.snd.flight());
        self.cc.on_timeout(flight, u32::from(self.emss), first);
        self.ecn.on_loss(self.snd.nxt);
        // RFC 8985 section 6.3: the first record is lost, and those sent long enough ago. Without
        // SACK nothing shows what was received.
        let rack_timeout = if self.sack {
            let sacked = self.scoreboard.sacked_count();
            self.rack.rack_timeout(self.rack.reo_wnd(true, sacked, &self.rtt))
        } else {
            0
        };
        self.scoreboard.update(|records| records.mark_lost_on_rto(now, rack_timeout));
        // Probes and the reordering timer are for a flight without timeout (RFC 8985 section 7.2).
        self.timers.pto = NEVER;
        self.rare.reorder = NEVER;
        self.pending.tlp = false;
        self.tlp.probe = TlpProbe::None;
        self.snd.resend_fin();
    }

    /// Handles expiry of the reordering timer (RFC 8985 section 6.2, step 5).
    fn reorder_expired(&mut self, now: Instant) {
        if self.timer_overrun(now, self.rare.reorder) {
            self.rare.reorder = now + self.rtt.srtt().max(MICROSECOND);
            return;
        }
        self.rare.reorder = NEVER;
        let flight = self.snd.flight();
        let outstanding = flight - self.scoreboard.sacked();
        if self.detect_losses(now) == 0 {
            return;
        }
        if self.recovery.ca_state == CaState::Open {
            self.enter_recovery(outstanding, flight);
        }
        if self.recovery.ca_state == CaState::Recovery {
            // Without an ACK, PRR is called with nothing delivered.
            let pipe = self.pipe();
            let ssthresh = self.cc.ssthresh();
            if let Some(prr) = self.recovery.prr_mut() {
                self.cc.set_cwnd(prr.window(0, pipe, ssthresh, u32::from(self.emss), false));
            }
            self.recovery.force_retransmit = true;
        }
    }

    /// Handles expiry of the PTO: the tail of a flight was not acknowledged, and a probe is due.
    /// With nothing in flight, the connection has been idle for a while, and the memory of
    /// loss recovery is released.
    fn pto_expired(&mut self, now: Instant) {
        if self.snd.flight() == 0 {
            self.timers.pto = NEVER;
            self.scoreboard.release_memory();
            self.recovery.release_memory();
            self.dsack_queue.release_memory();
            self.ecn.release_memory();
            return;
        }
        self.arm_stall(self.progress_at.instant(now), 0);
        if self.timer_overrun(now, self.timers.pto) {
            self.arm_pto(now);
            return;
        }
        self.timers.pto = NEVER;
        if self.recovery.ca_state != CaState::Open || !self.scoreboard.is_clean() {
            return;
        }
        if self.scoreboard.sent_count() > 0 {
            self.pending.tlp = true;
        } else if self.snd.resend_fin() {
            self.on_tlp_sent(now, TlpProbe::NewData, None);
        }
        // The RTO counts from the probe (section 7.3).
        self.timers.rto = now + self.rtt.rto(&self.cfg);
    }

    /// Handles the end of TIME-WAIT, of the wait for the peer's FIN in FIN-WAIT-2, or of the wait
    /// for a peer that takes nothing. That for a FIN is extended while the peer still sends; a peer
    /// that crashed must not hold the connection forever.
    fn wait_expired(&mut self, now: Instant) {
        let expired = core::mem::replace(&mut self.rare.wait_end, NEVER);
        if self.transition(StateEvent::TimeWaitOver) {
            self.on_closed();
        } else if self.state == State::FinWait2 {
            if now.since(self.last_rx_at) < self.cfg.fin_wait_ns {
                self.rare.wait_end = self.last_rx_at + self.cfg.fin_wait_ns;
            } else {
                self.give_up();
            }
        } else {
            self.stall_expired(now, expired);
        }
    }

    /// Starts the timer for a peer that takes nothing (RFC 6429), if it is in use and off: bytes in
    /// flight were not acknowledged in time, or `waiting` others wait for the window.
    fn arm_stall(&mut self, since: Instant, waiting: u32) {
        let Some(limit) = self.cfg.stall_timeout_ns else { return };
        if self.rare.wait_end == NEVER {
            self.rare.wait_end = since + limit;
            // A peer that takes a byte now and then does not restart it; one that has taken all
            // that waited does.
            let awaited = self.snd.flight().saturating_add(waiting).min(self.emss.into());
            let until = self.snd.una + awaited;
            *self.stats.stall_mut() = Stall { until, rearmed: false };
        }
    }

    /// Handles expiry of the timer for a peer that takes nothing; `expired`: its time.
    fn stall_expired(&mut self, now: Instant, expired: Instant) {
        let is_waiting = self.snd.flight() > 0 || self.rare.persist != NEVER;
        if !is_waiting {
            return;
        }
        let stall = self.stats.stall_mut();
        if self.snd.una >= stall.until {
            // Data that waits for the window starts it again at the next attempt to send.
            if self.snd.flight() > 0 {
                self.arm_stall(self.progress_at.instant(now), 0);
            }
        } else if !stall.rearmed && now.since(expired) > self.cfg.timer_overrun_ns {
            // The process was suspended: what the peer has sent meanwhile is processed first.
            stall.rearmed = true;
            self.rare.wait_end = now + self.rtt.base_rto(&self.cfg);
        } else {
            self.give_up();
        }
    }

    /// Starts the timer of FIN-WAIT-2.
    pub(super) fn on_fin_wait_2(&mut self, now: Instant) {
        self.rare.wait_end = now + self.cfg.fin_wait_ns;
    }

    /// Handles expiry of the persist timer. Window closed: sends a zero-window probe (RFC 9293
    /// section 3.8.6.1). Window small: permits a segment smaller than EMSS (section 3.8.6.2.1).
    fn persist_expired(&mut self, now: Instant) {
        self.persist_backoff = (self.persist_backoff + 1).min(16);
        self.rare.persist = now + self.persist_interval();
        if self.snd.usable() > 0 {
            self.sws_override = true;
            return;
        }
        // A window that stays closed is no failure while the peer answers.
        let answered = self.progress_at.instant(now).max(self.last_rx_at);
        let end = answered + self.cfg.user_timeout_ns;
        self.unanswered = self.unanswered.saturating_add(1);
        let timed = self.unanswered > 1;
        if self.unanswered > self.cfg.data_retries || (timed && now >= end) {
            self.give_up();
            return;
        }
        if timed {
            self.rare.persist = self.rare.persist.min(end);
        }
        self.pending.probe = true;
    }

    fn persist_interval(&self) -> u64 {
        if self.snd.usable() > 0 {
            return self.rtt.rto(&self.cfg).min(SWS_OVERRIDE_MAX_NS);
        }
        (self.rtt.rto(&self.cfg) << self.persist_backoff).min(self.cfg.rto_max_ns)
    }

    /// Notes that the window does not admit `waiting` bytes of pending data. Starts the persist
    /// timer if no ACK that could open it is outstanding.
    pub(super) fn arm_persist(&mut self, now: Instant, waiting: u32) {
        self.arm_stall(now, waiting);
        if self.rare.persist == NEVER && self.snd.flight() == 0 {
            self.persist_backoff = 0;
            self.progress_at = CoarseInstant::of(now);
            self.rare.persist = now + self.persist_interval();
        }
    }

    /// RFC 9293 section 3.8.4. While data is outstanding or waits for the window, another timer
    /// detects that the peer is gone.
    #[doc(alias = "keep-alive")]
    fn keepalive_expired(&mut self, now: Instant) {
        let Some(idle) = self.cfg.keepalive_ns else {
            self.rare.keepalive = NEVER;
            return;
        };
        let due = self.last_rx_at + idle;
        if now < due {
            self.rare.keepalive = due;
            return;
        }
        let is_watched = self.snd.flight() > 0 || self.rare.persist != NEVER;
        if is_watched || !self.state.can_send() {
            self.rare.keepalive = now + idle;
            return;
        }
        if self.unanswered >= self.cfg.keepalive_count {
            self.give_up();
            return;
        }
        self.unanswered += 1;
        self.pending.probe = true;
        self.rare.keepalive = now + self.cfg.keepalive_interval_ns;
    }

    /// Aborts the connection as if the peer no longer answered: [`Event::TimedOut`], and a RST
    /// except in SYN-SENT.
    pub fn give_up(&mut self) {
        self.raise_event(Event::TimedOut);
        self.pending.reset = self.state != State::SynSent;
        self.kill();
        self.update_fast_path();
    }
}
