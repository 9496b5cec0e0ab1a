//! Out-of-order segments: direct placement or buffering, and receive buffer auto-tuning.
//!
//! With markers, FPDUs can be found in an out-of-order segment. If the queue pair enables it, RDMA
//! Writes among them are placed on arrival (RFC 5040 leaves the order of placement open). A segment
//! with nothing else is not buffered: once it is contiguous it is only counted. Everything that is
//! delivered in order - Sends, Read Requests, responses, Terminates - waits until it is contiguous,
//! and so does whatever would end the stream.

use core::ops::Range;

use crate::ddp::memory::Memory;
use crate::device::{ChecksumState, Device, RxFrame};
use crate::engine::Engine;
use crate::engine::connection::Phase;
use crate::mpa::deframer::OooPlacement;
use crate::net::fragments::Reassembled;
use crate::tcp::{Contiguous, OooPool, Tcb};
use crate::time::{Instant, MILLISECOND, SECOND};
use crate::verbs::wc::Completions;
use crate::wire::seq::Seq;

/// Out-of-order segments buffered per connection during startup, at most: a startup frame takes two
/// segments at most, and its sender is not trusted yet.
const STARTUP_OOO_MAX: usize = 16;
/// Entries per connection for out-of-order bytes that are only discarded, at most.
const DISCARDED_OOO_MAX: usize = 64;
/// Idle time of a peer after which its grown receive window is reset, when other connections need
/// window growth.
const WINDOW_IDLE_NS: u64 = 10 * SECOND;
/// Minimum interval of such scans, and connections visited in one, at most.
const WINDOW_RECLAIM_INTERVAL_NS: u64 = MILLISECOND;
const WINDOW_RECLAIM_SCAN_MAX: usize = 64;
/// Out-of-order segments delivered in one pass, over all connections. One segment that fills a gap
/// may make thousands contiguous; the rest follows in the next passes.
const OOO_BUDGET: usize = 256;

/// A frame with a TCP segment: as the port received it, or reassembled from fragments.
pub(super) trait SegmentFrame<D: Device>: RxFrame {
    /// True if [`SegmentFrame::buffer_ooo`] has memory for `len` bytes.
    fn can_buffer(&self, tcb: &Tcb<D::Rx, D::Retained>, holds: &OooPool<D::Rx>, len: usize)
    -> bool;

    /// Has TCP buffer `bytes` of it; see [`Tcb::buffer_ooo`].
    fn buffer_ooo(
        self,
        tcb: &mut Tcb<D::Rx, D::Retained>,
        holds: &mut OooPool<D::Rx>,
        bytes: Range<usize>,
    ) -> bool;
}

/// A frame as the port received it.
pub(super) struct PortFrame<R>(pub(super) R);

impl<R: RxFrame> RxFrame for PortFrame<R> {
    #[inline]
    fn head(&self) -> &[u8] {
        self.0.head()
    }

    #[inline]
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn copy_out(&self, offset: usize, out: &mut [u8]) {
        self.0.copy_out(offset, out);
    }

    #[inline]
    fn checksum(&self) -> ChecksumState {
        self.0.checksum()
    }
}

impl<D: Device> SegmentFrame<D> for PortFrame<D::Rx> {
    fn can_buffer(
        &self,
        tcb: &Tcb<D::Rx, D::Retained>,
        holds: &OooPool<D::Rx>,
        len: usize,
    ) -> bool {
        tcb.can_buffer_ooo(holds, len)
    }

    fn buffer_ooo(
        self,
        tcb: &mut Tcb<D::Rx, D::Retained>,
        holds: &mut OooPool<D::Rx>,
        bytes: Range<usize>,
    ) -> bool {
        tcb.buffer_ooo(holds, self.0, bytes)
    }
}

impl<D: Device> SegmentFrame<D> for Reassembled {
    fn can_buffer(
        &self,
        tcb: &Tcb<D::Rx, D::Retained>,
        holds: &OooPool<D::Rx>,
        len: usize,
    ) -> bool {
        tcb.can_copy_ooo(holds, len)
    }

    fn buffer_ooo(
        self,
        tcb: &mut Tcb<D::Rx, D::Retained>,
        holds: &mut OooPool<D::Rx>,
        bytes: Range<usize>,
    ) -> bool {
        tcb.copy_ooo(holds, &self.head()[bytes])
    }
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Handles out-of-order data that begins at `seq`: places its FPDUs at once if possible, else
    /// buffers it, unless it is of no use or there is no memory.
    // req: MPA-022, MPA-037
    #[cold]
    pub(super) fn on_ooo_data<F: SegmentFrame<D>>(
        &mut self,
        index: u32,
        frame: F,
        seq: Seq,
        bytes: Range<usize>,
    ) {
        let Some(conn) = self.connections.get(index) else { return };
        // Memory first: TCP must not drop bytes that MPA has processed, unless they are corrupt.
        // req: MPA-023
        let foreseen = if frame.can_buffer(&conn.tcb, &self.ooo_pool, bytes.len()) {
            self.try_place_ooo(index, &frame, seq, bytes.clone())
        } else {
            OooPlacement::Deferred
        };
        let Some(conn) = self.connections.get_mut(index) else { return };
        match foreseen {
            OooPlacement::Deferred => {}
            OooPlacement::Placed(fpdus) => {
                conn.tcb.consumed_ooo(&mut self.ooo_pool);
                self.verbs.counters.fpdus_in += u64::from(fpdus);
                return;
            }
            // Treated as lost. If the sender made the error the retransmission has it too, and is
            // then handled in order.
            // req: MPA-156
            OooPlacement::Corrupt => {
                conn.tcb.drop_ooo();
                self.verbs.counters.ooo_dropped += 1;
                return;
            }
        }
        let pieces = conn.tcb.ooo_segments();
        let is_held = match conn.phase {
            // Discarded now rather than once it is contiguous.
            Phase::Rejected { .. } | Phase::Closed if pieces < DISCARDED_OOO_MAX => {
                conn.tcb.consumed_ooo(&mut self.ooo_pool);
                return;
            }
            Phase::Rdma { .. } | Phase::DrainTerminate { .. } => true,
            _ => pieces < STARTUP_OOO_MAX,
        };
        if !is_held {
            conn.tcb.drop_ooo();
            self.verbs.counters.ooo_dropped += 1;
        } else if !frame.buffer_ooo(&mut conn.tcb, &mut self.ooo_pool, bytes) {
            self.verbs.counters.ooo_pool_exhausted += 1;
        }
    }

    /// Places the RDMA Writes of out-of-order data.
    fn try_place_ooo<F: RxFrame>(
        &mut self,
        index: u32,
        frame: &F,
        seq: Seq,
        bytes: Range<usize>,
    ) -> OooPlacement {
        let Self { connections, fpdu_pool: assembly, verbs, .. } = self;
        let Some(conn) = connections.get_mut(index) else { return OooPlacement::Deferred };
        let (Some(qp), crc) = (conn.qp, conn.framing.has_crc()) else {
            return OooPlacement::Deferred;
        };
        let Phase::Rdma { deframer: receiver } = &mut conn.phase else {
            return OooPlacement::Deferred;
        };
        if !receiver.has_markers() || !verbs.allows_ooo_placement(qp) {
            return OooPlacement::Deferred;
        }
        if let Some(run) = frame.head().get(bytes.clone()) {
            return receiver
                .place_ooo(seq, run, crc, assembly, |ulpdu| verbs.place_ooo_write(qp, ulpdu));
        }
        let mut copy = assembly.alloc(bytes.len());
        copy.resize(bytes.len(), 0);
        frame.copy_out(bytes.start, &mut copy);
        let foreseen =
            receiver.place_ooo(seq, &copy, crc, assembly, |ulpdu| verbs.place_ooo_write(qp, ulpdu));
        assembly.release(copy);
        foreseen
    }

    /// Handles bytes that are now in order and whose FPDUs were placed out of order.
    #[cold]
    fn on_placed_in_order(&mut self, now: Instant, index: u32, len: u32) {
        let Some(conn) = self.connections.get_mut(index) else { return };
        if let Phase::DrainTerminate { deframer: receiver } = &mut conn.phase {
            if receiver.skip_placed(len).is_err() {
                conn.end_stream(&mut self.fpdu_pool);
            }
            return;
        }
        let Phase::Rdma { deframer: receiver } = &mut conn.phase else { return };
        let is_right = receiver.skip_placed(len).is_ok();
        let Some(qp) = conn.qp else { return };
        if is_right {
            conn.tx_allowed = true;
            if let Some(qp) = self.verbs.get_mut(qp) {
                qp.stream.clear_rtr_expected();
            }
            return;
        }
        let tx_allowed = conn.tx_allowed;
        let terminate_queued = self.verbs.fail_markers(qp, tx_allowed);
        self.end_failed_stream(now, index, terminate_queued);
    }

    /// Delivers buffered data that is now contiguous, as far as the budget of this pass allows.
    #[inline]
    pub(super) fn deliver_contiguous(&mut self, now: Instant, index: u32) {
        while let Some(conn) = self.connections.get_mut(index) {
            match conn.tcb.next_contiguous() {
                None => {
                    conn.tcb.release_ooo(&mut self.ooo_pool);
                    break;
                }
                Some(Contiguous::Buffered { segment: held, bytes }) => {
                    self.on_stream_bytes(now, index, &held, bytes);
                    self.ooo_pool.release(held);
                }
                Some(Contiguous::Consumed { len, .. }) => self.on_placed_in_order(now, index, len),
            }
            self.ooo_budget = self.ooo_budget.saturating_sub(1);
            if self.ooo_budget == 0 && self.defer_contiguous(index) {
                break;
            }
        }
    }

    /// The budget of this pass is used up: true if the connection has more, for the next pass.
    #[cold]
    fn defer_contiguous(&mut self, index: u32) -> bool {
        let has_more = self.connections.get(index).is_some_and(|conn| conn.tcb.has_contiguous());
        if has_more {
            // Not queued yet: while the next bytes are buffered already, no segment is delivered in
            // order.
            self.ooo_backlog.push_back((index, self.connections.generation(index)));
        }
        has_more
    }

    /// Continues where earlier passes stopped, in round-robin order.
    pub(super) fn resume_contiguous(&mut self, now: Instant) {
        self.ooo_budget = OOO_BUDGET;
        for _ in 0..self.ooo_backlog.len() {
            if self.ooo_budget == 0 {
                break;
            }
            let Some((index, generation)) = self.ooo_backlog.pop_front() else { break };
            if self.connections.live_index(index, generation).is_none() {
                continue;
            }
            self.deliver_contiguous(now, index);
            self.handle_tcp_events_and_arm(now, index);
            self.make_ready(index);
        }
    }

    /// Grows a receive window that limits its peer, by half of the growth left for all connections
    /// at most, so that some remains for others.
    #[cold]
    pub(super) fn grow_rcv_window(&mut self, now: Instant, index: u32) {
        let Some(conn) = self.connections.get_mut(index) else { return };
        let limit = conn.tcb.window_limit();
        let wanted = conn.tcb.window_wanted().saturating_sub(limit);
        if u64::from(wanted) > self.growth_left() / 2 {
            self.reclaim_windows(now);
        }
        let grant = wanted.min(u32::try_from(self.growth_left() / 2).unwrap_or(u32::MAX));
        let Some(conn) = self.connections.get_mut(index) else { return };
        conn.tcb.grow_window(limit + grant);
        conn.window_growth += grant;
        self.window_growth += u64::from(grant);
    }

    /// Returns the bytes by which windows may still grow.
    const fn growth_left(&self) -> u64 {
        self.config.window_growth_max.saturating_sub(self.window_growth)
    }

    /// Resets grown receive windows of idle peers to their initial size. The window advertised is
    /// not retracted, only not renewed. Cost: bounded, at most once a millisecond.
    fn reclaim_windows(&mut self, now: Instant) {
        if now < self.window_reclaim_at {
            return;
        }
        self.window_reclaim_at = now + WINDOW_RECLAIM_INTERVAL_NS;
        for _ in 0..WINDOW_RECLAIM_SCAN_MAX.min(self.connections.slot_count()) {
            let at = self.window_reclaim_cursor;
            let is_last = at as usize + 1 >= self.connections.slot_count();
            self.window_reclaim_cursor = if is_last { 0 } else { at + 1 };
            let Some(conn) = self.connections.get_mut(at) else { continue };
            if conn.window_growth > 0 && now.since(conn.tcb.last_rx_at()) > WINDOW_IDLE_NS {
                conn.tcb.reset_window();
                self.window_growth -= u64::from(core::mem::take(&mut conn.window_growth));
                self.verbs.counters.windows_reclaimed += 1;
            }
        }
    }
}
