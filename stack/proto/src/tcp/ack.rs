//! What an acknowledgment means to the send side: RFC 9293 section 3.10.7.4 (fifth check), RFC
//! 6298, RFC 6582, RFC 6675, and the undoing of losses that were none (RFC 3522, RFC 2883).

use super::congestion::AckInfo;
use super::send::{Fin, Phase};
use super::state::{Event, State};
use super::{NEVER, Tcb};
use crate::device::{Retained, RxFrame};
use crate::time::{Instant, MICROSECOND};
use crate::wire::seq::Seq;
use crate::wire::tcp::{Flags, Segment};

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Takes the acknowledgment, window and SACK blocks of an acceptable segment. False: the
    /// segment is to be dropped whole.
    #[inline]
    pub(super) fn process_ack(&mut self, now: Instant, seg: &Segment) -> bool {
        let ack = seg.ack;
        // RFC 5961 section 5.2.
        if ack > self.snd.nxt || ack < self.snd.una - self.snd.max_wnd {
            self.stats.bad_acks += 1;
            self.challenge(now);
            return false;
        }
        if self.ecn.on {
            self.take_ecn(seg);
        }
        if ack < self.snd.una {
            return true;
        }
        let window = u32::from(seg.window) << self.snd.wscale;
        let moved = ack > self.snd.una;
        // RFC 5681 section 2, "duplicate acknowledgment".
        let duplicate = !moved
            && seg.payload.is_empty()
            && window == self.snd.wnd
            && self.snd.flight() > 0
            && !seg.flags.has(Flags::FIN);
        self.snd.update_window(seg.seq, ack, window);
        if moved {
            self.advance(now, seg);
        } else if duplicate {
            self.stats.duplicate_acks_in += 1;
            self.recovery.duplicates += 1;
        }
        if !self.sack {
            if duplicate {
                self.duplicate_ack();
            }
        } else if !seg.options.sack.is_empty() {
            self.take_sack(seg);
        }
        true
    }

    /// `seg.ack` acknowledges something new.
    fn advance(&mut self, now: Instant, seg: &Segment) {
        let octets = seg.ack - self.snd.una;
        self.snd.una = seg.ack;
        let acked = self.board.ack(seg.ack);
        self.board.advance(seg.ack);
        // Our own clock is finer; the peer's echo tells originals from retransmissions. After a
        // timeout or a probe both may mislead: where only the ACK was lost, the wait would be taken
        // for the path's round trip, and each wait would lengthen the next. So they count as an
        // ACK delay that a peer may well have, and no more.
        let mut sample =
            acked.sent_at.map(|at| now.since(at)).or_else(|| self.echoed_rtt(now, seg));
        if self.retries > 0 || self.tail_sent {
            let believable = self.cfg.rto_initial_ns.max(self.rtt.srtt());
            sample = sample.map(|sample| sample.min(believable));
        }
        if let Some(sample) = sample.filter(|_| acked.records > 0) {
            self.rtt.sample(now, sample, &self.cfg);
        }
        self.rtt.reset_backoff();
        self.retries = 0;
        self.rearmed = false;
        self.tail_sent = false;
        self.progress_at = now;
        self.recovery.duplicates = 0;
        if self.recovery.phase != Phase::Open {
            self.recover(seg, &self.ack_info(now, octets, sample));
        } else if self.cwnd_limited {
            self.cc.on_ack(&self.ack_info(now, octets, sample));
        }
        if self.snd.flight() == 0 {
            self.timers.rto = NEVER;
            self.timers.tail = NEVER;
            self.due.tail = false;
        } else {
            self.timers.rto = now + self.rtt.rto(&self.cfg);
            self.arm_tail(now);
        }
        if self.snd.fin_seq.is_some_and(|fin| seg.ack > fin) && self.snd.fin != Fin::Acked {
            self.snd.fin = Fin::Acked;
            self.step(Event::FinAcked);
            match self.state {
                State::Closed => self.gone(),
                State::TimeWait => self.linger(now),
                State::FinWait2 => self.await_fin(now),
                _ => {}
            }
        }
    }

    /// What congestion control learns from an ACK of `octets` that measured `sample`.
    #[inline]
    fn ack_info(&self, now: Instant, octets: u32, sample: Option<u64>) -> AckInfo {
        AckInfo {
            now,
            octets,
            mss: self.emss,
            srtt_ns: self.rtt.srtt(),
            rtt_ns: sample,
            snd_una: self.snd.una,
            snd_nxt: self.snd.nxt,
            recovering: self.recovery.phase != Phase::Open,
        }
    }

    /// Round-trip time by the echoed timestamp (RFC 7323 section 4), nanoseconds.
    fn echoed_rtt(&self, now: Instant, seg: &Segment) -> Option<u64> {
        let (_, echo) = seg.options.ts.filter(|_| self.ts.on)?;
        let micros = self.ts.value(now).wrapping_sub(echo).cast_signed();
        Some(u64::try_from(micros).ok()? * MICROSECOND)
    }

    /// Progress during an episode of loss.
    fn recover(&mut self, seg: &Segment, ack: &AckInfo) {
        if self.answers_original(seg) {
            self.undo();
            return;
        }
        match self.recovery.phase {
            Phase::Open => {}
            Phase::Fast => {
                if seg.ack >= self.recovery.point {
                    self.leave_recovery();
                } else if !self.sack {
                    // A partial ACK: the next hole starts here (RFC 6582 section 3.2, step 5).
                    self.recovery.left =
                        self.recovery.left.saturating_sub(ack.octets.saturating_sub(self.emss));
                    self.board.lose_first();
                    self.recovery.first_due = true;
                }
            }
            Phase::Timeout => {
                self.cc.on_ack(ack);
                if seg.ack >= self.recovery.point {
                    self.leave_recovery();
                }
            }
        }
    }

    /// Ends the episode; losses beyond its end begin the next.
    fn leave_recovery(&mut self) {
        self.recovery.leave();
        if self.board.resend_waits() {
            self.enter_fast();
        }
    }

    fn enter_fast(&mut self) {
        self.stats.fast_recoveries += 1;
        let hole = self.board.first_lost().unwrap_or(self.snd.una);
        self.recovery.enter(Phase::Fast, hole, self.snd.nxt, self.cc);
        if !self.ecn.covers(hole) {
            self.cc.on_loss(self.snd.flight(), self.emss);
        }
        self.ecn.on_loss(self.snd.nxt);
    }

    /// Eifel (RFC 3522): the first ACK that covers what was judged lost echoes a timestamp from
    /// before the retransmission, or nothing was sent again yet. Then it answers the original.
    fn answers_original(&mut self, seg: &Segment) -> bool {
        let Some(undo) = self.recovery.undo.as_mut() else { return false };
        if !undo.eifel || seg.ack <= undo.hole {
            return false;
        }
        undo.eifel = false;
        match (undo.first_ts, seg.options.ts) {
            (None, _) => true,
            (Some(first), Some((_, echo))) if self.ts.on => {
                echo.wrapping_sub(first).cast_signed() < 0
            }
            _ => false,
        }
    }

    /// The loss was none: everything as before it.
    fn undo(&mut self) {
        let Some(undo) = self.recovery.undo.take() else { return };
        self.stats.spurious += 1;
        self.cc.restore(undo.prior);
        if self.recovery.phase == Phase::Fast {
            self.recovery.tolerate_reordering();
        }
        self.board.forgive();
        self.recovery.leave();
    }

    /// SACK blocks (RFC 2018, RFC 2883, RFC 6675).
    fn take_sack(&mut self, seg: &Segment) {
        let mut blocks = seg.options.sack.as_slice();
        if is_duplicate_report(blocks, seg.ack) {
            let start = blocks[0].0;
            blocks = &blocks[1..];
            self.duplicate_reported(start);
        }
        let (una, nxt) = (self.snd.una, self.snd.nxt);
        let news = self.board.apply_sack(blocks, una, nxt);
        if news.octets == 0 {
            return;
        }
        let threshold = self.recovery.threshold;
        let mut lost = self.board.detect_lost(threshold, (threshold - 1) * self.emss);
        if let Some(probe) = news.probe {
            // The probe left long after all the rest; what the peer still lacks is lost.
            lost += self.board.lose_below(probe);
        }
        if lost > 0 && self.recovery.phase == Phase::Open {
            self.enter_fast();
        }
    }

    /// The peer received something twice. When it has said so of all we sent twice, nothing was
    /// lost (RFC 3708 section 3).
    fn duplicate_reported(&mut self, start: Seq) {
        let point = self.recovery.point;
        let Some(undo) = self.recovery.undo.as_mut() else { return };
        // Probes and earlier episodes bring about reports, too.
        if undo.unreported == 0 || start < undo.hole || start >= point {
            return;
        }
        undo.unreported -= 1;
        if undo.unreported == 0 {
            self.undo();
        }
    }

    /// A duplicate ACK of a peer without SACK (RFC 5681 section 3.2, RFC 6582).
    fn duplicate_ack(&mut self) {
        match self.recovery.phase {
            // Not for ACKs that an earlier episode's retransmissions bring about.
            Phase::Open
                if self.recovery.duplicates >= self.recovery.threshold
                    && self.snd.una > self.recovery.point =>
            {
                self.board.lose_first();
                self.enter_fast();
                self.recovery.left = self.recovery.threshold * self.emss;
            }
            Phase::Fast => self.recovery.left += self.emss,
            _ => return,
        }
        let others = self.snd.flight().saturating_sub(self.board.front_len());
        self.recovery.left = self.recovery.left.min(others);
    }

    /// Octets thought to be in the network.
    #[inline]
    pub(super) fn pipe(&self) -> u32 {
        self.board.pipe(self.snd.flight()).saturating_sub(self.recovery.left)
    }
}

/// True if the first block reports a duplicate (RFC 2883 section 4): it lies below the cumulative
/// acknowledgment, or inside the second block.
fn is_duplicate_report(blocks: &[(Seq, Seq)], ack: Seq) -> bool {
    match blocks {
        [first, ..] if first.1 <= ack => true,
        [first, second, ..] => second.0 <= first.0 && first.1 <= second.1,
        _ => false,
    }
}
