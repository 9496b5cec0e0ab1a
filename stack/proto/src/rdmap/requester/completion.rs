//! Completion of requests, in posting order.

use super::{Progress, Rejection, Requester};
use crate::rdmap::send_queue::wqe::{WqeFlags, WqeOpcode};

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// Completed.
    Success,
    /// Its memory was not registered as it claims.
    LocalProtection,
    /// The stream ended before it was done.
    Flushed,
    /// It was not executed: see [`Requester::take_posted`].
    Rejected(Rejection),
}

/// A request that is done.
#[derive(Clone, Copy, Debug)]
pub struct DoneRequest {
    /// Number of its first slot in the send queue.
    slot: u64,
    /// Bytes that it transferred.
    pub len: u32,
    /// Operation.
    pub opcode: WqeOpcode,
    /// Success is to be reported.
    pub signaled: bool,
}

impl Requester {
    /// Returns the oldest request and its outcome, if it is done; remove it with
    /// [`Requester::pop`].
    #[inline]
    #[must_use]
    pub fn completed(&self) -> Option<(DoneRequest, RequestOutcome)> {
        // req: RDMAP-210
        let outcome = match self.entries.get(self.entries.oldest)?.progress {
            Progress::Built | Progress::Answered => RequestOutcome::Success,
            Progress::Failed => RequestOutcome::LocalProtection,
            Progress::Rejected(rejection) => RequestOutcome::Rejected(rejection),
            Progress::Queued
            | Progress::WriteBuilt
            | Progress::Reading { .. }
            | Progress::LocalOpFailed(_)
            | Progress::Atomic { .. } => return None,
        };
        Some((self.oldest()?, outcome))
    }

    /// Returns the oldest request and its outcome at the end of the stream: done, failed or
    /// flushed.
    #[must_use]
    pub fn flushed(&self) -> Option<(DoneRequest, RequestOutcome)> {
        self.completed().or_else(|| Some((self.oldest()?, RequestOutcome::Flushed)))
    }

    #[inline]
    fn oldest(&self) -> Option<DoneRequest> {
        let entry = self.entries.get(self.entries.oldest)?;
        let signaled = entry.flags.contains(WqeFlags::SIGNALED);
        Some(DoneRequest { slot: entry.slot, len: entry.len, opcode: entry.opcode, signaled })
    }

    /// Returns the work request ID of a request that was not removed.
    #[inline]
    #[must_use]
    pub fn wr_id(&self, request: &DoneRequest) -> u64 {
        self.sq.wr_id(request.slot)
    }

    /// Returns the number of the oldest request, counted from the first ever posted.
    #[must_use]
    pub const fn oldest_number(&self) -> u64 {
        self.entries.oldest
    }

    /// Removes the oldest request.
    #[inline]
    pub fn pop(&mut self) {
        self.entries.pop();
    }
}
