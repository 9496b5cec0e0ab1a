//! Receive path of a queue pair: passes verified ULPDUs to its stream, and reports faults.

use crate::ddp::memory::Memory;
use crate::ddp::untagged::UntaggedFault;
use crate::mpa::fpdu::FpduError;
use crate::rdmap::fault::Fault;
use crate::rdmap::stream::{Indication, LastSinks, Placement, Segment, Stream};
use crate::verbs::cm::{ConnEvent, EndReason};
use crate::verbs::queue_pair::Qp;
use crate::verbs::resources::Verbs;
use crate::verbs::wc::{Completions, WcStatus};
use crate::wire::ddp::HeaderError;
use crate::wire::rdmap::SegmentControl;
use crate::wire::terminate::Terminate;

/// Result of a ULPDU for its connection.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the connection ends with the stream"]
pub(crate) enum UlpduOutcome {
    /// The stream continues.
    Continue,
    /// The stream has ended; a Terminate may be pending.
    Ended,
    /// The stream has ended over a fault, and no Terminate can be sent: this direction is closed.
    EndedSilently,
}

impl Qp {
    /// Passes a verified ULPDU to the stream and reports the result. `sinks` are those of the
    /// ULPDUs before it in the same pass.
    #[inline(always)]
    pub(crate) fn on_ulpdu_in_run<M: Memory, C: Completions>(
        &mut self,
        verbs: &mut Verbs<M, C>,
        ulpdu: &[u8],
        sinks: &mut LastSinks,
    ) -> UlpduOutcome {
        verbs.counters.fpdus_in += 1;
        // The control bytes of DDP and RDMAP (RFC 5041 section 4.1, RFC 5040 section 4.1).
        let control = SegmentControl::of(ulpdu, self.stream.version());
        if control == SegmentControl::WRITE
            && let Some((header, payload)) = ulpdu.split_first_chunk()
            && self.stream.place_write_in_run(&verbs.memory, header, payload, sinks)
        {
            return UlpduOutcome::Continue;
        }
        self.on_other_ulpdu(verbs, control, ulpdu, sinks)
    }

    /// Passes a ULPDU that is no RDMA Write, or an invalid one, to the stream.
    // Not inlined, so that the function that handles Writes keeps more in registers. The same is
    // true of each of the following functions and its callers.
    #[inline(never)]
    fn on_other_ulpdu<M: Memory, C: Completions>(
        &mut self,
        verbs: &mut Verbs<M, C>,
        control: SegmentControl,
        ulpdu: &[u8],
        sinks: &mut LastSinks,
    ) -> UlpduOutcome {
        match control {
            SegmentControl::SEND => self.on_send(verbs, ulpdu, sinks),
            SegmentControl::READ_RESPONSE => self.on_read_response(verbs, ulpdu, sinks),
            SegmentControl::READ_REQUEST => self.on_read_request(verbs, ulpdu, sinks),
            // Any other form, reserved bits that are set, or an invalid header.
            _ => match Segment::parse(ulpdu, self.stream.version()) {
                Ok(segment) => self.on_segment(verbs, ulpdu, &segment, sinks),
                Err(fault) => self.fail_stream(verbs, fault, ulpdu),
            },
        }
    }

    /// Passes a segment of a Send, neither solicited nor with Invalidate, to the stream.
    #[inline(never)]
    fn on_send<M: Memory, C: Completions>(
        &mut self,
        verbs: &mut Verbs<M, C>,
        ulpdu: &[u8],
        sinks: &mut LastSinks,
    ) -> UlpduOutcome {
        if self.stream.continue_send(&verbs.memory, ulpdu, sinks) {
            return UlpduOutcome::Continue;
        }
        self.on_first_or_last_of_send(verbs, ulpdu, sinks)
    }

    /// [`Qp::on_send`] for the segments at the ends of a run.
    #[inline(never)]
    fn on_first_or_last_of_send<M: Memory, C: Completions>(
        &mut self,
        verbs: &mut Verbs<M, C>,
        ulpdu: &[u8],
        sinks: &mut LastSinks,
    ) -> UlpduOutcome {
        let Some(header) = ulpdu.first_chunk() else {
            return self.fail_stream(verbs, Fault::Header(HeaderError::Truncated), ulpdu);
        };
        match self.stream.place_send_in_run(&verbs.memory, ulpdu, header, sinks) {
            Placement::Segment => UlpduOutcome::Continue,
            Placement::Message(message) => {
                self.complete_recv(verbs, message, false, None);
                UlpduOutcome::Continue
            }
            Placement::Refused(segment) => self.on_segment(verbs, ulpdu, &segment, sinks),
        }
    }

    /// Passes a segment of a Read Response to the stream.
    #[inline(never)]
    fn on_read_response<M: Memory, C: Completions>(
        &mut self,
        verbs: &mut Verbs<M, C>,
        ulpdu: &[u8],
        sinks: &mut LastSinks,
    ) -> UlpduOutcome {
        if self.stream.continue_read_response(&verbs.memory, ulpdu, sinks) {
            return UlpduOutcome::Continue;
        }
        self.on_first_or_last_of_read_response(verbs, ulpdu, sinks)
    }

    /// [`Qp::on_read_response`] for the segments at the ends of a run.
    #[inline(never)]
    fn on_first_or_last_of_read_response<M: Memory, C: Completions>(
        &mut self,
        verbs: &mut Verbs<M, C>,
        ulpdu: &[u8],
        sinks: &mut LastSinks,
    ) -> UlpduOutcome {
        let Some(header) = ulpdu.first_chunk() else {
            return self.fail_stream(verbs, Fault::Header(HeaderError::Truncated), ulpdu);
        };
        match self.stream.place_read_response_in_run(&verbs.memory, ulpdu, header, sinks) {
            Placement::Refused(segment) => self.on_segment(verbs, ulpdu, &segment, sinks),
            _ => UlpduOutcome::Continue,
        }
    }

    /// Passes a Read Request to the stream.
    #[inline(never)]
    fn on_read_request<M: Memory, C: Completions>(
        &mut self,
        verbs: &mut Verbs<M, C>,
        ulpdu: &[u8],
        sinks: &mut LastSinks,
    ) -> UlpduOutcome {
        let Some((header, payload)) = ulpdu.split_first_chunk() else {
            return self.fail_stream(verbs, Fault::Header(HeaderError::Truncated), ulpdu);
        };
        match self.stream.queue_read_request(&verbs.memory, header, payload) {
            Ok(()) => UlpduOutcome::Continue,
            Err(segment) => self.on_segment(verbs, ulpdu, &segment, sinks),
        }
    }

    /// Passes a segment that may be invalid, or needs more than placement, to the stream and
    /// reports the result.
    #[inline(never)]
    fn on_segment<M: Memory, C: Completions>(
        &mut self,
        verbs: &mut Verbs<M, C>,
        ulpdu: &[u8],
        segment: &Segment,
        sinks: &mut LastSinks,
    ) -> UlpduOutcome {
        *sinks = LastSinks::NONE;
        match self.stream.process(&verbs.memory, segment, segment.payload(ulpdu)) {
            Ok(Indication::Placed | Indication::ReadRequested) => {}
            Ok(Indication::ReadCompleted) => self.complete_sends(verbs),
            Ok(Indication::Received { message, solicited, invalidated }) => {
                self.complete_recv(verbs, message, solicited, invalidated);
            }
            Ok(Indication::ImmediateReceived { message, data, solicited }) => {
                self.complete_recv_immediate(verbs, message, data, solicited);
            }
            Ok(Indication::Terminated(terminate)) => {
                verbs.counters.terminates_in += 1;
                let reason =
                    terminate.map_or(EndReason::BadTerminate, EndReason::TerminateReceived);
                // req: RDMAP-044, RDMAP-196
                self.enter_error(verbs, reason);
                return UlpduOutcome::Ended;
            }
            Err(fault) => return self.on_segment_fault(verbs, fault, ulpdu, segment, sinks),
        }
        UlpduOutcome::Continue
    }

    /// Processes the first FPDU from an initiator if it is the RTR message; true if so.
    #[cold]
    pub(crate) fn take_rtr<M, C>(&mut self, verbs: &mut Verbs<M, C>, ulpdu: &[u8]) -> bool {
        let is_rtr = self.stream.consume_rtr(ulpdu);
        verbs.counters.fpdus_in += u64::from(is_rtr);
        is_rtr
    }

    /// Places the payload of an out-of-order FPDU if it is a valid RDMA Write.
    pub(crate) fn place_ooo_write<M: Memory, C>(
        &mut self,
        verbs: &mut Verbs<M, C>,
        ulpdu: &[u8],
    ) -> bool {
        let placed = self.stream.place_ooo_write(&verbs.memory, ulpdu);
        verbs.counters.fpdus_placed_ooo += u64::from(placed);
        placed
    }

    /// Processes a ULPDU after the end of the stream: true if it is a Terminate, which is reported.
    pub(crate) fn drain_ulpdu<M, C>(&mut self, verbs: &mut Verbs<M, C>, ulpdu: &[u8]) -> bool {
        let Some(Indication::Terminated(terminate)) = self.stream.drain_ulpdu(ulpdu) else {
            return false;
        };
        verbs.counters.fpdus_in += 1;
        verbs.counters.terminates_in += 1;
        verbs.events.push_back(ConnEvent::TerminateReceived { qp: self.id, terminate });
        true
    }

    /// Ends the stream over an invalid FPDU. The other direction continues for the Terminate if the
    /// local stack may send: a responder must not before the first valid FPDU from the initiator
    /// (RFC 5044 section 7.1.2).
    #[cold]
    pub(crate) fn on_fpdu_error<M, C>(
        &mut self,
        verbs: &mut Verbs<M, C>,
        error: FpduError,
        tx_allowed: bool,
    ) -> UlpduOutcome {
        let fault = match error {
            FpduError::Crc => {
                verbs.counters.crc_errors += 1;
                Fault::Crc
            }
            FpduError::Marker => {
                verbs.counters.marker_errors += 1;
                Fault::Marker
            }
        };
        if tx_allowed {
            // req: MPA-151, MPA-159, MPA-161, MPA-162
            return self.fail_stream(verbs, fault, &[]);
        }
        if let Some(unsent) = self.stream.fail_without_terminate(fault) {
            self.enter_error(verbs, EndReason::TerminateUnsent(unsent));
        }
        UlpduOutcome::Ended
    }

    /// Handles a segment refused by the stream. Without a receive buffer, one is taken from the
    /// shared receive queue, if there is one, and the segment is processed again; otherwise the
    /// stream ends.
    #[cold]
    fn on_segment_fault<M: Memory, C: Completions>(
        &mut self,
        verbs: &mut Verbs<M, C>,
        fault: Fault,
        ulpdu: &[u8],
        segment: &Segment,
        sinks: &mut LastSinks,
    ) -> UlpduOutcome {
        if fault != Fault::Untagged(UntaggedFault::NoBuffer) || !self.take_srq_buffer(verbs) {
            return self.fail_stream(verbs, fault, ulpdu);
        }
        let outcome = self.on_segment(verbs, ulpdu, segment, sinks);
        if matches!(outcome, UlpduOutcome::Ended | UlpduOutcome::EndedSilently) {
            self.return_srq_buffer(verbs);
        } else {
            self.commit_srq_buffer(verbs);
        }
        outcome
    }

    fn fail_stream<M, C>(
        &mut self,
        verbs: &mut Verbs<M, C>,
        fault: Fault,
        ulpdu: &[u8],
    ) -> UlpduOutcome {
        if self.tx_closed {
            if let Some(unsent) = self.stream.fail_without_terminate(fault) {
                self.enter_error(verbs, EndReason::TerminateUnsent(unsent));
            }
            return UlpduOutcome::EndedSilently;
        }
        let terminate = self.stream.fail(fault, ulpdu);
        if let Some((wr_id, too_long)) = Stream::faulted_buffer(fault) {
            let status = if too_long { WcStatus::LocalLength } else { WcStatus::LocalProtection };
            // req: RDMAP-033
            self.fail_recv(wr_id, status);
        }
        if let Some(terminate) = terminate {
            self.terminate_with(verbs, terminate);
        }
        UlpduOutcome::Ended
    }

    /// Enters the error state over a fault of the peer, which is sent a Terminate.
    pub(crate) fn terminate_with<M, C>(&mut self, verbs: &mut Verbs<M, C>, terminate: Terminate) {
        // req: DDP-151
        verbs.counters.terminates_out += 1;
        // req: DDP-137, DDP-162, DDP-200
        // req: RDMAP-037, RDMAP-041, RDMAP-135, RDMAP-148, RDMAP-175
        self.enter_error(verbs, EndReason::TerminateSent(terminate));
    }

    /// Dequeues a shared receive buffer for the message that begins to arrive. False if there is
    /// none, the queue pair is at its cap, or it has a buffer of its own.
    // req: RDMAP-297
    fn take_srq_buffer<M, C>(&mut self, verbs: &mut Verbs<M, C>) -> bool {
        let Some(usage) = &mut self.srq else { return false };
        if self.stream.recv_queue.front().is_some() {
            return false;
        }
        let Some(srq) = verbs.srqs.get_mut(usage.index()) else { return false };
        if srq.is_capped(self.id, usage) {
            verbs.counters.srq_caps_reached += 1;
            return false;
        }
        let taken = srq.pop_to(&mut self.stream.recv_queue);
        verbs.on_srq_used(usage.index());
        taken
    }

    /// Returns the shared receive buffer of a message that was refused, unless the buffer completed
    /// in error.
    fn return_srq_buffer<M, C>(&mut self, verbs: &mut Verbs<M, C>) {
        let Some(index) = self.srq.map(|usage| usage.index()) else { return };
        match self.stream.recv_queue.front() {
            Some(buffer) => {
                if let Some(srq) = verbs.srqs.get_mut(index) {
                    srq.put_back(&buffer);
                }
                self.stream.recv_queue.pop_front();
            }
            None => self.commit_srq_buffer(verbs),
        }
    }

    /// Accounts for a shared receive buffer that a message has begun to fill, or has used up.
    fn commit_srq_buffer<M, C>(&mut self, verbs: &mut Verbs<M, C>) {
        let Some(usage) = &mut self.srq else { return };
        let Some(srq) = verbs.srqs.get_mut(usage.index()) else { return };
        srq.commit(self.id, usage);
    }
}
