//! Limit events of shared receive queues, from the shards to the application.

use crossbeam::queue::SegQueue;
use ferrowarp_proto::verbs::srq::SrqId;
use ferrowarp_proto::verbs::wc::QpId;

use crate::events::AsyncEvent;

/// Maximum number of pending limit events; further ones are dropped.
const LIMIT_EVENT_COUNT_MAX: usize = 8;

/// Limit event: fewer buffers are left than the limit set with [`Srq::arm`](crate::Srq::arm).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SrqLimit {
    /// Number of buffers left.
    pub left: usize,
    /// Queue pair with the largest consumption since the limit was armed, and its number of
    /// buffers: if that is more than its fair share, the application can end its connection.
    pub most: Option<(QpId, u64)>,
}

/// State shared by the application's and the shard's sides.
pub(crate) struct SrqShared {
    limit_events: SegQueue<SrqLimit>,
    event: AsyncEvent,
}

impl SrqShared {
    /// `srq`: the queue's handle in the context.
    pub(crate) fn new(srq: SrqId) -> Self {
        let event = AsyncEvent::SrqLimit { srq };
        Self { limit_events: SegQueue::new(), event }
    }

    /// Event that names the queue.
    pub(crate) const fn event(&self) -> AsyncEvent {
        self.event
    }

    /// Adds a limit event; dropped if eight are pending.
    pub(super) fn push_limit_event(&self, limit: SrqLimit) {
        // Not an `ArrayQueue`: there a push waits for a pop that was preempted.
        if self.limit_events.len() < LIMIT_EVENT_COUNT_MAX {
            self.limit_events.push(limit);
        }
    }

    /// Removes and returns the oldest limit event.
    pub(crate) fn pop_limit_event(&self) -> Option<SrqLimit> {
        self.limit_events.pop()
    }
}
