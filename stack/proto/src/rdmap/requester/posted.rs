//! Requests pass from the send queue to the requester.

use super::entries::{Entry, Progress};
use super::{Rejection, Requester};
use crate::rdmap::operation::SendWr;
use crate::rdmap::send_queue::wqe::WqeOpcode;

/// A request that is taken from the send queue.
#[derive(Clone, Copy, Debug)]
pub struct TakenRequest {
    opcode: WqeOpcode,
}

impl TakenRequest {
    /// True if it is a Read or atomic operation.
    #[must_use]
    pub const fn is_answered(self) -> bool {
        self.opcode.is_answered()
    }

    /// True for an operation of RFC 7306.
    #[must_use]
    pub const fn is_extension(self) -> bool {
        self.opcode.is_extension()
    }
}

impl Requester {
    /// Returns the number of requests that can be taken now.
    #[must_use]
    pub fn free_count(&self) -> usize {
        self.entries.free_count()
    }

    /// Posts a request and takes it; `false` if the queue is full, or its other side was taken. The
    /// caller has checked the request.
    pub fn post(&mut self, wr: &SendWr) -> bool {
        self.publish_retired();
        let Some(producer) = &mut self.producer else { return false };
        let is_posted = producer.post(wr);
        producer.publish();
        while self.take_posted(|_| None) {}
        is_posted
    }

    /// Takes the next posted request, if there is one. `reject` may refuse it: it then completes
    /// with [`RequestOutcome::Rejected`], after all requests before it.
    #[inline(always)]
    pub fn take_posted(&mut self, reject: impl FnOnce(TakenRequest) -> Option<Rejection>) -> bool {
        let Some((slot, wqe)) = self.sq.take() else { return false };
        let (opcode, flags, len) = (wqe.opcode(), wqe.flags(), wqe.len());
        let rejection = reject(TakenRequest { opcode });
        self.local_count += usize::from(opcode.is_local() || rejection.is_some());
        let progress = rejection.map_or(Progress::Queued, Progress::Rejected);
        // req: DDP-109, RDMAP-003, RDMAP-139, RDMAP-178
        self.entries.push(Entry { slot, len, opcode, flags, progress });
        true
    }

    /// True if a posted request was not taken.
    #[inline]
    pub fn has_posted(&mut self) -> bool {
        self.sq.has_published()
    }

    /// Lets the application use the places of completed requests.
    #[inline]
    pub fn publish_retired(&mut self) {
        self.sq.retire(self.entries.oldest);
    }
}
