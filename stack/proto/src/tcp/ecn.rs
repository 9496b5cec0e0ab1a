//! Explicit congestion notification (RFC 3168, with DCTCP's echo of RFC 8257): what is agreed on,
//! what is echoed to the peer, and what the peer's echo does.
//!
//! ECT(0) is set on segments of new bytes alone; pure ACKs, retransmissions, probes, SYN and FIN
//! go without (RFC 3168 sections 6.1.1, 6.1.4 to 6.1.6), which RFC 8311 leaves to experiments.

use arrayvec::ArrayVec;

use super::config::{Algorithm, EcnMode};
use super::recovery_state::CaState;
use super::{Config, Tcb};
use crate::device::{Retained, RxFrame};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::{Ecn as Codepoint, Fields, Flags, Options, Segment};

/// The bits that negotiate, both of them.
const ECN_SETUP: Flags = Flags(Flags::ECE.0 | Flags::CWR.0);
/// Most ACKs owed for changes of the mark.
const OWED_ACKS_MAX: usize = 4;

/// Why the window was reduced for what is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reduced {
    /// It was not.
    No,
    ForEce,
    ForLoss,
}

/// State of one connection.
#[derive(Debug)]
pub(super) struct Ecn {
    /// Marks of the peer's segments are echoed, and its echoes answered.
    pub(super) enabled: bool,
    /// What new bytes carry in the IP header.
    pub(super) codepoint: Codepoint,
    /// ECE, while it is to be on every ACK.
    pub(super) ece: Flags,
    /// The window was reduced; the next new bytes say so.
    pub(super) cwr_due: bool,
    /// A SYN or SYN-ACK of ours asked for, or agreed to, ECN; another one did not.
    offered: bool,
    withheld: bool,
    /// The echo follows the mark (RFC 8257 section 3.2).
    dctcp_echo: bool,
    /// The window was reduced when this was to be sent next: no echo reduces it again before more
    /// is acknowledged.
    reduced_at: Seq,
    reduced: Reduced,
    /// Acknowledgment numbers at which the mark changed and which are to be acknowledged each by
    /// itself. The mark before the last of them is the opposite of `ece`, and so on backwards.
    /// In memory of their own, which is given back once the connection is idle.
    owed_acks: Option<Box<ArrayVec<Seq, OWED_ACKS_MAX>>>,
}

impl Ecn {
    pub(super) fn new(cfg: &Config) -> Self {
        Self {
            enabled: false,
            codepoint: Codepoint::NotEct,
            ece: Flags::default(),
            cwr_due: false,
            offered: false,
            withheld: false,
            dctcp_echo: cfg.congestion == Algorithm::Dctcp,
            reduced_at: Seq(0),
            reduced: Reduced::No,
            owed_acks: None,
        }
    }

    /// The bits of our SYN. One that is sent again does without: something on the path may drop
    /// SYNs that ask (RFC 3168 section 6.1.1.1).
    pub(super) fn syn_flags(&mut self, mode: EcnMode, again: bool) -> Flags {
        if mode == EcnMode::Request && !again {
            self.offered = true;
            ECN_SETUP
        } else {
            self.withheld = true;
            Flags::default()
        }
    }

    /// The bits of our SYN-ACK.
    pub(super) fn syn_ack_flags(&self) -> Flags {
        if self.enabled { Flags::ECE } else { Flags::default() }
    }

    /// The peer's SYN or SYN-ACK came (section 6.1.1). Whoever sent one that does not negotiate
    /// never sets ECT; whoever received one takes no part at all.
    pub(super) fn negotiate(&mut self, mode: EcnMode, flags: Flags) {
        let bits = Flags(flags.0 & ECN_SETUP.0);
        self.enabled = if flags.has(Flags::ACK) {
            // Both bits on a SYN-ACK are ours, reflected by a host that knows no better.
            self.offered && bits == Flags::ECE
        } else {
            // At a simultaneous open our own SYN counts, too.
            mode != EcnMode::Off && bits == ECN_SETUP && (self.offered || !self.withheld)
        };
        let sends = self.enabled && !self.withheld;
        self.codepoint = if sends { Codepoint::Ect0 } else { Codepoint::NotEct };
    }

    /// The peer's SYN came once more.
    pub(super) fn on_repeated_syn(&mut self, flags: Flags) {
        if !flags.has(ECN_SETUP) {
            self.enabled = false;
            self.codepoint = Codepoint::NotEct;
        }
    }

    /// The window was reduced for a loss, `nxt` being what is sent next.
    pub(super) fn on_loss(&mut self, nxt: Seq) {
        self.on_window_reduced(nxt, Reduced::ForLoss);
    }

    /// Whatever the reason, the peer is told (section 6.1.2).
    fn on_window_reduced(&mut self, nxt: Seq, reduced: Reduced) {
        if self.enabled {
            self.reduced_at = nxt;
            self.reduced = reduced;
            self.cwr_due = self.codepoint != Codepoint::NotEct;
        }
    }

    /// True if the window was reduced, by the peer's echo, for what was in flight along with the
    /// byte at `seq`: its loss is the same congestion.
    pub(super) fn covers(&self, seq: Seq) -> bool {
        self.reduced == Reduced::ForEce && seq < self.reduced_at
    }

    /// Neither a mark is to be echoed, nor is an echo being answered: segments that bring nothing
    /// new of congestion may take the fast path.
    pub(super) fn is_idle(&self) -> bool {
        let echoes = || {
            self.ece != Flags::default() || self.owed_acks.as_ref().is_some_and(|o| !o.is_empty())
        };
        !self.enabled || (!echoes() && !self.cwr_due && self.reduced == Reduced::No)
    }

    /// Marks a segment of new bytes.
    #[inline]
    pub(super) fn mark_new_data(&mut self, fields: &mut Fields) {
        fields.ecn = self.codepoint;
        if self.cwr_due {
            self.cwr_due = false;
            fields.flags = fields.flags | Flags::CWR;
        }
    }

    /// The oldest ACK owed for a change of the mark: its number, and the echo before the change.
    pub(super) fn pop_owed_ack(&mut self) -> Option<(Seq, Flags)> {
        let owed = self.owed_acks.as_mut()?;
        let ack = owed.pop_at(0)?;
        // As often as the mark changed from there to now.
        let changes = owed.len() + 1;
        let echo = if changes % 2 == 0 { self.ece } else { Flags(self.ece.0 ^ Flags::ECE.0) };
        Some((ack, echo))
    }

    /// Bytes arrived with the mark `marked`; everything before `acked_pending` was received and is
    /// not acknowledged yet. True if the mark changed.
    fn update_dctcp_echo(&mut self, marked: bool, pending: Option<Seq>) -> bool {
        let echo = if marked { Flags::ECE } else { Flags::default() };
        if echo == self.ece {
            return false;
        }
        self.ece = echo;
        let Some(ack) = pending else { return true };
        let owed = self.owed_acks.get_or_insert_default();
        // Nothing between this change and the one before: they are none. Too many: the shortest
        // history is that without the last run.
        if owed.last() == Some(&ack) || owed.is_full() {
            owed.pop();
        } else {
            owed.push(ack);
        }
        true
    }

    /// Gives memory back if nothing is in it.
    pub(super) fn release_memory(&mut self) {
        if self.owed_acks.as_ref().is_some_and(|owed| owed.is_empty()) {
            self.owed_acks = None;
        }
    }
}

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// What an acceptable segment says of congestion, in either direction, on a connection with
    /// ECN. `seg.ack` is not yet taken over.
    pub(super) fn process_ecn(&mut self, seg: &Segment) {
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

    /// The receiver's part: ECE from the mark until the peer says CWR (RFC 3168 section 6.1.3),
    /// or as the mark is (RFC 8257 section 3.2).
    fn process_ce(&mut self, seg: &Segment) {
        let marked = seg.ecn == Codepoint::Ce;
        if marked {
            self.stats.record().ce_in += 1;
        }
        if self.ecn.dctcp_echo {
            let pending = (self.rcv.nxt != self.rcv.last_ack_sent).then_some(self.rcv.nxt);
            if self.ecn.update_dctcp_echo(marked, pending) {
                // At once, and by itself: the count of bytes with ECE has to be right.
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

    /// The sender's part: as for a loss, but nothing is sent again; once for all that was sent
    /// before the reduction (RFC 3168 section 6.1.2), losses included.
    #[cold]
    fn on_ece(&mut self) {
        self.stats.record().ece_in += 1;
        // The window does not grow by what is marked.
        self.cc.cwnd_limited = false;
        if self.ecn.reduced != Reduced::No || self.recovery.ca_state != CaState::Open {
            return;
        }
        self.stats.record().ece_reductions += 1;
        self.ecn.on_window_reduced(self.snd.nxt, Reduced::ForEce);
        let flight = self.loss_flight(self.snd.una, self.snd.flight());
        self.cc.on_ece(flight, u32::from(self.emss));
    }

    /// An ACK of `ack` with the echo as it was then, and the window as it is offered since.
    #[cold]
    pub(super) fn owed_ack_fields(&self, now: Instant, ack: Seq, echo: Flags) -> Fields {
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
    use super::{ECN_SETUP, Ecn, EcnMode};
    use crate::tcp::{Algorithm, Config};
    use crate::wire::seq::Seq;
    use crate::wire::tcp::Flags;

    #[test]
    fn each_ce_change_is_acknowledged_separately() {
        let cfg = Config { congestion: Algorithm::Dctcp, ..Config::default() };
        let mut ecn = Ecn::new(&cfg);
        ecn.negotiate(EcnMode::Accept, Flags::SYN | ECN_SETUP);
        assert!(!ecn.update_dctcp_echo(false, Some(Seq(1))), "no change");
        assert!(ecn.update_dctcp_echo(true, Some(Seq(1000))));
        assert!(ecn.update_dctcp_echo(false, Some(Seq(2000))));
        assert!(ecn.update_dctcp_echo(true, Some(Seq(3000))));
        assert!(ecn.update_dctcp_echo(false, Some(Seq(3000))), "and back at the same place");
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
