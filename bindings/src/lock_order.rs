//! Order of the process-wide locks.
//!
//! A thread takes them downwards in [`Rank`] only, each at most once, so that no two threads can
//! wait for each other. Debug builds check that.

use core::cell::Cell;
use core::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Place of a lock in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Rank {
    /// DPDK's control path: held during calls that take milliseconds.
    Control,
    /// The list of mempools.
    Pools,
    /// The interrupts of a port: held while its driver enables or disables one.
    Interrupts,
    /// Lists of ports and queues: held for some instructions, and with none of the others.
    List,
}

thread_local! {
    /// Ranks that the thread holds, one bit each.
    static HELD: Cell<u8> = const { Cell::new(0) };
}

/// A mutex with a rank. A panic of its holder does not poison it.
#[derive(Debug)]
pub(crate) struct RankedMutex<T> {
    rank: Rank,
    mutex: Mutex<T>,
}

/// Ownership of the mutex; unlocks when dropped.
#[derive(Debug)]
pub(crate) struct RankedGuard<'a, T> {
    rank: Rank,
    guard: MutexGuard<'a, T>,
}

impl<T> RankedMutex<T> {
    pub(crate) const fn new(rank: Rank, value: T) -> Self {
        Self { rank, mutex: Mutex::new(value) }
    }

    /// Locks.
    ///
    /// # Panics
    /// In debug builds, if the thread holds a lock of this rank or below it.
    pub(crate) fn lock(&self) -> RankedGuard<'_, T> {
        let bit = 1 << self.rank as u8;
        let held = HELD.get();
        debug_assert!(held < bit, "{:?} is locked after {held:#b}: the wrong order", self.rank);
        let guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        HELD.set(held | bit);
        RankedGuard { rank: self.rank, guard }
    }
}

impl<T> Deref for RankedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for RankedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T> Drop for RankedGuard<'_, T> {
    fn drop(&mut self) {
        HELD.set(HELD.get() & !(1 << self.rank as u8));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static CONTROL: RankedMutex<u32> = RankedMutex::new(Rank::Control, 0);
    static POOLS: RankedMutex<u32> = RankedMutex::new(Rank::Pools, 0);

    #[test]
    fn locks_are_taken_downwards_and_released_in_any_order() {
        let control = CONTROL.lock();
        let mut pools = POOLS.lock();
        *pools += 1;
        drop(control);
        drop(pools);
        drop(CONTROL.lock());
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic = "the wrong order"]
    fn lock_above_a_held_one_is_refused() {
        let _pools = POOLS.lock();
        drop(CONTROL.lock());
    }
}
