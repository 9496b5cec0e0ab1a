//! Pending connection requests of a listener.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use ferrowarp_proto::verbs::cm::{ConnInfo, RequestId};

use crate::events::{AsyncEvent, EventSource};

/// Number of requests at which those that are gone are removed first.
const SWEEP_AT_MIN: usize = 64;

/// Connection request, with the shard that has its connection.
pub(crate) struct PendingRequest {
    pub(crate) shard: usize,
    pub(crate) id: RequestId,
    pub(crate) offer: Box<ConnInfo>,
}

/// Pending connection requests of a listener, which shares them with the shards.
pub(crate) struct Backlog {
    queue: Mutex<Queue>,
    capacity: usize,
    port: u16,
    source: EventSource,
}

#[derive(Default)]
struct Queue {
    /// Oldest first.
    requests: VecDeque<PendingRequest>,
    /// Number of them, by shard.
    counts: Vec<usize>,
    /// Number of requests at which those that are gone are removed next.
    sweep_at: usize,
}

/// Result of [`Backlog::try_push`].
pub(crate) enum Pushed {
    Done,
    /// The queue is full.
    Full,
    /// Another thread holds the lock: the next poll is to try again.
    Busy(PendingRequest),
}

impl Queue {
    /// Removes the requests of a shard for which `is_alive` returns false.
    fn sweep(&mut self, shard: usize, is_alive: impl Fn(RequestId) -> bool) {
        let Self { requests, counts, sweep_at } = self;
        requests.retain(|pending| {
            let is_kept = pending.shard != shard || is_alive(pending.id);
            counts[shard] -= usize::from(!is_kept);
            is_kept
        });
        *sweep_at = 2 * requests.len();
    }
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

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns the oldest request.
    pub(crate) fn pop(&self) -> Option<PendingRequest> {
        let mut queue = self.lock();
        let request = queue.requests.pop_front()?;
        queue.counts[request.shard] -= 1;
        Some(request)
    }

    /// Adds a request, unless the queue has as many of its shard as its capacity. Those for which
    /// `is_alive` returns false are removed when it is full, and whenever the queue has doubled:
    /// requests of peers that have given up neither keep others out nor take memory. The cost is
    /// constant, amortized. Never waits.
    pub(crate) fn try_push(
        &self,
        request: PendingRequest,
        is_alive: impl Fn(RequestId) -> bool,
    ) -> Pushed {
        let mut queue = match self.queue.try_lock() {
            Ok(queue) => queue,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return Pushed::Busy(request),
        };
        let shard = request.shard;
        if shard >= queue.counts.len() {
            queue.counts.resize(shard + 1, 0);
        }
        if queue.counts[shard] >= self.capacity
            || queue.requests.len() >= queue.sweep_at.max(SWEEP_AT_MIN)
        {
            queue.sweep(shard, is_alive);
        }
        if queue.counts[shard] >= self.capacity {
            return Pushed::Full;
        }
        queue.counts[shard] += 1;
        queue.requests.push_back(request);
        Pushed::Done
    }
}
