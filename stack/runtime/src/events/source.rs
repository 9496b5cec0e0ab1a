//! Event sources, and the threads that sleep on them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::events::event::AsyncEvent;

pub(super) const NOT_QUEUED: u64 = 0;
/// The source is destroyed.
pub(super) const REMOVED: u64 = u64::MAX;

/// Source of events, and the threads that sleep until it has one.
pub(crate) struct EventSource {
    /// Event that names the source; set when the shard has created the object.
    pub(super) event: OnceLock<AsyncEvent>,
    /// Queue position, [`NOT_QUEUED`] or [`REMOVED`]. Changed under the queue's lock only.
    pub(super) ticket: AtomicU64,
    /// The shard's publisher has listed it for its next poll.
    pub(super) deferred: AtomicBool,
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
    pub(super) fn wake(&self) -> bool {
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

pub(super) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
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
