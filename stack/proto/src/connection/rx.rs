//! Receive path of a connection: segments to TCP, stream bytes to MPA startup or deframing, ULPDUs
//! to the queue pair.

use core::ops::Range;

use crate::connection::Connection;
use crate::connection::context::{Context, Deferred, Env};
use crate::connection::phase::Phase;
use crate::connection::segment_frame::SegmentFrame;
use crate::device::RxFrame;
use crate::mpa::deframer::{DeframeError, PartialMemory};
use crate::mpa::stream_bytes::StreamBytes;
use crate::rdmap::stream::LastSinks;
use crate::tcp::Delivered;
use crate::time::Instant;
use crate::verbs::cm::Start;
use crate::verbs::receive::UlpduOutcome;
use crate::wire::tcp::Segment;

impl<E: Env> Connection<E> {
    /// Passes a segment to TCP, and processes the data delivered.
    #[inline]
    pub(crate) fn process_segment<F: SegmentFrame<E::Device>>(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        segment: &Segment,
        frame: F,
    ) {
        match self.tcb.handle_segment(now, segment, frame) {
            Delivered::Nothing => {}
            Delivered::InOrder { frame, bytes } => {
                self.on_stream_bytes(cx, now, &frame, bytes, 0);
                // If these bytes filled a gap, buffered ones follow.
                self.deliver_contiguous(cx, now);
            }
            Delivered::OutOfOrder { frame, offer } => self.on_ooo_data(cx, frame, offer),
        }
        // The connection transmits later in this pass; its timer is armed then, once per burst.
        self.make_ready(&mut cx.schedule);
    }

    /// Processes in-order bytes of the stream. TCP has delivered `following` more bytes after them.
    /// Returns false if the bytes were declined, and the following ones with them.
    #[inline]
    pub(super) fn on_stream_bytes(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        frame: &impl RxFrame,
        bytes: Range<usize>,
        following: u32,
    ) -> bool {
        match self.phase {
            Phase::Rdma { .. } => {
                return self.process_fpdus(cx, now, StreamBytes::of_frame(frame, bytes), following);
            }
            Phase::DrainTerminate { .. } => {
                self.drain_terminate(cx, now, StreamBytes::of_frame(frame, bytes));
            }
            _ => self.on_startup_bytes(cx, now, frame, bytes),
        }
        true
    }

    /// Buffers bytes of the startup exchange or of streaming mode, and acts on a complete startup
    /// frame.
    #[cold]
    fn on_startup_bytes(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        frame: &impl RxFrame,
        bytes: Range<usize>,
    ) {
        let (tcb, buffered_len) = (&mut self.tcb, &mut self.buffered_len);
        // TCP's startup window bounds the buffer.
        let mut append = |buffer: &mut Vec<u8>| {
            let start = buffer.len();
            buffer.resize(start + bytes.len(), 0);
            frame.copy_out(bytes.start, &mut buffer[start..]);
            let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            *buffered_len += len;
            tcb.add_unconsumed(len);
        };
        match &mut self.phase {
            Phase::AwaitRequest { startup_rx, is_unframed, .. } => {
                append(startup_rx);
                if !*is_unframed {
                    self.process_mpa_request(cx);
                }
            }
            Phase::AwaitReply(await_reply) => {
                append(&mut await_reply.startup_rx);
                // Connections without startup frames are handled once TCP is established.
                if await_reply.start == Start::Frames {
                    self.process_mpa_reply(cx, now);
                }
            }
            Phase::AwaitDecision(decision) => append(&mut decision.buffered),
            Phase::Streaming { stream_rx } => append(stream_rx),
            Phase::Rdma { .. }
            | Phase::DrainTerminate { .. }
            | Phase::Rejected { .. }
            | Phase::Closed => {}
        }
    }

    /// Processes FPDU bytes that were received before startup was complete.
    pub(crate) fn process_buffered_fpdus(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        fpdus: &[u8],
    ) {
        if !fpdus.is_empty() {
            self.process_fpdus(cx, now, fpdus.into(), 0);
        }
    }

    /// Deframes bytes of a stream in full operation and hands each ULPDU to its queue pair. For
    /// `following` and the result see [`Connection::on_stream_bytes`].
    // Inlined always: `bytes` then need not pass through memory.
    #[inline(always)]
    fn process_fpdus(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        mut bytes: StreamBytes<'_>,
        following: u32,
    ) -> bool {
        let Context { qps, verbs, pools, .. } = cx;
        let Some(qp) = self.qp.and_then(|qp| qps.get_mut(qp)) else { return true };
        let Phase::Rdma { deframer } = &mut self.phase else { return true };
        let crc = self.framing.has_crc();
        let (mut memory, mut sinks) = (PartialMemory::Bounded, LastSinks::NONE);
        let outcome = loop {
            // RFC 5044 section 6: the next FPDU begins where the one before it ends.
            let peer = || self.tcb.peer_group();
            let outcome = match deframer.next(now, &mut bytes, crc, &mut pools.fpdu, memory, peer) {
                Ok(None) => return true,
                Ok(Some(ulpdu)) => {
                    if ulpdu.is_reassembled {
                        verbs.counters.fpdus_assembled += 1;
                    }
                    // RFC 5044 section 7.1.2: a responder sends once it has validated the
                    // initiator's first FPDU. RFC 6581 section 9: that may be the RTR message.
                    let may_be_rtr = self.startup.on_fpdu();
                    let is_rtr = may_be_rtr && qp.take_rtr(verbs, ulpdu.bytes);
                    // RFC 5044 section 3: the ULPDU is passed to DDP, with its length.
                    // req: MPA-050
                    if is_rtr {
                        UlpduOutcome::Continue
                    } else {
                        qp.on_ulpdu_in_run(verbs, ulpdu.bytes, &mut sinks)
                    }
                }
                // RFC 9293 section 3.10.7.4: a receiver need not accept all data of a segment.
                Err(DeframeError::NoMemory) => {
                    let rest = u32::try_from(bytes.len()).unwrap_or(u32::MAX) + following;
                    // What was acknowledged, or comes before FIN, does not come again.
                    if self.tcb.can_decline(rest) {
                        self.tcb.decline(rest);
                        verbs.counters.assembly_exhausted += 1;
                        cx.deferred.push(Deferred::EvictPartialFpdus);
                        return false;
                    }
                    memory = PartialMemory::Forced;
                    UlpduOutcome::Continue
                }
                // RFC 5044 section 8: a bad CRC, marker or length ends the stream.
                Err(DeframeError::Fpdu(error)) => {
                    qp.on_fpdu_error(verbs, error, self.startup.may_send())
                }
            };
            // req: DDP-028, DDP-162
            if outcome != UlpduOutcome::Continue {
                break outcome;
            }
        };
        self.on_stream_ended(cx, now, outcome, bytes);
        true
    }

    /// Handles the end of the stream by an FPDU, after which `rest` follows. A Terminate is sent
    /// first (RFC 5040 section 5.4); the peer's may be in `rest`.
    #[cold]
    pub(super) fn on_stream_ended(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        outcome: UlpduOutcome,
        rest: StreamBytes<'_>,
    ) {
        let terminate_queued = self.startup.may_send() && outcome != UlpduOutcome::EndedSilently;
        self.end_failed_stream(cx, now, terminate_queued);
        self.drain_terminate(cx, now, rest);
    }
}
