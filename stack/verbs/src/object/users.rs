//! Who needs an object: rdma-core refuses to destroy one that is in use (`EBUSY`).

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::exposed::Exposed;

/// Number of objects that need another one.
#[derive(Debug, Default)]
pub(crate) struct Users(AtomicUsize);

impl Users {
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }
}

/// An object that another one needs, as long as this value lives.
#[derive(Debug)]
pub(crate) struct Using<T: Exposed>(Arc<T>);

impl<T: Exposed> Using<T> {
    pub(crate) fn new(object: Arc<T>) -> Self {
        object.users().0.fetch_add(1, Ordering::AcqRel);
        Self(object)
    }
}

impl<T: Exposed> Deref for Using<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Exposed> Drop for Using<T> {
    fn drop(&mut self) {
        self.0.users().0.fetch_sub(1, Ordering::AcqRel);
    }
}
