//! Folding with a vector of 64 bytes.

use std::arch::x86_64::{
    __m512i, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_xor_si128, _mm256_castsi256_si128,
    _mm256_extracti128_si256, _mm256_xor_si256, _mm512_castsi512_si256, _mm512_clmulepi64_epi128,
    _mm512_extracti64x4_epi64, _mm512_setzero_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512,
    _mm512_zextsi128_si512,
};

use zerocopy::transmute;

use crate::sse42::to_vector;

type Block = __m512i;

define_folding_crc32c!("avx512f,vpclmulqdq", 3);

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; 64]) -> Block {
    transmute!(*bytes)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn constants(words: &[u64; 8]) -> Block {
    transmute!(*words)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn zero() -> Block {
    _mm512_setzero_si512()
}

#[inline]
#[target_feature(enable = "avx512f")]
fn add_crc(block: Block, crc: u32) -> Block {
    _mm512_xor_si512(block, _mm512_zextsi128_si512(to_vector(crc)))
}

#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold(block: Block, multipliers: Block, other: Block) -> Block {
    /// Truth table of the XOR of three operands.
    const XOR: i32 = 0x96;
    let low = _mm512_clmulepi64_epi128::<0x00>(block, multipliers);
    let high = _mm512_clmulepi64_epi128::<0x11>(block, multipliers);
    _mm512_ternarylogic_epi64::<XOR>(low, high, other)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn sum_lanes(block: Block) -> [u64; 2] {
    let upper = _mm512_extracti64x4_epi64::<1>(block);
    let pair = _mm256_xor_si256(_mm512_castsi512_si256(block), upper);
    let sum = _mm_xor_si128(_mm256_castsi256_si128(pair), _mm256_extracti128_si256::<1>(pair));
    [_mm_cvtsi128_si64(sum), _mm_extract_epi64::<1>(sum)].map(i64::cast_unsigned)
}
