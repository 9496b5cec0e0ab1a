//! Requests from other shards to a shard: rare, and never lost.

use std::sync::Arc;

use crossbeam::queue::SegQueue;
use ferrowarp_lockfree::doorbell::Doorbells;
use ferrowarp_proto::verbs::wc::CqId;

use crate::shard::cq_overrun::CqOverrun;

/// Requests executed in a poll.
const REQUESTS_PER_POLL: usize = 16;

/// Request from another shard.
#[derive(Clone, Debug)]
pub(crate) enum ShardRequest {
    /// The completion queue overran at another shard: its queue pairs are to be ended here, too.
    EndCq {
        /// ID of the queue; another queue may have it by now.
        cq: CqId,
        /// Identity of the queue.
        overrun: Arc<CqOverrun>,
    },
}

/// Requests to a shard. Their announcement is with the doorbells, so that a poll without requests
/// pays one load of a cache line that it loads anyway.
#[derive(Debug, Default)]
pub(crate) struct Mailbox(SegQueue<ShardRequest>);

impl Mailbox {
    /// Adds a request.
    #[cold]
    pub(crate) fn push(&self, doorbells: &Doorbells, request: ShardRequest) {
        self.0.push(request);
        doorbells.announce_request();
    }

    /// Passes requests to `execute`, oldest first; what is left by [`REQUESTS_PER_POLL`] is
    /// announced again.
    #[cold]
    pub(crate) fn drain(&self, doorbells: &Doorbells, mut execute: impl FnMut(ShardRequest)) {
        doorbells.clear_requests();
        for _ in 0..REQUESTS_PER_POLL {
            let Some(request) = self.0.pop() else { return };
            execute(request);
        }
        doorbells.announce_request();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_executed_once_and_in_order() {
        let (doorbells, mailbox) = (Doorbells::new(1), Mailbox::default());
        assert!(!doorbells.has_requests());
        for cq in [CqId(3), CqId(1)] {
            mailbox.push(&doorbells, ShardRequest::EndCq { cq, overrun: Arc::default() });
        }
        assert!(doorbells.has_requests());
        let mut executed = Vec::new();
        mailbox.drain(&doorbells, |ShardRequest::EndCq { cq, .. }| executed.push(cq));
        assert_eq!(executed, [CqId(3), CqId(1)]);
        assert!(!doorbells.has_requests());
        mailbox.drain(&doorbells, |request| panic!("{request:?} once more"));
    }

    #[test]
    fn rest_is_left_to_the_next_polls() {
        let (doorbells, mailbox) = (Doorbells::new(1), Mailbox::default());
        let count = u32::try_from(2 * REQUESTS_PER_POLL + 1).unwrap();
        for cq in (0..count).map(CqId) {
            mailbox.push(&doorbells, ShardRequest::EndCq { cq, overrun: Arc::default() });
        }
        let mut polls = Vec::new();
        while doorbells.has_requests() {
            let mut executed = 0;
            mailbox.drain(&doorbells, |_| executed += 1);
            polls.push(executed);
        }
        assert_eq!(polls, [REQUESTS_PER_POLL, REQUESTS_PER_POLL, 1]);
    }
}
