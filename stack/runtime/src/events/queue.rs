//! Queue of the sources of a context that have events, and the shard's publisher.
//!
//! A source (a queue pair, a listener, a shared receive queue) keeps its own events; the queue only
//! holds the events that name the sources which have some, each at most once. So the length of the
//! queue is bounded by the number of sources; an application that takes the events of its queue
//! pairs directly, and never looks at the queue, leaves hardly any of them in it. A CQ overrun, the
//! failure of the context and the states of the port have no source, and are queued at most once
//! each as well.
//!
//! The shard never blocks here: it takes a lock only if that is free, and otherwise retries in its
//! next poll ([`EventPublisher`]).

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::events::async_event::AsyncEvent;
use crate::events::notify_fd::NotifyFd;
use crate::events::ticket_queue::TicketQueue;

/// Deferred events that a poll publishes, at most.
const RETRIED_PER_POLL: usize = 64;

/// Queue of the sources of a context that have events, and the threads that sleep on them.
pub(crate) struct AsyncEventQueue {
    state: Mutex<QueueState>,
    wake: Condvar,
}

#[derive(Default)]
pub(crate) struct QueueState {
    pending: TicketQueue<AsyncEvent>,
    /// Events that a task has taken for others, which may come later.
    #[cfg(feature = "tokio")]
    kept: TicketQueue<AsyncEvent>,
    /// Threads that sleep until a source has events, by the event that names it.
    pub(super) sleepers: Vec<(AsyncEvent, Thread)>,
    fd: Option<Arc<NotifyFd>>,
    closed: bool,
}

impl QueueState {
    /// Queues an event, unless it is queued.
    fn push(&mut self, event: AsyncEvent) -> bool {
        if self.pending.is_empty()
            && let Some(fd) = &self.fd
        {
            fd.set();
        }
        self.pending.push(event)
    }

    /// Removes and returns the oldest event. Before the application reads the source: a later event
    /// is reported again.
    pub(crate) fn pop(&mut self) -> Option<AsyncEvent> {
        let event = self.pending.pop()?;
        self.clear_fd_if_empty();
        Some(event)
    }

    /// Removes the oldest event, and keeps it unless it names a queue pair or a listener: the tasks
    /// look at these themselves. False if there is none.
    #[cfg(feature = "tokio")]
    pub(crate) fn keep_next(&mut self) -> bool {
        let Some(event) = self.pop() else { return false };
        if !matches!(event, AsyncEvent::Connection { .. } | AsyncEvent::ConnectRequest { .. }) {
            self.kept.push(event);
        }
        true
    }

    /// Removes and returns the oldest event that was kept.
    #[cfg(feature = "tokio")]
    pub(crate) fn next_kept(&mut self) -> Option<AsyncEvent> {
        self.kept.pop()
    }

    fn remove(&mut self, event: AsyncEvent) {
        #[cfg(feature = "tokio")]
        self.kept.remove(event);
        if self.pending.remove(event) {
            self.clear_fd_if_empty();
        }
    }

    fn clear_fd_if_empty(&self) {
        if self.pending.is_empty()
            && let Some(fd) = &self.fd
        {
            fd.clear();
        }
    }

    /// No further event occurs: wakes the threads that sleep on a source, or on the descriptor.
    fn close(&mut self) {
        self.closed = true;
        self.fd.iter().for_each(|fd| fd.hang_up());
        self.sleepers.iter().for_each(|(_, thread)| thread.unpark());
    }

    /// True if no further event occurs.
    pub(crate) const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Wakes the threads that sleep on the source named by `event`.
    pub(super) fn wake(&self, event: AsyncEvent) {
        let its = self.sleepers.iter().filter(|(of, _)| *of == event);
        its.for_each(|(_, thread)| thread.unpark());
    }
}

impl AsyncEventQueue {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), wake: Condvar::new() })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the descriptor, created at the first call.
    pub(crate) fn fd(&self) -> std::io::Result<Arc<NotifyFd>> {
        let mut ready = self.lock();
        if let Some(fd) = &ready.fd {
            return Ok(Arc::clone(fd));
        }
        let fd = Arc::new(NotifyFd::new()?);
        if !ready.pending.is_empty() {
            fd.set();
        }
        if ready.closed {
            fd.hang_up();
        }
        ready.fd = Some(Arc::clone(&fd));
        Ok(fd)
    }

    pub(crate) fn wait(&self, timeout: Duration) -> Option<AsyncEvent> {
        let end = Instant::now().checked_add(timeout);
        let mut ready = self.lock();
        loop {
            if let Some(event) = ready.pop() {
                return Some(event);
            }
            if ready.closed {
                return None;
            }
            ready = match time_left(end) {
                None => self.wake.wait(ready).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return None,
                Some(left) => {
                    self.wake.wait_timeout(ready, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Queues an event, and wakes the threads that sleep on its source. `ready` is the state.
    fn publish(&self, ready: &mut QueueState, event: AsyncEvent) {
        ready.wake(event);
        if ready.push(event) {
            self.wake.notify_one();
        }
    }

    /// No further event occurs: all waiting threads return, also those that begin to wait later.
    pub(crate) fn close(&self) {
        self.lock().close();
        self.wake.notify_all();
    }

    /// Publishes the state that something has entered, from a thread that may wait for the lock.
    /// Behind all other events, also if it is pending: the last one of its states that is pending
    /// is the present one. False if no further event occurs.
    pub(crate) fn publish_state(&self, event: AsyncEvent) -> bool {
        let mut ready = self.lock();
        if ready.closed {
            return false;
        }
        ready.remove(event);
        ready.push(event);
        self.wake.notify_one();
        true
    }

    /// Removes the pending event of a source that is destroyed. The shards publish it no more.
    pub(crate) fn remove(&self, event: AsyncEvent) {
        self.lock().remove(event);
    }

    /// Removes the pending event of a source, if nobody has ever looked at the queue, and if
    /// `is_empty` returns true: the source has no events. One that it gets later is published after
    /// it is stored, and so is queued again.
    pub(crate) fn remove_if_unseen(&self, event: AsyncEvent, is_empty: impl FnOnce() -> bool) {
        let mut ready = self.lock();
        if ready.fd.is_none() && is_empty() {
            ready.remove(event);
        }
    }
}

/// Shard's publisher of events; never blocks.
pub(crate) struct EventPublisher {
    events: Arc<AsyncEventQueue>,
    /// Events for which the lock was held.
    deferred: TicketQueue<AsyncEvent>,
}

impl EventPublisher {
    pub(crate) fn new(events: Arc<AsyncEventQueue>) -> Self {
        Self { events, deferred: TicketQueue::default() }
    }

    /// The queue that it publishes to.
    pub(crate) const fn queue(&self) -> &Arc<AsyncEventQueue> {
        &self.events
    }

    /// Publishes an event. If it names a source, after that has stored its own where the
    /// application finds it; the threads that sleep on the source are woken.
    #[cold]
    pub(crate) fn publish(&mut self, event: AsyncEvent) {
        match try_lock(&self.events.state) {
            Some(mut ready) => self.events.publish(&mut ready, event),
            None => {
                self.deferred.push(event);
            }
        }
    }

    /// Forgets a source that is about to be destroyed.
    pub(crate) fn forget(&mut self, event: AsyncEvent) {
        self.deferred.remove(event);
    }

    /// True if nothing is deferred; [`EventPublisher::retry_deferred`] retries what is.
    #[inline]
    pub(crate) fn is_drained(&self) -> bool {
        self.deferred.is_empty()
    }

    /// Publishes deferred events, if the lock is free now.
    #[cold]
    pub(crate) fn retry_deferred(&mut self) {
        let Some(mut ready) = try_lock(&self.events.state) else { return };
        for _ in 0..RETRIED_PER_POLL {
            let Some(event) = self.deferred.pop() else { break };
            self.events.publish(&mut ready, event);
        }
    }

    /// Publishes the deferred events and the failure of the shard. If it is the last one of the
    /// context, that has failed, and the queue is closed. Waits for the lock, because no further
    /// poll follows.
    #[cold]
    pub(crate) fn publish_failure(&mut self, shard: usize, is_last: bool) {
        while !self.is_drained() {
            self.retry_deferred();
            std::thread::yield_now();
        }
        let mut ready = self.events.lock();
        ready.push(if is_last { AsyncEvent::Failed } else { AsyncEvent::ShardFailed { shard } });
        if is_last {
            ready.close();
        }
        drop(ready);
        self.events.wake.notify_all();
    }
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Time left until `end`; `None`: there is no end.
pub(super) fn time_left(end: Option<Instant>) -> Option<Duration> {
    end.map(|end| end.saturating_duration_since(Instant::now()))
}
