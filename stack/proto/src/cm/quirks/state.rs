//! State of the workarounds of one connection.

use crate::wire::seq::Seq;

/// See the [module's documentation](self). Whether FIN is delayed is the phase of the connection
/// (`Phase::Rejected`), because that also decides on received data.
#[derive(Debug, Default)]
pub(in crate::cm) struct Quirks {
    pub(super) wakeups: Wakeups,
}

/// Wake-ups per connection, at most. Each gap is twice the one before.
const WAKEUPS_MAX: u8 = 5;

/// State of the wake-ups of a siw responder.
#[derive(Debug, Default)]
pub(in crate::cm) struct Wakeups {
    /// RCV.NXT at establishment.
    pub(super) established_rcv_nxt: Seq,
    /// Number of wake-ups sent since.
    pub(super) sent: u8,
}

impl Wakeups {
    /// True if the peer has shown no sign of having processed the socket. `rcv_nxt`: RCV.NXT now.
    pub(super) fn is_unanswered(&self, rcv_nxt: Seq) -> bool {
        // Some responders send at once, without processing the socket: that alone is no answer.
        self.sent == 0 || rcv_nxt == self.established_rcv_nxt
    }

    /// Counts a wake-up that is sent.
    pub(super) const fn on_sent(&mut self) {
        self.sent += 1;
    }

    /// True if another wake-up may follow.
    pub(super) const fn may_repeat(&self) -> bool {
        self.sent < WAKEUPS_MAX
    }
}
