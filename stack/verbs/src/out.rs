//! Places of the program that a call fills.

use std::mem::MaybeUninit;

use crate::errno::{Errno, Outcome};

/// A place that the program has passed; perhaps a null pointer. May be uninitialized.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Fills a place.
///
/// # Errors
/// `EINVAL` for a null pointer.
pub(crate) fn fill<T>(out: Out<'_, T>, value: T) -> Outcome {
    out.ok_or(Errno::EINVAL)?.write(value);
    Ok(())
}
