//! State of loss recovery: the episode in progress, the state to undo it, and the outstanding
//! tail-loss probe.

use super::prr::Prr;
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

/// Kind of the last tail-loss probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum TlpProbe {
    /// None is outstanding.
    None,
    /// A new segment, or our FIN: RACK evaluates its ACK.
    NewData,
    /// A retransmitted record: its ACK may be the only sign of a loss (RFC 8985 section 7.4).
    Retransmit,
}

/// Tail-loss probe state.
#[derive(Debug)]
pub(in crate::tcp) struct Tlp {
    pub(in crate::tcp) probe: TlpProbe,
    /// `TLP.end_seq`: everything sent before or with the probe lies below.
    pub(in crate::tcp) end_seq: Seq,
    /// Start of the retransmitted record. Kept after the probe was acknowledged, for a late D-SACK.
    pub(in crate::tcp) retrans_seq: Option<Seq>,
    /// TSval of the probe.
    pub(in crate::tcp) ts: u32,
    /// The probe was the only record in the network.
    pub(in crate::tcp) is_single: bool,
    /// Flight that the retransmitted record was part of, and the congestion window at that time. A
    /// loss repaired by the probe is detected later, perhaps after an idle time.
    pub(in crate::tcp) flight: u32,
    pub(in crate::tcp) cwnd: u32,
}

impl Tlp {
    pub(in crate::tcp) const fn new() -> Self {
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
    pub(in crate::tcp) fn is_outstanding(&self) -> bool {
        self.probe != TlpProbe::None
    }

    /// Returns the outstanding probe, if its flight is not acknowledged.
    #[inline]
    pub(in crate::tcp) fn outstanding(&self, una: Seq) -> TlpProbe {
        if una < self.end_seq { self.probe } else { TlpProbe::None }
    }
}
