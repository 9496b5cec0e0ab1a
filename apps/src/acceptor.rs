//! Connection requests of a server with a thread for each shard.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrowarp::{ConnRequest, Listener};

/// Listeners of a server. Its workers, one for each shard, serve the requests of their shard. The
/// first worker polls the listeners and passes on what is of others.
pub struct Acceptor {
    listeners: Vec<Listener>,
    /// Requests for the workers.
    mailboxes: Vec<Mutex<VecDeque<ConnRequest>>>,
}

impl Acceptor {
    /// An acceptor for a number of workers.
    #[must_use]
    pub fn new(listeners: Vec<Listener>, workers: usize) -> Self {
        Self { listeners, mailboxes: (0..workers).map(|_| Mutex::default()).collect() }
    }

    /// Returns the next request for a worker, if there is one. `worker_of` returns the one that a
    /// request is for.
    pub fn poll(
        &self,
        worker: usize,
        worker_of: impl Fn(&ConnRequest) -> usize,
    ) -> Option<ConnRequest> {
        if worker == 0 {
            while let Some(request) = self.listeners.iter().find_map(Listener::poll) {
                match worker_of(&request) {
                    0 => return Some(request),
                    other => self.mailbox(other).push_back(request),
                }
            }
        }
        self.mailbox(worker).pop_front()
    }

    fn mailbox(&self, worker: usize) -> MutexGuard<'_, VecDeque<ConnRequest>> {
        self.mailboxes[worker].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
