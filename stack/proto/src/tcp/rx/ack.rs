//! ACK processing: RFC 9293 section 3.10.7.4 (fifth check), RFC 6298. An ACK of new data without
//! loss and with nothing SACKed is processed by `process_ack`, all others by `process_ack_slow`,
//! whose steps are those of `recovery`.

use crate::device::{Retained, RxFrame};
use crate::tcp::Tcb;
use crate::tcp::congestion::AckSample;
use crate::tcp::connection_state::{State, StateEvent};
use crate::tcp::recovery::ca_state::CaState;
use crate::tcp::recovery::scoreboard::{AckInfo, Acked};
use crate::tcp::recovery::tlp::TlpProbe;
use crate::tcp::timestamps::CoarseInstant;
use crate::tcp::tx::send::Fin;
use crate::time::{Instant, MICROSECOND, NEVER};
use crate::wire::seq::Seq;
use crate::wire::tcp::{Flags, SackBlock, Segment};

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

    /// Processes an ACK that may do more than advance SND.UNA. `duplicate`: by RFC 5681.
    #[inline(never)]
    pub(in crate::tcp) fn process_ack_slow(
        &mut self,
        now: Instant,
        seg: &Segment,
        duplicate: bool,
    ) {
        // `outstanding`: bytes neither acknowledged nor SACKed before this ACK; `RecoverFS` of an
        // episode that it begins.
        let flight = self.snd.flight();
        let outstanding = flight - self.scoreboard.sacked();
        let una = self.snd.una;
        // RFC 2883 section 4: a first block that repeats known data is a D-SACK, not a SACK.
        let mut blocks = if self.sack { seg.options.sack.as_slice() } else { &[] };
        let mut dsack = None;
        if is_dsack(blocks, seg.ack) {
            dsack = Some(blocks[0]);
            blocks = &blocks[1..];
        }
        let mut info = AckInfo::default();
        let (mut bytes, mut sample) = (0, None);
        if duplicate {
            self.stats.record().duplicate_acks_in += 1;
        }
        let duplicate = duplicate && !self.recovery.explains_dupack(una);
        // RFC 9293 3.10.7.4, fifth: SND.UNA advances, and records it covers are freed.
        if seg.ack > una {
            (bytes, sample) = self.ack_new_data(now, seg, &mut info);
        } else if duplicate {
            self.recovery.dupacks += 1;
        }
        // RFC 6675 section 4, Update(): records reported by SACK are marked.
        if !blocks.is_empty() {
            // RFC 8985 section 6.2, step 1: a new guard, as the sample above may lower min_RTT.
            let guard = self.sample_guard(now, seg);
            self.scoreboard.update(|records| {
                records.apply_sack(blocks, self.snd.una, self.snd.nxt, &guard, &mut info)
            });
        }
        // RFC 8985 section 6.2, step 2: the latest transmission that was delivered.
        if let Some(newest) = info.newest {
            self.rack.advance(now, newest);
        }
        // RFC 8985 section 6.2, step 3: delivered after one sent later.
        if info.reordered {
            self.rack.on_reordering();
        }
        // RFC 8985 section 7.4: the ACK may end a tail loss probe.
        let pure = duplicate && seg.options.sack.is_empty();
        self.process_tlp_ack(seg, una, dsack, pure);
        // RFC 5682 section 3.1, step 3: the second ACK after a timeout decides if it was spurious.
        self.process_frto(&info, duplicate);
        // RFC 9937 section 6.2 sets the window in fast recovery; else it grows as without loss.
        if bytes > 0 {
            let grows = match self.recovery.ca_state {
                CaState::Open => self.cc.cwnd_limited,
                CaState::Recovery => false,
                CaState::Loss => true,
            };
            let undone = self.advance_recovery(seg, &info, flight);
            if grows && !undone {
                self.cc.on_ack(&self.ack_sample(now, bytes, sample));
            }
        }
        // RFC 8985 section 6.2, step 4, and RFC 3708 section 3: a duplicate widens the reordering
        // window, and may show that the episode was spurious.
        if let Some(block) = dsack {
            self.process_dsack(block);
        }
        // RFC 8985 section 6.2, step 5; without SACK, duplicate ACKs are counted (RFC 6582).
        let mut delivered = info.delivered;
        let lost = if self.sack {
            self.detect_losses(now)
        } else {
            delivered = self.count_dupack_delivery(duplicate, bytes);
            0
        };
        // RFC 5681 section 3.2: a loss, or the third duplicate ACK, begins fast recovery.
        if lost > 0 && self.recovery.ca_state == CaState::Open {
            self.enter_recovery(outstanding, flight);
        } else if duplicate && self.is_dup_thresh_reached() {
            self.scoreboard.update(|records| records.mark_first_lost());
            let left = self.recovery.dupack_credit;
            self.enter_recovery(outstanding, flight);
            self.recovery.dupack_credit = left;
        }
        // RFC 9937 section 6.2: an ACK that moves SND.UNA and reveals no loss is a safe one.
        if self.recovery.ca_state == CaState::Recovery && (delivered > 0 || lost > 0) {
            let pipe = self.pipe();
            let safe = bytes > 0 && lost == 0;
            let ssthresh = self.cc.ssthresh();
            if let Some(prr) = self.recovery.prr_mut() {
                self.cc.set_cwnd(prr.window(delivered, pipe, ssthresh, u32::from(self.emss), safe));
            }
        }
        // RFC 6298 sections 5.2 and 5.3: new data acknowledged restarts the timer, or stops it.
        if bytes > 0 {
            self.rearm_timers(now);
            self.check_fin_acked(now, seg);
        } else if !self.scoreboard.is_clean() {
            // RACK detects the losses now, not the tail loss probe.
            self.timers.pto = NEVER;
            self.pending.tlp = false;
        }
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
    #[doc(alias = "Karn")]
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

    /// Processes the acknowledgment of our FIN, if `seg` acknowledges it.
    #[inline]
    pub(in crate::tcp) fn check_fin_acked(&mut self, now: Instant, seg: &Segment) {
        if self.local.fin_seq.is_some_and(|fin| seg.ack > fin) && self.snd.fin != Fin::Acked {
            self.snd.fin = Fin::Acked;
            self.apply(StateEvent::FinAcked);
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
}

/// True if the first block is a D-SACK (RFC 2883 section 4): it lies below the cumulative
/// acknowledgment, or inside the second block.
fn is_dsack(blocks: &[SackBlock], ack: Seq) -> bool {
    match blocks {
        [first, ..] if first.1 <= ack => true,
        [first, second, ..] => second.0 <= first.0 && first.1 <= second.1,
        _ => false,
    }
}
