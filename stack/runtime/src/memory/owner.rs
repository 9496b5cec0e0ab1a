//! Owners of registered memory: values of the application that own bytes.
//!
//! The owner is moved to the heap and then not touched: no reference to it, and no `Box` of it, is
//! made until it is given back. So the bytes stay where they are, even if they are a part of the
//! owner, and no access of the stack conflicts with a reference. `AsMut` and `AsRef` may be
//! implemented in any way that safe code permits, so each is called once.

use std::ptr::NonNull;

use crate::memory::Span;

/// Value on the heap, without a reference to it.
struct Pinned<T>(NonNull<T>);

impl<T> Pinned<T> {
    fn new(value: T) -> Self {
        Self(NonNull::from(Box::leak(Box::new(value))))
    }

    fn into_inner(self) -> T {
        let pinned = std::mem::ManuallyDrop::new(self);
        // SAFETY: the pointer is from `Box::leak`, and not used again.
        *unsafe { Box::from_raw(pinned.0.as_ptr()) }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // SAFETY: as in `into_inner`.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Owner of bytes that peers, the stack and this process write. Nobody can reach it.
pub(crate) struct Exclusive<T>(Pinned<T>);

// SAFETY: the value moves to another thread together with this.
unsafe impl<T: Send> Send for Exclusive<T> {}
// SAFETY: a shared reference gives access to nothing.
unsafe impl<T: Send> Sync for Exclusive<T> {}

impl<T: AsMut<[u8]> + 'static> Exclusive<T> {
    /// Returns the owner and its bytes. The span and its copies are used until the owner is given
    /// back or dropped, and not afterwards.
    pub(crate) fn new(owner: T) -> (Self, Span) {
        let mut pinned = Pinned::new(owner);
        // SAFETY: the value lives on the heap, and this is the only reference to it.
        let bytes: &mut [u8] = unsafe { pinned.0.as_mut() }.as_mut();
        // SAFETY: the bytes are borrowed from the owner, exclusively. Nobody uses the owner before
        // it is given back, so the borrow lasts until then: as that of a leaked box would.
        let span = unsafe { Span::new(bytes.as_mut_ptr(), bytes.len()) };
        (Self(pinned), span)
    }
}

impl<T> Exclusive<T> {
    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

/// Owner of bytes that nobody writes. It may be used meanwhile, by shared reference.
pub(crate) struct Shared<T>(Pinned<T>);

// SAFETY: the value moves to another thread together with this.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: a shared reference gives a shared reference to the value.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T: AsRef<[u8]> + 'static> Shared<T> {
    /// Returns the owner and its bytes. The span and its copies are only used to read, until the
    /// owner is given back or dropped.
    pub(crate) fn new(owner: T) -> (Self, Span) {
        let this = Self(Pinned::new(owner));
        let bytes: &[u8] = this.get().as_ref();
        // SAFETY: the bytes are borrowed from the owner. It is used only by shared reference before
        // it is given back, so the borrow lasts until then, and nobody writes the bytes.
        let span = unsafe { Span::new(bytes.as_ptr().cast_mut(), bytes.len()) };
        (this, span)
    }
}

impl<T> Shared<T> {
    pub(crate) const fn get(&self) -> &T {
        // SAFETY: the value lives on the heap until this is dropped, and no exclusive reference to
        // it is made until then.
        unsafe { self.0.0.as_ref() }
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Returns another slice each time, and counts its drops.
    struct Fickle {
        slices: [[u8; 4]; 2],
        calls: usize,
        _alive: Arc<()>,
    }

    impl AsMut<[u8]> for Fickle {
        fn as_mut(&mut self) -> &mut [u8] {
            self.calls += 1;
            &mut self.slices[self.calls % 2]
        }
    }

    #[test]
    fn owner_is_asked_once_and_does_not_move() {
        let alive = Arc::new(());
        let fickle = Fickle { slices: [[0; 4]; 2], calls: 0, _alive: Arc::clone(&alive) };
        let (owner, span) = Exclusive::new(fickle);
        let moved = Box::new(owner);
        span.write(b"here").unwrap();
        let mut found = [0; 4];
        span.read(&mut found).unwrap();
        let fickle = moved.into_inner();
        assert_eq!((found, fickle.slices, fickle.calls), (*b"here", [[0; 4], *b"here"], 1));
        drop(Exclusive::new(fickle));
        assert_eq!(Arc::strong_count(&alive), 1, "dropped once");
    }

    #[test]
    fn owner_of_a_panic_is_dropped() {
        struct Panics {
            _alive: Arc<()>,
        }
        impl AsMut<[u8]> for Panics {
            fn as_mut(&mut self) -> &mut [u8] {
                panic!("no bytes")
            }
        }
        let alive = Arc::new(());
        let owner = Panics { _alive: Arc::clone(&alive) };
        assert!(std::panic::catch_unwind(|| Exclusive::new(owner).1.len()).is_err());
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn shared_owner_can_be_read_meanwhile() {
        let bytes: Arc<[u8]> = Arc::from(*b"shared");
        let (owner, span) = Shared::new(Arc::clone(&bytes));
        let mut found = [0; 6];
        span.read(&mut found).unwrap();
        assert_eq!((&found, &**owner.get()), (b"shared", &bytes[..]));
        assert_eq!(owner.into_inner(), bytes);
        let (_owner, span) = Shared::new(&b"static"[..]);
        span.read(&mut found).unwrap();
        assert_eq!(&found, b"static");
    }
}
