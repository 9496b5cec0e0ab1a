//! The objects by the names that the stack has for them.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrowarp::{CqId, QpId, SrqId};

use crate::object::cq::Cq;
use crate::object::exposed::{Exposed, Handle};
use crate::object::qp::Qp;
use crate::object::srq::Srq;

/// Objects that have events.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) cqs: Named<CqId, Cq>,
    pub(crate) qps: Named<QpId, Qp>,
    /// By the number that programs know.
    pub(crate) numbered_qps: Named<u32, Qp>,
    pub(crate) srqs: Named<SrqId, Srq>,
}

/// Numbers of queue pairs have 24 bits.
const NUMBERS: u32 = 1 << 24;

impl Objects {
    /// Returns a number that no queue pair has, and none has had lately.
    pub(crate) fn free_number(&self) -> u32 {
        static LAST: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1) % NUMBERS;
            // 0 and 1 are those of management in InfiniBand.
            if number > 1 && self.numbered_qps.get(number).is_none() {
                return number;
            }
        }
    }
}

/// Objects of a kind by name.
pub(crate) struct Named<N, T: Exposed>(Mutex<HashMap<N, Handle<T>>>);

impl<N: Eq + Hash, T: Exposed> Named<N, T> {
    fn lock(&self) -> MutexGuard<'_, HashMap<N, Handle<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, name: N, object: Handle<T>) {
        self.lock().insert(name, object);
    }

    pub(crate) fn remove(&self, name: N) {
        self.lock().remove(&name);
    }

    pub(crate) fn get(&self, name: N) -> Option<Handle<T>> {
        self.lock().get(&name).copied()
    }
}

impl<N, T: Exposed> Default for Named<N, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<N, T: Exposed> std::fmt::Debug for Named<N, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Named").finish_non_exhaustive()
    }
}
