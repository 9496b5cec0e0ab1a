//! ACK processing with loss or SACK: loss detection and recovery (RFC 8985 section 6, RFC 6675, RFC
//! 6582) and its rate (RFC 9937).
//!
//! There is no rescue retransmission (RFC 6675 section 4, rule 4). A loss at the end of a flight is
//! detected by the ACK of any retransmission, which was sent later, or else by the tail loss probe.

use super::ca_state::CaState;
use super::rack::{DUP_THRESH, SampleGuard};
use super::scoreboard::AckInfo;
use super::undo::Frto;
use crate::device::{Retained, RxFrame};
use crate::tcp::Tcb;
use crate::time::{Instant, MICROSECOND, NEVER};
use crate::wire::seq::Seq;
use crate::wire::tcp::{SackBlock, Segment};

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Processes an ACK that may do more than advance SND.UNA. `duplicate`: by RFC 5681.
    #[inline(never)]
    pub(in crate::tcp) fn process_ack_slow(
        &mut self,
        now: Instant,
        seg: &Segment,
        duplicate: bool,
    ) {
        // `outstanding`: bytes neither acknowledged nor SACKed before this ACK; `RecoverFS` of an
        // episode that it begins.
        let flight = self.snd.flight();
        let outstanding = flight - self.scoreboard.sacked();
        let una = self.snd.una;
        // RFC 2883 section 4: a first block that repeats known data is a D-SACK, not a SACK.
        let mut blocks = if self.sack { seg.options.sack.as_slice() } else { &[] };
        let mut dsack = None;
        if is_dsack(blocks, seg.ack) {
            dsack = Some(blocks[0]);
            blocks = &blocks[1..];
        }
        let mut info = AckInfo::default();
        let (mut bytes, mut sample) = (0, None);
        if duplicate {
            self.stats.record().duplicate_acks_in += 1;
        }
        let duplicate = duplicate && !self.recovery.explains_dupack(una);
        // RFC 9293 3.10.7.4, fifth: SND.UNA advances, and records it covers are freed.
        if seg.ack > una {
            (bytes, sample) = self.ack_new_data(now, seg, &mut info);
        } else if duplicate {
            self.recovery.dupacks += 1;
        }
        // RFC 6675 section 4, Update(): records reported by SACK are marked.
        if !blocks.is_empty() {
            let guard = self.sample_guard(now, seg);
            self.scoreboard.update(|records| {
                records.apply_sack(blocks, self.snd.una, self.snd.nxt, &guard, &mut info)
            });
        }
        // RFC 8985 section 6.2, step 2: the latest transmission that was delivered.
        if let Some(newest) = info.newest {
            self.rack.advance(now, newest);
        }
        // RFC 8985 section 6.2, step 3: delivered after one sent later.
        if info.reordered {
            self.rack.on_reordering();
        }
        // RFC 8985 section 7.4: the ACK may end a tail loss probe.
        let pure = duplicate && seg.options.sack.is_empty();
        self.process_tlp_ack(seg, una, dsack, pure);
        // RFC 5682 section 3.1, step 3: the second ACK after a timeout decides if it was spurious.
        self.process_frto(&info, duplicate);
        // RFC 9937 section 6.2 sets the window in fast recovery; else it grows as without loss.
        if bytes > 0 {
            let grows = match self.recovery.ca_state {
                CaState::Open => self.cc.cwnd_limited,
                CaState::Recovery => false,
                CaState::Loss => true,
            };
            let undone = self.advance_recovery(seg, &info, flight);
            if grows && !undone {
                self.cc.on_ack(&self.ack_sample(now, bytes, sample));
            }
        }
        // RFC 8985 section 6.2, step 4, and RFC 3708 section 3: a duplicate widens the reordering
        // window, and may show that the episode was spurious.
        if let Some(block) = dsack {
            self.process_dsack(block);
        }
        // RFC 8985 section 6.2, step 5; without SACK, duplicate ACKs are counted (RFC 6582).
        let mut delivered = info.delivered;
        let lost = if self.sack {
            self.detect_losses(now)
        } else {
            delivered = self.count_dupack_delivery(duplicate, bytes);
            0
        };
        // RFC 5681 section 3.2: a loss, or the third duplicate ACK, begins fast recovery.
        if lost > 0 && self.recovery.ca_state == CaState::Open {
            self.enter_recovery(outstanding, flight);
        } else if duplicate && self.is_dup_thresh_reached() {
            self.scoreboard.update(|records| records.mark_first_lost());
            let left = self.recovery.dupack_credit;
            self.enter_recovery(outstanding, flight);
            self.recovery.dupack_credit = left;
        }
        // RFC 9937 section 6.2: an ACK that moves SND.UNA and reveals no loss is a safe one.
        if self.recovery.ca_state == CaState::Recovery && (delivered > 0 || lost > 0) {
            let pipe = self.pipe();
            let safe = bytes > 0 && lost == 0;
            let ssthresh = self.cc.ssthresh();
            if let Some(prr) = self.recovery.prr_mut() {
                self.cc.set_cwnd(prr.window(delivered, pipe, ssthresh, u32::from(self.emss), safe));
            }
        }
        // RFC 6298 sections 5.2 and 5.3: new data acknowledged restarts the timer, or stops it.
        if bytes > 0 {
            self.rearm_timers(now);
            self.check_fin_acked(now, seg);
        } else if !self.scoreboard.is_clean() {
            // RACK detects the losses now, not the tail loss probe.
            self.timers.pto = NEVER;
            self.pending.tlp = false;
        }
    }

    pub(in crate::tcp) fn sample_guard(&self, now: Instant, seg: &Segment) -> SampleGuard {
        let echo = seg.options.ts.filter(|_| self.ts_on).map(|ts| ts.1);
        SampleGuard { now, min_rtt: self.rtt.min(), echo, ts_offset: self.ts.offset }
    }

    /// Processes an advance of SND.UNA during an episode, perhaps to its end. `flight` was
    /// outstanding before. Returns true if the episode is found spurious and undone.
    fn advance_recovery(&mut self, seg: &Segment, info: &AckInfo, flight: u32) -> bool {
        if self.recovery.ca_state == CaState::Open {
            return false;
        }
        if self.eifel_detects_spurious(seg) {
            self.rack.widen_reo_wnd();
            self.undo();
            return true;
        }
        if seg.ack >= self.recovery.recovery_point {
            self.leave_recovery(flight);
        } else if self.recovery.ca_state == CaState::Recovery && !self.sack {
            // Partial ACK: the next hole starts here (RFC 6582 section 3.2, step 5).
            self.scoreboard.update(|records| records.mark_first_lost());
            self.recovery.force_retransmit = true;
        } else if self.recovery.frto == Frto::AwaitFirstAck && info.records > 0 {
            let is_decided = self.ts_on && seg.options.ts.is_some();
            self.recovery.frto = if is_decided {
                Frto::Off
            } else {
                // Without timestamps, or the peer leaves them out.
                Frto::AwaitSecondAck { new_segments: 2 }
            };
        }
        false
    }

    /// Detects losses (RACK), and sets the reordering timer for later ones. Returns the bytes newly
    /// marked lost, without those of a path MTU probe.
    pub(in crate::tcp) fn detect_losses(&mut self, now: Instant) -> u32 {
        let recovering = self.recovery.ca_state != CaState::Open;
        let reo_wnd = self.rack.reo_wnd(recovering, self.scoreboard.sacked_count(), &self.rtt);
        let rack_timeout = self.rack.rack_timeout(reo_wnd);
        let update =
            self.scoreboard.update(|records| records.detect_lost(now, &self.rack, rack_timeout));
        if update.lost_retransmits > 0 {
            self.stats.record().lost_retransmits += update.lost_retransmits;
        }
        self.rare.reorder = update.next_timeout.unwrap_or(NEVER);
        if let Some(next) = update.next_timeout
            && self.timers.rto <= next
        {
            // Losses are detected before the RTO marks everything lost.
            self.timers.rto = next + 1;
        }
        if update.bytes > 0 && self.pmtu.is_probing() {
            return self.exclude_probe_loss(update.bytes);
        }
        update.bytes
    }

    /// Enters fast recovery: the lost records are sent next (fast retransmit). `outstanding`: bytes
    /// neither acknowledged nor SACKed; `flight`: bytes not acknowledged; both before the ACK that
    /// reveals the loss.
    pub(in crate::tcp) fn enter_recovery(&mut self, outstanding: u32, flight: u32) {
        self.stats.record().fast_recoveries += 1;
        let first_lost =
            self.scoreboard.update(|records| records.next_lost_seq()).unwrap_or(self.snd.una);
        self.recovery.enter(CaState::Recovery, first_lost, self.snd.nxt, self.cc);
        if !self.ecn.covers(first_lost) {
            self.cc.on_loss(self.loss_flight(first_lost, flight), u32::from(self.emss));
        }
        self.ecn.on_loss(self.snd.nxt);
        if let Some(prr) = self.recovery.prr_mut() {
            prr.begin(outstanding);
        }
        self.timers.pto = NEVER;
        self.pending.tlp = false;
    }

    /// Returns FlightSize for the reduction after a loss at `seq`, with `flight` bytes outstanding
    /// now: all that was in flight together with it, without what limited transmit added (RFC 5681
    /// section 3.2, step 2).
    pub(in crate::tcp) fn loss_flight(&self, seq: Seq, flight: u32) -> u32 {
        self.round_flight.at(seq, flight).min(self.cc.cwnd())
    }

    /// Ends the episode. Losses beyond it begin the next; `flight` was outstanding before.
    fn leave_recovery(&mut self, flight: u32) {
        if self.recovery.ca_state == CaState::Recovery {
            self.cc.set_cwnd(self.cc.ssthresh());
        }
        self.recovery.leave();
        self.stats.record().recoveries_ended += 1;
        self.rack.on_recovery_end();
        if self.scoreboard.needs_retransmit() {
            self.enter_recovery(self.snd.flight() - self.scoreboard.sacked(), flight);
        }
    }

    /// Estimates by duplicate ACKs, without SACK, what has left the network (RFC 5681 section 3.2,
    /// RFC 3042, RFC 6582). Returns the bytes that this ACK delivered.
    fn count_dupack_delivery(&mut self, duplicate: bool, bytes: u32) -> u32 {
        let before = self.recovery.dupack_credit;
        let mut left = before;
        if bytes > 0 {
            // Of a partial ACK one segment is the retransmission; the others were counted before.
            let counted = bytes.saturating_sub(u32::from(self.emss));
            let open = self.recovery.ca_state == CaState::Open;
            left = if open { 0 } else { before.saturating_sub(counted) };
        } else if duplicate
            && (self.recovery.ca_state == CaState::Recovery || self.counts_dupacks())
        {
            left += u32::from(self.emss);
        }
        let others = self.snd.flight().saturating_sub(self.scoreboard.front_len());
        self.recovery.dupack_credit = left.min(others);
        (bytes + self.recovery.dupack_credit).saturating_sub(before)
    }

    /// True if duplicate ACKs indicate a loss. While the previous recovery point is the first byte
    /// outstanding they do not: they are caused by the retransmissions of that episode. The test is
    /// for equality, as an old recovery point may be too far back to compare sequence numbers.
    fn counts_dupacks(&self) -> bool {
        !self.sack
            && self.recovery.ca_state == CaState::Open
            && self.snd.una != self.recovery.recovery_point
    }

    fn is_dup_thresh_reached(&self) -> bool {
        self.counts_dupacks() && self.recovery.dupacks >= DUP_THRESH
    }

    /// Handles expiry of the reordering timer (RFC 8985 section 6.2, step 5).
    pub(in crate::tcp) fn reorder_expired(&mut self, now: Instant) {
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
}

/// True if the first block is a D-SACK (RFC 2883 section 4): it lies below the cumulative
/// acknowledgment, or inside the second block.
fn is_dsack(blocks: &[SackBlock], ack: Seq) -> bool {
    match blocks {
        [first, ..] if first.1 <= ack => true,
        [first, second, ..] => second.0 <= first.0 && first.1 <= second.1,
        _ => false,
    }
}
