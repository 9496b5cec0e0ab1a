//! Out-of-order segments: direct placement or buffering, and delivery once they are contiguous.
//!
//! With markers, FPDUs can be found in an out-of-order segment. If the queue pair enables it, RDMA
//! Writes among them are placed on arrival (RFC 5040 leaves the order of placement open). A segment
//! with nothing else is not buffered: once contiguous, its bytes are skipped. Everything that is
//! delivered in order - Sends, Read Requests, responses, Terminates - waits until it is contiguous,
//! and so does whatever would end the stream.

use core::ops::Range;

use crate::connection::Connection;
use crate::connection::context::{Context, Env};
use crate::connection::phase::Phase;
use crate::connection::segment_frame::SegmentFrame;
use crate::device::RxFrame;
use crate::mpa::deframer::OooPlacement;
use crate::mpa::fpdu::FpduError;
use crate::tcp::{Contiguous, OooOffer};
use crate::time::Instant;
use crate::verbs::receive::UlpduOutcome;
use crate::wire::seq::Seq;

/// Out-of-order segments buffered per connection during startup and in streaming mode, at most: the
/// receive window is small then.
const STARTUP_OOO_MAX: usize = 16;
/// Entries per connection for out-of-order bytes that are only discarded, at most.
const DISCARDED_OOO_MAX: usize = 64;
impl<E: Env> Connection<E> {
    /// Handles out-of-order data: places its FPDUs at once if possible, else buffers it, unless it
    /// is of no use or there is no memory.
    // req: MPA-022, MPA-037
    #[cold]
    pub(super) fn on_ooo_data<F: SegmentFrame<E::Device>>(
        &mut self,
        cx: &mut Context<E>,
        frame: F,
        offer: OooOffer,
    ) {
        // Admission: only connections that an application has accepted.
        if self.qp.is_none() {
            // No application has accepted it, and anybody can have such a connection: it gets no
            // memory that others share. The peer sends its few bytes again.
            self.drop_ooo(cx, offer);
            return;
        }
        // Memory first: TCP must not drop bytes that MPA has processed, unless they are corrupt.
        // req: MPA-023
        let (ooo, bytes) = (&cx.pools.ooo, offer.bytes());
        let len = bytes.len();
        let has_memory = if F::IS_FROM_PORT {
            self.tcb.can_buffer_ooo(ooo, len)
        } else {
            self.tcb.can_copy_ooo(ooo, len)
        };
        let can_consume = self.tcb.can_consume_ooo(ooo);
        // RFC 5044 appendix A.3: FPDUs that markers locate are passed up before the gap is filled.
        let placement = if has_memory && can_consume {
            self.try_place_ooo(cx, &frame, offer.seq(), bytes.clone())
        } else {
            OooPlacement::Deferred
        };
        match placement {
            OooPlacement::Deferred => {}
            // RFC 5041 section 5.3: placed in any order, delivered in order. TCP reports the bytes
            // as received, and keeps none.
            OooPlacement::Placed(fpdus) => {
                self.tcb.consumed_ooo(&mut cx.pools.ooo, offer);
                cx.verbs.counters.fpdus_in += u64::from(fpdus);
                return;
            }
            // Treated as lost. If the sender made the error the retransmission has it too, and is
            // then handled in order.
            OooPlacement::Corrupt => {
                // req: MPA-156
                self.drop_ooo(cx, offer);
                return;
            }
        }
        // RFC 9293 section 3.10.7.4: segments out of order should be held for later processing, up
        // to the bounds of this phase.
        let segments = self.tcb.ooo_segments();
        let is_kept = match self.phase {
            // Discarded now rather than once it is contiguous.
            Phase::Closed if segments < DISCARDED_OOO_MAX && can_consume => {
                self.tcb.consumed_ooo(&mut cx.pools.ooo, offer);
                return;
            }
            Phase::Closed => false,
            Phase::Rdma { .. } | Phase::DrainTerminate { .. } => true,
            _ => segments < STARTUP_OOO_MAX,
        };
        if !is_kept {
            self.drop_ooo(cx, offer);
            return;
        }
        // A frame of the port is held itself; a reassembled one is copied.
        let is_buffered = match frame.into_port_frame() {
            Ok(frame) => self.tcb.buffer_ooo(&mut cx.pools.ooo, offer, frame),
            Err(whole) => self.tcb.copy_ooo(&mut cx.pools.ooo, offer, &whole.head()[bytes]),
        };
        if !is_buffered {
            cx.verbs.counters.ooo_pool_exhausted += 1;
        }
    }

    /// Drops out-of-order data: it counts as lost.
    fn drop_ooo(&mut self, cx: &mut Context<E>, offer: OooOffer) {
        self.tcb.drop_ooo(offer);
        cx.verbs.counters.ooo_dropped += 1;
    }

    /// Places the RDMA Writes of out-of-order data.
    fn try_place_ooo<F: RxFrame>(
        &mut self,
        cx: &mut Context<E>,
        frame: &F,
        seq: Seq,
        bytes: Range<usize>,
    ) -> OooPlacement {
        let Context { qps, verbs, pools, .. } = cx;
        let fpdu_pool = &mut pools.fpdu;
        let crc = self.framing.has_crc();
        let Some(qp) = self.qp.and_then(|qp| qps.get_mut(qp)) else {
            return OooPlacement::Deferred;
        };
        let Phase::Rdma { deframer } = &mut self.phase else { return OooPlacement::Deferred };
        if !deframer.has_markers() || !qp.ooo_placement {
            return OooPlacement::Deferred;
        }
        let place = |ulpdu: &[u8]| qp.place_ooo_write(verbs, ulpdu);
        if let Some(contiguous) = frame.head().get(bytes.clone()) {
            return deframer.place_ooo(seq, contiguous, crc, fpdu_pool, place);
        }
        let peer = self.tcb.peer_group();
        let mut copy = fpdu_pool.alloc(peer, bytes.len());
        copy.resize(bytes.len(), 0);
        frame.copy_out(bytes.start, &mut copy);
        let placement = deframer.place_ooo(seq, &copy, crc, fpdu_pool, place);
        fpdu_pool.release(peer, copy);
        placement
    }

    /// Handles bytes that are now in order, with FPDUs that were placed out of order.
    #[cold]
    fn on_placed_in_order(&mut self, cx: &mut Context<E>, now: Instant, len: u32) {
        let qp = self.qp.and_then(|qp| cx.qps.get_mut(qp));
        match &mut self.phase {
            Phase::DrainTerminate { deframer } => {
                let skipped = deframer.skip_placed(len);
                if skipped.is_err() {
                    self.end_stream(&mut cx.pools.fpdu);
                }
            }
            Phase::Rdma { deframer } => {
                let skipped = deframer.skip_placed(len);
                let Some(qp) = qp else { return };
                if skipped.is_ok() {
                    qp.stream.skip_placed_writes();
                    // A Write, as all that is placed out of order: no RTR message by Send.
                    self.startup.on_fpdu();
                    return;
                }
                // The markers contradict the lengths.
                let tx_allowed = self.startup.may_send();
                let outcome = qp.on_fpdu_error(&mut cx.verbs, FpduError::Marker, tx_allowed);
                let terminate_queued = tx_allowed && outcome != UlpduOutcome::EndedSilently;
                self.end_failed_stream(cx, now, terminate_queued);
            }
            _ => {}
        }
    }

    /// Delivers buffered data that is now contiguous, as far as the budget of this pass allows.
    /// Bytes for which MPA has no memory are held again: they were reported as received, and the
    /// peer does not send them again.
    #[inline]
    pub(crate) fn deliver_contiguous(&mut self, cx: &mut Context<E>, now: Instant) {
        loop {
            match self.tcb.next_contiguous() {
                None => {
                    self.tcb.release_ooo(&mut cx.pools.ooo);
                    break;
                }
                Some(Contiguous::Buffered { segment, bytes }) => {
                    let (end, rcv_nxt) = (bytes.end, self.tcb.rcv_nxt());
                    if !self.on_stream_bytes(cx, now, &segment, bytes, 0) {
                        let declined = (rcv_nxt - self.tcb.rcv_nxt()) as usize;
                        self.tcb.hold_contiguous(&mut cx.pools.ooo, segment, end - declined..end);
                        cx.schedule.awaiting_partial_memory.push_back(self.id);
                        break;
                    }
                    cx.pools.ooo.release(segment);
                }
                Some(Contiguous::Consumed { len, .. }) => self.on_placed_in_order(cx, now, len),
            }
            cx.schedule.ooo_budget = cx.schedule.ooo_budget.saturating_sub(1);
            if cx.schedule.ooo_budget == 0 && self.tcb.has_contiguous() {
                // The budget of this pass is used up. The connection is not queued yet: while the
                // next bytes are buffered already, no segment is delivered in order.
                cx.schedule.ooo_backlog.push_back(self.id);
                break;
            }
        }
    }
}
