//! Header fields of plain segments, received and sent.

use super::{Ecn, Flags};
use crate::wire::seq::Seq;

/// Header fields of a segment without options other than timestamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlainHeader {
    /// Sequence number.
    pub seq: Seq,
    /// Acknowledgment number.
    pub ack: Seq,
    /// Control bits.
    pub flags: Flags,
    /// Window field, not scaled.
    pub window: u16,
    /// ECN field of the IP header.
    pub ecn: Ecn,
    /// Timestamps: TSval, TSecr.
    pub ts: Option<(u32, u32)>,
}

impl PlainHeader {
    /// True if a segment with this header, that begins at `seq`, continues a train of segments with
    /// the header `first`: they differ in the sequence number alone, and in PSH. In particular a
    /// change of the ECN codepoint ends a train (RFC 8257 section 3.2).
    #[inline]
    #[must_use]
    pub fn continues(&self, first: &Self, seq: Seq) -> bool {
        self.seq == seq
            && self.ack == first.ack
            && (self.flags.0 ^ first.flags.0) & !Flags::PSH.0 == 0
            && self.window == first.window
            && self.ecn == first.ecn
            && self.ts == first.ts
    }
}
