//! Delivery of received data: in-order bytes at once, out-of-order bytes by the disposition of the
//! upper layer, and buffered bytes when they become contiguous.

use core::ops::Range;

use super::assembler::Assembler;
use super::autotune::{RcvRound, RoundEnd};
use super::ooo_queue::{Contiguous, OooOffer, OooPool, OooSegment};
use crate::device::{Retained, RxFrame};
use crate::tcp::Tcb;
use crate::tcp::connection_state::{State, StateEvent};
use crate::tcp::upper_layer::Event;
use crate::time::{Instant, MICROSECOND};
use crate::wire::seq::Seq;
use crate::wire::tcp::{Flags, SackBlock, Segment};

/// Result of a received segment for the upper layer.
#[derive(Debug)]
#[must_use]
pub enum Delivered<R> {
    /// No new data: an ACK, a duplicate, or data beyond a limit.
    Nothing,
    /// The next bytes of the stream. They are acknowledged from now on. The caller consumes them,
    /// or keeps them and reports that by [`Tcb::add_unconsumed`].
    InOrder {
        /// The frame.
        frame: R,
        /// Position of the new bytes in the frame; never empty.
        bytes: Range<usize>,
    },
    /// Out-of-order bytes. Before any other call on the connection the caller gives the offer to
    /// one of [`Tcb::buffer_ooo`], for TCP to keep them; [`Tcb::consumed_ooo`], if it has consumed
    /// them already; [`Tcb::drop_ooo`], if it found them corrupt or has no memory. Bytes buffered
    /// or consumed are not delivered again; dropped ones may be.
    ///
    /// A segment that spans several holes delivers only its first new part: a frame is
    /// delivered once, and FPDUs overlap in part only if the peer has resegmented them. The rest
    /// counts as not received.
    OutOfOrder {
        /// The frame.
        frame: R,
        /// Its new bytes, to be accepted or dropped.
        offer: OooOffer,
    },
}

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// After [`Delivered::InOrder`]: returns the data accepted out of order that became contiguous,
    /// in order. To be called until `None`, then [`Tcb::release_ooo`].
    #[inline]
    #[must_use = "the bytes are delivered by this call"]
    pub fn next_contiguous(&mut self) -> Option<Contiguous<R>> {
        if self.fast_path.is_rx_eligible() { None } else { self.next_contiguous_slow() }
    }

    fn next_contiguous_slow(&mut self) -> Option<Contiguous<R>> {
        // Nothing follows the peer's FIN, even if the peer sent more.
        if self.assembler.is_empty() || self.peer.fin_received {
            return None;
        }
        self.pop_contiguous()
    }

    #[cold]
    fn pop_contiguous(&mut self) -> Option<Contiguous<R>> {
        let due = self.assembler.as_mut()?.pop_at(self.rcv.nxt)?;
        // req: MPA-004, MPA-033, MPA-053
        self.rcv.nxt += due.seq_len();
        self.rcv.ack_now = true;
        self.process_fin();
        self.update_fast_path();
        Some(due)
    }

    /// True if [`Tcb::next_contiguous`] has more. The caller may continue later, but has to do so
    /// by itself: no event prompts it.
    #[must_use]
    pub fn has_contiguous(&self) -> bool {
        !self.peer.fin_received
            && self.assembler.as_ref().is_some_and(|ranges| ranges.has_at(self.rcv.nxt))
    }

    /// Holds the segment of [`Delivered::OutOfOrder`] until it is contiguous, in memory of `pool`.
    /// It is reported as received (SACK) from now on. Returns false if there is no memory; the
    /// segment then counts as lost.
    ///
    /// `frame` is the one delivered with `offer`.
    pub fn buffer_ooo(&mut self, pool: &mut OooPool<R>, offer: OooOffer, frame: R) -> bool {
        let share = self.assembler.share(pool, self.peer_group);
        let kept = pool.buffer(frame, offer.bytes(), share);
        self.insert_ooo(pool, offer, kept)
    }

    /// As [`Tcb::buffer_ooo`] without a frame to keep: `bytes`, those of the offer, are copied.
    pub fn copy_ooo(&mut self, pool: &mut OooPool<R>, offer: OooOffer, bytes: &[u8]) -> bool {
        debug_assert_eq!(offer.bytes().len(), bytes.len());
        let kept = pool.copy(bytes, self.assembler.share(pool, self.peer_group));
        self.insert_ooo(pool, offer, kept.map(|segment| (segment, 0)))
    }

    /// True if [`Tcb::buffer_ooo`] has memory for `len` bytes.
    #[must_use]
    pub fn can_buffer_ooo(&self, pool: &OooPool<R>, len: usize) -> bool {
        pool.admits(len, self.assembler.share(pool, self.peer_group))
    }

    /// True if [`Tcb::copy_ooo`] has memory for `len` bytes.
    #[must_use]
    pub fn can_copy_ooo(&self, pool: &OooPool<R>, len: usize) -> bool {
        pool.admits_copy(len, self.assembler.share(pool, self.peer_group))
    }

    /// True if [`Tcb::consumed_ooo`] has memory for one more range.
    #[must_use]
    pub fn can_consume_ooo(&self, pool: &OooPool<R>) -> bool {
        pool.admits_consumed(self.assembler.share(pool, self.peer_group))
    }

    fn insert_ooo(
        &mut self,
        pool: &mut OooPool<R>,
        offer: OooOffer,
        kept: Option<(OooSegment<R>, usize)>,
    ) -> bool {
        let Some((segment, offset)) = kept else {
            self.stats.record().ooo_overflow += 1;
            return false;
        };
        self.stats.record().ooo_buffered += 1;
        // An offset into a frame is below 64 KiB.
        let offset = u32::try_from(offset).unwrap_or(0);
        // req: MPA-023
        self.accept_ooo(pool, offer, Some(segment), offset);
        true
    }

    /// Accepts the segment of [`Delivered::OutOfOrder`], which the upper layer has consumed. It is
    /// reported as received (SACK), and [`Tcb::next_contiguous`] returns it once it is contiguous.
    pub fn consumed_ooo(&mut self, pool: &mut OooPool<R>, offer: OooOffer) {
        self.stats.record().ooo_consumed += 1;
        self.accept_ooo(pool, offer, None, 0);
    }

    fn accept_ooo(
        &mut self,
        pool: &mut OooPool<R>,
        offer: OooOffer,
        segment: Option<OooSegment<R>>,
        offset: u32,
    ) {
        let OooOffer { block, fin, .. } = offer;
        debug_assert_eq!(self.assembler.overlap(block.0, block.1).new, Some(block));
        self.assembler.insert((pool, self.peer_group), block, segment, offset);
        self.note_fin_seq(fin);
        self.update_fast_path();
    }

    /// Drops the segment of [`Delivered::OutOfOrder`]: it counts as not received, and the peer
    /// retransmits it. An offer that is not answered counts as dropped.
    pub fn drop_ooo(&mut self, _offer: OooOffer) {
        self.stats.record().ooo_rejected += 1;
    }

    /// Takes back the last `len` bytes delivered in order, for which the upper layer has no memory.
    /// Only where [`Tcb::can_decline`]. Those of [`Delivered::InOrder`] count as not received, and
    /// the peer retransmits them. Those of [`Tcb::next_contiguous`] were reported as received, and
    /// go to [`Tcb::hold_contiguous`].
    #[cold]
    pub fn decline(&mut self, len: u32) {
        debug_assert!(self.can_decline(len));
        self.rcv.decline(len);
    }

    /// Holds `bytes` again, the last ones of a segment of [`Tcb::next_contiguous`], which the upper
    /// layer has declined. [`Tcb::next_contiguous`] will return them.
    #[cold]
    pub fn hold_contiguous(
        &mut self,
        pool: &mut OooPool<R>,
        segment: OooSegment<R>,
        bytes: Range<usize>,
    ) {
        let (start, len) = (self.rcv.nxt, u32::try_from(bytes.len()).unwrap_or(0));
        let offset = u32::try_from(bytes.start).unwrap_or(0);
        self.assembler.insert((pool, self.peer_group), (start, start + len), Some(segment), offset);
        self.update_fast_path();
    }

    /// True if the last `len` bytes received in order are not acknowledged yet, and the peer's FIN
    /// does not follow them.
    #[must_use]
    pub fn can_decline(&self, len: u32) -> bool {
        !self.peer.fin_received && self.rcv.nxt >= self.rcv.last_ack_sent + len
    }

    /// Returns all out-of-order memory to the pool, which other connections share, if nothing more
    /// of it will be delivered. To be called after anything that may have ended the connection, and
    /// after [`Tcb::next_contiguous`].
    #[inline]
    pub fn release_ooo(&mut self, pool: &mut OooPool<R>) {
        if self.fast_path.is_rx_eligible() || !self.assembler.holds_memory() {
            return;
        }
        if self.assembler.is_empty() || self.peer.fin_received || self.state == State::Closed {
            self.release_all_ooo(pool);
        } else {
            self.assembler.charge(pool);
        }
    }

    /// Returns all out-of-order memory to the pool. To be called before the connection is dropped.
    #[cold]
    pub fn release_all_ooo(&mut self, pool: &mut OooPool<R>) {
        self.assembler.release(pool);
        self.update_fast_path();
    }

    /// Processes payload and FIN of an acceptable segment.
    #[inline]
    pub(in crate::tcp) fn process_payload<F>(
        &mut self,
        now: Instant,
        seg: &Segment,
        frame: F,
    ) -> Delivered<F> {
        let fin = seg.flags.has(Flags::FIN);
        let len = seg.payload_len();
        if len == 0 && !fin {
            return Delivered::Nothing;
        }
        let end = seg.seq + len;
        let plain = !fin && !self.receive_shut && self.peer.fin_seq.is_none();
        if plain
            && seg.seq == self.rcv.nxt
            && end <= self.rcv.adv
            && self.assembler.is_empty()
            && self.state.can_receive()
        {
            self.rcv.nxt = end;
            self.rcv.on_advance();
            self.on_in_order(now, len);
            self.check_rcv_round(now, seg);
            return Delivered::InOrder { frame, bytes: seg.payload.clone() };
        }
        self.process_payload_slow(now, seg, frame)
    }

    #[cold]
    fn process_payload_slow<F>(&mut self, now: Instant, seg: &Segment, frame: F) -> Delivered<F> {
        let (mut start, mut end) = (seg.seq, seg.seq + seg.payload_len());
        // RFC 9293 3.10.7.4, seventh: nothing may follow the peer's FIN.
        if self.peer.fin_seq.is_some_and(|fin| end > fin) && self.state != State::TimeWait {
            self.raise_event(Event::DataAfterFin);
        }
        if !self.state.can_receive() {
            // Beyond the peer's FIN, or after the end of the connection.
            return Delivered::Nothing;
        }
        let mut dsack = None;
        if start < self.rcv.nxt {
            // The beginning was received before: the first copy wins.
            let duplicate_end = end.min(self.rcv.nxt);
            dsack = (start < duplicate_end).then_some((start, duplicate_end));
            // req: MPA-026, MPA-029, MPA-031, DDP-033, DDP-113
            start = self.rcv.nxt;
            end = end.max(start);
        }
        // Bytes beyond the window, or beyond the FIN, are cut off; a FIN beyond it is not accepted.
        let right = self.peer.fin_seq.map_or(self.rcv.adv, |fin| self.rcv.adv.min(fin));
        let mut fin = None;
        if end > right {
            // req: MPA-025
            end = start.max(right);
        } else if seg.flags.has(Flags::FIN) {
            fin = Some(end);
        }
        // Eighth: no new text is left, but perhaps a FIN.
        if start == end {
            self.note_fin_seq(fin);
            self.process_fin();
            self.on_out_of_order(dsack);
            return Delivered::Nothing;
        }
        // RFC 9293 section 3.6.1: data for an upper layer that takes none resets the connection.
        if self.receive_shut {
            self.abort();
            return Delivered::Nothing;
        }
        self.check_rcv_round(now, seg);
        // Of several duplicate parts only the first is reported (RFC 2883 section 4).
        let overlap = self.assembler.overlap(start, end);
        let dsack = dsack.or(overlap.duplicate).filter(|_| self.sack);
        let Some((from, to)) = overlap.new else {
            self.stats.record().duplicates_in += 1;
            self.note_fin_seq(fin);
            self.on_out_of_order(dsack);
            return Delivered::Nothing;
        };
        // A frame is delivered once, so only the first of several new parts is. What lies beyond
        // counts as not received, and the peer retransmits it.
        let first = seg.payload.start + (from - seg.seq) as usize;
        // req: MPA-034, DDP-013, DDP-024, DDP-114, DDP-116, RDMAP-212, RDMAP-221
        if from != self.rcv.nxt {
            self.on_out_of_order(dsack);
            if !self.assembler.admits((from, to), self.cfg.max_ooo_segments.into()) {
                self.stats.record().ooo_overflow += 1;
                return Delivered::Nothing;
            }
            // req: MPA-003, MPA-032, MPA-052
            let offer = OooOffer { block: (from, to), start: first, fin };
            return Delivered::OutOfOrder { frame, offer };
        }
        // In order. RFC 5681 section 4.2: a segment that fills a gap is acknowledged at once.
        let gap_filled = !self.assembler.is_empty();
        self.rcv.nxt = to;
        self.rcv.on_advance();
        self.on_in_order(now, to - from);
        self.rcv.ack_now |= gap_filled;
        if dsack.is_some() {
            self.on_out_of_order(dsack);
        }
        self.note_fin_seq(fin);
        self.process_fin();
        Delivered::InOrder { frame, bytes: first..first + (to - from) as usize }
    }

    fn on_in_order(&mut self, now: Instant, len: u32) {
        let longest = u16::try_from(len).unwrap_or(u16::MAX);
        self.rcv.on_in_order(now, &mut self.timers, len, longest, self.cfg.delayed_ack_ns);
    }

    /// Notes a segment that arrived out of order, or with duplicate bytes.
    pub(in crate::tcp) fn on_out_of_order(&mut self, dsack: Option<SackBlock>) {
        self.rcv.on_out_of_order();
        if let Some(dsack) = dsack.filter(|_| self.sack) {
            self.dsack_queue.push(dsack);
        }
    }

    /// Notes the sequence number of the peer's FIN; the first one counts.
    fn note_fin_seq(&mut self, fin: Option<Seq>) {
        self.peer.fin_seq = self.peer.fin_seq.or(fin);
    }

    /// Processes the peer's FIN once everything before it is received.
    #[inline]
    fn process_fin(&mut self) {
        if self.peer.fin_received || self.peer.fin_seq != Some(self.rcv.nxt) {
            return;
        }
        if !self.assembler.is_empty() {
            self.raise_event(Event::DataAfterFin);
        }
        self.peer.fin_received = true;
        self.rcv.nxt += 1;
        self.rcv.adv = self.rcv.adv.max(self.rcv.nxt);
        self.rcv.ack_now = true;
        self.apply(StateEvent::Fin);
        // req: MPA-012
        self.raise_event(Event::PeerClosed);
        if self.state == State::TimeWait {
            self.enter_time_wait(self.last_rx_at);
        }
    }

    /// Ends the round of receive window autotuning if `seg`, which has payload, is past its end.
    #[inline]
    fn check_rcv_round(&mut self, now: Instant, seg: &Segment) {
        let clock = match seg.options.ts {
            Some((_, echo)) if self.ts_on => echo,
            None if self.ts_on => self.ts.tsval(now).wrapping_sub(self.rcv_round_wait()),
            _ => self.ts.tsval(now),
        };
        if self.rcv_round_end.is_reached(clock) {
            self.end_rcv_round(now);
        }
    }

    #[cold]
    pub(in crate::tcp) fn end_rcv_round(&mut self, now: Instant) {
        self.count_bytes();
        let end = self.assembler.as_ref().and_then(Assembler::end).unwrap_or(self.rcv.nxt);
        let (limit, limit_max) = (self.rcv_limits.limit(), self.rcv_limits.limit_max());
        // No growth before the connection was accepted.
        let is_open = limit >= self.cfg.recv_window.min(limit_max);
        self.window_wanted = self.rcv_round.window_needed(now, end, limit_max);
        if self.window_wanted > limit && is_open {
            // req: DDP-242
            self.raise_event(Event::RcvWndLimited);
        }
        self.begin_rcv_round(now);
    }

    /// Begins a round of receive window autotuning. It ends with the echo of a TSval sent from
    /// `now` on; without timestamps, after two smoothed round-trip times.
    pub(in crate::tcp) fn begin_rcv_round(&mut self, now: Instant) {
        let wait = if self.ts_on { 0 } else { self.rcv_round_wait() };
        let end = self.assembler.as_ref().and_then(Assembler::end).unwrap_or(self.rcv.nxt);
        self.rcv_round.start(now, end);
        self.rcv_round_end = RoundEnd(self.ts.tsval(now).wrapping_add(wait));
    }

    /// Returns the duration of a round without timestamps, microseconds.
    fn rcv_round_wait(&self) -> u32 {
        let wait = 2 * (self.rtt.srtt() / MICROSECOND) + 1;
        u32::try_from(wait).unwrap_or(RcvRound::WAIT_MAX_US).min(RcvRound::WAIT_MAX_US)
    }

    /// After [`Event::RcvWndLimited`]: receive window, in bytes, that would not limit the peer.
    #[must_use]
    pub fn window_wanted(&self) -> u32 {
        self.window_wanted
    }

    /// Current limit of the receive window, bytes.
    #[must_use]
    pub fn window_limit(&self) -> u32 {
        self.rcv_limits.limit()
    }

    /// Raises the limit of the receive window to `limit` bytes, at most the configured maximum. A
    /// smaller value than the current one changes nothing.
    pub fn grow_window(&mut self, limit: u32) {
        let reopens = self.rcv_limits.raise(&mut self.rcv, limit, &self.cfg);
        self.announce_window(reopens);
    }

    /// Lowers the limit of the receive window to what it was before it grew. The window advertised
    /// is not retracted: the right edge stays until less than the limit is left.
    pub fn reset_window(&mut self) {
        self.rcv_limits.lower(&mut self.rcv, self.cfg.recv_window, &self.cfg);
    }
}
