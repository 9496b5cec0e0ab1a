//! Rate limit of the ACKs sent for unacceptable segments (RFC 5961 section 7).
//!
//! The limit is per connection. One counter shared by all connections, as RFC 5961 proposes, is a
//! side channel: an attacker with a connection of its own sees from the replies to its own segments
//! whether those it forged for another connection were answered, and so finds the ports and
//! sequence numbers of that connection (CVE-2016-5696; randomizing the counter only makes it take
//! longer). So the engine's limit is divided among its connections beforehand: each gets the same,
//! [`super::Config::challenge_acks`], and what one uses does not affect another.

mod tcb;

use super::timer::CoarseInstant;
use super::timestamps::Timestamps;
use crate::time::{Instant, MILLISECOND};
use crate::wire::tcp::Segment;

/// Period of the limits.
const PERIOD_NS: u64 = 100 * MILLISECOND;
/// ACKs per period for unacceptable segments that a legitimate peer also sends: zero-window and
/// keepalive probes, retransmitted data and FIN.
const DUP_ACK_BUDGET: u8 = 8;

/// Burst limit of replies to segments that occupy no sequence space, and replies added per second.
/// The peer may answer such a reply in turn: an ACK loop if the ends disagree about sequence
/// numbers.
const EMPTY_MAX: u8 = 8;
const EMPTY_PER_SECOND: u8 = 2;

/// Counts of the ACKs sent in the current period.
#[derive(Debug)]
pub(super) struct AckRateLimit {
    /// Start of the period.
    period_start: CoarseInstant,
    challenges: u8,
    dup_acks: u8,
    /// Replies to segments that occupy no sequence space, less those replenished since; and the
    /// time of the last replenishment, the low 8 bits of [`Timestamps::coarse`].
    empty: u8,
    empty_at: u8,
}

impl AckRateLimit {
    /// Starts the first period.
    pub(super) const fn new(now: Instant) -> Self {
        let empty_at = Self::coarse(now);
        Self {
            period_start: CoarseInstant::of(now),
            challenges: 0,
            dup_acks: 0,
            empty: 0,
            empty_at,
        }
    }

    /// Low 8 bits of the clock. They wrap after about four minutes; a longer pause then replenishes
    /// fewer replies than it could.
    #[expect(clippy::cast_possible_truncation, reason = "the clock wraps")]
    const fn coarse(now: Instant) -> u8 {
        Timestamps::coarse(now) as u8
    }

    fn new_period(&mut self, now: Instant) {
        if self.period_start.age(now) >= PERIOD_NS {
            self.period_start = CoarseInstant::of(now);
            (self.challenges, self.dup_acks) = (0, 0);
        }
    }

    /// True if a reply to `seg` stays within the limit on ACK loops; counts it.
    fn admits_reply(&mut self, now: Instant, seg: &Segment) -> bool {
        if seg.seq_len() > 0 {
            return true;
        }
        let at = Self::coarse(now);
        let due = at.wrapping_sub(self.empty_at).saturating_mul(EMPTY_PER_SECOND);
        self.empty = self.empty.saturating_sub(due);
        self.empty_at = at;
        let admits = self.empty < EMPTY_MAX;
        self.empty += u8::from(admits);
        admits
    }
}
