//! Received segments: RFC 9293 section 3.10.7, with the checks of RFC 7323 (PAWS) and RFC 5961.

use super::deliver::Delivered;
use crate::device::{Retained, RxFrame};
use crate::tcp::Tcb;
use crate::tcp::connection_state::{State, StateEvent};
use crate::tcp::timestamps::{CoarseInstant, Timestamps};
use crate::tcp::upper_layer::Event;
use crate::time::{Instant, MILLISECOND, NEVER};
use crate::wire::seq::Seq;
use crate::wire::tcp::{Flags, Segment};

/// Lifetime of TS.Recent. RFC 7323 section 5.5 has 24 days, for clocks of a millisecond and slower;
/// a clock of a microsecond wraps in 71 minutes. A thousand seconds, in units of
/// [`Timestamps::coarse`].
const TS_RECENT_LIFE: u32 = 931;

/// Time from a refusal to the next SYN, in nanoseconds.
const REFUSAL_RETRY_INTERVAL_NS: u64 = 5 * MILLISECOND;

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Processes any segment, in any state.
    pub(in crate::tcp) fn process_segment<F>(
        &mut self,
        now: Instant,
        seg: &Segment,
        frame: F,
    ) -> Delivered<F> {
        // RFC 9293 3.10.7.1 and 3.10.7.3: CLOSED and SYN-SENT have rules of their own.
        match self.state {
            State::Closed => return Delivered::Nothing,
            State::SynSent => {
                self.process_syn_sent(now, seg);
                return Delivered::Nothing;
            }
            _ => {}
        }
        // A SYN in TIME-WAIT is answered by an ACK; the RST that follows is then believed.
        self.peer.syn_in_time_wait |= self.state == State::TimeWait && seg.flags.has(Flags::SYN);
        // RFC 7323 section 5.3, R1: before the sequence number is checked.
        if !self.passes_paws(now, seg) {
            return Delivered::Nothing;
        }
        // RFC 9293 3.10.7.4, first: sequence number.
        if !self.is_acceptable(seg) {
            self.process_unacceptable(now, seg);
            return Delivered::Nothing;
        }
        self.advance_ts_clock(now);
        // Second and fourth: RST and SYN. Third, security, does not apply. Fifth: a segment without
        // ACK is dropped.
        if seg.flags.any(Flags::RST | Flags::SYN) || !seg.flags.has(Flags::ACK) {
            self.process_rst_or_syn(now, seg);
            return Delivered::Nothing;
        }
        // Fifth, in SYN-RECEIVED: the acknowledgment of our SYN.
        if self.state == State::SynReceived && !self.process_syn_acked(now, seg) {
            return Delivered::Nothing;
        }
        // Fifth, in the synchronized states.
        if !self.process_ack(now, seg) {
            return Delivered::Nothing;
        }
        // Only after the acknowledgment was found acceptable: an off-path attacker must not keep a
        // dead connection alive.
        self.last_rx_at = now;
        self.unanswered = 0;
        // RFC 7323 section 4.3.
        self.update_ts_recent(now, seg);
        // Seventh and eighth: text and FIN. Sixth, URG, is not supported: its data is in line.
        self.process_payload(now, seg, frame)
    }

    /// Processes a segment in SYN-SENT (section 3.10.7.3).
    fn process_syn_sent(&mut self, now: Instant, seg: &Segment) {
        // First: an acknowledgment of anything but our SYN is answered by a RST.
        let acks = seg.flags.has(Flags::ACK);
        if acks && (seg.ack <= self.local.iss || seg.ack > self.snd.nxt) {
            if !seg.flags.has(Flags::RST) {
                self.send_stray_reset(now, seg);
            }
            return;
        }
        // Second: a RST counts only with an acceptable acknowledgment.
        if seg.flags.has(Flags::RST) {
            if acks && !self.retries_after_refusal(now) {
                self.raise_event(Event::Reset);
                self.kill();
            }
            return;
        }
        // Fourth: a SYN with ACK establishes, one without is a simultaneous open.
        if !seg.flags.has(Flags::SYN) {
            return;
        }
        self.last_rx_at = now;
        self.negotiate(now, seg);
        if acks {
            self.apply(StateEvent::SynAck);
            self.on_established(now, seg.ack);
            self.rcv.ack_now = true;
        } else {
            self.apply(StateEvent::Syn);
            self.pending.syn = true;
        }
    }

    /// The peer has refused our SYN. True if it is sent again: the listener may be on its way.
    fn retries_after_refusal(&mut self, now: Instant) -> bool {
        let begin = self.progress_at.instant(now);
        if now.since(begin) >= self.cfg.refusal_retry_ns {
            return false;
        }
        // The peer answers: none of the SYNs was lost.
        self.retries = 0;
        self.unanswered = 0;
        self.rtt.reset_backoff();
        self.pending.syn = false;
        self.timers.rto = now + REFUSAL_RETRY_INTERVAL_NS;
        true
    }

    /// Processes an ACK in SYN-RECEIVED. Returns false if it does not acknowledge our SYN: section
    /// 3.10.7.4 then requires a RST.
    fn process_syn_acked(&mut self, now: Instant, seg: &Segment) -> bool {
        if seg.ack != self.snd.nxt || seg.ack == self.local.iss {
            self.send_stray_reset(now, seg);
            return false;
        }
        self.apply(StateEvent::SynAcked);
        self.on_established(now, seg.ack);
        true
    }

    fn on_established(&mut self, now: Instant, ack: Seq) {
        if self.retries == 0 {
            self.rtt.sample(now, now.since(self.rcv_round.started_at()), None, &self.cfg);
        } else {
            self.rtt.on_syn_lost(&self.cfg);
        }
        if self.retries > 1 {
            // The path dropped several SYNs: no initial window of ten (RFC 6928 section 2).
            self.cc.set_cwnd(u32::from(self.emss));
        }
        self.rtt.reset_backoff();
        self.retries = 0;
        self.rearmed = false;
        self.progress_at = CoarseInstant::of(now);
        self.pending.syn = false;
        self.snd.una = ack;
        self.begin_rcv_round(now);
        self.timers.rto = NEVER;
        self.unanswered = 0;
        if let Some(idle) = self.cfg.keepalive_ns {
            self.rare.keepalive = now + idle;
        }
        self.raise_event(Event::Established);
        if self.close_pending {
            self.close();
        }
    }

    /// Performs PAWS (RFC 7323 section 5.3, R1 to R3), on segments with timestamps. One without is
    /// accepted, although section 3.2 recommends to drop it: some middleboxes and stacks leave the
    /// option out, and the connection would hang in silence. It is processed as without timestamps,
    /// and leaves TS.Recent as it is, so that the check of others stays as strict as before.
    #[inline]
    #[doc(alias = "PAWS")]
    fn passes_paws(&mut self, now: Instant, seg: &Segment) -> bool {
        if !self.ts_on || seg.flags.has(Flags::RST) {
            return true;
        }
        let Some((val, _)) = seg.options.ts else {
            if !self.sack {
                self.rtt.keep_rto_floor();
            }
            return true;
        };
        let old = val.wrapping_sub(self.ts.recent).cast_signed() < 0;
        if old && Timestamps::coarse(now).wrapping_sub(self.ts.recent_stamp) < TS_RECENT_LIFE {
            self.on_paws_drop(now, seg);
            // req: MPA-027
            return false;
        }
        true
    }

    /// Processes a segment with a timestamp older than TS.Recent. Mostly it was overtaken on the
    /// path, which a clock of a microsecond reveals.
    #[cold]
    fn on_paws_drop(&mut self, now: Instant, seg: &Segment) {
        self.stats.record().paws_drops += 1;
        let end = seg.seq + seg.seq_len();
        if !seg.payload.is_empty() && end <= self.rcv.nxt && self.acks_what_was_sent(seg) {
            // Its retransmission was faster. D-SACK shows the sender that it was spurious.
            self.stats.record().duplicates_in += 1;
            self.on_out_of_order(Some((seg.seq, end)));
        } else if seg.seq_len() > 0 || seg.ack > self.snd.una {
            self.send_challenge_ack(now, seg);
        }
        // A pure ACK of old data carries nothing new; the answer would count as a duplicate ACK.
    }

    /// Updates TS.Recent (RFC 7323 section 4.3): the timestamp of the segment that the next ACK
    /// answers. Only after the acknowledgment was found acceptable: a timestamp far ahead would
    /// lock the peer out, and an off-path attacker would only have to guess a sequence number.
    #[inline]
    fn update_ts_recent(&mut self, now: Instant, seg: &Segment) {
        if let (true, Some((val, _))) = (self.ts_on, seg.options.ts)
            && seg.seq <= self.rcv.last_ack_sent
        {
            self.ts.recent = val;
            self.ts.recent_stamp = Timestamps::coarse(now);
        }
    }

    /// Acceptability test of section 3.10.7.4, one byte wider at the right edge: an ACK from a peer
    /// that has filled the window lies there, and payload beyond is cut off.
    #[inline]
    pub(in crate::tcp) fn is_acceptable(&self, seg: &Segment) -> bool {
        let len = seg.seq_len();
        if len == 0 {
            return self.rcv.nxt <= seg.seq && seg.seq <= self.rcv.adv;
        }
        seg.seq <= self.rcv.adv && seg.seq + len > self.rcv.nxt
    }

    /// Processes a segment outside the window: answered by an ACK, unless it is a RST.
    #[cold]
    fn process_unacceptable(&mut self, now: Instant, seg: &Segment) {
        if seg.flags.has(Flags::RST) {
            if self.is_rst_at_fin(seg) {
                self.raise_event(Event::Reset);
                self.kill();
            } else {
                self.stats.record().out_of_window += 1;
            }
            return;
        }
        // RFC 9293 section 3.5: in SYN-RECEIVED the peer may repeat its SYN, or acknowledge ours.
        let end = seg.seq + seg.seq_len();
        if self.state == State::SynReceived && seg.flags.has(Flags::SYN) && seg.seq == self.peer.irs
        {
            if !seg.flags.has(Flags::ACK) {
                // The peer's SYN was retransmitted: our SYN-ACK was lost.
                self.ecn.on_repeated_syn(seg.flags);
                self.repeat_syn_ack(now);
            } else if self.process_syn_acked(now, seg) {
                // Simultaneous open (figure 8 of section 3.5): the sequence number is that of the
                // SYN already received, which the acceptability test does not provide for.
                self.snd.update_window(seg.seq, false, u32::from(seg.window));
                self.rcv.ack_now = true;
            }
            return;
        }
        // RFC 9293 sections 3.8.4 and 3.8.6.1: a probe shows that the peer lives.
        let is_probe = self.is_window_probe(seg);
        if is_probe {
            self.advance_ts_clock(now);
            self.last_rx_at = now;
            self.unanswered = 0;
        }
        if !seg.payload.is_empty() && end <= self.rcv.nxt {
            self.stats.record().duplicates_in += 1;
            // Half of all sequence numbers lie below the window: the acknowledgment shows that it
            // is the peer's. Each of those is answered, by its D-SACK.
            if self.acks_what_was_sent(seg) {
                self.on_out_of_order(Some((seg.seq, end)));
            } else {
                self.send_challenge_ack(now, seg);
            }
            return;
        }
        // RFC 9293 3.10.7.4, eighth, TIME-WAIT: a repeated FIN restarts the timer.
        self.stats.record().out_of_window += 1;
        if self.state == State::TimeWait && seg.flags.has(Flags::FIN) {
            self.enter_time_wait(now);
        }
        // RFC 9293 3.10.7.4, first: the answer is an ACK, of which there are limits (RFC 5961
        // section 7).
        if is_probe {
            self.send_probe_ack(now);
        } else {
            self.send_challenge_ack(now, seg);
        }
    }

    /// True for a RST with the sequence number of the peer's FIN, which some stacks send right
    /// after it when a process exits with its connection open. It is as hard to guess as RCV.NXT,
    /// the only other number accepted. Once both FINs are acknowledged nothing is left to reset.
    fn is_rst_at_fin(&self, rst: &Segment) -> bool {
        let has_finished = matches!(self.state, State::CloseWait | State::Closing | State::LastAck);
        has_finished && rst.seq == self.rcv.nxt - 1
    }

    /// True for a zero-window or keepalive probe: a segment just below the window. An off-path
    /// attacker who only guesses does not hit its sequence number.
    fn is_window_probe(&self, seg: &Segment) -> bool {
        self.acks_what_was_sent(seg)
            && !seg.flags.has(Flags::SYN)
            && seg.seq == self.rcv.nxt - 1
            && seg.seq_len() <= 1
    }

    /// True if the acknowledgment is acceptable (RFC 5961 section 5.2).
    fn acks_what_was_sent(&self, seg: &Segment) -> bool {
        seg.flags.has(Flags::ACK)
            && seg.ack <= self.snd.nxt
            && seg.ack >= self.snd.una - self.snd.max_wnd
    }

    /// Processes RST and SYN in the window (RFC 5961 sections 3.2 and 4.2); segments without ACK.
    #[cold]
    fn process_rst_or_syn(&mut self, now: Instant, seg: &Segment) {
        if seg.flags.has(Flags::RST) {
            if self.state == State::TimeWait {
                // An old RST must not cut TIME-WAIT short (RFC 1337). But a peer whose SYN is
                // answered by an ACK of this connection resets it (RFC 9293 section 3.5.1), and
                // would otherwise have to wait for the end of TIME-WAIT.
                if seg.seq == self.rcv.nxt && self.peer.syn_in_time_wait {
                    self.kill();
                }
            } else if seg.seq == self.rcv.nxt {
                // req: MPA-148
                self.raise_event(Event::Reset);
                self.kill();
            } else if seg.seq > self.rcv.nxt && seg.seq < self.rcv.adv {
                self.send_challenge_ack(now, seg);
            } else {
                // The RST itself lies below the window, though its payload reaches into it, or at
                // its right edge.
                self.stats.record().out_of_window += 1;
            }
        } else if seg.flags.has(Flags::SYN) {
            self.send_challenge_ack(now, seg);
        }
    }
}
