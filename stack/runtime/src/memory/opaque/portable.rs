//! The accesses as relaxed atomics. Page faults end the process.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use ferrowarp_proto::ddp::memory::PageFault;

/// Page faults are caught.
pub(crate) const CATCHES_PAGE_FAULTS: bool = false;

/// There is no choice of routines.
pub(crate) const fn select() {}

/// There are no routines.
pub(crate) const fn addresses() -> Range<usize> {
    0..0
}

/// Is not called: no address is one of a routine.
pub(crate) const fn landing() -> usize {
    0
}

/// Copies `len` bytes.
///
/// # Safety
/// `from..from + len` is readable, `to..to + len` is writable, and they do not overlap. One of them
/// may be registered memory.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), PageFault> {
    for at in 0..len {
        let (from, to) = (from.wrapping_add(at).cast_mut(), to.wrapping_add(at));
        // SAFETY: inside the source. It has to be writable only for atomics that write.
        let byte = unsafe { AtomicU8::from_ptr(from) }.load(Ordering::Relaxed);
        // SAFETY: inside the destination.
        unsafe { AtomicU8::from_ptr(to) }.store(byte, Ordering::Relaxed);
    }
    Ok(())
}

/// As [`copy`], at least one byte; the last one becomes visible last.
///
/// # Safety
/// As for [`copy`].
pub(crate) unsafe fn place(from: *const u8, to: *mut u8, len: usize) -> Result<(), PageFault> {
    // SAFETY: a part of what the caller guarantees.
    unsafe { copy(from, to, len - 1) }?;
    // SAFETY: as above.
    unsafe { store_release(to.wrapping_add(len - 1), *from.wrapping_add(len - 1)) }
}

/// Sets `len` bytes.
///
/// # Safety
/// `to..to + len` is writable.
pub(crate) unsafe fn fill(to: *mut u8, byte: u8, len: usize) -> Result<(), PageFault> {
    for at in 0..len {
        // SAFETY: inside the destination.
        unsafe { AtomicU8::from_ptr(to.wrapping_add(at)) }.store(byte, Ordering::Relaxed);
    }
    Ok(())
}

/// Loads the byte, with acquire: what its writer stored before it is visible after this.
///
/// # Safety
/// It is readable.
pub(crate) unsafe fn load_acquire(from: *const u8) -> Result<u8, PageFault> {
    // SAFETY: the caller guarantees that it is readable. It has to be writable only for atomics
    // that write.
    Ok(unsafe { AtomicU8::from_ptr(from.cast_mut()) }.load(Ordering::Acquire))
}

/// Stores the byte, with release: a thread that loads it with acquire sees what was stored before.
///
/// # Safety
/// It is writable.
pub(crate) unsafe fn store_release(to: *mut u8, byte: u8) -> Result<(), PageFault> {
    // SAFETY: the caller guarantees that it is writable.
    unsafe { AtomicU8::from_ptr(to) }.store(byte, Ordering::Release);
    Ok(())
}

/// Loads the word, with acquire.
///
/// # Safety
/// It is readable and aligned.
pub(crate) unsafe fn load_word(from: *const u64) -> Result<u64, PageFault> {
    // SAFETY: the caller guarantees it. It has to be writable only for atomics that write.
    Ok(unsafe { AtomicU64::from_ptr(from.cast_mut()) }.load(Ordering::Acquire))
}

/// Replaces the word by `new` if it is `current`, with acquire and release; returns the value
/// found.
///
/// # Safety
/// It is readable, writable and aligned.
pub(crate) unsafe fn compare_exchange(
    word: *mut u64,
    current: u64,
    new: u64,
) -> Result<u64, PageFault> {
    // SAFETY: the caller guarantees it.
    let word = unsafe { AtomicU64::from_ptr(word) };
    let found = word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
    Ok(found.unwrap_or_else(|found| found))
}

/// Adds to the word, with acquire and release; returns the value before.
///
/// # Safety
/// It is readable, writable and aligned.
pub(crate) unsafe fn fetch_add(word: *mut u64, add: u64) -> Result<u64, PageFault> {
    // SAFETY: the caller guarantees it.
    Ok(unsafe { AtomicU64::from_ptr(word) }.fetch_add(add, Ordering::AcqRel))
}

/// Replaces the word, with acquire and release; returns the value before.
///
/// # Safety
/// It is readable, writable and aligned.
pub(crate) unsafe fn swap(word: *mut u64, new: u64) -> Result<u64, PageFault> {
    // SAFETY: the caller guarantees it.
    Ok(unsafe { AtomicU64::from_ptr(word) }.swap(new, Ordering::AcqRel))
}
