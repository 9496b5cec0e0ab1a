//! Memory of the objects that a program holds pointers to.
//!
//! A program may use a pointer that it should not: to nothing, to an object of another kind or
//! library, or to one that it has destroyed. So the memory of an object is never returned to the
//! heap: it is used again, later, for an object of the same kind. And a call that is not on the hot
//! path looks the pointer up before it uses it ([`Handle::get`]).

use std::cell::UnsafeCell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::users::Users;
use crate::errno::{Errno, Outcome};

/// Destroyed objects of a kind that wait before the memory of one is used again: a stale pointer
/// finds out for so long that its object is gone.
const RESTING: usize = 64;
/// Time for which destroying an object waits for other threads that use it.
const LAST_USE_MAX: Duration = Duration::from_secs(1);

/// What the library knows of an object.
pub(crate) trait Exposed: Send + Sync + Sized + 'static {
    /// What the program may see.
    type Public: 'static;
    /// Struct of the headers that the program's pointer leads to.
    type Pointee: 'static;
    /// Where that lies in [`Exposed::Public`].
    const OFFSET: usize = 0;

    /// The objects of this kind.
    fn registry() -> &'static Registry<Self>;

    /// Those who need the object: it cannot be destroyed as long as there are any.
    fn users(&self) -> &Users;
}

/// Memory of an object.
#[repr(C)]
struct Block<T: Exposed> {
    /// Also the program changes it, at any time.
    public: UnsafeCell<MaybeUninit<T::Public>>,
    /// The value that the registry owns; null while there is no object.
    value: AtomicPtr<T>,
}

/// All objects of a kind.
pub(crate) struct Registry<T: Exposed> {
    inner: Mutex<Blocks<T>>,
}

struct Blocks<T: Exposed> {
    /// By the address that the program knows.
    live: Option<HashMap<usize, Arc<T>>>,
    /// Addresses of those without an object, the longest one first.
    resting: VecDeque<usize>,
}

/// A pointer from the program to an object; perhaps a wrong one.
#[repr(transparent)]
pub(crate) struct Handle<T: Exposed>(*mut T::Pointee);

impl<T: Exposed> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Exposed> Copy for Handle<T> {}

impl<T: Exposed> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Pointer::fmt(&self.0, f)
    }
}

impl<T: Exposed> PartialEq for Handle<T> {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}

// SAFETY: an address; what it leads to is shared between threads.
unsafe impl<T: Exposed> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T: Exposed> Sync for Handle<T> {}

impl<T: Exposed> Registry<T> {
    pub(crate) const fn new() -> Self {
        Self { inner: Mutex::new(Blocks { live: None, resting: VecDeque::new() }) }
    }

    fn lock(&self) -> MutexGuard<'_, Blocks<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The objects that there are, in no order.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.lock().live.iter().flat_map(HashMap::values).cloned().collect()
    }
}

impl<T: Exposed> Blocks<T> {
    /// Returns memory for an object.
    fn take(&mut self) -> &'static Block<T> {
        if self.resting.len() > RESTING
            && let Some(address) = self.resting.pop_front()
        {
            // SAFETY: the address is that of a block made below, which stays for ever.
            return unsafe { &*ptr::with_exposed_provenance::<Block<T>>(address) };
        }
        Box::leak(Box::new(Block {
            public: UnsafeCell::new(MaybeUninit::zeroed()),
            value: AtomicPtr::new(ptr::null_mut()),
        }))
    }
}

/// Makes an object that the program sees as `public`.
pub(crate) fn expose<T: Exposed>(value: T, public: T::Public) -> Handle<T> {
    let value = Arc::new(value);
    let mut blocks = T::registry().lock();
    let block = blocks.take();
    // SAFETY: the memory holds no object, so only this thread uses it.
    unsafe { (*block.public.get()).write(public) };
    block.value.store(Arc::as_ptr(&value).cast_mut(), Ordering::Release);
    let handle = Handle(ptr::from_ref(block).cast_mut().wrapping_byte_add(T::OFFSET).cast());
    blocks.live.get_or_insert_default().insert(handle.address(), value);
    handle
}

impl<T: Exposed> Handle<T> {
    /// A pointer that the program has passed.
    pub(crate) const fn of(pointer: *mut T::Pointee) -> Self {
        Self(pointer)
    }

    /// The pointer as the program knows it.
    pub(crate) const fn as_ptr(self) -> *mut T::Pointee {
        self.0
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    fn address(self) -> usize {
        self.0.expose_provenance()
    }

    /// Returns the object. Takes a lock and looks the pointer up: not for posting or polling.
    ///
    /// # Errors
    /// `EINVAL`: there is none of this kind.
    pub(crate) fn get(self) -> Outcome<Arc<T>> {
        let blocks = T::registry().lock();
        let live = blocks.live.as_ref().ok_or(Errno::EINVAL)?;
        live.get(&self.address()).cloned().ok_or(Errno::EINVAL)
    }

    /// As [`Handle::get`]; `None` for a null pointer.
    pub(crate) fn get_optional(self) -> Outcome<Option<Arc<T>>> {
        if self.is_null() { Ok(None) } else { self.get().map(Some) }
    }

    /// The memory of the object.
    ///
    /// # Safety
    /// The pointer is one to an object of this kind, perhaps a destroyed one.
    #[inline(always)]
    unsafe fn block<'a>(self) -> &'a Block<T> {
        let block = self.0.wrapping_byte_sub(T::OFFSET).cast::<Block<T>>();
        // SAFETY: the memory of an object stays for ever.
        unsafe { &*block }
    }

    /// Returns the object for posting or polling, or `None` once it is destroyed. One load.
    ///
    /// # Safety
    /// The pointer is one to an object of this kind, perhaps a destroyed one: inline helpers of the
    /// headers have read its context. And no other thread destroys it meanwhile, which verbs
    /// forbids.
    #[inline(always)]
    pub(crate) unsafe fn hot<'a>(self) -> Option<&'a T> {
        // SAFETY: the caller guarantees it.
        let block = unsafe { self.block() };
        let value = block.value.load(Ordering::Acquire);
        // SAFETY: null, or a value that the registry owns until it is destroyed.
        unsafe { value.as_ref() }
    }

    /// Changes what the program sees of an object, if it is one.
    pub(crate) fn change(self, change: impl FnOnce(&mut T::Pointee)) {
        let blocks = T::registry().lock();
        if blocks.live.as_ref().is_some_and(|live| live.contains_key(&self.address())) {
            // SAFETY: there is such an object, whose struct is initialized. The program reads it
            // meanwhile, at most.
            change(unsafe { &mut *self.0 });
        }
    }

    /// Destroys the object: from now on it is unknown, and nobody uses it once this has returned.
    /// The caller holds no [`Arc`] of it.
    ///
    /// # Errors
    /// `EINVAL`: there is none; `EBUSY`: others need it.
    pub(crate) fn destroy(self) -> Outcome {
        let value = self.remove()?;
        // Others have it for a moment, such as the thread that passes events on.
        let end = Instant::now() + LAST_USE_MAX;
        while Arc::strong_count(&value) > 1 && Instant::now() < end {
            thread::yield_now();
        }
        Ok(())
    }

    /// As [`Handle::destroy`], but others may still use the object, which is returned.
    ///
    /// # Errors
    /// As [`Handle::destroy`].
    pub(crate) fn remove(self) -> Outcome<Arc<T>> {
        let mut blocks = T::registry().lock();
        let live = blocks.live.as_mut().ok_or(Errno::EINVAL)?;
        let value = live.get(&self.address()).ok_or(Errno::EINVAL)?;
        if value.users().any() {
            return Err(Errno::EBUSY);
        }
        let value = live.remove(&self.address()).ok_or(Errno::EINVAL)?;
        // SAFETY: the object was live.
        let block = unsafe { self.block() };
        block.value.store(ptr::null_mut(), Ordering::Release);
        let address = ptr::from_ref(block).expose_provenance();
        blocks.resting.push_back(address);
        Ok(value)
    }
}

#[cfg(test)]
mod tests;
