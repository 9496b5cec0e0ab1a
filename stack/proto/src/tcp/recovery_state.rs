//! State of loss recovery: the episode in progress, the state to undo it, and the outstanding
//! tail-loss probe.

use super::congestion::Congestion;
use super::prr::Prr;
use crate::wire::seq::Seq;

/// Congestion state, by the kind of loss being repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CaState {
    /// No loss.
    Open,
    /// Fast recovery: loss detected by RACK or duplicate ACKs.
    Recovery,
    /// Loss detected by the retransmission timer.
    Loss,
}

/// State of F-RTO, which detects spurious timeouts (RFC 5682 section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frto {
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
pub(super) struct Undo {
    /// Congestion control state before the episode.
    pub(super) prior: Congestion,
    /// Sequence number of the first loss. An ACK not beyond it has no information about it.
    pub(super) first_lost: Seq,
    /// TSval of the first retransmission: an ACK that echoes an earlier one is of the original
    /// (Eifel, RFC 3522). `None` before any retransmission.
    pub(super) retrans_stamp: Option<u32>,
    /// Eifel detection still waits for the first ACK beyond `first_lost`, the only one it may use.
    pub(super) eifel: bool,
    /// Retransmissions not yet reported by D-SACK.
    pub(super) undo_retrans: u32,
    /// The loss was detected by SACK: if it is spurious, the cause is reordering.
    pub(super) by_reordering: bool,
}

/// State of an episode.
#[derive(Debug)]
struct Episode {
    undo: Undo,
    prr: Prr,
}

/// Loss recovery state (RFC 6582, RFC 6675).
#[derive(Debug)]
pub(super) struct Recovery {
    pub(super) ca_state: CaState,
    /// RecoveryPoint: the episode ends when this is acknowledged.
    pub(super) recovery_point: Seq,
    /// The next retransmission is sent regardless of the window (RFC 6675 section 5, step 4.3).
    pub(super) force_retransmit: bool,
    pub(super) frto: Frto,
    /// Consecutive duplicate ACKs.
    pub(super) dupacks: u32,
    /// Without SACK: bytes that have left the network according to duplicate ACKs.
    pub(super) dupack_credit: u32,
    /// Without SACK: retransmissions of an episode that was undone. Each causes about one duplicate
    /// ACK that indicates no loss.
    spurious_retrans: u32,
    /// Kept allocated for the next episode until the connection has been idle for a while.
    episode: Option<Box<Episode>>,
    /// `episode` has undo state, and was not undone.
    undoable: bool,
}

impl Recovery {
    pub(super) const fn new(iss: Seq) -> Self {
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
    pub(super) fn is_open(&self) -> bool {
        self.ca_state == CaState::Open && self.dupack_credit == 0
    }

    /// Enters an episode whose first loss is at `first_lost` and which ends at `recovery_point`.
    /// Saves `prior` for the undo, unless an episode is already in progress.
    pub(super) fn enter(
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
    pub(super) const fn leave(&mut self) {
        self.ca_state = CaState::Open;
        self.force_retransmit = false;
        self.frto = Frto::Off;
        self.dupack_credit = 0;
        self.dupacks = 0;
    }

    /// Notes that the episode was undone while its retransmissions are outstanding.
    pub(super) const fn expect_dupacks(&mut self, spurious_retrans: u32) {
        self.spurious_retrans = spurious_retrans;
    }

    /// True if a duplicate ACK with SND.UNA at `una` is caused by a spurious retransmission; counts
    /// it off.
    pub(super) fn explains_dupack(&mut self, una: Seq) -> bool {
        let explains = self.spurious_retrans > 0 && una < self.recovery_point;
        self.spurious_retrans -= u32::from(explains);
        explains
    }

    /// Returns the undo state of the current or last episode, unless it was undone.
    pub(super) fn undo_mut(&mut self) -> Option<&mut Undo> {
        let episode = self.episode.as_deref_mut().filter(|_| self.undoable)?;
        Some(&mut episode.undo)
    }

    /// Removes and returns the undo state.
    pub(super) fn take_undo(&mut self) -> Option<Undo> {
        let undo = *self.undo_mut()?;
        self.undoable = false;
        Some(undo)
    }

    /// Returns the PRR state of the current or last episode; `None` before the first.
    #[inline]
    pub(super) fn prr_mut(&mut self) -> Option<&mut Prr> {
        self.episode.as_deref_mut().map(|episode| &mut episode.prr)
    }

    /// Counts bytes sent, new or retransmitted.
    #[inline]
    pub(super) fn on_sent(&mut self, bytes: u32) {
        if let Some(prr) = self.prr_mut() {
            prr.on_sent(bytes);
        }
    }

    /// Releases the memory. To be called with nothing in flight.
    pub(super) fn release_memory(&mut self) {
        self.episode = None;
    }

    /// Notes a retransmission with TSval `ts`.
    pub(super) fn on_retransmit(&mut self, ts: u32) {
        self.force_retransmit = false;
        if let Some(undo) = self.undo_mut() {
            undo.retrans_stamp.get_or_insert(ts);
            undo.undo_retrans += 1;
        }
    }

    /// F-RTO: notes that a new segment was sent.
    #[inline]
    pub(super) const fn on_new_data(&mut self) {
        if let Frto::AwaitSecondAck { new_segments: new } = &mut self.frto {
            *new = new.saturating_sub(1);
        }
    }

    /// F-RTO: true if a new segment is to be sent before any retransmission.
    pub(super) const fn prefers_new_data(&self) -> bool {
        matches!(self.frto, Frto::AwaitSecondAck { new_segments: 1.. })
    }

    /// F-RTO: true if retransmissions wait for the next ACK.
    pub(super) const fn defers_retransmit(&self) -> bool {
        matches!(self.frto, Frto::AwaitSecondAck { .. })
    }

    /// F-RTO: notes that no new segment can be sent. If none was sent so far, F-RTO cannot decide
    /// and ends.
    pub(super) const fn on_no_new_data(&mut self) {
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
pub(super) struct RoundFlight {
    /// The round ends when more than this is acknowledged.
    end: Seq,
    bytes: u32,
}

impl RoundFlight {
    pub(super) const fn new(iss: Seq) -> Self {
        Self { end: iss, bytes: 0 }
    }

    /// Notes an ACK that advances SND.UNA from `una` to `ack`. To be called at least for the first
    /// of each round trip.
    #[inline]
    pub(super) fn on_ack(&mut self, una: Seq, ack: Seq, nxt: Seq) {
        if ack > self.end {
            *self = Self { end: nxt, bytes: nxt - una };
        }
    }

    /// Returns the flight that the byte at `seq` was part of; `flight` is outstanding now.
    pub(super) fn at(&self, seq: Seq, flight: u32) -> u32 {
        if seq < self.end { flight.max(self.bytes) } else { flight }
    }
}

/// Kind of the last tail-loss probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TlpProbe {
    /// None is outstanding.
    None,
    /// A new segment, or our FIN: RACK evaluates its ACK.
    NewData,
    /// A retransmitted record: its ACK may be the only sign of a loss (RFC 8985 section 7.4).
    Retransmit,
}

/// Tail-loss probe state.
#[derive(Debug)]
pub(super) struct Tlp {
    pub(super) probe: TlpProbe,
    /// `TLP.end_seq`: everything sent before or with the probe lies below.
    pub(super) end_seq: Seq,
    /// Start of the retransmitted record. Kept after the probe was acknowledged, for a late D-SACK.
    pub(super) retrans_seq: Option<Seq>,
    /// TSval of the probe.
    pub(super) ts: u32,
    /// The probe was the only record in the network.
    pub(super) is_single: bool,
    /// Flight that the retransmitted record was part of, and the congestion window at that time. A
    /// loss repaired by the probe is detected later, perhaps after an idle time.
    pub(super) flight: u32,
    pub(super) cwnd: u32,
}

impl Tlp {
    pub(super) const fn new() -> Self {
        Self {
            probe: TlpProbe::None,
            end_seq: Seq(0),
            retrans_seq: None,
            ts: 0,
            is_single: false,
            flight: 0,
            cwnd: 0,
        }
    }

    /// True if a probe is outstanding and its outcome unknown.
    #[inline]
    pub(super) fn is_outstanding(&self) -> bool {
        self.probe != TlpProbe::None
    }

    /// Returns the outstanding probe, if its flight is not acknowledged.
    #[inline]
    pub(super) fn outstanding(&self, una: Seq) -> TlpProbe {
        if una < self.end_seq { self.probe } else { TlpProbe::None }
    }
}
