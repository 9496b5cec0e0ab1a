//! HyStart++ (RFC 9406): leaves the first slow start when the RTT rises, before a queue overflows.

use super::control::AckSample;
use crate::wire::seq::Seq;

/// Bounds of the RTT increase that begins CSS, and the divisor of the RTT that gives it in between
/// (section 4.3: `MIN_RTT_THRESH`, `MAX_RTT_THRESH`, `MIN_RTT_DIVISOR`).
const RTT_THRESH_NS: (u32, u32) = (4_000_000, 16_000_000);
const MIN_RTT_DIVISOR: u32 = 8;
/// Samples of a round before its RTT is evaluated (`N_RTT_SAMPLE`).
const N_RTT_SAMPLE: u8 = 8;
/// Ratio of the growth in slow start to that in conservative slow start (CSS,
/// `CSS_GROWTH_DIVISOR`).
const CSS_GROWTH_DIVISOR: u32 = 4;
/// Rounds of CSS (`CSS_ROUNDS`).
const CSS_ROUNDS: u8 = 5;
/// No RTT sample.
const NO_RTT: u32 = u32::MAX;

/// HyStart++ state: rounds and their minimum RTTs, nanoseconds, limited to four seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
    /// Minimum RTT of the previous round and of this round.
    last_round_min_rtt: u32,
    current_round_min_rtt: u32,
    /// CSS baseline: minimum RTT of the round that began CSS.
    css_baseline_min_rtt: u32,
    /// The round ends when this is acknowledged; `None` before the first.
    round_end: Option<Seq>,
    /// RTT samples in this round.
    rtt_sample_count: u8,
    /// Rounds of CSS left, this one included; 0: plain slow start.
    css_rounds_left: u8,
}

/// Result of an ACK in slow start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlowStartAction {
    /// The window grows by this many bytes.
    Grow(u32),
    /// Slow start ends.
    Exit,
}

impl HyStart {
    pub(super) const fn new() -> Self {
        Self {
            last_round_min_rtt: NO_RTT,
            current_round_min_rtt: NO_RTT,
            css_baseline_min_rtt: NO_RTT,
            round_end: None,
            rtt_sample_count: 0,
            css_rounds_left: 0,
        }
    }

    /// Processes an ACK in slow start (section 4.2). There is no limit per ACK, as bursts are
    /// paced.
    pub(super) fn on_ack(&mut self, ack: &AckSample) -> SlowStartAction {
        let growth =
            if self.css_rounds_left == 0 { ack.bytes } else { ack.bytes / CSS_GROWTH_DIVISOR };
        if let Some(rtt) = ack.rtt_ns {
            self.current_round_min_rtt =
                self.current_round_min_rtt.min(u32::try_from(rtt).unwrap_or(NO_RTT));
            self.rtt_sample_count = self.rtt_sample_count.saturating_add(1);
            self.check_delay_increase();
        }
        // A round end beyond SND.NXT is old: the window was not in use since.
        if self.round_end.is_some_and(|end| ack.snd_una < end && end <= ack.snd_nxt) {
            return SlowStartAction::Grow(growth);
        }
        let first = self.round_end.replace(ack.snd_nxt).is_none();
        if first {
            return SlowStartAction::Grow(growth);
        }
        self.last_round_min_rtt = self.current_round_min_rtt;
        self.current_round_min_rtt = NO_RTT;
        self.rtt_sample_count = 0;
        match self.css_rounds_left {
            0 => {}
            1 => return SlowStartAction::Exit,
            _ => self.css_rounds_left -= 1,
        }
        SlowStartAction::Grow(growth)
    }

    fn check_delay_increase(&mut self) {
        if self.rtt_sample_count < N_RTT_SAMPLE {
            return;
        }
        if self.css_rounds_left > 0 {
            if self.current_round_min_rtt < self.css_baseline_min_rtt {
                // The increase was not persistent.
                self.css_rounds_left = 0;
            }
        } else if self.last_round_min_rtt != NO_RTT {
            let rise =
                (self.last_round_min_rtt / MIN_RTT_DIVISOR).clamp(RTT_THRESH_NS.0, RTT_THRESH_NS.1);
            if self.current_round_min_rtt >= self.last_round_min_rtt.saturating_add(rise) {
                self.css_baseline_min_rtt = self.current_round_min_rtt;
                self.css_rounds_left = CSS_ROUNDS;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AckSample, HyStart, SlowStartAction};
    use crate::time::{Instant, MILLISECOND};
    use crate::wire::seq::Seq;

    /// Processes a round of `acks` ACKs of 1000 bytes with this RTT; returns the actions.
    fn round(hystart: &mut HyStart, at: &mut u32, acks: u32, rtt_ms: u64) -> Vec<SlowStartAction> {
        let end = at.wrapping_add(acks * 1000);
        let mut actions = Vec::new();
        while *at != end {
            *at = at.wrapping_add(1000);
            actions.push(hystart.on_ack(&AckSample {
                now: Instant::ZERO,
                bytes: 1000,
                mss: 1000,
                srtt_ns: 0,
                rtt_ns: Some(rtt_ms * MILLISECOND),
                snd_una: Seq(*at),
                // The next round is as long as this one.
                snd_nxt: Seq(*at) + acks * 1000,
                recovering: false,
            }));
        }
        actions
    }

    #[test]
    fn rtt_rise_enters_css_then_ends_slow_start() {
        let (mut hystart, mut at) = (HyStart::new(), 0);
        // The first ACK begins a round, so that rounds end with the first ACK of each call.
        assert_eq!(round(&mut hystart, &mut at, 20, 40), [SlowStartAction::Grow(1000); 20]);
        assert_eq!(round(&mut hystart, &mut at, 20, 40), [SlowStartAction::Grow(1000); 20]);
        // An eighth of 40 ms is 5 ms: 44 is no increase, 45 is one.
        assert_eq!(round(&mut hystart, &mut at, 20, 44), [SlowStartAction::Grow(1000); 20]);
        let rising = round(&mut hystart, &mut at, 20, 50);
        assert_eq!(rising[..9], [SlowStartAction::Grow(1000); 9], "eight samples and the next ACK");
        assert_eq!(rising[9..], [SlowStartAction::Grow(250); 11]);
        // Five rounds, including the one in which CSS began.
        for _ in 0..4 {
            assert_eq!(round(&mut hystart, &mut at, 20, 60), [SlowStartAction::Grow(250); 20]);
        }
        assert_eq!(round(&mut hystart, &mut at, 1, 60), [SlowStartAction::Exit]);
    }

    #[test]
    fn transient_rtt_rise_resumes_slow_start() {
        let (mut hystart, mut at) = (HyStart::new(), 0);
        round(&mut hystart, &mut at, 20, 40);
        round(&mut hystart, &mut at, 20, 40);
        round(&mut hystart, &mut at, 20, 50);
        assert!(hystart.css_rounds_left > 0);
        round(&mut hystart, &mut at, 20, 49);
        assert_eq!(hystart.css_rounds_left, 0);
    }

    #[test]
    fn rtt_thresh_is_clamped() {
        for (before, after, rises) in
            [(1, 4, false), (1, 5, true), (400, 415, false), (400, 417, true)]
        {
            let (mut hystart, mut at) = (HyStart::new(), 0);
            round(&mut hystart, &mut at, 20, before);
            round(&mut hystart, &mut at, 20, before);
            round(&mut hystart, &mut at, 20, after);
            assert_eq!(hystart.css_rounds_left > 0, rises, "{before} to {after} ms");
        }
    }

    #[test]
    fn rounds_resume_after_an_unused_window() {
        let (mut hystart, mut at) = (HyStart::new(), 0);
        round(&mut hystart, &mut at, 20, 40);
        // Half of the sequence space later; the ACKs in between did not reach HyStart++.
        at = at.wrapping_add(0x8000_0000);
        round(&mut hystart, &mut at, 20, 40);
        round(&mut hystart, &mut at, 20, 40);
        round(&mut hystart, &mut at, 20, 50);
        assert!(hystart.css_rounds_left > 0);
    }

    #[test]
    fn fewer_than_n_rtt_samples_are_ignored() {
        let (mut hystart, mut at) = (HyStart::new(), 0);
        for rtt in [10, 100, 1000] {
            round(&mut hystart, &mut at, 7, rtt);
        }
        assert_eq!(hystart.css_rounds_left, 0);
    }
}
