//! The state of loss recovery: which episode is under way, what would undo it, and the tail-loss
//! probe that is out.

use super::congestion::Congestion;
use super::prr::Prr;
use crate::wire::seq::Seq;

/// Which kind of loss is being repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CaState {
    /// None.
    Open,
    /// Found by RACK or duplicate ACKs.
    Recovery,
    /// Found by the retransmission timer.
    Loss,
}

/// How far F-RTO has come in telling whether a timeout was spurious (RFC 5682 section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frto {
    /// Not at it.
    Off,
    /// Step 2: waits for the first ACK of something new.
    AwaitFirstAck,
    /// Step 3: so many new segments may still go; retransmissions wait for the next ACK, which
    /// tells.
    AwaitSecondAck { new_segments: u8 },
}

/// What would undo an episode that turns out to be spurious.
#[derive(Clone, Copy, Debug)]
pub(super) struct Undo {
    /// The controller before the episode.
    pub(super) prior: Congestion,
    /// Where the first loss is. An ACK that does not reach beyond says nothing about it.
    pub(super) first_lost: Seq,
    /// TSval of the first retransmission: an ACK that echoes an earlier one answers the original
    /// (Eifel, RFC 3522). `None` before any retransmission.
    pub(super) retrans_stamp: Option<u32>,
    /// Still waiting for the first ACK that moves: the only one Eifel may judge by.
    pub(super) eifel: bool,
    /// Retransmissions not yet reported as duplicates by D-SACK.
    pub(super) undo_retrans: u32,
    /// The loss was found by what was SACKed: if it was none, it was reordering.
    pub(super) by_reordering: bool,
}

/// What is kept of an episode.
#[derive(Debug)]
struct Episode {
    undo: Undo,
    prr: Prr,
}

/// Loss recovery (RFC 6582, RFC 6675).
#[derive(Debug)]
pub(super) struct Recovery {
    pub(super) ca_state: CaState,
    /// Recovery ends when this is acknowledged.
    pub(super) recovery_point: Seq,
    /// The next retransmission goes out whatever the window says (RFC 6675 step 4.3).
    pub(super) force_retransmit: bool,
    pub(super) frto: Frto,
    /// Duplicate ACKs in a row.
    pub(super) dupacks: u32,
    /// Without SACK: bytes the duplicate ACKs say have left the network.
    pub(super) dupack_credit: u32,
    /// Without SACK: copies that an episode sent which was undone. Each brings about a duplicate
    /// ACK that tells of no loss.
    spurious_retrans: u32,
    /// The memory is kept for the next episode until the connection has been idle for a while.
    episode: Option<Box<Episode>>,
    /// What would undo the episode is known, and it was not undone.
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

    /// An ACK of new data is progress and nothing else.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.ca_state == CaState::Open && self.dupack_credit == 0
    }

    /// Begins an episode whose first loss is at `first_lost` and which ends at `recovery_point`,
    /// keeping `cwnd_prior` unless one is under way.
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

    /// The episode is over.
    pub(super) const fn leave(&mut self) {
        self.ca_state = CaState::Open;
        self.force_retransmit = false;
        self.frto = Frto::Off;
        self.dupack_credit = 0;
        self.dupacks = 0;
    }

    /// The episode was none, and the copies it sent are under way.
    pub(super) const fn expect_dupacks(&mut self, spurious_retrans: u32) {
        self.spurious_retrans = spurious_retrans;
    }

    /// A duplicate ACK came with `una` the first byte outstanding: is it the doing of a needless
    /// copy?
    pub(super) fn explains_dupack(&mut self, una: Seq) -> bool {
        let explains = self.spurious_retrans > 0 && una < self.recovery_point;
        self.spurious_retrans -= u32::from(explains);
        explains
    }

    /// What would undo the present or last episode, unless it was undone.
    pub(super) fn undo_mut(&mut self) -> Option<&mut Undo> {
        let episode = self.episode.as_deref_mut().filter(|_| self.undoable)?;
        Some(&mut episode.undo)
    }

    /// The same, to be undone now.
    pub(super) fn take_undo(&mut self) -> Option<Undo> {
        let undo = *self.undo_mut()?;
        self.undoable = false;
        Some(undo)
    }

    /// Measures what may leave during the present episode; of no use before the first.
    #[inline]
    pub(super) fn prr_mut(&mut self) -> Option<&mut Prr> {
        self.episode.as_deref_mut().map(|episode| &mut episode.prr)
    }

    /// Bytes left, new or again.
    #[inline]
    pub(super) fn on_sent(&mut self, bytes: u32) {
        if let Some(prr) = self.prr_mut() {
            prr.on_sent(bytes);
        }
    }

    /// Gives memory back: nothing is in flight.
    pub(super) fn release_memory(&mut self) {
        self.episode = None;
    }

    /// Notes a retransmission made with timestamp `ts`.
    pub(super) fn on_retransmit(&mut self, ts: u32) {
        self.force_retransmit = false;
        if let Some(undo) = self.undo_mut() {
            undo.retrans_stamp.get_or_insert(ts);
            undo.undo_retrans += 1;
        }
    }

    /// F-RTO: a new segment left.
    #[inline]
    pub(super) const fn on_new_data(&mut self) {
        if let Frto::AwaitSecondAck { new_segments: new } = &mut self.frto {
            *new = new.saturating_sub(1);
        }
    }

    /// F-RTO: a new segment goes before any retransmission.
    pub(super) const fn prefers_new_data(&self) -> bool {
        matches!(self.frto, Frto::AwaitSecondAck { new_segments: 1.. })
    }

    /// F-RTO: retransmissions wait for the next ACK.
    pub(super) const fn defers_retransmit(&self) -> bool {
        matches!(self.frto, Frto::AwaitSecondAck { .. })
    }

    /// F-RTO: nothing new may go. Where nothing new went, nothing can be told.
    pub(super) const fn on_no_new_data(&mut self) {
        self.frto = match self.frto {
            Frto::AwaitSecondAck { new_segments: 0 | 1 } => {
                Frto::AwaitSecondAck { new_segments: 0 }
            }
            _ => Frto::Off,
        };
    }
}

/// FlightSize at the start of the present round trip.
///
/// The reduction after a loss is by the flight that the lost bytes were part of (RFC 5681 equation
/// 4). By the time a loss near the end of a flight is found, SND.UNA has moved past most of that
/// flight, and what is left of it says nothing about what the path held. Per round trip it is the
/// `pipeACK` of RFC 7661 section 4.2, counted when the round begins instead of when it ends.
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

    /// An ACK moved SND.UNA from `una` to `ack`. To be called for the first of each round trip at
    /// least.
    #[inline]
    pub(super) fn on_ack(&mut self, una: Seq, ack: Seq, nxt: Seq) {
        if ack > self.end {
            *self = Self { end: nxt, bytes: nxt - una };
        }
    }

    /// The flight that the byte at `seq` was part of, `flight` being what is outstanding now.
    pub(super) fn at(&self, seq: Seq, flight: u32) -> u32 {
        if seq < self.end { flight.max(self.bytes) } else { flight }
    }
}

/// What the last tail-loss probe was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TlpProbe {
    /// None is out, or it was answered.
    None,
    /// A new segment, or our FIN: what its answer tells is for RACK.
    NewData,
    /// A record sent once more: its answer may be the only sign of a loss (RFC 8985
    /// section 7.4).
    Retransmit,
}

/// The tail-loss probe.
#[derive(Debug)]
pub(super) struct Tlp {
    pub(super) probe: TlpProbe,
    /// `TLP.end_seq`: everything sent before or with the probe lies below.
    pub(super) end_seq: Seq,
    /// Where the record sent again starts. Kept after the probe was answered, for reports of
    /// duplicates that come late.
    pub(super) retrans_seq: Option<Seq>,
    /// TSval of the probe.
    pub(super) ts: u32,
    /// It was the only record in the network.
    pub(super) is_single: bool,
    /// The flight that the record sent again was part of, and the window then: that the probe
    /// repaired a loss shows later, perhaps after an idle time.
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

    /// A probe is out, and it is not known what came of it.
    #[inline]
    pub(super) fn is_outstanding(&self) -> bool {
        self.probe != TlpProbe::None
    }

    /// The probe that is out, if the flight it belongs to is not acknowledged.
    #[inline]
    pub(super) fn outstanding(&self, una: Seq) -> TlpProbe {
        if una < self.end_seq { self.probe } else { TlpProbe::None }
    }
}
