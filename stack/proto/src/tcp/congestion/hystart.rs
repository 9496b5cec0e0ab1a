//! HyStart++ (RFC 9406): leaves the first slow start when the round-trip time rises, before a
//! queue overflows.

use super::AckInfo;
use crate::wire::seq::Seq;

/// Bounds of the rise that counts, and the part of the round-trip time that it is between them
/// (section 4.3: `MIN_RTT_THRESH`, `MAX_RTT_THRESH`, `MIN_RTT_DIVISOR`).
const RISE_NS: (u32, u32) = (4_000_000, 16_000_000);
const RISE_DIVISOR: u32 = 8;
/// Samples of a round before it is judged (`N_RTT_SAMPLE`).
const SAMPLES: u8 = 8;
/// How much slower than slow start conservative slow start is (`CSS_GROWTH_DIVISOR`).
const SLOWER: u32 = 4;
/// Rounds of it (`CSS_ROUNDS`).
const ROUNDS: u8 = 5;
/// No round-trip time.
const NONE: u32 = u32::MAX;

/// Rounds and their shortest round-trip times, nanoseconds. Beyond 4 s they are all the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
    /// Shortest of the round before and of this round.
    last: u32,
    current: u32,
    /// What the round was judged by that began conservative slow start.
    baseline: u32,
    /// The round ends when this is acknowledged; `None` before the first.
    round_end: Option<Seq>,
    /// Measurements in this round.
    samples: u8,
    /// Rounds of conservative slow start left, this one included; 0: plain slow start.
    rounds: u8,
}

/// What an ACK in slow start does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The window grows by so many octets.
    Grow(u32),
    /// Slow start is over.
    Leave,
}

impl HyStart {
    pub(super) const fn new() -> Self {
        Self { last: NONE, current: NONE, baseline: NONE, round_end: None, samples: 0, rounds: 0 }
    }

    /// An ACK in slow start (section 4.2). Without a limit per ACK, as bursts are paced.
    pub(super) fn on_ack(&mut self, ack: &AckInfo) -> Verdict {
        let growth = if self.rounds == 0 { ack.octets } else { ack.octets / SLOWER };
        if let Some(rtt) = ack.rtt_ns {
            self.current = self.current.min(u32::try_from(rtt).unwrap_or(NONE));
            self.samples = self.samples.saturating_add(1);
            self.judge();
        }
        // An end beyond what was sent is of long ago: the window was not in use since.
        if self.round_end.is_some_and(|end| ack.snd_una < end && end <= ack.snd_nxt) {
            return Verdict::Grow(growth);
        }
        let first = self.round_end.replace(ack.snd_nxt).is_none();
        if first {
            return Verdict::Grow(growth);
        }
        self.last = self.current;
        self.current = NONE;
        self.samples = 0;
        match self.rounds {
            0 => {}
            1 => return Verdict::Leave,
            _ => self.rounds -= 1,
        }
        Verdict::Grow(growth)
    }

    fn judge(&mut self) {
        if self.samples < SAMPLES {
            return;
        }
        if self.rounds > 0 {
            if self.current < self.baseline {
                // The rise was none that lasted.
                self.rounds = 0;
            }
        } else if self.last != NONE {
            let rise = (self.last / RISE_DIVISOR).clamp(RISE_NS.0, RISE_NS.1);
            if self.current >= self.last.saturating_add(rise) {
                self.baseline = self.current;
                self.rounds = ROUNDS;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{HyStart, Verdict};
    use crate::tcp::congestion::AckInfo;
    use crate::time::{Instant, MILLISECOND};
    use crate::wire::seq::Seq;

    /// A round of `acks` ACKs of 1000 octets with this round-trip time; the verdicts.
    fn round(hystart: &mut HyStart, at: &mut u32, acks: u32, rtt_ms: u64) -> Vec<Verdict> {
        let end = at.wrapping_add(acks * 1000);
        let mut verdicts = Vec::new();
        while *at != end {
            *at = at.wrapping_add(1000);
            verdicts.push(hystart.on_ack(&AckInfo {
                now: Instant::ZERO,
                octets: 1000,
                mss: 1000,
                srtt_ns: 0,
                rtt_ns: Some(rtt_ms * MILLISECOND),
                snd_una: Seq(*at),
                // The next round is as long as this one.
                snd_nxt: Seq(*at) + acks * 1000,
                recovering: false,
            }));
        }
        verdicts
    }

    #[test]
    fn a_rise_slows_down_and_then_ends_slow_start() {
        let (mut hystart, mut at) = (HyStart::new(), 0);
        // The first ACK begins a round, so that rounds end with the first ACK of each call.
        assert_eq!(round(&mut hystart, &mut at, 20, 40), [Verdict::Grow(1000); 20]);
        assert_eq!(round(&mut hystart, &mut at, 20, 40), [Verdict::Grow(1000); 20]);
        // An eighth of 40 ms is 5 ms: 44 is no rise, 45 is one.
        assert_eq!(round(&mut hystart, &mut at, 20, 44), [Verdict::Grow(1000); 20]);
        let rising = round(&mut hystart, &mut at, 20, 50);
        assert_eq!(rising[..9], [Verdict::Grow(1000); 9], "eight samples and the next ACK");
        assert_eq!(rising[9..], [Verdict::Grow(250); 11]);
        // Five rounds, the one in which it began among them.
        for _ in 0..4 {
            assert_eq!(round(&mut hystart, &mut at, 20, 60), [Verdict::Grow(250); 20]);
        }
        assert_eq!(round(&mut hystart, &mut at, 1, 60), [Verdict::Leave]);
    }

    #[test]
    fn a_rise_that_passes_resumes_slow_start() {
        let (mut hystart, mut at) = (HyStart::new(), 0);
        round(&mut hystart, &mut at, 20, 40);
        round(&mut hystart, &mut at, 20, 40);
        round(&mut hystart, &mut at, 20, 50);
        assert!(hystart.rounds > 0);
        round(&mut hystart, &mut at, 20, 49);
        assert_eq!(hystart.rounds, 0);
    }

    #[test]
    fn the_rise_that_counts_has_bounds() {
        for (before, after, rises) in
            [(1, 4, false), (1, 5, true), (400, 415, false), (400, 417, true)]
        {
            let (mut hystart, mut at) = (HyStart::new(), 0);
            round(&mut hystart, &mut at, 20, before);
            round(&mut hystart, &mut at, 20, before);
            round(&mut hystart, &mut at, 20, after);
            assert_eq!(hystart.rounds > 0, rises, "{before} to {after} ms");
        }
    }

    #[test]
    fn rounds_go_on_after_octets_for_which_the_window_was_too_large() {
        let (mut hystart, mut at) = (HyStart::new(), 0);
        round(&mut hystart, &mut at, 20, 40);
        // Half of the sequence space later; ACKs in between did not get here.
        at = at.wrapping_add(0x8000_0000);
        round(&mut hystart, &mut at, 20, 40);
        round(&mut hystart, &mut at, 20, 40);
        round(&mut hystart, &mut at, 20, 50);
        assert!(hystart.rounds > 0);
    }

    #[test]
    fn few_samples_say_nothing() {
        let (mut hystart, mut at) = (HyStart::new(), 0);
        for rtt in [10, 100, 1000] {
            round(&mut hystart, &mut at, 7, rtt);
        }
        assert_eq!(hystart.rounds, 0);
    }
}
