//! Folding with four vectors of 16 bytes, for processors with AVX and PCLMULQDQ and without
//! VPCLMULQDQ.

use std::arch::x86_64::{
    __m128i, _mm_clmulepi64_si128, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_setzero_si128,
    _mm_xor_si128,
};

use zerocopy::transmute;

use crate::sse42::to_vector;

type Block = [__m128i; 4];

define_folding_crc32c!("avx,pclmulqdq", 3);

#[inline]
#[target_feature(enable = "avx")]
fn load(bytes: &[u8; 64]) -> Block {
    transmute!(*bytes)
}

#[inline]
#[target_feature(enable = "avx")]
fn constants(words: &[u64; 8]) -> Block {
    transmute!(*words)
}

#[inline]
#[target_feature(enable = "avx")]
fn zero() -> Block {
    [_mm_setzero_si128(); 4]
}

#[inline]
#[target_feature(enable = "avx")]
fn add_crc([first, rest @ ..]: Block, crc: u32) -> Block {
    let [second, third, fourth] = rest;
    [_mm_xor_si128(first, to_vector(crc)), second, third, fourth]
}

#[inline]
#[target_feature(enable = "avx,pclmulqdq")]
fn fold(mut block: Block, multipliers: Block, other: Block) -> Block {
    for ((vector, multipliers), other) in block.iter_mut().zip(multipliers).zip(other) {
        let low = _mm_clmulepi64_si128::<0x00>(*vector, multipliers);
        let high = _mm_clmulepi64_si128::<0x11>(*vector, multipliers);
        *vector = _mm_xor_si128(_mm_xor_si128(low, other), high);
    }
    block
}

#[inline]
#[target_feature(enable = "avx")]
fn sum_lanes([a, b, c, d]: Block) -> [u64; 2] {
    let sum = _mm_xor_si128(_mm_xor_si128(a, b), _mm_xor_si128(c, d));
    [_mm_cvtsi128_si64(sum), _mm_extract_epi64::<1>(sum)].map(i64::cast_unsigned)
}
