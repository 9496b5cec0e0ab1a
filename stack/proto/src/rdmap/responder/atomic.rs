//! Responder of Atomic Requests (RFC 7306 section 4).
//!
//! They are queued with the Read Requests, count with them against IRD, and are executed in order
//! of arrival, when the response is built. Each is executed once: a built response is retransmitted
//! by TCP, not built again.

use super::{ATOMIC_RESPONSE_ULPDU_LEN, Responder, ResponseFault, ResponseKind};
use crate::ddp::atomic::ATOMIC_LEN;
use crate::ddp::memory::{Access, Memory, MemoryFault, MemoryRange};
use crate::ddp::regions::AccessScope;
use crate::rdmap::terminate::Fault;
use crate::wire::atomic::{
    ATOMIC_REQUEST_LEN, AtomicError, AtomicRequest, AtomicResponse, QN_ATOMIC_RESPONSE,
};
use crate::wire::ddp::{HeaderError, UNTAGGED_LEN, Untagged, Version};
use crate::wire::rdmap::Opcode;

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
    pub(super) fn build_atomic_response(
        &mut self,
        memory: &impl Memory,
        scope: AccessScope,
        version: Version,
        out: &mut [u8],
    ) -> Result<usize, Box<ResponseFault>> {
        let Some(response) = self.pending.front() else { return Ok(0) };
        let ResponseKind::Atomic(request) = &response.kind else { return Ok(0) };
        let done = resolve_target(memory, scope, request)
            .map_err(Fault::AtomicTarget)
            .and_then(|range| memory.atomic(range, request.op).ok_or(Fault::AtomicMisaligned));
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

/// Resolves the word of a request.
fn resolve_target(
    memory: &impl Memory,
    scope: AccessScope,
    request: &AtomicRequest,
) -> Result<MemoryRange, MemoryFault> {
    let needed = Access::REMOTE_ATOMIC;
    memory.regions().resolve(request.stag, scope, needed, request.to, ATOMIC_LEN)
}
