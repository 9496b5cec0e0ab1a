//! Pending decision: the action that the next call on the connection carries out.

use crate::tcp::rx::offered_ooo::OfferedOoo;
use crate::wire::seq::Seq;

/// Decision that the next call on the connection has to carry out.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) enum Plan {
    Nothing,
    /// An out-of-order segment was offered to the upper layer; its disposition is pending.
    OooOffered(OfferedOoo),
    /// Announced by `next_transmit`, to be written by the matching `write_` function.
    Control(Control),
    /// See `Control`.
    Retransmit(Retransmit),
}

/// Control segment, without payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum Control {
    /// RST that ends the connection.
    Reset,
    /// RST in reply to an unacceptable acknowledgment.
    StrayReset(Seq),
    /// SYN or SYN-ACK, by the state.
    Syn,
    /// ACK.
    Ack,
    /// FIN with ACK.
    Fin,
    /// Zero-window or keepalive probe: below the peer's window, so that it answers.
    Probe,
}

/// Bytes to be sent from a retained frame.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Retransmit {
    /// Index of the record on the scoreboard.
    pub(in crate::tcp) index: u32,
    /// Payload bytes; less than the record has if it is to be split.
    pub(in crate::tcp) len: u32,
    pub(in crate::tcp) reason: RetransmitReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum RetransmitReason {
    /// The record is lost.
    Lost,
    /// Tail loss probe.
    Tlp,
    /// The record was written when the window did not admit it: this is its first transmission.
    Unsent,
}

impl Retransmit {
    #[expect(clippy::cast_possible_truncation, reason = "records are counted in 16 bits")]
    pub(super) const fn new(index: usize, len: u32, reason: RetransmitReason) -> Self {
        Self { index: index as u32, len, reason }
    }

    /// Tail loss probe.
    pub(in crate::tcp) const fn tlp(index: usize, len: u32) -> Self {
        Self::new(index, len, RetransmitReason::Tlp)
    }

    pub(in crate::tcp) const fn payload_len(self) -> usize {
        self.len as usize
    }
}
