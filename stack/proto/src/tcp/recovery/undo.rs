//! Undo of spurious recovery, detected by timestamps (Eifel, RFC 3522), by the ACKs after a timeout
//! (F-RTO, RFC 5682) or by D-SACK (RFC 2883, RFC 3708).

use super::scoreboard::AckInfo;
use crate::device::{Retained, RxFrame};
use crate::tcp::Tcb;
use crate::tcp::congestion::Congestion;
use crate::wire::seq::Seq;
use crate::wire::tcp::{SackBlock, Segment};

/// State of F-RTO, which detects spurious timeouts (RFC 5682 section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum Frto {
    /// Not in use.
    Off,
    /// Step 2: waits for the first ACK of new data.
    AwaitFirstAck,
    /// Step 3: waits for the next ACK, which decides. Until then retransmissions are deferred, and
    /// this many new segments may be sent.
    AwaitSecondAck { new_segments: u8 },
}

/// State to undo an episode that turns out to be spurious.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Undo {
    /// Congestion control state before the episode.
    pub(in crate::tcp) prior: Congestion,
    /// Sequence number of the first loss. An ACK not beyond it has no information about it.
    pub(in crate::tcp) first_lost: Seq,
    /// TSval of the first retransmission: an ACK that echoes an earlier one is of the original
    /// (Eifel, RFC 3522). `None` before any retransmission.
    pub(in crate::tcp) retrans_stamp: Option<u32>,
    /// Eifel detection still waits for the first ACK beyond `first_lost`, the only one it may use.
    pub(in crate::tcp) eifel: bool,
    /// Retransmissions not yet reported by D-SACK.
    pub(in crate::tcp) undo_retrans: u32,
    /// The loss was detected by SACK: if it is spurious, the cause is reordering.
    pub(in crate::tcp) by_reordering: bool,
}

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
        self.scoreboard.update(|records| records.clear_lost(self.sack));
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
