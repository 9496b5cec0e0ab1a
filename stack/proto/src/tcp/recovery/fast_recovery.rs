//! Fast recovery, from the detection of a loss to the end of the episode (RFC 8985 section 6, RFC
//! 6675, RFC 6582).
//!
//! There is no rescue retransmission (RFC 6675 section 4, rule 4). A loss at the end of a flight is
//! detected by the ACK of any retransmission, which was sent later, or else by the tail loss probe.

use super::ca_state::CaState;
use super::rack::{DUP_THRESH, SampleGuard};
use super::scoreboard::AckInfo;
use super::undo::Frto;
use crate::device::{Retained, RxFrame};
use crate::tcp::Tcb;
use crate::time::{Instant, NEVER};
use crate::wire::seq::Seq;
use crate::wire::tcp::Segment;

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Returns the data to test RTT samples against, for the ACK `seg`.
    pub(in crate::tcp) fn sample_guard(&self, now: Instant, seg: &Segment) -> SampleGuard {
        let echo = seg.options.ts.filter(|_| self.ts_on).map(|ts| ts.1);
        SampleGuard { now, min_rtt: self.rtt.min(), echo, ts_offset: self.ts.offset }
    }

    /// Processes an advance of SND.UNA during an episode, perhaps to its end. `flight` was
    /// outstanding before. Returns true if the episode is found spurious and undone.
    pub(in crate::tcp) fn advance_recovery(
        &mut self,
        seg: &Segment,
        info: &AckInfo,
        flight: u32,
    ) -> bool {
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

    /// Bytes considered to be in the network (RFC 6675 `pipe`).
    #[inline]
    pub(in crate::tcp) fn pipe(&self) -> u32 {
        self.scoreboard.pipe(self.snd.flight()).saturating_sub(self.recovery.dupack_credit)
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
    pub(in crate::tcp) fn count_dupack_delivery(&mut self, duplicate: bool, bytes: u32) -> u32 {
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

    pub(in crate::tcp) fn is_dup_thresh_reached(&self) -> bool {
        self.counts_dupacks() && self.recovery.dupacks >= DUP_THRESH
    }
}
