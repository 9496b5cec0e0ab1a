//! Tests of markers against a byte-by-byte reference with its own count of stream positions.

use proptest::prelude::*;

use super::*;
use crate::mpa::deframer::{Deframer, OooPlacement, PartialMemory};
use crate::mpa::fpdu::FpduError;
use crate::mpa::fpdu_pool::FpduPool;
use crate::mpa::stream_bytes::StreamBytes;
use crate::time::Instant;

/// Reference sender: the stream bytes sent so far, the first one at phase 0.
#[derive(Default)]
struct ReferenceStream {
    stream: Vec<u8>,
}

impl ReferenceStream {
    /// Returns a sender that has sent `len` bytes.
    fn at(len: usize) -> Self {
        Self { stream: vec![0xee; len] }
    }

    /// Appends a marker if the stream is at a marker position.
    fn mark(&mut self, length_at: &mut Option<usize>) {
        if self.stream.len().is_multiple_of(512) {
            let back = length_at.map_or(0, |at| self.stream.len() - at);
            self.stream.extend([0, 0, (back >> 8) as u8, back as u8]);
        }
    }

    /// Appends one FPDU, byte by byte. Returns its offset.
    fn push(&mut self, ulpdu: &[u8], crc: bool) -> usize {
        let start = self.stream.len();
        let mut length_at = None;
        self.mark(&mut length_at);
        length_at = Some(self.stream.len());
        let mut content = vec![(ulpdu.len() >> 8) as u8, ulpdu.len() as u8];
        content.extend(ulpdu);
        while content.len() % 4 != 0 {
            content.push(0);
        }
        for (index, byte) in content.iter().enumerate() {
            if index > 0 {
                self.mark(&mut length_at);
            }
            self.stream.push(*byte);
        }
        self.mark(&mut length_at);
        let sum = if crc { ::crc32c::crc32c(&self.stream[start..]) } else { 0 };
        for shift in [0, 8, 16, 24] {
            self.stream.push((sum >> shift) as u8);
        }
        start
    }
}

fn ulpdu(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + salt * 31 + (at >> 8)) as u8).collect()
}

/// Builds the FPDU of `ulpdu` at `phase`, as it is sent.
fn build_fpdu(ulpdu: &[u8], phase: usize, crc: bool) -> Vec<u8> {
    let content = fpdu_len(ulpdu.len());
    let mut out = vec![0xff; wire_len(phase, content)];
    out[LENGTH_LEN..LENGTH_LEN + ulpdu.len()].copy_from_slice(ulpdu);
    let len = finalize(&mut out, ulpdu.len(), phase, crc);
    assert_eq!(len, out.len());
    out
}

/// At every phase FPDUs of many lengths are built byte by byte as by the reference, and are parsed.
// req-test: MPA-002, MPA-055, MPA-061, MPA-068, MPA-071
#[test]
fn every_length_at_every_phase_matches_reference() {
    let lens = (0..80).chain((80..600).step_by(13)).chain((600..2100).step_by(97));
    for len in lens {
        let ulpdu = ulpdu(len, len);
        for phase in (0..512).step_by(4) {
            // A CRC in one case of 16: it is a function of the bytes, only the layout depends on
            // the phase.
            let crc = (len + phase / 4) % 16 == 0;
            let mut reference = ReferenceStream::at(phase);
            let start = reference.push(&ulpdu, crc);
            let sent = build_fpdu(&ulpdu, phase, crc);
            assert!(sent == reference.stream[start..], "{len} bytes at phase {phase}");
            let mut scratch = Vec::new();
            let found = parse(&sent, phase, crc, &mut scratch);
            assert_eq!(found, Ok(Some((&ulpdu[..], sent.len()))), "{len} bytes at phase {phase}");
        }
    }
}

/// No marker is within a length field, padding or CRC. All FPDUPTRs of an FPDU point to its length
/// field. A marker between two FPDUs has FPDUPTR 0.
// req-test: MPA-073, MPA-079, MPA-080, MPA-081, MPA-082
#[test]
fn markers_never_split_length_pad_or_crc() {
    let mut reference = ReferenceStream::default();
    for len in (8..1530).chain([500, 500, 40, 40, 40]) {
        let phase = reference.stream.len() % 512;
        let start = reference.push(&ulpdu(len, 1), false);
        let sent = build_fpdu(&ulpdu(len, 1), phase, false);
        assert_eq!(sent, reference.stream[start..]);
        let length_at = start + if phase == 0 { 4 } else { 0 };
        let end = start + sent.len();
        for at in (start..end).filter(|at| at % 512 == 0) {
            let pointer =
                usize::from(reference.stream[at + 2]) << 8 | usize::from(reference.stream[at + 3]);
            assert_eq!(reference.stream[at..at + 2], [0, 0]);
            assert_eq!(pointer % 4, 0);
            assert_eq!(at.saturating_sub(pointer).max(length_at), length_at);
            assert!(at == start || at >= length_at + 4, "between length and ULPDU");
            assert!(at <= end - 8, "within the CRC");
        }
    }
}

// req-test: MPA-087, MPA-089, MPA-095, MPA-096
#[test]
fn rfc5044_examples_with_markers() {
    let dump = |control: [u8; 2], msn: u8| {
        let mut ulpdu = vec![0; 42];
        ulpdu[..2].copy_from_slice(&control);
        ulpdu[13] = msn;
        ulpdu
    };
    let cases = [
        ([0x40, 0x03], 1, 0, [0x4c, 0x86, 0xb3, 0x84]),
        ([0x40, 0x03], 2, 0x1ec, [0xa1, 0x9c, 0xd1, 0x03]),
        ([0x41, 0x43], 1, 0, [0x52, 0x23, 0x99, 0x83]),
        ([0x41, 0x43], 2, 0x1ec, [0x84, 0x92, 0x58, 0x98]),
    ];
    for (control, msn, phase, crc) in cases {
        let ulpdu = dump(control, msn);
        let sent = build_fpdu(&ulpdu, phase, true);
        assert_eq!((sent.len(), &sent[48..]), (52, &crc[..]), "{control:?} {msn}");
        if phase == 0 {
            assert_eq!(sent[..8], [0, 0, 0, 0, 0, 0x2a, control[0], control[1]]);
        } else {
            // The marker at 0x200, after 20 bytes of the FPDU.
            assert_eq!(sent[20..24], [0, 0, 0, 0x14]);
            assert_eq!(sent[..2], [0, 0x2a]);
        }
        let found = parse(&sent, phase, true, &mut Vec::new()).map(|found| found.map(|(_, l)| l));
        assert_eq!(found, Ok(Some(52)));
    }
}

// req-test: MPA-065, MPA-070, MPA-077, MPA-078
#[test]
fn marker_positions_wrap_with_sequence_space() {
    let markers = Markers::starting_at(Seq(11));
    let places: Vec<u32> = (0..1100).filter(|&at| markers.phase(Seq(at)) == 0).collect();
    assert_eq!(places, [11, 523, 1035]);
    let markers = Markers::starting_at(Seq(0xffff_ff00));
    assert_eq!(markers.phase(Seq(0xffff_ff00)), 0);
    assert_eq!(markers.phase(Seq(0x100)), 0);
    assert_eq!(markers.phase(Seq(0xff)), 511);
    // An FPDUPTR that points back across the wrap.
    let run = build_fpdu(&ulpdu(600, 0), markers.phase(Seq(0xffff_fff0)), true);
    assert_eq!(find_fpdu_start(&run, markers.phase(Seq(0xffff_fff0))), Some(0));
}

// req-test: MPA-113, MPA-114, MPA-119, MPA-175
#[test]
fn mulpdu_accounts_for_markers() {
    let cases = [
        (1460, 1442),
        (1448, 1430),
        (536, 522),
        (512, 502),
        (8948, 8870),
        (8960, 8882),
        (64, 128),
        (137, 128),
        (139, 128),
        (65535, 64768),
    ];
    for (emss, expected) in cases {
        assert_eq!(mulpdu(emss), expected, "EMSS {emss}");
    }
    for emss in 140..9000 {
        for phase in (0..512).step_by(4) {
            assert!(wire_len(phase, fpdu_len(mulpdu(emss))) <= emss, "EMSS {emss}, phase {phase}");
        }
    }
    let longest = (0..512).step_by(4).map(|phase| wire_len(phase, fpdu_len(128))).max();
    assert_eq!(longest, Some(140));
}

// req-test: MPA-116
#[test]
fn content_max_fills_remaining_segment() {
    for phase in (0..512).step_by(4) {
        for capacity in 0..1600 {
            let content = content_max(phase, capacity);
            assert!(content == 0 || wire_len(phase, content) <= capacity, "{phase} {capacity}");
            assert!(wire_len(phase, content + 4) > capacity, "{phase} {capacity}");
        }
    }
}

#[test]
fn wrong_fpduptr_is_rejected() {
    let whole = |fpdu: &mut Vec<u8>| {
        let at = fpdu.len() - 4;
        let sum = ::crc32c::crc32c(&fpdu[..at]).to_le_bytes();
        fpdu[at..].copy_from_slice(&sum);
    };
    let result_of =
        |fpdu: &[u8], phase| parse(fpdu, phase, true, &mut Vec::new()).map(|found| found.is_some());
    for phase in [0, 4, 256, 508] {
        let good = build_fpdu(&ulpdu(1200, 3), phase, true);
        let places: Vec<usize> =
            (0..good.len()).filter(|at| advance_phase(phase, *at) == 0).collect();
        assert!(places.len() >= 2);
        for &at in &places {
            // The reserved bits and the two low bits of the FPDUPTR are ignored.
            let mut fpdu = good.clone();
            fpdu[at] = 0xff;
            fpdu[at + 1] = 0xff;
            fpdu[at + 3] |= 3;
            assert_eq!(result_of(&fpdu, phase), Err(FpduError::Crc));
            whole(&mut fpdu);
            assert_eq!(result_of(&fpdu, phase), Ok(true), "{phase} {at}");
            fpdu[at + 3] ^= 4;
            whole(&mut fpdu);
            let ptr = u16::from_be_bytes([fpdu[at + 2], fpdu[at + 3]]) & !3;
            // Valid if it happens to count from the leading marker.
            let expected = if phase == 0 && usize::from(ptr) == at {
                Ok(true)
            } else {
                Err(FpduError::Marker)
            };
            assert_eq!(result_of(&fpdu, phase), expected, "{phase} {at}");
        }
    }
}

// req-test: MPA-064, MPA-074
#[test]
fn reserved_marker_bits_are_ignored() {
    let mut fpdu = build_fpdu(&ulpdu(42, 0), 0x1ec, true);
    assert_eq!(fpdu[20..24], [0, 0, 0, 0x14]);
    fpdu[20..24].copy_from_slice(&[0xff, 0xff, 0, 0x17]);
    let sum = ::crc32c::crc32c(&fpdu[..48]).to_le_bytes();
    fpdu[48..].copy_from_slice(&sum);
    assert!(parse(&fpdu, 0x1ec, true, &mut Vec::new()).unwrap().is_some());
    assert_eq!(find_fpdu_start(&fpdu, 0x1ec), Some(0));
}

// req-test: MPA-066
#[test]
fn fpduptr_may_count_from_leading_marker() {
    // By a possible reading of draft-02 the FPDUPTR of the second marker is 512.
    let mut fpdu = build_fpdu(&ulpdu(1000, 0), 0, true);
    assert_eq!(fpdu[512..516], [0, 0, 1, 0xfc]);
    fpdu[514..516].copy_from_slice(&[2, 0]);
    let at = fpdu.len() - 4;
    let sum = ::crc32c::crc32c(&fpdu[..at]).to_le_bytes();
    fpdu[at..].copy_from_slice(&sum);
    assert!(parse(&fpdu, 0, true, &mut Vec::new()).unwrap().is_some());
    assert_eq!(find_fpdu_start(&fpdu, 0), Some(0));
}

/// Returns ULPDUs of the lengths `lens`, the offsets of their FPDUs, and the stream of these.
fn stream_of(lens: &[usize]) -> (Vec<Vec<u8>>, Vec<usize>, Vec<u8>) {
    let mut reference = ReferenceStream::default();
    let ulpdus: Vec<_> = lens.iter().enumerate().map(|(index, &len)| ulpdu(len, index)).collect();
    let starts = ulpdus.iter().map(|ulpdu| reference.push(ulpdu, true)).collect();
    (ulpdus, starts, reference.stream)
}

fn receive(stream: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
    let mut pool = FpduPool::new(1);
    let mut deframer = Deframer::new(Some(Markers::starting_at(Seq(0))));
    let (mut found, mut start) = (Vec::new(), 0);
    for &cut in cuts.iter().chain([&stream.len()]) {
        let mut bytes = StreamBytes::from(&stream[start..cut.max(start)]);
        start = cut.max(start);
        let mut next = || {
            let memory = PartialMemory::Forced;
            let ulpdu =
                deframer.next(Instant::ZERO, &mut bytes, true, &mut pool, memory, || 0).unwrap();
            ulpdu.map(|ulpdu| ulpdu.bytes.to_vec())
        };
        found.extend(std::iter::from_fn(&mut next));
    }
    assert!(!deframer.has_partial());
    found
}

proptest! {
    // req-test: MPA-001, MPA-083, MPA-084, MPA-127, MPA-131
    #[test]
    fn any_segmentation_yields_same_ulpdus(
        lens in proptest::collection::vec(0usize..3000, 1..12),
        mut cuts in proptest::collection::vec(0usize..20_000, 0..40),
    ) {
        let (ulpdus, _, stream) = stream_of(&lens);
        cuts.iter_mut().for_each(|cut| *cut %= stream.len());
        cuts.sort_unstable();
        prop_assert_eq!(&receive(&stream, &cuts), &ulpdus);
        let every: Vec<usize> = (1..stream.len().min(1200)).collect();
        prop_assert_eq!(&receive(&stream, &every), &ulpdus);
    }

    /// In any slice of the stream an FPDU is located at its start, and parsed correctly.
    // req-test: MPA-069, MPA-072, MPA-124, MPA-126, MPA-128
    #[test]
    fn fpdus_are_located_in_any_stream_slice(
        lens in proptest::collection::vec(1usize..1600, 4..16),
        start in 0usize..8000, len in 1usize..3000, base in any::<u32>(),
    ) {
        let (ulpdus, starts, stream) = stream_of(&lens);
        let start = start % stream.len();
        let end = (start + len).min(stream.len());
        let run = &stream[start..end];
        let markers = Markers::starting_at(Seq(base));
        let seq = Seq(base) + start as u32;
        // By the reference: of the FPDUs with a marker in the run, the first that begins in it.
        let places = (0..stream.len()).step_by(512).filter(|at| *at >= start && at + 4 <= end);
        let expected = places
            .filter_map(|at| starts.iter().rposition(|begin| *begin <= at))
            .find(|&index| starts[index] >= start);
        prop_assert_eq!(
            find_fpdu_start(run, markers.phase(seq)),
            expected.map(|index| starts[index] - start)
        );

        let mut pool = FpduPool::new(1);
        let mut receiver = Deframer::new(Some(markers));
        let mut found = Vec::new();
        let placement = receiver.place_ooo(seq, run, true, &mut pool, |ulpdu| {
            found.push(ulpdu.to_vec());
            true
        });
        let whole = |index: usize| {
            starts.get(index + 1).copied().unwrap_or(stream.len()) <= end
        };
        let first = expected.unwrap_or(usize::MAX);
        let all: Vec<_> =
            (first..ulpdus.len()).take_while(|&index| whole(index)).collect();
        prop_assert_eq!(found.len(), all.len());
        for (index, ulpdu) in all.iter().zip(&found) {
            prop_assert_eq!(&ulpdus[*index], ulpdu);
        }
        let covered = expected.is_some_and(|first| starts[first] == start)
            && all.last().is_some_and(|&last| {
                starts.get(last + 1).copied().unwrap_or(stream.len()) == end
            });
        let expected_placement = if covered {
            OooPlacement::Placed(all.len() as u32)
        } else {
            OooPlacement::Deferred
        };
        prop_assert_eq!(placement, expected_placement);
    }
}

/// In consecutive out-of-order segments FPDUs without a marker are located by the lengths of the
/// preceding ones.
// req-test: MPA-051, MPA-129, MPA-134
#[test]
fn segments_without_marker_are_located_by_preceding_lengths() {
    let lens: Vec<usize> = (0..200).map(|index| 20 + index % 60).collect();
    let (ulpdus, starts, stream) = stream_of(&lens);
    // Two FPDUs to a segment; the first ten FPDUs are lost.
    let segments: Vec<_> = (10..200).step_by(2).collect();
    let mut pool = FpduPool::new(1);
    let mut receiver = Deframer::new(Some(Markers::starting_at(Seq(7))));
    let mut found = Vec::new();
    let mut placements = Vec::new();
    let segment = |index: usize| {
        let end = starts.get(index + 2).copied().unwrap_or(stream.len());
        (Seq(7) + starts[index] as u32, &stream[starts[index]..end])
    };
    for &index in &segments {
        let (seq, run) = segment(index);
        placements.push(receiver.place_ooo(seq, run, true, &mut pool, |ulpdu| {
            found.push(ulpdu.to_vec());
            true
        }));
    }
    let waiting = placements.iter().take_while(|seen| **seen == OooPlacement::Deferred).count();
    assert!(waiting <= 4, "a marker comes within 512 bytes: {placements:?}");
    assert!(
        placements[waiting..].iter().all(|seen| *seen == OooPlacement::Placed(2)),
        "{placements:?}"
    );
    let count = ulpdus.len() - 10 - 2 * waiting;
    assert!(found.len() >= count, "{} of {count}", found.len());
    assert!(found.ends_with(&ulpdus[ulpdus.len() - count..]));
    // A run is deferred if its first FPDU is not placed, even if later ones are.
    let mut receiver = Deframer::new(Some(Markers::starting_at(Seq(7))));
    for &index in &segments {
        let (seq, run) = segment(index);
        let mut is_first = true;
        let take = |_: &[u8]| !std::mem::take(&mut is_first);
        assert_eq!(receiver.place_ooo(seq, run, true, &mut pool, take), OooPlacement::Deferred);
    }
}

/// An FPDU at the start of a segment is not located by that alone: neither before any other was
/// located, nor behind a gap after those that were.
// req-test: MPA-126
#[test]
fn alignment_alone_locates_no_fpdu() {
    let (_, starts, stream) = stream_of(&[600, 100, 60, 60, 60]);
    let [second, third, fourth, fifth] = starts[1..] else { panic!() };
    assert_eq!(second / 512, stream.len() / 512, "no marker behind the first FPDU");
    let mut pool = FpduPool::new(1);
    let mut ahead = |receiver: &mut Deframer, from: usize, to: usize| {
        let (seq, mut placed) = (Seq(u32::try_from(from).unwrap()), 0);
        receiver.place_ooo(seq, &stream[from..to], true, &mut pool, |_| {
            placed += 1;
            true
        });
        placed
    };
    let mut receiver = Deframer::new(Some(Markers::starting_at(Seq(0))));
    assert_eq!(ahead(&mut receiver, third, fourth), 0);
    // The first contains a marker, and the second follows it.
    assert_eq!(ahead(&mut receiver, 0, third), 2);
    assert_eq!(ahead(&mut receiver, fourth, fifth), 0);
    assert_eq!(ahead(&mut receiver, second, third), 0);
    assert_eq!(ahead(&mut receiver, third, fourth), 1);
}

/// The end of out-of-order FPDUs is discarded once it is in order: 2^32 bytes later the same
/// sequence number is another position.
#[test]
fn ooo_fpdu_start_is_forgotten_once_in_order() {
    let (_, starts, stream) = stream_of(&[700, 100, 60]);
    let third = starts[2];
    assert!(third % 512 + 100 < 512, "no marker locates the third");
    let mut receiver = Deframer::new(Some(Markers::starting_at(Seq(0))));
    let mut pool = FpduPool::new(1);
    let mut ahead = |receiver: &mut Deframer, from: usize, to: usize| {
        let seq = Seq(u32::try_from(from).unwrap());
        receiver.place_ooo(seq, &stream[from..to], true, &mut pool, |_| true)
    };
    assert!(matches!(ahead(&mut receiver, 0, third), OooPlacement::Placed(2)));
    assert!(matches!(ahead(&mut receiver, third, stream.len()), OooPlacement::Placed(1)));
    // Once more, and then 2^32 bytes are skipped.
    assert!(matches!(ahead(&mut receiver, 0, third), OooPlacement::Placed(2)));
    for _ in 0..4 {
        assert_eq!(receiver.skip_placed(1 << 30), Ok(()));
    }
    assert_eq!(ahead(&mut receiver, third, stream.len()), OooPlacement::Deferred);
}

/// A marker right before the CRC is covered by it, with and without a leading marker.
// req-test: MPA-088, MPA-089, MPA-091
#[test]
fn crc_covers_marker_in_front_of_it() {
    for (phase, len) in [(512 - 48, 46), (0, 506), (4, 506)] {
        let sent = build_fpdu(&ulpdu(len, 5), phase, true);
        let at = sent.len() - 8;
        assert_eq!(advance_phase(phase, at), 0, "the offset of a marker");
        let without = ::crc32c::crc32c(&sent[..at]).to_le_bytes();
        let with = ::crc32c::crc32c(&sent[..at + 4]).to_le_bytes();
        assert_eq!(sent[at + 4..], with);
        let mut other = sent.clone();
        other[at + 4..].copy_from_slice(&without);
        assert_eq!(parse(&other, phase, true, &mut Vec::new()), Err(FpduError::Crc));
        let mut other = sent;
        other[at + 3] ^= 4;
        assert_eq!(parse(&other, phase, true, &mut Vec::new()), Err(FpduError::Crc));
    }
}

#[test]
fn corrupt_ooo_fpdu_is_reported() {
    let (_, starts, mut stream) = stream_of(&[100, 1300, 1300]);
    stream[starts[1] + 700] ^= 1;
    let mut receiver = Deframer::new(Some(Markers::starting_at(Seq(0))));
    let run = &stream[starts[1]..starts[2]];
    let placement =
        receiver.place_ooo(Seq(starts[1] as u32), run, true, &mut FpduPool::new(1), |_| true);
    assert_eq!(placement, OooPlacement::Corrupt);
}

#[test]
fn placed_bytes_inside_partial_fpdu_are_an_error() {
    let (_, starts, stream) = stream_of(&[100, 1300, 200]);
    let mut pool = FpduPool::new(1);
    let mut deframer = Deframer::new(Some(Markers::starting_at(Seq(0))));
    let mut has_ulpdu = |deframer: &mut Deframer, bytes: &[u8]| {
        let (mut bytes, memory) = (StreamBytes::from(bytes), PartialMemory::Bounded);
        deframer.next(Instant::ZERO, &mut bytes, true, &mut pool, memory, || 0).unwrap().is_some()
    };
    assert!(has_ulpdu(&mut deframer, &stream[..starts[1]]));
    assert_eq!(deframer.skip_placed((starts[2] - starts[1]) as u32), Ok(()));
    assert!(has_ulpdu(&mut deframer, &stream[starts[2]..]));
    assert!(!has_ulpdu(&mut deframer, &[0]));
    assert_eq!(deframer.skip_placed(4), Err(FpduError::Marker));
    deframer.reset(&mut pool, 0);
}
