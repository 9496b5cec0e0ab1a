//! Header prediction: the state that the fast path accesses, and its operations on it.

use super::{FastPath, TrainPayload};
use crate::device::Retained;
use crate::tcp::congestion::CongestionWindow;
use crate::tcp::lazy::Lazy;
use crate::tcp::recovery::scoreboard::{Acked, Scoreboard};
use crate::tcp::rtt::RttCache;
use crate::tcp::rx::autotune::RoundEnd;
use crate::tcp::rx::window::RcvVars;
use crate::tcp::settings::Config;
use crate::tcp::timer::{IDLE_NS, Timers};
use crate::tcp::timestamps::{CoarseInstant, TS_IDLE_MAX_NS, Timestamps};
use crate::tcp::tx::pacing::PacingCredit;
use crate::tcp::tx::send::SndVars;
use crate::tcp::tx::transmit_plan::{ControlPlan, NewDataPlan, Transmit, TxDemand};
use crate::time::{Instant, NEVER};
use crate::wire::seq::Seq;
use crate::wire::tcp::{Ecn, Flags, PlainHeader};

/// The part of a connection that the fast path accesses.
pub(super) struct HotState<'a, T> {
    pub(super) scoreboard: &'a mut Lazy<Scoreboard<T>>,
    pub(super) cfg: &'a Config,
    pub(super) timers: &'a mut Timers,
    pub(super) last_rx_at: &'a mut Instant,
    pub(super) rcv: &'a mut RcvVars,
    pub(super) snd: &'a mut SndVars,
    pub(super) ts: &'a mut Timestamps,
    pub(super) rtt_cache: &'a mut RttCache,
    pub(super) rcv_round_end: RoundEnd,
    pub(super) progress_at: &'a mut CoarseInstant,
    pub(super) last_tx_at: &'a mut CoarseInstant,
    pub(super) pacing_credit: &'a mut PacingCredit,
    pub(super) emss: u32,
    pub(super) ts_on: bool,
    pub(super) fast_path: FastPath,
    pub(super) window: &'a mut CongestionWindow,
    pub(super) cwnd_limited: &'a mut bool,
}

/// Work left for a received segment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FollowUp {
    /// Bytes it acknowledged, and the records that freed.
    pub(super) bytes: u32,
    pub(super) acked: Acked,
    /// Its round-trip time is a sample.
    pub(super) is_rtt_sample: bool,
    /// Congestion control is to be called for it.
    pub(super) grows_cwnd: bool,
    /// It ends a round of receive window autotuning.
    pub(super) ends_round: bool,
}

impl<T: Retained> HotState<'_, T> {
    /// Header prediction (RFC 7323 section 5.6): accepts a segment with in-order data, an ACK of
    /// new data, both, or a window update, and any train that begins with it. `len` is the length
    /// of its payload. Changes nothing. Returns the maximum length of the train.
    #[inline(always)]
    pub(super) fn predict(&self, now: Instant, seg: &PlainHeader, len: u32) -> Option<u32> {
        let acked = seg.ack - self.snd.una;
        let window = u32::from(seg.window) << self.snd.wscale;
        let flight = self.snd.flight();
        let train_len_max = self.rcv.window();
        let is_duplicate = len == 0 && acked == 0 && flight > 0 && window == self.snd.wnd;
        // RFC 7323 section 5.6: the next segment in order, which acknowledges nothing unsent.
        // RFC 5681 section 2: no duplicate ACK. RFC 7323 section 5.5: TS.Recent is not outdated.
        if seg.flags.0 & !Flags::PSH.0 != Flags::ACK.0
            || seg.seq != self.rcv.nxt
            || len > train_len_max
            || acked > flight
            || is_duplicate
            || seg.ecn == Ecn::Ce
            || now.since(*self.last_rx_at) > TS_IDLE_MAX_NS
        {
            return None;
        }
        if self.ts_on {
            let (val, _) = seg.ts?;
            // RFC 7323 section 5.3, R1: PAWS.
            if val.wrapping_sub(self.ts.recent).cast_signed() < 0 {
                return None;
            }
        }
        Some(train_len_max)
    }

    /// Processes a segment that was predicted. `seg` is its header, or that of the first segment of
    /// a train; `payload` is that of both. Computes some values again: passing them costs more.
    #[inline(always)]
    pub(super) fn receive(
        &mut self,
        now: Instant,
        seg: &PlainHeader,
        payload: &TrainPayload,
    ) -> FollowUp {
        let acked = seg.ack - self.snd.una;
        let window = u32::from(seg.window) << self.snd.wscale;
        // RFC 7323 section 4.3: TS.Recent, from a segment that reaches Last.ACK.sent.
        if self.ts_on
            && let Some((val, _)) = seg.ts
            && seg.seq <= self.rcv.last_ack_sent
        {
            self.ts.recent = val;
            self.ts.recent_stamp = Timestamps::coarse(now);
        }
        *self.last_rx_at = now;
        // RFC 9293 3.10.7.4, fifth: SND.WND, then SND.UNA.
        self.snd.update_window(payload.last_seq(seg.seq), acked > 0, window);
        let mut follow_up = FollowUp::default();
        if acked > 0 {
            follow_up = self.ack_new_data(now, seg.ack, acked);
        }
        // RFC 9293 3.10.7.4, seventh: RCV.NXT; RFC 5681 section 4.2: the ACK is delayed or sent.
        if payload.len > 0 {
            self.rcv.nxt += payload.len;
            let (len, longest) = (payload.len, payload.segment_len_max);
            self.rcv.on_in_order(now, self.timers, len, longest, self.cfg.delayed_ack_ns);
            // Clock of the round that it belongs to: the echo of our timestamp, or our clock.
            let echo = seg.ts.filter(|_| self.ts_on).map(|(_, echo)| echo);
            let clock = echo.unwrap_or_else(|| self.ts.tsval(now));
            follow_up.ends_round = self.rcv_round_end.is_reached(clock);
        }
        follow_up
    }

    /// Processes the acknowledgment of `bytes` bytes, up to `ack`.
    #[inline(always)]
    fn ack_new_data(&mut self, now: Instant, ack: Seq, bytes: u32) -> FollowUp {
        self.snd.una = ack;
        let acked = self.scoreboard.update(|records| records.ack_in_order(ack));
        // RFC 6298 section 3: most samples change no estimate, and cost nothing more.
        let is_sample = acked.oldest.is_none_or(|oldest| {
            let several = acked.records > 1 || self.snd.flight() > 0;
            let newest = acked.newest.filter(|_| several).map(|newest| now.since(newest.0));
            !self.rtt_cache.is_redundant_sample(ack, now.since(oldest), newest)
        });
        // RFC 6298 sections 5.2 and 5.3: the timer restarts, or stops once all is acknowledged.
        if !is_sample {
            *self.progress_at = CoarseInstant::of(now);
            if self.snd.flight() > 0 {
                self.timers.rto = now + self.rtt_cache.rto();
                self.arm_pto(now);
            } else {
                self.timers.rto = NEVER;
                let idle = if self.scoreboard.holds_memory() { now + IDLE_NS } else { NEVER };
                self.timers.pto = idle;
            }
        }
        // RFC 5681 section 3.1: cwnd grows by the bytes acknowledged, while it limits the sender.
        let grows = *self.cwnd_limited && !self.window.absorb_acked(bytes);
        FollowUp { bytes, acked, is_rtt_sample: is_sample, grows_cwnd: grows, ends_round: false }
    }

    /// Starts the probe timeout (PTO). As `Tcb::arm_pto`, whose other conditions hold on the fast
    /// path.
    #[inline(always)]
    fn arm_pto(&mut self, now: Instant) {
        self.timers.pto = if self.fast_path.is_tlp_enabled() {
            let is_single = self.scoreboard.sent_count() <= 1;
            (now + self.rtt_cache.pto(is_single)).min(self.timers.rto)
        } else {
            NEVER
        };
    }

    /// Returns the next frame to send: new data, an ACK, or none; `None` if the slow path decides.
    #[inline(always)]
    pub(super) fn next_transmit(&mut self, now: Instant, ready: TxDemand) -> Option<Transmit> {
        if let TxDemand::Record(len) = ready {
            // RFC 9293 section 3.8.6.2.1: the window takes the whole record or segment. RFC 5681
            // section 4.1: no restart after idle time is due.
            let (usable, flight) = (self.snd.usable(), self.snd.flight());
            let was_idle = flight == 0 && self.last_tx_at.age(now) > self.rtt_cache.rto();
            if was_idle
                || usable < len.min(self.emss)
                || *self.pacing_credit == PacingCredit::NONE
                || (len > self.emss && self.fast_path.is_pmtu_probe_due())
                || self.scoreboard.len() >= self.cfg.max_records.into()
            {
                return None;
            }
            if flight == 0 {
                *self.pacing_credit = PacingCredit::IDLE_BURST;
            }
            // RFC 5681 section 3.1: a segment within cwnd.
            if flight == 0 || flight + self.emss <= self.window.cwnd() {
                return Some(Transmit::NewData(NewDataPlan::fast(usable.min(self.emss))));
            }
            *self.cwnd_limited = true;
        }
        Some(if self.rcv.ack_now {
            Transmit::Control(ControlPlan::plain_ack())
        } else {
            Transmit::Idle
        })
    }

    /// Returns the header of new data. Changes nothing: [`HotState::on_data_header_sent`] follows
    /// once it is sent.
    #[inline(always)]
    pub(super) fn data_header(&self, now: Instant, push: bool) -> PlainHeader {
        let flags = if push { Flags::ACK | Flags::PSH } else { Flags::ACK };
        self.header(now, flags, self.fast_path.codepoint())
    }

    /// Notes that new data was sent, with this window field and all that is to be acknowledged.
    #[inline(always)]
    pub(super) fn on_data_header_sent(&mut self, window: u16) {
        self.rcv.on_data_sent(self.timers);
        self.rcv.on_window_sent(window);
    }

    /// Returns the header of an ACK without SACK blocks and ECN flags.
    #[inline(always)]
    pub(super) fn ack_header(&mut self, now: Instant, sack: bool) -> PlainHeader {
        self.rcv.on_pure_ack_sent(self.timers, sack, false);
        let header = self.header(now, Flags::ACK, Ecn::NotEct);
        self.rcv.on_window_sent(header.window);
        header
    }

    #[inline(always)]
    fn header(&self, now: Instant, flags: Flags, ecn: Ecn) -> PlainHeader {
        PlainHeader {
            seq: self.snd.nxt,
            ack: self.rcv.nxt,
            flags,
            window: self.rcv.next_window(),
            ecn,
            ts: if self.ts_on { Some((self.ts.tsval(now), self.ts.recent)) } else { None },
        }
    }

    /// Records that `len` bytes of new data were sent.
    #[inline(always)]
    pub(super) fn on_sent(&mut self, now: Instant, retained: T, len: u32, offset: u32) {
        self.scoreboard.push(now, self.snd.nxt, len, offset, retained, true);
        self.on_new_data(now, len);
    }

    /// Records that `len` bytes of new data were sent, whose records are on the scoreboard.
    #[inline(always)]
    pub(super) fn on_new_data(&mut self, now: Instant, len: u32) {
        if self.timers.rto == NEVER {
            self.timers.rto = now + self.rtt_cache.rto();
            *self.progress_at = CoarseInstant::of(now);
        }
        self.pacing_credit.spend(len);
        self.snd.nxt += len;
        *self.last_tx_at = CoarseInstant::of(now);
        self.arm_pto(now);
        // In slow start half a window in flight is cwnd-limited: it is full a round trip later.
        let (flight, window) = (self.snd.flight(), self.window.cwnd());
        *self.cwnd_limited =
            flight + self.emss > window || (self.window.in_slow_start() && flight > window / 2);
    }
}
