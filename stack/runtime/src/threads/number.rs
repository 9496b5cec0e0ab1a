//! Numbers of threads.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns a number that no other thread has, at least until 2^32 more have been given one.
/// Possible in a signal handler. One load, but for the first call.
#[inline]
pub(crate) fn thread_number() -> NonZeroU32 {
    thread_local! {
        static NUMBER: Cell<u32> = const { Cell::new(0) };
    }
    NUMBER.with(|number| {
        NonZeroU32::new(number.get()).unwrap_or_else(|| {
            let new = next();
            number.set(new.get());
            new
        })
    })
}

#[cold]
fn next() -> NonZeroU32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        // The largest means any thread to the locks.
        if let Some(number) = NonZeroU32::new(number).filter(|&number| number != NonZeroU32::MAX) {
            return number;
        }
    }
}
