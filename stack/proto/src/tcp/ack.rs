//! What an acknowledgment means to the send side: RFC 9293 section 3.10.7.4 (fifth check), RFC
//! 6298. An ACK of new data while nothing is amiss is dealt with here, all others in `repair`.

use super::congestion::AckInfo;
use super::recovery::{Phase, Probe};
use super::scoreboard::{Freed, News};
use super::send::Fin;
use super::state::{Event, State};
use super::{Moment, NEVER, Tcb};
use crate::device::{Retained, RxFrame};
use crate::time::{Instant, MICROSECOND, SECOND};
use crate::wire::tcp::{Flags, Segment};

/// How long the records' memory is kept with nothing in flight.
pub(super) const IDLE_NS: u64 = SECOND;

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Takes the acknowledgment, window and SACK blocks of an acceptable segment. False: the
    /// segment is to be dropped whole.
    #[inline]
    pub(super) fn process_ack(&mut self, now: Instant, seg: &Segment) -> bool {
        let ack = seg.ack;
        // RFC 5961 section 5.2.
        if ack > self.snd.nxt || ack < self.snd.una - self.snd.max_wnd {
            self.stats.record().bad_acks += 1;
            self.challenge(now, seg);
            // req: MPA-028
            return false;
        }
        if self.ecn.on {
            self.take_ecn(seg);
        }
        if ack < self.snd.una {
            return true;
        }
        let window = u32::from(seg.window) << self.snd.wscale;
        let moved = ack > self.snd.una;
        // RFC 5681 section 2, "duplicate acknowledgment".
        let duplicate = !moved
            && seg.payload.is_empty()
            && window == self.snd.wnd
            && self.snd.flight() > 0
            && !seg.flags.has(Flags::FIN);
        self.snd.update_window(seg.seq, moved, window);
        let calm = self.recovery.is_calm()
            && self.board.is_calm()
            && !self.tail.is_unanswered()
            && seg.options.sack.is_empty();
        if !calm || duplicate {
            self.repair(now, seg, duplicate);
        } else if moved {
            let mut news = News::default();
            let (octets, sample) = self.advance(now, seg, &mut news);
            if let Some(newest) = news.newest {
                self.rack.delivered(now, newest);
            }
            if self.cc.limited {
                self.cc.on_ack(&self.ack_info(now, octets, sample));
            }
            self.rearm(now);
            self.fin_acked(now, seg);
        }
        true
    }

    /// `seg.ack` acknowledges something new: returns how many octets, and the round-trip time
    /// measured.
    #[inline]
    pub(super) fn advance(
        &mut self,
        now: Instant,
        seg: &Segment,
        news: &mut News,
    ) -> (u32, Option<u64>) {
        self.count_octets();
        let octets = seg.ack - self.snd.una;
        let probe = self.tail.out(self.snd.una);
        self.snd.una = seg.ack;
        let guard = if self.board.is_calm() { None } else { Some(self.guard(now, seg)) };
        self.board.ack(seg.ack, guard.as_ref(), news);
        // Our own clock is finer; the peer's echo tells originals from retransmissions. After a
        // timeout or a probe both may mislead: where only the ACK was lost, the wait would be taken
        // for the path's round trip, and each wait would lengthen the next. What the answer to a
        // record sent again says of the peer's delay is counted, not measured
        // (`probe_was_early`); else the wait counts as an ACK delay that a peer may well have.
        let freed = Freed { records: news.records, oldest: news.oldest, newest: news.newest };
        let mut sample = self.measured_rtt(now, seg, &freed);
        if self.retries > 0 || probe == Probe::Fresh {
            let believable = self.cfg.rto_initial_ns.max(self.rtt.srtt());
            sample = sample.map(|sample| sample.min(believable));
        } else if probe == Probe::Again {
            sample = None;
        }
        self.take_sample(now, sample, octets, &freed);
        self.rtt.reset_backoff();
        self.retries = 0;
        self.rearmed = false;
        self.progress_at = Moment::of(now);
        self.recovery.duplicates = 0;
        if self.pmtu.is_probing() {
            self.judge_probe(now);
        }
        (octets, sample)
    }

    /// The round-trip time that an ACK measured which freed this, nanoseconds.
    pub(super) fn measured_rtt(&self, now: Instant, seg: &Segment, freed: &Freed) -> Option<u64> {
        freed.oldest.map(|at| now.since(at)).or_else(|| self.echoed_rtt(now, seg))
    }

    /// An ACK of `octets` that freed this measured `sample`.
    pub(super) fn take_sample(
        &mut self,
        now: Instant,
        sample: Option<u64>,
        octets: u32,
        freed: &Freed,
    ) {
        let una = self.snd.una;
        self.round_flight.on_ack(una - octets, una, self.snd.nxt);
        if let Some(sample) = sample.filter(|_| freed.records > 0) {
            let several = freed.oldest.is_some() && (freed.records > 1 || self.snd.flight() > 0);
            let newest = freed.newest.filter(|_| several).map(|newest| now.since(newest.0));
            self.rtt.sample(now, sample, newest, &self.cfg);
            self.timing.measured(self.snd.nxt);
        }
    }

    /// After progress: the timers start over, or stop (RFC 6298 sections 5.2 and 5.3).
    #[inline]
    pub(super) fn rearm(&mut self, now: Instant) {
        if self.snd.flight() > 0 {
            self.timers.rto = now + self.rtt.rto(&self.cfg);
            self.arm_tail(now);
            return;
        }
        self.timers.rto = NEVER;
        self.rare.reorder = NEVER;
        self.timers.tail = if self.board.holds_memory() { now + IDLE_NS } else { NEVER };
        self.due.tail = false;
    }

    /// Notes that our FIN was acknowledged, if it was.
    #[inline]
    pub(super) fn fin_acked(&mut self, now: Instant, seg: &Segment) {
        if self.own.fin_seq.is_some_and(|fin| seg.ack > fin) && self.snd.fin != Fin::Acked {
            self.snd.fin = Fin::Acked;
            self.step(Event::FinAcked);
            match self.state {
                State::Closed => self.gone(),
                State::TimeWait => self.linger(now),
                State::FinWait2 => self.await_fin(now),
                _ => {}
            }
        }
    }

    /// What congestion control learns from an ACK of `octets` that measured `sample`.
    #[inline]
    pub(super) fn ack_info(&self, now: Instant, octets: u32, sample: Option<u64>) -> AckInfo {
        AckInfo {
            now,
            octets,
            mss: u32::from(self.emss),
            srtt_ns: self.rtt.srtt(),
            rtt_ns: sample,
            snd_una: self.snd.una,
            snd_nxt: self.snd.nxt,
            recovering: self.recovery.phase != Phase::Open,
        }
    }

    /// Round-trip time by the echoed timestamp (RFC 7323 section 4), nanoseconds. What was
    /// outstanding at the last progress left a round trip before it: an older echo is no
    /// measurement, but a mistake of the peer's, or of a box on the path.
    fn echoed_rtt(&self, now: Instant, seg: &Segment) -> Option<u64> {
        let (_, echo) = seg.options.ts.filter(|_| self.ts_on)?;
        let micros = self.ts.value(now).wrapping_sub(echo).cast_signed();
        let sample = u64::try_from(micros).ok()? * MICROSECOND;
        let longest = self.progress_at.age(now) + self.rtt.rto(&self.cfg);
        Some(sample).filter(|&sample| sample <= longest)
    }

    /// Octets thought to be in the network.
    #[inline]
    pub(super) fn pipe(&self) -> u32 {
        self.board.pipe(self.snd.flight()).saturating_sub(self.recovery.left)
    }
}
