//! A limit on answers to whoever asks.

use core::hash::Hasher;

use crate::net::siphash_keys::Secret;
use crate::time::{Instant, MILLISECOND};

/// For so long a part of the budget lasts: a burst of one second's worth would leave nothing for
/// an honest peer until the next.
const PERIOD_NS: u64 = 100 * MILLISECOND;
const PERIODS_PER_SECOND: u32 = 10;

/// So many per second at most, and half as many at least.
///
/// The exact number is drawn anew for each period from a secret: whoever counts the answers to his
/// own segments would otherwise see by what is missing whether those he sent in another's name were
/// answered, and by that which ports are in use (CVE-2016-5696, CVE-2020-25705).
pub(super) struct JitteredRateLimit {
    secret: Secret,
    per_period: u32,
    period: u64,
    remaining: u32,
}

impl JitteredRateLimit {
    pub(super) fn new(secret: Secret, per_second: u32) -> Self {
        let per_period = (per_second / PERIODS_PER_SECOND).max(1);
        Self { secret, per_period, period: u64::MAX, remaining: 0 }
    }

    /// True if there may be one more now; then it counts.
    pub(super) fn admits(&mut self, now: Instant) -> bool {
        let period = now.as_nanos() / PERIOD_NS;
        if period != self.period {
            self.period = period;
            self.remaining = self.draw_quota(period);
        }
        let admits = self.remaining > 0;
        self.remaining = self.remaining.saturating_sub(1);
        admits
    }

    /// The number for a period.
    #[expect(clippy::cast_possible_truncation, reason = "a remainder of a 32-bit divisor")]
    fn draw_quota(&self, period: u64) -> u32 {
        let mut hasher = self.secret.hasher();
        hasher.write_u64(period);
        let half = self.per_period / 2;
        self.per_period - (hasher.finish() % u64::from(half + 1)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::{JitteredRateLimit, PERIOD_NS};
    use crate::net::siphash_keys::{KeyPurpose, Secret};
    use crate::time::Instant;

    #[test]
    fn quota_varies_per_period_within_bounds() {
        let mut limit = JitteredRateLimit::new(Secret::new(5, KeyPurpose::Limits), 1000);
        let numbers: Vec<usize> = (0..100)
            .map(|period| {
                let now = Instant::from_nanos(period * PERIOD_NS + 7);
                (0..1000).filter(|_| limit.admits(now)).count()
            })
            .collect();
        assert!(numbers.iter().all(|number| (50..=100).contains(number)));
        let mut distinct = numbers;
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() > 30, "{distinct:?}");
    }

    #[test]
    fn limit_of_one_per_second_admits_one() {
        let mut limit = JitteredRateLimit::new(Secret::new(5, KeyPurpose::Limits), 1);
        let now = Instant::ZERO;
        assert!(limit.admits(now) && !limit.admits(now));
    }
}
