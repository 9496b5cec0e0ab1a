//! Requests from other shards to a shard: rare, and never lost.

use crossbeam::queue::SegQueue;
use ferrowarp_proto::verbs::wc::CqId;

use crate::doorbell::Doorbells;

/// Request from another shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShardRequest {
    /// The completion queue overran at the other shard: its queue pairs are to be ended here, too.
    EndCq(CqId),
}

/// A shard, to another one that has a request.
pub(crate) trait RequestSink: Send + Sync {
    /// Has the shard execute a request in its next poll.
    fn request(&self, request: ShardRequest);
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

    /// Passes all requests to `execute`.
    #[cold]
    pub(crate) fn drain(&self, doorbells: &Doorbells, mut execute: impl FnMut(ShardRequest)) {
        doorbells.clear_requests();
        while let Some(request) = self.0.pop() {
            execute(request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_executed_once_and_in_order() {
        let (doorbells, mailbox) = (Doorbells::new(1), Mailbox::default());
        assert!(!doorbells.has_requests());
        let requests = [CqId(3), CqId(1)].map(ShardRequest::EndCq);
        requests.into_iter().for_each(|request| mailbox.push(&doorbells, request));
        assert!(doorbells.has_requests());
        let mut executed = Vec::new();
        mailbox.drain(&doorbells, |request| executed.push(request));
        assert_eq!(executed, requests);
        assert!(!doorbells.has_requests());
        mailbox.drain(&doorbells, |request| panic!("{request:?} once more"));
    }
}
