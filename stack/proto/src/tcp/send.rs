//! The send side's variables, and the state of loss recovery.

use super::congestion::Congestion;
use crate::wire::seq::Seq;

/// Our FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fin {
    /// Not asked for.
    None,
    /// To be sent, or to be sent again.
    Due,
    /// Sent.
    Sent,
    /// Acknowledged.
    Acked,
}

/// Send variables (RFC 9293 section 3.3.1).
#[derive(Debug)]
pub(super) struct Send {
    /// Oldest sequence number not acknowledged.
    pub(super) una: Seq,
    /// Next sequence number to send.
    pub(super) nxt: Seq,
    /// Initial send sequence number.
    pub(super) iss: Seq,
    /// Window, scaled up.
    pub(super) wnd: u32,
    /// Sequence number of the segment that last updated the window.
    pub(super) wl1: Seq,
    /// Acknowledgment number of that segment.
    pub(super) wl2: Seq,
    /// Largest window seen.
    pub(super) max_wnd: u32,
    /// Shift of the window field in segments received.
    pub(super) wscale: u8,
    /// Segment size: the lesser of the peer's and the link's, TCP options not taken off.
    pub(super) mss: u16,
    /// Our FIN.
    pub(super) fin: Fin,
    /// Where it is, once sent.
    pub(super) fin_seq: Option<Seq>,
}

impl Send {
    pub(super) const fn new(iss: Seq, mss: u16) -> Self {
        Self {
            una: iss,
            nxt: iss,
            iss,
            wnd: 0,
            wl1: Seq(0),
            wl2: Seq(0),
            max_wnd: 0,
            wscale: 0,
            mss,
            fin: Fin::None,
            fin_seq: None,
        }
    }

    /// Octets sent and not acknowledged, FIN included.
    #[inline]
    pub(super) fn flight(&self) -> u32 {
        self.nxt - self.una
    }

    /// Octets the window admits beyond `nxt`.
    #[inline]
    pub(super) fn usable(&self) -> u32 {
        u32::try_from((self.una + self.wnd).distance(self.nxt)).unwrap_or(0)
    }

    /// Takes the window of an acceptable segment (RFC 9293 section 3.10.7.4, SND.WL1 and WL2).
    #[inline]
    pub(super) fn update_window(&mut self, seq: Seq, ack: Seq, window: u32) {
        if self.wl1 < seq || (self.wl1 == seq && self.wl2 <= ack) {
            self.wnd = window;
            self.wl1 = seq;
            self.wl2 = ack;
            self.max_wnd = self.max_wnd.max(window);
        }
    }
}

/// Which kind of loss is being repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// None.
    Open,
    /// Found by SACK or duplicate ACKs.
    Fast,
    /// Found by the retransmission timer.
    Timeout,
}

/// What would undo an episode that turns out to be spurious.
#[derive(Clone, Copy, Debug)]
pub(super) struct Undo {
    /// The controller before the episode.
    pub(super) prior: Congestion,
    /// Where the first loss is. An ACK that does not reach beyond says nothing about it.
    pub(super) hole: Seq,
    /// TSval of the first retransmission: an ACK that echoes an earlier one answers the original
    /// (Eifel, RFC 3522). `None` before any retransmission.
    pub(super) first_ts: Option<u32>,
    /// Still waiting for the first ACK that moves: the only one Eifel may judge by.
    pub(super) eifel: bool,
    /// Retransmissions not yet reported as duplicates by D-SACK.
    pub(super) unreported: u32,
}

/// Loss recovery (RFC 6582, RFC 6675).
#[derive(Debug)]
pub(super) struct Recovery {
    pub(super) phase: Phase,
    /// Recovery ends when this is acknowledged.
    pub(super) point: Seq,
    /// The next retransmission goes out whatever the window says (RFC 6675 step 4.3).
    pub(super) first_due: bool,
    /// Duplicate ACKs in a row.
    pub(super) duplicates: u32,
    /// Without SACK: octets the duplicate ACKs say have left the network.
    pub(super) left: u32,
    /// Records SACKed above a hole that make it a loss; grows with observed reordering.
    pub(super) threshold: u32,
    pub(super) undo: Option<Undo>,
}

/// Duplicate ACKs that make a loss (RFC 5681 section 3.2).
const DUP_THRESHOLD: u32 = 3;
/// Bound of its growth under reordering.
const DUP_THRESHOLD_MAX: u32 = 64;

impl Recovery {
    pub(super) const fn new(iss: Seq) -> Self {
        Self {
            phase: Phase::Open,
            point: iss,
            first_due: false,
            duplicates: 0,
            left: 0,
            threshold: DUP_THRESHOLD,
            undo: None,
        }
    }

    /// Begins an episode whose first loss is at `hole` and which ends at `point`, keeping `prior`
    /// unless one is under way.
    pub(super) fn enter(&mut self, phase: Phase, hole: Seq, point: Seq, prior: Congestion) {
        if self.phase == Phase::Open {
            self.undo = Some(Undo { prior, hole, first_ts: None, eifel: true, unreported: 0 });
        }
        self.phase = phase;
        self.point = point;
        self.first_due = phase == Phase::Fast;
        self.left = 0;
    }

    /// The episode is over.
    pub(super) const fn leave(&mut self) {
        self.phase = Phase::Open;
        self.first_due = false;
        self.left = 0;
        self.duplicates = 0;
    }

    /// Notes a retransmission made with timestamp `ts`.
    pub(super) fn on_resend(&mut self, ts: u32) {
        self.first_due = false;
        if let Some(undo) = &mut self.undo {
            undo.first_ts.get_or_insert(ts);
            undo.unreported += 1;
        }
    }

    /// What was taken for a loss was reordering: be slower to judge.
    pub(super) fn tolerate_reordering(&mut self) {
        self.threshold = (self.threshold * 2).min(DUP_THRESHOLD_MAX);
    }
}
