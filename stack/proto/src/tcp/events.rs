//! What a connection and its upper layer say to each other.

use core::ops::Range;

#[cfg(doc)]
use super::Tcb;
use crate::time::Instant;
use crate::wire::seq::Seq;

/// What a segment brought for the upper layer.
#[derive(Debug)]
#[must_use]
pub enum Delivered<R> {
    /// Nothing new: an ACK, a duplicate, or what is over the bound.
    Nothing,
    /// The next bytes of the stream. They are acknowledged from now on: the caller consumes
    /// them, or keeps them and says so with [`Tcb::add_unconsumed`].
    InOrder {
        /// The frame.
        frame: R,
        /// Where the new bytes lie in it; never empty.
        bytes: Range<usize>,
    },
    /// Bytes ahead of their turn. The caller answers before anything else is asked of the
    /// connection: [`Tcb::buffer_ooo`] if TCP is to keep them, [`Tcb::consumed_ooo`] if it has used
    /// them already, [`Tcb::drop_ooo`] if it can tell that they are garbage, or has no room.
    /// No byte is handed up again that was held or taken; what was rejected may come once more.
    ///
    /// Of a segment that spans several gaps only the first new part is handed up: a frame goes up
    /// once, and MPA's segments overlap in part only where the peer has cut them anew. The rest
    /// counts as not received.
    OutOfOrder {
        /// The frame.
        frame: R,
        /// Sequence number of the first new byte.
        seq: Seq,
        /// Where the new bytes lie in the frame; never empty.
        bytes: Range<usize>,
    },
}

/// Where a connection begins: what must not be guessed by those who do not see its segments. The
/// caller's keyed hashes of the four-tuple; the only source of chance here.
#[derive(Clone, Copy, Debug)]
pub struct IssAndTsOffset {
    /// Initial send sequence number (RFC 6528: keyed hash plus clock).
    pub iss: Seq,
    /// Added to the clock of the timestamps (RFC 7323 section 7.1). Of another key than `iss`, so
    /// that neither tells the other.
    pub ts_offset: u32,
}

impl IssAndTsOffset {
    /// TSval of a segment sent now: microseconds.
    #[expect(clippy::cast_possible_truncation, reason = "TSval is a 32-bit clock that wraps")]
    #[inline]
    #[must_use]
    pub const fn tsval(&self, now: Instant) -> u32 {
        (now.as_micros() as u32).wrapping_add(self.ts_offset)
    }
}

/// What the upper layer has to send next. See [`Tcb::next_transmit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxDemand {
    /// Nothing.
    Nothing,
    /// A record; its bytes if it may be as long as it likes. It decides whether a small window
    /// will do.
    Record(u32),
}

/// What the connection wants to send next. See [`Tcb::next_transmit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Transmit {
    /// Nothing now.
    Idle,
    /// A frame of headers only (SYN, SYN-ACK, ACK, FIN, probe, RST): [`Tcb::write_control`].
    Control,
    /// A copy of bytes written before: [`Tcb::write_retransmit`].
    Retransmit {
        /// Payload bytes of the frame.
        payload_len: usize,
    },
    /// A new record may be written: [`Tcb::write_new_data`], then [`Tcb::on_sent`].
    NewData {
        /// Payload bytes admitted: [`Tcb::emss`], less under a small window, or more if the path
        /// is to be probed. The record that was announced fits, unless no larger window is to be
        /// expected soon; a record made to fit is best. A longer one is accepted and will be cut.
        capacity: usize,
    },
}

/// A change the upper layer has to know of. Each is reported once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The handshake is complete.
    Established,
    /// [`Tcb::emss`] changed after the handshake: the path takes less, or more.
    EmssChanged,
    /// Bytes came that lie behind the peer's FIN. They are ignored (RFC 9293 section 3.10.7.4,
    /// seventh check); what is above may call it an error.
    DataAfterFin,
    /// The peer's FIN arrived, and everything before it was handed up.
    PeerClosed,
    /// The peer reset the connection.
    Reset,
    /// The peer no longer answers.
    TimedOut,
    /// Segments have gone unanswered for some time, and are sent on (RFC 9293 section 3.8.3, R1):
    /// the way to the peer is to be looked at.
    R1Exceeded,
    /// All is done, and the connection only waits for stray segments (TIME-WAIT); also each time
    /// that this wait begins anew.
    TimeWait,
    /// The receive window holds the peer up, or soon will: [`Tcb::window_wanted`],
    /// [`Tcb::grow_window`].
    RcvWndLimited,
    /// The connection is gone; always the last notice.
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
