//! Folding with two vectors of 32 bytes, for processors with VPCLMULQDQ and without AVX-512.

use std::arch::x86_64::{
    __m256i, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_xor_si128, _mm256_castsi256_si128,
    _mm256_clmulepi64_epi128, _mm256_extracti128_si256, _mm256_setzero_si256, _mm256_xor_si256,
    _mm256_zextsi128_si256,
};

use zerocopy::transmute;

use crate::sse42::to_vector;

type Block = [__m256i; 2];

define_folding_crc32c!("avx2,vpclmulqdq", 1);

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; 64]) -> Block {
    transmute!(*bytes)
}

#[inline]
#[target_feature(enable = "avx2")]
fn constants(words: &[u64; 8]) -> Block {
    transmute!(*words)
}

#[inline]
#[target_feature(enable = "avx2")]
fn zero() -> Block {
    [_mm256_setzero_si256(); 2]
}

#[inline]
#[target_feature(enable = "avx2")]
fn add_crc([front, back]: Block, crc: u32) -> Block {
    [_mm256_xor_si256(front, _mm256_zextsi128_si256(to_vector(crc))), back]
}

#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
fn fold(block: Block, multipliers: Block, other: Block) -> Block {
    [fold_half(block[0], multipliers[0], other[0]), fold_half(block[1], multipliers[1], other[1])]
}

#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
fn fold_half(half: __m256i, multipliers: __m256i, other: __m256i) -> __m256i {
    let low = _mm256_clmulepi64_epi128::<0x00>(half, multipliers);
    let high = _mm256_clmulepi64_epi128::<0x11>(half, multipliers);
    _mm256_xor_si256(_mm256_xor_si256(low, other), high)
}

#[inline]
#[target_feature(enable = "avx2")]
fn sum_lanes([front, back]: Block) -> [u64; 2] {
    let pair = _mm256_xor_si256(front, back);
    let sum = _mm_xor_si128(_mm256_castsi256_si128(pair), _mm256_extracti128_si256::<1>(pair));
    [_mm_cvtsi128_si64(sum), _mm_extract_epi64::<1>(sum)].map(i64::cast_unsigned)
}
