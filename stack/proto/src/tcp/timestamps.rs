//! Timestamps option (RFC 7323).

use crate::time::Instant;

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
