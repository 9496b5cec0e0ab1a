//! Tail loss probe (RFC 8985 section 7): if the end of a flight is not acknowledged, one segment is
//! sent so that the peer's ACK reports what is missing.

use super::ca_state::CaState;
use crate::device::{Retained, RxFrame};
use crate::tcp::Tcb;
use crate::time::{Instant, NEVER};
use crate::wire::seq::Seq;
use crate::wire::tcp::{SackBlock, Segment};

/// Kind of the last tail loss probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum TlpProbe {
    /// None is outstanding.
    None,
    /// A new segment, or our FIN: RACK evaluates its ACK.
    NewData,
    /// A retransmitted record: its ACK may be the only sign of a loss (RFC 8985 section 7.4).
    Retransmit,
}

/// Tail loss probe state. What few connections need is in [`SentTlp`].
#[derive(Debug)]
#[doc(alias = "tail loss probe")]
pub(in crate::tcp) struct Tlp {
    pub(in crate::tcp) probe: TlpProbe,
    /// `TLP.end_seq`: everything sent before or with the probe lies below.
    pub(in crate::tcp) end_seq: Seq,
    /// The probe was the only record in the network.
    pub(in crate::tcp) is_single: bool,
}

/// Last tail loss probe that was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tcp) struct SentTlp {
    /// Start of the retransmitted record. Kept after the probe was acknowledged, for a late D-SACK.
    pub(in crate::tcp) retrans_seq: Option<Seq>,
    /// TSval of the probe.
    pub(in crate::tcp) ts: u32,
    /// Flight that the retransmitted record was part of, and the congestion window at that time. A
    /// loss repaired by the probe is detected later, perhaps after an idle time.
    pub(in crate::tcp) flight: u32,
    pub(in crate::tcp) cwnd: u32,
}

impl Tlp {
    pub(in crate::tcp) const fn new() -> Self {
        Self { probe: TlpProbe::None, end_seq: Seq(0), is_single: false }
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

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Starts the probe timeout (PTO) if a probe is allowed: one per flight, while no loss is known
    /// or suspected, and with SACK, without which the ACK would report nothing (section 7.2). If
    /// the RTO would expire first, the probe takes its place.
    #[inline]
    pub(in crate::tcp) fn arm_pto(&mut self, now: Instant) {
        let applies = self.cfg.tail_loss_probe
            && self.sack
            && self.recovery.ca_state == CaState::Open
            && self.scoreboard.is_clean()
            && self.tlp.outstanding(self.snd.una) == TlpProbe::None;
        self.timers.pto = if applies {
            let is_single = self.scoreboard.sent_count() <= 1;
            (now + self.rtt.pto(is_single)).min(self.timers.rto)
        } else {
            NEVER
        };
    }

    /// Notes that a probe was sent; `start` is the start of the record if it is a retransmission.
    #[cold]
    pub(in crate::tcp) fn on_tlp_sent(
        &mut self,
        now: Instant,
        probe: TlpProbe,
        start: Option<Seq>,
    ) {
        self.stats.record().tlp_probes += 1;
        self.pending.tlp = false;
        self.timers.pto = NEVER;
        self.tlp.probe = probe;
        self.tlp.end_seq = self.snd.nxt;
        let first = start.unwrap_or(self.snd.una);
        let flight = self.loss_flight(first, self.snd.flight());
        let (cwnd, ts) = (self.cc.cwnd(), self.ts.tsval(now));
        *self.stats.tlp_mut() = SentTlp { retrans_seq: start, ts, flight, cwnd };
        self.tlp.is_single = self.scoreboard.sent_count() <= 1;
        self.timers.rto = now + self.rtt.rto(&self.cfg);
    }

    /// Processes an ACK while a probe is outstanding (section 7.4). `una`: SND.UNA before it;
    /// `dsack`: its D-SACK block; `pure`: it is a duplicate ACK without SACK blocks.
    pub(in crate::tcp) fn process_tlp_ack(
        &mut self,
        seg: &Segment,
        una: Seq,
        dsack: Option<SackBlock>,
        pure: bool,
    ) {
        if self.tlp.probe == TlpProbe::None {
            return;
        }
        let sent = self.stats.tlp();
        let is_reported = sent.retrans_seq.is_some_and(|start| dsack.is_some_and(|b| b.0 == start));
        if self.tlp.probe == TlpProbe::Retransmit && is_reported {
            // The original was received, too.
            self.on_spurious_tlp();
        } else if seg.ack < self.tlp.end_seq {
            // Not acknowledged yet.
        } else if self.tlp.probe == TlpProbe::NewData {
            self.tlp.probe = TlpProbe::None;
        } else if sent.retrans_seq == Some(una) && self.echo_precedes_tlp(seg) {
            // TSecr is of the original: it was received, and its ACK late or lost.
            self.on_spurious_tlp();
        } else if seg.ack > self.tlp.end_seq {
            // The probe repaired a loss that is not detected otherwise.
            self.tlp.probe = TlpProbe::None;
            if self.recovery.ca_state == CaState::Open {
                self.stats.record().tlp_repairs += 1;
                if !self.ecn.covers(una) {
                    let SentTlp { flight, cwnd: window, .. } = sent;
                    self.cc.on_late_loss(window, flight, u32::from(self.emss));
                }
                self.ecn.on_loss(self.snd.nxt);
            }
        } else if pure {
            // Two ACKs, of the original and of the probe, from a peer without D-SACK.
            self.on_spurious_tlp();
        }
    }

    fn on_spurious_tlp(&mut self) {
        self.stats.record().tlp_spurious += 1;
        self.tlp.probe = TlpProbe::None;
        self.rtt.on_spurious_probe(self.tlp.is_single, &self.cfg);
    }

    /// True if TSecr, which echoes the retransmitted record, is of an earlier transmission than the
    /// probe.
    fn echo_precedes_tlp(&self, seg: &Segment) -> bool {
        let echo = seg.options.ts.filter(|_| self.ts_on).map(|ts| ts.1);
        echo.is_some_and(|echo| echo.wrapping_sub(self.stats.tlp().ts).cast_signed() < 0)
    }
}
