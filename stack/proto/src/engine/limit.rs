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
pub(super) struct BlurredLimit {
    secret: Secret,
    per_period: u32,
    period: u64,
    left: u32,
}

impl BlurredLimit {
    pub(super) fn new(secret: Secret, per_second: u32) -> Self {
        let per_period = (per_second / PERIODS_PER_SECOND).max(1);
        Self { secret, per_period, period: u64::MAX, left: 0 }
    }

    /// True if there may be one more now; then it counts.
    pub(super) fn admits(&mut self, now: Instant) -> bool {
        let period = now.as_nanos() / PERIOD_NS;
        if period != self.period {
            self.period = period;
            self.left = self.draw(period);
        }
        let admits = self.left > 0;
        self.left = self.left.saturating_sub(1);
        admits
    }

    /// The number for a period.
    #[expect(clippy::cast_possible_truncation, reason = "a remainder of a 32-bit divisor")]
    fn draw(&self, period: u64) -> u32 {
        let mut hasher = self.secret.hasher();
        hasher.write_u64(period);
        let half = self.per_period / 2;
        self.per_period - (hasher.finish() % u64::from(half + 1)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::{BlurredLimit, PERIOD_NS};
    use crate::net::siphash_keys::{KeyPurpose, Secret};
    use crate::time::Instant;

    #[test]
    fn each_period_has_a_number_of_its_own_within_the_bounds() {
        let mut limit = BlurredLimit::new(Secret::new(5, KeyPurpose::Limits), 1000);
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
    fn the_smallest_limit_still_admits_one() {
        let mut limit = BlurredLimit::new(Secret::new(5, KeyPurpose::Limits), 1);
        let now = Instant::ZERO;
        assert!(limit.admits(now) && !limit.admits(now));
    }
}
