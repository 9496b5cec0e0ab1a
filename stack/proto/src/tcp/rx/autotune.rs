//! Receive window autotuning: the window grows with the bytes received per round trip (dynamic
//! right-sizing). It returns to its first size only for an idle peer, if other connections need the
//! memory.
//!
//! A round begins at some time and ends with the first segment that echoes a TSval sent after that:
//! one round trip, measured by the receiver alone. Without timestamps a round lasts two of the
//! round-trip times measured by the send side.
//!
//! A window wider than the path's bandwidth-delay product does not carry more: the excess waits in
//! queues, and the longer round trips must not make the window grow further. So the shortest round
//! bounds the growth.

use crate::time::Instant;
use crate::wire::seq::Seq;

/// Largest distance at which TSecr counts as older than the end of the round, microseconds. At a
/// larger one it counts as newer: the clock wrapped in between.
const ECHO_AGE_MAX: u32 = 1 << 30;
/// Bound of the window, as a multiple of the bandwidth-delay product without queues.
const BDP_GAIN: u64 = 4;
/// Age after which the shortest round may have been measured on an earlier path, milliseconds: its
/// duration is then doubled.
const RTT_MIN_AGE_MS: u32 = 60_000;

/// End of a round: the value of our timestamp clock, as the peer echoes it.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct RoundEnd(pub(in crate::tcp) u32);

impl RoundEnd {
    #[inline]
    pub(in crate::tcp) const fn is_reached(self, clock: u32) -> bool {
        self.0.wrapping_sub(clock).wrapping_sub(1) >= ECHO_AGE_MAX
    }
}

/// Current round, and measurements of earlier ones.
#[derive(Debug)]
pub(in crate::tcp) struct RcvRound {
    /// End of the bytes received before it.
    start_seq: Seq,
    started_at: Instant,
    /// Duration of the shortest round, nanoseconds (limited to four seconds), and the time it was
    /// measured, in milliseconds of a clock that wraps.
    rtt_min_ns: u32,
    rtt_min_at_ms: u32,
    /// Most bytes received in a round so far.
    most_received: u32,
}

impl RcvRound {
    /// Longest duration of a round by our own clock, microseconds.
    pub(in crate::tcp) const WAIT_MAX_US: u32 = 1_000_000;

    /// No round yet.
    pub(in crate::tcp) const fn new() -> Self {
        Self {
            start_seq: Seq(0),
            started_at: Instant::ZERO,
            rtt_min_ns: u32::MAX,
            rtt_min_at_ms: 0,
            most_received: 0,
        }
    }

    /// Time when the round began; the first begins with our SYN.
    pub(in crate::tcp) const fn started_at(&self) -> Instant {
        self.started_at
    }

    /// Begins a round.
    pub(in crate::tcp) const fn start(&mut self, now: Instant, from: Seq) {
        self.started_at = now;
        self.start_seq = from;
    }

    /// Ends the round, with bytes received up to `end`. Returns the window that the sender needs,
    /// at most `max`.
    ///
    /// Twice the bytes received let a sender keep its rate while it repairs a loss. If they are
    /// more than in any round before, the sender is in slow start: one round later it sends twice
    /// as much, and by the time this window reaches it four times.
    pub(in crate::tcp) fn window_needed(&mut self, now: Instant, end: Seq, max: u32) -> u32 {
        // Bytes that the upper layer declined may have been counted in the round before.
        let bytes = (end.max(self.start_seq) - self.start_seq).min(max);
        let growth = bytes.saturating_sub(self.most_received);
        self.most_received = self.most_received.max(bytes);
        let target = bytes.saturating_mul(2).saturating_add(growth.saturating_mul(4)).min(max);
        target.min(self.bdp_limit(now, bytes))
    }

    /// Returns the bound of the window when `bytes` were received in this round: the
    /// bandwidth-delay product by the shortest round, times [`BDP_GAIN`].
    fn bdp_limit(&mut self, now: Instant, bytes: u32) -> u32 {
        let round_ns = now.since(self.started_at).max(1);
        let now_ms = millis(now);
        if now_ms.wrapping_sub(self.rtt_min_at_ms) > RTT_MIN_AGE_MS {
            self.rtt_min_ns = self.rtt_min_ns.saturating_mul(2);
            self.rtt_min_at_ms = now_ms;
        }
        let bounded_ns = u32::try_from(round_ns).unwrap_or(u32::MAX);
        if bounded_ns <= self.rtt_min_ns {
            self.rtt_min_ns = bounded_ns;
            self.rtt_min_at_ms = now_ms;
        }
        let shortest_ns = u64::from(self.rtt_min_ns).min(round_ns);
        let scaled = u128::from(bytes) * u128::from(BDP_GAIN * shortest_ns);
        u32::try_from(scaled / u128::from(round_ns)).unwrap_or(u32::MAX)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the clock wraps")]
const fn millis(now: Instant) -> u32 {
    (now.as_micros() / 1000) as u32
}

#[cfg(test)]
mod tests {
    use super::{RcvRound, RoundEnd};
    use crate::time::{Instant, MICROSECOND, MILLISECOND, SECOND};
    use crate::wire::seq::Seq;

    #[test]
    fn round_ends_at_echoed_tsval_across_the_wrap() {
        for mark in [5u32, 0, u32::MAX, 0x8000_0000] {
            let round = RoundEnd(mark);
            for before in [1, 2, 1_000_000] {
                assert!(!round.is_reached(mark.wrapping_sub(before)));
            }
            // Also after an idle time of more than half the range of the clock.
            for after in [0, 1, 1000, 0x7fff_ffff, 0x9000_0000] {
                assert!(round.is_reached(mark.wrapping_add(after)), "{mark} {after}");
            }
        }
    }

    /// Consecutive rounds of given bytes and durations.
    struct RcvRounds {
        round: RcvRound,
        now: Instant,
        end: Seq,
    }

    impl RcvRounds {
        fn new() -> Self {
            Self { round: RcvRound::new(), now: Instant::ZERO, end: Seq(0xffff_ff00) }
        }

        fn window_needed(&mut self, bytes: u32, ns: u64) -> u32 {
            self.round.start(self.now, self.end);
            self.now = self.now + ns;
            self.end += bytes;
            self.round.window_needed(self.now, self.end, 6 << 20)
        }
    }

    #[test]
    fn window_needed_is_twice_received_and_more_in_slow_start() {
        let mut rounds = RcvRounds::new();
        let mut need = |bytes| rounds.window_needed(bytes, 20 * MILLISECOND);
        assert_eq!(need(10_000), 40_000);
        assert_eq!(need(20_000), 80_000);
        assert_eq!(need(20_000), 40_000);
        assert_eq!(need(0), 0);
        assert_eq!(need(20_000), 40_000);
        assert_eq!(need(40_000_000), 6 << 20);
    }

    #[test]
    fn queueing_delay_does_not_grow_the_window() {
        // 20 Gb/s and 5 us: a window of 256 KiB waits in queues for twenty times as long.
        let mut rounds = RcvRounds::new();
        rounds.window_needed(10_000, 5 * MICROSECOND);
        let mut window = 256 * 1024;
        for _ in 0..1000 {
            let need = rounds.window_needed(window, u64::from(window) * 2 / 5);
            assert!(need < window, "{need}");
            window = window.max(need);
        }
        // The path has really become longer: that shows within minutes.
        for _ in 0..400 {
            window = window.max(rounds.window_needed(window, SECOND));
        }
        assert_eq!(window, 256 * 1024, "from 5 us to a second takes longer");
        let mut rounds = RcvRounds::new();
        rounds.window_needed(10_000, MILLISECOND);
        for _ in 0..30_000 {
            window = window.max(rounds.window_needed(window, 20 * MILLISECOND));
        }
        assert_eq!(window, 6 << 20);
    }
}
