//! Pending connection requests of a listener.

use std::sync::Arc;

use crossbeam::queue::ArrayQueue;
use ferrowarp_proto::verbs::cm::{ConnInfo, RequestId};

use crate::events::{AsyncEvent, EventSource};

/// Pending connection requests of a listener, which shares them with the shard.
pub(crate) struct Backlog {
    queue: ArrayQueue<(RequestId, Box<ConnInfo>)>,
    source: Arc<EventSource>,
}

impl Backlog {
    pub(crate) fn new(port: u16, capacity: usize) -> Self {
        let source = EventSource::new();
        source.set_event(AsyncEvent::ConnectRequest { port });
        Self { queue: ArrayQueue::new(capacity.max(1)), source }
    }

    pub(crate) const fn source(&self) -> &Arc<EventSource> {
        &self.source
    }

    pub(crate) fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.queue.is_full()
    }

    /// Drops the requests for which `is_alive` returns false. Called by the shard, which alone adds
    /// requests, so those that are kept find free slots.
    pub(crate) fn retain(&self, is_alive: impl Fn(RequestId) -> bool) {
        for _ in 0..self.queue.len() {
            let Some((request, offer)) = self.queue.pop() else { break };
            if is_alive(request) {
                self.push(request, offer);
            }
        }
    }

    /// Removes and returns the oldest request.
    pub(crate) fn pop(&self) -> Option<(RequestId, Box<ConnInfo>)> {
        self.queue.pop()
    }

    /// False if the queue is full.
    pub(crate) fn push(&self, request: RequestId, offer: Box<ConnInfo>) -> bool {
        self.queue.push((request, offer)).is_ok()
    }
}
