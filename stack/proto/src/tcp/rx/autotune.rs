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
//!
//! The path may become longer. A queue that our window fills and a longer path both make rounds
//! longer, but differ in the rate: a full link carries as much as before, while over a longer path
//! the same window carries less. So rounds that the window would explain only at a lower rate than
//! before, for some seconds, show a longer path. A minimum over recent rounds alone (as in BBR)
//! would forget the true round trip while a long transfer keeps the queue filled, and smoothed
//! rounds (as in Linux) grow the window with it.

use crate::time::{Instant, SECOND};
use crate::wire::seq::Seq;

/// Largest distance at which TSecr counts as older than the end of the round, microseconds. At a
/// larger one it counts as newer: the clock wrapped in between.
const ECHO_AGE_MAX: u32 = 1 << 30;
/// Bound of the window, as a multiple of the bandwidth-delay product without queues.
const BDP_GAIN: u64 = 4;
/// Time in which rounds that are longer than explained reduce the rate that would explain them by
/// two thirds.
const RATE_DECAY_NS: u64 = 2 * SECOND;
/// A rate is the number of bytes in 2 to this power nanoseconds, about a millisecond.
const RATE_SHIFT: u32 = 20;

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
    /// Duration of the shortest round, nanoseconds (limited to four seconds).
    rtt_min_ns: u32,
    /// Rate at which earlier rounds received, smoothed; see [`RATE_SHIFT`].
    rate: u32,
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
            rate: 0,
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
        let bounded_ns = u32::try_from(round_ns).unwrap_or(u32::MAX);
        self.rtt_min_ns = self.rtt_min_ns.min(bounded_ns);
        if bytes > 0 {
            self.detect_longer_path(bytes, bounded_ns);
        }
        let shortest_ns = u64::from(self.rtt_min_ns).min(round_ns);
        let scaled = u128::from(bytes) * u128::from(BDP_GAIN * shortest_ns);
        u32::try_from(scaled / u128::from(round_ns)).unwrap_or(u32::MAX)
    }

    /// Compares this round of `round_ns` with those before. If such have come for a while that
    /// neither the shortest round nor the rate explains, the path has become longer.
    fn detect_longer_path(&mut self, bytes: u32, round_ns: u32) {
        let bounded = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let transfer = u64::from(bytes) << RATE_SHIFT;
        let rate = bounded(transfer / u64::from(round_ns)).max(1);
        let is_explained = |rate: u32, rtt_min_ns: u32| {
            let explained_ns = (transfer / u64::from(rate.max(1))).max(rtt_min_ns.into());
            u64::from(round_ns) <= explained_ns + explained_ns / 2
        };
        if self.rate == 0 {
            self.rate = rate;
        } else if is_explained(self.rate, self.rtt_min_ns) {
            self.rate = bounded((7 * u64::from(self.rate) + u64::from(rate)).div_ceil(8));
        } else {
            let decay = u64::from(self.rate) * u64::from(round_ns) / RATE_DECAY_NS;
            self.rate -= bounded(decay).clamp(1, self.rate / 2 + 1);
            if is_explained(self.rate, self.rtt_min_ns) {
                self.rtt_min_ns = round_ns;
                self.rate = rate;
            }
        }
    }
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
            let need = rounds.window_needed(window, window_ns(window));
            assert!(need < window, "{need}");
            window = window.max(need);
        }
        // A link that is full for a minute, at a rate that varies by a fifth.
        for _ in 0..60 * SECOND / window_ns(window) {
            let vary = 80 + rounds.now.as_micros() % 40;
            let need = rounds.window_needed(window, window_ns(window) * vary / 100);
            assert!(need < window, "{need}");
        }
    }

    /// Duration of a round with a window of so many bytes, at 20 Gb/s.
    fn window_ns(window: u32) -> u64 {
        u64::from(window) * 2 / 5
    }

    /// Returns the time until the window has grown from `window` to 6 MiB, or a minute.
    fn time_to_grow(rounds: &mut RcvRounds, mut window: u32, round_ns: u64) -> u64 {
        let start = rounds.now;
        while window < 6 << 20 && rounds.now.since(start) < 60 * SECOND {
            window = window.max(rounds.window_needed(window, round_ns));
        }
        rounds.now.since(start)
    }

    #[test]
    fn window_follows_a_longer_path() {
        let window = 256 * 1024;
        for (before_ns, after_ns) in
            [(MILLISECOND, 20 * MILLISECOND), (MILLISECOND, SECOND / 10), (500_000, 3_000_000)]
        {
            // Whether the window filled the link before or not.
            for full in [false, true] {
                let mut rounds = RcvRounds::new();
                rounds.window_needed(10_000, before_ns);
                let duration = if full { before_ns.max(window_ns(window)) } else { before_ns };
                for _ in 0..1000 {
                    rounds.window_needed(window, duration);
                }
                let time = time_to_grow(&mut rounds, window, after_ns);
                assert!(time < 10 * SECOND, "{before_ns} {after_ns} {full}: {time}");
            }
        }
        // Rounds of a second, 200,000 times as long.
        let mut rounds = RcvRounds::new();
        rounds.window_needed(10_000, 5 * MICROSECOND);
        let time = time_to_grow(&mut rounds, window, SECOND);
        assert!(time < 30 * SECOND, "{time}");
    }

    #[test]
    fn slower_link_grows_the_window_once_at_most() {
        let mut rounds = RcvRounds::new();
        rounds.window_needed(10_000, 100 * MICROSECOND);
        let mut window: u32 = 256 * 1024;
        for _ in 0..1000 {
            rounds.window_needed(window, window_ns(window));
        }
        // A tenth of the rate, and a queue that grows with the window.
        let start = rounds.now;
        while rounds.now.since(start) < 60 * SECOND {
            window = window.max(rounds.window_needed(window, 10 * window_ns(window)));
        }
        assert!(window <= 1 << 20, "{window}");
    }

    #[test]
    fn idle_rounds_do_not_hide_the_shortest_for_long() {
        let mut rounds = RcvRounds::new();
        rounds.window_needed(10_000, 100 * MICROSECOND);
        // A message each 100 ms, and then a transfer that fills the link.
        for _ in 0..100 {
            rounds.window_needed(10_000, SECOND / 10);
        }
        rounds.window_needed(10_000, 100 * MICROSECOND);
        let mut window: u32 = 256 * 1024;
        for _ in 0..10_000 {
            window = window.max(rounds.window_needed(window, window_ns(window).max(100_000)));
        }
        assert!(window <= 1 << 20, "four times 250,000 bytes: {window}");
    }
}
