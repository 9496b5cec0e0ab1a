//! The queue pair of the runtime inside one of verbs.

use std::cell::UnsafeCell;
use std::sync::{PoisonError, RwLock};

use ferrowarp::Qp;

use crate::errno::Outcome;

/// A queue pair of the runtime, which `ibv_modify_qp` may return to its first state.
///
/// Posting takes no lock of its own here: verbs forbids a return to `IBV_QPS_RESET` while another
/// thread posts to the queue pair. Everything else takes the lock.
#[derive(Debug)]
pub(crate) struct QpCell {
    qp: UnsafeCell<Qp>,
    control: RwLock<()>,
}

// SAFETY: a queue pair may be used by several threads; who changes it excludes the others.
unsafe impl Sync for QpCell {}

impl QpCell {
    pub(crate) fn new(qp: Qp) -> Self {
        Self { qp: UnsafeCell::new(qp), control: RwLock::new(()) }
    }

    /// Calls `act` with the queue pair.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&Qp) -> R) -> R {
        let _control = self.control.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: `reset` waits for the lock.
        act(unsafe { &*self.qp.get() })
    }

    /// The queue pair, for posting.
    ///
    /// # Safety
    /// No other thread resets it meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn hot(&self) -> &Qp {
        // SAFETY: the caller guarantees that nobody changes it.
        unsafe { &*self.qp.get() }
    }

    /// Returns it to its first state.
    pub(crate) fn reset(&self) -> Outcome {
        let _control = self.control.write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: nobody posts, which the program guarantees, and all others wait for the lock.
        Ok(unsafe { &mut *self.qp.get() }.reset()?)
    }
}
