//! Received ULPDUs: checks, placement, delivery.
//!
//! The two control bytes decide what becomes of a ULPDU ([`SegmentControl`]). Segments of Writes,
//! Sends and Read Responses, valid and with reserved bits zero, are placed by `place_*_in_run`, and
//! such Read Requests are queued by `queue_read_request`. They return any other with its header
//! parsed, for [`Stream::process`] to check in full and to name the fault. (A Write is refused for
//! a fault alone, which ends the stream.)
//!
//! [`SegmentControl`]: crate::wire::rdmap::SegmentControl

use super::segment_run::{RunKind, SegmentRun};
use super::{Indication, Stream};
use crate::ddp::memory::{Access, Memory, MemoryFault, place_tagged};
use crate::ddp::regions::{InvalidateFault, LastRegion};
use crate::ddp::untagged::{DeliveredMessage, UntaggedFault};
use crate::rdmap::fault::Fault;
use crate::wire::ddp::{Header, HeaderError, TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged, Version};
use crate::wire::rdmap::{Opcode, QN_READ_REQUEST, QN_SEND, QN_TERMINATE};
use crate::wire::rdmap_extensions::{IMMEDIATE_LEN, ImmediateData, QN_ATOMIC_RESPONSE};
use crate::wire::terminate::Terminate;

/// Sinks of the ULPDUs placed before, for a run of them in one pass. To be replaced by
/// [`LastSinks::NONE`] before a segment is processed in full, which may invalidate an STag.
#[derive(Debug)]
pub struct LastSinks {
    writes: LastRegion,
    /// Message that the last segment of a Send or Read Response was part of.
    message: SegmentRun,
}

impl LastSinks {
    /// For the first ULPDU.
    pub const NONE: Self = Self { writes: LastRegion::NONE, message: SegmentRun::NONE };
}

/// Segment of this stream's versions, its header parsed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    header: Header,
    opcode: Opcode,
}

impl Segment {
    /// Parses the header of a ULPDU. Versions and opcode are checked before placement, so that no
    /// byte of a message that RDMAP refuses is written to memory.
    ///
    /// # Errors
    /// [`Fault::Header`], [`Fault::Control`].
    pub(crate) fn parse(ulpdu: &[u8], version: Version) -> Result<Self, Fault> {
        let header = Header::parse(ulpdu, version).map_err(Fault::Header)?;
        let opcode = Opcode::parse(header.rsvd_ulp(), version).map_err(Fault::Control)?;
        Ok(Self { header, opcode })
    }

    /// Returns the payload of the ULPDU from which the segment was parsed.
    pub(crate) fn payload(self, ulpdu: &[u8]) -> &[u8] {
        &ulpdu[self.header.wire_len()..]
    }
}

/// Result of placing a segment in a run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Placement {
    /// A segment was placed, and not the last of its message.
    Segment,
    /// The last segment of a Send was placed: the message is to be delivered.
    Message(DeliveredMessage),
    /// Nothing was done: the segment is for [`Stream::process`].
    Refused(Segment),
}

/// In-order segments whose control bytes were checked, processed in the fewest instructions.
impl Stream {
    /// Places an RDMA Write (RFC 5040 section 5.1). False, with nothing done: it is not valid.
    #[inline(always)]
    pub(crate) fn place_write_in_run(
        &mut self,
        memory: &impl Memory,
        header: &[u8; TAGGED_LEN],
        payload: &[u8],
        sinks: &mut LastSinks,
    ) -> bool {
        let header = Tagged::from_bytes(header);
        // STag and TO of a segment without payload are not checked (RFC 5041 section 5.2).
        // req: DDP-104, DDP-106, DDP-160, DDP-089, DDP-105, RDMAP-142
        if payload.is_empty() {
            self.responder.on_write_placed(payload.len(), header.last);
            return true;
        }
        // Association, rights and bounds (RFC 5041 sections 7.1 and 8.2).
        let (regions, needed, len) = (memory.regions(), Access::REMOTE_WRITE, payload.len());
        let last = &mut sinks.writes;
        let range = regions.resolve_in_run(last, header.stag, self.scope, needed, header.to, len);
        let Some(range) = range else { return false };
        if memory.place(range, payload).is_err() {
            return false;
        }
        self.responder.on_write_placed(payload.len(), header.last);
        true
    }

    /// Places a segment of a Send if it is the next of the message placed before, and not its last.
    /// Its header is compared with the expected one.
    #[inline(always)]
    pub(crate) fn continue_send(
        &mut self,
        memory: &impl Memory,
        ulpdu: &[u8],
        sinks: &mut LastSinks,
    ) -> bool {
        if sinks.message.kind() != RunKind::Send {
            return false;
        }
        let placed = sinks.message.place_send(memory, ulpdu);
        placed.map(|len| self.recv_queue.advance(len)).is_some()
    }

    /// As [`Stream::continue_send`], of a Read Response.
    #[inline(always)]
    pub(crate) fn continue_read_response(
        &mut self,
        memory: &impl Memory,
        ulpdu: &[u8],
        sinks: &mut LastSinks,
    ) -> bool {
        if sinks.message.kind() != RunKind::ReadResponse {
            return false;
        }
        let placed = sinks.message.place_read_response(memory, ulpdu);
        placed.map(|len| self.requester.advance_response(len)).is_some()
    }

    /// Places a segment of a Send: the last of the message placed before, or the first of a run
    /// (RFC 5040 section 5.3).
    #[inline(always)]
    pub(crate) fn place_send_in_run(
        &mut self,
        memory: &impl Memory,
        ulpdu: &[u8],
        header: &[u8; UNTAGGED_LEN],
        sinks: &mut LastSinks,
    ) -> Placement {
        // RFC 5041 section 4.1: the segment with the L flag completes the message.
        let run = &mut sinks.message;
        if run.kind() == RunKind::Send {
            let placed = run.place_last_of_send(memory, ulpdu);
            if let Some(message) = placed.and_then(|len| self.recv_queue.deliver(len)) {
                return Placement::Message(message);
            }
        }
        sinks.message = SegmentRun::NONE;
        let header = Untagged::from_bytes(header);
        let payload = &ulpdu[UNTAGGED_LEN..];
        // RFC 5040 section 5.3: Sends use queue 0.
        if header.qn != QN_SEND || payload.is_empty() {
            return refused(Header::Untagged(header), SEND);
        }
        // The segment expected next, in a buffer of one element (RFC 5041 section 7.1).
        let sink = self.recv_queue.rest_of_sink(memory, self.scope, &header);
        let Some(mut sink) = sink else { return refused(Header::Untagged(header), SEND) };
        if !header.last {
            // It begins a run.
            if let Some(mut run) = SegmentRun::of_send(ulpdu, sink)
                && let Some(len) = run.place_send(memory, ulpdu)
            {
                sinks.message = run;
                self.recv_queue.advance(len);
                return Placement::Segment;
            }
        } else if payload.len() <= sink.len()
            && memory.place(sink.take_front(payload.len()), payload).is_ok()
        {
            #[expect(clippy::cast_possible_truncation, reason = "a sink has less than 2^32 bytes")]
            if let Some(message) = self.recv_queue.deliver(payload.len() as u32) {
                return Placement::Message(message);
            }
        }
        refused(Header::Untagged(header), SEND)
    }

    /// Places a segment of a Read Response that begins a run, but not its last (RFC 5040 section
    /// 5.2.2).
    #[inline(always)]
    pub(crate) fn place_read_response_in_run(
        &mut self,
        memory: &impl Memory,
        ulpdu: &[u8],
        header: &[u8; TAGGED_LEN],
        sinks: &mut LastSinks,
    ) -> Placement {
        sinks.message = SegmentRun::NONE;
        // The segment continues the response to the oldest outstanding Read.
        let header = Tagged::from_bytes(header);
        if let Some(mut run) = self.run_of_read_response(memory, &header, ulpdu)
            && let Some(len) = run.place_read_response(memory, ulpdu)
        {
            sinks.message = run;
            self.requester.advance_response(len);
            return Placement::Segment;
        }
        refused(Header::Tagged(header), Opcode::ReadResponse)
    }

    /// Queues a Read Request (RFC 5040 section 5.2.1).
    ///
    /// # Errors
    /// The segment, for [`Stream::process`]; nothing was done.
    pub(crate) fn queue_read_request(
        &mut self,
        memory: &impl Memory,
        header: &[u8; UNTAGGED_LEN],
        payload: &[u8],
    ) -> Result<(), Segment> {
        let header = Untagged::from_bytes(header);
        if header.qn == QN_READ_REQUEST
            && self.responder.on_read_request(memory, self.scope, &header, payload).is_ok()
        {
            return Ok(());
        }
        Err(Segment { header: Header::Untagged(header), opcode: Opcode::ReadRequest })
    }

    fn run_of_read_response(
        &self,
        memory: &impl Memory,
        header: &Tagged,
        ulpdu: &[u8],
    ) -> Option<SegmentRun> {
        if header.last {
            return None;
        }
        let sink = self.requester.rest_of_sink()?;
        if (header.stag, header.to) != (sink.lkey, sink.addr) {
            return None;
        }
        let (regions, needed) = (memory.regions(), Access::LOCAL_WRITE);
        let range = regions.resolve(sink.lkey, self.scope, needed, sink.addr, sink.len as usize);
        SegmentRun::of_read_response(ulpdu, range.ok()?)
    }
}

/// Send without Invalidate and Solicited Event.
const SEND: Opcode = Opcode::Send { invalidate: false, solicited: false };

const fn refused(header: Header, opcode: Opcode) -> Placement {
    Placement::Refused(Segment { header, opcode })
}

impl Stream {
    /// Processes one ULPDU of an in-order stream with a valid CRC: checks, places and delivers it.
    ///
    /// # Errors
    /// [`Fault`]: the caller ends the stream with [`Stream::fail`].
    pub fn on_ulpdu(&mut self, memory: &impl Memory, ulpdu: &[u8]) -> Result<Indication, Fault> {
        let segment = Segment::parse(ulpdu, self.version)?;
        self.process(memory, &segment, segment.payload(ulpdu))
    }

    /// Processes a ULPDU as [`Stream::on_ulpdu`], from its parsed header on.
    ///
    /// # Errors
    /// As [`Stream::on_ulpdu`].
    pub(crate) fn process(
        &mut self,
        memory: &impl Memory,
        segment: &Segment,
        payload: &[u8],
    ) -> Result<Indication, Fault> {
        match (segment.header, segment.opcode) {
            // req: RDMAP-036, RDMAP-134
            (Header::Tagged(header), Opcode::Write) => {
                self.place_write(memory, &header, payload)?;
                self.responder.on_write_placed(payload.len(), header.last);
                Ok(Indication::Placed)
            }
            // req: RDMAP-162, DDP-054
            (Header::Tagged(header), Opcode::ReadResponse) => {
                self.place_read_response(memory, &header, payload)
            }
            (Header::Tagged(_), _) => Err(Fault::UnexpectedOpcode),
            (Header::Untagged(header), opcode) => match (header.qn, opcode) {
                // req: RDMAP-169
                (QN_SEND, Opcode::Send { invalidate, solicited }) => {
                    self.place_send(memory, &header, payload, invalidate, solicited)
                }
                (QN_READ_REQUEST, Opcode::ReadRequest) => {
                    self.responder.on_read_request(memory, self.scope, &header, payload)?;
                    Ok(Indication::ReadRequested)
                }
                (QN_TERMINATE, Opcode::Terminate) => Ok(self.on_terminate(&header, payload)),
                _ => self.on_extension_message(memory, &header, opcode, payload),
            },
        }
    }

    /// Places the payload of an out-of-order ULPDU if it is a valid RDMA Write, which needs no
    /// order. False: it is to be processed in order.
    // req: MPA-006, MPA-007, RDMAP-012
    pub fn place_ooo_write(&self, memory: &impl Memory, ulpdu: &[u8]) -> bool {
        if self.failed {
            return false;
        }
        // req: DDP-114, RDMAP-210, RDMAP-264
        let Ok(Segment { header: Header::Tagged(header), opcode: Opcode::Write }) =
            Segment::parse(ulpdu, self.version)
        else {
            return false;
        };
        self.place_write(memory, &header, &ulpdu[TAGGED_LEN..]).is_ok()
    }

    /// It is the turn of Writes that were placed out of order.
    pub const fn skip_placed_writes(&mut self) {
        self.responder.skip_writes();
    }

    /// Returns the bytes of the Write that ended last since the last call: of the one that
    /// Immediate Data follows. 0 if there is none, or if parts of it were placed out of order.
    #[inline(always)]
    pub const fn take_write_len(&mut self) -> u32 {
        self.responder.take_write_len()
    }

    /// RDMA Write placement (RFC 5040 section 5.1).
    fn place_write(
        &self,
        memory: &impl Memory,
        header: &Tagged,
        payload: &[u8],
    ) -> Result<(), Fault> {
        let sink = (header.stag, header.to);
        place_tagged(memory, self.scope, Access::REMOTE_WRITE, sink, payload).map_err(Fault::Tagged)
    }

    /// Read Response placement (RFC 5040 section 5.2.2): into the sink of the oldest outstanding
    /// Read.
    fn place_read_response(
        &mut self,
        memory: &impl Memory,
        header: &Tagged,
        payload: &[u8],
    ) -> Result<Indication, Fault> {
        if self.requester.on_rtr_read_response(header.last && payload.is_empty()) {
            return Ok(Indication::Placed);
        }
        let lkey = self
            .requester
            .check_read_response(header, payload.len())
            .map_err(Fault::Tagged)?
            .ok_or(Fault::UnexpectedOpcode)?;
        place_tagged(memory, self.scope, Access::LOCAL_WRITE, (lkey, header.to), payload).map_err(
            |fault| match fault {
                MemoryFault::Page(_) => self.requester.fail_oldest_read(),
                fault => Fault::Tagged(fault),
            },
        )?;
        if self.requester.on_response_placed(payload.len(), header.last) {
            self.execute_local_ops(memory);
            Ok(Indication::ReadCompleted)
        } else {
            Ok(Indication::Placed)
        }
    }

    /// Send placement (RFC 5040 section 5.3): into the receive of its MSN; and the invalidation
    /// that the message asks for once it is complete.
    fn place_send(
        &mut self,
        memory: &impl Memory,
        header: &Untagged,
        payload: &[u8],
        invalidate: bool,
        solicited: bool,
    ) -> Result<Indication, Fault> {
        // Checked first: a refused message must not consume a receive buffer.
        // req: RDMAP-060
        let invalidated = (invalidate && header.last).then_some(header.rsvd_ulp_rest);
        if let Some(stag) = invalidated {
            // req: RDMAP-103, RDMAP-184, RDMAP-185, RDMAP-266, RDMAP-329, RDMAP-331
            memory.regions().check_invalidate(stag, self.scope).map_err(|fault| match fault {
                InvalidateFault::Unknown => Fault::InvalidateUnknown,
                InvalidateFault::Foreign => Fault::InvalidateForeign,
                InvalidateFault::Shared | InvalidateFault::NotRemote => Fault::InvalidateShared,
            })?;
        }
        let message =
            self.recv_queue.place(memory, self.scope, header, payload).map_err(Fault::Untagged)?;
        let Some(message) = message else { return Ok(Indication::Placed) };
        if let Some(stag) = invalidated {
            // The STag is invalid before the message is delivered.
            // req: RDMAP-007, RDMAP-183, RDMAP-337
            memory.regions().invalidate_remote(stag, self.scope);
        }
        Ok(Indication::Received { message, solicited, invalidated })
    }

    /// Processes the peer's Terminate, which ends the stream. It is never answered, even if it is
    /// invalid: the peer has left the stream.
    // req: RDMAP-189, RDMAP-190, RDMAP-191, RDMAP-193, RDMAP-262
    #[cold]
    fn on_terminate(&mut self, header: &Untagged, payload: &[u8]) -> Indication {
        (self.failed, self.rx_dead) = (true, true);
        let is_sound = header.last && (header.msn, header.mo) == (1, 0);
        Indication::Terminated(Terminate::parse(payload).filter(|_| is_sound))
    }

    /// Processes an in-order ULPDU with a valid CRC after the local end of the stream. Nothing is
    /// placed or delivered, and faults are ignored. Only the first Terminate of the peer is
    /// returned (RFC 5040 section 5.4).
    // req: RDMAP-192
    #[cold]
    pub fn drain_ulpdu(&mut self, ulpdu: &[u8]) -> Option<Indication> {
        let Ok(Segment { header: Header::Untagged(header), opcode: Opcode::Terminate }) =
            Segment::parse(ulpdu, self.version)
        else {
            return None;
        };
        (header.qn == QN_TERMINATE && self.awaits_terminate())
            .then(|| self.on_terminate(&header, &ulpdu[UNTAGGED_LEN..]))
    }
}

/// Messages of RFC 7306.
impl Stream {
    /// Processes an untagged message that RFC 5040 does not define for its queue: one of RFC 7306,
    /// or an invalid one.
    #[cold]
    fn on_extension_message(
        &mut self,
        memory: &impl Memory,
        header: &Untagged,
        opcode: Opcode,
        payload: &[u8],
    ) -> Result<Indication, Fault> {
        match (header.qn, opcode) {
            (QN_SEND, Opcode::Immediate { solicited }) if self.extensions => {
                self.on_immediate(memory, header, payload, solicited)
            }
            (QN_READ_REQUEST, Opcode::AtomicRequest) if self.extensions => {
                self.responder.on_atomic_request(memory, self.scope, header, payload)?;
                Ok(Indication::ReadRequested)
            }
            (QN_ATOMIC_RESPONSE, Opcode::AtomicResponse) if self.extensions => {
                self.requester.on_atomic_response(memory, self.scope, header, payload)?;
                self.execute_local_ops(memory);
                Ok(Indication::ReadCompleted)
            }
            // req: RDMAP-263, RDMAP-268
            (QN_SEND..=QN_TERMINATE, _) => Err(Fault::UnexpectedOpcode),
            (QN_ATOMIC_RESPONSE, _) if self.extensions => Err(Fault::UnexpectedOpcode),
            _ => Err(Fault::QueueNumber),
        }
    }

    /// Processes Immediate Data: it consumes a receive buffer and leaves its contents unchanged.
    fn on_immediate(
        &mut self,
        memory: &impl Memory,
        header: &Untagged,
        payload: &[u8],
        solicited: bool,
    ) -> Result<Indication, Fault> {
        // Checked first: a refused message must not consume a receive buffer.
        if header.mo != 0 {
            return Err(Fault::Untagged(UntaggedFault::MessageOffset));
        }
        if !header.last || payload.len() > IMMEDIATE_LEN {
            return Err(Fault::HeaderTooLong);
        }
        let data =
            ImmediateData::try_from(payload).map_err(|_| Fault::Header(HeaderError::Truncated))?;
        let message =
            self.recv_queue.place(memory, self.scope, header, &[]).map_err(Fault::Untagged)?;
        // A last segment always completes its message.
        message.map_or(Ok(Indication::Placed), |message| {
            Ok(Indication::ImmediateReceived { message, data, solicited })
        })
    }
}
