//! Rate limit of the replies to segments that may be forged or repeated (RFC 5961 section 7).
//!
//! The limit is per connection. One counter shared by all connections, as RFC 5961 proposes, is a
//! side channel: an attacker with a connection of its own sees from the replies to its own segments
//! whether those it forged for another connection were answered, and so finds the ports and
//! sequence numbers of that connection (CVE-2016-5696; randomizing the counter only makes it take
//! longer). So the engine's limit is divided among its connections beforehand: each gets the same,
//! [`super::Config::challenge_acks`], and what one uses does not affect another.
//!
//! An attacker who knows only the ports can use up that share. So segments whose number it cannot
//! know have a share of their own: zero-window and keepalive probes, at RCV.NXT - 1, and repeated
//! SYNs, at IRS. The peer sees by the answers to its probes that the connection lives.

use super::Tcb;
use super::timestamps::{CoarseInstant, Timestamps};
use crate::device::{Retained, RxFrame};
use crate::time::{Instant, MILLISECOND};
use crate::wire::tcp::{Flags, Segment};

/// Period of the limits.
const PERIOD_NS: u64 = 100 * MILLISECOND;

/// Burst limit, and replies added per second, of two kinds: replies to segments that occupy no
/// sequence space, and replies to repeated segments. The peer may answer a reply of the first kind:
/// ends that disagree about sequence numbers would send ACKs for ever.
const BURST_MAX: u8 = 8;
const BURST_PER_SECOND: u8 = 2;

/// Counts of the replies sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckRateLimit {
    /// Start of the period.
    period_start: CoarseInstant,
    /// Replies in the period to segments that may be forged.
    challenges: u8,
    /// Challenges to segments that occupy no sequence space, and replies to probes and repeated
    /// SYNs. Both counts decrease with time.
    empty: u8,
    repeats: u8,
    /// Time of the last replenishment: the low 8 bits of [`Timestamps::coarse`].
    replenished_at: u8,
}

impl AckRateLimit {
    /// Starts the first period.
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            period_start: CoarseInstant::of(now),
            challenges: 0,
            empty: 0,
            repeats: 0,
            replenished_at: Self::coarse(now),
        }
    }

    /// Low 8 bits of the clock. They wrap after about four minutes; a longer pause then replenishes
    /// fewer replies than it could.
    #[expect(clippy::cast_possible_truncation, reason = "the clock wraps")]
    const fn coarse(now: Instant) -> u8 {
        Timestamps::coarse(now) as u8
    }

    /// Starts a new period, and replenishes, as is due.
    fn update(&mut self, now: Instant) {
        if self.period_start.age(now) >= PERIOD_NS {
            self.period_start = CoarseInstant::of(now);
            self.challenges = 0;
        }
        let at = Self::coarse(now);
        let due = at.wrapping_sub(self.replenished_at).saturating_mul(BURST_PER_SECOND);
        self.empty = self.empty.saturating_sub(due);
        self.repeats = self.repeats.saturating_sub(due);
        self.replenished_at = at;
    }

    /// True if a reply to a segment that may be forged stays within the limit of `per_period`;
    /// counts it. `may_loop`: the peer may answer the reply.
    fn admits_challenge(&mut self, now: Instant, per_period: u8, may_loop: bool) -> bool {
        self.update(now);
        let admits = self.challenges < per_period && (!may_loop || self.empty < BURST_MAX);
        self.challenges += u8::from(admits);
        self.empty += u8::from(admits && may_loop);
        admits
    }

    /// True if a reply to a probe or a repeated SYN stays within the limit; counts it.
    fn admits_repeat(&mut self, now: Instant) -> bool {
        self.update(now);
        let admits = self.repeats < BURST_MAX;
        self.repeats += u8::from(admits);
        admits
    }
}

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Sends a challenge ACK for a segment that may be forged: a SYN or RST in the window, an
    /// unacceptable acknowledgment, anything outside the window.
    #[cold]
    #[doc(alias = "challenge ACK")]
    pub(in crate::tcp) fn send_challenge_ack(&mut self, now: Instant, seg: &Segment) {
        // No ACK loop: a peer that answers the challenge ACK to its RST does so with a RST at
        // RCV.NXT.
        let may_loop = seg.seq_len() == 0 && !seg.flags.has(Flags::RST);
        let limit = self.cfg.challenge_acks;
        let admits = self.ack_rate_limit.admits_challenge(now, limit, may_loop);
        self.rcv.ack_now |= self.count_challenge(admits);
    }

    /// Sends the RST for an acknowledgment of something that this connection has not sent, before
    /// it is established. The limit is that of challenge ACKs.
    #[cold]
    pub(in crate::tcp) fn send_stray_reset(&mut self, now: Instant, seg: &Segment) {
        let limit = self.cfg.challenge_acks;
        let admits = self.ack_rate_limit.admits_challenge(now, limit, false);
        if self.count_challenge(admits) {
            self.pending.stray_reset = Some(seg.ack);
        }
    }

    /// Sends an ACK for a zero-window or keepalive probe.
    #[cold]
    pub(in crate::tcp) fn send_probe_ack(&mut self, now: Instant) {
        let admits = self.ack_rate_limit.admits_repeat(now);
        self.rcv.ack_now |= self.count_challenge(admits);
    }

    /// Sends the SYN-ACK again, for a repeated SYN.
    #[cold]
    pub(in crate::tcp) fn repeat_syn_ack(&mut self, now: Instant) {
        let admits = self.ack_rate_limit.admits_repeat(now);
        self.pending.syn |= self.count_challenge(admits);
    }

    /// Returns the limit for the connection that replaces this one, half-open, at another SYN, if
    /// the SYN-ACK to that stays within it: a new limit for each SYN would be none.
    pub(crate) fn limit_of_replacement(&mut self, now: Instant) -> Option<AckRateLimit> {
        let admits = self.ack_rate_limit.admits_repeat(now);
        self.count_challenge(admits).then_some(self.ack_rate_limit)
    }

    /// Takes over the limit of the connection that this one replaces.
    pub(crate) const fn inherit_limit(&mut self, limit: AckRateLimit) {
        self.ack_rate_limit = limit;
    }

    fn count_challenge(&mut self, admits: bool) -> bool {
        self.stats.record().challenges += 1;
        self.stats.record().challenges_limited += u32::from(!admits);
        admits
    }
}
