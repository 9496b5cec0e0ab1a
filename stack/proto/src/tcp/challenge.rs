//! ACKs for segments that were not acceptable, at a limited rate (RFC 5961 section 7).
//!
//! The limit is a connection's own. One count shared by all, which RFC 5961 proposes, is a side
//! channel: whoever has a connection here sees by the answers to his own segments whether those he
//! forged for another connection were answered, and so finds its ports and sequence numbers
//! (CVE-2016-5696; blurring the count only makes it take longer). So the engine's bound is divided
//! among its connections beforehand: each gets the same, [`super::Config::challenge_acks`], and
//! what one uses up changes nothing for another.

use super::{Moment, Tcb};
use crate::device::{Retained, RxFrame};
use crate::time::{Instant, MILLISECOND};

/// For so long a connection's share lasts.
const PERIOD_NS: u64 = 100 * MILLISECOND;
/// Answers in a period to what an honest peer also sends: probes of a closed window or an idle
/// connection, octets and FIN sent again.
const COURTESIES: u8 = 8;

/// Answers in this period.
#[derive(Debug)]
pub(super) struct Challenges {
    /// When the period began.
    began: Moment,
    challenges: u8,
    courtesies: u8,
}

impl Challenges {
    /// A period begins.
    pub(super) const fn new(now: Instant) -> Self {
        Self { began: Moment::of(now), challenges: 0, courtesies: 0 }
    }
}

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Answers a segment that may be forged: a SYN or RST in the window, an ACK of nothing.
    #[cold]
    pub(super) fn challenge(&mut self, now: Instant) {
        self.new_period(now);
        let admits = self.challenges.challenges < self.cfg.challenge_acks;
        self.challenges.challenges += u8::from(admits);
        self.answer(admits);
    }

    /// Answers a segment outside the window that has nothing suspicious.
    #[cold]
    pub(super) fn be_courteous(&mut self, now: Instant) {
        self.new_period(now);
        let admits = self.challenges.courtesies < COURTESIES;
        self.challenges.courtesies += u8::from(admits);
        self.answer(admits);
    }

    fn new_period(&mut self, now: Instant) {
        if self.challenges.began.age(now) >= PERIOD_NS {
            self.challenges = Challenges::new(now);
        }
    }

    fn answer(&mut self, admits: bool) {
        self.stats.challenges += 1;
        self.stats.challenges_limited += u32::from(!admits);
        self.rcv.due |= admits;
    }
}
