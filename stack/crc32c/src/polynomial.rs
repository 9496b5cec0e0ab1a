//! Arithmetic modulo P, at compile time: the multipliers of the kernels.
//!
//! Polynomials over GF(2) are *reflected*, as CRC32C defines it: the lowest bit of a word is the
//! coefficient of the highest power. In a `u32` bit 31 is x^0 and bit 0 is x^31. In an operand of
//! 64 bits bit 63 is x^0, so a polynomial of degree below 32 is in the upper half. The product of
//! two such operands has 127 bits, and in a register of 128 bits it is therefore multiplied by x
//! once more: a multiplier for x^n is x^(n - 1) mod P.

/// P without its term x^32, reflected (RFC 3720 section 12.1: 0x11edc6f41).
const P: u32 = 0x82f6_3b78;

/// Returns `value` * x^n mod P.
pub(crate) const fn mul_x_pow(mut value: u32, n: u32) -> u32 {
    let mut i = 0;
    while i < n {
        value = (value >> 1) ^ (P & (value & 1).wrapping_neg());
        i += 1;
    }
    value
}

/// Returns x^n mod P, for n of -1 or more.
pub(crate) const fn x_pow(n: i32) -> u32 {
    const ONE: u32 = 1 << 31;
    // P = x * Q + 1, so x^-1 = Q mod P: P without the term x^0, divided by x.
    const INVERSE_OF_X: u32 = ((P ^ ONE) << 1) | 1;
    mul_x_pow(INVERSE_OF_X, (n + 1).cast_unsigned())
}

/// Returns the multipliers of the two halves of 16 bytes that move them `len` bytes towards the
/// front of a message. The first half is 8 bytes further in front.
///
/// The sum of the products has 16 bytes, and equals the 16 bytes followed by `len` zeros, mod P.
pub(crate) const fn shift_by(len: i32) -> [u64; 2] {
    [(x_pow(8 * len + 63) as u64) << 32, (x_pow(8 * len - 1) as u64) << 32]
}

/// Returns the multipliers that move a block of 64 bytes.
pub(crate) const fn shift_block_by(len: i32) -> [u64; 8] {
    shift_lanes_by([len; 4])
}

/// Returns the multipliers that move each 16 bytes of a block to the last 16 bytes of a message,
/// where `len` bytes follow the block.
pub(crate) const fn gather_block_before(len: i32) -> [u64; 8] {
    shift_lanes_by([len + 48, len + 32, len + 16, len])
}

const fn shift_lanes_by(lens: [i32; 4]) -> [u64; 8] {
    let [[a, b], [c, d], [e, f], [g, h]] =
        [shift_by(lens[0]), shift_by(lens[1]), shift_by(lens[2]), shift_by(lens[3])];
    [a, b, c, d, e, f, g, h]
}

#[cfg(test)]
mod tests {
    use super::{mul_x_pow, x_pow};

    #[test]
    fn powers_of_x_add_up() {
        assert_eq!(x_pow(0), 1 << 31);
        assert_eq!(x_pow(31), 1);
        // x^32 mod P is P without x^32, and x^-1 is the inverse of x.
        assert_eq!(x_pow(32), super::P);
        assert_eq!(mul_x_pow(x_pow(-1), 1), x_pow(0));
        assert_eq!(mul_x_pow(x_pow(100), 28), x_pow(128));
    }
}
