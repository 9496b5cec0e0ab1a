//! Frames in: to TCP, to the start-up exchange, to MPA, and ULPDUs to their queue pair.

use core::hash::BuildHasher;
use core::ops::Range;

use crate::ddp::memory::Memory;
use crate::ddp::untagged::UntaggedFault;
use crate::device::{Device, RxFrame};
use crate::engine::Engine;
use crate::engine::connection::Phase;
use crate::engine::early::Arrived;
use crate::engine::queue_pairs::QueuePairs;
use crate::mpa::fpdu::FpduError;
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

/// What a ULPDU means for its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Go on.
    Good,
    /// The stream has ended; a Terminate may be due.
    Ended,
    /// The stream has ended over a fault, and this end has said its last already.
    Unsaid,
    /// The stream goes on, and this completion queue overran.
    Overrun(CqId),
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// A segment, which `frame` brought.
    #[inline]
    pub(super) fn take_segment<F: Arrived<D>>(
        &mut self,
        now: Instant,
        segment: &Segment,
        frame: F,
    ) {
        let Some(index) = self.look_up(&segment.tuple) else {
            self.take_unmatched(now, segment, frame);
            return;
        };
        let Some(conn) = self.connections.get_mut(index) else { return };
        let goes_on = conn.established && !segment.flags.has(Flags::SYN);
        if goes_on || self.goes_on(now, index, segment) {
            self.deliver_segment(now, index, segment, frame);
        } else if self.connections.get(index).is_none() {
            self.take_unmatched(now, segment, frame);
        }
    }

    /// A segment for a connection's TCP.
    #[inline]
    fn deliver_segment<F: Arrived<D>>(
        &mut self,
        now: Instant,
        index: u32,
        segment: &Segment,
        frame: F,
    ) {
        let Some(conn) = self.connections.get_mut(index) else { return };
        match conn.tcb.handle_segment(now, segment, frame) {
            Delivered::Nothing => {}
            Delivered::InOrder { frame, octets } => {
                self.take_octets(now, index, &frame, octets);
                self.take_in_turn(now, index);
            }
            Delivered::OutOfOrder { frame, seq, octets } => {
                self.take_early(index, frame, seq, octets)
            }
        }
        // Its turn to send comes later in this pass; the timer is armed then, once per burst.
        self.heed(now, index);
        self.make_ready(index);
    }

    /// The connection of a four-tuple. Segments come in trains: that of the last one is looked at
    /// before the table, whose keyed hash costs as much as the rest of the way in.
    #[inline]
    fn look_up(&mut self, tuple: &FourTuple) -> Option<u32> {
        if let Some(conn) = self.connections.get(self.latest)
            && conn.tcb.is_between(tuple)
        {
            return Some(self.latest);
        }
        self.latest = self.find(tuple)?;
        Some(self.latest)
    }

    /// The same by the table alone.
    pub(super) fn find(&self, tuple: &FourTuple) -> Option<u32> {
        let is_it = |&index: &u32| {
            self.connections.get(index).is_some_and(|conn| conn.tcb.is_between(tuple))
        };
        self.by_tuple.find(self.hash.hash_one(tuple), is_it).copied()
    }

    /// A segment of no connection: a SYN for a listener, else answered with RST.
    fn take_unmatched<F: Arrived<D>>(&mut self, now: Instant, segment: &Segment, frame: F) {
        let remote_mac = ethernet::source_mac(frame.head());
        let Some(remote_mac) = remote_mac.filter(|_| self.may_answer(&segment.tuple)) else {
            self.verbs.counters.frames_dropped += 1;
            return;
        };
        if self.listener_takes(now, segment, remote_mac, frame) {
            return;
        }
        self.verbs.counters.segments_unmatched += 1;
        // A RST is not answered, and takes nothing of what there is for those that are.
        if let Some(fields) = rst_reply(segment)
            && self.resets.admits(now)
        {
            self.send_stateless(remote_mac, segment.tuple, &fields);
        }
    }

    /// A segment of no connection is for us, and from a host that an answer can go to.
    fn may_answer(&self, tuple: &FourTuple) -> bool {
        let (local, remote) = (tuple.local.ip(), tuple.remote.ip());
        self.routing.is_local(local)
            && routing::is_unicast_host(remote)
            && !self.routing.is_local(remote)
    }

    /// Acts on what TCP noticed, drops the connection once it is gone, or else arms its timer.
    pub(super) fn after_tcp(&mut self, now: Instant, index: u32) {
        self.heed(now, index);
        self.arm(index);
    }

    /// Acts on what TCP noticed, and drops the connection once it is gone.
    #[inline]
    fn heed(&mut self, now: Instant, index: u32) {
        if self.connections.get(index).is_some_and(|conn| conn.tcb.has_events()) {
            self.heed_news(now, index);
        }
    }

    #[cold]
    fn heed_news(&mut self, now: Instant, index: u32) {
        while let Some(notice) =
            self.connections.get_mut(index).and_then(|conn| conn.tcb.poll_event())
        {
            match notice {
                Event::Established => {
                    self.leave_half_open(index);
                    self.begin_unframed(now, index);
                }
                Event::DataAfterFin => self.take_behind_fin(index),
                Event::PeerClosed => {
                    if let Some(conn) = self.connections.get_mut(index) {
                        conn.tcb.release_ooo(&mut self.holds);
                    }
                    // req: MPA-054, MPA-147, MPA-152
                    self.take_fin(now, index);
                }
                Event::RcvWndLimited => self.grow_window(now, index),
                // The next FPDU is built for it.
                Event::EmssChanged => self.verbs.counters.emss_changes += 1,
                Event::Reset => self.lose(index, EndReason::Reset),
                Event::TimedOut => self.lose(index, EndReason::TimedOut),
                Event::TimeWait => self.note_time_wait(index),
                Event::R1Exceeded => {
                    if let Some(conn) = self.connections.get_mut(index) {
                        conn.hop.suspect(now);
                    }
                }
                Event::Closed => {}
            }
        }
        if self.connections.get(index).is_some_and(|conn| conn.tcb.is_closed()) {
            self.drop_connection(index);
        }
    }

    /// Octets of the stream, in order.
    pub(super) fn take_octets(
        &mut self,
        now: Instant,
        index: u32,
        frame: &impl RxFrame,
        octets: Range<usize>,
    ) {
        let Some(conn) = self.connections.get_mut(index) else { return };
        let held = match &mut conn.phase {
            Phase::Rdma { .. } => return self.take_fpdus(now, index, frame, octets),
            Phase::LastWord { .. } => return self.take_last_word(now, index, frame, octets),
            Phase::AwaitRequest { inbox } => inbox,
            Phase::AwaitReply(awaits) => &mut awaits.inbox,
            Phase::AwaitDecision(awaits) => &mut awaits.early,
            Phase::Streaming { inbox } => inbox,
            Phase::Rejected { .. } | Phase::Over => return,
        };
        // TCP's start-up window bounds what is held.
        let start = held.len();
        held.resize(start + octets.len(), 0);
        frame.copy_out(octets.start, &mut held[start..]);
        let len = u32::try_from(octets.len()).unwrap_or(u32::MAX);
        conn.held_len += len;
        conn.tcb.add_unconsumed(len);
        self.take_startup(now, index);
    }

    /// FPDU octets that arrived before both ends had agreed.
    pub(super) fn take_held(&mut self, now: Instant, index: u32, early: &[u8]) {
        if !early.is_empty() {
            self.take_fpdus(now, index, &Held(early), 0..early.len());
        }
    }

    /// FPDUs, whole where they lie, or gathered.
    fn take_fpdus(
        &mut self,
        now: Instant,
        index: u32,
        frame: &impl RxFrame,
        mut octets: Range<usize>,
    ) {
        let Self { connections, assembly, verbs, overrun, .. } = self;
        let Some(conn) = connections.get_mut(index) else { return };
        let Some(qp) = conn.qp else { return };
        let (gate_open, crc) = (&mut conn.gate_open, conn.framing.has_crc());
        let Phase::Rdma { receiver } = &mut conn.phase else { return };
        let head = frame.head();
        let ended = 'octets: loop {
            if let Some(missing) = receiver.needed() {
                let take = missing.min(octets.len());
                let rest = u32::try_from(octets.len()).unwrap_or(u32::MAX);
                // What was acknowledged, or comes before FIN, does not come again.
                let must = !conn.tcb.can_decline(rest);
                let copy = |out: &mut [u8]| frame.copy_out(octets.start, out);
                // req: MPA-132, MPA-136
                if !receiver.extend(assembly, take, must, copy) {
                    conn.tcb.decline(rest);
                    verbs.counters.assembly_exhausted += 1;
                    self.evict_partials(now);
                    return;
                }
                octets.start += take;
                let verdict = match receiver.complete(crc, assembly) {
                    Ok(None) => Verdict::Good,
                    Ok(Some(ulpdu)) => {
                        let is_rtr = !*gate_open && verbs.open_gate(qp, ulpdu);
                        *gate_open = true;
                        verbs.counters.fpdus_assembled += 1;
                        // req: MPA-050
                        let verdict =
                            if is_rtr { Verdict::Good } else { verbs.take_ulpdu(qp, ulpdu) };
                        receiver.reset(assembly);
                        verdict
                    }
                    Err(damage) => verbs.fail_fpdu(qp, damage, *gate_open),
                };
                match verdict {
                    Verdict::Good => {}
                    Verdict::Ended => break Some(*gate_open),
                    Verdict::Unsaid => break Some(false),
                    Verdict::Overrun(cq) => note_overrun(overrun, cq),
                }
            } else {
                let mut run = head.get(octets.start..octets.end.min(head.len())).unwrap_or(&[]);
                loop {
                    let verdict = match receiver.parse(run, crc, assembly) {
                        Ok(None) => break,
                        Ok(Some((ulpdu, used))) => {
                            let is_rtr = !*gate_open && verbs.open_gate(qp, ulpdu);
                            *gate_open = true;
                            run = &run[used..];
                            octets.start += used;
                            // req: MPA-050
                            if is_rtr { Verdict::Good } else { verbs.take_ulpdu(qp, ulpdu) }
                        }
                        Err(damage) => verbs.fail_fpdu(qp, damage, *gate_open),
                    };
                    match verdict {
                        Verdict::Good => {}
                        Verdict::Ended => break 'octets Some(*gate_open),
                        Verdict::Unsaid => break 'octets Some(false),
                        Verdict::Overrun(cq) => note_overrun(overrun, cq),
                    }
                }
                if octets.is_empty() {
                    break None;
                }
                // req: MPA-135, MPA-137
                receiver.start_partial(now);
            }
            if octets.is_empty() {
                break None;
            }
        };
        if let Some(was_told) = ended {
            self.end_told(now, index, was_told);
            self.take_last_word(now, index, frame, octets);
        }
    }
}

impl<M: Memory, C: Completions> QueuePairs<M, C> {
    /// Hands a verified ULPDU to its stream and reports what came of it.
    #[inline]
    fn take_ulpdu(&mut self, index: u32, ulpdu: &[u8]) -> Verdict {
        self.counters.fpdus_in += 1;
        let (qp, memory) = self.stream_of(index);
        let Some(stream) = qp else { return Verdict::Ended };
        match stream.on_ulpdu(memory, ulpdu) {
            Ok(Indication::Placed | Indication::ReadRequested) => Verdict::Good,
            Ok(Indication::ReadCompleted) => {
                if self.report_sends(index) {
                    Verdict::Good
                } else {
                    self.overrun_of(index, |qp| qp.init.send_cq)
                }
            }
            Ok(Indication::Received { message: filled, solicited, invalidated }) => {
                if self.report_receive(index, filled, solicited, invalidated) {
                    Verdict::Good
                } else {
                    self.overrun_of(index, |qp| qp.init.recv_cq)
                }
            }
            Ok(Indication::ImmediateReceived { message: filled, data, solicited }) => {
                if self.report_immediate(index, filled, data, solicited) {
                    Verdict::Good
                } else {
                    self.overrun_of(index, |qp| qp.init.recv_cq)
                }
            }
            Ok(Indication::Terminated(told)) => {
                self.counters.terminates_in += 1;
                let reason = told.map_or(EndReason::BadTerminate, EndReason::TerminateReceived);
                // req: RDMAP-044, RDMAP-196
                self.enter_error(index, reason);
                Verdict::Ended
            }
            Err(fault) => self.refuse(index, fault, ulpdu),
        }
    }

    /// The first FPDU of an initiator: true if it only says that this end may speak.
    #[cold]
    fn open_gate(&mut self, index: u32, ulpdu: &[u8]) -> bool {
        let (stream, _) = self.stream_of(index);
        let is_rtr = stream.is_some_and(|stream| stream.consume_rtr(ulpdu));
        self.counters.fpdus_in += u64::from(is_rtr);
        is_rtr
    }

    /// Ends a stream over an FPDU that is wrong. The other direction goes on for the Terminate, if
    /// this end may speak: until there is a valid FPDU of the initiator's, the responder says
    /// nothing (RFC 5044 section 7.1.2).
    #[cold]
    fn fail_fpdu(&mut self, index: u32, damage: FpduError, may_speak: bool) -> Verdict {
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
        if may_speak {
            // req: MPA-151, MPA-161, MPA-162
            return self.fail_stream(index, fault, &[]);
        }
        let (Some(stream), _) = self.stream_of(index) else { return Verdict::Ended };
        if let Some(unsent) = stream.fail_without_terminate(fault) {
            self.enter_error(index, EndReason::TerminateUnsent(unsent));
        }
        Verdict::Ended
    }

    /// Places what an FPDU ahead of its turn brings, if it can be placed then.
    pub(super) fn place_ahead(&mut self, index: u32, ulpdu: &[u8]) -> bool {
        let (stream, memory) = self.stream_of(index);
        let placed = stream.is_some_and(|stream| stream.place_ooo_write(memory, ulpdu));
        self.counters.fpdus_placed_early += u64::from(placed);
        placed
    }

    /// Ends a stream whose markers contradict its lengths. True if a Terminate is due.
    #[cold]
    pub(super) fn fail_markers(&mut self, index: u32, may_speak: bool) -> bool {
        self.fail_fpdu(index, FpduError::Marker, may_speak) != Verdict::Unsaid && may_speak
    }

    /// A ULPDU that its stream refused: for want of a buffer once more if there is a shared queue,
    /// else the stream ends.
    #[cold]
    fn refuse(&mut self, index: u32, fault: Fault, ulpdu: &[u8]) -> Verdict {
        if fault != Fault::Untagged(UntaggedFault::NoBuffer) || !self.borrow_buffer(index) {
            return self.fail_stream(index, fault, ulpdu);
        }
        // It is the same one.
        self.counters.fpdus_in -= 1;
        let verdict = self.take_ulpdu(index, ulpdu);
        if matches!(verdict, Verdict::Ended | Verdict::Unsaid) {
            self.return_buffer(index);
        } else {
            self.keep_buffer(index);
        }
        verdict
    }

    /// Ends a stream over a fault of the peer's, with a Terminate.
    pub(super) fn end_with(&mut self, index: u32, told: Terminate) {
        // req: DDP-151
        self.counters.terminates_out += 1;
        // req: DDP-137, DDP-162, DDP-200
        // req: RDMAP-037, RDMAP-041, RDMAP-135, RDMAP-148, RDMAP-175
        self.enter_error(index, EndReason::TerminateSent(told));
    }

    fn fail_stream(&mut self, index: u32, fault: Fault, ulpdu: &[u8]) -> Verdict {
        let Some(qp) = self.get_mut(index) else { return Verdict::Ended };
        if qp.finished {
            if let Some(unsent) = qp.stream.fail_without_terminate(fault) {
                self.enter_error(index, EndReason::TerminateUnsent(unsent));
            }
            return Verdict::Unsaid;
        }
        let told = qp.stream.fail(fault, ulpdu);
        if let Some((wr_id, too_long)) = Stream::faulted_buffer(fault) {
            let status = if too_long { WcStatus::LocalLength } else { WcStatus::LocalProtection };
            // req: RDMAP-033
            self.fail_receive(index, wr_id, status);
        }
        if let Some(told) = told {
            self.end_with(index, told);
        }
        Verdict::Ended
    }

    pub(super) fn stream_of(&mut self, index: u32) -> (Option<&mut Stream>, &M) {
        let (qp, memory) = self.split(index);
        (qp.map(|qp| &mut qp.stream), memory)
    }

    fn overrun_of(&self, index: u32, cq: impl Fn(&super::queue_pairs::Qp) -> CqId) -> Verdict {
        self.get(index).map_or(Verdict::Ended, |qp| Verdict::Overrun(cq(qp)))
    }
}

/// A queue that overran is ended once.
pub(super) fn note_overrun(overrun: &mut Vec<CqId>, cq: CqId) {
    if !overrun.contains(&cq) {
        overrun.push(cq);
    }
}

/// Octets that were held while the start-up exchange went on, as one run.
struct Held<'a>(&'a [u8]);

impl RxFrame for Held<'_> {
    fn head(&self) -> &[u8] {
        self.0
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn copy_out(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.0[offset..offset + out.len()]);
    }

    fn checksum(&self) -> crate::device::ChecksumState {
        crate::device::ChecksumState::Good
    }
}
