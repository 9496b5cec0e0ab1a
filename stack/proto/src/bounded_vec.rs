//! Vectors within their owner, as short as a work request or a startup frame permits.

use core::fmt;
use core::ops::{Deref, DerefMut};

use arrayvec::ArrayVec;

/// More than a request or a startup frame can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} {what} are too many: give {max} or fewer")]
#[non_exhaustive]
pub struct LengthError {
    /// Name of what is too long.
    pub what: &'static str,
    /// The number given; where they come one by one, the first number that is too large.
    pub len: usize,
    /// Largest number.
    pub max: usize,
}

/// Vector of at most `MAX` elements, without an allocation. No call panics on its length: an array
/// that is too long does not compile, and everything else returns a [`LengthError`].
///
/// ```
/// # use ferrowarp_proto::bounded_vec::BoundedVec;
/// let mut short = BoundedVec::<u8, 4>::from([1, 2, 3]);
/// short.push(4)?;
/// assert!(short.push(5).is_err() && BoundedVec::<u8, 4>::try_from_iter(1..6).is_err());
/// assert_eq!(short.as_slice(), [1, 2, 3, 4]);
/// # Ok::<(), ferrowarp_proto::bounded_vec::LengthError>(())
/// ```
///
/// ```compile_fail,E0080
/// # use ferrowarp_proto::bounded_vec::BoundedVec;
/// let _ = BoundedVec::<u8, 4>::from([0; 5]);
/// ```
///
/// It cannot be collected or extended, which had no other answer than a panic:
///
/// ```compile_fail,E0277
/// # use ferrowarp_proto::bounded_vec::BoundedVec;
/// let _: BoundedVec<u8, 4> = (0..3).collect();
/// ```
///
/// ```compile_fail,E0599
/// # use ferrowarp_proto::bounded_vec::BoundedVec;
/// BoundedVec::<u8, 4>::new().extend(0..3);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct BoundedVec<T, const MAX: usize>(ArrayVec<T, MAX>);

impl<T, const MAX: usize> BoundedVec<T, MAX> {
    /// Creates an empty vector.
    #[inline]
    #[must_use]
    pub const fn new() -> Self {
        Self(ArrayVec::new_const())
    }

    /// Appends an element.
    ///
    /// # Errors
    /// [`LengthError`]: it has `MAX` elements.
    #[inline]
    pub fn push(&mut self, element: T) -> Result<(), LengthError> {
        self.0.try_push(element).map_err(|_| too_long::<MAX>(MAX + 1))
    }

    /// Creates a vector of the elements of an iterator.
    ///
    /// # Errors
    /// [`LengthError`]: they are more than `MAX`.
    pub fn try_from_iter(elements: impl IntoIterator<Item = T>) -> Result<Self, LengthError> {
        let mut all = Self::new();
        elements.into_iter().try_for_each(|element| all.push(element))?;
        Ok(all)
    }

    /// Returns the elements.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        &self.0
    }
}

impl<T: Copy, const MAX: usize> BoundedVec<T, MAX> {
    /// Appends all of `elements`, or none.
    ///
    /// # Errors
    /// [`LengthError`]: there would be more than `MAX`.
    pub fn extend_from_slice(&mut self, elements: &[T]) -> Result<(), LengthError> {
        let len = self.len() + elements.len();
        self.0.try_extend_from_slice(elements).map_err(|_| too_long::<MAX>(len))
    }

    /// Copies `from`; the error calls its elements `what`.
    pub(crate) fn named(from: &[T], what: &'static str) -> Result<Self, LengthError> {
        Self::try_from(from).map_err(|error| LengthError { what, ..error })
    }
}

const fn too_long<const MAX: usize>(len: usize) -> LengthError {
    LengthError { what: "elements", len, max: MAX }
}

impl<T, const MAX: usize> Default for BoundedVec<T, MAX> {
    fn default() -> Self {
        Self::new()
    }
}

/// Compiles only where the array is not longer than `MAX`.
impl<T, const LEN: usize, const MAX: usize> From<[T; LEN]> for BoundedVec<T, MAX> {
    #[inline]
    fn from(elements: [T; LEN]) -> Self {
        const { assert!(LEN <= MAX, "the array is longer than the vector may be") };
        Self(elements.into_iter().collect())
    }
}

impl<T: Copy, const MAX: usize> TryFrom<&[T]> for BoundedVec<T, MAX> {
    type Error = LengthError;

    #[inline]
    fn try_from(elements: &[T]) -> Result<Self, LengthError> {
        ArrayVec::try_from(elements).map(Self).map_err(|_| too_long::<MAX>(elements.len()))
    }
}

impl<T, const MAX: usize> Deref for BoundedVec<T, MAX> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T, const MAX: usize> DerefMut for BoundedVec<T, MAX> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<'a, T, const MAX: usize> IntoIterator for &'a BoundedVec<T, MAX> {
    type Item = &'a T;
    type IntoIter = core::slice::Iter<'a, T>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: fmt::Debug, const MAX: usize> fmt::Debug for BoundedVec<T, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
