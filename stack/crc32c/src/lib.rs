//! CRC32C (Castagnoli) of messages of tens to thousands of bytes.
//!
//! A CRC is the remainder of a division: the message, as a polynomial over GF(2), by the polynomial
//! P. Two instructions of x86-64 help. `crc32` appends 8 bytes to a CRC. It starts once per cycle
//! with a latency of three (on a Zen 1 every third cycle). `pclmulqdq` multiplies polynomials
//! without reducing them. With AVX-512 it multiplies four pairs at a time. Most processors have
//! different execution units for the two, so we keep both busy.
//!
//! There are five kernels. A multiplication folds a part of the message while `crc32` reads another
//! part. The first call chooses the best one for the processor:
//!
//! | Kernel | Processor | Method |
//! |---|---|---|
//! | `avx512` | AVX-512F, VPCLMULQDQ | Folds three quarters; `crc32` reads the fourth (`fold.rs`) |
//! | `avx2` | AVX2, VPCLMULQDQ | The same with one half and the other |
//! | `avx` | AVX, PCLMULQDQ, ADX: from Broadwell and Zen on | As `avx512`, one pair at a time |
//! | `sse4.2` | SSE 4.2, PCLMULQDQ | Three chains of `crc32`, combined (`sse42.rs`) |
//! | `portable` | all others | The crate `crc32c` |
//!
//! The compiler computes the multipliers from P (`polynomial.rs`). The only unsafe code calls
//! functions for a processor that was detected (`kernel.rs`).

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
