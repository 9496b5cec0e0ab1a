//! The timers of one connection, except the delayed ACK's. Each is a point in time; the engine
//! sees the earliest only.

use crate::time::Instant;

/// A timer that does not run.
pub(super) const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// All timers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timers {
    /// Retransmission (RFC 6298).
    pub(super) rto: Instant,
    /// Tail-loss probe (after RFC 8985).
    pub(super) tail: Instant,
    /// Zero-window probe and silly-window override (RFC 9293 sections 3.8.6.1 and 3.8.6.2.1).
    pub(super) persist: Instant,
    /// End of TIME-WAIT, or of patience in FIN-WAIT-2.
    pub(super) linger: Instant,
    /// Keepalive.
    pub(super) keepalive: Instant,
}

impl Timers {
    /// None runs.
    pub(super) const OFF: Self =
        Self { rto: NEVER, tail: NEVER, persist: NEVER, linger: NEVER, keepalive: NEVER };

    /// The next to fire, or `NEVER`.
    #[inline]
    pub(super) fn earliest(&self) -> Instant {
        self.rto.min(self.tail).min(self.persist).min(self.linger).min(self.keepalive)
    }
}
