//! Receive path: segments to TCP, stream bytes to MPA startup or deframing, ULPDUs to their queue
//! pair.

use core::hash::BuildHasher;
use core::ops::Range;

use crate::ddp::memory::Memory;
use crate::ddp::untagged::UntaggedFault;
use crate::device::{Device, RxFrame};
use crate::engine::Engine;
use crate::engine::connection::Phase;
use crate::engine::queue_pairs::QueuePairs;
use crate::engine::rx_ooo::SegmentFrame;
use crate::mpa::deframer::{DeframeError, PartialMemory};
use crate::mpa::fpdu::FpduError;
use crate::mpa::stream_bytes::StreamBytes;
use crate::net::routing;
use crate::rdmap::stream::{Indication, Stream};
use crate::rdmap::terminate::Fault;
use crate::tcp::{Delivered, Event};
use crate::time::Instant;
use crate::verbs::cm::EndReason;
use crate::verbs::wc::{Completions, CqId, WcStatus};
use crate::wire::ethernet;
use crate::wire::tcp::{Flags, FourTuple, Segment, rst_reply};
use crate::wire::terminate::Terminate;

/// Result of a ULPDU for its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UlpduOutcome {
    /// The stream continues.
    Continue,
    /// The stream has ended; a Terminate may be pending.
    Ended,
    /// The stream has ended over a fault, and no Terminate can be sent: this direction is closed.
    EndedSilently,
    /// The stream continues, and this completion queue overran.
    CqOverrun(CqId),
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Processes a TCP segment received in `frame`.
    #[inline]
    pub(super) fn on_segment<F: SegmentFrame<D>>(
        &mut self,
        now: Instant,
        segment: &Segment,
        frame: F,
    ) {
        let Some(index) = self.lookup_cached(&segment.tuple) else {
            self.on_unmatched_segment(now, segment, frame);
            return;
        };
        let Some(conn) = self.connections.get_mut(index) else { return };
        let is_established = conn.tcp_established && !segment.flags.has(Flags::SYN);
        if is_established || self.admit_segment(now, index, segment) {
            self.process_segment(now, index, segment, frame);
        } else if self.connections.get(index).is_none() {
            self.on_unmatched_segment(now, segment, frame);
        }
    }

    /// Passes a segment to its connection's TCP, and processes the data delivered.
    #[inline]
    fn process_segment<F: SegmentFrame<D>>(
        &mut self,
        now: Instant,
        index: u32,
        segment: &Segment,
        frame: F,
    ) {
        let Some(conn) = self.connections.get_mut(index) else { return };
        match conn.tcb.handle_segment(now, segment, frame) {
            Delivered::Nothing => {}
            Delivered::InOrder { frame, bytes } => {
                self.on_stream_bytes(now, index, &frame, bytes);
                self.deliver_contiguous(now, index);
            }
            Delivered::OutOfOrder { frame, seq, bytes } => {
                self.on_ooo_data(index, frame, seq, bytes)
            }
        }
        // The connection transmits later in this pass; its timer is armed then, once per burst.
        self.handle_tcp_events(now, index);
        self.make_ready(index);
    }

    /// Looks up a connection by four-tuple. Segments come in trains: the connection of the last one
    /// is compared first, since the keyed hash of the table costs as much as the rest of the
    /// receive path.
    #[inline]
    fn lookup_cached(&mut self, tuple: &FourTuple) -> Option<u32> {
        if let Some(conn) = self.connections.get(self.last_match)
            && conn.tcb.matches(tuple)
        {
            return Some(self.last_match);
        }
        self.last_match = self.lookup(tuple)?;
        Some(self.last_match)
    }

    /// Looks up a connection by four-tuple in the table.
    pub(super) fn lookup(&self, tuple: &FourTuple) -> Option<u32> {
        let is_it =
            |&index: &u32| self.connections.get(index).is_some_and(|conn| conn.tcb.matches(tuple));
        self.by_tuple.find(self.hash.hash_one(tuple), is_it).copied()
    }

    /// Processes a segment of no connection: a listener accepts it, or it is answered with RST.
    fn on_unmatched_segment<F: SegmentFrame<D>>(
        &mut self,
        now: Instant,
        segment: &Segment,
        frame: F,
    ) {
        let remote_mac = ethernet::source_mac(frame.head());
        let Some(remote_mac) = remote_mac.filter(|_| self.may_answer(&segment.tuple)) else {
            self.verbs.counters.frames_dropped += 1;
            return;
        };
        if self.on_listener_segment(now, segment, remote_mac, frame) {
            return;
        }
        self.verbs.counters.segments_unmatched += 1;
        // An RST gets no reply, and does not consume the rate limit.
        if let Some(fields) = rst_reply(segment)
            && self.rst_limit.admits(now)
        {
            self.send_stateless(remote_mac, segment.tuple, &fields);
        }
    }

    /// True if a segment of no connection is for this host and its source may get a reply.
    fn may_answer(&self, tuple: &FourTuple) -> bool {
        let (local, remote) = (tuple.local.ip(), tuple.remote.ip());
        self.routing.is_local(local)
            && routing::is_unicast_host(remote)
            && !self.routing.is_local(remote)
    }

    /// Handles the events of TCP; removes the connection once it is closed, or else arms its timer.
    pub(super) fn handle_tcp_events_and_arm(&mut self, now: Instant, index: u32) {
        self.handle_tcp_events(now, index);
        self.arm_timer(index);
    }

    /// Handles the events of TCP; removes the connection once it is closed.
    #[inline]
    fn handle_tcp_events(&mut self, now: Instant, index: u32) {
        if self.connections.get(index).is_some_and(|conn| conn.tcb.has_events()) {
            self.handle_tcp_events_cold(now, index);
        }
    }

    #[cold]
    fn handle_tcp_events_cold(&mut self, now: Instant, index: u32) {
        while let Some(notice) =
            self.connections.get_mut(index).and_then(|conn| conn.tcb.poll_event())
        {
            match notice {
                Event::Established => {
                    self.on_handshake_complete(index);
                    self.start_unframed(now, index);
                }
                Event::DataAfterFin => self.on_data_after_fin(index),
                Event::PeerClosed => {
                    if let Some(conn) = self.connections.get_mut(index) {
                        conn.tcb.release_ooo(&mut self.ooo_pool);
                    }
                    // req: MPA-054, MPA-147, MPA-152
                    self.on_fin(now, index);
                }
                Event::RcvWndLimited => self.grow_rcv_window(now, index),
                // The next FPDU is built for the new EMSS.
                Event::EmssChanged => self.verbs.counters.emss_changes += 1,
                Event::Reset => self.on_tcp_lost(index, EndReason::Reset),
                Event::TimedOut => self.on_tcp_lost(index, EndReason::TimedOut),
                Event::TimeWait => self.on_time_wait(index),
                Event::R1Exceeded => {
                    if let Some(conn) = self.connections.get_mut(index) {
                        conn.next_hop.mark_suspect(now);
                    }
                }
                Event::Closed => {}
            }
        }
        if self.connections.get(index).is_some_and(|conn| conn.tcb.is_closed()) {
            self.remove_connection(index);
        }
    }

    /// Processes in-order bytes of the stream.
    pub(super) fn on_stream_bytes(
        &mut self,
        now: Instant,
        index: u32,
        frame: &impl RxFrame,
        bytes: Range<usize>,
    ) {
        let Some(conn) = self.connections.get_mut(index) else { return };
        let held = match &mut conn.phase {
            Phase::Rdma { .. } => {
                return self.process_fpdus(now, index, StreamBytes::of_frame(frame, bytes));
            }
            Phase::DrainTerminate { .. } => {
                return self.drain_terminate(now, index, StreamBytes::of_frame(frame, bytes));
            }
            Phase::AwaitRequest { startup_rx: buffered } => buffered,
            Phase::AwaitReply(awaits) => &mut awaits.startup_rx,
            Phase::AwaitDecision(awaits) => &mut awaits.buffered,
            Phase::Streaming { stream_rx: buffered } => buffered,
            Phase::Rejected { .. } | Phase::Closed => return,
        };
        // TCP's startup window bounds the buffer.
        let start = held.len();
        held.resize(start + bytes.len(), 0);
        frame.copy_out(bytes.start, &mut held[start..]);
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        conn.buffered_len += len;
        conn.tcb.add_unconsumed(len);
        self.process_startup(now, index);
    }

    /// Processes FPDU bytes that were received before startup was complete.
    pub(super) fn process_buffered(&mut self, now: Instant, index: u32, buffered: &[u8]) {
        if !buffered.is_empty() {
            self.process_fpdus(now, index, buffered.into());
        }
    }

    /// Deframes bytes of a stream in full operation and hands each ULPDU to its queue pair.
    // Inlined always: `bytes` then need not pass through memory.
    #[inline(always)]
    fn process_fpdus(&mut self, now: Instant, index: u32, mut bytes: StreamBytes<'_>) {
        let Self { connections, fpdu_pool: pool, verbs, overrun_cqs: overrun, .. } = self;
        let Some(conn) = connections.get_mut(index) else { return };
        let Some(qp) = conn.qp else { return };
        let (tx_allowed, crc) = (&mut conn.tx_allowed, conn.framing.has_crc());
        let Phase::Rdma { deframer } = &mut conn.phase else { return };
        let mut memory = PartialMemory::Bounded;
        let terminate_queued = loop {
            let outcome = match deframer.next(now, &mut bytes, crc, pool, memory) {
                Ok(None) => return,
                Ok(Some(ulpdu)) => {
                    if ulpdu.is_reassembled {
                        verbs.counters.fpdus_assembled += 1;
                    }
                    let is_rtr = !*tx_allowed && verbs.on_first_fpdu(qp, ulpdu.bytes);
                    *tx_allowed = true;
                    // req: MPA-050
                    if is_rtr {
                        UlpduOutcome::Continue
                    } else {
                        verbs.process_ulpdu(qp, ulpdu.bytes)
                    }
                }
                Err(DeframeError::NoMemory) => {
                    let rest = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                    // What was acknowledged, or comes before FIN, does not come again.
                    if conn.tcb.can_decline(rest) {
                        conn.tcb.decline(rest);
                        verbs.counters.assembly_exhausted += 1;
                        self.evict_partial_fpdus(now);
                        return;
                    }
                    memory = PartialMemory::Forced;
                    UlpduOutcome::Continue
                }
                Err(DeframeError::Fpdu(error)) => verbs.fail_fpdu(qp, error, *tx_allowed),
            };
            match outcome {
                UlpduOutcome::Continue => {}
                UlpduOutcome::Ended => break *tx_allowed,
                UlpduOutcome::EndedSilently => break false,
                UlpduOutcome::CqOverrun(cq) => note_cq_overrun(overrun, cq),
            }
        };
        self.end_failed_stream(now, index, terminate_queued);
        self.drain_terminate(now, index, bytes);
    }
}

impl<M: Memory, C: Completions> QueuePairs<M, C> {
    /// Passes a verified ULPDU to its stream and reports the result.
    #[inline]
    fn process_ulpdu(&mut self, index: u32, ulpdu: &[u8]) -> UlpduOutcome {
        self.counters.fpdus_in += 1;
        let (qp, memory) = self.stream_of(index);
        let Some(stream) = qp else { return UlpduOutcome::Ended };
        match stream.on_ulpdu(memory, ulpdu) {
            Ok(Indication::Placed | Indication::ReadRequested) => UlpduOutcome::Continue,
            Ok(Indication::ReadCompleted) => {
                if self.complete_sends(index) {
                    UlpduOutcome::Continue
                } else {
                    self.cq_overrun_of(index, |qp| qp.init.send_cq)
                }
            }
            Ok(Indication::Received { message: filled, solicited, invalidated }) => {
                if self.complete_recv(index, filled, solicited, invalidated) {
                    UlpduOutcome::Continue
                } else {
                    self.cq_overrun_of(index, |qp| qp.init.recv_cq)
                }
            }
            Ok(Indication::ImmediateReceived { message: filled, data, solicited }) => {
                if self.complete_recv_immediate(index, filled, data, solicited) {
                    UlpduOutcome::Continue
                } else {
                    self.cq_overrun_of(index, |qp| qp.init.recv_cq)
                }
            }
            Ok(Indication::Terminated(terminate)) => {
                self.counters.terminates_in += 1;
                let reason =
                    terminate.map_or(EndReason::BadTerminate, EndReason::TerminateReceived);
                // req: RDMAP-044, RDMAP-196
                self.enter_error(index, reason);
                UlpduOutcome::Ended
            }
            Err(fault) => self.on_ulpdu_fault(index, fault, ulpdu),
        }
    }

    /// Processes the first FPDU from an initiator: true if it is only the RTR message.
    #[cold]
    fn on_first_fpdu(&mut self, index: u32, ulpdu: &[u8]) -> bool {
        let (stream, _) = self.stream_of(index);
        let is_rtr = stream.is_some_and(|stream| stream.consume_rtr(ulpdu));
        self.counters.fpdus_in += u64::from(is_rtr);
        is_rtr
    }

    /// Ends a stream over an invalid FPDU. The other direction continues for the Terminate if this
    /// end may send: a responder must not before the first valid FPDU from the initiator (RFC 5044
    /// section 7.1.2).
    #[cold]
    fn fail_fpdu(&mut self, index: u32, damage: FpduError, tx_allowed: bool) -> UlpduOutcome {
        let fault = match damage {
            FpduError::Crc => {
                self.counters.crc_errors += 1;
                Fault::Crc
            }
            FpduError::Marker => {
                self.counters.marker_errors += 1;
                Fault::Marker
            }
        };
        if tx_allowed {
            // req: MPA-151, MPA-161, MPA-162
            return self.fail_stream(index, fault, &[]);
        }
        let (Some(stream), _) = self.stream_of(index) else { return UlpduOutcome::Ended };
        if let Some(unsent) = stream.fail_without_terminate(fault) {
            self.enter_error(index, EndReason::TerminateUnsent(unsent));
        }
        UlpduOutcome::Ended
    }

    /// Places the payload of an out-of-order FPDU if it is a valid RDMA Write.
    pub(super) fn place_ooo_write(&mut self, index: u32, ulpdu: &[u8]) -> bool {
        let (stream, memory) = self.stream_of(index);
        let placed = stream.is_some_and(|stream| stream.place_ooo_write(memory, ulpdu));
        self.counters.fpdus_placed_ooo += u64::from(placed);
        placed
    }

    /// Ends a stream whose markers contradict its lengths. True if a Terminate is pending.
    #[cold]
    pub(super) fn fail_markers(&mut self, index: u32, tx_allowed: bool) -> bool {
        self.fail_fpdu(index, FpduError::Marker, tx_allowed) != UlpduOutcome::EndedSilently
            && tx_allowed
    }

    /// Handles a ULPDU refused by its stream. Without a receive buffer, one is taken from the
    /// shared receive queue, if there is one, and the ULPDU is processed again; otherwise the
    /// stream ends.
    #[cold]
    fn on_ulpdu_fault(&mut self, index: u32, fault: Fault, ulpdu: &[u8]) -> UlpduOutcome {
        if fault != Fault::Untagged(UntaggedFault::NoBuffer) || !self.take_srq_buffer(index) {
            return self.fail_stream(index, fault, ulpdu);
        }
        // The same FPDU is counted again below.
        self.counters.fpdus_in -= 1;
        let outcome = self.process_ulpdu(index, ulpdu);
        if matches!(outcome, UlpduOutcome::Ended | UlpduOutcome::EndedSilently) {
            self.return_srq_buffer(index);
        } else {
            self.commit_srq_buffer(index);
        }
        outcome
    }

    /// Ends a stream over a fault of the peer, with a Terminate.
    pub(super) fn terminate_with(&mut self, index: u32, terminate: Terminate) {
        // req: DDP-151
        self.counters.terminates_out += 1;
        // req: DDP-137, DDP-162, DDP-200
        // req: RDMAP-037, RDMAP-041, RDMAP-135, RDMAP-148, RDMAP-175
        self.enter_error(index, EndReason::TerminateSent(terminate));
    }

    fn fail_stream(&mut self, index: u32, fault: Fault, ulpdu: &[u8]) -> UlpduOutcome {
        let Some(qp) = self.get_mut(index) else { return UlpduOutcome::Ended };
        if qp.tx_closed {
            if let Some(unsent) = qp.stream.fail_without_terminate(fault) {
                self.enter_error(index, EndReason::TerminateUnsent(unsent));
            }
            return UlpduOutcome::EndedSilently;
        }
        let terminate = qp.stream.fail(fault, ulpdu);
        if let Some((wr_id, too_long)) = Stream::faulted_buffer(fault) {
            let status = if too_long { WcStatus::LocalLength } else { WcStatus::LocalProtection };
            // req: RDMAP-033
            self.fail_recv(index, wr_id, status);
        }
        if let Some(terminate) = terminate {
            self.terminate_with(index, terminate);
        }
        UlpduOutcome::Ended
    }

    pub(super) fn stream_of(&mut self, index: u32) -> (Option<&mut Stream>, &M) {
        let (qp, memory) = self.qp_and_memory(index);
        (qp.map(|qp| &mut qp.stream), memory)
    }

    fn cq_overrun_of(
        &self,
        index: u32,
        cq: impl Fn(&super::queue_pairs::Qp) -> CqId,
    ) -> UlpduOutcome {
        self.get(index).map_or(UlpduOutcome::Ended, |qp| UlpduOutcome::CqOverrun(cq(qp)))
    }
}

/// Notes a completion queue that overran, once.
pub(super) fn note_cq_overrun(overrun: &mut Vec<CqId>, cq: CqId) {
    if !overrun.contains(&cq) {
        overrun.push(cq);
    }
}
