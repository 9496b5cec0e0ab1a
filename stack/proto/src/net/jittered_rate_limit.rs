//! Rate limit with a random quota, for replies that an off-path attacker can provoke.

use core::hash::Hasher;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::net::siphash_keys::Secret;
use crate::time::{Instant, MILLISECOND};

/// Period of a quota. With a quota per second, one burst could leave nothing for legitimate peers
/// until the next second.
const PERIOD_NS: u64 = 100 * MILLISECOND;
const PERIODS_PER_SECOND: u32 = 10;

/// Rate limit: at most the given number per second (at least 10), and at least half of it.
///
/// The exact quota of each period is derived from a secret. With a fixed quota an attacker could
/// count the replies to its own segments, infer whether those sent with a spoofed source were
/// answered, and so find ports in use (CVE-2016-5696, CVE-2020-25705).
///
/// Clones share the quota: all engines over the queues of one port have one limit.
#[derive(Clone)]
pub(crate) struct JitteredRateLimit {
    secret: Secret,
    per_period: u32,
    /// The number of the period plus one, and the rest of its quota: 32 bits each.
    state: Arc<AtomicU64>,
}

impl JitteredRateLimit {
    pub(crate) fn new(secret: Secret, per_second: u32) -> Self {
        let per_period = (per_second / PERIODS_PER_SECOND).max(1);
        Self { secret, per_period, state: Arc::default() }
    }

    /// True if the quota admits one more now, which is then counted.
    pub(crate) fn admits(&self, now: Instant) -> bool {
        let period = now.as_nanos() / PERIOD_NS;
        let number = (period + 1) & u64::from(u32::MAX);
        let next = |state: u64| {
            // Engines read the clock apart: one that lags does not open a period again.
            let is_new = number > state >> 32;
            let (number, remaining) = if is_new {
                (number, u64::from(self.draw_quota(period)))
            } else {
                (state >> 32, state & u64::from(u32::MAX))
            };
            Some(number << 32 | remaining.checked_sub(1)?)
        };
        self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }

    /// Returns the quota of a period.
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
        let limit = JitteredRateLimit::new(Secret::new(5, KeyPurpose::Limits), 1000);
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
        let limit = JitteredRateLimit::new(Secret::new(5, KeyPurpose::Limits), 1);
        let now = Instant::ZERO;
        assert!(limit.admits(now) && !limit.admits(now));
    }
}
