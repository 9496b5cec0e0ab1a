//! Rate limiter.

use crate::time::{Instant, SECOND};

/// Limit on events per second, counted in fixed windows of one second.
#[derive(Clone, Copy, Debug)]
pub struct RateLimit {
    per_second: u32,
    second: u64,
    count: u32,
}

impl RateLimit {
    /// At most `per_second` events in each second of the clock.
    #[must_use]
    pub const fn new(per_second: u32) -> Self {
        Self { per_second, second: 0, count: 0 }
    }

    /// True if one more event is allowed now; it is then counted.
    pub const fn admits(&mut self, now: Instant) -> bool {
        let second = now.as_nanos() / SECOND;
        if second != self.second {
            self.second = second;
            self.count = 0;
        }
        let admits = self.count < self.per_second;
        if admits {
            self.count += 1;
        }
        admits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_applies_to_each_second() {
        let mut rate = RateLimit::new(3);
        for second in 0..3 {
            let now = Instant::from_nanos(second * SECOND + 5);
            let admitted = (0..10).filter(|_| rate.admits(now)).count();
            assert_eq!(admitted, 3);
        }
    }
}
