//! Time: nanoseconds since the engine started, passed in by the caller.

use core::ops::{Add, Sub};
use core::time::Duration;

/// Point in time, in nanoseconds since an origin that the caller chose. Never goes backwards.
///
/// The core never reads a clock: the runtime reads one once per pass, a simulation computes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

/// Value of a deadline that is not set: later than any other.
pub(crate) const NEVER: Instant = Instant(u64::MAX);

impl Instant {
    /// The origin.
    pub const ZERO: Self = Self(0);

    /// The instant `ns` nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Microseconds since the origin.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Nanoseconds from `earlier` to `self`, 0 if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<u64> for Instant {
    type Output = Self;

    fn add(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }
}

impl Sub<u64> for Instant {
    type Output = Self;

    fn sub(self, ns: u64) -> Self {
        Self(self.0.saturating_sub(ns))
    }
}

/// Returns a duration in nanoseconds; at most 2^64, which are 584 years.
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds in a microsecond.
pub const MICROSECOND: u64 = 1_000;
/// Nanoseconds in a millisecond.
pub const MILLISECOND: u64 = 1_000_000;
/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;
