//! RDMAP stream: checks, places and delivers received ULPDUs, and selects the next ULPDU to send
//! from requests, responses and the Terminate.

use crate::ddp::memory::{Access, Memory};
use crate::ddp::regions::{AccessScope, InvalidateFault, Stag};
use crate::ddp::untagged::{BufferQueue, DeliveredMessage, UntaggedFault};
use crate::rdmap::requester::Requester;
use crate::rdmap::responder::Responder;
use crate::rdmap::terminate::Fault;
use crate::wire::atomic::ImmediateData;
use crate::wire::ddp::{Header, TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged, Version};
use crate::wire::rdmap::{Opcode, QN_READ_REQUEST, QN_SEND, QN_TERMINATE};
use crate::wire::terminate::Terminate;

mod extensions;

/// Result of a received ULPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indication {
    /// Payload was placed; nothing to report.
    Placed,
    /// A Send was delivered into a receive buffer.
    Received {
        /// `wr_id` of the buffer, and the length of the message.
        message: DeliveredMessage,
        /// Send with Solicited Event.
        solicited: bool,
        /// Send with Invalidate: this STag, already invalid.
        invalidated: Option<Stag>,
    },
    /// Immediate Data consumed a receive buffer.
    ImmediateReceived {
        /// `wr_id` of the buffer, and length 0.
        message: DeliveredMessage,
        /// The Immediate Data.
        data: ImmediateData,
        /// Immediate Data with Solicited Event.
        solicited: bool,
    },
    /// A Read Request or Atomic Request was queued.
    ReadRequested,
    /// The response to a local Read or atomic operation is complete.
    ReadCompleted,
    /// The peer ended the stream with this Terminate; `None` if the Terminate is invalid.
    Terminated(Option<Terminate>),
}

/// Source of the next ULPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TxSource {
    Requests,
    Responses,
}

/// Protocol state of a stream, both directions.
///
/// State at the end of the stream:
///
/// | Event | `failed` | `rx_dead` | `terminate` |
/// |---|---|---|---|
/// | [`Stream::fail`] | true | true for a CRC or marker fault | `Some` until it is built |
/// | [`Stream::fail_without_terminate`] | true | true for a CRC or marker fault | `None` |
/// | [`Stream::stop`] | true | unchanged | unchanged |
/// | Terminate received | true | true | unchanged |
#[derive(Debug)]
pub struct Stream {
    scope: AccessScope,
    version: Version,
    /// Requester.
    pub requester: Requester,
    /// Receive queue: buffers for Sends of the peer.
    pub recv_queue: BufferQueue,
    responder: Responder,
    preferred_source: TxSource,
    /// RFC 7306 is enabled.
    extensions: bool,
    /// Pending Terminate: queued and not built.
    terminate: Option<Box<Terminate>>,
    /// The stream has ended; nothing is placed any more.
    failed: bool,
    /// Received data is not processed any more: the peer's Terminate was received, or FPDU
    /// boundaries are unknown.
    rx_dead: bool,
    /// The first FPDU may be a zero-length Send that is an RTR indication.
    rtr_send_expected: bool,
    /// The RTR message was built.
    pub(super) rtr_sent: bool,
}

/// Reason why [`Stream::build`] built no segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// The memory of a local request is not registered as it claims.
    Request,
    /// A Read or Atomic Request of the peer can no longer be answered; this Terminate is queued.
    Response(Box<Terminate>),
}

impl Stream {
    /// Creates a stream that is not started. If `scope` is a protection domain without a stream,
    /// only STags that are valid for all streams of the domain can be accessed.
    #[must_use]
    pub fn new(
        scope: impl Into<AccessScope>,
        send_count_max: usize,
        recv_count_max: usize,
    ) -> Self {
        Self {
            scope: scope.into(),
            version: Version::Ietf,
            requester: Requester::new(send_count_max),
            recv_queue: BufferQueue::new(recv_count_max),
            responder: Responder::new(),
            preferred_source: TxSource::Requests,
            extensions: false,
            terminate: None,
            failed: false,
            rx_dead: false,
            rtr_send_expected: false,
            rtr_sent: false,
        }
    }

    /// Returns the scope of its memory accesses.
    #[must_use]
    pub const fn access_scope(&self) -> AccessScope {
        self.scope
    }

    /// Sets the result of the startup negotiation. The IETF's version enables RFC 7306: see
    /// [`Stream::disable_extensions`].
    pub fn start(&mut self, version: Version, ird: u16, ord: u16) {
        self.version = version;
        self.extensions = version == Version::Ietf;
        self.requester.set_ord(ord);
        self.responder.set_ird(ird);
    }

    /// Returns the version of its DDP and RDMAP headers.
    pub(super) const fn version(&self) -> Version {
        self.version
    }

    /// Allows the first FPDU to be an RTR indication by a zero-length Send.
    pub const fn expect_rtr_send(&mut self) {
        self.rtr_send_expected = true;
    }

    /// True if the RTR message or a request was built.
    pub const fn has_sent(&self) -> bool {
        self.rtr_sent || self.requester.has_built()
    }

    /// Handles the arrival of the first FPDU: true if [`Stream::expect_rtr_send`] was called
    /// before.
    pub const fn clear_rtr_expected(&mut self) -> bool {
        core::mem::replace(&mut self.rtr_send_expected, false)
    }

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
                // req: RDMAP-146, RDMAP-154, DDP-091
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
        // req: DDP-114, RDMAP-210
        let is_write = Opcode::parse(header.rsvd_ulp, self.version) == Ok(Opcode::Write);
        let payload = &ulpdu[TAGGED_LEN..];
        is_write && self.place_write(memory, &header, payload).is_ok()
    }

    fn place_write(
        &self,
        memory: &impl Memory,
        header: &Tagged,
        payload: &[u8],
    ) -> Result<Indication, Fault> {
        // STag and TO of a segment without payload are not checked (RFC 5041 section 5.2).
        // req: DDP-104, DDP-106, DDP-160, DDP-089, DDP-105, RDMAP-142
        if !payload.is_empty() {
            let range = memory
                .regions()
                .resolve(header.stag, self.scope, Access::REMOTE_WRITE, header.to, payload.len())
                .map_err(Fault::Tagged)?;
            memory.place(range, payload);
        }
        Ok(Indication::Placed)
    }

    fn place_read_response(
        &mut self,
        memory: &impl Memory,
        header: &Tagged,
        payload: &[u8],
    ) -> Result<Indication, Fault> {
        if self.requester.on_rtr_read_response(header.last && payload.is_empty()) {
            return Ok(Indication::Placed);
        }
        let sink = self
            .requester
            .check_read_response(header, payload.len())
            .map_err(Fault::Tagged)?
            .ok_or(Fault::UnexpectedOpcode)?;
        if !payload.is_empty() {
            let range = memory
                .regions()
                .resolve(sink, self.scope, Access::LOCAL_WRITE, header.to, payload.len())
                .map_err(Fault::Tagged)?;
            memory.place(range, payload);
        }
        if self.requester.on_response_placed(payload.len(), header.last) {
            self.execute_local_ops(memory);
            Ok(Indication::ReadCompleted)
        } else {
            Ok(Indication::Placed)
        }
    }

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

    /// True if the stream was ended locally and a Terminate of the peer may still arrive, sent
    /// before the peer learned of it.
    #[must_use]
    pub const fn awaits_terminate(&self) -> bool {
        self.failed && !self.rx_dead
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

    /// Ends the stream because of `fault` in `segment` (empty if in none) and queues the Terminate.
    /// Only the first fault is reported: returns its Terminate, or `None` if the stream had already
    /// ended.
    #[cold]
    pub fn fail(&mut self, fault: Fault, segment: &[u8]) -> Option<Terminate> {
        // req: DDP-164, RDMAP-261
        if self.failed {
            return None;
        }
        // req: MPA-158, RDMAP-195, RDMAP-253, DDP-028
        self.failed = true;
        // FPDU boundaries are unknown after these faults.
        self.rx_dead = matches!(fault, Fault::Crc | Fault::Marker);
        let terminate = fault.to_terminate(self.version, segment);
        // req: DDP-140, DDP-165, RDMAP-245, RDMAP-334
        self.terminate = Some(Box::new(terminate));
        Some(terminate)
    }

    /// Ends the stream because of `fault` without sending a Terminate. Returns the unsent
    /// Terminate, or `None` if the stream had already ended.
    #[cold]
    pub fn fail_without_terminate(&mut self, fault: Fault) -> Option<Terminate> {
        let terminate = self.fail(fault, &[])?;
        self.terminate = None;
        Some(terminate)
    }

    /// Ends the stream without a Terminate.
    pub const fn stop(&mut self) {
        self.failed = true;
    }

    /// Returns the request to which a received Terminate refers: see
    /// [`Requester::terminated_request`].
    #[cold]
    #[must_use]
    pub fn terminated_request(&self, terminate: &Terminate) -> Option<u64> {
        self.requester.terminated_request(terminate, self.version)
    }

    /// Closes the receive direction: requests that need a response are not sent any more. True if a
    /// request still needs one, which will never arrive.
    #[cold]
    pub fn on_rx_closed(&mut self) -> bool {
        self.requester.on_rx_closed()
    }

    /// True if all posted requests are done, and all requests of the peer are answered.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.requester.is_empty() && !self.responder.can_build()
    }

    /// Closes the transmit direction: Read Requests received from now on are not answered.
    #[cold]
    pub const fn on_tx_closed(&mut self) {
        self.responder.on_tx_closed();
    }

    /// True if the stream has ended: received data is discarded.
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        self.failed
    }

    /// True if a Terminate is queued and not built.
    #[must_use]
    pub const fn is_terminate_pending(&self) -> bool {
        self.terminate.is_some()
    }

    /// True if a segment can be built now.
    #[must_use]
    pub fn can_build(&self) -> bool {
        if self.failed {
            return self.terminate.is_some();
        }
        self.requester.can_build() || self.responder.can_build()
    }

    /// Returns the length in bytes of the next ULPDU with unlimited capacity.
    #[must_use]
    pub fn next_ulpdu_len(&self) -> u64 {
        match (&self.terminate, self.next_source()) {
            (Some(terminate), _) => (UNTAGGED_LEN + terminate.wire_len()) as u64,
            (None, TxSource::Requests) => self.requester.next_ulpdu_len(),
            (None, TxSource::Responses) => self.responder.next_ulpdu_len(),
        }
    }

    /// Builds the next ULPDU into `out` (at least 128 bytes) and returns its length. Call only if
    /// [`Stream::can_build`]. A pending Terminate comes first. Requests and responses alternate,
    /// message by message, if both can be built.
    ///
    /// # Errors
    /// [`BuildError`]; the stream has then failed.
    pub fn build(&mut self, memory: &impl Memory, out: &mut [u8]) -> Result<usize, BuildError> {
        if let Some(terminate) = self.terminate.take() {
            // req: RDMAP-260
            return Ok(self.build_terminate(&terminate, out));
        }
        match self.next_source() {
            TxSource::Requests => {
                let built = self.requester.build(memory, self.scope, self.version, out);
                if !self.requester.is_mid_message() {
                    self.preferred_source = TxSource::Responses;
                    self.execute_local_ops(memory);
                }
                built.map_err(|_| {
                    // req: RDMAP-128, RDMAP-257
                    self.fail(Fault::LocalCatastrophic, &[]);
                    BuildError::Request
                })
            }
            TxSource::Responses => {
                let built = self.responder.build(memory, self.scope, self.version, out);
                if !self.responder.is_mid_message() {
                    self.preferred_source = TxSource::Requests;
                }
                built.map_err(|failed| {
                    let terminate = failed.fault.to_terminate(self.version, &failed.segment);
                    self.fail(failed.fault, &failed.segment);
                    BuildError::Response(Box::new(terminate))
                })
            }
        }
    }

    /// Executes the local operations that are next in the queue.
    pub fn execute_local_ops(&mut self, memory: &impl Memory) {
        if self.requester.has_local_ops() && !self.failed {
            self.requester.execute_local_ops(memory.regions(), self.scope);
        }
    }

    // req: RDMAP-059, RDMAP-069, RDMAP-187, RDMAP-188
    #[cold]
    fn build_terminate(&self, terminate: &Terminate, out: &mut [u8]) -> usize {
        let header = Untagged {
            last: true,
            rsvd_ulp: Opcode::Terminate.control(self.version),
            rsvd_ulp_rest: 0,
            // req: RDMAP-345
            qn: QN_TERMINATE,
            msn: 1,
            mo: 0,
        };
        header.emit(self.version, out);
        // req: RDMAP-010, RDMAP-071
        terminate.emit(&mut out[UNTAGGED_LEN..]);
        UNTAGGED_LEN + terminate.wire_len()
    }

    /// Selects the source of the next segment: a message built in part is continued, otherwise
    /// requests and responses alternate.
    fn next_source(&self) -> TxSource {
        if self.requester.is_mid_message() {
            return TxSource::Requests;
        }
        if self.responder.is_mid_message() {
            return TxSource::Responses;
        }
        match self.preferred_source {
            TxSource::Requests if self.requester.can_build() => TxSource::Requests,
            TxSource::Responses if self.responder.can_build() => TxSource::Responses,
            TxSource::Requests => TxSource::Responses,
            TxSource::Responses => TxSource::Requests,
        }
    }

    /// Returns the `wr_id` of the receive buffer that completes in error because of the fault, and
    /// whether the message was too long for it.
    #[must_use]
    pub const fn faulted_buffer(fault: Fault) -> Option<(u64, bool)> {
        match fault {
            Fault::Untagged(UntaggedFault::TooLong { wr_id }) => Some((wr_id, true)),
            Fault::Untagged(UntaggedFault::Local { wr_id, .. }) => Some((wr_id, false)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod terminate_tables;
#[cfg(test)]
mod tests;
