//! The answering half of a stream: Read Requests of the peer, served in order
//! (RFC 5040 section 5.2).

use std::collections::VecDeque;

use crate::ddp::memory::{Access, Memory, MemoryFault};
use crate::ddp::untagged::UntaggedFault;
use crate::rdmap::fault::Fault;
use crate::wire::ddp::{TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged, Version};
use crate::wire::rdmap::{Opcode, QN_READ_REQUEST, READ_REQUEST_LEN, ReadRequest};
use crate::wire::seq::Seq;

#[derive(Debug)]
struct Job {
    request: ReadRequest,
    msn: u32,
    answered: u32,
}

/// A Read that failed while it was answered: the fault, and the Read Request as a ULPDU that
/// names what was left to answer (for the Terminate's copies).
#[derive(Debug)]
pub struct AnswerFault {
    /// What was wrong with the source.
    pub fault: Fault,
    /// The request's remainder.
    pub segment: [u8; UNTAGGED_LEN + READ_REQUEST_LEN],
}

/// Read Requests being served.
#[derive(Debug)]
pub struct Responder {
    jobs: VecDeque<Job>,
    ird: u16,
    msn: Seq,
}

impl Responder {
    /// Serves no Reads until [`Responder::set_ird`].
    #[must_use]
    pub const fn new() -> Self {
        Self { jobs: VecDeque::new(), ird: 0, msn: Seq(1) }
    }

    /// Sets how many Reads are served at a time; done once, when the stream starts.
    pub fn set_ird(&mut self, ird: u16) {
        self.ird = ird;
        self.jobs.reserve(usize::from(ird));
    }

    /// Takes a Read Request in, after checking that its source may be read.
    ///
    /// # Errors
    /// [`Fault`]: more requests than IRD are "no buffer" of the request queue.
    pub fn accept(
        &mut self,
        memory: &impl Memory,
        pd: u32,
        header: &Untagged,
        payload: &[u8],
    ) -> Result<(), Fault> {
        if Seq(header.msn) != self.msn {
            return Err(Fault::Untagged(UntaggedFault::MsnRange));
        }
        if self.jobs.len() >= usize::from(self.ird) {
            return Err(Fault::Untagged(UntaggedFault::NoBuffer));
        }
        if header.mo != 0 {
            return Err(Fault::Untagged(UntaggedFault::MessageOffset));
        }
        if !header.last || payload.len() > READ_REQUEST_LEN {
            return Err(Fault::ReadRequestTooLong);
        }
        let request = ReadRequest::parse(payload)
            .ok_or(Fault::Header(crate::wire::ddp::HeaderError::Truncated))?;
        check_source(memory, pd, &request).map_err(Fault::ReadSource)?;
        self.msn += 1;
        self.jobs.push_back(Job { request, msn: header.msn, answered: 0 });
        Ok(())
    }

    /// A segment can be built now.
    #[must_use]
    pub fn ready(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// A response is begun and not built whole.
    #[must_use]
    pub fn mid_message(&self) -> bool {
        self.jobs.front().is_some_and(|job| job.answered > 0)
    }

    /// Octets of the ULPDU that [`Responder::build`] would make with no bound on its room.
    #[must_use]
    pub fn next_len(&self) -> u64 {
        self.jobs
            .front()
            .map_or(0, |job| TAGGED_LEN as u64 + u64::from(job.request.len - job.answered))
    }

    /// Builds the next segment of the oldest response into `out` and returns its length.
    ///
    /// # Errors
    /// [`AnswerFault`] if the source was revoked meanwhile; the stream has to end.
    pub fn build(
        &mut self,
        memory: &impl Memory,
        pd: u32,
        version: Version,
        out: &mut [u8],
    ) -> Result<usize, Box<AnswerFault>> {
        let Some(job) = self.jobs.front_mut() else { return Ok(0) };
        let left = job.request.len - job.answered;
        let room = u32::try_from(out.len() - TAGGED_LEN).unwrap_or(u32::MAX);
        let len = left.min(room);
        let header = Tagged {
            last: len == left,
            rsvd_ulp: Opcode::ReadResponse.control(version),
            stag: job.request.sink_stag,
            to: job.request.sink_to.wrapping_add(u64::from(job.answered)),
        };
        header.emit(version, out);
        if len > 0 {
            let at = job.request.source_to + u64::from(job.answered);
            let stag = job.request.source_stag;
            let body = &mut out[TAGGED_LEN..TAGGED_LEN + len as usize];
            match memory.regions().resolve(stag, pd, Access::REMOTE_READ, at, body.len()) {
                Ok(place) => memory.fetch(place, body),
                Err(fault) => return Err(Box::new(job.fault(fault, version))),
            }
        }
        job.answered += len;
        if header.last {
            self.jobs.pop_front();
        }
        Ok(TAGGED_LEN + len as usize)
    }
}

impl Default for Responder {
    fn default() -> Self {
        Self::new()
    }
}

impl Job {
    /// The remainder of the request, as the Terminate's copies show it.
    fn fault(&self, fault: MemoryFault, version: Version) -> AnswerFault {
        let mut segment = [0; UNTAGGED_LEN + READ_REQUEST_LEN];
        let header = Untagged {
            last: true,
            rsvd_ulp: Opcode::ReadRequest.control(version),
            rsvd_ulp_rest: 0,
            queue: QN_READ_REQUEST,
            msn: self.msn,
            mo: 0,
        };
        header.emit(version, &mut segment);
        let done = u64::from(self.answered);
        let rest = ReadRequest {
            sink_to: self.request.sink_to.wrapping_add(done),
            len: self.request.len - self.answered,
            source_to: self.request.source_to.wrapping_add(done),
            ..self.request
        };
        rest.emit(&mut segment[UNTAGGED_LEN..]);
        AnswerFault { fault: Fault::ReadSource(fault), segment }
    }
}

/// The source of a Read of no octets is not checked (RFC 5040 section 5.2.1).
fn check_source(memory: &impl Memory, pd: u32, request: &ReadRequest) -> Result<(), MemoryFault> {
    if request.len == 0 {
        return Ok(());
    }
    let len = request.len as usize;
    memory
        .regions()
        .resolve(request.source_stag, pd, Access::REMOTE_READ, request.source_to, len)
        .map(|_| ())
}
