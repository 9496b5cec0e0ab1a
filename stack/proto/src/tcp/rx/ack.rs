//! ACK processing: RFC 9293 section 3.10.7.4 (fifth check), RFC 6298. An ACK of new data without
//! loss and with nothing SACKed is handled here, all others in `recovery`.

use crate::device::{Retained, RxFrame};
use crate::tcp::Tcb;
use crate::tcp::congestion::AckSample;
use crate::tcp::connection_state::{State, StateEvent};
use crate::tcp::recovery::ca_state::CaState;
use crate::tcp::recovery::scoreboard::{AckInfo, Acked};
use crate::tcp::recovery::tlp::TlpProbe;
use crate::tcp::timestamps::CoarseInstant;
use crate::tcp::tx::send::Fin;
use crate::time::{Instant, MICROSECOND, NEVER, SECOND};
use crate::wire::tcp::{Flags, Segment};

/// Time for which the scoreboard's memory is kept with nothing in flight.
pub(in crate::tcp) const IDLE_NS: u64 = SECOND;

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Processes the acknowledgment, window and SACK blocks of an acceptable segment. Returns false
    /// if the segment is to be dropped whole.
    #[inline]
    pub(in crate::tcp) fn process_ack(&mut self, now: Instant, seg: &Segment) -> bool {
        let ack = seg.ack;
        // RFC 9293 3.10.7.4, fifth, as tightened by RFC 5961 section 5.2: an acknowledgment of data
        // not sent, or older than the largest window, is answered and the segment dropped.
        if ack > self.snd.nxt || ack < self.snd.una - self.snd.max_wnd {
            self.stats.record().bad_acks += 1;
            self.send_challenge_ack(now, seg);
            // req: MPA-028
            return false;
        }
        // RFC 3168 section 6.1.2: ECE reduces the window.
        if self.ecn.enabled {
            self.process_ecn(seg);
        }
        // RFC 9293 3.10.7.4, fifth: an old acknowledgment changes nothing.
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
        // RFC 9293 3.10.7.4, fifth: SND.WND, SND.WL1 and SND.WL2.
        self.snd.update_window(seg.seq, moved, window);
        let is_fast = self.recovery.is_open()
            && self.scoreboard.is_clean()
            && !self.tlp.is_outstanding()
            && seg.options.sack.is_empty();
        if !is_fast || duplicate {
            self.process_ack_slow(now, seg, duplicate);
        } else if moved {
            // Nothing is lost or SACKed: the RTT sample, RACK's latest delivery (RFC 8985
            // section 6.2, step 2), and the window, if it was in use.
            let mut info = AckInfo::default();
            let (bytes, sample) = self.ack_new_data(now, seg, &mut info);
            if let Some(newest) = info.newest {
                self.rack.advance(now, newest);
            }
            if self.cc.cwnd_limited {
                self.cc.on_ack(&self.ack_sample(now, bytes, sample));
            }
            self.rearm_timers(now);
            self.check_fin_acked(now, seg);
        }
        true
    }

    /// Processes `seg.ack`, which acknowledges new data. Returns the bytes acknowledged and the
    /// round-trip time measured.
    #[inline]
    pub(in crate::tcp) fn ack_new_data(
        &mut self,
        now: Instant,
        seg: &Segment,
        info: &mut AckInfo,
    ) -> (u32, Option<u64>) {
        self.count_bytes();
        let bytes = seg.ack - self.snd.una;
        let probe = self.tlp.outstanding(self.snd.una);
        self.snd.una = seg.ack;
        let guard =
            if self.scoreboard.is_clean() { None } else { Some(self.sample_guard(now, seg)) };
        self.scoreboard.update(|records| records.ack(seg.ack, guard.as_ref(), info));
        // Karn's algorithm: records sent once are timed by the local clock, which is finer than
        // TSecr. For others TSecr distinguishes an ACK of the original from one of a
        // retransmission. After an RTO or a tail loss probe both may mislead: if only the ACK was
        // lost, the sample includes the wait for the timeout or probe, and each wait would lengthen
        // the next. So the sample is limited to what delayed ACKs of the peer may explain. An ACK
        // of a record retransmitted as a probe is no sample: what it shows of the peer's ACK delay
        // is counted (`Rtt::on_spurious_probe`).
        let acked = Acked { records: info.records, oldest: info.oldest, newest: info.newest };
        let mut sample = self.measured_rtt(now, seg.options.ts, &acked);
        if self.retries > 0 || probe == TlpProbe::NewData {
            let rtt_max = self.cfg.rto_initial_ns.max(self.rtt.srtt());
            sample = sample.map(|sample| sample.min(rtt_max));
        } else if probe == TlpProbe::Retransmit {
            sample = None;
        }
        self.update_rtt(now, sample, bytes, &acked);
        self.rtt.reset_backoff();
        self.retries = 0;
        self.rearmed = false;
        self.progress_at = CoarseInstant::of(now);
        self.recovery.dupacks = 0;
        if self.pmtu.is_probing() {
            self.check_pmtu_probe(now);
        }
        (bytes, sample)
    }

    /// Returns the round-trip time measured by an ACK with timestamps `ts` that freed `acked`,
    /// nanoseconds.
    #[inline]
    pub(in crate::tcp) fn measured_rtt(
        &self,
        now: Instant,
        ts: Option<(u32, u32)>,
        acked: &Acked,
    ) -> Option<u64> {
        acked.oldest.map(|at| now.since(at)).or_else(|| self.echoed_rtt(now, ts))
    }

    /// Updates the estimators after an ACK of `bytes` that freed `acked` and measured `sample`.
    pub(in crate::tcp) fn update_rtt(
        &mut self,
        now: Instant,
        sample: Option<u64>,
        bytes: u32,
        acked: &Acked,
    ) {
        let una = self.snd.una;
        self.round_flight.on_ack(una - bytes, una, self.snd.nxt);
        if let Some(sample) = sample.filter(|_| acked.records > 0) {
            let several = acked.oldest.is_some() && (acked.records > 1 || self.snd.flight() > 0);
            let newest = acked.newest.filter(|_| several).map(|newest| now.since(newest.0));
            self.rtt.sample(now, sample, newest, &self.cfg);
            self.rtt_cache.on_sample(self.snd.nxt);
        }
    }

    /// Restarts the timers after SND.UNA advanced, or stops them (RFC 6298 sections 5.2 and 5.3).
    #[inline]
    pub(in crate::tcp) fn rearm_timers(&mut self, now: Instant) {
        if self.snd.flight() > 0 {
            self.timers.rto = now + self.rtt.rto(&self.cfg);
            self.arm_pto(now);
            return;
        }
        self.timers.rto = NEVER;
        self.rare.reorder = NEVER;
        self.timers.pto = if self.scoreboard.holds_memory() { now + IDLE_NS } else { NEVER };
        self.pending.tlp = false;
    }

    /// Processes the acknowledgment of our FIN, if `seg` acknowledges it.
    #[inline]
    pub(in crate::tcp) fn check_fin_acked(&mut self, now: Instant, seg: &Segment) {
        if self.local.fin_seq.is_some_and(|fin| seg.ack > fin) && self.snd.fin != Fin::Acked {
            self.snd.fin = Fin::Acked;
            self.transition(StateEvent::FinAcked);
            match self.state {
                State::Closed => self.on_closed(),
                State::TimeWait => self.enter_time_wait(now),
                State::FinWait2 => self.on_fin_wait_2(now),
                _ => {}
            }
        }
    }

    /// Input of congestion control for an ACK of `bytes` that measured `sample`.
    #[inline]
    pub(in crate::tcp) fn ack_sample(
        &self,
        now: Instant,
        bytes: u32,
        sample: Option<u64>,
    ) -> AckSample {
        AckSample {
            now,
            bytes,
            mss: u32::from(self.emss),
            srtt_ns: self.rtt.srtt(),
            rtt_ns: sample,
            snd_una: self.snd.una,
            snd_nxt: self.snd.nxt,
            recovering: self.recovery.ca_state != CaState::Open,
        }
    }

    /// Returns the round-trip time by TSecr (RFC 7323 section 4), nanoseconds. What was outstanding
    /// when SND.UNA last advanced had been sent at most a round trip (here: the RTO) before. A
    /// longer result is an error of the peer or of a middlebox, and no sample.
    #[cold]
    fn echoed_rtt(&self, now: Instant, ts: Option<(u32, u32)>) -> Option<u64> {
        let (_, echo) = ts.filter(|_| self.ts_on)?;
        let micros = self.ts.tsval(now).wrapping_sub(echo).cast_signed();
        let sample = u64::try_from(micros).ok()? * MICROSECOND;
        let longest = self.progress_at.age(now) + self.rtt.rto(&self.cfg);
        Some(sample).filter(|&sample| sample <= longest)
    }

    /// Bytes considered to be in the network (RFC 6675 `pipe`).
    #[inline]
    pub(in crate::tcp) fn pipe(&self) -> u32 {
        self.scoreboard.pipe(self.snd.flight()).saturating_sub(self.recovery.dupack_credit)
    }
}
