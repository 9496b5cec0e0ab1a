//! Sources of events, the threads that sleep on them, and the shard's end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::{AsyncEvent, AsyncEventQueue, time_left};
use crate::context::ContextInner;

pub(super) const NOT_QUEUED: u64 = 0;
/// The source tells nothing any more.
pub(super) const REMOVED: u64 = u64::MAX;

/// Something whose events are told of, and the threads that sleep until it has one.
pub(crate) struct EventSource {
    /// Its name, known when the shard has made what it stands for.
    event: OnceLock<AsyncEvent>,
    /// Its place in line, [`NOT_QUEUED`] or [`REMOVED`]. Changed under the lock of
    /// [`AsyncEventQueue`] only.
    pub(super) ticket: AtomicU64,
    /// Listed in [`EventPublisher::deferred`].
    deferred: AtomicBool,
    /// Has no more events, ever.
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

    /// Before its first event.
    pub(crate) fn set_event(&self, event: AsyncEvent) {
        // Each is made and named once.
        let _ = self.event.set(event);
    }

    /// Sleeps until `ready` has something, the source ends, or `timeout` has passed.
    ///
    /// Nothing is overlooked: an event is put where `ready` finds it before [`EventSource::wake`]
    /// takes the lock. If that was before this thread was listed, `ready` is asked after that; else
    /// the thread is found in the list, and does not park again.
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

    /// There is no event after those that were put so far.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.lock_sleepers().iter().for_each(Thread::unpark);
    }

    /// Wakes who sleeps here; false if the lock is taken at the moment.
    fn wake(&self) -> bool {
        let Some(sleepers) = try_lock(&self.sleepers) else { return false };
        sleepers.iter().for_each(Thread::unpark);
        true
    }
}

/// A thread in the list of those that sleep.
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

/// The shard's end: tells without ever waiting.
pub(crate) struct EventPublisher {
    events: Arc<AsyncEventQueue>,
    /// Sources that found a lock taken, each once.
    deferred: Vec<Arc<EventSource>>,
    /// Likewise.
    deferred_errors: Vec<AsyncEvent>,
}

impl EventPublisher {
    pub(crate) const fn new(events: Arc<AsyncEventQueue>) -> Self {
        Self { events, deferred: Vec::new(), deferred_errors: Vec::new() }
    }

    /// A source has an event: to be called when the event is where the application finds it.
    #[cold]
    pub(crate) fn publish(&mut self, source: &Arc<EventSource>) {
        if !self.try_publish(source) && !source.deferred.swap(true, Ordering::Relaxed) {
            self.deferred.push(Arc::clone(source));
        }
    }

    /// Something happened that no source stands for.
    #[cold]
    pub(crate) fn publish_error(&mut self, event: AsyncEvent) {
        if !self.try_publish_error(event) && !self.deferred_errors.contains(&event) {
            self.deferred_errors.push(event);
        }
    }

    /// Whether all was told; what was not is tried again by [`EventPublisher::retry_deferred`].
    #[inline]
    pub(crate) const fn is_drained(&self) -> bool {
        self.deferred.is_empty() && self.deferred_errors.is_empty()
    }

    /// Tells what could not be told before.
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

    /// Tells what is left to tell, and that nothing follows. Waits for the locks, for once: there
    /// is no next pass.
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

/// How long a call that waits looks by itself before it sleeps: most of what is waited for comes
/// sooner than a thread falls asleep and wakes again.
const SPIN_BEFORE_SLEEP: Duration = Duration::from_micros(50);

impl ContextInner {
    /// Waits until `ready` has something that `source` tells of, for `timeout` at most. Sleeps if
    /// it may, and drives meanwhile if not.
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
            // Whoever drives in this thread's place looks often for a while.
            let _awaiting = self.shard.add_waiter();
            source.wait(timeout - look, ready)
        })
    }
}
