//! State of handles in a child made by `fork`.

use std::ops::Deref;
use std::sync::Arc;

pub(crate) use dpdk_sys::is_child;
use ferrowarp_proto::ended::Ended;

/// Fails in a child made by `fork`.
pub(crate) fn check_process() -> Result<(), Ended> {
    if is_child() { Err(Ended::Forked) } else { Ok(()) }
}

/// Reference-counted state of a handle, which a child made by `fork` never drops: at the fork a
/// thread, which the child lacks, may have been changing it, and the device is the parent's.
pub(crate) struct ForkArc<T>(Arc<T>);

impl<T> ForkArc<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Arc::new(value))
    }

    /// Without that: for what the stack itself keeps.
    pub(crate) const fn as_arc(&self) -> &Arc<T> {
        &self.0
    }

    /// True if both refer to the same value.
    pub(crate) fn ptr_eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Clone for ForkArc<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for ForkArc<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Drop for ForkArc<T> {
    #[inline]
    fn drop(&mut self) {
        if is_child() {
            std::mem::forget(Arc::clone(&self.0));
        }
    }
}
