//! Spurious recovery of a connection: detection and undo.

use super::Frto;
use crate::device::{Retained, RxFrame};
use crate::tcp::recovery::scoreboard::AckInfo;
use crate::tcp::tcb::Tcb;
use crate::wire::tcp::{SackBlock, Segment};

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// F-RTO (RFC 5682 sections 2.1 and 3.1, step 3): if the ACK after that of step 2 acknowledges
    /// data sent once, before the timeout, then the timeout was spurious.
    pub(in crate::tcp) fn process_frto(&mut self, info: &AckInfo, duplicate: bool) {
        if self.recovery.frto == Frto::AwaitFirstAck && duplicate && !self.sack {
            // Without SACK a duplicate ACK in step 2 means that the timeout was not spurious.
            self.recovery.frto = Frto::Off;
        }
        if !matches!(self.recovery.frto, Frto::AwaitSecondAck { .. }) {
            return;
        }
        if info.lowest_original.is_some_and(|end| end <= self.recovery.recovery_point) {
            self.undo();
        } else if info.delivered > 0 || duplicate {
            self.recovery.frto = Frto::Off;
            if !self.sack {
                // Nothing else shows that the new segments left the network (step 3a of section
                // 2.1).
                self.cc.set_cwnd(self.cc.cwnd().max(3 * u32::from(self.emss)));
            }
        }
    }

    /// Eifel detection (RFC 3522): true if the first ACK above `first_lost` echoes a timestamp from
    /// before the first retransmission, or if nothing was retransmitted yet. It then acknowledges
    /// the original, and the episode is spurious.
    pub(in crate::tcp) fn eifel_detects_spurious(&mut self, seg: &Segment) -> bool {
        let Some(undo) = self.recovery.undo_mut() else { return false };
        if !undo.eifel || seg.ack <= undo.first_lost {
            return false;
        }
        undo.eifel = false;
        match (undo.retrans_stamp, seg.options.ts) {
            (None, _) => true,
            (Some(first), Some((_, echo))) if self.ts_on => {
                echo.wrapping_sub(first).cast_signed() < 0
            }
            _ => false,
        }
    }

    /// Undoes a spurious episode: restores the state before it.
    pub(in crate::tcp) fn undo(&mut self) {
        let Some(undo) = self.recovery.take_undo() else { return };
        self.stats.record().spurious_recoveries += 1;
        self.cc.restore(undo.prior);
        if undo.by_reordering {
            self.rack.on_reordering();
        }
        self.scoreboard.clear_lost(self.sack);
        self.recovery.leave();
        self.stats.record().recoveries_ended += 1;
        if !self.sack {
            self.recovery.expect_dupacks(undo.undo_retrans);
        }
    }

    /// Processes a D-SACK. It widens the reordering window; once the peer has reported every
    /// retransmission of the episode as a duplicate, the episode is spurious (RFC 3708 section 3).
    pub(in crate::tcp) fn process_dsack(&mut self, (start, _): SackBlock) {
        if self.stats.tlp().retrans_seq == Some(start) {
            // A tail loss probe is sent before a loss is detected, so no detection was wrong.
            self.stats.tlp_mut().retrans_seq = None;
            return;
        }
        self.rack.on_dsack(self.stats.get().retransmits, self.snd.una, self.snd.nxt);
        let recovery_point = self.recovery.recovery_point;
        let Some(undo) = self.recovery.undo_mut() else { return };
        // Retransmissions of earlier episodes are reported, too.
        if undo.undo_retrans == 0 || start < undo.first_lost || start >= recovery_point {
            return;
        }
        undo.undo_retrans -= 1;
        if undo.undo_retrans == 0 {
            self.undo();
        }
    }
}
