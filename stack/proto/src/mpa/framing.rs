//! Sending side of MPA in full operation: MULPDU, length and completion of FPDUs.

use crate::mpa::fpdu::{self, CRC_LEN, LENGTH_LEN, MULPDU_RANGE, fpdu_len};
use crate::mpa::markers::{self, MARKER_INTERVAL};
use crate::wire::seq::Seq;

/// Format of the FPDUs that one connection sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    crc: bool,
    /// Sequence number of the first marker, modulo the interval of 512; `None` without markers.
    first_marker: Option<u16>,
}

impl Framing {
    /// Creates the format without markers.
    #[must_use]
    pub const fn without_markers(crc: bool) -> Self {
        Self { crc, first_marker: None }
    }

    /// Creates the format with markers; full operation starts at sequence number `start`.
    #[expect(clippy::cast_possible_truncation, reason = "less than the interval")]
    #[must_use]
    pub const fn with_markers(crc: bool, start: Seq) -> Self {
        Self { crc, first_marker: Some((start.0 as usize % MARKER_INTERVAL) as u16) }
    }

    /// True if CRCs are generated, and verified in received FPDUs.
    #[inline]
    #[must_use]
    pub const fn has_crc(self) -> bool {
        self.crc
    }

    /// True if markers are sent.
    #[inline]
    #[must_use]
    pub const fn has_markers(self) -> bool {
        self.first_marker.is_some()
    }

    /// Returns the marker phase of the sent byte at `seq`; `None` without markers.
    #[inline]
    #[must_use]
    pub const fn phase(self, seq: Seq) -> Option<usize> {
        match self.first_marker {
            None => None,
            Some(first) => Some(seq.0.wrapping_sub(first as u32) as usize % MARKER_INTERVAL),
        }
    }

    /// Returns the MULPDU for segments of `emss` bytes (RFC 5044 section 4.5).
    #[inline]
    #[must_use]
    pub const fn mulpdu(self, emss: usize) -> usize {
        if self.has_markers() { markers::mulpdu(emss) } else { fpdu::mulpdu(emss) }
    }

    /// Returns the length of the longest FPDU with the least MULPDU (128 bytes, however small the
    /// EMSS): it contains at most one marker.
    #[inline]
    #[must_use]
    pub const fn capacity_min(self) -> usize {
        let marker = if self.has_markers() { markers::MARKER_LEN } else { 0 };
        fpdu_len(MULPDU_RANGE.start) + marker
    }

    /// Returns the length of the longest FPDU that fits a segment of `emss` bytes at the best
    /// marker phase, but at least [`Framing::capacity_min`].
    #[inline]
    #[must_use]
    pub const fn fpdu_len_max(self, emss: usize) -> usize {
        if !self.has_markers() {
            return fpdu_len(fpdu::mulpdu(emss));
        }
        let least = self.capacity_min();
        if emss < least { least } else { emss - emss % 4 }
    }

    /// Returns the bytes of the stream that an FPDU with `ulpdu_len` bytes of ULPDU takes at `seq`.
    #[inline]
    #[must_use]
    pub const fn wire_len(self, ulpdu_len: usize, seq: Seq) -> usize {
        match self.phase(seq) {
            None => fpdu_len(ulpdu_len),
            Some(phase) => markers::wire_len(phase, fpdu_len(ulpdu_len)),
        }
    }

    /// Returns the largest ULPDU whose FPDU fits `capacity` bytes at `phase`; 0 if none fits.
    // req: MPA-115, MPA-116
    #[inline]
    #[must_use]
    pub fn ulpdu_max(capacity: usize, phase: Option<usize>) -> usize {
        let content = match phase {
            // req: MPA-041, MPA-043, MPA-117, DDP-015, DDP-094
            None => capacity - capacity % 4,
            Some(phase) => markers::content_max(phase, capacity),
        };
        let most = content.saturating_sub(LENGTH_LEN + CRC_LEN);
        // req: MPA-045, MPA-046
        most.min(MULPDU_RANGE.end - 1)
    }

    /// Writes the CRC of an FPDU without markers; a zero field without CRCs.
    #[inline]
    pub fn write_crc(self, fpdu: &mut [u8]) {
        let len = fpdu.len();
        fpdu::write_crc(fpdu, len, self.has_crc());
    }

    /// Completes the FPDU in `out`, whose ULPDU is already at [`LENGTH_LEN`]; see
    /// [`fpdu::finalize`].
    #[inline]
    #[must_use]
    pub fn finalize(self, out: &mut [u8], ulpdu_len: usize, phase: Option<usize>) -> usize {
        match phase {
            None => fpdu::finalize(out, ulpdu_len, self.has_crc()),
            Some(phase) => markers::finalize(out, ulpdu_len, phase, self.has_crc()),
        }
    }

    /// Writes the CRCs of FPDUs without markers that follow each other, each otherwise complete.
    #[inline]
    pub fn write_crcs(self, fpdus: &mut [u8]) {
        fpdu::write_crcs(fpdus, self.has_crc());
    }
}

#[cfg(test)]
mod tests {
    use super::Framing;
    use crate::mpa::fpdu::fpdu_len;
    use crate::wire::seq::Seq;

    const KINDS: [Framing; 2] =
        [Framing::without_markers(true), Framing::with_markers(true, Seq(3))];

    // req-test: MPA-044
    #[test]
    fn mulpdu_stays_within_its_bounds() {
        for framing in KINDS {
            for emss in 1..=65_535 {
                assert!((128..=64_768).contains(&framing.mulpdu(emss)), "EMSS {emss}");
            }
            assert_eq!((framing.mulpdu(1), framing.mulpdu(65_535)), (128, 64_768));
        }
    }

    // req-test: MPA-045, MPA-046
    #[test]
    fn ulpdus_of_1_to_64768_bytes_are_framed() {
        for (framing, phase) in KINDS.into_iter().zip([None, Some(4)]) {
            assert_eq!(Framing::ulpdu_max(1 << 20, phase), 64_768);
            for len in [1, 2, 127, 128, 64_767, 64_768] {
                let wire_len = framing.wire_len(len, Seq(7));
                assert_eq!(framing.phase(Seq(7)), phase);
                assert!(Framing::ulpdu_max(wire_len, phase) >= len, "{len} bytes");
                let mut out = vec![0xff; wire_len];
                out[2..2 + len].fill(7);
                assert_eq!(framing.finalize(&mut out, len, phase), wire_len);
                assert!(wire_len >= fpdu_len(len));
            }
        }
    }

    #[test]
    fn first_marker_is_at_start_of_full_operation() {
        for start in [0, 1, 511, 512, 0xffff_ff01] {
            let framing = Framing::with_markers(false, Seq(start));
            assert!(!framing.has_crc() && framing.has_markers());
            assert_eq!(framing.phase(Seq(start)), Some(0));
            assert_eq!(framing.phase(Seq(start) + 511), Some(511));
            assert_eq!(framing.phase(Seq(start) + 1024), Some(0));
        }
        assert_eq!(Framing::without_markers(true).phase(Seq(0)), None);
    }
}
