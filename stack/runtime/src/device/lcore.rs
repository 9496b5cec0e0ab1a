//! Registration of threads with DPDK, for mempool caches of their own.

use std::cell::Cell;

use dpdk_sys::Eal;

use crate::device::pools::PoolNeeds;

/// Application threads that get mempool caches at a time. A cache keeps its mbufs while its thread
/// does something else: with a cache for each of many threads none would be left for the thread
/// that polls. The pools are sized for these and for the polling threads of both contexts of a
/// pair.
const CACHED_THREADS_MAX: usize = PoolNeeds::THREADS as usize - 2;

/// Registers the calling thread with DPDK once, so that it gets its own cache in every mempool,
/// unless too many threads have one (an allocation costs twice as much without). One thread-local
/// load after that.
#[inline]
pub(crate) fn register_application_thread() {
    thread_local! {
        static KNOWN: Cell<bool> = const { Cell::new(false) };
    }
    if !KNOWN.get()
        && let Some(eal) = Eal::running()
    {
        KNOWN.set(true);
        // Without an lcore ID the thread works as well, more slowly.
        let _ = eal.register_current_thread_up_to(CACHED_THREADS_MAX);
    }
}

/// Registers the calling thread with DPDK until it ends, so that it has a cache of its own in
/// every mempool. To be called first on each thread that polls a device; a repeated call costs one
/// read.
///
/// Returns false if DPDK does not run yet or has no free lcore slot. Everything still works then,
/// at half the speed.
pub fn register_current_thread() -> bool {
    Eal::running().is_some_and(Eal::register_current_thread)
}
