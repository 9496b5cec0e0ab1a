//! An RDMAP stream: what comes in is checked, placed and accounted for; what goes out is chosen
//! among requests, responses and the Terminate.

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

/// What a received ULPDU brought about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indication {
    /// Bytes were placed; nothing to report.
    Placed,
    /// A Send was delivered into a receive buffer.
    Received {
        /// The buffer and the message's length.
        message: DeliveredMessage,
        /// The sender asked for an event.
        solicited: bool,
        /// Invalidated by this Send, already unusable.
        invalidated: Option<Stag>,
    },
    /// Immediate Data used up a receive buffer.
    ImmediateReceived {
        /// The buffer, and a length of 0.
        message: DeliveredMessage,
        /// What the peer said.
        data: ImmediateData,
        /// The sender asked for an event.
        solicited: bool,
    },
    /// A Read Request or Atomic Request waits to be answered.
    ReadRequested,
    /// A Read or atomic operation completed.
    ReadCompleted,
    /// The peer ended the stream: for this reason, or with a Terminate that breaks the rules.
    Terminated(Option<Terminate>),
}

/// Which side speaks next when both have a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TxSource {
    Requests,
    Responses,
}

/// A stream's protocol state, both directions.
#[derive(Debug)]
pub struct Stream {
    scope: AccessScope,
    version: Version,
    /// Requests of this end.
    pub requester: Requester,
    /// Buffers for Sends of the peer.
    pub recv_queue: BufferQueue,
    responder: Responder,
    preferred_source: TxSource,
    /// RFC 7306 is spoken.
    extensions: bool,
    /// Due and not built.
    terminate: Option<Box<Terminate>>,
    /// Set once anything ended the stream; nothing is placed afterwards.
    failed: bool,
    /// The peer has had its last word, or what it sends cannot be told apart any more.
    rx_dead: bool,
    /// The first FPDU may be a Send of no bytes that is for no buffer.
    rtr_send_expected: bool,
    /// This end has said that it is ready.
    pub(super) rtr_sent: bool,
}

/// Why [`Stream::build`] made no segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// A request of this end names memory that is not registered as it claims.
    Request,
    /// A Read of the peer can no longer be answered; a Terminate is due.
    Response(Box<Terminate>),
}

impl Stream {
    /// A stream, not started, that reaches this memory: given a protection domain alone, what is
    /// good for all streams of it.
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

    /// What it reaches.
    #[must_use]
    pub const fn access_scope(&self) -> AccessScope {
        self.scope
    }

    /// Fixes what the start-up exchange agreed on. The IETF's version brings RFC 7306 along: see
    /// [`Stream::disable_extensions`].
    pub fn start(&mut self, version: Version, ird: u16, ord: u16) {
        self.version = version;
        self.extensions = version == Version::Ietf;
        self.requester.set_ord(ord);
        self.responder.set_ird(ird);
    }

    /// The versions of its headers.
    pub(super) const fn version(&self) -> Version {
        self.version
    }

    /// The first FPDU may be a Send that only says that the peer is ready.
    pub const fn expect_rtr_send(&mut self) {
        self.rtr_send_expected = true;
    }

    /// This end has begun to send FPDUs.
    pub const fn has_sent(&self) -> bool {
        self.rtr_sent || self.requester.has_built()
    }

    /// The first FPDU has come; true if [`Stream::expect_rtr_send`] was said.
    pub const fn clear_rtr_expected(&mut self) -> bool {
        core::mem::replace(&mut self.rtr_send_expected, false)
    }

    /// Checks, places and accounts for one ULPDU of an in-order, verified stream.
    ///
    /// Versions and opcode are checked before anything is placed, so that no byte of a message
    /// that RDMAP would refuse reaches memory.
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

    /// Places the payload of a ULPDU ahead of its turn, if that needs no order: an RDMA Write, and
    /// nothing wrong with it. False: it is to be handled in its turn.
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
        // Before the buffer is used up: a message that is refused must not take it along.
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
            // The STag is dead before the application hears of the message.
            // req: RDMAP-007, RDMAP-183, RDMAP-337
            memory.regions().invalidate_remote(stag, self.scope);
        }
        Ok(Indication::Received { message, solicited, invalidated })
    }

    /// The peer's last word. Nothing is answered to it, not even if it breaks the rules: an end
    /// that has sent a Terminate has left the stream.
    // req: RDMAP-189, RDMAP-190, RDMAP-191, RDMAP-193, RDMAP-262
    #[cold]
    fn on_terminate(&mut self, header: &Untagged, payload: &[u8]) -> Indication {
        (self.failed, self.rx_dead) = (true, true);
        let is_sound = header.last && (header.msn, header.mo) == (1, 0);
        Indication::Terminated(Terminate::parse(payload).filter(|_| is_sound))
    }

    /// Behind the end that this end has made of the stream a Terminate may still come, of a peer
    /// that had not heard of it.
    #[must_use]
    pub const fn awaits_terminate(&self) -> bool {
        self.failed && !self.rx_dead
    }

    /// One ULPDU of what comes behind that end, in order and verified. Nothing is placed or
    /// delivered, and nothing wrong with it matters any more: only the peer's Terminate counts
    /// (RFC 5040 section 5.4), and only one.
    // req: RDMAP-192
    #[cold]
    pub fn drain_ulpdu(&mut self, ulpdu: &[u8]) -> Option<Indication> {
        let Ok(Header::Untagged(header)) = Header::parse(ulpdu, self.version) else { return None };
        let opcode = Opcode::parse(header.rsvd_ulp, self.version);
        let is_terminate = (header.qn, opcode) == (QN_TERMINATE, Ok(Opcode::Terminate));
        (is_terminate && self.awaits_terminate())
            .then(|| self.on_terminate(&header, &ulpdu[UNTAGGED_LEN..]))
    }

    /// Ends the stream over `fault`, found in `segment` (empty if in none), and queues the
    /// Terminate. Only the first fault is reported; returns what the peer is told, or `None` if
    /// the stream had ended already.
    #[cold]
    pub fn fail(&mut self, fault: Fault, segment: &[u8]) -> Option<Terminate> {
        // req: DDP-164, RDMAP-261
        if self.failed {
            return None;
        }
        // req: MPA-158, RDMAP-195, RDMAP-253, DDP-028
        self.failed = true;
        // Behind these nobody knows where an FPDU begins.
        self.rx_dead = matches!(fault, Fault::Crc | Fault::Marker);
        let terminate = fault.to_terminate(self.version, segment);
        // req: DDP-140, DDP-165, RDMAP-245, RDMAP-334
        self.terminate = Some(Box::new(terminate));
        Some(terminate)
    }

    /// Ends the stream over `fault` without a word to the peer. Returns what it would have been
    /// told, or `None` if the stream had ended already.
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

    /// The request that a peer's Terminate is about: see [`Requester::terminated_request`].
    #[cold]
    #[must_use]
    pub fn terminated_request(&self, terminate: &Terminate) -> Option<u64> {
        self.requester.terminated_request(terminate, self.version)
    }

    /// The peer has sent its last: what needs an answer is not sent any more. True if something
    /// waits for one, and will for ever.
    #[cold]
    pub fn on_rx_closed(&mut self) -> bool {
        self.requester.on_rx_closed()
    }

    /// All that was posted is done, and all that the peer asked for is answered.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.requester.is_empty() && !self.responder.can_build()
    }

    /// This end has sent its last: Reads that the peer still asks for are not answered.
    #[cold]
    pub const fn on_tx_closed(&mut self) {
        self.responder.on_tx_closed();
    }

    /// The stream has ended: what still arrives is discarded.
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        self.failed
    }

    /// A Terminate is due and not built.
    #[must_use]
    pub const fn is_terminate_pending(&self) -> bool {
        self.terminate.is_some()
    }

    /// A segment can be built now.
    #[must_use]
    pub fn can_build(&self) -> bool {
        if self.failed {
            return self.terminate.is_some();
        }
        self.requester.can_build() || self.responder.can_build()
    }

    /// Bytes of the next ULPDU with no bound on its room.
    #[must_use]
    pub fn next_ulpdu_len(&self) -> u64 {
        match (&self.terminate, self.next_source()) {
            (Some(terminate), _) => (UNTAGGED_LEN + terminate.wire_len()) as u64,
            (None, TxSource::Requests) => self.requester.next_ulpdu_len(),
            (None, TxSource::Responses) => self.responder.next_ulpdu_len(),
        }
    }

    /// Builds the next ULPDU into `out` (at least 128 bytes) and returns its length. Call only
    /// when [`Stream::can_build`]. A due Terminate comes first; whole messages alternate between
    /// requests and responses when both wait.
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

    /// Carries out requests that concern this end alone, if it is their turn.
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

    /// Who builds the next segment: a message that is begun goes on, else turns alternate.
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

    /// The buffer that a fault of the receive queue concerns, so that it completes in error.
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
