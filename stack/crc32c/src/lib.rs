//! CRC32C (Castagnoli) of messages of tens to thousands of bytes.
//!
//! A CRC is the remainder of the message, as a polynomial over GF(2), divided by the polynomial P.
//! Two instructions of x86-64 help: `crc32` appends 8 bytes to a CRC, one per cycle with a latency
//! of three (on a Zen 1 every third cycle); `pclmulqdq` multiplies polynomials without reducing
//! them, with AVX-512 four pairs at a time. Most processors have different execution units for
//! them, so both can be kept busy.
//!
//! There are five kernels. The best one that the processor has is chosen at the first call:
//!
//! - `avx512` (AVX-512F, VPCLMULQDQ): multiplications fold three quarters of the message, and
//!   beside them `crc32` reads the fourth (`fold.rs`).
//! - `avx2` (AVX2, VPCLMULQDQ): the same, with two thirds and a third.
//! - `avx` (AVX, PCLMULQDQ, ADX, from Broadwell and Zen on): as `avx512`, a pair at a time.
//! - `sse4.2` (SSE 4.2, PCLMULQDQ): `crc32` reads three parts of the message, interleaved; two
//!   multiplications combine them (`sse42.rs`).
//! - `portable`: the crate `crc32c`.
//!
//! The multipliers are computed from P at compile time (`polynomial.rs`). All unsafe code is the
//! calls of functions for processors that have been detected (`kernel.rs`).

#[cfg(target_arch = "x86_64")]
#[macro_use]
mod fold;
#[cfg(target_arch = "x86_64")]
mod avx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod kernel;
#[cfg(target_arch = "x86_64")]
mod polynomial;
#[cfg(target_arch = "x86_64")]
mod sse42;
#[cfg(test)]
mod tests;

pub use kernel::Kernel;

/// Returns the CRC32C of `bytes`, as RFC 3720 section 12.1 defines it for iSCSI, by the best kernel
/// of this processor.
// Not inlined: the choice of a kernel costs its callers registers (60 instructions per segment).
#[must_use]
#[inline(never)]
pub fn crc32c(bytes: &[u8]) -> u32 {
    Kernel::best().crc32c(bytes)
}
