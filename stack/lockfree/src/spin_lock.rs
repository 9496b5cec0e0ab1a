//! Spin lock whose `try_lock` lets waiting callers of `lock` go first, for a bounded number of
//! attempts in case the waiter is preempted.
//!
//! It protects a shard's engine, the producers of work queues and the consumer of a CQ.

use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ops::{Deref, DerefMut};

use crate::sync::{AtomicU8, AtomicU16, AtomicU32, Backoff, Cell, Ordering};

/// Consecutive attempts that [`SpinLock::try_lock`] gives up in favor of waiters. A thread that
/// only polls comes back every few nanoseconds, so this is most of a microsecond: several times
/// what a running waiter needs to see the lock free, and little compared with the poll that
/// follows.
#[cfg(not(loom))]
pub const DEFER_COUNT_MAX: u8 = 128;
/// Loom explores every interleaving, so the bound is as small as possible.
#[cfg(loom)]
pub const DEFER_COUNT_MAX: u8 = 1;

/// Owner that is not asked for.
const ANYONE: NonZeroU32 = NonZeroU32::MAX;

/// Value with mutual exclusion between threads. Takes 7 bytes, in the cache line of the value's
/// first bytes as a rule: a lock that other threads poll is to be padded ([`CachePadded`]).
///
/// [`CachePadded`]: crossbeam::utils::CachePadded
#[derive(Debug)]
pub struct SpinLock<T> {
    /// 0 while it is free.
    owner: AtomicU32,
    /// Consecutive calls of [`SpinLock::try_lock`] that deferred to waiters.
    defer_count: AtomicU8,
    /// Callers waiting in [`SpinLock::lock`]; [`SpinLock::try_lock`] defers to them up to
    /// [`DEFER_COUNT_MAX`] times. It wraps, which lets no one in that should stay out.
    waiter_count: AtomicU16,
    value: Cell<T>,
}

// SAFETY: `owner` admits one thread at a time to the value, with acquire on locking and release on
// unlocking, so sharing the lock only ever moves the value between threads.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// Ownership of the lock; unlocks when dropped.
pub struct LockGuard<'a, T> {
    lock: &'a SpinLock<T>,
    /// A guard shared between threads gives all of them `&T`: it is `Sync` only if `T` allows that.
    _value: PhantomData<&'a mut T>,
}

impl<T> SpinLock<T> {
    /// Returns a lock that is free.
    pub fn new(value: T) -> Self {
        Self {
            owner: AtomicU32::new(0),
            defer_count: AtomicU8::new(0),
            waiter_count: AtomicU16::new(0),
            value: Cell::new(value),
        }
    }

    /// Locks if the lock is free and no caller of [`SpinLock::lock`] waits. A waiter may be
    /// preempted, so this defers to waiters at most [`DEFER_COUNT_MAX`] times in a row. Cost: one
    /// uncontended atomic exchange.
    #[inline]
    pub fn try_lock(&self) -> Option<LockGuard<'_, T>> {
        if self.waiter_count.load(Ordering::Relaxed) != 0 && self.defers_to_waiters() {
            return None;
        }
        self.try_acquire(ANYONE)
    }

    /// True while waiters are to go first. After [`DEFER_COUNT_MAX`] deferrals it returns false
    /// once and the count starts again.
    #[cold]
    fn defers_to_waiters(&self) -> bool {
        let gives = self.defer_count.fetch_add(1, Ordering::Relaxed) < DEFER_COUNT_MAX;
        if !gives {
            self.defer_count.store(0, Ordering::Relaxed);
        }
        gives
    }

    /// Locks as soon as the lock is free. Costs as much as `try_lock` when it is uncontended.
    #[inline]
    pub fn lock(&self) -> LockGuard<'_, T> {
        match self.try_acquire(ANYONE) {
            Some(guard) => guard,
            None => self.lock_slow(ANYONE),
        }
    }

    /// As [`SpinLock::lock`], for the thread whose number is `owner`; no other has it. `None` if
    /// the thread has the lock already, as in a signal handler: it would wait for itself. The guard
    /// must stay in the thread.
    #[inline]
    pub fn lock_once(&self, owner: NonZeroU32) -> Option<LockGuard<'_, T>> {
        match self.try_acquire(owner) {
            Some(guard) => Some(guard),
            None => self.lock_once_slow(owner),
        }
    }

    #[cold]
    fn lock_once_slow(&self, owner: NonZeroU32) -> Option<LockGuard<'_, T>> {
        // Only this thread stores its number, or removes it.
        let is_own = self.owner.load(Ordering::Relaxed) == owner.get();
        (!is_own).then(|| self.lock_slow(owner))
    }

    #[cold]
    fn lock_slow(&self, owner: NonZeroU32) -> LockGuard<'_, T> {
        self.waiter_count.fetch_add(1, Ordering::Relaxed);
        let mut backoff = Backoff::default();
        let guard = loop {
            match self.try_acquire(owner) {
                Some(guard) => break guard,
                None => backoff.wait(),
            }
        };
        self.waiter_count.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    #[inline]
    fn try_acquire(&self, owner: NonZeroU32) -> Option<LockGuard<'_, T>> {
        // Load before the exchange: while the lock is held, the cache line stays shared.
        let free = self.owner.load(Ordering::Relaxed) == 0
            && self
                .owner
                .compare_exchange(0, owner.get(), Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        free.then(|| LockGuard { lock: self, _value: PhantomData })
    }
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock until `self` is dropped, and `self` is borrowed for as
        // long as the reference lives.
        self.lock.value.with_mut(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; `self` is borrowed mutably, so the reference is the only one.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for LockGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.owner.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn try_lock_fails_while_locked() {
        let lock = SpinLock::new(5);
        let mut first = lock.try_lock().unwrap();
        assert!(lock.try_lock().is_none());
        *first += 1;
        drop(first);
        assert_eq!(*lock.lock(), 6);
    }

    #[test]
    fn owner_is_refused_and_others_wait() {
        let [first, second] = [1, 2].map(|owner| NonZeroU32::new(owner).unwrap());
        let lock = SpinLock::new(5);
        let mut guard = lock.lock_once(first).unwrap();
        assert!(lock.lock_once(first).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| *lock.lock_once(second).unwrap());
            while lock.waiter_count.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            *guard += 1;
            drop(guard);
            assert_eq!(waiting.join().unwrap(), 6);
        });
        assert_eq!(*lock.lock_once(first).unwrap(), 6);
    }

    #[test]
    fn preempted_waiter_defers_try_lock_a_bounded_number_of_times() {
        let lock = SpinLock::new(0);
        // State left by another thread that is preempted inside `lock`.
        lock.waiter_count.fetch_add(1, Ordering::Relaxed);
        for pass in 0..3 {
            let refused = (0..10_000).take_while(|_| lock.try_lock().is_none()).count();
            assert_eq!(refused, DEFER_COUNT_MAX as usize, "before pass {pass}");
        }
        // When it runs again, the waiter locks next: other threads still defer to it.
        let driver = lock.try_lock();
        assert!(driver.is_none());
        assert!(lock.try_acquire(ANYONE).is_some());
    }

    #[test]
    fn lock_is_exclusive_between_threads() {
        const COUNT: u64 = if cfg!(miri) { 100 } else { 10_000 };
        let lock = SpinLock::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..COUNT).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 4 * COUNT);
    }
}

#[cfg(all(test, loom))]
mod proofs {
    use loom::thread;

    use super::*;
    use crate::sync::{Arc, AtomicU32};

    #[test]
    fn lock_is_exclusive() {
        loom::model(|| {
            let lock = Arc::new(SpinLock::new(0));
            let other = Arc::clone(&lock);
            let thread = thread::spawn(move || *other.lock() += 1);
            if let Some(mut guard) = lock.try_lock() {
                *guard += 1;
            } else {
                *lock.lock() += 1;
            }
            thread.join().unwrap();
            assert_eq!(*lock.lock(), 2);
        });
    }

    /// A waiter, and a caller of `try_lock` that defers and then stops deferring: both lock, one at
    /// a time, and no waiter stays counted.
    #[test]
    fn waiter_and_deferring_try_lock_both_proceed() {
        loom::model(|| {
            let lock = Arc::new(SpinLock::new(0));
            let waiter = {
                let lock = Arc::clone(&lock);
                thread::spawn(move || *lock.lock() += 1)
            };
            let mut passes = 0;
            for _ in 0..=DEFER_COUNT_MAX + 1 {
                if let Some(mut guard) = lock.try_lock() {
                    *guard += 1;
                    passes += 1;
                }
            }
            waiter.join().unwrap();
            assert_eq!(*lock.lock(), 1 + passes);
            assert_eq!(lock.waiter_count.load(Ordering::Relaxed), 0);
            assert!(lock.try_lock().is_some());
        });
    }

    /// Locking and unlocking once waits for the current holder to unlock, and whoever locks later
    /// sees what was written before.
    #[test]
    fn lock_and_unlock_outlasts_a_poll_that_saw_the_region() {
        loom::model(|| {
            let lock = Arc::new(SpinLock::new(()));
            let stag = Arc::new(AtomicU32::new(7));
            let memory = Arc::new(Cell::new(1_u32));
            let pass = {
                let (lock, stag, memory) =
                    (Arc::clone(&lock), Arc::clone(&stag), Arc::clone(&memory));
                thread::spawn(move || {
                    if let Some(_guard) = lock.try_lock()
                        && stag.load(Ordering::Acquire) == 7
                    {
                        // SAFETY: loom checks that no other thread accesses the cell at the same
                        // time.
                        memory.with_mut(|byte| unsafe { *byte += 1 });
                    }
                })
            };
            stag.store(0, Ordering::Relaxed);
            drop(lock.lock());
            // SAFETY: as above; this stands for freeing the memory.
            memory.with_mut(|byte| unsafe { *byte = 0 });
            pass.join().unwrap();
            // SAFETY: the other thread has ended.
            assert_eq!(memory.with_mut(|byte| unsafe { *byte }), 0);
        });
    }
}
