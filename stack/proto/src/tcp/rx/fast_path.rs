//! Fast path (header prediction): segments of an established connection without loss.
//!
//! Nearly all segments are of three kinds: in-order data, an ACK of new data, or new data sent.
//! Nearly always no close, loss recovery, probe, ECN response or out-of-order data is in progress.
//! [`FastPath`] holds this in one byte. It is recomputed ([`Tcb::update_fast_path`]) after
//! everything but these three, so that their path has no test for a rare condition.
//!
//! The code here works on [`HotState`], which gives access to the first [`crate::tcp::HOT_LEN`]
//! bytes of a [`Tcb`], the records, and the settings that connections share, and to nothing else.
//! If a segment ends a round trip or gives a new RTT sample, a cold function does the rest. A segment
//! that does not match takes the slow path (`input`, `output`), which handles every case. Where
//! both apply they have the same result.

use super::ack::IDLE_NS;
use super::autotune::RoundEnd;
use super::input::TS_IDLE_MAX_NS;
use super::window::RcvVars;
use crate::device::{Retained, RxFrame};
use crate::tcp::config::Config;
use crate::tcp::congestion::CongestionWindow;
use crate::tcp::recovery::scoreboard::{Acked, LazyScoreboard};
use crate::tcp::recovery::state::TlpProbe;
use crate::tcp::rtt::RttCache;
use crate::tcp::state::State;
use crate::tcp::timer::{CoarseInstant, NEVER, Timers};
use crate::tcp::tx::pacing::PacingCredit;
use crate::tcp::tx::send::{Fin, SndVars};
use crate::tcp::{Plan, Tcb, Timestamps, Transmit, TxDemand};
use crate::time::Instant;
use crate::wire::tcp::{Ecn, Fields, Flags, Options, Segment};

/// Eligibility of segments for the fast path, and other state that it tests; one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::tcp) struct FastPath(u8);

impl FastPath {
    /// Received segments are eligible.
    const RX: u8 = 1;
    /// Sent segments are eligible: also, only data and its ACKs are to be sent.
    const TX: u8 = 2;
    /// There may be events, or the state is CLOSED.
    const EVENTS: u8 = 4;
    /// Tail-loss probes are enabled.
    const TLP: u8 = 8;
    /// New data carries ECT(0).
    const ECT: u8 = 16;
    /// A path MTU probe is due: a segment larger than EMSS.
    const PMTU_PROBE: u8 = 32;

    #[inline]
    pub(in crate::tcp) const fn is_rx_eligible(self) -> bool {
        self.0 & Self::RX != 0
    }

    #[inline]
    pub(in crate::tcp) const fn is_tx_eligible(self) -> bool {
        self.0 & Self::TX != 0
    }

    #[inline]
    pub(in crate::tcp) const fn has_events(self) -> bool {
        self.0 & Self::EVENTS != 0
    }

    #[inline]
    const fn is_tlp_enabled(self) -> bool {
        self.0 & Self::TLP != 0
    }

    #[inline]
    const fn is_pmtu_probe_due(self) -> bool {
        self.0 & Self::PMTU_PROBE != 0
    }

    #[inline]
    const fn codepoint(self) -> Ecn {
        if self.0 & Self::ECT == 0 { Ecn::NotEct } else { Ecn::Ect0 }
    }

    /// Notes that there is an event.
    pub(in crate::tcp) const fn set_events(&mut self) {
        self.0 |= Self::EVENTS;
    }

    /// Disables the fast path until the next update: the slow path has work to do first.
    pub(in crate::tcp) const fn disable(&mut self) {
        self.0 &= !(Self::RX | Self::TX);
    }
}

/// The part of a connection that the fast path accesses.
struct HotState<'a, T> {
    scoreboard: &'a mut LazyScoreboard<T>,
    cfg: &'a Config,
    timers: &'a mut Timers,
    last_rx_at: &'a mut Instant,
    rcv: &'a mut RcvVars,
    snd: &'a mut SndVars,
    ts: &'a mut Timestamps,
    rtt_cache: &'a mut RttCache,
    rcv_round_end: RoundEnd,
    progress_at: &'a mut CoarseInstant,
    last_tx_at: &'a mut CoarseInstant,
    pacing_credit: &'a mut PacingCredit,
    emss: u32,
    ts_on: bool,
    fast_path: FastPath,
    window: &'a mut CongestionWindow,
    cwnd_limited: &'a mut bool,
}

/// Work left for a received segment.
#[derive(Clone, Copy, Debug, Default)]
struct FollowUp {
    /// Bytes it acknowledged, and the records that freed.
    bytes: u32,
    acked: Acked,
    /// Its round-trip time is a sample.
    is_rtt_sample: bool,
    /// Congestion control is to be called for it.
    grows_cwnd: bool,
    /// It ends a round of receive window autotuning.
    ends_round: bool,
}

impl<T: Retained> HotState<'_, T> {
    /// Processes a segment with in-order data, an ACK of new data, both, or a window update.
    /// Returns `None`, and changes nothing, if it is any other.
    #[expect(clippy::cast_possible_truncation, reason = "a payload is below 64 KiB")]
    #[inline(always)]
    fn try_receive(&mut self, now: Instant, seg: &Segment) -> Option<FollowUp> {
        let len = seg.payload.len() as u32;
        let bytes = seg.ack - self.snd.una;
        let window = u32::from(seg.window) << self.snd.wscale;
        let flight = self.snd.flight();
        let is_duplicate = len == 0 && bytes == 0 && flight > 0 && window == self.snd.wnd;
        if seg.flags.0 & !Flags::PSH.0 != Flags::ACK.0
            || seg.seq != self.rcv.nxt
            || len > self.rcv.window()
            || bytes > flight
            || is_duplicate
            || !seg.options.sack.is_empty()
            || seg.ecn == Ecn::Ce
            || now.since(*self.last_rx_at) > TS_IDLE_MAX_NS
        {
            return None;
        }
        let mut clock = self.ts.tsval(now);
        if self.ts_on {
            let (val, echo) = seg.options.ts?;
            if val.wrapping_sub(self.ts.recent).cast_signed() < 0 {
                return None;
            }
            if seg.seq <= self.rcv.last_ack_sent {
                self.ts.recent = val;
                self.ts.recent_stamp = Timestamps::coarse(now);
            }
            clock = echo;
        }
        *self.last_rx_at = now;
        self.snd.update_window(seg.seq, bytes > 0, window);
        let mut follow_up = FollowUp::default();
        if bytes > 0 {
            follow_up = self.ack_new_data(now, seg, bytes);
        }
        if len > 0 {
            self.rcv.nxt += len;
            self.rcv.on_in_order(now, self.timers, len, self.cfg.delayed_ack_ns);
            follow_up.ends_round = self.rcv_round_end.is_reached(clock);
        }
        Some(follow_up)
    }

    /// Processes the acknowledgment of `bytes` bytes.
    #[inline(always)]
    fn ack_new_data(&mut self, now: Instant, seg: &Segment, bytes: u32) -> FollowUp {
        self.snd.una = seg.ack;
        let acked = self.scoreboard.ack_in_order(seg.ack);
        let is_sample = acked.oldest.is_none_or(|oldest| {
            let several = acked.records > 1 || self.snd.flight() > 0;
            let newest = acked.newest.filter(|_| several).map(|newest| now.since(newest.0));
            !self.rtt_cache.is_redundant_sample(seg.ack, now.since(oldest), newest)
        });
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
        let grows = *self.cwnd_limited && !self.window.absorb_acked(bytes);
        FollowUp { bytes, acked, is_rtt_sample: is_sample, grows_cwnd: grows, ends_round: false }
    }

    #[inline(always)]
    fn arm_pto(&mut self, now: Instant) {
        self.timers.pto = if self.fast_path.is_tlp_enabled() {
            let alone = self.scoreboard.sent_count() <= 1;
            (now + self.rtt_cache.pto(alone)).min(self.timers.rto)
        } else {
            NEVER
        };
    }

    /// Returns the next frame to send: new data, an ACK, or none; `None` if the slow path decides.
    #[inline(always)]
    fn next_transmit(&mut self, now: Instant, ready: TxDemand) -> Option<Transmit> {
        if let TxDemand::Record(len) = ready {
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
            if flight == 0 || flight + self.emss <= self.window.cwnd() {
                return Some(Transmit::NewData { capacity: usable.min(self.emss) as usize });
            }
            *self.cwnd_limited = true;
        }
        Some(if self.rcv.ack_now { Transmit::Control } else { Transmit::Idle })
    }

    /// Returns the header fields of new data.
    #[inline(always)]
    fn data_fields(&mut self, now: Instant, push: bool) -> Fields {
        self.rcv.on_data_sent(self.timers);
        let ts = if self.ts_on { Some((self.ts.tsval(now), self.ts.recent)) } else { None };
        Fields {
            seq: self.snd.nxt,
            ack: self.rcv.nxt,
            flags: if push { Flags::ACK | Flags::PSH } else { Flags::ACK },
            window: self.rcv.select_window(),
            ecn: self.fast_path.codepoint(),
            options: Options::timestamps(ts),
        }
    }

    /// Records that `len` bytes of new data were sent.
    #[inline(always)]
    fn on_sent(&mut self, now: Instant, retained: T, len: u32, offset: u32) {
        self.scoreboard.push(now, self.snd.nxt, len, offset, retained, true);
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

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    #[inline(always)]
    fn hot(&mut self) -> HotState<'_, T> {
        HotState {
            scoreboard: &mut self.scoreboard,
            cfg: &self.cfg,
            timers: &mut self.timers,
            last_rx_at: &mut self.last_rx_at,
            rcv: &mut self.rcv,
            snd: &mut self.snd,
            ts: &mut self.ts,
            rtt_cache: &mut self.rtt_cache,
            rcv_round_end: self.rcv_round_end,
            progress_at: &mut self.progress_at,
            last_tx_at: &mut self.last_tx_at,
            pacing_credit: &mut self.pacing_credit,
            emss: self.emss.into(),
            ts_on: self.ts_on,
            fast_path: self.fast_path,
            window: &mut self.cc.window,
            cwnd_limited: &mut self.cc.cwnd_limited,
        }
    }

    /// Processes a received segment on the fast path; false if it has to take the slow path.
    #[inline(always)]
    pub(in crate::tcp) fn try_fast_path(&mut self, now: Instant, seg: &Segment) -> bool {
        debug_assert_eq!(self.fast_path, self.fast_path_eligibility());
        if !self.fast_path.is_rx_eligible() {
            return false;
        }
        let Some(follow_up) = self.hot().try_receive(now, seg) else { return false };
        if follow_up.is_rtt_sample || follow_up.grows_cwnd || follow_up.ends_round {
            self.finish_fast_path(now, seg, &follow_up);
        }
        #[cfg(test)]
        tests::Counts::received();
        true
    }

    /// Does the work that few segments need; see [`FollowUp`].
    #[cold]
    fn finish_fast_path(&mut self, now: Instant, seg: &Segment, follow_up: &FollowUp) {
        self.count_bytes();
        let sample = self.measured_rtt(now, seg, &follow_up.acked);
        if follow_up.is_rtt_sample {
            self.update_rtt(now, sample, follow_up.bytes, &follow_up.acked);
            if let Some(newest) = follow_up.acked.newest {
                self.rack.advance(now, newest);
            }
            self.progress_at = CoarseInstant::of(now);
        }
        if follow_up.grows_cwnd {
            let info = self.ack_sample(now, follow_up.bytes, sample);
            self.cc.on_ack(&info);
        }
        if follow_up.is_rtt_sample {
            self.rearm_timers(now);
            self.pmtu.check_due(now);
            if self.ecn.enabled {
                // DCTCP is given ACKs without ECE once per round trip.
                let una = self.snd.una;
                self.cc.observe(una - follow_up.bytes, una, self.snd.nxt, false);
            }
        }
        if follow_up.ends_round {
            self.end_rcv_round(now);
        }
        self.update_fast_path();
    }

    /// Returns the next frame to send if the fast path decides; [`Transmit::Control`] is an ACK.
    #[inline(always)]
    pub(in crate::tcp) fn plan_fast(&mut self, now: Instant, ready: TxDemand) -> Option<Transmit> {
        debug_assert_eq!(self.fast_path, self.fast_path_eligibility());
        if self.fast_path.is_tx_eligible() { self.hot().next_transmit(now, ready) } else { None }
    }

    /// True if a record of `len` bytes may be sent on the fast path.
    #[inline(always)]
    pub(in crate::tcp) fn fast_path_admits(&self, len: u32) -> bool {
        self.fast_path.is_tx_eligible() && len <= u32::from(self.emss) && len <= self.snd.usable()
    }

    /// Returns the header fields of new data.
    #[inline(always)]
    pub(in crate::tcp) fn fast_path_fields(&mut self, now: Instant, push: bool) -> Fields {
        self.hot().data_fields(now, push)
    }

    /// Records that a record was sent on the fast path.
    #[inline(always)]
    pub(in crate::tcp) fn on_sent_fast(
        &mut self,
        now: Instant,
        retained: T,
        len: u32,
        offset: u32,
    ) {
        self.hot().on_sent(now, retained, len, offset);
        #[cfg(test)]
        tests::Counts::sent();
    }

    /// Recomputes the state that the fast path depends on. To be called at the end of everything
    /// that is not the fast path.
    pub(in crate::tcp) fn update_fast_path(&mut self) {
        self.fast_path = self.fast_path_eligibility();
        self.timers.rare = self.rare.earliest(self.paced);
        self.rtt.fill_cache(&mut self.rtt_cache, &self.cfg);
    }

    /// Computes which segments are eligible for the fast path.
    fn fast_path_eligibility(&self) -> FastPath {
        let is_established = self.state == State::Established
            && matches!(self.plan, Plan::Nothing)
            && self.local.fin_seq.is_none()
            && self.snd.fin == Fin::None
            && !self.pending.any()
            && self.ecn.is_idle();
        let is_loss_free = self.recovery.is_open()
            && self.recovery.dupacks == 0
            && self.scoreboard.is_loss_free()
            && self.tlp.probe == TlpProbe::None
            && self.rare.reorder == NEVER
            && !self.pmtu.is_probing();
        let is_answering = self.retries == 0
            && self.unanswered == 0
            && !self.rearmed
            && !self.rtt.is_backed_off()
            && !self.rcv.pure_ack
            && self.rcv.dup_acks_owed <= 1;
        let takes_bytes =
            self.peer.fin_seq.is_none() && !self.receive_shut && self.assembler.is_idle();
        let sends_bytes =
            self.rare.persist == NEVER && !self.sws_override && self.scoreboard.unsent().is_none();
        let is_eligible = is_established && is_loss_free && is_answering;
        let bit = |condition: bool, bit: u8| if condition { bit } else { 0 };
        FastPath(
            bit(is_eligible && takes_bytes, FastPath::RX)
                | bit(is_eligible && sends_bytes, FastPath::TX)
                | bit(self.events != 0 || self.state == State::Closed, FastPath::EVENTS)
                | bit(self.cfg.tail_loss_probe && self.sack, FastPath::TLP)
                | bit(self.ecn.codepoint == Ecn::Ect0, FastPath::ECT)
                | bit(self.pmtu.is_probe_due(), FastPath::PMTU_PROBE),
        )
    }
}

#[cfg(test)]
pub(in crate::tcp) mod tests;
