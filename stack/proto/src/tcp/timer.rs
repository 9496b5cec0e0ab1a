//! Timers of one connection. Each is a point in time, [`NEVER`] if it does not run; the engine sees
//! only the earliest.

use crate::time::{Instant, NEVER};

/// Timers that most segments restart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timers {
    /// Retransmission (RFC 6298).
    pub(super) rto: Instant,
    /// Idle timer while nothing is in flight: releases memory. Otherwise probe timeout (PTO, RFC
    /// 8985 section 7).
    pub(super) pto: Instant,
    /// Delayed ACK.
    pub(super) delayed_ack: Instant,
    /// Earliest of the [`RareTimers`].
    pub(super) rare: Instant,
}

impl Timers {
    /// None runs.
    pub(super) const OFF: Self = Self { rto: NEVER, pto: NEVER, delayed_ack: NEVER, rare: NEVER };

    /// Returns the earliest, or [`NEVER`].
    #[inline]
    pub(super) fn earliest(&self) -> Instant {
        self.rto.min(self.pto).min(self.delayed_ack).min(self.rare)
    }
}

/// Timers that the fast path does not touch.
#[derive(Clone, Copy, Debug)]
pub(super) struct RareTimers {
    /// Reordering (RFC 8985 section 6.2, step 5).
    pub(super) reorder: Instant,
    /// Zero-window probe and SWS override (RFC 9293 sections 3.8.6.1 and 3.8.6.2.1).
    pub(super) persist: Instant,
    /// End of TIME-WAIT, or of the wait for a FIN in FIN-WAIT-2. In earlier states the stall timer:
    /// end of the wait for a peer that takes nothing.
    pub(super) wait_end: Instant,
    /// Keepalive.
    pub(super) keepalive: Instant,
    /// Start of the next paced burst; runs as a timer only while the burst waits for it.
    pub(super) pacing: Instant,
}

impl RareTimers {
    /// None runs.
    pub(super) const OFF: Self = Self {
        reorder: NEVER,
        persist: NEVER,
        wait_end: NEVER,
        keepalive: NEVER,
        pacing: Instant::ZERO,
    };

    /// Returns the earliest, or [`NEVER`]. `paced`: a burst waits for its time.
    pub(super) fn earliest(&self, paced: bool) -> Instant {
        let burst = if paced { self.pacing } else { NEVER };
        self.reorder.min(self.persist).min(self.wait_end).min(self.keepalive).min(burst)
    }
}

/// Time within the last three days, in units of 2^16 ns (66 us), for comparison with timeouts. With
/// an [`Instant`] in its place the state of the fast path would not fit its three cache lines
/// ([`HOT_LEN`](super::HOT_LEN)).
#[derive(Clone, Copy, Debug)]
pub(super) struct CoarseInstant(u32);

impl CoarseInstant {
    const UNIT_BITS: u32 = 16;

    #[expect(clippy::cast_possible_truncation, reason = "the clock wraps after three days")]
    #[inline]
    pub(super) const fn of(now: Instant) -> Self {
        Self((now.as_nanos() >> Self::UNIT_BITS) as u32)
    }

    /// Returns the nanoseconds from it to `now`, with an error of less than a unit.
    #[inline]
    pub(super) const fn age(self, now: Instant) -> u64 {
        (Self::of(now).0.wrapping_sub(self.0) as u64) << Self::UNIT_BITS
    }

    /// Returns the time, at most a unit late.
    pub(super) fn instant(self, now: Instant) -> Instant {
        let units = now.as_nanos() >> Self::UNIT_BITS;
        let age = Self::of(now).0.wrapping_sub(self.0);
        Instant::from_nanos((units - u64::from(age).min(units) + 1) << Self::UNIT_BITS)
    }
}
