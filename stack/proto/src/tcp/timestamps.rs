//! Clocks of a connection: the timestamps option (RFC 7323), and coarse time for timeouts.

use super::Tcb;
use crate::device::{Retained, RxFrame};
use crate::time::{Instant, MICROSECOND};

/// Most that our timestamp clock advances over an idle period: a quarter of its range.
pub(super) const TS_IDLE_MAX_NS: u64 = (1 << 30) * MICROSECOND;

/// Timestamps option state (RFC 7323).
#[derive(Debug)]
pub(super) struct Timestamps {
    /// Added to the clock, so that TSval reveals nothing about this host.
    pub(super) offset: u32,
    /// TS.Recent: latest acceptable TSval of the peer.
    pub(super) recent: u32,
    /// Time when TS.Recent was updated, by [`Timestamps::coarse`].
    pub(super) recent_stamp: u32,
}

impl Timestamps {
    /// Returns `now` in units of 2^30 nanoseconds, of which 32 bits last for a century.
    #[expect(clippy::cast_possible_truncation, reason = "a century")]
    #[inline]
    pub(super) const fn coarse(now: Instant) -> u32 {
        (now.as_nanos() >> 30) as u32
    }

    /// Returns TSval of a segment sent at `now`: microseconds.
    #[expect(clippy::cast_possible_truncation, reason = "TSval is a 32-bit clock that wraps")]
    #[inline]
    pub(super) const fn tsval(&self, now: Instant) -> u32 {
        (now.as_micros() as u32).wrapping_add(self.offset)
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

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Returns TSval and TSecr of a segment sent at `now`, if timestamps are in use.
    #[inline]
    pub(super) fn timestamps(&self, now: Instant) -> Option<(u32, u32)> {
        self.ts_on.then(|| (self.ts.tsval(now), self.ts.recent))
    }

    /// Limits the advance of our timestamp clock over an idle period. To be called before the first
    /// segment is sent after it, and before `last_rx_at` is updated. A clock of a microsecond seems
    /// to run backwards after more than 35 minutes, and peers drop segments that look old for 24
    /// days (RFC 7323 section 5.5): our clock skips the excess. Whatever is sent is answered within
    /// minutes, so that nothing received for so long means nothing sent.
    #[inline]
    pub(super) fn advance_ts_clock(&mut self, now: Instant) {
        if now.since(self.last_rx_at) > TS_IDLE_MAX_NS {
            self.skip_idle_time(now);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "TSval is a 32-bit clock that wraps")]
    #[cold]
    fn skip_idle_time(&mut self, now: Instant) {
        let idle_ns = now.since(self.last_rx_at.max(self.ts_advanced_at));
        let Some(excess_ns) = idle_ns.checked_sub(TS_IDLE_MAX_NS) else { return };
        self.ts_advanced_at = now;
        self.ts.offset = self.ts.offset.wrapping_sub((excess_ns / MICROSECOND) as u32);
    }
}
