//! ACKs while something is amiss: loss found and repaired (RFC 8985 section 6, RFC 6675, RFC
//! 6582), its rate (RFC 9937), and the undoing of losses that were none (RFC 3522, RFC 2883, RFC
//! 3708, RFC 5682).
//!
//! There is no rescue retransmission (RFC 6675 section 4, rule 4): the end of a flight is found
//! lost by the answer to any retransmission, which left after it, or else by the probe.

use super::rack::{DUP_THRESHOLD, Guard};
use super::recovery::{Frto, Phase};
use super::scoreboard::News;
use super::{NEVER, Tcb};
use crate::device::{Retained, RxFrame};
use crate::time::{Instant, MICROSECOND};
use crate::wire::seq::Seq;
use crate::wire::tcp::{Block, Segment};

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Takes an ACK that may be more than progress. `duplicate`: by the definition of RFC 5681.
    #[inline(never)]
    pub(super) fn repair(&mut self, now: Instant, seg: &Segment, duplicate: bool) {
        // What the peer was not known to hold when this ACK came: `RecoverFS` of an episode that
        // it begins.
        let flight = self.snd.flight();
        let outstanding = flight - self.board.sacked();
        let una = self.snd.una;
        let mut blocks = if self.sack { seg.options.sack.as_slice() } else { &[] };
        let mut twice = None;
        if is_duplicate_report(blocks, seg.ack) {
            twice = Some(blocks[0]);
            blocks = &blocks[1..];
        }
        let mut news = News::default();
        let (mut octets, mut sample) = (0, None);
        if duplicate {
            self.stats.record().duplicate_acks_in += 1;
        }
        let duplicate = duplicate && !self.recovery.explains_duplicate(una);
        if seg.ack > una {
            (octets, sample) = self.advance(now, seg, &mut news);
        } else if duplicate {
            self.recovery.duplicates += 1;
        }
        if !blocks.is_empty() {
            let guard = self.guard(now, seg);
            self.board.apply_sack(blocks, self.snd.una, self.snd.nxt, &guard, &mut news);
        }
        if let Some(newest) = news.newest {
            self.rack.delivered(now, newest);
        }
        if news.reordered {
            self.rack.saw_reordering();
        }
        let pure = duplicate && seg.options.sack.is_empty();
        self.take_probe_answer(seg, una, twice, pure);
        self.tell_spurious(&news, duplicate);
        if octets > 0 {
            let grows = match self.recovery.phase {
                Phase::Open => self.cc.limited,
                Phase::Fast => false,
                Phase::Timeout => true,
            };
            let undone = self.progress(seg, &news, flight);
            if grows && !undone {
                self.cc.on_ack(&self.ack_info(now, octets, sample));
            }
        }
        if let Some(block) = twice {
            self.take_duplicate_report(block);
        }
        let mut delivered = news.octets;
        let lost = if self.sack {
            self.detect_losses(now)
        } else {
            delivered = self.count_without_sack(duplicate, octets);
            0
        };
        if lost > 0 && self.recovery.phase == Phase::Open {
            self.enter_fast(outstanding, flight);
        } else if duplicate && self.is_third_duplicate() {
            self.board.lose_first();
            let left = self.recovery.left;
            self.enter_fast(outstanding, flight);
            self.recovery.left = left;
        }
        if self.recovery.phase == Phase::Fast && (delivered > 0 || lost > 0) {
            let pipe = self.pipe();
            let safe = octets > 0 && lost == 0;
            let ssthresh = self.cc.ssthresh();
            if let Some(prr) = self.recovery.prr_mut() {
                self.cc.set_window(prr.window(
                    delivered,
                    pipe,
                    ssthresh,
                    u32::from(self.emss),
                    safe,
                ));
            }
        }
        if octets > 0 {
            self.rearm(now);
            self.fin_acked(now, seg);
        } else if !self.board.is_calm() {
            // What is missing is for RACK to find, no more for the probe.
            self.timers.tail = NEVER;
            self.due.tail = false;
        }
    }

    pub(super) fn guard(&self, now: Instant, seg: &Segment) -> Guard {
        let echo = seg.options.ts.filter(|_| self.ts_on).map(|ts| ts.1);
        Guard { now, min_rtt: self.rtt.min(), echo, ts_offset: self.ts.offset }
    }

    /// The acknowledgment moved during an episode of loss, perhaps to its end. `flight`: what was
    /// outstanding before. True if it tells that there was none.
    fn progress(&mut self, seg: &Segment, news: &News, flight: u32) -> bool {
        if self.recovery.phase == Phase::Open {
            return false;
        }
        if self.answers_original(seg) {
            self.rack.widen();
            self.undo();
            return true;
        }
        if seg.ack >= self.recovery.point {
            self.leave_recovery(flight);
        } else if self.recovery.phase == Phase::Fast && !self.sack {
            // A partial ACK: the next hole starts here (RFC 6582 section 3.2, step 5).
            self.board.lose_first();
            self.recovery.first_due = true;
        } else if self.recovery.frto == Frto::First && news.records > 0 {
            self.recovery.frto = Frto::Second { new: 2 };
        }
        false
    }

    /// F-RTO (RFC 5682 sections 2.1 and 3.1, step 3): if the ACK after the first new ones brings
    /// what was sent once, before the timeout, then the timeout was spurious.
    fn tell_spurious(&mut self, news: &News, duplicate: bool) {
        if self.recovery.frto == Frto::First && duplicate && !self.sack {
            // Without SACK a duplicate ACK in step 2 says that the timeout was none too early.
            self.recovery.frto = Frto::Off;
        }
        if !matches!(self.recovery.frto, Frto::Second { .. }) {
            return;
        }
        if news.original.is_some_and(|end| end <= self.recovery.point) {
            self.undo();
        } else if news.octets > 0 || duplicate {
            self.recovery.frto = Frto::Off;
            if !self.sack {
                // Nothing else tells that the new segments have left the network (step 3a of
                // section 2.1).
                self.cc.set_window(self.cc.window().max(3 * u32::from(self.emss)));
            }
        }
    }

    /// Judges what is lost by now and sets the timer for what may be later. Returns the octets
    /// newly lost, those of a segment that probed the path left out.
    pub(super) fn detect_losses(&mut self, now: Instant) -> u32 {
        let recovering = self.recovery.phase != Phase::Open;
        let reo_wnd = self.rack.reo_wnd(recovering, self.board.sacked_count(), &self.rtt);
        let patience = self.rack.patience(reo_wnd);
        let verdict = self.board.detect_lost(now, &self.rack, patience);
        if verdict.copies > 0 {
            self.stats.record().copies_lost += verdict.copies;
        }
        self.rare.reorder = verdict.next.unwrap_or(NEVER);
        if let Some(next) = verdict.next
            && self.timers.rto <= next
        {
            // Losses are found before the timeout takes everything for lost.
            self.timers.rto = next + 1;
        }
        if verdict.octets > 0 && self.pmtu.is_probing() {
            return self.excuse_probe(verdict.octets);
        }
        verdict.octets
    }

    /// Begins an episode. `outstanding`: octets under way; `flight`: those not acknowledged, both
    /// before the ACK that tells of the loss.
    pub(super) fn enter_fast(&mut self, outstanding: u32, flight: u32) {
        self.stats.record().fast_recoveries += 1;
        let hole = self.board.first_lost().unwrap_or(self.snd.una);
        self.recovery.enter(Phase::Fast, hole, self.snd.nxt, self.cc);
        if !self.ecn.covers(hole) {
            self.cc.on_loss(self.loss_flight(hole, flight), u32::from(self.emss));
        }
        self.ecn.on_loss(self.snd.nxt);
        if let Some(prr) = self.recovery.prr_mut() {
            prr.begin(outstanding);
        }
        self.timers.tail = NEVER;
        self.due.tail = false;
    }

    /// FlightSize as the reduction for a loss at `seq` counts it, `flight` being what is
    /// outstanding: all that was under way with it, without what limited transmit let out (RFC 5681
    /// section 3.2, step 2).
    pub(super) fn loss_flight(&self, seq: Seq, flight: u32) -> u32 {
        self.round_flight.at(seq, flight).min(self.cc.window())
    }

    /// Ends the episode. Losses beyond its end begin the next, with `flight` outstanding before.
    fn leave_recovery(&mut self, flight: u32) {
        if self.recovery.phase == Phase::Fast {
            self.cc.set_window(self.cc.ssthresh());
        }
        self.recovery.leave();
        self.rack.recovered();
        if self.board.resend_waits() {
            self.enter_fast(self.snd.flight() - self.board.sacked(), flight);
        }
    }

    /// Eifel (RFC 3522): the first ACK that covers what was judged lost echoes a timestamp from
    /// before the retransmission, or nothing was sent again yet. Then it answers the original.
    fn answers_original(&mut self, seg: &Segment) -> bool {
        let Some(undo) = self.recovery.undo_mut() else { return false };
        if !undo.eifel || seg.ack <= undo.hole {
            return false;
        }
        undo.eifel = false;
        match (undo.first_ts, seg.options.ts) {
            (None, _) => true,
            (Some(first), Some((_, echo))) if self.ts_on => {
                echo.wrapping_sub(first).cast_signed() < 0
            }
            _ => false,
        }
    }

    /// The loss was none: everything as before it.
    fn undo(&mut self) {
        let Some(undo) = self.recovery.take_undo() else { return };
        self.stats.record().spurious += 1;
        self.cc.restore(undo.prior);
        if undo.by_order {
            self.rack.saw_reordering();
        }
        self.board.forgive(self.sack);
        self.recovery.leave();
        if !self.sack {
            self.recovery.expect_duplicates(undo.unreported);
        }
    }

    /// The peer received something twice. It widens the reordering window; and when the peer has
    /// said so of all we sent twice, nothing was lost (RFC 3708 section 3).
    fn take_duplicate_report(&mut self, (start, _): Block) {
        if self.tail.start == Some(start) {
            // Probes are sent on suspicion: nothing was judged by mistake.
            self.tail.start = None;
            return;
        }
        self.rack.duplicate_reported(self.stats.get().resends, self.snd.una, self.snd.nxt);
        let point = self.recovery.point;
        let Some(undo) = self.recovery.undo_mut() else { return };
        // Earlier episodes bring about reports, too.
        if undo.unreported == 0 || start < undo.hole || start >= point {
            return;
        }
        undo.unreported -= 1;
        if undo.unreported == 0 {
            self.undo();
        }
    }

    /// Without SACK the number of duplicate ACKs says how much has left the network (RFC 5681
    /// section 3.2, RFC 3042, RFC 6582). Returns the octets that this ACK delivered.
    fn count_without_sack(&mut self, duplicate: bool, octets: u32) -> u32 {
        let before = self.recovery.left;
        let mut left = before;
        if octets > 0 {
            // Of a partial ACK one segment is the retransmission; the rest was counted.
            let counted = octets.saturating_sub(u32::from(self.emss));
            let open = self.recovery.phase == Phase::Open;
            left = if open { 0 } else { before.saturating_sub(counted) };
        } else if duplicate && (self.recovery.phase == Phase::Fast || self.counts_duplicates()) {
            left += u32::from(self.emss);
        }
        let others = self.snd.flight().saturating_sub(self.board.front_len());
        self.recovery.left = left.min(others);
        (octets + self.recovery.left).saturating_sub(before)
    }

    /// Duplicate ACKs tell of a loss: not those that an earlier episode's retransmissions bring
    /// about, which come while its end is the first octet outstanding. How far it lies back is not
    /// asked: it may be more than the numbers can tell.
    fn counts_duplicates(&self) -> bool {
        !self.sack && self.recovery.phase == Phase::Open && self.snd.una != self.recovery.point
    }

    fn is_third_duplicate(&self) -> bool {
        self.counts_duplicates() && self.recovery.duplicates >= DUP_THRESHOLD
    }

    /// The reordering timer fired (RFC 8985 section 6.2, step 5).
    pub(super) fn reorder_expired(&mut self, now: Instant) {
        if self.found_late(now, self.rare.reorder) {
            self.rare.reorder = now + self.rtt.srtt().max(MICROSECOND);
            return;
        }
        self.rare.reorder = NEVER;
        let flight = self.snd.flight();
        let outstanding = flight - self.board.sacked();
        if self.detect_losses(now) == 0 {
            return;
        }
        if self.recovery.phase == Phase::Open {
            self.enter_fast(outstanding, flight);
        }
        if self.recovery.phase == Phase::Fast {
            // No ACK measures out what may go.
            let pipe = self.pipe();
            let ssthresh = self.cc.ssthresh();
            if let Some(prr) = self.recovery.prr_mut() {
                self.cc.set_window(prr.window(0, pipe, ssthresh, u32::from(self.emss), false));
            }
            self.recovery.first_due = true;
        }
    }
}

/// True if the first block reports a duplicate (RFC 2883 section 4): it lies below the cumulative
/// acknowledgment, or inside the second block.
fn is_duplicate_report(blocks: &[Block], ack: Seq) -> bool {
    match blocks {
        [first, ..] if first.1 <= ack => true,
        [first, second, ..] => second.0 <= first.0 && first.1 <= second.1,
        _ => false,
    }
}
