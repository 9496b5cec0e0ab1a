//! Fast path (header prediction): segments of an established connection without loss.
//!
//! Nearly all segments are of three kinds: in-order data, an ACK of new data, or new data sent.
//! Nearly always no close, loss recovery, probe, ECN response or out-of-order data is in progress.
//! [`FastPath`] holds this in one byte. It is recomputed (`Tcb::update_fast_path`) after everything
//! but these three, so that their path has no test for a rare condition.
//!
//! The code works on `HotState`, which gives access to the first [`HOT_LEN`](crate::tcp::HOT_LEN)
//! bytes of a `Tcb`, the records, and the settings that connections share, and to nothing else. If
//! a segment ends a round trip or gives a new RTT sample, a cold function does the rest. A segment
//! that does not match takes the slow path (`rx::input`, `tx::output`), which handles every case.
//! Where both apply they have the same result.

mod hot_state;
mod tcb;

use crate::wire::tcp::Ecn;

/// Eligibility of segments for the fast path, and other state that it tests; one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::tcp) struct FastPath(u8);

impl FastPath {
    /// Received segments are eligible.
    const RX: u8 = 1;
    /// Sent segments are eligible: also, only data and its ACKs are to be sent.
    const TX: u8 = 2;
    /// There may be events, or the state is CLOSED.
    const EVENTS: u8 = 4;
    /// Tail loss probes are enabled.
    const TLP: u8 = 8;
    /// New data carries ECT(0).
    const ECT: u8 = 16;
    /// A path MTU probe is due: a segment larger than EMSS.
    const PMTU_PROBE: u8 = 32;

    #[inline]
    pub(in crate::tcp) const fn is_rx_eligible(self) -> bool {
        self.0 & Self::RX != 0
    }

    #[inline]
    pub(in crate::tcp) const fn is_tx_eligible(self) -> bool {
        self.0 & Self::TX != 0
    }

    #[inline]
    pub(in crate::tcp) const fn has_events(self) -> bool {
        self.0 & Self::EVENTS != 0
    }

    #[inline]
    const fn is_tlp_enabled(self) -> bool {
        self.0 & Self::TLP != 0
    }

    #[inline]
    const fn is_pmtu_probe_due(self) -> bool {
        self.0 & Self::PMTU_PROBE != 0
    }

    #[inline]
    const fn codepoint(self) -> Ecn {
        if self.0 & Self::ECT == 0 { Ecn::NotEct } else { Ecn::Ect0 }
    }

    /// Notes whether a path MTU probe is due.
    #[inline]
    const fn set_pmtu_probe_due(&mut self, is_due: bool) {
        self.0 = (self.0 & !Self::PMTU_PROBE) | if is_due { Self::PMTU_PROBE } else { 0 };
    }

    /// Notes that there is an event.
    pub(in crate::tcp) const fn set_events(&mut self) {
        self.0 |= Self::EVENTS;
    }

    /// Disables the fast path until the next update: the slow path has work to do first.
    pub(in crate::tcp) const fn disable(&mut self) {
        self.0 &= !(Self::RX | Self::TX);
    }
}

#[cfg(test)]
pub(in crate::tcp) mod tests;
