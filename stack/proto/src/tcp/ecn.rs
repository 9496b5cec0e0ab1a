//! Explicit congestion notification (RFC 3168, with DCTCP's echo of RFC 8257): what is agreed on,
//! what is echoed to the peer, and what the peer's echo does.
//!
//! ECT(0) is set on segments of new octets alone; pure ACKs, retransmissions, probes, SYN and FIN
//! go without (RFC 3168 sections 6.1.1, 6.1.4 to 6.1.6), which RFC 8311 leaves to experiments.

use arrayvec::ArrayVec;

use super::config::{Algorithm, EcnMode};
use super::recovery::Phase;
use super::{Config, Tcb};
use crate::device::{Retained, RxFrame};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::{Ecn as Codepoint, Fields, Flags, Options, Segment};

/// The bits that negotiate, both of them.
const SETUP: Flags = Flags(Flags::ECE.0 | Flags::CWR.0);
/// Most ACKs owed for changes of the mark.
const OWED_MAX: usize = 4;

/// Why the window was reduced for what is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reduced {
    /// It was not.
    No,
    ForEcho,
    ForLoss,
}

/// State of one connection.
#[derive(Debug)]
pub(super) struct Ecn {
    /// Marks of the peer's segments are echoed, and its echoes answered.
    pub(super) on: bool,
    /// What new octets carry in the IP header.
    pub(super) codepoint: Codepoint,
    /// ECE, while it is to be on every ACK.
    pub(super) echo: Flags,
    /// The window was reduced; the next new octets say so.
    pub(super) cwr_due: bool,
    /// A SYN or SYN-ACK of ours asked for, or agreed to, ECN; another one did not.
    offered: bool,
    withheld: bool,
    /// The echo follows the mark (RFC 8257 section 3.2).
    mirrors: bool,
    /// The window was reduced when this was to be sent next: no echo reduces it again before more
    /// is acknowledged.
    reduced_at: Seq,
    reduced: Reduced,
    /// Acknowledgment numbers at which the mark changed and which are to be acknowledged each by
    /// itself. The mark before the last of them is the opposite of `echo`, and so on backwards.
    /// In memory of their own, which is given back once the connection is idle.
    owed: Option<Box<ArrayVec<Seq, OWED_MAX>>>,
}

impl Ecn {
    pub(super) fn new(cfg: &Config) -> Self {
        Self {
            on: false,
            codepoint: Codepoint::NotCapable,
            echo: Flags::default(),
            cwr_due: false,
            offered: false,
            withheld: false,
            mirrors: cfg.congestion == Algorithm::Dctcp,
            reduced_at: Seq(0),
            reduced: Reduced::No,
            owed: None,
        }
    }

    /// The bits of our SYN. One that is sent again does without: something on the path may drop
    /// SYNs that ask (RFC 3168 section 6.1.1.1).
    pub(super) fn syn_flags(&mut self, mode: EcnMode, again: bool) -> Flags {
        if mode == EcnMode::Request && !again {
            self.offered = true;
            SETUP
        } else {
            self.withheld = true;
            Flags::default()
        }
    }

    /// The bits of our SYN-ACK.
    pub(super) fn syn_ack_flags(&self) -> Flags {
        if self.on { Flags::ECE } else { Flags::default() }
    }

    /// The peer's SYN or SYN-ACK came (section 6.1.1). Whoever sent one that does not negotiate
    /// never sets ECT; whoever received one takes no part at all.
    pub(super) fn negotiate(&mut self, mode: EcnMode, flags: Flags) {
        let bits = Flags(flags.0 & SETUP.0);
        self.on = if flags.has(Flags::ACK) {
            // Both bits on a SYN-ACK are ours, reflected by a host that knows no better.
            self.offered && bits == Flags::ECE
        } else {
            // At a simultaneous open our own SYN counts, too.
            mode != EcnMode::Off && bits == SETUP && (self.offered || !self.withheld)
        };
        let sends = self.on && !self.withheld;
        self.codepoint = if sends { Codepoint::Capable0 } else { Codepoint::NotCapable };
    }

    /// The peer's SYN came once more.
    pub(super) fn repeated_syn(&mut self, flags: Flags) {
        if !flags.has(SETUP) {
            self.on = false;
            self.codepoint = Codepoint::NotCapable;
        }
    }

    /// The window was reduced for a loss, `nxt` being what is sent next.
    pub(super) fn on_loss(&mut self, nxt: Seq) {
        self.window_reduced(nxt, Reduced::ForLoss);
    }

    /// Whatever the reason, the peer is told (section 6.1.2).
    fn window_reduced(&mut self, nxt: Seq, reduced: Reduced) {
        if self.on {
            self.reduced_at = nxt;
            self.reduced = reduced;
            self.cwr_due = self.codepoint != Codepoint::NotCapable;
        }
    }

    /// True if the window was reduced, by the peer's echo, for what was in flight along with the
    /// octet at `seq`: its loss is the same congestion.
    pub(super) fn covers(&self, seq: Seq) -> bool {
        self.reduced == Reduced::ForEcho && seq < self.reduced_at
    }

    /// Neither a mark is to be echoed, nor is an echo being answered: segments that bring nothing
    /// new of congestion may take the fast path.
    pub(super) fn is_still(&self) -> bool {
        let echoes =
            || self.echo != Flags::default() || self.owed.as_ref().is_some_and(|o| !o.is_empty());
        !self.on || (!echoes() && !self.cwr_due && self.reduced == Reduced::No)
    }

    /// Marks a segment of new octets.
    #[inline]
    pub(super) fn mark_fresh(&mut self, fields: &mut Fields) {
        fields.ecn = self.codepoint;
        if self.cwr_due {
            self.cwr_due = false;
            fields.flags = fields.flags | Flags::CWR;
        }
    }

    /// The oldest ACK owed for a change of the mark: its number, and the echo before the change.
    pub(super) fn take_owed(&mut self) -> Option<(Seq, Flags)> {
        let owed = self.owed.as_mut()?;
        let ack = owed.pop_at(0)?;
        // As often as the mark changed from there to now.
        let changes = owed.len() + 1;
        let echo = if changes % 2 == 0 { self.echo } else { Flags(self.echo.0 ^ Flags::ECE.0) };
        Some((ack, echo))
    }

    /// Octets arrived with the mark `marked`; everything before `pending` was received and is
    /// not acknowledged yet. True if the mark changed.
    fn mirror(&mut self, marked: bool, pending: Option<Seq>) -> bool {
        let echo = if marked { Flags::ECE } else { Flags::default() };
        if echo == self.echo {
            return false;
        }
        self.echo = echo;
        let Some(ack) = pending else { return true };
        let owed = self.owed.get_or_insert_default();
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
        if self.owed.as_ref().is_some_and(|owed| owed.is_empty()) {
            self.owed = None;
        }
    }
}

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// What an acceptable segment says of congestion, in either direction, on a connection with
    /// ECN. `seg.ack` is not yet taken over.
    pub(super) fn take_ecn(&mut self, seg: &Segment) {
        if !seg.payload.is_empty() {
            self.take_mark(seg);
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
            self.take_echo();
        }
    }

    /// The receiver's part: ECE from the mark until the peer says CWR (RFC 3168 section 6.1.3),
    /// or as the mark is (RFC 8257 section 3.2).
    fn take_mark(&mut self, seg: &Segment) {
        let marked = seg.ecn == Codepoint::Congested;
        if marked {
            self.stats.record().marked_in += 1;
        }
        if self.ecn.mirrors {
            let pending = (self.rcv.nxt != self.rcv.last_ack).then_some(self.rcv.nxt);
            if self.ecn.mirror(marked, pending) {
                // At once, and by itself: the count of octets with ECE has to be right.
                self.rcv.due = true;
                self.rcv.pure = true;
            }
            return;
        }
        if seg.flags.has(Flags::CWR) {
            self.ecn.echo = Flags::default();
        }
        if marked {
            self.ecn.echo = Flags::ECE;
        }
    }

    /// The sender's part: as for a loss, but nothing is sent again; once for all that was sent
    /// before the reduction (RFC 3168 section 6.1.2), losses included.
    #[cold]
    fn take_echo(&mut self) {
        self.stats.record().echoes_in += 1;
        // The window does not grow by what is marked.
        self.cc.limited = false;
        if self.ecn.reduced != Reduced::No || self.recovery.phase != Phase::Open {
            return;
        }
        self.stats.record().echo_reductions += 1;
        self.ecn.window_reduced(self.snd.nxt, Reduced::ForEcho);
        let flight = self.loss_flight(self.snd.una, self.snd.flight());
        self.cc.on_congestion_echo(flight, u32::from(self.emss));
    }

    /// An ACK of `ack` with the echo as it was then, and the window as it is offered since.
    #[cold]
    pub(super) fn owed_ack_fields(&self, now: Instant, ack: Seq, echo: Flags) -> Fields {
        let window = (self.rcv.edge - ack) >> self.rcv.wscale;
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
    use super::{Ecn, EcnMode, SETUP};
    use crate::tcp::{Algorithm, Config};
    use crate::wire::seq::Seq;
    use crate::wire::tcp::Flags;

    #[test]
    fn the_mark_s_changes_are_acknowledged_one_by_one() {
        let cfg = Config { congestion: Algorithm::Dctcp, ..Config::default() };
        let mut ecn = Ecn::new(&cfg);
        ecn.negotiate(EcnMode::Accept, Flags::SYN | SETUP);
        assert!(!ecn.mirror(false, Some(Seq(1))), "no change");
        assert!(ecn.mirror(true, Some(Seq(1000))));
        assert!(ecn.mirror(false, Some(Seq(2000))));
        assert!(ecn.mirror(true, Some(Seq(3000))));
        assert!(ecn.mirror(false, Some(Seq(3000))), "and back at the same place");
        assert_eq!(ecn.take_owed(), Some((Seq(1000), Flags::default())));
        assert_eq!(ecn.take_owed(), Some((Seq(2000), Flags::ECE)));
        assert_eq!(ecn.take_owed(), None);
        assert_eq!(ecn.echo, Flags::default());
        for n in 0..101 {
            assert!(ecn.mirror(n % 2 == 0, Some(Seq(n * 10))));
            assert!(ecn.owed.as_ref().is_none_or(|owed| owed.len() <= super::OWED_MAX));
        }
        let mut echoes = Vec::new();
        while let Some((_, echo)) = ecn.take_owed() {
            echoes.push(echo == Flags::ECE);
        }
        echoes.push(ecn.echo == Flags::ECE);
        assert!(echoes.last() == Some(&true) && echoes.windows(2).all(|two| two[0] != two[1]));
    }
}
