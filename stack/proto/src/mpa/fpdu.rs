//! FPDU: length, ULPDU, padding, CRC (RFC 5044 section 4.1).

use core::mem;
use core::ops::Range;

use crate::mpa::crc::crc32c;

/// Bytes of the `ULPDU_Length` field in front of the ULPDU.
pub const LENGTH_LEN: usize = 2;
/// Bytes of the CRC field.
pub const CRC_LEN: usize = 4;
/// Bytes of the longest FPDU that `ULPDU_Length` can announce.
pub const FPDU_LEN_MAX: usize = fpdu_len(u16::MAX as usize);
/// Bounds of MULPDU in bytes.
// req: MPA-044
pub const MULPDU_RANGE: Range<usize> = 128..64769;

/// Returns the length of the FPDU of a ULPDU of `ulpdu_len` bytes.
#[inline(always)]
#[must_use]
pub const fn fpdu_len(ulpdu_len: usize) -> usize {
    LENGTH_LEN + ulpdu_len + pad_len(ulpdu_len) + CRC_LEN
}

/// Returns the length of the padding behind a ULPDU of `ulpdu_len` bytes.
#[inline(always)]
const fn pad_len(ulpdu_len: usize) -> usize {
    (LENGTH_LEN + ulpdu_len).wrapping_neg() % 4
}

/// Returns the largest ULPDU whose FPDU fits one segment of `emss` bytes without markers, within
/// [`MULPDU_RANGE`] (RFC 5044 section 4.5).
#[must_use]
pub const fn mulpdu(emss: usize) -> usize {
    clamp_mulpdu(emss.saturating_sub(LENGTH_LEN + CRC_LEN + emss % 4))
}

/// Returns the value in [`MULPDU_RANGE`] that is nearest to `len`.
pub(super) const fn clamp_mulpdu(len: usize) -> usize {
    if len < MULPDU_RANGE.start {
        MULPDU_RANGE.start
    } else if len >= MULPDU_RANGE.end {
        MULPDU_RANGE.end - 1
    } else {
        len
    }
}

/// Completes the FPDU in `out`, whose ULPDU of `ulpdu_len` bytes is already at [`LENGTH_LEN`]:
/// writes the length, zero padding and the CRC over the bytes as they will be sent (a zero field
/// without CRCs). Returns the FPDU's length.
///
/// # Panics
/// If `out` is shorter than [`fpdu_len`], or `ulpdu_len` above 65,535.
#[inline]
pub fn finalize(out: &mut [u8], ulpdu_len: usize, crc: bool) -> usize {
    let total = fpdu_len(ulpdu_len);
    write_length_and_pad(out, ulpdu_len);
    write_crc(out, total, crc);
    total
}

/// Writes the CRCs of FPDUs that follow each other, each with length, ULPDU and padding.
#[inline]
pub(super) fn write_crcs(mut fpdus: &mut [u8], crc: bool) {
    while let Some(length) = fpdus.first_chunk()
        && let total = fpdu_len(usize::from(u16::from_be_bytes(*length)))
        && let Some((fpdu, rest)) = fpdus.split_at_mut_checked(total)
    {
        write_crc(fpdu, total, crc);
        fpdus = rest;
    }
}

/// Returns the length of the first `count` of FPDUs that follow each other, each with its length.
#[cold]
#[must_use]
pub fn len_of_first(count: u64, mut fpdus: &[u8]) -> usize {
    let whole = fpdus.len();
    for _ in 0..count {
        let Some(length) = fpdus.first_chunk() else { break };
        fpdus = fpdus.get(fpdu_len(usize::from(u16::from_be_bytes(*length)))..).unwrap_or(&[]);
    }
    whole - fpdus.len()
}

/// Takes an FPDU for a ULPDU of `ulpdu_len` bytes off the front of `out`, and writes its length and
/// padding; the CRC is written by `Framing::write_crcs`. Returns the place of the ULPDU; `None`,
/// with `out` empty, if the FPDU does not fit or would be too long.
#[inline(always)]
pub fn begin_fpdu<'o>(out: &mut &'o mut [u8], ulpdu_len: usize) -> Option<&'o mut [u8]> {
    let free = mem::take(out);
    // req: MPA-045, MPA-046
    if ulpdu_len >= MULPDU_RANGE.end {
        return None;
    }
    let (fpdu, rest) = free.split_at_mut_checked(fpdu_len(ulpdu_len))?;
    *out = rest;
    write_length_and_pad(fpdu, ulpdu_len);
    Some(&mut fpdu[LENGTH_LEN..LENGTH_LEN + ulpdu_len])
}

/// Writes the length and the padding.
#[inline(always)]
pub(crate) fn write_length_and_pad(out: &mut [u8], ulpdu_len: usize) {
    debug_assert!(ulpdu_len < MULPDU_RANGE.end, "{ulpdu_len}");
    let length = u16::try_from(ulpdu_len).expect("DDP keeps ULPDUs within 64,768 bytes");
    out[..LENGTH_LEN].copy_from_slice(&length.to_be_bytes());
    // req: MPA-057, MPA-058
    // At most three bytes of padding; the CRC overwrites the others.
    out[LENGTH_LEN + ulpdu_len..][..CRC_LEN].fill(0);
}

/// Writes the CRC over all bytes before it.
#[inline(always)]
pub(super) fn write_crc(out: &mut [u8], total: usize, crc: bool) {
    let (covered, rest) = out.split_at_mut(total - CRC_LEN);
    let sum = if crc { crc32c(covered) } else { 0 };
    // req: MPA-085, MPA-090, MPA-094
    rest[..CRC_LEN].copy_from_slice(&sum.to_le_bytes());
}

/// Error of an FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FpduError {
    /// CRC mismatch (MPA error 2).
    Crc,
    /// Wrong FPDUPTR in a marker (MPA error 3); the CRC, if used, matches.
    Marker,
}

/// Verifies the CRC of a complete FPDU.
///
/// # Errors
/// [`FpduError::Crc`].
#[inline]
pub(super) fn verify_crc(fpdu: &[u8]) -> Result<(), FpduError> {
    let (covered, sum) = fpdu.split_at(fpdu.len() - CRC_LEN);
    // req: MPA-086, MPA-092, MPA-093
    if sum == crc32c(covered).to_le_bytes() { Ok(()) } else { Err(FpduError::Crc) }
}

/// True if `bytes` are as long as the FPDU at their start.
#[inline(always)]
#[must_use]
pub fn is_whole(bytes: &[u8]) -> bool {
    let length = bytes.first_chunk::<LENGTH_LEN>();
    length.is_some_and(|length| fpdu_len(u16::from_be_bytes(*length).into()) == bytes.len())
}

/// Parses the FPDU at the start of `bytes`. Returns its ULPDU, whose CRC is verified if `crc`, and
/// the length of the FPDU; `Ok(None)` if it is incomplete.
///
/// # Errors
/// [`FpduError::Crc`].
#[inline]
pub fn parse(bytes: &[u8], crc: bool) -> Result<Option<(&[u8], usize)>, FpduError> {
    let Some(length) = bytes.first_chunk::<LENGTH_LEN>() else { return Ok(None) };
    let ulpdu_len = usize::from(u16::from_be_bytes(*length));
    // req: MPA-055, MPA-056, MPA-130
    let total = fpdu_len(ulpdu_len);
    let Some(fpdu) = bytes.get(..total) else { return Ok(None) };
    if crc {
        // req: MPA-059, MPA-060, MPA-123, MPA-125, MPA-149, DDP-025, DDP-135
        verify_crc(fpdu)?;
    }
    // req: DDP-022, DDP-026
    Ok(Some((&fpdu[LENGTH_LEN..LENGTH_LEN + ulpdu_len], total)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The two ULPDUs of RFC 5044 figures 5 and 6: untagged, 24 zero bytes.
    fn example_ulpdu(control: [u8; 2], msn: u8) -> Vec<u8> {
        let mut ulpdu = vec![0; 42];
        ulpdu[..2].copy_from_slice(&control);
        ulpdu[13] = msn;
        ulpdu
    }

    // The example without markers; CRCs recomputed by another implementation.
    // req-test: MPA-086, MPA-090, MPA-094
    #[test]
    fn rfc5044_examples_without_markers() {
        let cases = [
            ([0x41, 0x43], 1, 0xb724_3ec3_u32),
            ([0x41, 0x43], 2, 0x290f_bede),
            ([0x40, 0x03], 1, 0xa981_14c4),
            ([0x40, 0x03], 2, 0x37aa_94d9),
        ];
        for (control, msn, crc) in cases {
            let ulpdu = example_ulpdu(control, msn);
            let mut fpdu = vec![0xff; 48];
            fpdu[2..44].copy_from_slice(&ulpdu);
            assert_eq!(finalize(&mut fpdu, 42, true), 48);
            assert_eq!(fpdu[..2], [0, 0x2a]);
            assert_eq!(fpdu[44..], crc.to_be_bytes(), "MSN {msn}");
            assert_eq!(parse(&fpdu, true), Ok(Some((&ulpdu[..], 48))));
        }
    }

    // req-test: MPA-045, MPA-046
    #[test]
    fn fpdus_begin_with_ulpdus_of_up_to_64768_bytes() {
        let mut space = vec![0xff; 1 << 17];
        for len in [0, 1, 2, 127, 128, 64_767, 64_768] {
            let mut free = &mut space[..];
            let before = free.len();
            assert_eq!(begin_fpdu(&mut free, len).map(|ulpdu| ulpdu.len()), Some(len));
            assert_eq!(before - free.len(), fpdu_len(len), "{len} bytes");
            let length = u16::try_from(len).unwrap().to_be_bytes();
            assert_eq!(space[..LENGTH_LEN], length, "{len} bytes");
        }
        for len in [64_769, 65_535, 65_536, 1 << 17] {
            let mut free = &mut space[..];
            assert_eq!(begin_fpdu(&mut free, len), None, "{len} bytes");
            assert!(free.is_empty(), "{len} bytes");
        }
    }

    // req-test: MPA-044
    #[test]
    fn mulpdu_follows_emss_within_bounds() {
        for (emss, expected) in [
            (1460, 1454),
            (1448, 1442),
            (8948, 8942),
            (64, 128),
            (133, 128),
            (137, 130),
            (65535, 64768),
        ] {
            assert_eq!(mulpdu(emss), expected, "EMSS {emss}");
        }
        for emss in 140..9000 {
            assert!(fpdu_len(mulpdu(emss)) <= emss, "EMSS {emss}");
        }
    }

    // req-test: MPA-057, MPA-058, MPA-059
    #[test]
    fn pad_is_zero_and_covered_by_crc() {
        let mut fpdu = [0xff; 16];
        let len = finalize(&mut fpdu, 3, true);
        assert_eq!((len, &fpdu[5..8]), (12, &[0, 0, 0][..]));
        assert_eq!(fpdu[12..], [0xff; 4], "bytes after it stay unchanged");
        fpdu[6] = 1;
        assert_eq!(parse(&fpdu[..len], true), Err(FpduError::Crc));
        // Non-zero padding is ignored if the CRC matches.
        let crc = crc32c(&fpdu[..8]);
        fpdu[8..12].copy_from_slice(&crc.to_le_bytes());
        assert!(parse(&fpdu[..len], true).unwrap().is_some());
    }

    proptest! {
        // req-test: MPA-060, MPA-092
        #[test]
        fn any_single_bit_flip_is_detected(
            ulpdu in proptest::collection::vec(any::<u8>(), 1..300), bit in 16usize..2000,
        ) {
            let mut fpdu = vec![0; fpdu_len(ulpdu.len())];
            fpdu[2..2 + ulpdu.len()].copy_from_slice(&ulpdu);
            finalize(&mut fpdu, ulpdu.len(), true);
            prop_assert_eq!(parse(&fpdu, true), Ok(Some((&ulpdu[..], fpdu.len()))));
            let bit = bit % (fpdu.len() * 8 - 16) + 16;
            fpdu[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(parse(&fpdu, true), Err(FpduError::Crc));
            prop_assert!(parse(&fpdu, false).unwrap().is_some());
        }

        #[test]
        fn incomplete_fpdu_is_not_parsed(len in 1usize..600, cut in 0usize..600) {
            let mut fpdu = vec![7; fpdu_len(len)];
            finalize(&mut fpdu, len, true);
            let cut = cut % fpdu.len();
            prop_assert_eq!(parse(&fpdu[..cut], true), Ok(None));
        }
    }
}
