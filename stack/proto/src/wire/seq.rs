//! Modular 32-bit sequence numbers, for TCP (SEQ, ACK) and DDP (MSN).

use core::cmp::Ordering;
use core::ops::{Add, AddAssign, Sub};

/// 32-bit sequence number with modular order (RFC 9293 section 3.4): `a < b` if `b` lies less than
/// 2^31 ahead of `a`. All wrapping comparisons of the workspace are made here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

impl Seq {
    /// Returns the signed distance from `earlier` to `self`, modulo 2^32, in bytes or messages.
    #[must_use]
    pub const fn distance(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0).cast_signed()
    }

    /// Returns the later of two sequence numbers.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        if self >= other { self } else { other }
    }

    /// Returns the earlier of two sequence numbers.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        if self <= other { self } else { other }
    }

    /// True if `self` lies in `[start, start + len)`.
    #[must_use]
    pub const fn within(self, start: Self, len: u32) -> bool {
        self.0.wrapping_sub(start.0) < len
    }
}

impl PartialOrd for Seq {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.distance(*other).cmp(&0))
    }
}

impl Add<u32> for Seq {
    type Output = Self;

    fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for Seq {
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl Sub<u32> for Seq {
    type Output = Self;

    fn sub(self, bytes: u32) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}

/// Distance from the right operand forward to the left one, modulo 2^32.
impl Sub for Seq {
    type Output = u32;

    fn sub(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Seq;

    #[test]
    fn order_holds_across_wraparound() {
        let before = Seq(0xffff_fff0);
        let after = before + 0x20;
        assert_eq!(after, Seq(0x10));
        assert!(before < after);
        assert!(after > before);
        assert_eq!(after - before, 0x20);
        assert_eq!(before.distance(after), -0x20);
    }

    #[test]
    fn within_is_half_open_and_wraps() {
        let start = Seq(0xffff_ffff);
        assert!(start.within(start, 1));
        assert!(!(start + 1).within(start, 1));
        assert!((start + 1).within(start, 2));
        assert!(!start.within(start, 0));
    }
}
