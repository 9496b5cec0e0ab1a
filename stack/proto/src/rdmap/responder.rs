//! Responder of a stream: serves the peer's Read Requests and Atomic Requests in order of arrival
//! (RFC 5040 section 5.2, RFC 7306 section 4), and counts the bytes of its Writes.

use std::collections::VecDeque;

use arrayvec::ArrayVec;

use crate::ddp::atomic::ATOMIC_LEN;
use crate::ddp::memory::{Access, Memory, MemoryFault, MemoryRange};
use crate::ddp::regions::AccessScope;
use crate::ddp::untagged::UntaggedFault;
use crate::rdmap::fault::Fault;
use crate::rdmap::segment_train::{SegmentTrain, TrainShape, TxSource};
use crate::wire::ddp::{HeaderError, TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged, Version};
use crate::wire::rdmap::{Opcode, QN_READ_REQUEST, READ_REQUEST_LEN, ReadRequest};
use crate::wire::rdmap_extensions::{
    ATOMIC_REQUEST_LEN, ATOMIC_RESPONSE_LEN, AtomicError, AtomicRequest, AtomicResponse,
    QN_ATOMIC_RESPONSE,
};
use crate::wire::seq::Seq;

/// Length in bytes of an Atomic Response with its DDP header.
const ATOMIC_RESPONSE_ULPDU_LEN: usize = UNTAGGED_LEN + ATOMIC_RESPONSE_LEN;

#[derive(Debug)]
struct PendingResponse {
    msn: u32,
    kind: ResponseKind,
}

#[derive(Debug)]
enum ResponseKind {
    /// RDMA Read; `answered` bytes of it are in built responses.
    Read { request: ReadRequest, answered: u32 },
    /// Atomic operation, executed when its response is built.
    Atomic(AtomicRequest),
}

/// Fault of a request while its response was built, with the request as a ULPDU. For a Read the
/// ULPDU covers only the remaining range (for the headers copied into the Terminate).
#[derive(Debug)]
pub struct ResponseFault {
    /// The failed check.
    pub fault: Fault,
    /// The request, or the remainder of a Read.
    pub segment: ArrayVec<u8, { UNTAGGED_LEN + ATOMIC_REQUEST_LEN }>,
}

/// State of the Write that arrived last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteState {
    /// It has ended, or there is none.
    Ended,
    /// It has not ended yet.
    Open,
    /// The same, and segments of it were skipped: they were placed out of order.
    Unknown,
}

/// IRD queue: the requests to be served, at most IRD. And the length of the Write that arrived
/// last: Immediate Data may follow it.
#[derive(Debug)]
#[doc(alias = "IRD")]
pub struct Responder {
    /// Allocated with the first request: most streams never see one.
    pending: VecDeque<PendingResponse>,
    ird: u16,
    /// MSN of the next Read Request or Atomic Request.
    msn: Seq,
    /// MSN of the next Atomic Response.
    response_msn: Seq,
    /// Bytes of the Write that arrived last, so far.
    write_len: u32,
    write: WriteState,
    /// The transmit direction is closed: no more requests are queued.
    tx_closed: bool,
}

impl Responder {
    /// Creates a responder that serves nothing until [`Responder::set_ird`].
    #[must_use]
    pub const fn new() -> Self {
        Self {
            pending: VecDeque::new(),
            ird: 0,
            msn: Seq(1),
            response_msn: Seq(1),
            write_len: 0,
            write: WriteState::Ended,
            tx_closed: false,
        }
    }

    /// Closes the transmit direction: requests received from now on are not answered.
    pub const fn on_tx_closed(&mut self) {
        self.tx_closed = true;
    }

    /// Sets IRD, the number of requests served at a time. Called once, when the stream starts.
    pub const fn set_ird(&mut self, ird: u16) {
        self.ird = ird;
    }

    /// Returns IRD.
    pub const fn ird(&self) -> u16 {
        self.ird
    }

    /// A segment of a Write was placed in order. `is_last`: its L flag.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "less than 2^16 bytes of a ULPDU")]
    pub const fn on_write_placed(&mut self, len: usize, is_last: bool) {
        if !matches!(self.write, WriteState::Ended) {
            self.continue_write(len as u32, is_last);
            return;
        }
        self.write_len = len as u32;
        if !is_last {
            self.write = WriteState::Open;
        }
    }

    #[inline]
    const fn continue_write(&mut self, len: u32, is_last: bool) {
        let is_known = matches!(self.write, WriteState::Open);
        // Wraps only in a message that is too long.
        self.write_len = if is_known { self.write_len.wrapping_add(len) } else { 0 };
        if is_last {
            self.write = WriteState::Ended;
        }
    }

    /// It is the turn of segments of Writes that were placed out of order: nobody kept their
    /// lengths.
    pub const fn skip_writes(&mut self) {
        self.write = WriteState::Unknown;
    }

    /// Returns the length of the Write that ended last, if none began after it and it was not
    /// returned before; otherwise 0, and if it is unknown.
    #[inline(always)]
    pub const fn take_write_len(&mut self) -> u32 {
        if matches!(self.write, WriteState::Ended) {
            std::mem::replace(&mut self.write_len, 0)
        } else {
            0
        }
    }

    /// Queues a Read Request, after checking remote read access to its source.
    ///
    /// # Errors
    /// [`Fault`]; [`UntaggedFault::NoBuffer`] for a request beyond IRD.
    // req: RDMAP-146, RDMAP-147, RDMAP-154, DDP-091
    pub fn on_read_request(
        &mut self,
        memory: &impl Memory,
        scope: AccessScope,
        header: &Untagged,
        payload: &[u8],
    ) -> Result<(), Fault> {
        self.check_header(header)?;
        // req: RDMAP-072
        if !header.last || payload.len() > READ_REQUEST_LEN {
            return Err(Fault::ReadRequestTooLong);
        }
        let request = ReadRequest::parse(payload).ok_or(Fault::ReadRequestTooShort)?;
        check_source(memory, scope, &request).map_err(Fault::ReadSource)?;
        self.push(ResponseKind::Read { request, answered: 0 });
        Ok(())
    }

    /// Performs the DDP checks of a message on the Read Request queue: MSN, available buffer (IRD),
    /// MO.
    fn check_header(&self, header: &Untagged) -> Result<(), Fault> {
        // req: RDMAP-267
        if Seq(header.msn) != self.msn {
            return Err(Fault::Untagged(UntaggedFault::MsnRange));
        }
        // req: RDMAP-145, RDMAP-233, RDMAP-238, RDMAP-287, RDMAP-296
        if self.pending.len() >= usize::from(self.ird) {
            return Err(Fault::Untagged(UntaggedFault::NoBuffer));
        }
        // req: RDMAP-267
        if header.mo != 0 {
            return Err(Fault::Untagged(UntaggedFault::MessageOffset));
        }
        Ok(())
    }

    fn push(&mut self, kind: ResponseKind) {
        if !self.tx_closed {
            // req: RDMAP-151, RDMAP-161, RDMAP-165, RDMAP-224, RDMAP-354
            self.pending.push_back(PendingResponse { msn: self.msn.0, kind });
        }
        // req: DDP-083
        self.msn += 1;
    }

    /// Sets the MSN expected next.
    #[cfg(test)]
    pub(super) const fn set_next_msn(&mut self, msn: u32) {
        self.msn = Seq(msn);
    }

    /// True if a segment can be built now.
    #[must_use]
    pub fn can_build(&self) -> bool {
        !self.pending.is_empty()
    }

    /// True if a response has been built in part.
    #[must_use]
    pub fn is_mid_message(&self) -> bool {
        self.pending.front().is_some_and(
            |response| matches!(response.kind, ResponseKind::Read { answered, .. } if answered > 0),
        )
    }

    /// Returns the length in bytes of the ULPDU that [`Responder::build`] would build with
    /// unlimited capacity.
    #[must_use]
    pub fn next_ulpdu_len(&self) -> u64 {
        self.pending.front().map_or(0, |response| match &response.kind {
            ResponseKind::Read { request, answered } => {
                TAGGED_LEN as u64 + u64::from(request.len - answered)
            }
            ResponseKind::Atomic(_) => ATOMIC_RESPONSE_ULPDU_LEN as u64,
        })
    }

    /// Builds the next segment of the oldest response into `out` and returns its length.
    ///
    /// # Errors
    /// [`ResponseFault`] if the memory was revoked or unmapped meanwhile; the stream has to end.
    pub fn build(
        &mut self,
        memory: &impl Memory,
        scope: AccessScope,
        version: Version,
        out: &mut [u8],
    ) -> Result<usize, Box<ResponseFault>> {
        let Some(response) = self.pending.front_mut() else { return Ok(0) };
        let ResponseKind::Read { request, answered } = &mut response.kind else {
            return self.build_atomic_response(memory, scope, version, out);
        };
        let left = request.len - *answered;
        let payload_max = u32::try_from(out.len() - TAGGED_LEN).unwrap_or(u32::MAX);
        let len = left.min(payload_max);
        // req: RDMAP-006, RDMAP-143, DDP-038, DDP-039
        let header = Tagged { last: len == left, ..response_header(request, *answered, version) };
        // req: RDMAP-160
        header.emit(version, out);
        if len > 0 {
            let at = request.source_to + u64::from(*answered);
            let stag = request.source_stag;
            // Resolved for each segment: the source may have been revoked since the last one.
            // req: RDMAP-074, RDMAP-342
            let body = &mut out[TAGGED_LEN..TAGGED_LEN + len as usize];
            let (regions, needed) = (memory.regions(), Access::REMOTE_READ);
            let range = regions.resolve(stag, scope, needed, at, body.len());
            let fetched = range.and_then(|range| Ok(memory.fetch(range, body)?));
            if let Err(fault) = fetched {
                let fault = Fault::ReadSource(fault);
                return Err(Box::new(response.response_fault(fault, version)));
            }
        }
        *answered += len;
        if header.last {
            self.pending.pop_front();
        }
        Ok(TAGGED_LEN + len as usize)
    }

    /// Returns the next segments of the oldest response as a train; `None` if they are shorter.
    pub(super) fn train(
        &self,
        memory: &impl Memory,
        scope: AccessScope,
        version: Version,
        shape: TrainShape,
    ) -> Option<SegmentTrain> {
        let ResponseKind::Read { request, answered } = &self.pending.front()?.kind else {
            return None;
        };
        let done = u64::from(*answered);
        let (len, count) = shape.payload(TAGGED_LEN, u64::from(request.len - answered));
        let header = Tagged { last: false, ..response_header(request, *answered, version) };
        let (stag, at) = (request.source_stag, request.source_to + done);
        let needed = Access::REMOTE_READ;
        let range = memory.regions().resolve(stag, scope, needed, at, len * count).ok()?;
        Some(SegmentTrain::tagged(TxSource::Responses, &header, version, range, len))
    }

    /// Notes that segments with `len` bytes of the oldest response, and not its last, were built.
    pub(super) fn advance(&mut self, len: usize) {
        if let Some(PendingResponse { kind: ResponseKind::Read { answered, .. }, .. }) =
            self.pending.front_mut()
        {
            *answered += u32::try_from(len).unwrap_or(0);
        }
    }
}

/// Atomic Requests (RFC 7306 section 4). They are queued with the Read Requests, count with them
/// against IRD, and are executed in order of arrival, when the response is built. Each is executed
/// once: a built response is retransmitted by TCP, not built again.
impl Responder {
    /// Queues an Atomic Request, after checking remote atomic access to its word.
    ///
    /// # Errors
    /// [`Fault`]; the word is unchanged.
    #[cold]
    pub fn on_atomic_request(
        &mut self,
        memory: &impl Memory,
        scope: AccessScope,
        header: &Untagged,
        payload: &[u8],
    ) -> Result<(), Fault> {
        self.check_header(header)?;
        if !header.last || payload.len() > ATOMIC_REQUEST_LEN {
            return Err(Fault::HeaderTooLong);
        }
        let request = AtomicRequest::parse(payload).map_err(|error| match error {
            AtomicError::Length => Fault::Header(HeaderError::Truncated),
            AtomicError::Operation => Fault::AtomicOperation,
        })?;
        resolve_target(memory, scope, &request).map_err(Fault::AtomicTarget)?;
        if !request.to.is_multiple_of(ATOMIC_LEN as u64) {
            return Err(Fault::AtomicMisaligned);
        }
        self.push(ResponseKind::Atomic(request));
        Ok(())
    }

    /// Executes the oldest request and builds its response.
    ///
    /// # Errors
    /// [`ResponseFault`] if the region was revoked meanwhile, or if the region starts at an
    /// unaligned address, so that a tagged offset that is a multiple of eight is an address that is
    /// not.
    #[cold]
    fn build_atomic_response(
        &mut self,
        memory: &impl Memory,
        scope: AccessScope,
        version: Version,
        out: &mut [u8],
    ) -> Result<usize, Box<ResponseFault>> {
        let Some(response) = self.pending.front() else { return Ok(0) };
        let ResponseKind::Atomic(request) = &response.kind else { return Ok(0) };
        let done = resolve_target(memory, scope, request)
            .and_then(|range| Ok(memory.atomic(range, request.op)?))
            .map_err(Fault::AtomicTarget)
            .and_then(|original| original.ok_or(Fault::AtomicMisaligned));
        let original = match done {
            Ok(original) => original,
            Err(fault) => return Err(Box::new(response.response_fault(fault, version))),
        };
        let header = Untagged {
            last: true,
            rsvd_ulp: Opcode::AtomicResponse.control(version),
            rsvd_ulp_rest: 0,
            qn: QN_ATOMIC_RESPONSE,
            msn: self.response_msn.0,
            mo: 0,
        };
        header.emit(version, out);
        AtomicResponse { id: request.id, original }.emit(&mut out[UNTAGGED_LEN..]);
        self.pending.pop_front();
        self.response_msn += 1;
        Ok(ATOMIC_RESPONSE_ULPDU_LEN)
    }
}

/// Returns the header of a segment of a Read Response at `answered`, the last one.
#[inline]
fn response_header(request: &ReadRequest, answered: u32, version: Version) -> Tagged {
    Tagged {
        last: true,
        rsvd_ulp: Opcode::ReadResponse.control(version),
        // req: RDMAP-053, RDMAP-079, RDMAP-167
        stag: request.sink_stag,
        // req: RDMAP-080
        to: request.sink_to.wrapping_add(u64::from(answered)),
    }
}

impl Default for Responder {
    fn default() -> Self {
        Self::new()
    }
}

impl PendingResponse {
    /// Returns the request for the headers copied into the Terminate: for a Read the remaining
    /// range.
    fn response_fault(&self, fault: Fault, version: Version) -> ResponseFault {
        let mut segment = [0; UNTAGGED_LEN + ATOMIC_REQUEST_LEN];
        let (opcode, len) = match &self.kind {
            ResponseKind::Read { request, answered } => {
                let done = u64::from(*answered);
                let rest = ReadRequest {
                    // req: RDMAP-127
                    sink_to: request.sink_to.wrapping_add(done),
                    // req: RDMAP-127
                    len: request.len - answered,
                    // req: RDMAP-127
                    source_to: request.source_to.wrapping_add(done),
                    ..*request
                };
                rest.emit(&mut segment[UNTAGGED_LEN..]);
                (Opcode::ReadRequest, READ_REQUEST_LEN)
            }
            ResponseKind::Atomic(request) => {
                request.emit(&mut segment[UNTAGGED_LEN..]);
                (Opcode::AtomicRequest, ATOMIC_REQUEST_LEN)
            }
        };
        let header = Untagged {
            last: true,
            rsvd_ulp: opcode.control(version),
            rsvd_ulp_rest: 0,
            qn: QN_READ_REQUEST,
            msn: self.msn,
            mo: 0,
        };
        header.emit(version, &mut segment);
        ResponseFault { fault, segment: segment[..UNTAGGED_LEN + len].iter().copied().collect() }
    }
}

/// Checks the source of a Read. A zero-length Read is not checked (RFC 5040 section 5.2.1).
fn check_source(
    memory: &impl Memory,
    scope: AccessScope,
    request: &ReadRequest,
) -> Result<(), MemoryFault> {
    // req: RDMAP-155, RDMAP-156, RDMAP-157, RDMAP-158
    if request.len == 0 {
        return Ok(());
    }
    let len = request.len as usize;
    memory
        .regions()
        .resolve(request.source_stag, scope, Access::REMOTE_READ, request.source_to, len)
        .map(|_| ())
}

/// Resolves the word of a request.
fn resolve_target(
    memory: &impl Memory,
    scope: AccessScope,
    request: &AtomicRequest,
) -> Result<MemoryRange, MemoryFault> {
    let needed = Access::REMOTE_ATOMIC;
    memory.regions().resolve(request.stag, scope, needed, request.to, ATOMIC_LEN)
}
