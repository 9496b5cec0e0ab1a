//! Header prediction (fast path): segments of an established connection without loss, received and
//! sent. Every received segment enters TCP here.
//!
//! Nearly all segments are of three kinds: in-order data, an ACK of new data, or new data sent.
//! Nearly always no close, loss recovery, probe, ECN response or out-of-order data is in progress.
//! [`FastPath`] holds this in one byte. It is recomputed (`Tcb::update_fast_path`) after everything
//! but these three, so that their path has no test for a rare condition.
//!
//! The code works on `HotState`, which gives access to the first [`HOT_LEN`](crate::tcp::HOT_LEN)
//! bytes of a `Tcb`, the records, and the settings that connections share, and to nothing else. If
//! a segment ends a round trip or gives a new RTT sample, a cold function does the rest. A segment
//! that does not match takes the slow path (`rx::input`, `tx::output`), which handles every case.
//! If both apply they have the same result.

mod hot_state;

use hot_state::{FollowUp, HotState};

use super::Tcb;
use super::connection_state::State;
use super::recovery::tlp::TlpProbe;
use super::rx::deliver::Delivered;
use super::timestamps::CoarseInstant;
use super::tx::send::Fin;
use super::tx::transmit_plan::{NewDataPlan, Transmit, TxDemand};
use crate::device::{Retained, RxFrame};
use crate::time::{Instant, NEVER};
use crate::wire::seq::Seq;
use crate::wire::tcp::{Ecn, ParseError, PlainHeader, PlainSegment, Segment};

/// Eligibility of segments for the fast path, and other state that it tests; one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FastPath(u8);

impl FastPath {
    /// Received segments are eligible.
    const RX: u8 = 1;
    /// Sent segments are eligible: also, only data and its ACKs are to be sent.
    const TX: u8 = 2;
    /// There may be events, or the state is CLOSED.
    const EVENTS: u8 = 4;
    /// Tail loss probes are enabled.
    const TLP: u8 = 8;
    /// New data carries ECT(0).
    const ECT: u8 = 16;
    /// A path MTU probe is due: a segment larger than EMSS.
    const PMTU_PROBE: u8 = 32;

    #[inline]
    pub(super) const fn is_rx_eligible(self) -> bool {
        self.0 & Self::RX != 0
    }

    #[inline]
    pub(super) const fn is_tx_eligible(self) -> bool {
        self.0 & Self::TX != 0
    }

    #[inline]
    pub(super) const fn has_events(self) -> bool {
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

    /// Notes whether a path MTU probe is due.
    #[inline]
    const fn set_pmtu_probe_due(&mut self, is_due: bool) {
        self.0 = (self.0 & !Self::PMTU_PROBE) | if is_due { Self::PMTU_PROBE } else { 0 };
    }

    /// Notes that there is an event.
    pub(super) const fn set_events(&mut self) {
        self.0 |= Self::EVENTS;
    }
}

/// Payload of a train of received segments: in order, with equal headers but for sequence number,
/// length and PSH. TCP processes one like a single long segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainPayload {
    /// Length in bytes.
    pub len: u32,
    /// Length in bytes of the longest segment.
    pub segment_len_max: u16,
    /// Length in bytes of the last segment.
    pub last_len: u32,
    /// Number of segments.
    pub segments: u32,
}

impl TrainPayload {
    /// Returns the payload of a single segment, of `len` bytes.
    #[inline]
    #[must_use]
    pub fn single(len: u32) -> Self {
        let segment_len_max = u16::try_from(len).unwrap_or(u16::MAX);
        Self { len, segment_len_max, last_len: len, segments: 1 }
    }

    /// Adds the next segment, of `len` bytes.
    #[inline]
    pub fn push(&mut self, len: u32) {
        self.len += len;
        self.segment_len_max = self.segment_len_max.max(u16::try_from(len).unwrap_or(u16::MAX));
        self.last_len = len;
        self.segments += 1;
    }

    /// Returns the sequence number of the last segment of a train that begins at `first`.
    #[inline]
    fn last_seq(&self, first: Seq) -> Seq {
        first + (self.len - self.last_len)
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

    /// Parses a received frame if it is a plain segment of this connection; see
    /// [`HeaderTemplate::parse_plain`](crate::wire::tcp::HeaderTemplate::parse_plain).
    #[inline(always)]
    #[must_use]
    pub fn parse_plain(&self, frame: &impl RxFrame) -> Option<PlainSegment> {
        self.template.parse_plain(frame, self.cfg.checksum)
    }

    /// Returns the segment that [`Tcb::parse_plain`] found in the frame with this `head`, with its
    /// options.
    ///
    /// # Errors
    /// [`ParseError::BadOption`].
    pub fn parse_options(&self, plain: &PlainSegment, head: &[u8]) -> Result<Segment, ParseError> {
        self.template.segment(plain, head)
    }

    /// Processes a plain segment with this header and `len` bytes of payload, or the train that
    /// begins with it, on the fast path. `find_train` returns the payload together with that of the
    /// segments that continue it, up to a total length, and is called only if they are processed as
    /// well. The whole payload returned is delivered: the caller consumes it in order, as of
    /// [`Delivered::InOrder`], and nothing buffered follows.
    ///
    /// If it returns `None` nothing was processed: the segment is to be passed to
    /// [`Tcb::handle_segment`].
    #[inline(always)]
    #[must_use]
    pub fn handle_plain(
        &mut self,
        now: Instant,
        header: &PlainHeader,
        len: u32,
        find_train: impl FnOnce(&Self, u32) -> TrainPayload,
    ) -> Option<TrainPayload> {
        let len_max = self.predict(now, header, len)?;
        let payload = if len > 0 { find_train(self, len_max) } else { TrainPayload::single(0) };
        self.receive_plain(now, header, &payload);
        Some(payload)
    }

    /// As [`Tcb::handle_plain`], for the segment in `frame` alone. `take` gets the segment if it is
    /// to be processed, before anything has changed, and may refuse it.
    #[inline(always)]
    #[must_use]
    pub fn handle_only_plain(
        &mut self,
        now: Instant,
        frame: &impl RxFrame,
        take: impl FnOnce(&PlainSegment) -> bool,
    ) -> bool {
        if !self.fast_path.is_rx_eligible() {
            return false;
        }
        let Some(segment) = self.template.parse_plain_inline(frame, self.cfg.checksum) else {
            return false;
        };
        let len = segment.payload_len();
        if segment.has_other_options
            || self.predict(now, &segment.header, len).is_none()
            || !take(&segment)
        {
            return false;
        }
        self.receive_predicted(now, &segment.header, &TrainPayload::single(len));
        let counts = &mut self.segment_counts;
        counts.segments_in = counts.segments_in.wrapping_add(1);
        true
    }

    #[inline(never)]
    fn receive_plain(&mut self, now: Instant, header: &PlainHeader, payload: &TrainPayload) {
        self.receive_predicted(now, header, payload);
        let counts = &mut self.segment_counts;
        counts.segments_in = counts.segments_in.wrapping_add(payload.segments);
    }

    /// Processes a segment of this connection; `seg` is the parsed header of `frame`.
    ///
    /// Each byte is delivered once. In-order bytes are acknowledged from then on, out-of-order
    /// bytes by the disposition that the caller has to give at once; see [`Delivered`].
    ///
    /// In state CLOSED nothing happens; the engine answers with [`crate::wire::tcp::rst_reply`].
    ///
    /// TCP does not access the frame, which may be any value that the caller wants returned.
    ///
    /// Cost for in-order data: constant, and O(records) that `seg` acknowledges.
    #[inline]
    pub fn handle_segment<F>(&mut self, now: Instant, seg: &Segment, frame: F) -> Delivered<F> {
        self.segment_counts.segments_in = self.segment_counts.segments_in.wrapping_add(1);
        let payload = TrainPayload::single(seg.payload_len());
        if let Some(header) = seg.plain_header()
            && self.predict(now, &header, payload.len).is_some()
        {
            self.receive_predicted(now, &header, &payload);
            if seg.payload.is_empty() {
                return Delivered::Nothing;
            }
            return Delivered::InOrder { frame, bytes: seg.payload.clone() };
        }
        self.slow_path_in = self.slow_path_in.wrapping_add(1);
        let delivered = self.process_segment(now, seg, frame);
        self.update_fast_path();
        delivered
    }

    /// Predicts a received segment with this header and `len` bytes of payload; `None` if it has to
    /// take the slow path. Changes nothing. Returns the maximum length of a train that begins with
    /// it.
    #[inline(always)]
    fn predict(&mut self, now: Instant, seg: &PlainHeader, len: u32) -> Option<u32> {
        debug_assert_eq!(self.fast_path, self.fast_path_eligibility());
        if !self.fast_path.is_rx_eligible() {
            return None;
        }
        self.hot().predict(now, seg, len)
    }

    /// Processes a predicted segment. `seg` is its header, or that of the first segment of a train;
    /// `payload` is that of both.
    #[inline(always)]
    fn receive_predicted(&mut self, now: Instant, seg: &PlainHeader, payload: &TrainPayload) {
        let follow_up = self.hot().receive(now, seg, payload);
        if follow_up.is_rtt_sample || follow_up.grows_cwnd || follow_up.ends_round {
            self.finish_fast_path(now, seg, &follow_up);
        }
        #[cfg(test)]
        tests::Counts::received();
    }

    /// Does the work that few segments need; see [`FollowUp`].
    #[cold]
    fn finish_fast_path(&mut self, now: Instant, seg: &PlainHeader, follow_up: &FollowUp) {
        self.count_bytes();
        let sample = self.measured_rtt(now, seg.ts, &follow_up.acked);
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
        // Nothing else changed that the fast path depends on.
        if follow_up.is_rtt_sample {
            self.fast_path.set_pmtu_probe_due(self.pmtu.is_probe_due());
            self.rtt.fill_cache(&mut self.rtt_cache, &self.cfg);
        }
    }

    /// Returns the next frame to send if the fast path decides; [`Transmit::Control`] is an ACK.
    #[inline(always)]
    pub(super) fn plan_fast(&mut self, now: Instant, ready: TxDemand) -> Option<Transmit> {
        debug_assert_eq!(self.fast_path, self.fast_path_eligibility());
        if self.fast_path.is_tx_eligible() { self.hot().next_transmit(now, ready) } else { None }
    }

    /// Returns the plan of a segment that may be sent now on the fast path, if it takes a record of
    /// `len` bytes whole. Otherwise [`Tcb::next_transmit`] decides.
    #[inline(always)]
    pub fn plan_whole_record(&mut self, now: Instant, len: u32) -> Option<NewDataPlan> {
        match self.plan_fast(now, TxDemand::Record(len)) {
            Some(Transmit::NewData(plan)) if len as usize <= plan.capacity() => Some(plan),
            _ => None,
        }
    }

    /// True if the fast path decides what is sent, and no ACK is due: without new data to send,
    /// [`Tcb::next_transmit`] returns [`Transmit::Idle`].
    #[inline(always)]
    #[must_use]
    pub fn has_nothing_to_send(&self) -> bool {
        self.fast_path.is_tx_eligible() && !self.rcv.ack_now
    }

    /// True if an ACK is due that has no more to report than its number and the window. Without new
    /// data to send, [`Tcb::next_transmit`] returns [`Transmit::Control`].
    #[inline(always)]
    #[must_use]
    pub fn is_plain_ack_due(&self) -> bool {
        self.fast_path.is_tx_eligible() && self.fast_path.is_rx_eligible() && self.rcv.ack_now
    }

    /// Returns the header of a plain ACK.
    #[inline(always)]
    pub(super) fn plain_ack_header(&mut self, now: Instant) -> PlainHeader {
        let sack = self.sack;
        self.hot().ack_header(now, sack)
    }

    /// True if a record of `len` bytes, which the windows admit, may be sent on the fast path.
    #[inline]
    pub(super) fn fast_path_takes(&self, len: u32) -> bool {
        self.fast_path.is_tx_eligible() && len <= u32::from(self.emss)
    }

    /// Returns the header of new data.
    #[inline(always)]
    pub(super) fn fast_path_header(&mut self, now: Instant, push: bool) -> PlainHeader {
        let mut hot = self.hot();
        let header = hot.data_header(now, push);
        hot.on_data_header_sent(header.window);
        header
    }

    /// Returns the header of a train of new data. [`Tcb::on_train_sent_fast`] follows, if anything
    /// of the train is sent.
    #[inline(always)]
    pub(super) fn train_header(&mut self, now: Instant) -> PlainHeader {
        self.hot().data_header(now, false)
    }

    /// Records that a record was sent on the fast path.
    #[inline(always)]
    pub(super) fn on_sent_fast(&mut self, now: Instant, retained: T, len: u32, offset: u32) {
        self.hot().on_sent(now, retained, len, offset);
        #[cfg(test)]
        tests::Counts::sent();
    }

    /// Records that `len` bytes of new data were sent in a train, with this window field. Their
    /// records are on the scoreboard.
    #[inline]
    pub(super) fn on_train_sent_fast(&mut self, now: Instant, len: u32, window: u16) {
        let mut hot = self.hot();
        hot.on_data_header_sent(window);
        hot.on_new_data(now, len);
        #[cfg(test)]
        tests::Counts::sent();
    }

    /// Recomputes the state that the fast path depends on. To be called at the end of everything
    /// that is not the fast path.
    pub(super) fn update_fast_path(&mut self) {
        self.fast_path = self.fast_path_eligibility();
        self.timers.rare = self.rare.earliest(self.paced);
        self.rtt.fill_cache(&mut self.rtt_cache, &self.cfg);
    }

    /// Computes which segments are eligible for the fast path.
    fn fast_path_eligibility(&self) -> FastPath {
        let is_established = self.state == State::Established
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
            self.peer.fin_seq.is_none() && !self.receive_shut && !self.assembler.holds_memory();
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
pub(super) mod tests;
