//! Interface between a connection and its upper layer: delivered data, transmit decisions, events.

use core::ops::Range;

#[cfg(doc)]
use super::Tcb;
use super::rx::ooo_queue::OooOffer;
use super::tx::transmit_plan::{ControlPlan, NewDataPlan, RetransmitPlan};
use crate::time::Instant;
use crate::wire::seq::Seq;

/// Result of a received segment for the upper layer.
#[derive(Debug)]
#[must_use]
pub enum Delivered<R> {
    /// No new data: an ACK, a duplicate, or data beyond a limit.
    Nothing,
    /// The next bytes of the stream. They are acknowledged from now on. The caller consumes them,
    /// or keeps them and reports that by [`Tcb::add_unconsumed`].
    InOrder {
        /// The frame.
        frame: R,
        /// Position of the new bytes in the frame; never empty.
        bytes: Range<usize>,
    },
    /// Out-of-order bytes. Before any other call on the connection the caller gives the offer to
    /// one of [`Tcb::buffer_ooo`], for TCP to keep them; [`Tcb::consumed_ooo`], if it has consumed
    /// them already; [`Tcb::drop_ooo`], if it found them corrupt or has no memory. Bytes buffered
    /// or consumed are not delivered again; dropped ones may be.
    ///
    /// Of a segment that spans several holes only the first new part is delivered: a frame is
    /// delivered once, and FPDUs overlap in part only if the peer has resegmented them. The rest
    /// counts as not received.
    OutOfOrder {
        /// The frame.
        frame: R,
        /// Its new bytes, to be accepted or dropped.
        offer: OooOffer,
    },
}

/// Initial sequence number and timestamp offset, unpredictable for off-path attackers. The caller
/// derives both from the four-tuple by keyed hashes; TCP has no other source of randomness.
#[derive(Clone, Copy, Debug)]
pub struct IssAndTsOffset {
    /// Initial send sequence number (RFC 6528: keyed hash plus clock).
    pub iss: Seq,
    /// Added to the timestamp clock (RFC 7323 section 7.1). Uses another key than `iss`, so that
    /// neither reveals the other.
    pub ts_offset: u32,
}

impl IssAndTsOffset {
    /// Returns TSval of a segment sent at `now`: microseconds.
    #[expect(clippy::cast_possible_truncation, reason = "TSval is a 32-bit clock that wraps")]
    #[inline]
    #[must_use]
    pub const fn tsval(&self, now: Instant) -> u32 {
        (now.as_micros() as u32).wrapping_add(self.ts_offset)
    }
}

/// Data that the upper layer has to send. See [`Tcb::next_transmit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxDemand {
    /// No data.
    Nothing,
    /// A record, with its length in bytes if no limit shortens it. The length decides whether a
    /// small window suffices.
    Record(u32),
}

/// Frame that the connection has to send, with its plan. See [`Tcb::next_transmit`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Transmit {
    /// Nothing to send now.
    Idle,
    /// Frame without payload (SYN, SYN-ACK, ACK, FIN, probe, RST): [`Tcb::write_control`].
    Control(ControlPlan),
    /// Bytes written before, lost or not sent yet: [`Tcb::write_retransmit`].
    Retransmit(RetransmitPlan),
    /// A new record: [`Tcb::send_new_data`].
    NewData(NewDataPlan),
}

/// Change of which the upper layer is notified. Each is reported once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The handshake is complete.
    Established,
    /// [`Tcb::emss`] changed after the handshake: the path MTU decreased or increased.
    EmssChanged,
    /// Data was received beyond the peer's FIN. It is ignored (RFC 9293 section 3.10.7.4, seventh
    /// check); the upper layer may treat it as an error.
    DataAfterFin,
    /// The peer's FIN was received, and everything before it was delivered.
    PeerClosed,
    /// The peer reset the connection.
    Reset,
    /// The connection timed out: the peer no longer answers.
    TimedOut,
    /// Segments are unanswered after R1 retransmissions, which continue (RFC 9293 section 3.8.3):
    /// the next hop is suspect.
    R1Exceeded,
    /// The connection entered TIME-WAIT, or restarted its timer.
    TimeWait,
    /// The receive window limits the peer, or soon will: see [`Tcb::window_wanted`] and
    /// [`Tcb::grow_window`].
    RcvWndLimited,
    /// The state is CLOSED; always the last event.
    Closed,
}

impl Event {
    pub(super) const ALL: [Self; 10] = [
        Self::Established,
        Self::EmssChanged,
        Self::DataAfterFin,
        Self::PeerClosed,
        Self::Reset,
        Self::TimedOut,
        Self::R1Exceeded,
        Self::TimeWait,
        Self::RcvWndLimited,
        Self::Closed,
    ];

    pub(super) const fn bit(self) -> u16 {
        1 << self as u8
    }
}
