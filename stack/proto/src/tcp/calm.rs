//! The short way: segments of a connection to which nothing out of the ordinary happens.
//!
//! Nearly all segments are of three kinds: octets in order, an ACK of something new, new octets
//! sent; and nearly always nothing is amiss. [`Calm`] says in one octet that this is so. It is
//! worked out anew ([`Tcb::refresh`]) whenever anything but these three has happened, so that no
//! test for a rare condition is left on their way.
//!
//! What follows here is written on [`Hot`], through which nothing can be reached but the first
//! [`super::HOT_LEN`] octets of a [`Tcb`], the records, and the settings, which connections share.
//! Where one of the three ends a round trip, or says something new of it, a cold function takes
//! over for that. Whatever a segment has that is not foreseen here sends it the long way (`input`,
//! `output`), which knows everything and comes to the same where both apply.

use super::ack::IDLE_NS;
use super::config::Config;
use super::congestion::Window;
use super::growth::Mark;
use super::input::SILENCE_NS;
use super::pacing::Credit;
use super::receive::Receive;
use super::recovery::Probe;
use super::rtt::Timing;
use super::scoreboard::{Freed, Scoreboard};
use super::send::{Fin, Send};
use super::state::State;
use super::timer::{Moment, NEVER, Timers};
use super::{Plan, Ready, Tcb, Timestamps, Transmit};
use crate::device::{Retained, RxFrame};
use crate::time::Instant;
use crate::wire::tcp::{Ecn, Fields, Flags, Options, Segment};

/// Which segments go the short way, and what else is to be known on it; a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Calm(u8);

impl Calm {
    /// Segments received: nothing is amiss.
    const RECEIVES: u8 = 1;
    /// Segments sent: neither is anything else to be sent than octets and their ACKs.
    const SENDS: u8 = 2;
    /// There may be notices, or the connection is gone.
    const NEWS: u8 = 4;
    /// Tail-loss probes are to be made.
    const PROBES: u8 = 8;
    /// New octets carry ECT(0).
    const ECT: u8 = 16;
    /// A segment larger than EMSS is to probe the path's MTU.
    const LARGER: u8 = 32;

    #[inline]
    pub(super) const fn receives(self) -> bool {
        self.0 & Self::RECEIVES != 0
    }

    #[inline]
    pub(super) const fn sends(self) -> bool {
        self.0 & Self::SENDS != 0
    }

    #[inline]
    pub(super) const fn has_news(self) -> bool {
        self.0 & Self::NEWS != 0
    }

    #[inline]
    const fn probes(self) -> bool {
        self.0 & Self::PROBES != 0
    }

    #[inline]
    const fn tries_larger(self) -> bool {
        self.0 & Self::LARGER != 0
    }

    #[inline]
    const fn codepoint(self) -> Ecn {
        if self.0 & Self::ECT == 0 { Ecn::NotCapable } else { Ecn::Capable0 }
    }

    /// There is a notice.
    pub(super) const fn tell(&mut self) {
        self.0 |= Self::NEWS;
    }

    /// Something else is to be seen to first.
    pub(super) const fn end(&mut self) {
        self.0 &= !(Self::RECEIVES | Self::SENDS);
    }
}

/// What the short way touches of a connection.
struct Hot<'a, T> {
    board: &'a mut Scoreboard<T>,
    cfg: &'a Config,
    timers: &'a mut Timers,
    heard_at: &'a mut Instant,
    rcv: &'a mut Receive,
    snd: &'a mut Send,
    ts: &'a mut Timestamps,
    timing: &'a mut Timing,
    round_mark: Mark,
    progress_at: &'a mut Moment,
    sent_at: &'a mut Moment,
    credit: &'a mut Credit,
    emss: u32,
    ts_on: bool,
    calm: Calm,
    window: &'a mut Window,
    limited: &'a mut bool,
}

/// What remains to be done for a received segment.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    /// Octets it acknowledged, and what that freed.
    octets: u32,
    freed: Freed,
    /// Its round-trip time is to be taken as a sample.
    is_sample: bool,
    /// The window's algorithm is to hear of it.
    grows: bool,
    /// It ends a round of the receive window.
    ends_round: bool,
}

impl<T: Retained> Hot<'_, T> {
    /// Takes a segment with the next octets in order, or an ACK of something new, or both, or with
    /// another window. `None`: it is something else, and nothing was done.
    #[expect(clippy::cast_possible_truncation, reason = "a payload is below 64 KiB")]
    #[inline(always)]
    fn take(&mut self, now: Instant, seg: &Segment) -> Option<Taken> {
        let len = seg.payload.len() as u32;
        let octets = seg.ack - self.snd.una;
        let window = u32::from(seg.window) << self.snd.wscale;
        let flight = self.snd.flight();
        let is_duplicate = len == 0 && octets == 0 && flight > 0 && window == self.snd.wnd;
        if seg.flags.0 & !Flags::PSH.0 != Flags::ACK.0
            || seg.seq != self.rcv.nxt
            || len > self.rcv.window()
            || octets > flight
            || is_duplicate
            || !seg.options.sack.is_empty()
            || seg.ecn == Ecn::Congested
            || now.since(*self.heard_at) > SILENCE_NS
        {
            return None;
        }
        let mut clock = self.ts.value(now);
        if self.ts_on {
            let (val, echo) = seg.options.ts?;
            if val.wrapping_sub(self.ts.recent).cast_signed() < 0 {
                return None;
            }
            if seg.seq <= self.rcv.last_ack {
                self.ts.recent = val;
                self.ts.recent_at = Timestamps::coarse(now);
            }
            clock = echo;
        }
        *self.heard_at = now;
        self.snd.update_window(seg.seq, octets > 0, window);
        let mut taken = Taken::default();
        if octets > 0 {
            taken = self.advance(now, seg, octets);
        }
        if len > 0 {
            self.rcv.nxt += len;
            self.rcv.in_order(now, self.timers, len, self.cfg.delayed_ack_ns);
            taken.ends_round = self.round_mark.is_over(clock);
        }
        Some(taken)
    }

    /// `octets` more are acknowledged.
    #[inline(always)]
    fn advance(&mut self, now: Instant, seg: &Segment, octets: u32) -> Taken {
        self.snd.una = seg.ack;
        let freed = self.board.free(seg.ack);
        let is_sample = freed.oldest.is_none_or(|oldest| {
            let several = freed.records > 1 || self.snd.flight() > 0;
            let newest = freed.newest.filter(|_| several).map(|newest| now.since(newest.0));
            !self.timing.knows(seg.ack, now.since(oldest), newest)
        });
        if !is_sample {
            *self.progress_at = Moment::of(now);
            if self.snd.flight() > 0 {
                self.timers.rto = now + self.timing.rto();
                self.arm_tail(now);
            } else {
                self.timers.rto = NEVER;
                let idle = if self.board.holds_memory() { now + IDLE_NS } else { NEVER };
                self.timers.tail = idle;
            }
        }
        let grows = *self.limited && !self.window.absorbs(octets);
        Taken { octets, freed, is_sample, grows, ends_round: false }
    }

    #[inline(always)]
    fn arm_tail(&mut self, now: Instant) {
        self.timers.tail = if self.calm.probes() {
            let alone = self.board.sent_len() <= 1;
            (now + self.timing.probe_timeout(alone)).min(self.timers.rto)
        } else {
            NEVER
        };
    }

    /// What is to be sent next: new octets, an ACK, or nothing. `None`: that takes more thought.
    #[inline(always)]
    fn plan(&mut self, now: Instant, ready: Ready) -> Option<Transmit> {
        if let Ready::Record(len) = ready {
            let (usable, flight) = (self.snd.usable(), self.snd.flight());
            let was_idle = flight == 0 && self.sent_at.age(now) > self.timing.rto();
            if was_idle
                || usable < len.min(self.emss)
                || *self.credit == Credit::NONE
                || (len > self.emss && self.calm.tries_larger())
                || self.board.len() >= self.cfg.max_records.into()
            {
                return None;
            }
            if flight == 0 {
                *self.credit = Credit::FLIGHT;
            }
            if flight == 0 || flight + self.emss <= self.window.size() {
                return Some(Transmit::Fresh { room: usable.min(self.emss) as usize });
            }
            *self.limited = true;
        }
        Some(if self.rcv.due { Transmit::Control } else { Transmit::Idle })
    }

    /// The headers of new octets.
    #[inline(always)]
    fn fields(&mut self, now: Instant, push: bool) -> Fields {
        self.rcv.carried(self.timers);
        let ts = if self.ts_on { Some((self.ts.value(now), self.ts.recent)) } else { None };
        Fields {
            seq: self.snd.nxt,
            ack: self.rcv.nxt,
            flags: if push { Flags::ACK | Flags::PSH } else { Flags::ACK },
            window: self.rcv.offer(),
            ecn: self.calm.codepoint(),
            options: Options::timestamps(ts),
        }
    }

    /// A record of `len` new octets left.
    #[inline(always)]
    fn sent(&mut self, now: Instant, retained: T, len: u32, offset: u32) {
        self.board.push(now, self.snd.nxt, len, offset, retained, true);
        if self.timers.rto == NEVER {
            self.timers.rto = now + self.timing.rto();
            *self.progress_at = Moment::of(now);
        }
        self.credit.spend(len);
        self.snd.nxt += len;
        *self.sent_at = Moment::of(now);
        self.arm_tail(now);
        // In slow start a window half used still counts: it will be full in a round trip.
        let (flight, window) = (self.snd.flight(), self.window.size());
        *self.limited =
            flight + self.emss > window || (self.window.in_slow_start() && flight > window / 2);
    }
}

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    #[inline(always)]
    fn hot(&mut self) -> Hot<'_, T> {
        Hot {
            board: &mut self.board,
            cfg: &self.cfg,
            timers: &mut self.timers,
            heard_at: &mut self.heard_at,
            rcv: &mut self.rcv,
            snd: &mut self.snd,
            ts: &mut self.ts,
            timing: &mut self.timing,
            round_mark: self.round_mark,
            progress_at: &mut self.progress_at,
            sent_at: &mut self.sent_at,
            credit: &mut self.credit,
            emss: self.emss.into(),
            ts_on: self.ts_on,
            calm: self.calm,
            window: &mut self.cc.window,
            limited: &mut self.cc.limited,
        }
    }

    /// Takes a segment the short way, if that is open to it.
    #[inline(always)]
    pub(super) fn take_calm(&mut self, now: Instant, seg: &Segment) -> bool {
        debug_assert_eq!(self.calm, self.judge());
        if !self.calm.receives() {
            return false;
        }
        let Some(taken) = self.hot().take(now, seg) else { return false };
        if taken.is_sample || taken.grows || taken.ends_round {
            self.conclude(now, seg, &taken);
        }
        #[cfg(test)]
        tests::Counts::received();
        true
    }

    /// What is not to be done for every segment.
    #[cold]
    fn conclude(&mut self, now: Instant, seg: &Segment, taken: &Taken) {
        self.count_octets();
        let sample = self.measured_rtt(now, seg, &taken.freed);
        if taken.is_sample {
            self.take_sample(now, sample, taken.octets, &taken.freed);
            if let Some(newest) = taken.freed.newest {
                self.rack.delivered(now, newest);
            }
            self.progress_at = Moment::of(now);
        }
        if taken.grows {
            let info = self.ack_info(now, taken.octets, sample);
            self.cc.on_ack(&info);
        }
        if taken.is_sample {
            self.rearm(now);
            self.pmtu.look(now);
            if self.ecn.on {
                // What was acknowledged since the last look came without ECE.
                let una = self.snd.una;
                self.cc.observe(una - taken.octets, una, self.snd.nxt, false);
            }
        }
        if taken.ends_round {
            self.end_round(now);
        }
        self.refresh();
    }

    /// What is to be sent next, if that is found the short way. [`Transmit::Control`] is an ACK.
    #[inline(always)]
    pub(super) fn plan_calm(&mut self, now: Instant, ready: Ready) -> Option<Transmit> {
        debug_assert_eq!(self.calm, self.judge());
        if self.calm.sends() { self.hot().plan(now, ready) } else { None }
    }

    /// True if a record of `len` octets may leave the short way.
    #[inline(always)]
    pub(super) fn calm_admits(&self, len: u32) -> bool {
        self.calm.sends() && len <= u32::from(self.emss) && len <= self.snd.usable()
    }

    /// The headers of new octets.
    #[inline(always)]
    pub(super) fn calm_fields(&mut self, now: Instant, push: bool) -> Fields {
        self.hot().fields(now, push)
    }

    /// A record left the short way.
    #[inline(always)]
    pub(super) fn sent_calm(&mut self, now: Instant, retained: T, len: u32, offset: u32) {
        self.hot().sent(now, retained, len, offset);
        #[cfg(test)]
        tests::Counts::sent();
    }

    /// To be called at the end of whatever is not the short way: works out what that has to know.
    pub(super) fn refresh(&mut self) {
        self.calm = self.judge();
        self.timers.rare = self.rare.earliest(self.paced);
        self.rtt.settle(&mut self.timing, &self.cfg);
    }

    /// Which segments may go the short way.
    fn judge(&self) -> Calm {
        let is_whole = self.state == State::Established
            && matches!(self.plan, Plan::Nothing)
            && self.own.fin_seq.is_none()
            && self.snd.fin == Fin::None
            && !self.due.any()
            && self.ecn.is_still();
        let is_still = self.recovery.is_calm()
            && self.recovery.duplicates == 0
            && self.board.is_still()
            && self.tail.probe == Probe::None
            && self.rare.reorder == NEVER
            && !self.pmtu.is_probing();
        let is_answered = self.retries == 0
            && self.unanswered == 0
            && !self.rearmed
            && !self.rtt.is_backed_off()
            && !self.rcv.pure
            && self.rcv.duplicates <= 1;
        let takes_octets =
            self.peer.fin.is_none() && !self.receive_shut && self.reassembly.is_idle();
        let sends_octets =
            self.rare.persist == NEVER && !self.override_silly && self.board.unsent().is_none();
        let is_calm = is_whole && is_still && is_answered;
        let bit = |condition: bool, bit: u8| if condition { bit } else { 0 };
        Calm(
            bit(is_calm && takes_octets, Calm::RECEIVES)
                | bit(is_calm && sends_octets, Calm::SENDS)
                | bit(self.notices != 0 || self.state == State::Closed, Calm::NEWS)
                | bit(self.cfg.tail_loss_probe && self.sack, Calm::PROBES)
                | bit(self.ecn.codepoint == Ecn::Capable0, Calm::ECT)
                | bit(self.pmtu.is_due(), Calm::LARGER),
        )
    }
}

#[cfg(test)]
pub(super) mod tests;
