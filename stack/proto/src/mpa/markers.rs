//! Markers: four octets at every 512th octet of a direction's stream that say where the FPDU around
//! them begins (RFC 5044 section 4.3).
//!
//! FPDUs are multiples of four octets and so is the period, so a marker never splits the length
//! field, the padding or the CRC. One that falls between two FPDUs belongs to the second, one in
//! front of a CRC to the FPDU of that CRC. Positions are counted by *phase*: octets since the last
//! place of a marker, 0 at the place itself.
//!
//! The base of the pointer is the first octet of `ULPDU_Length`, as RFC 5044 says; draft-02 can be
//! read as counting from the marker that an FPDU opens with. `POINTS_AT_LENGTH` is that choice;
//! a receiver takes either.

use crate::mpa::fpdu::{CRC_LEN, Damage, FPDU_LEN_MAX, LENGTH_LEN, fpdu_len, within_range};
use crate::wire::seq::Seq;

/// Octets from one marker to the next, its own included.
// req: MPA-067, MPA-075, MPA-077
pub const PERIOD: usize = 512;
/// Octets of a marker.
pub const MARKER_LEN: usize = 4;
/// Octets of FPDUs between two markers.
const BETWEEN: usize = PERIOD - MARKER_LEN;
/// Most octets that markers add to an FPDU of [`FPDU_LEN_MAX`] octets.
pub const OVERHEAD_MAX: usize = MARKER_LEN * FPDU_LEN_MAX.div_ceil(BETWEEN);
/// Pointers of an FPDU that opens with a marker count from its length field, behind that marker.
// req: MPA-066
const POINTS_AT_LENGTH: bool = true;

/// Where a direction's markers lie: at this sequence number and every [`PERIOD`] octets from it,
/// modulo 2^32, which is a multiple of the period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Markers {
    start: Seq,
}

impl Markers {
    /// The first marker lies at `start`, the first octet of full operation.
    #[must_use]
    pub const fn from(start: Seq) -> Self {
        Self { start }
    }

    /// Where the first marker lies.
    #[must_use]
    pub const fn start(self) -> Seq {
        self.start
    }

    /// The phase of an octet, 0..512.
    // req: MPA-070, MPA-078
    #[must_use]
    pub fn phase(self, seq: Seq) -> usize {
        (seq - self.start) as usize % PERIOD
    }
}

/// The phase `len` octets on.
#[must_use]
pub const fn advance(phase: usize, len: usize) -> usize {
    (phase + len) % PERIOD
}

/// Octets from `phase` to the next marker, 0 if it is there.
const fn before_marker(phase: usize) -> usize {
    (PERIOD - phase) % PERIOD
}

/// Octets of the marker that an FPDU at `phase` opens with.
const fn lead_len(phase: usize) -> usize {
    if phase == 0 { MARKER_LEN } else { 0 }
}

/// Markers within an FPDU that begins at `phase` and has `content` octets besides.
// req: MPA-082
const fn count(phase: usize, content: usize) -> usize {
    content.saturating_sub(before_marker(phase)).div_ceil(BETWEEN)
}

/// Octets of the stream that an FPDU takes that begins at `phase` and has `content` octets without
/// markers.
// req: MPA-061, MPA-175
#[must_use]
pub const fn wire_len(phase: usize, content: usize) -> usize {
    content + MARKER_LEN * count(phase, content)
}

/// Most octets of an FPDU without its markers that fit `room` octets of the stream from `phase` on.
#[must_use]
pub const fn content_max(phase: usize, room: usize) -> usize {
    let before = before_marker(phase);
    let content = if room <= before {
        room
    } else {
        let beyond = room - before;
        before + beyond / PERIOD * BETWEEN + (beyond % PERIOD).saturating_sub(MARKER_LEN)
    };
    content - content % 4
}

/// Largest ULPDU whose FPDU fits one segment of `emss` octets wherever its markers fall, within
/// [`MULPDU_RANGE`](crate::mpa::fpdu::MULPDU_RANGE) (MPA-113).
// req: MPA-113, MPA-114, MPA-119
#[must_use]
pub const fn mulpdu(emss: usize) -> usize {
    let overhead = LENGTH_LEN + CRC_LEN + MARKER_LEN * emss.div_ceil(PERIOD) + emss % 4;
    within_range(emss.saturating_sub(overhead))
}

/// What the marker says that lies `at` octets behind the first octet of an FPDU begun at `phase`.
#[expect(clippy::cast_possible_truncation, reason = "no FPDU that is sent is that long")]
const fn pointer(phase: usize, at: usize) -> u16 {
    let base = if POINTS_AT_LENGTH { lead_len(phase) } else { 0 };
    // req: MPA-068, MPA-073, MPA-076, MPA-079, MPA-080
    at.saturating_sub(base) as u16
}

/// Puts the markers of the FPDU at the head of `out` in their places: it begins at `phase` and has
/// `content` octets so far. Returns its length with them.
///
/// # Panics
/// If `out` is shorter than [`wire_len`].
pub fn spread(out: &mut [u8], phase: usize, content: usize) -> usize {
    let first = before_marker(phase);
    for index in (0..count(phase, content)).rev() {
        let from = first + index * BETWEEN;
        let at = first + index * PERIOD;
        out.copy_within(from..content.min(from + BETWEEN), at + MARKER_LEN);
        // req: MPA-062, MPA-063, MPA-071, MPA-081
        let [high, low] = pointer(phase, at).to_be_bytes();
        out[at..at + MARKER_LEN].copy_from_slice(&[0, 0, high, low]);
    }
    wire_len(phase, content)
}

/// Octets of the stream that the FPDU at the head of `octets`, begun at `phase`, takes as far as
/// they tell: up to its length field, or whole.
#[must_use]
pub fn wanted(octets: &[u8], phase: usize) -> usize {
    let lead = lead_len(phase);
    match ulpdu_len(octets, lead) {
        None => lead + LENGTH_LEN,
        Some(len) => wire_len(phase, fpdu_len(len)),
    }
}

fn ulpdu_len(octets: &[u8], at: usize) -> Option<usize> {
    let length = octets.get(at..)?.first_chunk::<LENGTH_LEN>()?;
    Some(usize::from(u16::from_be_bytes(*length)))
}

/// Takes the FPDU at the head of `octets` apart, which begins at `phase`, if it is whole: verifies
/// it, and leaves its octets without markers in `scratch`. Returns its ULPDU and its length on the
/// wire. `Ok(None)`: not whole yet.
///
/// # Errors
/// [`Damage`], the CRC's first: what a marker says means nothing under a wrong one.
pub fn split<'a>(
    octets: &[u8],
    phase: usize,
    crc: bool,
    scratch: &'a mut Vec<u8>,
) -> Result<Option<(&'a [u8], usize)>, Damage> {
    let Some(ulpdu_len) = ulpdu_len(octets, lead_len(phase)) else { return Ok(None) };
    let total = wire_len(phase, fpdu_len(ulpdu_len));
    let Some(fpdu) = octets.get(..total) else { return Ok(None) };
    if crc {
        // req: MPA-088, MPA-091
        crate::mpa::fpdu::check(fpdu)?;
    }
    scratch.clear();
    let (mut at, mut rest) = (before_marker(phase), fpdu);
    let (piece, after) = rest.split_at(at.min(rest.len()));
    scratch.extend_from_slice(piece);
    rest = after;
    while let Some((&[_, _, high, low], after)) = rest.split_first_chunk::<MARKER_LEN>() {
        // req: MPA-064, MPA-074, MPA-150
        let told = u16::from_be_bytes([high, low]) & !3;
        let is_right = told == pointer(phase, at)
            // Counted from the marker that the FPDU opens with.
            || (phase == 0 && usize::from(told) == at);
        if !is_right {
            return Err(Damage::Marker);
        }
        let (piece, after) = after.split_at(after.len().min(BETWEEN));
        // req: MPA-084
        scratch.extend_from_slice(piece);
        (rest, at) = (after, at + PERIOD);
    }
    Ok(Some((&scratch[LENGTH_LEN..LENGTH_LEN + ulpdu_len], total)))
}

/// Where an FPDU begins within `run`, octets of the stream from `phase` on: found by the first
/// marker that points to one. The octets before it belong to FPDUs that nothing here locates.
// req: MPA-065, MPA-069, MPA-072, MPA-124, MPA-126, MPA-128
#[must_use]
pub fn find_start(run: &[u8], phase: usize) -> Option<usize> {
    let places = (before_marker(phase)..).step_by(PERIOD);
    places.map_while(|at| Some((at, run.get(at..)?.first_chunk::<MARKER_LEN>()?))).find_map(
        |(at, &[_, _, high, low])| {
            let start = at.checked_sub(usize::from(u16::from_be_bytes([high, low]) & !3))?;
            // Right behind a marker: the FPDU opens with that one.
            if start != at && advance(phase, start) == MARKER_LEN {
                start.checked_sub(MARKER_LEN)
            } else {
                Some(start)
            }
        },
    )
}

#[cfg(test)]
mod tests;
