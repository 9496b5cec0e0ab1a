//! Received ULPDUs: checks, placement, delivery.

use super::{Indication, Stream};
use crate::ddp::memory::{Access, Memory};
use crate::ddp::regions::InvalidateFault;
use crate::ddp::tagged;
use crate::ddp::untagged::UntaggedFault;
use crate::rdmap::fault::Fault;
use crate::wire::ddp::{Header, HeaderError, TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged};
use crate::wire::rdmap::{Opcode, QN_READ_REQUEST, QN_SEND, QN_TERMINATE};
use crate::wire::rdmap_extensions::{IMMEDIATE_LEN, ImmediateData, QN_ATOMIC_RESPONSE};
use crate::wire::terminate::Terminate;

impl Stream {
    /// Processes one ULPDU of an in-order stream with a valid CRC: checks, places and delivers it.
    ///
    /// Versions and opcode are checked before placement, so that no byte of a message that RDMAP
    /// refuses is written to memory.
    ///
    /// # Errors
    /// [`Fault`]: the caller ends the stream with [`Stream::fail`].
    pub fn on_ulpdu(&mut self, memory: &impl Memory, ulpdu: &[u8]) -> Result<Indication, Fault> {
        let header = Header::parse(ulpdu, self.version).map_err(Fault::Header)?;
        let opcode = Opcode::parse(header.rsvd_ulp(), self.version).map_err(Fault::Control)?;
        let payload = &ulpdu[header.wire_len()..];
        match (header, opcode) {
            // req: RDMAP-036, RDMAP-134
            (Header::Tagged(header), Opcode::Write) => self.place_write(memory, &header, payload),
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
                // req: RDMAP-146, RDMAP-147, RDMAP-154, DDP-091
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
        let Ok(Header::Tagged(header)) = Header::parse(ulpdu, self.version) else { return false };
        // req: DDP-114, RDMAP-210, RDMAP-264
        let is_write = Opcode::parse(header.rsvd_ulp, self.version) == Ok(Opcode::Write);
        let payload = &ulpdu[TAGGED_LEN..];
        is_write && self.place_write(memory, &header, payload).is_ok()
    }

    /// RDMA Write placement (RFC 5040 section 5.1).
    fn place_write(
        &self,
        memory: &impl Memory,
        header: &Tagged,
        payload: &[u8],
    ) -> Result<Indication, Fault> {
        let sink = (header.stag, header.to);
        tagged::place(memory, self.scope, Access::REMOTE_WRITE, sink, payload)
            .map_err(Fault::Tagged)?;
        Ok(Indication::Placed)
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
        tagged::place(memory, self.scope, Access::LOCAL_WRITE, (lkey, header.to), payload)
            .map_err(Fault::Tagged)?;
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
        let Ok(Header::Untagged(header)) = Header::parse(ulpdu, self.version) else { return None };
        let opcode = Opcode::parse(header.rsvd_ulp, self.version);
        let is_terminate = (header.qn, opcode) == (QN_TERMINATE, Ok(Opcode::Terminate));
        (is_terminate && self.awaits_terminate())
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
