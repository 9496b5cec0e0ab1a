//! Workarounds for peers that deviate from the specifications, each in a file of its own with what
//! the peer does and how the workaround stays within the RFCs.
//!
//! One is elsewhere: siw's bit order in a Terminate is recognized where Terminates are parsed
//! (`from_siw_bit_order` in `wire/terminate.rs`), since `wire` is below this module.

mod siw_reject;
mod siw_wakeup;

use crate::connection::Connection;
use crate::connection::context::{Context, Env};
use crate::connection::quirks::siw_wakeup::Wakeups;
use crate::time::Instant;

/// State of the workarounds of one connection. Whether FIN is delayed is the phase of the
/// connection (`Phase::Rejected`), because that also decides on received data.
#[derive(Debug, Default)]
pub(super) struct Quirks {
    wakeups: Wakeups,
}

impl<E: Env> Connection<E> {
    /// Handles the deadline of the connection if a workaround has set it. False if it is another
    /// one.
    pub(super) fn on_quirk_deadline(&mut self, cx: &mut Context<E>, now: Instant) -> bool {
        self.on_wakeup_deadline(cx, now) || self.on_reject_deadline(cx, now)
    }
}
