//! Markers: 4 bytes at every 512th byte of a direction's stream, with the FPDUPTR that locates the
//! FPDU around them (RFC 5044 section 4.3).
//!
//! FPDUs are multiples of four bytes and so is the interval, so a marker never splits the length
//! field, the padding or the CRC. A marker between two FPDUs belongs to the second, one in front of
//! a CRC to the FPDU of that CRC. Positions are counted by *phase*: bytes since the last marker
//! position, 0 at the position itself.
//!
//! FPDUPTR counts from the first byte of `ULPDU_Length`, as RFC 5044 specifies; draft-02 can be
//! read as counting from the leading marker of an FPDU. `FPDUPTR_BASE_IS_LENGTH` is that choice for
//! sending; a receiver accepts both.

use crate::mpa::fpdu::{
    CRC_LEN, FPDU_LEN_MAX, FpduError, LENGTH_LEN, clamp_mulpdu, fpdu_len, verify_crc, write_crc,
    write_length_and_pad,
};
use crate::wire::seq::Seq;

/// Bytes from one marker to the next, the marker included.
// req: MPA-067, MPA-075, MPA-077
pub const MARKER_INTERVAL: usize = 512;
/// Bytes of a marker.
pub const MARKER_LEN: usize = 4;
/// Bytes of FPDUs between two markers.
const INTERVAL_CONTENT_LEN: usize = MARKER_INTERVAL - MARKER_LEN;
/// Most bytes that markers add to an FPDU of [`FPDU_LEN_MAX`] bytes.
pub const OVERHEAD_MAX: usize = MARKER_LEN * FPDU_LEN_MAX.div_ceil(INTERVAL_CONTENT_LEN);
/// The FPDUPTRs of an FPDU with a leading marker count from its length field, after that marker.
// req: MPA-066
const FPDUPTR_BASE_IS_LENGTH: bool = true;

/// Marker positions of one direction: a start sequence number and every [`MARKER_INTERVAL`] bytes
/// from it, modulo 2^32, which is a multiple of the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "FPDUPTR")]
pub struct Markers {
    start: Seq,
}

impl Markers {
    /// Places the first marker at `start`, the first byte of full operation.
    #[must_use]
    pub const fn starting_at(start: Seq) -> Self {
        Self { start }
    }

    /// Returns the sequence number of the first marker.
    #[must_use]
    pub const fn start(self) -> Seq {
        self.start
    }

    /// Returns the phase of a received byte, 0..512. For sent ones:
    /// [`Framing::phase`](crate::mpa::framing::Framing::phase).
    // req: MPA-070, MPA-078
    #[must_use]
    pub fn phase(self, seq: Seq) -> usize {
        (seq - self.start) as usize % MARKER_INTERVAL
    }
}

/// Returns the phase `len` bytes after `phase`.
#[must_use]
pub const fn advance_phase(phase: usize, len: usize) -> usize {
    (phase + len) % MARKER_INTERVAL
}

/// Returns the bytes from `phase` to the next marker position, 0 if it is one.
const fn bytes_to_marker(phase: usize) -> usize {
    (MARKER_INTERVAL - phase) % MARKER_INTERVAL
}

/// Returns the length of the leading marker of an FPDU at `phase`, 0 if it has none.
const fn leading_marker_len(phase: usize) -> usize {
    if phase == 0 { MARKER_LEN } else { 0 }
}

/// Returns the number of markers in an FPDU that begins at `phase` and has `content` other bytes.
// req: MPA-082
const fn marker_count(phase: usize, content: usize) -> usize {
    content.saturating_sub(bytes_to_marker(phase)).div_ceil(INTERVAL_CONTENT_LEN)
}

/// Returns the bytes of the stream that an FPDU takes that begins at `phase` and has `content`
/// bytes without markers.
// req: MPA-061, MPA-175
#[must_use]
pub const fn wire_len(phase: usize, content: usize) -> usize {
    content + MARKER_LEN * marker_count(phase, content)
}

/// Returns the most bytes of an FPDU, markers excluded, that fit `capacity` bytes from `phase` on.
#[must_use]
pub const fn content_max(phase: usize, capacity: usize) -> usize {
    let before = bytes_to_marker(phase);
    let content = if capacity <= before {
        capacity
    } else {
        let beyond = capacity - before;
        before
            + beyond / MARKER_INTERVAL * INTERVAL_CONTENT_LEN
            + (beyond % MARKER_INTERVAL).saturating_sub(MARKER_LEN)
    };
    content - content % 4
}

/// Returns the largest ULPDU whose FPDU fits one segment of `emss` bytes at any marker phase,
/// within [`MULPDU_RANGE`](crate::mpa::fpdu::MULPDU_RANGE) (MPA-113).
// req: MPA-113, MPA-114, MPA-119
#[must_use]
pub const fn mulpdu(emss: usize) -> usize {
    let overhead = LENGTH_LEN + CRC_LEN + MARKER_LEN * emss.div_ceil(MARKER_INTERVAL) + emss % 4;
    clamp_mulpdu(emss.saturating_sub(overhead))
}

/// Returns the FPDUPTR of the marker `at` bytes after the start of an FPDU that begins at `phase`.
#[expect(clippy::cast_possible_truncation, reason = "a sent FPDU is shorter")]
const fn fpduptr(phase: usize, at: usize) -> u16 {
    let base = if FPDUPTR_BASE_IS_LENGTH { leading_marker_len(phase) } else { 0 };
    // req: MPA-068, MPA-073, MPA-076, MPA-079, MPA-080
    at.saturating_sub(base) as u16
}

/// Inserts the markers of the FPDU at the start of `out`, which begins at `phase` and has `content`
/// bytes without them. Returns its length with markers.
///
/// # Panics
/// If `out` is shorter than [`wire_len`].
pub fn insert_markers(out: &mut [u8], phase: usize, content: usize) -> usize {
    let first = bytes_to_marker(phase);
    for index in (0..marker_count(phase, content)).rev() {
        let from = first + index * INTERVAL_CONTENT_LEN;
        let at = first + index * MARKER_INTERVAL;
        out.copy_within(from..content.min(from + INTERVAL_CONTENT_LEN), at + MARKER_LEN);
        // req: MPA-062, MPA-063, MPA-071, MPA-081
        let [high, low] = fpduptr(phase, at).to_be_bytes();
        out[at..at + MARKER_LEN].copy_from_slice(&[0, 0, high, low]);
    }
    wire_len(phase, content)
}

/// As [`fpdu::finalize`](crate::mpa::fpdu::finalize), and inserts the markers: the FPDU begins at
/// `phase` of the stream.
///
/// # Panics
/// If `out` is shorter than [`wire_len`], or `ulpdu_len` above 65,535.
pub fn finalize(out: &mut [u8], ulpdu_len: usize, phase: usize, crc: bool) -> usize {
    // req: MPA-002
    write_length_and_pad(out, ulpdu_len);
    let total = insert_markers(out, phase, fpdu_len(ulpdu_len));
    // req: MPA-087, MPA-089, MPA-095, MPA-096
    write_crc(out, total, crc);
    total
}

/// Returns the bytes of the stream required of the FPDU at the start of `bytes`, which begins at
/// `phase`: up to its length field, or the whole FPDU once that is known.
#[must_use]
pub fn needed_len(bytes: &[u8], phase: usize) -> usize {
    let lead = leading_marker_len(phase);
    match ulpdu_len(bytes, lead) {
        None => lead + LENGTH_LEN,
        Some(len) => wire_len(phase, fpdu_len(len)),
    }
}

fn ulpdu_len(bytes: &[u8], at: usize) -> Option<usize> {
    let length = bytes.get(at..)?.first_chunk::<LENGTH_LEN>()?;
    Some(usize::from(u16::from_be_bytes(*length)))
}

/// FPDUPTR check: true if `ptr` is right for the marker `at` bytes after the start of an FPDU that
/// begins at `phase`. Its two low bits are ignored.
fn is_fpduptr_valid(ptr: u16, phase: usize, at: usize) -> bool {
    // req: MPA-064, MPA-074, MPA-150
    let ptr = ptr & !3;
    // Or counted from the leading marker.
    ptr == fpduptr(phase, at) || (phase == 0 && usize::from(ptr) == at)
}

/// Parses the FPDU at the start of `bytes`, which begins at `phase`: verifies it, and copies it
/// without markers to `scratch`. Returns its ULPDU and its length on the wire; `Ok(None)` if it is
/// incomplete.
///
/// # Errors
/// [`FpduError`]; the CRC is verified first, as an FPDUPTR means nothing if that is wrong.
pub fn parse<'a>(
    bytes: &[u8],
    phase: usize,
    crc: bool,
    scratch: &'a mut Vec<u8>,
) -> Result<Option<(&'a [u8], usize)>, FpduError> {
    let Some(ulpdu_len) = ulpdu_len(bytes, leading_marker_len(phase)) else { return Ok(None) };
    let total = wire_len(phase, fpdu_len(ulpdu_len));
    let Some(fpdu) = bytes.get(..total) else { return Ok(None) };
    if crc {
        // req: MPA-088, MPA-091, MPA-123, MPA-125, MPA-149
        verify_crc(fpdu)?;
    }
    scratch.clear();
    let (mut at, mut rest) = (bytes_to_marker(phase), fpdu);
    let (chunk, after) = rest.split_at(at.min(rest.len()));
    scratch.extend_from_slice(chunk);
    rest = after;
    while let Some((&[_, _, high, low], after)) = rest.split_first_chunk::<MARKER_LEN>() {
        if !is_fpduptr_valid(u16::from_be_bytes([high, low]), phase, at) {
            return Err(FpduError::Marker);
        }
        let (chunk, after) = after.split_at(after.len().min(INTERVAL_CONTENT_LEN));
        // req: MPA-084
        scratch.extend_from_slice(chunk);
        (rest, at) = (after, at + MARKER_INTERVAL);
    }
    Ok(Some((&scratch[LENGTH_LEN..LENGTH_LEN + ulpdu_len], total)))
}

/// Returns the offset of an FPDU that begins within `run`, bytes of the stream from `phase` on: the
/// first one to which an FPDUPTR points. FPDUs before it cannot be located.
// req: MPA-065, MPA-069, MPA-072, MPA-124, MPA-126, MPA-128
#[must_use]
pub fn find_fpdu_start(run: &[u8], phase: usize) -> Option<usize> {
    let offsets = (bytes_to_marker(phase)..).step_by(MARKER_INTERVAL);
    offsets.map_while(|at| Some((at, run.get(at..)?.first_chunk::<MARKER_LEN>()?))).find_map(
        |(at, &[_, _, high, low])| {
            let start = at.checked_sub(usize::from(u16::from_be_bytes([high, low]) & !3))?;
            // Directly after a marker: that is the leading marker of the FPDU.
            if advance_phase(phase, start) == MARKER_LEN {
                start.checked_sub(MARKER_LEN)
            } else {
                Some(start)
            }
        },
    )
}

#[cfg(test)]
mod tests;
