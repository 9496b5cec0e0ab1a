//! Kernels, and which of them the processor has. The only unsafe code of the crate.

#[cfg(target_arch = "x86_64")]
use std::arch::is_x86_feature_detected;
use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
use crate::{avx, avx2, avx512, sse42};

/// Implementation of CRC32C. A value exists only if the processor can execute it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(Isa);

/// Instructions that a kernel needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Isa {
    /// AVX-512 with VPCLMULQDQ, and all of `Avx2`.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2 with VPCLMULQDQ, and all of `Sse42`.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX, and all of `Sse42`, on processors that multiply fast.
    #[cfg(target_arch = "x86_64")]
    Avx,
    /// SSE 4.2 with PCLMULQDQ.
    #[cfg(target_arch = "x86_64")]
    Sse42,
    /// None in particular: the crate `crc32c` finds out for itself.
    Portable,
}

impl Kernel {
    /// Returns the best kernel of this processor, detected once.
    #[must_use]
    #[inline]
    pub fn best() -> Self {
        static BEST: OnceLock<Kernel> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().next().unwrap_or(Self(Isa::Portable)))
    }

    /// Returns all kernels that this processor can execute, the best one first.
    pub fn available() -> impl Iterator<Item = Self> {
        Isa::ALL.iter().copied().filter(|isa| isa.is_available()).map(Self)
    }

    /// Returns the name of the instruction set that it uses, in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx => "avx",
            #[cfg(target_arch = "x86_64")]
            Isa::Sse42 => "sse4.2",
            Isa::Portable => "portable",
        }
    }

    /// Returns the CRC32C of `bytes`.
    #[must_use]
    #[inline]
    pub fn crc32c(self, bytes: &[u8]) -> u32 {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the function needs AVX-512F and VPCLMULQDQ, which `is_available` found: a
            // `Kernel` other than `Portable` is made by `available` alone.
            Isa::Avx512 => unsafe { avx512::crc32c(bytes) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above; the function needs AVX2 and VPCLMULQDQ.
            Isa::Avx2 => unsafe { avx2::crc32c(bytes) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above; the function needs AVX and PCLMULQDQ.
            Isa::Avx => unsafe { avx::crc32c(bytes) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above; the function needs SSE 4.2 and PCLMULQDQ.
            Isa::Sse42 => unsafe { sse42::crc32c(bytes) },
            Isa::Portable => portable(bytes),
        }
    }
}

impl Isa {
    /// All of them, the best one first.
    const ALL: &[Self] = &[
        #[cfg(target_arch = "x86_64")]
        Self::Avx512,
        #[cfg(target_arch = "x86_64")]
        Self::Avx2,
        #[cfg(target_arch = "x86_64")]
        Self::Avx,
        #[cfg(target_arch = "x86_64")]
        Self::Sse42,
        Self::Portable,
    ];

    /// Returns true if the processor has the instructions, and the system saves their registers.
    fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => Self::Avx2.is_available() && is_x86_feature_detected!("avx512f"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                Self::Sse42.is_available()
                    && is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("vpclmulqdq")
            }
            #[cfg(target_arch = "x86_64")]
            // ADX is not used, but tells the age: processors without it (before Broadwell and Zen)
            // multiply slowly, and `crc32` alone should be as fast there or faster.
            Self::Avx => {
                Self::Sse42.is_available()
                    && is_x86_feature_detected!("avx")
                    && is_x86_feature_detected!("adx")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Sse42 => {
                is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq")
            }
            Self::Portable => true,
        }
    }
}

/// Not inlined, so that the choice of a kernel saves no registers: it ends in a jump.
#[inline(never)]
fn portable(bytes: &[u8]) -> u32 {
    ::crc32c::crc32c(bytes)
}
