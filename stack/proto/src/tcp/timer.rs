//! The timers of one connection. Each is a point in time; the engine sees the earliest only.

use crate::time::Instant;

/// A timer that does not run.
pub(super) const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// The timers that segments move.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timers {
    /// Retransmission (RFC 6298).
    pub(super) rto: Instant,
    /// Tail-loss probe (RFC 8985 section 7); with nothing in flight, the end of its being idle for
    /// a short while only.
    pub(super) pto: Instant,
    /// When an ACK that is not due yet becomes due.
    pub(super) delayed_ack: Instant,
    /// The earliest of the [`RareTimers`].
    pub(super) rare: Instant,
}

impl Timers {
    /// None runs.
    pub(super) const OFF: Self = Self { rto: NEVER, pto: NEVER, delayed_ack: NEVER, rare: NEVER };

    /// The next to fire, or `NEVER`.
    #[inline]
    pub(super) fn earliest(&self) -> Instant {
        self.rto.min(self.pto).min(self.delayed_ack).min(self.rare)
    }
}

/// The timers that no segment of a calm connection moves.
#[derive(Clone, Copy, Debug)]
pub(super) struct RareTimers {
    /// Reordering (RFC 8985 section 6.2, step 5).
    pub(super) reorder: Instant,
    /// Zero-window probe and silly-window override (RFC 9293 sections 3.8.6.1 and 3.8.6.2.1).
    pub(super) persist: Instant,
    /// End of TIME-WAIT, or of patience in FIN-WAIT-2.
    pub(super) time_wait: Instant,
    /// Keepalive.
    pub(super) keepalive: Instant,
    /// When the next burst of a paced sender may begin; a timer while it waits for that.
    pub(super) pacing: Instant,
}

impl RareTimers {
    /// None runs.
    pub(super) const OFF: Self = Self {
        reorder: NEVER,
        persist: NEVER,
        time_wait: NEVER,
        keepalive: NEVER,
        pacing: Instant::ZERO,
    };

    /// The next to fire, or `NEVER`. `paced`: a burst waits for its time.
    pub(super) fn earliest(&self, paced: bool) -> Instant {
        let burst = if paced { self.pacing } else { NEVER };
        self.reorder.min(self.persist).min(self.time_wait).min(self.keepalive).min(burst)
    }
}

/// A moment of the last three days, in units of 2^16 ns (66 us), of which 32 bits are enough. For
/// what is compared with timeouts.
#[derive(Clone, Copy, Debug)]
pub(super) struct CoarseInstant(u32);

impl CoarseInstant {
    const UNIT_BITS: u32 = 16;

    #[expect(clippy::cast_possible_truncation, reason = "the clock wraps after three days")]
    #[inline]
    pub(super) const fn of(now: Instant) -> Self {
        Self((now.as_nanos() >> Self::UNIT_BITS) as u32)
    }

    /// Nanoseconds from it to `now`, less than a unit too many or too few.
    #[inline]
    pub(super) const fn age(self, now: Instant) -> u64 {
        (Self::of(now).0.wrapping_sub(self.0) as u64) << Self::UNIT_BITS
    }

    /// The moment, a unit late at most.
    pub(super) fn instant(self, now: Instant) -> Instant {
        let units = now.as_nanos() >> Self::UNIT_BITS;
        let age = Self::of(now).0.wrapping_sub(self.0);
        Instant::from_nanos((units - u64::from(age).min(units) + 1) << Self::UNIT_BITS)
    }
}
