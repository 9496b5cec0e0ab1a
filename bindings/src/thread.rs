//! Threads that allocate and free mbufs: a registered one has caches of its own in every pool.

use core::marker::PhantomData;
use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::eal::{Eal, control_lock};
use crate::error::{Errno, Error};
use crate::{fork, mempool, sys};

/// Threads that a [`ThreadRegistration`] stands for.
static REGISTERED: AtomicUsize = AtomicUsize::new(0);

/// The calling thread's registration with EAL; dropping it gives the slot back.
///
/// An unregistered thread may use every device, but each allocation and free then goes to the
/// pool's shared ring: about twice the time. Belongs to the thread that made it.
#[derive(Debug)]
pub struct ThreadRegistration {
    owned: bool,
    _not_send: PhantomData<*const ()>,
}

impl Eal {
    /// Registers the calling thread. A registered thread gets a value that does nothing.
    ///
    /// # Errors
    /// [`Error::ThreadRegister`] when all slots (128 in Debian's build) are taken.
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

    /// Registers the calling thread until it ends, if it is not and a slot is left. Returns
    /// whether it is registered now. Costs one read of a thread-local variable once it is.
    pub fn adopt_thread(self) -> bool {
        self.adopt_thread_up_to(usize::MAX)
    }

    /// As [`Eal::adopt_thread`], unless `max` threads are registered already. Each may keep frames
    /// of every pool in its caches, also while it sleeps: pools suffice for so many.
    pub fn adopt_thread_up_to(self, max: usize) -> bool {
        thread_local! {
            static ADOPTED: RefCell<Option<ThreadRegistration>> = const { RefCell::new(None) };
        }
        if is_registered() {
            return true;
        }
        let Ok(registration) = self.register_up_to(max) else { return false };
        // While the thread's locals are being destroyed the registration ends right here.
        ADOPTED.try_with(|slot| slot.replace(Some(registration))).is_ok()
    }
}

/// Whether the calling thread has a slot.
#[must_use]
pub fn is_registered() -> bool {
    // SAFETY: reads a thread-local variable.
    unsafe { sys::fw_lcore_id() != sys::LCORE_ID_ANY }
}

impl Drop for ThreadRegistration {
    fn drop(&mut self) {
        // A child has copies of the caches, whose frames are its parent's.
        if !self.owned || fork::is_child() {
            return;
        }
        // Caches belong to the slot: whatever stays there is lost until another thread gets it.
        mempool::flush_own_caches();
        let _control = control_lock();
        // SAFETY: this thread was registered by the same value, which cannot leave the thread.
        unsafe { sys::rte_thread_unregister() };
        REGISTERED.fetch_sub(1, Ordering::Relaxed);
    }
}
