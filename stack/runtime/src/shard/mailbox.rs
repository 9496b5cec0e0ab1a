//! Requests from other shards to a shard: rare, and never lost.

use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam::queue::SegQueue;
use crossbeam::utils::CachePadded;
use ferrowarp_proto::verbs::wc::CqId;

/// Request from another shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShardRequest {
    /// The completion queue overran at the other shard: its queue pairs are to be ended here, too.
    EndCq(CqId),
}

/// Requests to a shard, which executes them in its next poll. Without requests a poll pays one
/// load.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    has_requests: CachePadded<AtomicBool>,
    requests: SegQueue<ShardRequest>,
}

impl Mailbox {
    /// Adds a request.
    #[cold]
    pub(crate) fn push(&self, request: ShardRequest) {
        self.requests.push(request);
        self.has_requests.store(true, Ordering::Release);
    }

    /// True if there may be requests.
    #[inline]
    pub(crate) fn has_requests(&self) -> bool {
        self.has_requests.load(Ordering::Relaxed)
    }

    /// Passes all requests to `execute`.
    #[cold]
    pub(crate) fn drain(&self, mut execute: impl FnMut(ShardRequest)) {
        // Before the queue is read: a request added later sets it again.
        self.has_requests.swap(false, Ordering::AcqRel);
        while let Some(request) = self.requests.pop() {
            execute(request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_executed_once_and_in_order() {
        let mailbox = Mailbox::default();
        assert!(!mailbox.has_requests());
        let requests = [CqId(3), CqId(1)].map(ShardRequest::EndCq);
        requests.into_iter().for_each(|request| mailbox.push(request));
        assert!(mailbox.has_requests());
        let mut executed = Vec::new();
        mailbox.drain(|request| executed.push(request));
        assert_eq!(executed, requests);
        assert!(!mailbox.has_requests());
        mailbox.drain(|request| panic!("{request:?} once more"));
    }
}
