//! Synchronization primitives of the lock-free modules: std's, or loom's for proofs.

#[cfg(loom)]
pub(crate) use loom::{
    sync::Arc,
    sync::atomic::{
        AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    },
    thread::Thread,
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::Arc,
    sync::atomic::{
        AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    },
    thread::{Thread, park_timeout},
};

/// Sleeps until unparked: no clock advances in proofs.
#[cfg(loom)]
pub(crate) fn park_timeout(_: std::time::Duration) {
    loom::thread::park();
}

/// A barrier between two threads of which one executes it often and the other rarely: the rare side
/// executes it on behalf of the other.
pub(crate) mod barrier {
    #[cfg(not(loom))]
    pub(crate) use asymmetric::{heavy, is_available, light};
    #[cfg(loom)]
    pub(crate) use symmetric::{heavy, light};

    #[cfg(not(loom))]
    mod asymmetric {
        use std::sync::atomic::{Ordering, compiler_fence};

        /// The frequent side: orders what the compiler emits. [`heavy`] does the rest.
        #[inline(always)]
        pub(crate) fn light() {
            compiler_fence(Ordering::SeqCst);
        }

        /// The rare side: a system call of some microseconds. False if the kernel refused it.
        pub(crate) fn heavy() -> bool {
            dpdk_sys::membarrier::expedited()
        }

        /// True if [`heavy`] works. To be called first, once for each user.
        pub(crate) fn is_available() -> bool {
            dpdk_sys::membarrier::register()
        }
    }

    /// In proofs each side executes its own: loom knows no barrier that acts on other threads, and
    /// the effect of `membarrier(2)` is that of a fence in each of them at some point during the
    /// call, of which this is the weakest that orders the frequent side's accesses.
    #[cfg(loom)]
    mod symmetric {
        use loom::sync::atomic::{Ordering, fence};

        pub(crate) fn light() {
            fence(Ordering::SeqCst);
        }

        pub(crate) fn heavy() -> bool {
            fence(Ordering::SeqCst);
            true
        }
    }
}

/// A cell whose accesses loom checks for races. Outside proofs it costs nothing.
#[derive(Debug)]
pub(crate) struct Cell<T> {
    #[cfg(loom)]
    inner: loom::cell::UnsafeCell<T>,
    #[cfg(not(loom))]
    inner: std::cell::UnsafeCell<T>,
}

impl<T> Cell<T> {
    pub(crate) fn new(value: T) -> Self {
        #[cfg(loom)]
        let inner = loom::cell::UnsafeCell::new(value);
        #[cfg(not(loom))]
        let inner = std::cell::UnsafeCell::new(value);
        Self { inner }
    }

    /// Passes a pointer for exclusive access to `access`; the caller guarantees that no other
    /// access happens at the same time.
    #[inline]
    pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        #[cfg(loom)]
        return self.inner.with_mut(access);
        #[cfg(not(loom))]
        return access(self.inner.get());
    }
}

/// Backs off once while waiting for another thread: spins for the first 64 attempts, then yields,
/// because that thread may be preempted.
#[inline]
pub(crate) fn relax(attempt: &mut u32) {
    #[cfg(loom)]
    {
        let _ = attempt;
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    {
        if *attempt < 64 {
            *attempt += 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}
