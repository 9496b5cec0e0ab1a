//! Pending connection requests of a listener.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrowarp_proto::verbs::cm::{ConnInfo, RequestId};

use crate::events::{AsyncEvent, EventSource};

/// Connection request, with the shard that has its connection.
pub(crate) struct PendingRequest {
    pub(crate) shard: usize,
    pub(crate) id: RequestId,
    pub(crate) offer: Box<ConnInfo>,
}

/// Pending connection requests of a listener, which shares them with the shards.
pub(crate) struct Backlog {
    queue: Mutex<VecDeque<PendingRequest>>,
    capacity: usize,
    port: u16,
    source: EventSource,
}

impl Backlog {
    pub(crate) fn new(port: u16, capacity: usize) -> Self {
        let source = EventSource::default();
        Self { queue: Mutex::default(), capacity: capacity.max(1), port, source }
    }

    pub(crate) const fn source(&self) -> &EventSource {
        &self.source
    }

    /// Event that names the listener.
    pub(crate) const fn event(&self) -> AsyncEvent {
        AsyncEvent::ConnectRequest { port: self.port }
    }

    pub(crate) const fn capacity(&self) -> usize {
        self.capacity
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<PendingRequest>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns the oldest request.
    pub(crate) fn pop(&self) -> Option<PendingRequest> {
        self.lock().pop_front()
    }

    /// Adds a request. If the queue has as many of its shard as its capacity, those for which
    /// `is_alive` returns false are dropped first: requests of peers that have given up must not
    /// keep others out. False if it is still full.
    pub(crate) fn push(
        &self,
        request: PendingRequest,
        is_alive: impl Fn(RequestId) -> bool,
    ) -> bool {
        let mut queue = self.lock();
        let shard = request.shard;
        let is_full = |queue: &VecDeque<PendingRequest>| {
            queue.iter().filter(|pending| pending.shard == shard).count() >= self.capacity
        };
        if queue.len() >= self.capacity && is_full(&queue) {
            queue.retain(|pending| pending.shard != shard || is_alive(pending.id));
            if is_full(&queue) {
                return false;
            }
        }
        queue.push_back(request);
        true
    }
}
