//! State that is allocated when it is first needed: of many connections most are idle, and each of
//! them then has only a null pointer.

use core::ops::Deref;

/// Type with a constant empty value.
pub(super) trait Empty: 'static {
    /// Value of a [`Lazy`] that is not allocated.
    const EMPTY: &'static Self;
}

/// Lazily allocated `T`, in memory of its own.
#[derive(Debug)]
pub(super) struct Lazy<T>(Option<Box<T>>);

impl<T> Lazy<T> {
    /// Not allocated.
    pub(super) const fn new() -> Self {
        Self(None)
    }

    /// True if it is allocated.
    #[inline]
    pub(super) const fn holds_memory(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the value, if it is allocated.
    #[inline]
    pub(super) fn as_ref(&self) -> Option<&T> {
        self.0.as_deref()
    }

    /// Returns the value for an update, if it is allocated.
    #[inline]
    pub(super) fn as_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// Returns the value for an update; `allocate` makes it first if necessary.
    #[inline]
    pub(super) fn get_or_insert_with(&mut self, allocate: impl FnOnce() -> Box<T>) -> &mut T {
        self.0.get_or_insert_with(allocate)
    }

    /// Applies `update`, which leaves an empty value as it is: nothing is allocated for it.
    #[inline]
    pub(super) fn update<U: Default>(&mut self, update: impl FnOnce(&mut T) -> U) -> U {
        self.0.as_deref_mut().map_or_else(U::default, update)
    }

    /// Takes the value out, if it is allocated.
    pub(super) const fn take(&mut self) -> Option<Box<T>> {
        self.0.take()
    }

    /// Drops the value and releases the memory.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }
}

impl<T: Empty> Deref for Lazy<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::EMPTY)
    }
}
