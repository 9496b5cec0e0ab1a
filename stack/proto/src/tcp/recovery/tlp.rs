//! Tail loss probe (RFC 8985 section 7): if the end of a flight is not acknowledged, one segment is
//! sent so that the peer's ACK reports what is missing.

mod tcb;

use crate::wire::seq::Seq;

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
