//! Interface between a connection and its upper layer: values it begins with, events it reports.

#[cfg(doc)]
use super::Tcb;
use crate::time::Instant;
use crate::wire::seq::Seq;

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
