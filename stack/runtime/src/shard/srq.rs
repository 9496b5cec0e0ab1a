//! Shard's side of shared receive queues.

use std::sync::Arc;

use crossbeam::queue::ArrayQueue;
use ferrowarp_proto::verbs::qp::SrqId;
use ferrowarp_proto::verbs::wc::QpId;
use ferrowarp_proto::work_queue::Tails;

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
    limit_events: ArrayQueue<SrqLimit>,
    event: AsyncEvent,
}

impl SrqShared {
    /// `srq`: the queue's handle in the context.
    pub(crate) fn new(srq: SrqId) -> Self {
        let event = AsyncEvent::SrqLimit { srq };
        Self { limit_events: ArrayQueue::new(LIMIT_EVENT_COUNT_MAX), event }
    }

    /// Event that names the queue.
    pub(crate) const fn event(&self) -> AsyncEvent {
        self.event
    }

    /// Removes and returns the oldest limit event.
    pub(crate) fn pop_limit_event(&self) -> Option<SrqLimit> {
        self.limit_events.pop()
    }
}

/// Shard's side of a shared receive queue, which the engine reads itself.
pub(crate) struct SrqLink {
    /// Handle of the queue in the engine.
    pub(crate) id: SrqId,
    shared: Arc<SrqShared>,
    tail: Tails<1>,
    /// Tail of which the engine knows.
    seen: u64,
}

impl SrqLink {
    pub(crate) const fn new(id: SrqId, shared: Arc<SrqShared>, tail: Tails<1>) -> Self {
        Self { id, shared, tail, seen: 0 }
    }

    /// True if buffers were posted since the call before.
    #[inline]
    pub(crate) fn take_posted(&mut self) -> bool {
        let [tail] = self.tail.load();
        tail != std::mem::replace(&mut self.seen, tail)
    }

    /// Event that names the queue.
    pub(crate) fn event(&self) -> AsyncEvent {
        self.shared.event
    }

    pub(crate) fn push_limit_event(&self, limit: SrqLimit) {
        let _ = self.shared.limit_events.push(limit);
    }
}
