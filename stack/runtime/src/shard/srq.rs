//! Shard's side of shared receive queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::queue::ArrayQueue;
use crossbeam::utils::CachePadded;
use ferrowarp_proto::verbs::wc::QpId;
use ferrowarp_proto::verbs::wr::RecvWr;

use crate::events::EventSource;
use crate::spsc::Consumer;

/// Maximum number of pending limit events; further ones are dropped.
const LIMIT_EVENT_COUNT_MAX: usize = 8;

/// Limit event: fewer buffers are left than the limit set with [`Srq::arm`](crate::Srq::arm).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqLimit {
    /// Number of buffers left.
    pub left: usize,
    /// Queue pair with the largest consumption since the limit was armed, and its number of
    /// buffers: if that is more than its fair share, the application can end its connection.
    pub most: Option<(QpId, u64)>,
}

/// State shared by the application's and the shard's sides.
pub(crate) struct SrqShared {
    /// Number of buffers that have left the queue; written by the shard.
    retired: CachePadded<AtomicU64>,
    limit_events: ArrayQueue<SrqLimit>,
    source: Arc<EventSource>,
}

impl SrqShared {
    pub(crate) fn new() -> Self {
        Self {
            retired: CachePadded::new(AtomicU64::new(0)),
            limit_events: ArrayQueue::new(LIMIT_EVENT_COUNT_MAX),
            source: EventSource::new(),
        }
    }

    /// Number of buffers that have left the queue.
    #[inline]
    pub(crate) fn retired(&self) -> u64 {
        self.retired.load(Ordering::Acquire)
    }

    /// Source of the queue's events.
    pub(crate) const fn source(&self) -> &Arc<EventSource> {
        &self.source
    }

    /// Removes and returns the oldest limit event.
    pub(crate) fn pop_limit_event(&self) -> Option<SrqLimit> {
        self.limit_events.pop()
    }
}

/// Shard's side of a shared receive queue.
pub(crate) struct SrqConsumer {
    ring: Consumer<RecvWr>,
    shared: Arc<SrqShared>,
    taken: u64,
    max: usize,
}

impl SrqConsumer {
    /// Returns the shard's side of a queue of `max` buffers that arrive on `ring`.
    pub(crate) const fn new(ring: Consumer<RecvWr>, shared: Arc<SrqShared>, max: usize) -> Self {
        Self { ring, shared, taken: 0, max }
    }

    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    /// Moves at most `free` posted buffers to the engine, as many as its queue has free slots. True
    /// if there were any.
    #[inline]
    pub(crate) fn drain(&mut self, free: usize, mut post: impl FnMut(RecvWr)) -> bool {
        let mut any = false;
        for _ in 0..free {
            let Some(wr) = self.ring.pop() else { break };
            post(wr);
            self.taken += 1;
            any = true;
        }
        any
    }

    /// Publishes to the application how many buffers have left the queue, from the engine's free
    /// slots.
    #[inline]
    pub(crate) fn publish_retired(&self, free: usize) {
        let retired = self.taken - self.max.saturating_sub(free) as u64;
        // Stored only when changed, to leave the cache line with the application's core otherwise.
        if self.shared.retired.load(Ordering::Relaxed) != retired {
            self.shared.retired.store(retired, Ordering::Release);
        }
    }

    pub(crate) fn source(&self) -> &Arc<EventSource> {
        &self.shared.source
    }

    pub(crate) fn push_limit_event(&self, limit: SrqLimit) {
        let _ = self.shared.limit_events.push(limit);
    }
}
