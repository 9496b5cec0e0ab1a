//! Explicit Congestion Notification (RFC 3168, and DCTCP's ECN echo of RFC 8257): negotiation, echo
//! of CE to the peer, and response to ECE from the peer.
//!
//! ECT(0) is set on segments of new data only, not on pure ACKs, retransmissions, probes, SYN and
//! FIN (RFC 3168 sections 6.1.1, 6.1.4 to 6.1.6); RFC 8311 allows it there for experiments.

use arrayvec::ArrayVec;

use super::Tcb;
use super::recovery::ca_state::CaState;
use super::settings::{Algorithm, Config, EcnMode};
use crate::device::{Retained, RxFrame};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::{Ecn, Fields, Flags, Options, Segment};

/// Both flags of an ECN-setup SYN.
const ECN_SETUP: Flags = Flags(Flags::ECE.0 | Flags::CWR.0);
/// Most ACKs pending for changes of the CE state.
const OWED_ACKS_MAX: usize = 4;

/// Reason of the last window reduction, while data sent before it is unacknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reduced {
    /// No reduction.
    No,
    ForEce,
    ForLoss,
}

/// ECN state of one connection.
#[derive(Debug)]
pub(super) struct EcnState {
    /// ECN is used: CE of the peer is echoed, and its ECE answered.
    pub(super) enabled: bool,
    /// ECN codepoint of new data in the IP header.
    pub(super) codepoint: Ecn,
    /// ECE, while it is set on every ACK.
    pub(super) ece: Flags,
    /// The window was reduced: CWR is set on the next new data.
    pub(super) cwr_due: bool,
    /// A local SYN was an ECN-setup SYN (RFC 3168 section 6.1.1); another one was not.
    sent_ecn_setup_syn: bool,
    sent_non_ecn_setup_syn: bool,
    /// ECE follows CE (RFC 8257 section 3.2).
    dctcp_echo: bool,
    /// SND.NXT at the last window reduction: ECE does not reduce the window again before more than
    /// this is acknowledged.
    reduced_at: Seq,
    reduced: Reduced,
    /// Acknowledgment numbers at which the CE state changed; each has to be acknowledged by an ACK
    /// of its own. The state before the last of them is the opposite of `ece`, and so on backwards.
    /// Allocated separately, and released once the connection is idle.
    owed_acks: Option<Box<ArrayVec<Seq, OWED_ACKS_MAX>>>,
}

impl EcnState {
    pub(super) fn new(cfg: &Config) -> Self {
        Self {
            enabled: false,
            codepoint: Ecn::NotEct,
            ece: Flags::default(),
            cwr_due: false,
            sent_ecn_setup_syn: false,
            sent_non_ecn_setup_syn: false,
            dctcp_echo: cfg.congestion == Algorithm::Dctcp,
            reduced_at: Seq(0),
            reduced: Reduced::No,
            owed_acks: None,
        }
    }

    /// Returns the ECN flags of our SYN. A retransmitted SYN has none: a middlebox may drop
    /// ECN-setup SYNs (RFC 3168 section 6.1.1.1).
    pub(super) fn syn_flags(&mut self, mode: EcnMode, again: bool) -> Flags {
        if mode == EcnMode::Request && !again {
            self.sent_ecn_setup_syn = true;
            ECN_SETUP
        } else {
            self.sent_non_ecn_setup_syn = true;
            Flags::default()
        }
    }

    /// Returns the ECN flags of our SYN-ACK.
    pub(super) fn syn_ack_flags(&self) -> Flags {
        if self.enabled { Flags::ECE } else { Flags::default() }
    }

    /// Processes the ECN flags of the peer's SYN or SYN-ACK (section 6.1.1). A host that has sent a
    /// SYN without ECN setup never sets ECT; one that has received such a SYN or SYN-ACK does not
    /// use ECN at all.
    pub(super) fn negotiate(&mut self, mode: EcnMode, flags: Flags) {
        let bits = Flags(flags.0 & ECN_SETUP.0);
        self.enabled = if flags.has(Flags::ACK) {
            // A SYN-ACK with both flags reflects those of our SYN: the peer does not implement ECN.
            self.sent_ecn_setup_syn && bits == Flags::ECE
        } else {
            // In a simultaneous open our own SYN counts, too.
            mode != EcnMode::Off
                && bits == ECN_SETUP
                && (self.sent_ecn_setup_syn || !self.sent_non_ecn_setup_syn)
        };
        let sends = self.enabled && !self.sent_non_ecn_setup_syn;
        self.codepoint = if sends { Ecn::Ect0 } else { Ecn::NotEct };
    }

    /// Processes the ECN flags of a retransmitted SYN of the peer.
    pub(super) fn on_repeated_syn(&mut self, flags: Flags) {
        if !flags.has(ECN_SETUP) {
            self.enabled = false;
            self.codepoint = Ecn::NotEct;
        }
    }

    /// Notes a window reduction for a loss; `nxt` is SND.NXT.
    pub(super) fn on_loss(&mut self, nxt: Seq) {
        self.on_window_reduced(nxt, Reduced::ForLoss);
    }

    /// Schedules CWR, whatever the reason of the reduction (section 6.1.2).
    fn on_window_reduced(&mut self, nxt: Seq, reduced: Reduced) {
        if self.enabled {
            self.reduced_at = nxt;
            self.reduced = reduced;
            self.cwr_due = self.codepoint != Ecn::NotEct;
        }
    }

    /// True if the window was reduced, for ECE, after the byte at `seq` was sent: its loss is part
    /// of the same congestion event.
    pub(super) fn covers(&self, seq: Seq) -> bool {
        self.reduced == Reduced::ForEce && seq < self.reduced_at
    }

    /// True if no CE is to be echoed and no ECE was answered in this window: segments without new
    /// congestion signals may take the fast path.
    pub(super) fn is_idle(&self) -> bool {
        let echoes = || {
            self.ece != Flags::default() || self.owed_acks.as_ref().is_some_and(|o| !o.is_empty())
        };
        !self.enabled || (!echoes() && !self.cwr_due && self.reduced == Reduced::No)
    }

    /// Sets ECT on a segment of new data, and CWR if due.
    #[inline]
    pub(super) fn mark_new_data(&mut self, fields: &mut Fields) {
        fields.ecn = self.codepoint;
        if self.cwr_due {
            self.cwr_due = false;
            fields.flags = fields.flags | Flags::CWR;
        }
    }

    /// Removes and returns the oldest ACK pending for a change of the CE state: its acknowledgment
    /// number, and ECE as it was before the change.
    pub(super) fn pop_owed_ack(&mut self) -> Option<(Seq, Flags)> {
        let owed = self.owed_acks.as_mut()?;
        let ack = owed.pop_at(0)?;
        // The number of changes from there to now.
        let changes = owed.len() + 1;
        let echo = if changes % 2 == 0 { self.ece } else { Flags(self.ece.0 ^ Flags::ECE.0) };
        Some((ack, echo))
    }

    /// Updates the DCTCP echo for received data; `marked` if it carried CE. `pending` is RCV.NXT if
    /// data before it is not acknowledged yet. Returns true if the CE state changed.
    fn update_dctcp_echo(&mut self, marked: bool, pending: Option<Seq>) -> bool {
        let echo = if marked { Flags::ECE } else { Flags::default() };
        if echo == self.ece {
            return false;
        }
        self.ece = echo;
        let Some(ack) = pending else { return true };
        let owed = self.owed_acks.get_or_insert_default();
        // No data between this change and the one before: they cancel out. Nor do they count if the
        // queue is full: the last run of segments then counts as part of the one before it.
        if owed.last() == Some(&ack) || owed.is_full() {
            owed.pop();
        } else {
            owed.push(ack);
        }
        true
    }

    /// Releases the memory of pending ACKs if there are none.
    pub(super) fn release_memory(&mut self) {
        if self.owed_acks.as_ref().is_some_and(|owed| owed.is_empty()) {
            self.owed_acks = None;
        }
    }
}

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Processes CE and ECE of an acceptable segment on a connection with ECN. To be called before
    /// `seg.ack` advances SND.UNA.
    pub(in crate::tcp) fn process_ecn(&mut self, seg: &Segment) {
        if !seg.payload.is_empty() {
            self.process_ce(seg);
        }
        if seg.ack < self.snd.una {
            return;
        }
        if seg.ack > self.ecn.reduced_at {
            self.ecn.reduced = Reduced::No;
        }
        let echoes = seg.flags.has(Flags::ECE);
        self.cc.observe(self.snd.una, seg.ack, self.snd.nxt, echoes);
        if echoes {
            self.on_ece();
        }
    }

    /// Processes CE as the receiver: ECE from CE until CWR is received (RFC 3168 section 6.1.3), or
    /// ECE as CE (RFC 8257 section 3.2).
    fn process_ce(&mut self, seg: &Segment) {
        let marked = seg.ecn == Ecn::Ce;
        if marked {
            self.stats.record().ce_in += 1;
        }
        if self.ecn.dctcp_echo {
            let pending = (self.rcv.nxt != self.rcv.last_ack_sent).then_some(self.rcv.nxt);
            if self.ecn.update_dctcp_echo(marked, pending) {
                // At once, and as a pure ACK: the peer counts the bytes acknowledged with ECE.
                self.rcv.ack_now = true;
                self.rcv.pure_ack = true;
            }
            return;
        }
        if seg.flags.has(Flags::CWR) {
            self.ecn.ece = Flags::default();
        }
        if marked {
            self.ecn.ece = Flags::ECE;
        }
    }

    /// Processes ECE as the sender: reduces the window as for a loss, without retransmission. Once
    /// for all data sent before a reduction, one for loss included (RFC 3168 section 6.1.2).
    #[cold]
    fn on_ece(&mut self) {
        self.stats.record().ece_in += 1;
        // ACKs with ECE do not grow the window.
        self.cc.cwnd_limited = false;
        if self.ecn.reduced != Reduced::No || self.recovery.ca_state != CaState::Open {
            return;
        }
        self.stats.record().ece_reductions += 1;
        self.ecn.on_window_reduced(self.snd.nxt, Reduced::ForEce);
        let flight = self.loss_flight(self.snd.una, self.snd.flight());
        self.cc.on_ece(flight, u32::from(self.emss));
    }

    /// Fields of an ACK of `ack` with ECE as it was then, and the window as advertised since.
    #[cold]
    pub(in crate::tcp) fn owed_ack_fields(&self, now: Instant, ack: Seq, echo: Flags) -> Fields {
        let window = (self.rcv.adv - ack) >> self.rcv.wscale;
        Fields {
            seq: self.snd.nxt,
            ack,
            flags: Flags::ACK | echo,
            window: u16::try_from(window).unwrap_or(u16::MAX),
            options: Options::timestamps(self.timestamps(now)),
            ..Fields::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ECN_SETUP, EcnMode, EcnState};
    use crate::tcp::{Algorithm, Config};
    use crate::wire::seq::Seq;
    use crate::wire::tcp::Flags;

    #[test]
    fn each_ce_change_is_acknowledged_separately() {
        let cfg = Config { congestion: Algorithm::Dctcp, ..Config::default() };
        let mut ecn = EcnState::new(&cfg);
        ecn.negotiate(EcnMode::Accept, Flags::SYN | ECN_SETUP);
        assert!(!ecn.update_dctcp_echo(false, Some(Seq(1))), "no change");
        assert!(ecn.update_dctcp_echo(true, Some(Seq(1000))));
        assert!(ecn.update_dctcp_echo(false, Some(Seq(2000))));
        assert!(ecn.update_dctcp_echo(true, Some(Seq(3000))));
        assert!(ecn.update_dctcp_echo(false, Some(Seq(3000))), "and back in the same state");
        assert_eq!(ecn.pop_owed_ack(), Some((Seq(1000), Flags::default())));
        assert_eq!(ecn.pop_owed_ack(), Some((Seq(2000), Flags::ECE)));
        assert_eq!(ecn.pop_owed_ack(), None);
        assert_eq!(ecn.ece, Flags::default());
        for n in 0..101 {
            assert!(ecn.update_dctcp_echo(n % 2 == 0, Some(Seq(n * 10))));
            assert!(ecn.owed_acks.as_ref().is_none_or(|owed| owed.len() <= super::OWED_ACKS_MAX));
        }
        let mut echoes = Vec::new();
        while let Some((_, echo)) = ecn.pop_owed_ack() {
            echoes.push(echo == Flags::ECE);
        }
        echoes.push(ecn.ece == Flags::ECE);
        assert!(echoes.last() == Some(&true) && echoes.windows(2).all(|two| two[0] != two[1]));
    }
}
