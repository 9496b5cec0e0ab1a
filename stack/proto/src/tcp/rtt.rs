//! RTT estimator: round-trip time, ACK delay of the peer, retransmission timeout (RFC 6298) and
//! probe timeout (RFC 8985 section 7.2).

use super::settings::Config;
use super::timestamps::CoarseInstant;
use crate::time::{Instant, MICROSECOND, SECOND};
use crate::wire::seq::Seq;

/// Samples after which the floor of the RTO follows the measurements.
const TRUSTED_SAMPLES: u8 = 8;
/// Mark in the number of samples: the floor never follows them.
const KEEPS_FLOOR: u8 = 0x80;
/// Length of each of the two windows over which the maximum ACK delay is kept.
const DELAY_WINDOW_NS: u64 = 4 * SECOND;
/// Delay windows after which the minimum RTT is measured again.
const MIN_WINDOWS: u8 = 16;
/// Most doublings of the RTO.
const MAX_BACKOFF: u8 = 16;
/// Least ACK delay that the PTO allows for. This stack delays an ACK by up to 50 us, and the timers
/// and polling of both ends add to that. Small enough that a lost tail is repaired within two round
/// trips and a millisecond.
const PROBE_SLACK_US: u32 = 400;
/// Weight of a spurious probe, against one of a clean sample; and the weight from which the peer is
/// allowed a longer ACK delay: three in a row, or one flight in nine for a while. Fewer may be due
/// to lost ACKs.
const SPURIOUS_WEIGHT: u8 = 8;
const SPURIOUS_WEIGHT_MAX: u8 = 20;
/// Factor by which it is longer: six probes are enough for a peer that delays its ACKs by 40 ms.
const ACK_DELAY_FACTOR: u32 = 10;

/// Maximum over this window and the one before, microseconds.
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

/// Estimator state. In nanoseconds unless stated; more than four seconds count as four, which with
/// as large a deviation gives an RTO of 21 s.
#[derive(Clone, Debug)]
pub(super) struct Rtt {
    srtt: u32,
    rttvar: u32,
    /// Minimum RTT over the last one or two spans of `MIN_WINDOWS`.
    min: u32,
    /// Minimum RTT over the current span.
    min_next: u32,
    /// Start of the current window of ACK delays.
    delay_window_start: CoarseInstant,
    /// RTO without backoff, computed at each sample.
    base_rto: u64,
    /// ACK delay: excess over `min` of the RTT of the oldest record acknowledged. The peer may
    /// delay any ACK by this.
    ack_delay: RecentMax,
    /// The same for the newest of several records: delay of the ACK at the end of a flight.
    burst_ack_delay: RecentMax,
    /// Number of samples, [`TRUSTED_SAMPLES`] at most; with [`KEEPS_FLOOR`] if the peer has neither
    /// SACK nor timestamps. Then no ACK of a retransmitted segment is a sample (Karn), and nothing
    /// shows that a retransmission was spurious: an RTO shorter than the peer's ACK delay would
    /// never be corrected. The floor stays at the initial RTO.
    samples: u8,
    backoff: u8,
    windows: u8,
    /// Weight of recent spurious probes.
    spurious_weight: u8,
}

const _: () = assert!(size_of::<Rtt>() == 48, "every connection has one");

/// Values that the fast path needs of the estimator, recomputed whenever that changes.
///
/// Once the RTO follows the measurements, an ACK is a sample if it is the first of its round trip,
/// or if it changes a bound: its RTT is below the recent minimum, or above what the known ACK delay
/// explains. RFC 6298 section 3 requires one sample per round trip, and its smoothing assumes that
/// rate. So the minimum RTT and the ACK delay reflect all ACKs, while SRTT is smoothed at the rate
/// intended.
#[derive(Clone, Copy, Debug)]
pub(super) struct RttCache {
    /// SND.NXT at the last sample.
    sample_end: Seq,
    /// RTO without backoff.
    rto_us: u32,
    /// PTO with several records outstanding, and with one.
    pto_us: [u32; 2],
    /// Range of redundant RTTs: lower bound, upper bound by the oldest record, upper bound by the
    /// newest of several; nanoseconds.
    redundant_min: u32,
    redundant_max: u32,
    burst_redundant_max: u32,
}

impl RttCache {
    /// State before the first sample.
    pub(super) const UNKNOWN: Self = Self {
        sample_end: Seq(0),
        rto_us: u32::MAX,
        pto_us: [u32::MAX; 2],
        redundant_min: u32::MAX,
        redundant_max: 0,
        burst_redundant_max: 0,
    };

    /// RTO, nanoseconds.
    #[inline]
    pub(super) const fn rto(&self) -> u64 {
        self.rto_us as u64 * MICROSECOND
    }

    /// See [`Rtt::pto`].
    #[inline]
    pub(super) const fn pto(&self, is_single: bool) -> u64 {
        self.pto_us[is_single as usize] as u64 * MICROSECOND
    }

    /// True if an ACK up to `ack` is no sample: it is not the first of its round trip, and the RTTs
    /// it measured, `rtt` and by the newest of several records `newest`, are redundant.
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

    /// Notes a sample taken with SND.NXT at `nxt`.
    pub(super) const fn on_sample(&mut self, nxt: Seq) {
        self.sample_end = nxt;
    }
}

impl Rtt {
    /// Recomputes the values in `timing`.
    pub(super) fn fill_cache(&self, timing: &mut RttCache, cfg: &Config) {
        timing.rto_us = micros(self.rto(cfg));
        timing.pto_us = [false, true].map(|is_single| micros(self.pto(is_single)));
        // Every ACK is a sample until there are enough, and while recent probes were spurious.
        let is_settled = self.sample_count() == TRUSTED_SAMPLES && self.spurious_weight == 0;
        let most = |delay: RecentMax| self.min.saturating_add(delay.max().saturating_mul(1000));
        timing.redundant_min = if is_settled { self.min_next } else { u32::MAX };
        (timing.redundant_max, timing.burst_redundant_max) =
            (most(self.ack_delay), most(self.burst_ack_delay));
    }

    /// True if the RTO was doubled and no ACK of new data has followed.
    pub(super) const fn is_backed_off(&self) -> bool {
        self.backoff > 0
    }

    /// State before the first sample.
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
            spurious_weight: 0,
        }
    }

    /// Notes that the peer has neither SACK nor timestamps.
    pub(super) const fn keep_rto_floor(&mut self) {
        self.samples |= KEEPS_FLOOR;
    }

    #[inline]
    const fn sample_count(&self) -> u8 {
        self.samples & !KEEPS_FLOOR
    }

    /// Updates the estimator with a sample (RFC 6298 section 2), in integers. `rtt`: time since the
    /// transmission of the oldest record that an ACK covers; `newest`: the same for the newest, if
    /// the ACK covers several or does not cover all.
    #[inline]
    pub(super) fn sample(&mut self, now: Instant, rtt: u64, newest: Option<u64>, cfg: &Config) {
        let bounded = |ns: u64| u32::try_from(ns).unwrap_or(u32::MAX);
        let deviation = bounded(u64::from(self.srtt).abs_diff(rtt));
        let (rtt, newest) = (bounded(rtt), newest.map(bounded));
        let is_first = self.sample_count() == 0;
        if is_first {
            self.srtt = rtt;
            self.rttvar = rtt / 2;
        } else {
            self.rttvar = self.rttvar - self.rttvar / 4 + deviation / 4;
            self.srtt = self.srtt - self.srtt / 8 + rtt / 8;
        }
        if self.sample_count() < TRUSTED_SAMPLES {
            self.samples += 1;
        }
        if is_first || self.delay_window_start.age(now) >= DELAY_WINDOW_NS {
            self.rotate_windows(now);
        }
        let least = newest.map_or(rtt, |newest| newest.min(rtt));
        self.min_next = self.min_next.min(least);
        self.min = self.min.min(least);
        self.ack_delay.update((rtt - self.min).div_ceil(1000));
        self.spurious_weight = self.spurious_weight.saturating_sub(1);
        if let Some(newest) = newest {
            self.burst_ack_delay.update((newest - self.min).div_ceil(1000));
        }
        self.update_base_rto(cfg);
    }

    /// Recomputes the RTO without backoff.
    #[inline]
    fn update_base_rto(&mut self, cfg: &Config) {
        // The peer may delay any ACK by as much as it has before, however steady the last samples
        // were.
        let floor = if self.samples != TRUSTED_SAMPLES {
            cfg.rto_initial_ns.max(cfg.rto_min_ns)
        } else {
            let delay = u64::from(self.ack_delay.max()) * MICROSECOND;
            cfg.rto_min_ns.max(u64::from(self.min) + delay)
        };
        // On a steady path RTTVAR is close to zero; the RTO still leaves a round trip for the
        // tail loss probe and for reordering.
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

    /// SRTT, nanoseconds; 0 before the first sample.
    pub(super) const fn srtt(&self) -> u64 {
        self.srtt as u64
    }

    /// Recent minimum RTT, nanoseconds; 0 before the first sample.
    pub(super) const fn min(&self) -> u64 {
        if self.min == u32::MAX { 0 } else { self.min as u64 }
    }

    /// RTO with backoff, nanoseconds.
    #[inline]
    pub(super) fn rto(&self, cfg: &Config) -> u64 {
        (self.base_rto << self.backoff).min(cfg.rto_max_ns)
    }

    /// RTO without backoff, nanoseconds.
    pub(super) fn base_rto(&self, cfg: &Config) -> u64 {
        self.base_rto.min(cfg.rto_max_ns)
    }

    /// Doubles the RTO (RFC 6298 section 5.5).
    pub(super) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }

    /// Ends the backoff: the peer acknowledged something.
    #[inline]
    pub(super) const fn reset_backoff(&mut self) {
        self.backoff = 0;
    }

    /// Notes that our SYN was retransmitted: the first flight gets three times the initial RTO
    /// (RFC 6298 section 5.7, whose initial RTO is 1 s and this one 3 s).
    pub(super) fn on_syn_lost(&mut self, cfg: &Config) {
        self.base_rto = self.base_rto.max(3 * cfg.rto_initial_ns).min(cfg.rto_max_ns);
    }

    /// Returns the PTO, nanoseconds (RFC 8985 section 7.2): two round trips and the peer's ACK
    /// delay after the end of a flight. `is_single`: the flight is a single record.
    #[inline]
    pub(super) fn pto(&self, is_single: bool) -> u64 {
        let delay = if is_single { self.ack_delay.max() } else { self.burst_ack_delay.max() };
        if self.sample_count() == 0 {
            return SECOND;
        }
        2 * self.srtt() + u64::from(delay.max(PROBE_SLACK_US)) * MICROSECOND
    }

    /// Notes a spurious probe: its ACK shows that nothing was lost. If that is frequent, the peer
    /// delays its ACKs longer than assumed; the probes prevent a measurement of how long.
    pub(super) fn on_spurious_probe(&mut self, is_single: bool, cfg: &Config) {
        self.spurious_weight += SPURIOUS_WEIGHT;
        if self.spurious_weight < SPURIOUS_WEIGHT_MAX {
            return;
        }
        self.spurious_weight = 0;
        let delay = if is_single { &mut self.ack_delay } else { &mut self.burst_ack_delay };
        let longer = delay.max().max(PROBE_SLACK_US).saturating_mul(ACK_DELAY_FACTOR);
        delay.update(longer.min(micros(cfg.rto_initial_ns)));
        self.update_base_rto(cfg);
    }
}

fn micros(ns: u64) -> u32 {
    u32::try_from(ns.div_ceil(MICROSECOND)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
