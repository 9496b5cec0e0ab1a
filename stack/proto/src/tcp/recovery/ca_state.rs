//! State of loss recovery: the episode in progress.

use super::prr::Prr;
use super::undo::{Frto, Undo};
use crate::tcp::congestion::Congestion;
use crate::wire::seq::Seq;

/// Congestion state, by the kind of loss being repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum CaState {
    /// No loss.
    Open,
    /// Fast recovery: loss detected by RACK or duplicate ACKs.
    Recovery,
    /// Loss detected by the retransmission timer.
    Loss,
}

/// State of an episode.
#[derive(Debug)]
struct Episode {
    undo: Undo,
    prr: Prr,
}

/// Loss recovery state (RFC 6582, RFC 6675).
#[derive(Debug)]
pub(in crate::tcp) struct Recovery {
    pub(in crate::tcp) ca_state: CaState,
    /// RecoveryPoint: the episode ends when this is acknowledged.
    pub(in crate::tcp) recovery_point: Seq,
    /// The next retransmission is sent regardless of the window (RFC 6675 section 5, step 4.3).
    pub(in crate::tcp) force_retransmit: bool,
    pub(in crate::tcp) frto: Frto,
    /// Consecutive duplicate ACKs.
    pub(in crate::tcp) dupacks: u32,
    /// Without SACK: bytes that have left the network according to duplicate ACKs.
    pub(in crate::tcp) dupack_credit: u32,
    /// Without SACK: retransmissions of an episode that was undone. Each causes about one duplicate
    /// ACK that indicates no loss.
    spurious_retrans: u32,
    /// Kept allocated for the next episode until the connection has been idle for a while.
    episode: Option<Box<Episode>>,
    /// `episode` has undo state, and was not undone.
    undoable: bool,
}

impl Recovery {
    pub(in crate::tcp) const fn new(iss: Seq) -> Self {
        Self {
            ca_state: CaState::Open,
            recovery_point: iss,
            force_retransmit: false,
            frto: Frto::Off,
            dupacks: 0,
            dupack_credit: 0,
            spurious_retrans: 0,
            episode: None,
            undoable: false,
        }
    }

    /// True if an ACK of new data needs no loss recovery processing.
    #[inline]
    pub(in crate::tcp) fn is_open(&self) -> bool {
        self.ca_state == CaState::Open && self.dupack_credit == 0
    }

    /// Enters an episode whose first loss is at `first_lost` and which ends at `recovery_point`.
    /// Saves `prior` for the undo, unless an episode is already in progress.
    pub(in crate::tcp) fn enter(
        &mut self,
        ca_state: CaState,
        first_lost: Seq,
        recovery_point: Seq,
        prior: Congestion,
    ) {
        if self.ca_state == CaState::Open {
            let by_reordering = ca_state == CaState::Recovery;
            let undo = Undo {
                prior,
                first_lost,
                retrans_stamp: None,
                eifel: true,
                undo_retrans: 0,
                by_reordering,
            };
            match &mut self.episode {
                Some(episode) => episode.undo = undo,
                episode => *episode = Some(Box::new(Episode { undo, prr: Prr::default() })),
            }
            self.undoable = true;
        } else if let Some(undo) = self.undo_mut() {
            undo.by_reordering = false;
        }
        self.ca_state = ca_state;
        self.recovery_point = recovery_point;
        self.force_retransmit = true;
        self.frto = Frto::Off;
        self.dupack_credit = 0;
        self.spurious_retrans = 0;
    }

    /// Ends the episode.
    pub(in crate::tcp) const fn leave(&mut self) {
        self.ca_state = CaState::Open;
        self.force_retransmit = false;
        self.frto = Frto::Off;
        self.dupack_credit = 0;
        self.dupacks = 0;
    }

    /// Notes that the episode was undone while its retransmissions are outstanding.
    pub(in crate::tcp) const fn expect_dupacks(&mut self, spurious_retrans: u32) {
        self.spurious_retrans = spurious_retrans;
    }

    /// True if a duplicate ACK with SND.UNA at `una` is caused by a spurious retransmission; counts
    /// it off.
    pub(in crate::tcp) fn explains_dupack(&mut self, una: Seq) -> bool {
        let explains = self.spurious_retrans > 0 && una < self.recovery_point;
        self.spurious_retrans -= u32::from(explains);
        explains
    }

    /// Returns the undo state of the current or last episode, unless it was undone.
    pub(in crate::tcp) fn undo_mut(&mut self) -> Option<&mut Undo> {
        let episode = self.episode.as_deref_mut().filter(|_| self.undoable)?;
        Some(&mut episode.undo)
    }

    /// Removes and returns the undo state.
    pub(in crate::tcp) fn take_undo(&mut self) -> Option<Undo> {
        let undo = *self.undo_mut()?;
        self.undoable = false;
        Some(undo)
    }

    /// Returns the PRR state of the current or last episode; `None` before the first.
    #[inline]
    pub(in crate::tcp) fn prr_mut(&mut self) -> Option<&mut Prr> {
        self.episode.as_deref_mut().map(|episode| &mut episode.prr)
    }

    /// Counts bytes sent, new or retransmitted.
    #[inline]
    pub(in crate::tcp) fn on_sent(&mut self, bytes: u32) {
        if let Some(prr) = self.prr_mut() {
            prr.on_sent(bytes);
        }
    }

    /// Releases the memory. To be called with nothing in flight.
    pub(in crate::tcp) fn release_memory(&mut self) {
        self.episode = None;
    }

    /// Notes a retransmission with TSval `ts`.
    pub(in crate::tcp) fn on_retransmit(&mut self, ts: u32) {
        self.force_retransmit = false;
        if let Some(undo) = self.undo_mut() {
            undo.retrans_stamp.get_or_insert(ts);
            undo.undo_retrans += 1;
        }
    }

    /// F-RTO: notes that a new segment was sent.
    #[inline]
    pub(in crate::tcp) const fn on_new_data(&mut self) {
        if let Frto::AwaitSecondAck { new_segments: new } = &mut self.frto {
            *new = new.saturating_sub(1);
        }
    }

    /// F-RTO: true if a new segment is to be sent before any retransmission.
    pub(in crate::tcp) const fn prefers_new_data(&self) -> bool {
        matches!(self.frto, Frto::AwaitSecondAck { new_segments: 1.. })
    }

    /// F-RTO: true if retransmissions wait for the next ACK.
    pub(in crate::tcp) const fn defers_retransmit(&self) -> bool {
        matches!(self.frto, Frto::AwaitSecondAck { .. })
    }

    /// F-RTO: notes that no new segment can be sent. If none was sent so far, F-RTO cannot decide
    /// and ends.
    pub(in crate::tcp) const fn on_no_new_data(&mut self) {
        self.frto = match self.frto {
            Frto::AwaitSecondAck { new_segments: 0 | 1 } => {
                Frto::AwaitSecondAck { new_segments: 0 }
            }
            _ => Frto::Off,
        };
    }
}

/// FlightSize at the start of the current round trip.
///
/// The reduction after a loss is based on the flight that the lost bytes were part of (RFC 5681
/// equation 4). When a loss near the end of a flight is detected, SND.UNA has advanced past most of
/// that flight, and the rest is no measure of what the path carried. Per round trip this is the
/// `pipeACK` of RFC 7661 section 4.2, measured at the start of the round instead of its end.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct RoundFlight {
    /// The round ends when more than this is acknowledged.
    end: Seq,
    bytes: u32,
}

impl RoundFlight {
    pub(in crate::tcp) const fn new(iss: Seq) -> Self {
        Self { end: iss, bytes: 0 }
    }

    /// Notes an ACK that advances SND.UNA from `una` to `ack`. To be called at least for the first
    /// of each round trip.
    #[inline]
    pub(in crate::tcp) fn on_ack(&mut self, una: Seq, ack: Seq, nxt: Seq) {
        if ack > self.end {
            *self = Self { end: nxt, bytes: nxt - una };
        }
    }

    /// Returns the flight that the byte at `seq` was part of; `flight` is outstanding now.
    pub(in crate::tcp) fn at(&self, seq: Seq, flight: u32) -> u32 {
        if seq < self.end { flight.max(self.bytes) } else { flight }
    }
}
