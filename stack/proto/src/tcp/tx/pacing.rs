//! Pacing: the congestion window is spread over the round trip in bursts, so that it does not reach
//! the bottleneck link of a long path all at once. Rates as in Linux: twice the window per round
//! trip in slow start, which doubles it, and 1.2 times later, so that the window and not the rate
//! is the limit.
//!
//! Retransmissions are paced like new data, except the first of an episode. ACKs are never paced.

use crate::device::{Retained, RxFrame};
use crate::tcp::Tcb;
use crate::time::{Instant, MILLISECOND};

/// Round-trip time below which bursts are only ACK-clocked. A burst would wait for a timer of some
/// tens of microseconds, which costs a short path more than the burst costs its queues.
const RTT_MIN_NS: u64 = 2 * MILLISECOND;
/// Segments in a burst, if they take less than a millisecond; also the largest window that is not
/// paced (RFC 6928 allows as much for the initial window).
const BURST_SEGMENTS: u32 = 10;
/// Shortest burst in segments, whatever the rate: a peer acknowledges every second segment.
const BURST_SEGMENTS_MIN: u64 = 2;
/// Shortest burst as a divisor of a millisecond's bytes: 62.5 us, four ticks of the timers.
const BURST_PARTS: u64 = 16;

/// Burst: bytes sent at once, and the time they take at the pacing rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Burst {
    bytes: u32,
    interval_ns: u64,
}

impl Burst {
    /// Computes the burst for a congestion window of `window` bytes and a round-trip time of
    /// `srtt_ns`. Returns `None` if they are not paced.
    fn of(window: u32, srtt_ns: u64, mss: u32, slow_start: bool) -> Option<Self> {
        if srtt_ns < RTT_MIN_NS || window <= BURST_SEGMENTS * mss {
            return None;
        }
        let (over, under) = if slow_start { (2, 1) } else { (6, 5) };
        let (window, mss) = (u64::from(window) * over, u64::from(mss));
        let rate_ms = window * MILLISECOND / (srtt_ns * under);
        let bytes = (u64::from(BURST_SEGMENTS) * mss)
            .min(rate_ms)
            .max(rate_ms / BURST_PARTS)
            .max(BURST_SEGMENTS_MIN * mss);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Some(Self { bytes, interval_ns: u64::from(bytes) * (srtt_ns * under) / window })
    }
}

/// Bytes that may be sent before pacing reads the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) struct PacingCredit(u32);

impl PacingCredit {
    /// Pacing reads the clock before the next segment.
    pub(in crate::tcp) const NONE: Self = Self(0);
    /// Credit of a flight that begins with nothing outstanding: a message of 64 KiB with its
    /// headers is sent as fast as the window admits, like what a NIC segments by itself (TSO). If
    /// it were spread over the round trip, requests and responses would take up to twice as long,
    /// with the queues empty.
    pub(in crate::tcp) const IDLE_BURST: Self = Self(68 * 1024);

    /// Returns how many segments of `emss` bytes may be sent: the last may exceed the credit.
    #[inline]
    pub(in crate::tcp) const fn segments(self, emss: u32) -> u32 {
        self.0.div_ceil(emss)
    }

    /// Deducts `bytes` sent.
    #[inline]
    pub(in crate::tcp) const fn spend(&mut self, bytes: u32) {
        self.0 = self.0.saturating_sub(bytes);
    }
}

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// True if data that the window admits has to wait for the next burst; the pacing timer then
    /// runs.
    ///
    /// Cost without pacing: a test, and a few more instructions for every tenth segment.
    #[inline]
    pub(in crate::tcp) fn is_paced(&mut self, now: Instant) -> bool {
        self.pacing_credit == PacingCredit::NONE && self.waits_for_burst(now)
    }

    #[inline(never)]
    fn waits_for_burst(&mut self, now: Instant) -> bool {
        let (window, srtt) = (self.cc.cwnd(), self.rtt.srtt());
        let burst = if self.cfg.pacing {
            Burst::of(window, srtt, u32::from(self.emss), self.cc.in_slow_start())
        } else {
            None
        };
        let Some(burst) = burst else {
            self.pacing_credit = PacingCredit(BURST_SEGMENTS * u32::from(self.emss));
            return false;
        };
        let flight = self.snd.flight();
        if self.rare.pacing + srtt < now
            && flight <= PacingCredit::IDLE_BURST.0 + u32::from(self.emss)
        {
            // The data with which this flight began counts as a burst of its own.
            let burst_ns = u64::from(flight) * burst.interval_ns;
            self.rare.pacing = now + burst_ns / u64::from(burst.bytes);
        }
        if now < self.rare.pacing {
            if !self.paced {
                self.stats.record().paced += 1;
            }
            self.paced = true;
            return true;
        }
        self.paced = false;
        self.pacing_credit = PacingCredit(burst.bytes);
        // Catches up after a timer that fired late, by at most one burst.
        self.rare.pacing = self.rare.pacing.max(now - burst.interval_ns) + burst.interval_ns;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::{Burst, MILLISECOND, RTT_MIN_NS};

    const MSS: u32 = 1448;

    #[test]
    fn bursts_spread_cwnd_over_srtt() {
        for srtt_ns in [2 * MILLISECOND, 5 * MILLISECOND, 20 * MILLISECOND, 300 * MILLISECOND] {
            for window in [11 * MSS, 100 * MSS, 5000 * MSS, 1 << 30] {
                for (slow_start, factor) in [(true, 2.0), (false, 1.2)] {
                    let burst = Burst::of(window, srtt_ns, MSS, slow_start).unwrap();
                    let bursts = f64::from(window) / f64::from(burst.bytes);
                    let time = bursts * burst.interval_ns as f64 * factor / srtt_ns as f64;
                    assert!((time - 1.0).abs() < 0.01, "{time}: {window} in {srtt_ns} ns");
                }
            }
        }
    }

    #[test]
    fn burst_len_and_interval_are_bounded() {
        // 10 Mb/s, 1 Gb/s and 100 Gb/s over 20 ms, in congestion avoidance.
        let burst = |bytes: u32| Burst::of(bytes, 20 * MILLISECOND, MSS, false).unwrap();
        assert_eq!(burst(25_000).bytes, 2 * MSS);
        assert_eq!(burst(2_500_000).bytes, 10 * MSS);
        assert!(burst(250_000_000).bytes > 500 * MSS);
        for window in [25_000, 250_000, 2_500_000, 25_000_000, 250_000_000] {
            let interval = burst(window).interval_ns;
            assert!((60_000..2_000_000).contains(&interval), "{interval} ns");
        }
    }

    #[test]
    fn short_rtt_and_small_cwnd_are_not_paced() {
        assert_eq!(Burst::of(1 << 20, RTT_MIN_NS - 1, MSS, true), None);
        assert_eq!(Burst::of(10 * MSS, 20 * MILLISECOND, MSS, true), None);
        assert_eq!(Burst::of(1 << 20, 0, MSS, true), None, "nothing measured");
    }
}
