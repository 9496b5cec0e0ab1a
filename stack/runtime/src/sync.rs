//! The primitives of the lock-free parts: those of the machine, or loom's when their proofs run.

#[cfg(loom)]
pub(crate) use loom::{
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread::Thread,
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread::{Thread, park_timeout},
};

/// Naps until it is woken: no clock moves in proofs.
#[cfg(loom)]
pub(crate) fn park_timeout(_: std::time::Duration) {
    loom::thread::park();
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

    /// Hands out a pointer for access that excludes all others; the caller of `access` keeps
    /// that promise.
    #[inline]
    pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        #[cfg(loom)]
        return self.inner.with_mut(access);
        #[cfg(not(loom))]
        return access(self.inner.get());
    }
}

/// Waits a little for another thread, longer from one `attempt` to the next: spins, then lets
/// others run (the holder may be off its core).
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
