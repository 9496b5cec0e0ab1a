//! Completion of requests, in posting order.

use super::{Entry, Progress, Rejection, Requester};
use crate::rdmap::send_queue::wqe::{SendFlags, WqeOpcode};

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
    /// Work request ID.
    pub wr_id: u64,
    /// Bytes that it transferred.
    pub len: u32,
    /// Operation.
    pub opcode: WqeOpcode,
    /// Success is to be reported.
    pub signaled: bool,
}

impl DoneRequest {
    #[inline(always)]
    fn of(entry: &Entry) -> Self {
        let signaled = entry.flags().contains(SendFlags::SIGNALED);
        Self { wr_id: entry.wr_id, len: entry.len, opcode: entry.opcode(), signaled }
    }
}

impl Requester {
    /// Removes the oldest requests that succeeded. Before one whose success is to be reported is
    /// removed, `report` is called; if it returns false, the request stays, and all after it, and
    /// so does this.
    #[inline(always)]
    pub fn complete_succeeded(&mut self, mut report: impl FnMut(&DoneRequest) -> bool) -> bool {
        let mut all_accepted = true;
        // req: RDMAP-210
        self.entries.pop_built_while(|entry| {
            if !matches!(entry.progress, Progress::Built | Progress::Answered) {
                return false;
            }
            let request = DoneRequest::of(entry);
            all_accepted = !request.signaled || report(&request);
            all_accepted
        });
        all_accepted
    }

    /// Returns the oldest request if it has succeeded, and is the last that was built.
    #[inline(always)]
    #[must_use]
    pub fn only_succeeded(&self) -> Option<DoneRequest> {
        let entry = self.entries.only_built()?;
        // req: RDMAP-210
        matches!(entry.progress, Progress::Built).then(|| DoneRequest::of(entry))
    }

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
        self.entries.get(self.entries.oldest).map(DoneRequest::of)
    }

    /// Returns the number of the oldest request, counted from the first ever posted.
    #[must_use]
    pub const fn oldest_number(&self) -> u64 {
        self.entries.oldest
    }

    /// Removes the oldest request.
    #[inline(always)]
    pub fn pop(&mut self) {
        self.entries.pop();
    }
}
