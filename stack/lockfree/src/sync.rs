//! Synchronization primitives of the lock-free modules: std's, or loom's for proofs.

#[cfg(loom)]
pub use loom::{
    sync::Arc,
    sync::atomic::{
        AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    },
};
#[cfg(not(loom))]
pub use std::{
    sync::Arc,
    sync::atomic::{
        AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    },
};

/// A barrier between two threads of which one executes it often and the other rarely: the rare side
/// executes it on behalf of the other.
pub mod barrier {
    #[cfg(not(loom))]
    pub use asymmetric::{heavy, is_available, light};
    #[cfg(loom)]
    pub use symmetric::{heavy, is_available, light};

    #[cfg(not(loom))]
    mod asymmetric {
        use std::sync::atomic::{Ordering, compiler_fence};

        /// The frequent side: orders what the compiler emits. [`heavy`] does the rest.
        #[inline(always)]
        pub fn light() {
            compiler_fence(Ordering::SeqCst);
        }

        /// The rare side: a system call of some microseconds. False if the kernel refused it.
        pub fn heavy() -> bool {
            crate::membarrier::expedited()
        }

        /// True if [`heavy`] works. To be called first, once for each user.
        pub fn is_available() -> bool {
            crate::membarrier::register()
        }
    }

    /// In proofs each side executes its own: loom has no barrier that acts on other threads, and
    /// the effect of `membarrier(2)` is that of a fence in each of them at some point during the
    /// call, of which this is the weakest that orders the frequent side's accesses.
    #[cfg(loom)]
    mod symmetric {
        use loom::sync::atomic::{Ordering, fence};

        pub fn light() {
            fence(Ordering::SeqCst);
        }

        pub fn heavy() -> bool {
            fence(Ordering::SeqCst);
            true
        }

        pub fn is_available() -> bool {
            true
        }
    }
}

/// A cell whose accesses loom checks for races. Outside proofs it costs nothing.
#[derive(Debug)]
pub struct Cell<T> {
    #[cfg(loom)]
    inner: loom::cell::UnsafeCell<T>,
    #[cfg(not(loom))]
    inner: std::cell::UnsafeCell<T>,
}

impl<T> Cell<T> {
    /// Returns a cell with this value.
    pub fn new(value: T) -> Self {
        #[cfg(loom)]
        let inner = loom::cell::UnsafeCell::new(value);
        #[cfg(not(loom))]
        let inner = std::cell::UnsafeCell::new(value);
        Self { inner }
    }

    /// Passes a pointer for exclusive access to `access`; the caller guarantees that no other
    /// access happens at the same time.
    #[inline]
    pub fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        #[cfg(loom)]
        return self.inner.with_mut(access);
        #[cfg(not(loom))]
        return access(self.inner.get());
    }
}

/// Time for which [`Backoff`] spins before it yields: longer than a poll with a burst of received
/// frames and one of sent ones, which holds a shard's lock.
#[cfg(not(loom))]
pub const SPIN_MAX: std::time::Duration = std::time::Duration::from_micros(50);

/// Backs off while waiting for what another thread does without waiting itself: for a lock that it
/// holds, or the end of its poll. Spins for [`SPIN_MAX`], then yields, because that thread may be
/// preempted.
///
/// Not sooner: next to a thread that computes on this core, a yield costs time slices of the
/// scheduler. Those are milliseconds, instead of the microseconds for which the other thread runs.
#[derive(Debug, Default)]
pub struct Backoff {
    #[cfg(not(loom))]
    count: u32,
    /// When it first looked at the clock.
    #[cfg(not(loom))]
    start: Option<std::time::Instant>,
}

#[cfg(not(loom))]
impl Backoff {
    /// Attempts between two looks at the clock, which most waits end before.
    const COUNT_PER_CHECK: u32 = 64;

    /// Waits a little, once after each attempt that has failed.
    #[inline]
    pub fn wait(&mut self) {
        if self.is_yield_due() {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    #[inline]
    fn is_yield_due(&mut self) -> bool {
        if self.count < Self::COUNT_PER_CHECK {
            self.count += 1;
            return false;
        }
        let start = *self.start.get_or_insert_with(std::time::Instant::now);
        let is_due = start.elapsed() >= SPIN_MAX;
        if !is_due {
            self.count = 0;
        }
        is_due
    }
}

#[cfg(loom)]
impl Backoff {
    pub fn wait(&mut self) {
        loom::thread::yield_now();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn backoff_spins_for_longer_than_a_poll_and_then_yields() {
        let start = std::time::Instant::now();
        let mut backoff = Backoff::default();
        while !backoff.is_yield_due() {
            std::hint::spin_loop();
        }
        // Longer still, if this thread was preempted.
        assert!(start.elapsed() >= SPIN_MAX);
        assert!(backoff.is_yield_due(), "the thread waited for does not run");
    }
}
