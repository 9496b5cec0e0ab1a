//! Markers: four bytes at every 512th byte of a direction's stream that say where the FPDU around
//! them begins (RFC 5044 section 4.3).
//!
//! FPDUs are multiples of four bytes and so is the period, so a marker never splits the length
//! field, the padding or the CRC. One that falls between two FPDUs belongs to the second, one in
//! front of a CRC to the FPDU of that CRC. Positions are counted by *phase*: bytes since the last
//! place of a marker, 0 at the place itself.
//!
//! The base of the pointer is the first byte of `ULPDU_Length`, as RFC 5044 says; draft-02 can be
//! read as counting from the marker that an FPDU opens with. `FPDUPTR_BASE_IS_LENGTH` is that
//! choice; a receiver takes either.

use crate::mpa::fpdu::{CRC_LEN, FPDU_LEN_MAX, FpduError, LENGTH_LEN, clamp_mulpdu, fpdu_len};
use crate::wire::seq::Seq;

/// Bytes from one marker to the next, its own included.
// req: MPA-067, MPA-075, MPA-077
pub const MARKER_INTERVAL: usize = 512;
/// Bytes of a marker.
pub const MARKER_LEN: usize = 4;
/// Bytes of FPDUs between two markers.
const INTERVAL_CONTENT_LEN: usize = MARKER_INTERVAL - MARKER_LEN;
/// Most bytes that markers add to an FPDU of [`FPDU_LEN_MAX`] bytes.
pub const OVERHEAD_MAX: usize = MARKER_LEN * FPDU_LEN_MAX.div_ceil(INTERVAL_CONTENT_LEN);
/// Pointers of an FPDU that opens with a marker count from its length field, behind that marker.
// req: MPA-066
const FPDUPTR_BASE_IS_LENGTH: bool = true;

/// Where a direction's markers lie: at this sequence number and every [`MARKER_INTERVAL`] bytes
/// from it, modulo 2^32, which is a multiple of the period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Markers {
    start: Seq,
}

impl Markers {
    /// The first marker lies at `start`, the first byte of full operation.
    #[must_use]
    pub const fn starting_at(start: Seq) -> Self {
        Self { start }
    }

    /// Where the first marker lies.
    #[must_use]
    pub const fn start(self) -> Seq {
        self.start
    }

    /// The phase of a byte, 0..512.
    // req: MPA-070, MPA-078
    #[must_use]
    pub fn phase(self, seq: Seq) -> usize {
        (seq - self.start) as usize % MARKER_INTERVAL
    }
}

/// The phase `len` bytes on.
#[must_use]
pub const fn advance_phase(phase: usize, len: usize) -> usize {
    (phase + len) % MARKER_INTERVAL
}

/// Bytes from `phase` to the next marker, 0 if it is there.
const fn bytes_to_marker(phase: usize) -> usize {
    (MARKER_INTERVAL - phase) % MARKER_INTERVAL
}

/// Bytes of the marker that an FPDU at `phase` opens with.
const fn leading_marker_len(phase: usize) -> usize {
    if phase == 0 { MARKER_LEN } else { 0 }
}

/// Markers within an FPDU that begins at `phase` and has `content` bytes besides.
// req: MPA-082
const fn marker_count(phase: usize, content: usize) -> usize {
    content.saturating_sub(bytes_to_marker(phase)).div_ceil(INTERVAL_CONTENT_LEN)
}

/// Bytes of the stream that an FPDU takes that begins at `phase` and has `content` bytes without
/// markers.
// req: MPA-061, MPA-175
#[must_use]
pub const fn wire_len(phase: usize, content: usize) -> usize {
    content + MARKER_LEN * marker_count(phase, content)
}

/// Most bytes of an FPDU without its markers that fit `room` bytes of the stream from `phase` on.
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

/// Largest ULPDU whose FPDU fits one segment of `emss` bytes wherever its markers fall, within
/// [`MULPDU_RANGE`](crate::mpa::fpdu::MULPDU_RANGE) (MPA-113).
// req: MPA-113, MPA-114, MPA-119
#[must_use]
pub const fn mulpdu(emss: usize) -> usize {
    let overhead = LENGTH_LEN + CRC_LEN + MARKER_LEN * emss.div_ceil(MARKER_INTERVAL) + emss % 4;
    clamp_mulpdu(emss.saturating_sub(overhead))
}

/// What the marker says that lies `at` bytes behind the first byte of an FPDU begun at `phase`.
#[expect(clippy::cast_possible_truncation, reason = "no FPDU that is sent is that long")]
const fn fpduptr(phase: usize, at: usize) -> u16 {
    let base = if FPDUPTR_BASE_IS_LENGTH { leading_marker_len(phase) } else { 0 };
    // req: MPA-068, MPA-073, MPA-076, MPA-079, MPA-080
    at.saturating_sub(base) as u16
}

/// Puts the markers of the FPDU at the head of `out` in their places: it begins at `phase` and has
/// `content` bytes so far. Returns its length with them.
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

/// Bytes of the stream that the FPDU at the head of `bytes`, begun at `phase`, takes as far as
/// they tell: up to its length field, or whole.
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

/// Takes the FPDU at the head of `bytes` apart, which begins at `phase`, if it is whole: verifies
/// it, and leaves its bytes without markers in `scratch`. Returns its ULPDU and its length on the
/// wire. `Ok(None)`: not whole yet.
///
/// # Errors
/// [`FpduError`], the CRC's first: what a marker says means nothing under a wrong one.
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
        // req: MPA-088, MPA-091
        crate::mpa::fpdu::verify_crc(fpdu)?;
    }
    scratch.clear();
    let (mut at, mut rest) = (bytes_to_marker(phase), fpdu);
    let (piece, after) = rest.split_at(at.min(rest.len()));
    scratch.extend_from_slice(piece);
    rest = after;
    while let Some((&[_, _, high, low], after)) = rest.split_first_chunk::<MARKER_LEN>() {
        // req: MPA-064, MPA-074, MPA-150
        let ptr = u16::from_be_bytes([high, low]) & !3;
        let is_right = ptr == fpduptr(phase, at)
            // Counted from the marker that the FPDU opens with.
            || (phase == 0 && usize::from(ptr) == at);
        if !is_right {
            return Err(FpduError::Marker);
        }
        let (piece, after) = after.split_at(after.len().min(INTERVAL_CONTENT_LEN));
        // req: MPA-084
        scratch.extend_from_slice(piece);
        (rest, at) = (after, at + MARKER_INTERVAL);
    }
    Ok(Some((&scratch[LENGTH_LEN..LENGTH_LEN + ulpdu_len], total)))
}

/// Where an FPDU begins within `run`, bytes of the stream from `phase` on: found by the first
/// marker that points to one. The bytes before it belong to FPDUs that nothing here locates.
// req: MPA-065, MPA-069, MPA-072, MPA-124, MPA-126, MPA-128
#[must_use]
pub fn find_fpdu_start(run: &[u8], phase: usize) -> Option<usize> {
    let places = (bytes_to_marker(phase)..).step_by(MARKER_INTERVAL);
    places.map_while(|at| Some((at, run.get(at..)?.first_chunk::<MARKER_LEN>()?))).find_map(
        |(at, &[_, _, high, low])| {
            let start = at.checked_sub(usize::from(u16::from_be_bytes([high, low]) & !3))?;
            // Right behind a marker: the FPDU opens with that one.
            if start != at && advance_phase(phase, start) == MARKER_LEN {
                start.checked_sub(MARKER_LEN)
            } else {
                Some(start)
            }
        },
    )
}

#[cfg(test)]
mod tests;
