//! Registration of threads with EAL: a registered thread has a cache of its own in every mempool.

use core::marker::PhantomData;
use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::eal::{Eal, control_lock};
use crate::error::{Errno, Error};
use crate::{fork, mempool, sys};

/// Number of threads registered by a [`ThreadRegistration`].
static REGISTERED: AtomicUsize = AtomicUsize::new(0);

/// Registration of the calling thread with EAL; dropping it frees the lcore slot.
///
/// An unregistered thread may use every device, but each allocation and free then goes to the
/// mempool's shared ring, which takes about twice the time. The value cannot leave its thread.
#[derive(Debug)]
pub struct ThreadRegistration {
    owned: bool,
    _not_send: PhantomData<*const ()>,
}

impl Eal {
    /// Registers the calling thread. If it is registered already, the returned value has no effect.
    ///
    /// DPDK's multi-process support and registered threads exclude each other: the first
    /// registration turns the support off for good (`rte_mp_disable`), in a host program too. Where
    /// a secondary process has used it already, registration is refused, and threads use mempools
    /// without a cache.
    ///
    /// # Errors
    /// [`Error::ThreadRegister`] if all lcore slots (128 in Debian's build) are in use.
    pub fn register_thread(self) -> Result<ThreadRegistration, Error> {
        self.register_up_to(usize::MAX)
    }

    fn register_up_to(self, max: usize) -> Result<ThreadRegistration, Error> {
        if is_registered() {
            return Ok(ThreadRegistration { owned: false, _not_send: PhantomData });
        }
        if REGISTERED.fetch_add(1, Ordering::Relaxed) >= max {
            REGISTERED.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::ThreadRegister(Errno(libc::EBUSY)));
        }
        let _control = control_lock();
        // SAFETY: EAL runs, which `self` proves.
        let status = unsafe { sys::rte_thread_register() };
        if status != 0 {
            REGISTERED.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::ThreadRegister(Errno::last()));
        }
        Ok(ThreadRegistration { owned: true, _not_send: PhantomData })
    }

    /// Registers the calling thread until it ends, unless it is registered. False if no lcore slot
    /// is free. Costs one read of a thread-local variable if the thread is registered.
    pub fn register_current_thread(self) -> bool {
        self.register_current_thread_up_to(usize::MAX)
    }

    /// As [`Eal::register_current_thread`], but fails if `max` threads are registered already. Each
    /// thread may hold mbufs of every mempool in its caches, also while it sleeps; the pools are
    /// sized for that many threads.
    pub fn register_current_thread_up_to(self, max: usize) -> bool {
        thread_local! {
            static REGISTRATION: RefCell<Option<ThreadRegistration>> = const { RefCell::new(None) };
        }
        if is_registered() {
            return true;
        }
        let Ok(registration) = self.register_up_to(max) else { return false };
        // While the thread's locals are being destroyed, the registration is dropped here.
        REGISTRATION.try_with(|slot| slot.replace(Some(registration))).is_ok()
    }
}

/// True if the calling thread has an lcore slot.
#[must_use]
pub fn is_registered() -> bool {
    // SAFETY: reads a thread-local variable.
    unsafe { sys::fw_lcore_id() != sys::LCORE_ID_ANY }
}

impl Drop for ThreadRegistration {
    fn drop(&mut self) {
        // A forked child has copies of the caches, whose mbufs belong to its parent.
        if !self.owned || fork::is_child() {
            return;
        }
        // Caches belong to the lcore slot: mbufs left there are lost until another thread gets it.
        mempool::flush_own_caches();
        let _control = control_lock();
        // SAFETY: this thread was registered by the same value, which cannot leave the thread.
        unsafe { sys::rte_thread_unregister() };
        REGISTERED.fetch_sub(1, Ordering::Relaxed);
    }
}
