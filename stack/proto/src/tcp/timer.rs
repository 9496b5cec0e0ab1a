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
    /// Tail-loss probe (RFC 8985 section 7); with nothing in flight, the end of its being idle for
    /// a short while only.
    pub(super) tail: Instant,
    /// Reordering (RFC 8985 section 6.2, step 5).
    pub(super) reorder: Instant,
    /// Zero-window probe and silly-window override (RFC 9293 sections 3.8.6.1 and 3.8.6.2.1).
    pub(super) persist: Instant,
    /// End of TIME-WAIT, or of patience in FIN-WAIT-2.
    pub(super) linger: Instant,
    /// Keepalive.
    pub(super) keepalive: Instant,
    /// The next burst of a paced sender.
    pub(super) pacing: Instant,
}

impl Timers {
    /// None runs.
    pub(super) const OFF: Self = Self {
        rto: NEVER,
        tail: NEVER,
        reorder: NEVER,
        persist: NEVER,
        linger: NEVER,
        keepalive: NEVER,
        pacing: NEVER,
    };

    /// The next to fire, or `NEVER`.
    #[inline]
    pub(super) fn earliest(&self) -> Instant {
        let repair = self.rto.min(self.tail).min(self.reorder);
        repair.min(self.persist).min(self.linger).min(self.keepalive).min(self.pacing)
    }
}
