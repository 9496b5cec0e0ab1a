//! Completion events of a channel: the queue of completion queues that raised one.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use ferrowarp_proto::verbs::wc::CqId;

use crate::events::{NotifyFd, TicketQueue};
use crate::shard::end_observer::EndObserver;

/// Queue of the completion events of a channel, filled by the shard.
pub(crate) struct CompEventQueue {
    pending: Mutex<PendingEvents>,
    wake: Condvar,
    /// Readable while events are pending, once the descriptor was requested.
    fd: NotifyFd,
}

/// Pending events.
#[derive(Default)]
struct PendingEvents {
    /// Queues with an event.
    cqs: TicketQueue<CqId>,
    /// The application has the descriptor, and may sleep on it. Otherwise two system calls per
    /// event are saved.
    fd_exported: bool,
}

impl CompEventQueue {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { pending: Mutex::default(), wake: Condvar::new(), fd: NotifyFd::new()? })
    }

    fn lock(&self) -> MutexGuard<'_, PendingEvents> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds the lock, as a thread of the application that is preempted there.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Drop {
        self.lock()
    }

    /// Queues an event of a completion queue. One lock and at most one byte written, only for
    /// queues that were armed. Waits for the lock: not for a poll.
    #[cold]
    pub(crate) fn push(&self, cq: CqId) {
        self.push_locked(self.lock(), cq);
    }

    /// As [`CompEventQueue::push`], for a poll: false, and nothing is queued, while another thread
    /// holds the lock. That thread may have been preempted, and the shard does not wait for it.
    #[cold]
    pub(crate) fn try_push(&self, cq: CqId) -> bool {
        let pending = match self.pending.try_lock() {
            Ok(pending) => pending,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        self.push_locked(pending, cq);
        true
    }

    fn push_locked(&self, mut pending: MutexGuard<'_, PendingEvents>, cq: CqId) {
        let is_first = pending.cqs.is_empty();
        if !pending.cqs.push(cq) {
            return;
        }
        if is_first && pending.fd_exported {
            self.fd.set();
        }
        // The woken thread takes the lock immediately.
        drop(pending);
        self.wake.notify_one();
    }

    /// Removes and returns the queue of the oldest event.
    pub(crate) fn pop(&self) -> Option<CqId> {
        self.pop_locked(&mut self.lock())
    }

    fn pop_locked(&self, pending: &mut PendingEvents) -> Option<CqId> {
        let cq = pending.cqs.pop()?;
        self.clear_fd_if_empty(pending);
        Some(cq)
    }

    /// Waits until `end` (`None`: forever) for an event, and removes it. Does not wait while
    /// `has_ended` holds.
    pub(crate) fn wait(&self, end: Option<Instant>, has_ended: impl Fn() -> bool) -> Option<CqId> {
        let mut pending = self.lock();
        loop {
            let left =
                end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if let Some(cq) = self.pop_locked(&mut pending) {
                return Some(cq);
            }
            if left.is_zero() || has_ended() {
                return None;
            }
            let woken = self.wake.wait_timeout(pending, left);
            pending = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Clears the descriptor if the event just removed was the last.
    fn clear_fd_if_empty(&self, pending: &PendingEvents) {
        if pending.cqs.is_empty() && pending.fd_exported {
            self.fd.clear();
        }
    }

    /// Returns the descriptor; from now on it is readable while events are pending.
    pub(crate) fn export_fd(&self) -> BorrowedFd<'_> {
        if crate::fork::is_child() {
            // The lock may have been held at the fork, and nothing is pending here.
            return self.fd.as_fd();
        }
        let mut pending = self.lock();
        if !pending.fd_exported {
            pending.fd_exported = true;
            if !pending.cqs.is_empty() {
                self.fd.set();
            }
        }
        self.fd.as_fd()
    }

    /// Wakes all waiting threads, event or not.
    fn wake_all(&self) {
        // A thread that has checked the queue under the lock is waiting by the time it is free.
        drop(self.lock());
        self.wake.notify_all();
    }

    /// Removes the event of a completion queue that is destroyed.
    pub(crate) fn remove(&self, cq: CqId) {
        let mut pending = self.lock();
        if pending.cqs.remove(cq) {
            self.clear_fd_if_empty(&pending);
        }
    }
}

/// Wakes waiting threads, so that none waits forever on a shard that has ended. Those that sleep on
/// the descriptor are woken by the last shard, for good.
impl EndObserver for CompEventQueue {
    fn on_shard_end(&self, is_last: bool) {
        self.wake_all();
        if is_last {
            self.fd.hang_up();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poll_does_not_wait_for_a_thread_that_holds_the_lock() {
        let events = CompEventQueue::new().unwrap();
        let preempted = events.lock();
        assert!(!events.try_push(CqId(1)));
        drop(preempted);
        assert!(events.try_push(CqId(1)) && events.try_push(CqId(2)) && events.try_push(CqId(1)));
        assert_eq!(
            [events.pop(), events.pop(), events.pop()],
            [Some(CqId(1)), Some(CqId(2)), None]
        );
    }
}
