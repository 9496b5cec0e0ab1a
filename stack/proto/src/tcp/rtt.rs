//! Round-trip time, the peer's ACK delay, and the retransmission timeout (RFC 6298).

use super::config::Config;
use crate::time::{Instant, SECOND};

/// Samples after which the floor follows what was measured.
const TRUSTED_SAMPLES: u8 = 8;
/// Length of one of the two windows over which the ACK delay's maximum is kept.
const DELAY_WINDOW_NS: u64 = 4 * SECOND;
/// Most doublings of the timeout.
const MAX_BACKOFF: u8 = 16;

/// Estimator state. Nanoseconds throughout.
#[derive(Clone, Debug, Default)]
pub(super) struct Rtt {
    srtt: u64,
    rttvar: u64,
    min: u64,
    samples: u8,
    backoff: u8,
    /// Largest excess of a sample over `min`, in this window and in the one before.
    delay: [u64; 2],
    window_end: Instant,
    /// The timeout without backoff, computed at each sample.
    base: u64,
}

impl Rtt {
    /// No sample yet.
    pub(super) fn new(cfg: &Config) -> Self {
        Self { base: cfg.rto_initial_ns, min: u64::MAX, ..Self::default() }
    }

    /// Takes a measurement (RFC 6298 section 2), in integers.
    #[inline]
    pub(super) fn sample(&mut self, now: Instant, rtt: u64, cfg: &Config) {
        if self.samples == 0 {
            self.srtt = rtt;
            self.rttvar = rtt / 2;
        } else {
            self.rttvar = self.rttvar - self.rttvar / 4 + self.srtt.abs_diff(rtt) / 4;
            self.srtt = self.srtt - self.srtt / 8 + rtt / 8;
        }
        self.samples = self.samples.saturating_add(1);
        self.min = self.min.min(rtt);
        if now >= self.window_end {
            self.delay = [0, self.delay[0]];
            self.window_end = now + DELAY_WINDOW_NS;
        }
        self.delay[0] = self.delay[0].max(rtt - self.min);
        // The peer may delay an ACK at any time by as much as it has shown, however steady the
        // last samples were.
        let floor = if self.samples < TRUSTED_SAMPLES {
            cfg.rto_initial_ns
        } else {
            cfg.rto_min_ns.max(self.min + self.peer_delay())
        };
        self.base = (self.srtt + 4 * self.rttvar).max(floor).min(cfg.rto_max_ns);
    }

    /// Smoothed round-trip time, 0 before the first sample.
    pub(super) const fn srtt(&self) -> u64 {
        self.srtt
    }

    /// Largest ACK delay seen lately.
    pub(super) fn peer_delay(&self) -> u64 {
        self.delay[0].max(self.delay[1])
    }

    /// The retransmission timeout with its backoff.
    #[inline]
    pub(super) fn rto(&self, cfg: &Config) -> u64 {
        (self.base << self.backoff).min(cfg.rto_max_ns)
    }

    /// Doubles the timeout (RFC 6298 section 5.5).
    pub(super) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }

    /// The peer acknowledged something: no doubling any more.
    #[inline]
    pub(super) const fn reset_backoff(&mut self) {
        self.backoff = 0;
    }

    /// When to probe the tail of a flight (after RFC 8985 section 7.2), or `None` while too
    /// little is known or the timeout comes first anyway.
    #[inline]
    pub(super) fn probe_timeout(&self, cfg: &Config) -> Option<u64> {
        if self.samples < TRUSTED_SAMPLES {
            return None;
        }
        let timeout = (2 * self.srtt + self.peer_delay()).max(cfg.tick_ns);
        (timeout < self.base).then_some(timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::{Config, Rtt};
    use crate::time::{Instant, MICROSECOND, MILLISECOND, SECOND};

    #[test]
    fn the_floor_falls_to_what_the_peer_shows() {
        let cfg = Config::default();
        let mut rtt = Rtt::new(&cfg);
        assert_eq!(rtt.rto(&cfg), 200 * MILLISECOND);
        let at = |ms: u64| Instant::from_nanos(ms * MILLISECOND);
        for ms in 0..7 {
            rtt.sample(at(ms), 20 * MICROSECOND, &cfg);
            assert_eq!(rtt.rto(&cfg), 200 * MILLISECOND);
        }
        rtt.sample(at(8), 20 * MICROSECOND, &cfg);
        assert_eq!(rtt.rto(&cfg), 5 * MILLISECOND);
        // A peer that delays ACKs by 40 ms raises it for a while, however calm the rest is.
        rtt.sample(at(9), 40 * MILLISECOND + 20 * MICROSECOND, &cfg);
        for ms in 10..200 {
            rtt.sample(at(ms), 20 * MICROSECOND, &cfg);
        }
        assert_eq!(rtt.rto(&cfg), 40 * MILLISECOND + 20 * MICROSECOND);
        for s in 1..4 {
            rtt.sample(Instant::from_nanos(s * 5 * SECOND), 20 * MICROSECOND, &cfg);
        }
        assert_eq!(rtt.rto(&cfg), 5 * MILLISECOND);
    }

    #[test]
    fn backoff_doubles_up_to_the_maximum() {
        let cfg = Config::default();
        let mut rtt = Rtt::new(&cfg);
        rtt.back_off();
        assert_eq!(rtt.rto(&cfg), 400 * MILLISECOND);
        for _ in 0..100 {
            rtt.back_off();
        }
        assert_eq!(rtt.rto(&cfg), cfg.rto_max_ns);
        rtt.reset_backoff();
        assert_eq!(rtt.rto(&cfg), 200 * MILLISECOND);
    }

    #[test]
    fn the_formula_of_rfc_6298() {
        let cfg = Config { rto_min_ns: 0, rto_initial_ns: 0, ..Config::default() };
        let mut rtt = Rtt::new(&cfg);
        rtt.sample(Instant::ZERO, 800, &cfg);
        assert_eq!((rtt.srtt, rtt.rttvar), (800, 400));
        assert_eq!(rtt.rto(&cfg), 800 + 4 * 400);
        rtt.sample(Instant::ZERO, 1600, &cfg);
        assert_eq!((rtt.srtt, rtt.rttvar), (900, 500));
    }
}
