//! Event sources, the threads that sleep on them, and the shard's publisher.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::{AsyncEvent, AsyncEventQueue, time_left};
use crate::context::ContextInner;

pub(super) const NOT_QUEUED: u64 = 0;
/// The source is destroyed.
pub(super) const REMOVED: u64 = u64::MAX;

/// Source of events, and the threads that sleep until it has one.
pub(crate) struct EventSource {
    /// Event that names the source; set when the shard has created the object.
    event: OnceLock<AsyncEvent>,
    /// Queue position, [`NOT_QUEUED`] or [`REMOVED`]. Changed under the lock of [`AsyncEventQueue`]
    /// only.
    pub(super) ticket: AtomicU64,
    /// Listed in [`EventPublisher::deferred`].
    deferred: AtomicBool,
    /// No further event occurs.
    ended: AtomicBool,
    sleepers: Mutex<Vec<Thread>>,
}

impl EventSource {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            event: OnceLock::new(),
            ticket: AtomicU64::new(NOT_QUEUED),
            deferred: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            sleepers: Mutex::default(),
        })
    }

    /// Sets the event that names the source, before its first event.
    pub(crate) fn set_event(&self, event: AsyncEvent) {
        // Set once.
        let _ = self.event.set(event);
    }

    /// Sleeps until `ready` returns a value, the source ends, or `timeout` has passed.
    ///
    /// No wake-up is lost: an event is stored where `ready` finds it before [`EventSource::wake`]
    /// takes the lock. If that was before this thread was listed, `ready` is called after that;
    /// otherwise the thread is found in the list and unparked, and its next park returns
    /// immediately.
    pub(crate) fn wait<T>(
        &self,
        timeout: Duration,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let end = Instant::now().checked_add(timeout);
        let _listed = SleeperGuard::new(self);
        loop {
            let ended = self.ended.load(Ordering::Acquire);
            if let Some(value) = ready() {
                return Some(value);
            }
            if ended {
                return None;
            }
            match time_left(end) {
                None => std::thread::park(),
                Some(Duration::ZERO) => return None,
                Some(left) => std::thread::park_timeout(left),
            }
        }
    }

    pub(super) fn lock_sleepers(&self) -> MutexGuard<'_, Vec<Thread>> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the source: there are no events after those stored so far.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.lock_sleepers().iter().for_each(Thread::unpark);
    }

    /// Wakes the sleeping threads; false if the lock is held.
    fn wake(&self) -> bool {
        let Some(sleepers) = try_lock(&self.sleepers) else { return false };
        sleepers.iter().for_each(Thread::unpark);
        true
    }
}

/// Entry of a sleeping thread in the list.
struct SleeperGuard<'a>(&'a EventSource);

impl<'a> SleeperGuard<'a> {
    fn new(source: &'a EventSource) -> Self {
        source.lock_sleepers().push(std::thread::current());
        Self(source)
    }
}

impl Drop for SleeperGuard<'_> {
    fn drop(&mut self) {
        let own = std::thread::current().id();
        let mut sleepers = self.0.lock_sleepers();
        if let Some(at) = sleepers.iter().position(|sleeper| sleeper.id() == own) {
            sleepers.swap_remove(at);
        }
    }
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
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

    /// Publishes the deferred events and the failure of the context, and closes the queue. Waits
    /// for the locks, because no further poll follows.
    #[cold]
    pub(crate) fn publish_failure(&mut self) {
        self.publish_error(AsyncEvent::Failed);
        while !self.is_drained() {
            std::thread::yield_now();
            self.retry_deferred();
        }
        self.events.close();
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

/// Time for which a waiting call spins before it sleeps: most responses arrive sooner than a thread
/// falls asleep and wakes again.
const SPIN_BEFORE_SLEEP: Duration = Duration::from_micros(50);

impl ContextInner {
    /// Waits until `ready` returns a value, for `timeout` at most; `source` signals its events.
    /// Sleeps if it may, otherwise polls the shard while it waits.
    pub(crate) fn wait_for<T>(
        &self,
        source: &EventSource,
        timeout: Duration,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if !self.can_sleep() || dpdk_sys::is_child() {
            return self.wait(timeout, ready);
        }
        let look = timeout.min(SPIN_BEFORE_SLEEP);
        self.wait(look, &mut ready).or_else(|| {
            if look == timeout {
                return None;
            }
            // The thread that polls instead of this one polls often for a while.
            let _awaiting = self.shard.add_waiter();
            source.wait(timeout - look, ready)
        })
    }
}
