//! Requester of atomic operations: handles Atomic Responses (RFC 7306 section 4).

use super::{Entry, Progress, Requester};
use crate::ddp::atomic::ATOMIC_LEN;
use crate::ddp::memory::{Access, Memory};
use crate::ddp::regions::AccessScope;
use crate::ddp::untagged::UntaggedFault;
use crate::rdmap::operation::Sge;
use crate::rdmap::terminate::Fault;
use crate::wire::atomic::{ATOMIC_RESPONSE_LEN, AtomicResponse};
use crate::wire::ddp::{HeaderError, Untagged};
use crate::wire::seq::Seq;

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
        let Ok(range) = resolved else {
            entry.progress = Progress::Failed;
            self.outstanding.pop_front();
            return Err(Fault::LocalCatastrophic);
        };
        memory.place(range, &word);
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
