//! Responses to the requester: Read Responses (RFC 5040 section 5.2) and Atomic Responses (RFC 7306
//! section 4).

use super::{Entry, Progress, Requester};
use crate::ddp::atomic::ATOMIC_LEN;
use crate::ddp::memory::{Access, Memory, MemoryFault};
use crate::ddp::regions::{AccessScope, Stag};
use crate::ddp::sgl::Sge;
use crate::ddp::untagged::UntaggedFault;
use crate::rdmap::fault::Fault;
use crate::wire::ddp::{HeaderError, Tagged, Untagged};
use crate::wire::rdmap_extensions::{ATOMIC_RESPONSE_LEN, AtomicResponse};
use crate::wire::seq::Seq;

impl Requester {
    /// Checks a segment of a Read Response against the oldest outstanding request: it has to
    /// continue the response to that Read without a gap. Returns the sink's STag for placement, or
    /// `None` if that request is not a Read or there is none.
    ///
    /// # Errors
    /// [`MemoryFault`] if STag, offset or length do not match the Read.
    pub fn check_read_response(
        &self,
        header: &Tagged,
        len: usize,
    ) -> Result<Option<Stag>, MemoryFault> {
        let Some(sink) = self.oldest_sink() else { return Ok(None) };
        let placed = u64::from(self.response_placed);
        let end = placed + len as u64;
        // STag and offset of a segment without payload are not checked (RFC 5041 section 5.2).
        if len > 0 {
            // req: RDMAP-163
            if header.stag != sink.lkey {
                return Err(MemoryFault::InvalidStag);
            }
            // req: RDMAP-082
            if header.to.checked_add(len as u64).is_none() {
                return Err(MemoryFault::Wrap);
            }
            // req: RDMAP-166
            if header.to != sink.addr.wrapping_add(placed) {
                return Err(MemoryFault::Bounds);
            }
        }
        // req: RDMAP-166
        if end > u64::from(sink.len) || (header.last && end != u64::from(sink.len)) {
            return Err(MemoryFault::Bounds);
        }
        Ok(Some(sink.lkey))
    }

    /// Returns the sink of the oldest outstanding request if it is a Read.
    fn oldest_sink(&self) -> Option<Sge> {
        let entry = self.entries.get(*self.outstanding.front()?)?;
        let Progress::Reading { answering, .. } = entry.progress else { return None };
        Some(entry.wqe(&self.sq).sge(answering.into()))
    }

    /// Returns the part of the sink of the oldest outstanding request that was not placed, if it is
    /// a Read.
    #[inline]
    pub(in crate::rdmap) fn rest_of_sink(&self) -> Option<Sge> {
        let sink = self.oldest_sink()?;
        let addr = sink.addr.wrapping_add(u64::from(self.response_placed));
        Some(Sge { addr, len: sink.len.checked_sub(self.response_placed)?, ..sink })
    }

    /// Counts `len` placed bytes of the response to the oldest outstanding Read, and not its last.
    #[inline(always)]
    pub(in crate::rdmap) const fn advance_response(&mut self, len: u32) {
        self.response_placed += len;
    }

    /// Ends the oldest outstanding Read: a page fault in its sink. Returns the fault of the stream.
    #[cold]
    pub(in crate::rdmap) fn fail_oldest_read(&mut self) -> Fault {
        if let Some(number) = self.outstanding.pop_front()
            && let Some(entry) = self.entries.get_mut(number)
        {
            entry.progress = Progress::Failed;
        }
        Fault::LocalCatastrophic
    }

    /// Counts a placed segment of a Read Response; true if it ended the response.
    pub fn on_response_placed(&mut self, len: usize, last: bool) -> bool {
        let Some(&number) = self.outstanding.front() else { return false };
        let Some(entry) = self.entries.get_mut(number) else { return false };
        if !matches!(entry.progress, Progress::Reading { .. }) {
            return false;
        }
        // req: RDMAP-039, RDMAP-210, RDMAP-219, RDMAP-223
        if last {
            entry.on_read_answered(&self.sq);
            self.outstanding.pop_front();
            self.response_placed = 0;
        } else {
            let len = u32::try_from(len).expect("check_read_response limits it to the sink");
            self.advance_response(len);
        }
        last
    }
}

/// Atomic Responses.
impl Requester {
    /// Handles an Atomic Response: checks it against the oldest outstanding request, and places the
    /// original remote value.
    ///
    /// The Atomic Response queue has a buffer for each outstanding Atomic Request; they are filled
    /// in order. Read Requests and Atomic Requests are answered in the order in which they were
    /// sent.
    ///
    /// # Errors
    /// [`Fault`]. An unusable sink is a local error: the request completes with
    /// [`RequestOutcome::LocalProtection`](super::RequestOutcome::LocalProtection).
    #[cold]
    pub fn on_atomic_response(
        &mut self,
        memory: &impl Memory,
        scope: AccessScope,
        header: &Untagged,
        payload: &[u8],
    ) -> Result<(), Fault> {
        let msn = Seq(header.msn);
        let ahead = msn - self.response_msn;
        if msn >= self.response_msn && ahead as usize >= self.outstanding_atomics() {
            return Err(Fault::Untagged(UntaggedFault::NoBuffer));
        }
        if ahead != 0 {
            return Err(Fault::Untagged(UntaggedFault::MsnRange));
        }
        if header.mo != 0 {
            return Err(Fault::Untagged(UntaggedFault::MessageOffset));
        }
        if !header.last || payload.len() > ATOMIC_RESPONSE_LEN {
            return Err(Fault::HeaderTooLong);
        }
        let response =
            AtomicResponse::parse(payload).ok_or(Fault::Header(HeaderError::Truncated))?;
        let (entry, sink) = self.oldest_atomic(response.id).ok_or(Fault::UnexpectedOpcode)?;
        let word = response.original.to_ne_bytes();
        let resolved =
            memory.regions().resolve(sink.lkey, scope, Access::LOCAL_WRITE, sink.addr, ATOMIC_LEN);
        if resolved.and_then(|range| Ok(memory.place(range, &word)?)).is_err() {
            entry.progress = Progress::Failed;
            self.outstanding.pop_front();
            return Err(Fault::LocalCatastrophic);
        }
        entry.progress = Progress::Answered;
        self.outstanding.pop_front();
        self.response_msn += 1;
        Ok(())
    }

    /// Returns the number of outstanding Atomic Requests.
    fn outstanding_atomics(&self) -> usize {
        let is_atomic = |&&number: &&u64| {
            self.entries
                .get(number)
                .is_some_and(|entry| matches!(entry.progress, Progress::Atomic { .. }))
        };
        self.outstanding.iter().filter(is_atomic).count()
    }

    /// Returns the oldest outstanding request and its sink, if it is the Atomic Request `id`.
    fn oldest_atomic(&mut self, id: u32) -> Option<(&mut Entry, Sge)> {
        let number = *self.outstanding.front()?;
        let entry = self.entries.get_mut(number)?;
        let is_expected = entry.progress == Progress::Atomic { id };
        is_expected.then(|| {
            let sink = entry.wqe(&self.sq).sge(0);
            (entry, sink)
        })
    }
}
