//! How wide the receive window has to be: it grows by need, with the octets that arrive in one
//! round trip (dynamic right-sizing), and never shrinks.
//!
//! A round begins at some moment and ends with the first segment that echoes a timestamp we sent
//! after it: exactly one round trip, however long the path's queues are by then, and measured by
//! the receiver alone. Without timestamps a round lasts two of the round trips the send side
//! measured.

use crate::wire::seq::Seq;

/// How far an echo may lie before the mark of its round, in microseconds. What lies further off
/// comes from before the clock wrapped.
const ECHO_AGE_MAX: u32 = 1 << 30;

/// The round under way.
#[derive(Debug)]
pub(super) struct Round {
    /// The clock of the timestamps at which it is over.
    mark: u32,
    /// Where the octets end that arrived before it.
    from: Seq,
    /// Most octets of a round so far.
    most: u32,
    /// What the window should span; as much as it does, or more.
    wanted: u32,
}

impl Round {
    /// Longest wait for the end of a round by our own clock, microseconds.
    pub(super) const WAIT_MAX: u32 = 1_000_000;

    /// None under way.
    pub(super) const fn new() -> Self {
        Self { mark: 0, from: Seq(0), most: 0, wanted: 0 }
    }

    /// A round begins; it is over when the clock, as the peer echoes it, is at `mark`.
    pub(super) const fn begin(&mut self, mark: u32, from: Seq) {
        self.mark = mark;
        self.from = from;
    }

    #[inline]
    pub(super) const fn is_over(&self, clock: u32) -> bool {
        self.mark.wrapping_sub(clock).wrapping_sub(1) >= ECHO_AGE_MAX
    }

    /// The round is over, octets having arrived up to `end`: the window the sender needs, at most
    /// `max`.
    ///
    /// Twice of what arrived lets a sender keep its pace while a loss is repaired. Where more
    /// arrived than ever before it is in slow start: a round from now it sends twice as much, and
    /// by the time it hears of this window four times.
    pub(super) fn need(&mut self, end: Seq, max: u32) -> u32 {
        let octets = (end - self.from).min(max);
        let growth = octets.saturating_sub(self.most);
        self.most = self.most.max(octets);
        self.wanted = octets.saturating_mul(2).saturating_add(growth.saturating_mul(4)).min(max);
        self.wanted
    }

    pub(super) const fn wanted(&self) -> u32 {
        self.wanted
    }
}

#[cfg(test)]
mod tests {
    use super::Round;
    use crate::wire::seq::Seq;

    #[test]
    fn a_round_ends_with_an_echo_of_its_mark_also_across_the_wrap() {
        let mut round = Round::new();
        for mark in [5u32, 0, u32::MAX, 0x8000_0000] {
            round.begin(mark, Seq(0));
            for before in [1, 2, 1_000_000] {
                assert!(!round.is_over(mark.wrapping_sub(before)));
            }
            // Idle for longer than half a turn of the clock, too.
            for after in [0, 1, 1000, 0x7fff_ffff, 0x9000_0000] {
                assert!(round.is_over(mark.wrapping_add(after)), "{mark} {after}");
            }
        }
    }

    #[test]
    fn the_need_is_double_what_arrives_and_more_in_slow_start() {
        let mut round = Round::new();
        let mut end = Seq(0xffff_ff00);
        let mut need = |octets: u32| {
            round.begin(0, end);
            end += octets;
            round.need(end, 6 << 20)
        };
        assert_eq!(need(10_000), 60_000);
        assert_eq!(need(20_000), 80_000);
        assert_eq!(need(20_000), 40_000);
        assert_eq!(need(0), 0);
        assert_eq!(need(20_000), 40_000);
        assert_eq!(need(40_000_000), 6 << 20);
    }
}
