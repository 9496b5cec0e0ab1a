//! Round-trip time, the peer's ACK delay, the retransmission timeout (RFC 6298) and the probe
//! timeout (RFC 8985 section 7.2).

use super::config::Config;
use super::timer::CoarseInstant;
use crate::time::{Instant, MICROSECOND, SECOND};
use crate::wire::seq::Seq;

/// Samples after which the floor follows what was measured.
const TRUSTED_SAMPLES: u8 = 8;
/// Length of one of the two windows over which the ACK delay's maximum is kept.
const DELAY_WINDOW_NS: u64 = 4 * SECOND;
/// Delay windows after which the least round-trip time is taken anew.
const MIN_WINDOWS: u8 = 16;
/// Most doublings of the timeout.
const MAX_BACKOFF: u8 = 16;
/// What a probe allows a peer that has shown no delay: an ACK of this stack's own waits up to 50
/// us, and both ends' timers and polling take their share. Short enough that a lost tail is
/// repaired within two round trips and a millisecond.
const PROBE_SLACK_US: u32 = 400;
/// What a probe that was too early weighs, against a clean sample's one, and from what weight on
/// the peer is given longer: for three in a row, or one flight in nine for a while. Fewer may come
/// of lost ACKs.
const EARLY_WEIGHT: u8 = 8;
const EARLY_MAX: u8 = 20;
/// How many times as long: six probes are enough for a peer that delays its ACKs by 40 ms.
const EARLY_FACTOR: u32 = 10;

/// Largest value in this window and in the one before, microseconds.
#[derive(Clone, Copy, Debug, Default)]
struct RecentMax([u32; 2]);

impl RecentMax {
    fn max(self) -> u32 {
        self.0[0].max(self.0[1])
    }

    fn update(&mut self, us: u32) {
        self.0[0] = self.0[0].max(us);
    }

    fn rotate(&mut self) {
        self.0 = [0, self.0[0]];
    }
}

/// Estimator state. Nanoseconds where not said otherwise; what is longer than four seconds counts
/// as four, which with as long a deviation makes a timeout of 21 s.
#[derive(Clone, Debug)]
pub(super) struct Rtt {
    srtt: u32,
    rttvar: u32,
    /// Least sample of the last one or two spans of `MIN_WINDOWS`.
    min: u32,
    /// Least sample of the present span.
    min_next: u32,
    /// When the present window of ACK delays began.
    delay_window_start: CoarseInstant,
    /// The timeout without backoff, computed at each sample.
    base_rto: u64,
    /// How much longer than `min` the ACK of the oldest record took: what a peer may wait before
    /// it answers anything.
    ack_delay: RecentMax,
    /// The same of the newest record of several: what it may wait with the end of a flight.
    burst_ack_delay: RecentMax,
    samples: u8,
    backoff: u8,
    windows: u8,
    /// Weight of the probes that were too early of late.
    early_weight: u8,
    /// The peer has neither SACK nor timestamps. Then no ACK of a segment that was sent twice is a
    /// measurement (Karn), and nothing tells that a copy was needless: a timeout shorter than the
    /// peer's delay of ACKs would stay so. The floor is the initial timeout.
    keeps_floor: bool,
}

/// What every segment needs to know of the estimator, worked out whenever that changes.
///
/// Once the timeout follows what was measured, an ACK is a sample if it is the first of its round
/// trip, or if it says something new: it came sooner than any of late, or later than the peer was
/// known to wait. RFC 6298 section 3 asks for one in a round trip, and its smoothing is made for
/// that; so least round trip and ACK delay are those of all ACKs, and smoothed is what comes at
/// the pace that the smoothing is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct RttCache {
    /// What was sent below this was under way at the last sample.
    sample_end: Seq,
    /// The timeout, without backoff.
    rto_us: u32,
    /// The probe timeout of several records, and of one alone.
    pto_us: [u32; 2],
    /// Round-trip times that say nothing new: from here, to here by the oldest record, and to here
    /// by the newest of several; nanoseconds.
    redundant_min: u32,
    redundant_max: u32,
    burst_redundant_max: u32,
}

impl RttCache {
    /// Before anything was measured.
    pub(super) const UNKNOWN: Self = Self {
        sample_end: Seq(0),
        rto_us: u32::MAX,
        pto_us: [u32::MAX; 2],
        redundant_min: u32::MAX,
        redundant_max: 0,
        burst_redundant_max: 0,
    };

    /// The retransmission timeout, nanoseconds.
    #[inline]
    pub(super) const fn rto(&self) -> u64 {
        self.rto_us as u64 * MICROSECOND
    }

    /// See [`Rtt::pto`].
    #[inline]
    pub(super) const fn pto(&self, alone: bool) -> u64 {
        self.pto_us[alone as usize] as u64 * MICROSECOND
    }

    /// True if an ACK up to `ack` that measured `rtt`, and `newest` by the newest of several
    /// records, says nothing new.
    #[inline]
    pub(super) fn is_redundant_sample(&self, ack: Seq, rtt: u64, newest: Option<u64>) -> bool {
        let (least, newest) =
            (u64::from(self.redundant_min), newest.unwrap_or(self.redundant_min.into()));
        ack <= self.sample_end
            && least <= newest
            && newest <= u64::from(self.burst_redundant_max)
            && least <= rtt
            && rtt <= u64::from(self.redundant_max)
    }

    /// A sample was taken while what was sent below `nxt` was under way.
    pub(super) const fn on_sample(&mut self, nxt: Seq) {
        self.sample_end = nxt;
    }
}

impl Rtt {
    /// Tells `rtt_cache` what it has to know.
    pub(super) fn fill_cache(&self, timing: &mut RttCache, cfg: &Config) {
        timing.rto_us = micros(self.rto(cfg));
        timing.pto_us = [false, true].map(|alone| micros(self.pto(alone)));
        // Every ACK counts until enough were seen, and while it tells of probes that were early.
        let is_settled = self.samples >= TRUSTED_SAMPLES && self.early_weight == 0;
        let most = |delay: RecentMax| bounded(u64::from(self.min) + u64::from(delay.max()) * 1000);
        timing.redundant_min = if is_settled { self.min_next } else { u32::MAX };
        (timing.redundant_max, timing.burst_redundant_max) =
            (most(self.ack_delay), most(self.burst_ack_delay));
    }

    /// True if the timeout is longer than measured, for want of answers.
    pub(super) const fn is_backed_off(&self) -> bool {
        self.backoff > 0
    }

    /// No sample yet.
    pub(super) fn new(cfg: &Config) -> Self {
        Self {
            srtt: 0,
            rttvar: 0,
            min: u32::MAX,
            min_next: u32::MAX,
            delay_window_start: CoarseInstant::of(Instant::ZERO),
            base_rto: cfg.rto_initial_ns.max(cfg.rto_min_ns),
            ack_delay: RecentMax::default(),
            burst_ack_delay: RecentMax::default(),
            samples: 0,
            backoff: 0,
            windows: 0,
            early_weight: 0,
            keeps_floor: false,
        }
    }

    /// The peer has neither SACK nor timestamps.
    pub(super) const fn keep_rto_floor(&mut self) {
        self.keeps_floor = true;
    }

    /// Takes a measurement (RFC 6298 section 2), in integers: the time from the transmission of
    /// the oldest record that an ACK covers. `newest`: from that of the newest, if the ACK covers
    /// several or leaves some.
    #[inline]
    pub(super) fn sample(&mut self, now: Instant, rtt: u64, newest: Option<u64>, cfg: &Config) {
        let deviation = bounded(u64::from(self.srtt).abs_diff(rtt));
        let (rtt, newest) = (bounded(rtt), newest.map(bounded));
        if self.samples == 0 {
            self.srtt = rtt;
            self.rttvar = rtt / 2;
        } else {
            self.rttvar = self.rttvar - self.rttvar / 4 + deviation / 4;
            self.srtt = self.srtt - self.srtt / 8 + rtt / 8;
        }
        let is_first = self.samples == 0;
        self.samples = self.samples.saturating_add(1);
        if is_first || self.delay_window_start.age(now) >= DELAY_WINDOW_NS {
            self.rotate_windows(now);
        }
        let least = newest.map_or(rtt, |newest| newest.min(rtt));
        self.min_next = self.min_next.min(least);
        self.min = self.min.min(least);
        self.ack_delay.update((rtt - self.min).div_ceil(1000));
        self.early_weight = self.early_weight.saturating_sub(1);
        if let Some(newest) = newest {
            self.burst_ack_delay.update((newest - self.min).div_ceil(1000));
        }
        self.update_base_rto(cfg);
    }

    /// The timeout by what is known now.
    #[inline]
    fn update_base_rto(&mut self, cfg: &Config) {
        // The peer may delay an ACK at any time by as much as it has shown, however steady the
        // last samples were.
        let floor = if self.samples < TRUSTED_SAMPLES || self.keeps_floor {
            cfg.rto_initial_ns.max(cfg.rto_min_ns)
        } else {
            let delay = u64::from(self.ack_delay.max()) * MICROSECOND;
            cfg.rto_min_ns.max(u64::from(self.min) + delay)
        };
        // A steady path has next to no variance; still the timer leaves the probe and reordering
        // the time of a round trip.
        let (srtt, rttvar) = (u64::from(self.srtt), u64::from(self.rttvar));
        let margin = (4 * rttvar).max(srtt);
        self.base_rto = (srtt + margin).max(floor).min(cfg.rto_max_ns);
    }

    #[cold]
    fn rotate_windows(&mut self, now: Instant) {
        self.ack_delay.rotate();
        self.burst_ack_delay.rotate();
        self.delay_window_start = CoarseInstant::of(now);
        self.windows += 1;
        if self.windows >= MIN_WINDOWS {
            self.windows = 0;
            self.min = self.min_next;
            self.min_next = u32::MAX;
        }
    }

    /// Smoothed round-trip time, 0 before the first sample.
    pub(super) const fn srtt(&self) -> u64 {
        self.srtt as u64
    }

    /// Least round-trip time of late, 0 before the first sample.
    pub(super) const fn min(&self) -> u64 {
        if self.min == u32::MAX { 0 } else { self.min as u64 }
    }

    /// The retransmission timeout with its backoff.
    #[inline]
    pub(super) fn rto(&self, cfg: &Config) -> u64 {
        (self.base_rto << self.backoff).min(cfg.rto_max_ns)
    }

    /// The retransmission timeout without it.
    pub(super) fn base_rto(&self, cfg: &Config) -> u64 {
        self.base_rto.min(cfg.rto_max_ns)
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

    /// Our SYN had to be sent again: the first flight gets three times the initial timeout
    /// (RFC 6298 section 5.7, whose initial timeout is 1 s and this 3 s).
    pub(super) fn on_syn_lost(&mut self, cfg: &Config) {
        self.base_rto = self.base_rto.max(3 * cfg.rto_initial_ns).min(cfg.rto_max_ns);
    }

    /// When to probe the tail of a flight (RFC 8985 section 7.2): two round trips after it left,
    /// and the time the peer may sit on its ACK. `is_single`: it is a single record.
    #[inline]
    pub(super) fn pto(&self, alone: bool) -> u64 {
        let delay = if alone { self.ack_delay.max() } else { self.burst_ack_delay.max() };
        if self.samples == 0 {
            return SECOND;
        }
        2 * self.srtt() + u64::from(delay.max(PROBE_SLACK_US)) * MICROSECOND
    }

    /// A probe was answered by a report that nothing had been lost. If it happens often, the peer
    /// sits on its ACKs for longer than it was allowed; how long, the probes have kept us from
    /// learning.
    pub(super) fn on_early_probe(&mut self, alone: bool, cfg: &Config) {
        self.early_weight += EARLY_WEIGHT;
        if self.early_weight < EARLY_MAX {
            return;
        }
        self.early_weight = 0;
        let delay = if alone { &mut self.ack_delay } else { &mut self.burst_ack_delay };
        let longer = delay.max().max(PROBE_SLACK_US).saturating_mul(EARLY_FACTOR);
        delay.update(longer.min(micros(cfg.rto_initial_ns)));
        self.update_base_rto(cfg);
    }
}

/// Nanoseconds, as far as they go into 32 bits.
#[inline]
fn bounded(ns: u64) -> u32 {
    u32::try_from(ns).unwrap_or(u32::MAX)
}

fn micros(ns: u64) -> u32 {
    u32::try_from(ns.div_ceil(MICROSECOND)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Config, Rtt};
    use crate::time::{Instant, MICROSECOND, MILLISECOND, SECOND};

    #[test]
    fn rto_floor_follows_measured_ack_delay() {
        let cfg = Config::default();
        let mut rtt = Rtt::new(&cfg);
        assert_eq!(rtt.rto(&cfg), 200 * MILLISECOND);
        let at = |ms: u64| Instant::from_nanos(ms * MILLISECOND);
        for ms in 0..7 {
            rtt.sample(at(ms), 20 * MICROSECOND, None, &cfg);
            assert_eq!(rtt.rto(&cfg), 200 * MILLISECOND);
        }
        rtt.sample(at(8), 20 * MICROSECOND, None, &cfg);
        assert_eq!(rtt.rto(&cfg), 5 * MILLISECOND);
        // A peer that delays ACKs by 40 ms raises it for a while, however calm the rest is.
        rtt.sample(at(9), 40 * MILLISECOND + 20 * MICROSECOND, None, &cfg);
        for ms in 10..200 {
            rtt.sample(at(ms), 20 * MICROSECOND, None, &cfg);
        }
        assert_eq!(rtt.rto(&cfg), 40 * MILLISECOND + 20 * MICROSECOND);
        for s in 1..4 {
            rtt.sample(Instant::from_nanos(s * 5 * SECOND), 20 * MICROSECOND, None, &cfg);
        }
        assert_eq!(rtt.rto(&cfg), 5 * MILLISECOND);
    }

    #[test]
    fn rto_min_of_a_second_is_honoured() {
        // RFC 6298 sections 2.1 and 2.4.
        let cfg = Config { rto_min_ns: SECOND, rto_initial_ns: SECOND, ..Config::default() };
        let mut rtt = Rtt::new(&cfg);
        assert_eq!(rtt.rto(&cfg), SECOND);
        for _ in 0..100 {
            rtt.sample(Instant::ZERO, 20 * MICROSECOND, None, &cfg);
            assert_eq!(rtt.rto(&cfg), SECOND);
        }
        rtt.on_syn_lost(&cfg);
        assert_eq!(rtt.rto(&cfg), 3 * SECOND);
    }

    #[test]
    fn backoff_doubles_rto_up_to_rto_max() {
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
    fn srtt_and_rttvar_follow_rfc_6298() {
        let cfg = Config { rto_min_ns: 0, rto_initial_ns: 0, ..Config::default() };
        let mut rtt = Rtt::new(&cfg);
        rtt.sample(Instant::ZERO, 800, None, &cfg);
        assert_eq!((rtt.srtt, rtt.rttvar), (800, 400));
        assert_eq!(rtt.rto(&cfg), 800 + 4 * 400);
        rtt.sample(Instant::ZERO, 1600, None, &cfg);
        assert_eq!((rtt.srtt, rtt.rttvar), (900, 500));
    }

    #[test]
    fn rto_is_about_two_srtt_on_a_steady_path() {
        let cfg = Config::default();
        let mut rtt = Rtt::new(&cfg);
        for _ in 0..100 {
            rtt.sample(Instant::ZERO, 20 * MILLISECOND, None, &cfg);
        }
        assert!(rtt.rto(&cfg) >= 39 * MILLISECOND, "{}", rtt.rto(&cfg));
    }

    #[test]
    fn min_rtt_expires_after_a_path_change() {
        let cfg = Config::default();
        let mut rtt = Rtt::new(&cfg);
        rtt.sample(Instant::ZERO, MILLISECOND, None, &cfg);
        for s in 1..60 {
            rtt.sample(Instant::from_nanos(s * SECOND), 10 * MILLISECOND, None, &cfg);
        }
        assert_eq!(rtt.min(), MILLISECOND);
        for s in 60..200 {
            rtt.sample(Instant::from_nanos(s * SECOND), 10 * MILLISECOND, None, &cfg);
        }
        assert_eq!(rtt.min(), 10 * MILLISECOND);
    }

    #[test]
    fn pto_is_two_srtt_plus_ack_delay() {
        let cfg = Config::default();
        let mut rtt = Rtt::new(&cfg);
        assert_eq!(rtt.pto(true), SECOND);
        rtt.sample(Instant::ZERO, 20 * MICROSECOND, None, &cfg);
        assert_eq!(rtt.pto(true), 440 * MICROSECOND);
        assert_eq!(rtt.pto(false), 440 * MICROSECOND);
        // Nine probes that were too early are enough for any delay that peers have.
        for us in [4000, 40_000, 200_000, 200_000] {
            for _ in 0..3 {
                rtt.on_early_probe(true, &cfg);
                rtt.sample(Instant::ZERO, 20 * MICROSECOND, None, &cfg);
            }
            assert_eq!(rtt.pto(true), (40 + us) * MICROSECOND);
        }
        assert_eq!(rtt.pto(false), 440 * MICROSECOND);
        // A few are the doing of lost ACKs.
        for _ in 0..10 {
            rtt.on_early_probe(false, &cfg);
            for _ in 0..8 {
                rtt.sample(Instant::ZERO, 20 * MICROSECOND, None, &cfg);
            }
        }
        assert_eq!(rtt.pto(false), 440 * MICROSECOND);
        // The end of a burst is waited for by its own measure.
        rtt.sample(Instant::ZERO, 20 * MICROSECOND, Some(MILLISECOND), &cfg);
        assert_eq!(rtt.pto(false), (40 + 980) * MICROSECOND);
    }
}
