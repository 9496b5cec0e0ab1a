//! CRC32C by the `crc32` instruction of SSE 4.2, in three chains.
//!
//! The instruction has a latency of three cycles, and one can start in each. So three parts of
//! equal length are read at once, each into a CRC of its own. The first CRC is then multiplied
//! by the power of x for the two parts that follow it, the second CRC by the one for the third
//! part.

use std::arch::x86_64::{
    __m128i, _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64, _mm_cvtsi32_si128,
    _mm_cvtsi128_si64, _mm_xor_si128,
};

use zerocopy::transmute;

use crate::polynomial::{mul_x_pow, x_pow};

/// Maximum words of a part: three make a segment at an MTU of 1,500, and [`SHIFTS`] 1 KiB.
const PART_WORDS_MAX: usize = 64;

/// Words from which three parts are faster than one chain. The chain of a shorter message takes
/// fewer instructions, and overlaps with the next message's chain.
const WORDS_MIN: usize = 16;

/// Multipliers of the CRCs of the first and the second part, by the words of a part.
///
/// In the lower half of an operand of 64 bits a CRC stands for itself times x^32. The product of
/// two such operands is in the lower half of the register, which stands for itself times x^64. With
/// the factor x that a product has (see `polynomial`), and x^32 by which `crc32` multiplies what it
/// appends, the multiplier for x^n is x^(n - 33) mod P.
static SHIFTS: [[u64; 2]; PART_WORDS_MAX + 1] = {
    let mut shifts = [[0; 2]; PART_WORDS_MAX + 1];
    let mut one_part = x_pow(64 - 33);
    let mut two_parts = x_pow(2 * 64 - 33);
    let mut words = 1;
    while words <= PART_WORDS_MAX {
        shifts[words] = [two_parts as u64, one_part as u64];
        one_part = mul_x_pow(one_part, 64);
        two_parts = mul_x_pow(two_parts, 2 * 64);
        words += 1;
    }
    shifts
};

/// Returns the CRC32C of `bytes`.
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    let (mut words, odd) = bytes.as_chunks::<8>();
    let mut crc = !0;
    while words.len() >= WORDS_MIN {
        let part_words = (words.len() / 3).min(PART_WORDS_MAX);
        let (first, rest) = words.split_at(part_words);
        let (second, rest) = rest.split_at(part_words);
        let (third, rest) = rest.split_at(part_words);
        words = rest;
        let mut crcs = [crc, 0, 0];
        for ((a, b), c) in first.iter().zip(second).zip(third) {
            crcs = [append_word(crcs[0], a), append_word(crcs[1], b), append_word(crcs[2], c)];
        }
        let shifts: __m128i = transmute!(SHIFTS[part_words]);
        let first = _mm_clmulepi64_si128::<0x00>(to_vector(crcs[0]), shifts);
        let second = _mm_clmulepi64_si128::<0x10>(to_vector(crcs[1]), shifts);
        let shifted = _mm_cvtsi128_si64(_mm_xor_si128(first, second));
        crc = append_u64(0, shifted.cast_unsigned()) ^ crcs[2];
    }
    !append_odd(append_words(crc, words), odd)
}

/// Returns the CRC, without the final inversion, of a message continued with `bytes`.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(crate) fn append(crc: u32, bytes: &[u8]) -> u32 {
    let (words, odd) = bytes.as_chunks::<8>();
    append_odd(append_words(crc, words), odd)
}

/// As [`append`], for words.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(crate) fn append_words(mut crc: u32, words: &[[u8; 8]]) -> u32 {
    // Most are short: an unrolled loop.
    let (groups, rest) = words.as_chunks::<4>();
    for [a, b, c, d] in groups {
        crc = append_word(append_word(append_word(append_word(crc, a), b), c), d);
    }
    for word in rest {
        crc = append_word(crc, word);
    }
    crc
}

/// As [`append`], for fewer than 8 bytes. FPDUs are multiples of 4 bytes long.
#[inline]
#[target_feature(enable = "sse4.2")]
fn append_odd(mut crc: u32, mut bytes: &[u8]) -> u32 {
    if let Some((half, rest)) = bytes.split_first_chunk() {
        crc = _mm_crc32_u32(crc, u32::from_le_bytes(*half));
        bytes = rest;
    }
    for &byte in bytes {
        crc = _mm_crc32_u8(crc, byte);
    }
    crc
}

#[inline]
#[target_feature(enable = "sse4.2")]
fn append_word(crc: u32, word: &[u8; 8]) -> u32 {
    append_u64(crc, u64::from_le_bytes(*word))
}

/// As [`append`], for the 8 bytes of `word` in little endian.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(crate) fn append_u64(crc: u32, word: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "the instruction clears the upper half")]
    let crc = _mm_crc32_u64(u64::from(crc), word) as u32;
    crc
}

/// Returns a vector with `crc` in its first 4 bytes, otherwise zero.
#[inline]
#[target_feature(enable = "sse2")]
pub(crate) fn to_vector(crc: u32) -> __m128i {
    _mm_cvtsi32_si128(crc.cast_signed())
}
