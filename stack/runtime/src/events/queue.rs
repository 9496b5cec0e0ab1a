//! Queue of the sources of a context that have events, and the shard's publisher.
//!
//! A source (a queue pair, a listener, a shared receive queue) keeps its own events; the queue only
//! holds the sources that have some. Each source is queued at most once, so the length of the queue
//! is bounded by the number of sources. A CQ overrun and the failure of the context are queued
//! without a source, at most once each.
//!
//! The shard never blocks here: it takes a lock only if that is free, and otherwise retries in its
//! next poll ([`EventPublisher`]).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::events::event::AsyncEvent;
use crate::events::notify_fd::NotifyFd;
use crate::events::source::{EventSource, NOT_QUEUED, REMOVED, time_left, try_lock};

/// Queue of the sources of a context that have events.
pub(crate) struct AsyncEventQueue {
    state: Mutex<QueueState>,
    wake: Condvar,
}

#[derive(Default)]
pub(super) struct QueueState {
    /// By ticket, and so in the order of their events.
    pending: BTreeMap<u64, (AsyncEvent, Option<Arc<EventSource>>)>,
    last_ticket: u64,
    fd: Option<Arc<NotifyFd>>,
    closed: bool,
}

impl QueueState {
    /// Queues a source, unless it is queued or removed.
    fn push_source(&mut self, event: AsyncEvent, source: &Arc<EventSource>) -> bool {
        if source.ticket.load(Ordering::Relaxed) != NOT_QUEUED {
            return false;
        }
        let ticket = self.push(event, Some(Arc::clone(source)));
        source.ticket.store(ticket, Ordering::Relaxed);
        true
    }

    /// Queues an event without a source, unless it is queued.
    fn push_error(&mut self, event: AsyncEvent) -> bool {
        let is_new = self.pending.values().all(|(waiting, _)| *waiting != event);
        if is_new {
            self.push(event, None);
        }
        is_new
    }

    fn push(&mut self, event: AsyncEvent, source: Option<Arc<EventSource>>) -> u64 {
        if self.pending.is_empty()
            && let Some(fd) = &self.fd
        {
            fd.set();
        }
        self.last_ticket += 1;
        self.pending.insert(self.last_ticket, (event, source));
        self.last_ticket
    }

    pub(super) fn pop(&mut self) -> Option<AsyncEvent> {
        let (_, (event, source)) = self.pending.pop_first()?;
        // Before the application reads the source: a later event is reported again.
        if let Some(source) = source {
            source.ticket.store(NOT_QUEUED, Ordering::Relaxed);
        }
        self.clear_fd_if_empty();
        Some(event)
    }

    fn clear_fd_if_empty(&self) {
        if self.pending.is_empty()
            && let Some(fd) = &self.fd
        {
            fd.clear();
        }
    }
}

impl AsyncEventQueue {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), wake: Condvar::new() })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the descriptor, created at the first call.
    pub(super) fn fd(&self) -> std::io::Result<Arc<NotifyFd>> {
        let mut ready = self.lock();
        if let Some(fd) = &ready.fd {
            return Ok(Arc::clone(fd));
        }
        let fd = Arc::new(NotifyFd::new()?);
        if !ready.pending.is_empty() {
            fd.set();
        }
        ready.fd = Some(Arc::clone(&fd));
        Ok(fd)
    }

    pub(super) fn wait(&self, timeout: Duration) -> Option<AsyncEvent> {
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

    /// No further event occurs: waiting threads return.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_all();
    }

    /// Removes a source that is destroyed, with its pending event.
    pub(crate) fn remove(&self, source: &EventSource) {
        if dpdk_sys::is_child() {
            // No event occurs in the child, and the lock may have been held at the fork.
            return;
        }
        let mut ready = self.lock();
        let ticket = source.ticket.swap(REMOVED, Ordering::Relaxed);
        if ready.pending.remove(&ticket).is_some() {
            ready.clear_fd_if_empty();
        }
    }
}

/// Shard's publisher of events; never blocks.
pub(crate) struct EventPublisher {
    events: Arc<AsyncEventQueue>,
    /// Sources for which a lock was held, each once.
    deferred: Vec<Arc<EventSource>>,
    /// Errors for which the lock was held, each once.
    deferred_errors: Vec<AsyncEvent>,
}

impl EventPublisher {
    pub(crate) const fn new(events: Arc<AsyncEventQueue>) -> Self {
        Self { events, deferred: Vec::new(), deferred_errors: Vec::new() }
    }

    /// Publishes an event of a source, after the event is stored where the application finds it.
    #[cold]
    pub(crate) fn publish(&mut self, source: &Arc<EventSource>) {
        if !self.try_publish(source) && !source.deferred.swap(true, Ordering::Relaxed) {
            self.deferred.push(Arc::clone(source));
        }
    }

    /// Publishes an event without a source.
    #[cold]
    pub(crate) fn publish_error(&mut self, event: AsyncEvent) {
        if !self.try_publish_error(event) && !self.deferred_errors.contains(&event) {
            self.deferred_errors.push(event);
        }
    }

    /// True if nothing is deferred; [`EventPublisher::retry_deferred`] retries what is.
    #[inline]
    pub(crate) const fn is_drained(&self) -> bool {
        self.deferred.is_empty() && self.deferred_errors.is_empty()
    }

    /// Retries the deferred events.
    #[cold]
    pub(crate) fn retry_deferred(&mut self) {
        for source in std::mem::take(&mut self.deferred) {
            source.deferred.store(false, Ordering::Relaxed);
            self.publish(&source);
        }
        for event in std::mem::take(&mut self.deferred_errors) {
            self.publish_error(event);
        }
    }

    /// Publishes the deferred events and the failure of the shard. If it is the last one of the
    /// context, that has failed, and the queue is closed. Waits for the locks, because no further
    /// poll follows.
    #[cold]
    pub(crate) fn publish_failure(&mut self, shard: usize, is_last: bool) {
        let event = if is_last { AsyncEvent::Failed } else { AsyncEvent::ShardFailed { shard } };
        self.publish_error(event);
        while !self.is_drained() {
            std::thread::yield_now();
            self.retry_deferred();
        }
        if is_last {
            self.events.close();
        }
    }

    fn try_publish(&self, source: &Arc<EventSource>) -> bool {
        let Some(&event) = source.event.get() else { return true };
        if !source.wake() {
            return false;
        }
        let Some(mut ready) = try_lock(&self.events.state) else { return false };
        if ready.push_source(event, source) {
            self.events.wake.notify_one();
        }
        true
    }

    fn try_publish_error(&self, event: AsyncEvent) -> bool {
        let Some(mut ready) = try_lock(&self.events.state) else { return false };
        if ready.push_error(event) {
            self.events.wake.notify_one();
        }
        true
    }
}
