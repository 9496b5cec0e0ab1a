//! The passes over the bytes of one FPDU.

use std::hint::black_box;

use super::crc::{self, Crc};
use super::layout::FPDU_HEADER_LEN;

/// Bytes after which the fused pass changes from copy to CRC.
const FUSED_CHUNK_LEN: usize = 512;

/// Copies the payload to `covered`, behind the header, and returns the CRC of `covered`.
type Fused = fn(covered: &mut [u8], payload: &[u8]) -> u32;

/// How copy and CRC of one FPDU are done.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// The CRC, where it is a pass of its own.
    crc: Crc,
    /// On transmit, copy and CRC as one pass, and its name.
    fused: Option<(&'static str, Fused)>,
}

/// What may be faster than the two passes of the frozen bound on transmit. On receive the CRC is
/// verified before a byte is placed, so there are two passes always.
const FUSED: [(&str, Fused); 1] = [("copy and crc32c in chunks", fused_crc32c)];

impl Kernel {
    /// Returns the kernel of the frozen bound for FPDUs with `covered_len` bytes under the CRC.
    #[must_use]
    pub fn frozen(covered_len: usize) -> Self {
        Self { crc: crc::frozen(covered_len), fused: None }
    }

    /// Returns the fastest kernel known for such FPDUs, measured now: with the CRC of the frozen
    /// bound or the stack's, or with a fused pass. Better ones are to be added here.
    #[must_use]
    pub fn best(frozen: Self, covered_len: usize) -> Self {
        let two_passes = [frozen, Self { crc: crc::STACK, fused: None }];
        let fused = FUSED.map(|fused| Self { fused: Some(fused), ..two_passes[1] });
        let candidates: Vec<Self> = two_passes.into_iter().chain(fused).collect();
        let payload = vec![1; covered_len.saturating_sub(FPDU_HEADER_LEN)];
        let mut covered = vec![0; covered_len];
        let fastest = crc::fastest(&candidates, |kernel| {
            black_box(kernel.copy_with_crc(&mut covered, black_box(&payload)));
        });
        candidates[fastest]
    }

    /// Copies `payload` to `covered` behind the header and pads it with zeros; returns the CRC of
    /// `covered`.
    #[inline]
    pub fn copy_with_crc(&self, covered: &mut [u8], payload: &[u8]) -> u32 {
        let end = FPDU_HEADER_LEN + payload.len();
        covered[end..].fill(0);
        if let Some((_, fused)) = self.fused {
            return fused(covered, payload);
        }
        covered[FPDU_HEADER_LEN..end].copy_from_slice(payload);
        self.crc(covered)
    }

    /// Returns the CRC of `covered`.
    #[inline]
    #[must_use]
    pub fn crc(&self, covered: &[u8]) -> u32 {
        (self.crc.of)(covered)
    }

    /// Returns the names of the passes.
    #[must_use]
    pub fn name(&self) -> String {
        match self.fused {
            None => self.crc.name.to_owned(),
            Some((name, _)) => format!("{name}, {} at the sink", self.crc.name),
        }
    }
}

/// Chunks small enough to be in the L1 cache for the CRC, whatever the length of the segment.
fn fused_crc32c(covered: &mut [u8], payload: &[u8]) -> u32 {
    let (header, rest) = covered.split_at_mut(FPDU_HEADER_LEN);
    let mut sum = crc32c::crc32c(header);
    let (body, padding) = rest.split_at_mut(payload.len());
    let chunks = body.chunks_mut(FUSED_CHUNK_LEN).zip(payload.chunks(FUSED_CHUNK_LEN));
    for (to, from) in chunks {
        to.copy_from_slice(from);
        sum = crc32c::crc32c_append(sum, to);
    }
    crc32c::crc32c_append(sum, padding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fused_passes_copy_and_sum_as_two_passes() {
        let two_passes = Kernel { crc: crc::FROZEN[1], fused: None };
        for fused in FUSED {
            for len in [0, 1, 63, 511, 512, 513, 1428, 8928] {
                let payload: Vec<u8> = (0..len).map(|at: usize| at.to_le_bytes()[0]).collect();
                let covered_len = (FPDU_HEADER_LEN + len).next_multiple_of(4);
                let [mut expected, mut covered] = [(); 2].map(|()| vec![7; covered_len]);
                let sum = two_passes.copy_with_crc(&mut expected, &payload);
                let kernel = Kernel { fused: Some(fused), ..two_passes };
                assert_eq!(kernel.copy_with_crc(&mut covered, &payload), sum, "{len} bytes");
                assert_eq!(covered, expected, "{len} bytes");
                assert_eq!(two_passes.crc(&covered), sum);
            }
        }
    }
}
