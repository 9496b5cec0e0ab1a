//! ACKs for segments that were not acceptable, at a limited rate (RFC 5961 section 7).
//!
//! The limit is a connection's own. One count shared by all, which RFC 5961 proposes, is a side
//! channel: whoever has a connection here sees by the answers to his own segments whether those he
//! forged for another connection were answered, and so finds its ports and sequence numbers
//! (CVE-2016-5696; blurring the count only makes it take longer). So the engine's bound is divided
//! among its connections beforehand: each gets the same, [`super::Config::challenge_acks`], and
//! what one uses up changes nothing for another.

use super::{CoarseInstant, Tcb, Timestamps};
use crate::device::{Retained, RxFrame};
use crate::time::{Instant, MILLISECOND};
use crate::wire::tcp::{Flags, Segment};

/// For so long a connection's share lasts.
const PERIOD_NS: u64 = 100 * MILLISECOND;
/// Answers in a period to what an honest peer also sends: probes of a closed window or an idle
/// connection, bytes and FIN sent again.
const DUP_ACK_BUDGET: u8 = 8;

/// Answers at once to segments that take no sequence number, and how many more each second. Such
/// an answer may itself be one that the peer answers: two ends that disagree about their numbers
/// would go on for ever, as fast as they may.
const EMPTY_MAX: u8 = 8;
const EMPTY_PER_SECOND: u8 = 2;

/// Answers in this period.
#[derive(Debug)]
pub(super) struct AckRateLimit {
    /// When the period began.
    period_start: CoarseInstant,
    challenges: u8,
    dup_acks: u8,
    /// Answers to segments that take no sequence number, less those that have become due again;
    /// and when they last did, by the low part of [`Timestamps::coarse`].
    empty: u8,
    empty_at: u8,
}

impl AckRateLimit {
    /// A period begins.
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

    /// Wraps after about four minutes: then less is due again than might be.
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

    /// True if `seg` may be answered without beginning an endless conversation.
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

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Answers a segment that may be forged: a SYN or RST in the window, an ACK of nothing.
    #[cold]
    pub(super) fn send_challenge_ack(&mut self, now: Instant, seg: &Segment) {
        let limit = self.cfg.challenge_acks;
        let counts = &mut self.ack_rate_limit;
        counts.new_period(now);
        // A RST is not answered by an answer to it.
        let admits = counts.challenges < limit
            && (seg.flags.has(Flags::RST) || counts.admits_reply(now, seg));
        counts.challenges += u8::from(admits);
        self.send_ack_if(admits);
    }

    /// Answers a segment outside the window that has nothing suspicious.
    #[cold]
    pub(super) fn send_limited_ack(&mut self, now: Instant, seg: &Segment) {
        let counts = &mut self.ack_rate_limit;
        counts.new_period(now);
        let admits = counts.dup_acks < DUP_ACK_BUDGET && counts.admits_reply(now, seg);
        counts.dup_acks += u8::from(admits);
        self.send_ack_if(admits);
    }

    fn send_ack_if(&mut self, admits: bool) {
        self.stats.record().challenges += 1;
        self.stats.record().challenges_limited += u32::from(!admits);
        self.rcv.ack_now |= admits;
    }
}
