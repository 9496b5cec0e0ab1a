//! Rules of MPA on markers and on starting without frames, seen from the wire.

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::cm::{ConnParam, EndReason, Event, Start};
use ferrowarp_proto::verbs::wc::WcOpcode;
use ferrowarp_tests::compliance::bed::{Bed, PORT};
use ferrowarp_tests::peer::{Header, marked_fpdu};

/// STag of the peer's memory.
const THEIRS: u32 = 0x00c0_ffee;

/// A connection with markers both ways, and how many octets the peer has put into FPDUs.
struct Marked {
    bed: Bed,
    sent: u64,
}

impl Marked {
    fn new(mss: u16) -> Self {
        Self { bed: Bed::marked(mss), sent: 24 }
    }

    /// The peer's next FPDU, not sent yet.
    fn fpdu(&mut self, ulpdu: &[u8]) -> Vec<u8> {
        let octets = marked_fpdu(ulpdu, true, self.sent);
        self.sent += octets.len() as u64;
        octets
    }

    /// The error that the stack has told by a Terminate, its last FPDU.
    fn told(&mut self) -> (u8, u8, u8) {
        let ulpdus = unmarked(&self.bed.hear());
        let (header, payload) = Header::decode(ulpdus.last().expect("a Terminate")).unwrap();
        assert!(matches!(header, Header::Untagged { opcode: 7, qn: 2, .. }), "{header:?}");
        (payload[0] >> 4, payload[0] & 15, payload[1])
    }
}

/// The ULPDUs of a stream with markers: put together again, each octet is what it was.
fn unmarked(stream: &[u8]) -> Vec<Vec<u8>> {
    let content: Vec<u8> = stream
        .chunks(512)
        .flat_map(|period| {
            assert_eq!(period[..2], [0, 0], "the reserved half of a marker");
            &period[4..]
        })
        .copied()
        .collect();
    let (mut ulpdus, mut rest, mut again) = (Vec::new(), &content[..], Vec::new());
    while let Some((length, _)) = rest.split_first_chunk() {
        let len = usize::from(u16::from_be_bytes(*length));
        let ulpdu = rest[2..2 + len].to_vec();
        rest = &rest[(2 + len).next_multiple_of(4) + 4..];
        again.extend(marked_fpdu(&ulpdu, true, again.len() as u64));
        ulpdus.push(ulpdu);
    }
    assert!(again == stream, "markers, padding or CRCs are wrong");
    ulpdus
}

fn pattern(len: u32) -> Vec<u8> {
    (0..len).map(|at| (at % 251).to_le_bytes()[0]).collect()
}

/// Sets the pointer of the marker that lies `at` octets behind the start of an FPDU, and its CRC.
fn point(fpdu: &mut [u8], at: usize, pointer: u16) {
    fpdu[at + 2..at + 4].copy_from_slice(&pointer.to_be_bytes());
    let end = fpdu.len() - 4;
    let sum = crc32c::crc32c(&fpdu[..end]).to_le_bytes();
    fpdu[end..].copy_from_slice(&sum);
}

// req-test: MPA-062, MPA-063, MPA-067, MPA-075, MPA-076
#[test]
fn every_512th_octet_begins_a_marker_and_no_other() {
    let Marked { mut bed, .. } = Marked::new(1460);
    bed.arena.write(0, &pattern(30_000));
    bed.write(1, 0, 30_000, THEIRS, 0);
    for wr_id in 2..12 {
        bed.send(wr_id, 0, wr_id * 7);
    }
    let heard = bed.hear();
    assert!(heard.len() > 30_000 && heard[..4] == [0; 4]);
    let written: Vec<u8> = unmarked(&heard)
        .iter()
        .filter(|ulpdu| ulpdu[0] & 0x80 != 0)
        .flat_map(|ulpdu| ulpdu[14..].to_vec())
        .collect();
    assert_eq!(written, pattern(30_000));
}

// req-test: MPA-085, MPA-104
#[test]
fn small_segments_and_windows_change_no_marker() {
    for mss in [64, 139, 140, 536, 1448] {
        let Marked { mut bed, .. } = Marked::new(mss);
        bed.arena.write(0, &pattern(5000));
        bed.write(1, 0, 5000, THEIRS, 0);
        let written: usize = unmarked(&bed.hear()).iter().map(|ulpdu| ulpdu.len() - 14).sum();
        assert_eq!(written, 5000);
        assert!(bed.segments.iter().all(|segment| segment.len() <= usize::from(mss)), "{mss}");
    }
}

// req-test: MPA-115
#[test]
fn each_segment_is_a_row_of_whole_fpdus() {
    for mss in [536u16, 1448, 1460] {
        let Marked { mut bed, .. } = Marked::new(mss);
        bed.write(1, 0, 60_000, THEIRS, 0);
        let heard = bed.hear();
        let ends: Vec<usize> = unmarked(&heard)
            .iter()
            .scan(0, |at, ulpdu| {
                *at += marked_fpdu(ulpdu, true, *at as u64).len();
                Some(*at)
            })
            .collect();
        let cuts: Vec<usize> = bed
            .segments
            .iter()
            .scan(0, |at, segment| {
                *at += segment.len();
                Some(*at)
            })
            .collect();
        assert_eq!(cuts, ends, "one FPDU to a segment");
        // Few segments have room for as many markers as MULPDU reckons with.
        let full = bed.segments.iter().filter(|segment| segment.len() == usize::from(mss));
        assert!(2 * full.count() > bed.segments.len());
    }
}

// req-test: MPA-004, MPA-006, MPA-022, MPA-037, MPA-133
#[test]
fn what_a_marker_locates_is_placed_at_once_and_delivered_in_its_turn() {
    let mut end = Marked::new(1460);
    let stag = end.bed.register(4096, 8192, Access::ALL, false);
    end.bed.receive(9, 0, 100);
    let write = |to: u64, octets: &[u8]| Header::write(stag, to, true).encode(octets);
    let first = end.fpdu(&write(4096, &pattern(700)));
    let second = end.fpdu(&write(6000, &pattern(1200)));
    let third = end.fpdu(&write(8000, &pattern(1000)));
    let message = end.fpdu(&Header::send(1, 0, true).encode(b"all there?"));
    let bed = &mut end.bed;
    let lost = bed.lose(&first);
    bed.say(&second);
    assert_eq!(bed.arena.read(6000, 1200), pattern(1200), "placed ahead of its turn");
    bed.say(&third);
    assert_eq!(bed.arena.read(8000, 1000), pattern(1000));
    assert_eq!(bed.engine.ooo_usage(), (0, 0), "and not held");
    bed.say(&message);
    assert_eq!(bed.done(), [], "nothing is delivered ahead of its turn");
    assert_eq!(bed.engine.counters().fpdus_placed_ooo, 2);
    bed.resend(&lost);
    assert_eq!(bed.arena.read(4096, 700), pattern(700));
    let done: Vec<_> = bed.done().iter().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len)).collect();
    assert_eq!(done, [(9, WcOpcode::Recv, 10)]);
    assert_eq!(bed.engine.counters().fpdus_in, 5);
    assert_eq!(bed.ended(), None);
}

#[test]
fn without_markers_or_the_wish_nothing_is_placed_ahead_of_its_turn() {
    let mut bed = Bed::started(1460, 4, 4);
    let stag = bed.register(4096, 4096, Access::ALL, false);
    let fpdu = |to| {
        let ulpdu = Header::write(stag, to, true).encode(&pattern(1000));
        ferrowarp_tests::peer::fpdu(&ulpdu, true)
    };
    let lost = bed.lose(&fpdu(4096));
    bed.say(&fpdu(6000));
    assert_eq!(bed.arena.read(6000, 1000), [0; 1000]);
    bed.resend(&lost);
    assert_eq!(bed.arena.read(6000, 1000), pattern(1000));
}

// req-test: MPA-150
#[test]
fn a_marker_that_points_elsewhere_ends_the_stream() {
    let mut end = Marked::new(1460);
    let stag = end.bed.register(4096, 4096, Access::ALL, false);
    let start = usize::try_from(end.sent).unwrap();
    let mut wrong = end.fpdu(&Header::write(stag, 4096, true).encode(&pattern(1000)));
    let at = 512 - start;
    assert_eq!(wrong[at..at + 4], [0, 0, 1, 0xe8], "488 octets back");
    point(&mut wrong, at, 492);
    end.bed.say(&wrong);
    assert_eq!(end.told(), (2, 0, 3));
    assert!(matches!(end.bed.ended(), Some(EndReason::TerminateSent(_))));
    assert_eq!(end.bed.arena.read(4096, 1000), [0; 1000], "nothing of it was placed");
    assert_eq!(end.bed.engine.counters().marker_errors, 1);
}

// req-test: MPA-153, MPA-154
#[test]
fn lengths_that_lead_past_what_a_marker_located_end_the_stream() {
    let mut end = Marked::new(1460);
    let stag = end.bed.register(4096, 4096, Access::ALL, false);
    let first = end.fpdu(&Header::write(stag, 4096, true).encode(&pattern(100)));
    let second = end.fpdu(&Header::write(stag, 6000, true).encode(&pattern(1000)));
    // What fills the gap claims to be longer.
    let mut other = first.clone();
    other[..2].copy_from_slice(&600u16.to_be_bytes());
    let lost = end.bed.lose(&first);
    end.bed.say(&second);
    assert_eq!(end.bed.engine.counters().fpdus_placed_ooo, 1);
    end.bed.resend(&lost.back(0, &other));
    assert_eq!(end.told(), (2, 0, 3));
}

// req-test: MPA-156
#[test]
fn damage_ahead_of_its_turn_counts_as_lost() {
    let mut end = Marked::new(1460);
    let stag = end.bed.register(4096, 8192, Access::ALL, false);
    let first = end.fpdu(&Header::write(stag, 4096, true).encode(&pattern(700)));
    let second = end.fpdu(&Header::write(stag, 6000, true).encode(&pattern(1200)));
    let mut damaged = second.clone();
    damaged[900] ^= 0x10;
    let bed = &mut end.bed;
    let lost = bed.lose(&first);
    let again = bed.lose(&second);
    bed.resend(&again.back(0, &damaged));
    assert_eq!(bed.engine.counters().ooo_dropped, 1);
    assert_eq!(bed.arena.read(6000, 1200), [0; 1200]);
    bed.resend(&lost);
    bed.resend(&again);
    assert_eq!(bed.arena.read(6000, 1200), pattern(1200));
    assert_eq!((bed.ended(), bed.engine.counters().crc_errors), (None, 0));
    // In its turn there is no way back.
    let third = end.fpdu(&Header::write(stag, 4096, true).encode(&pattern(700)));
    let mut damaged = third;
    damaged[300] ^= 1;
    end.bed.say(&damaged);
    assert_eq!(end.told(), (2, 0, 2));
}

// req-test: MPA-173
#[test]
fn an_fpdu_of_a_whole_segment_comes_in_crumbs_from_its_end() {
    let mut end = Marked::new(1460);
    let stag = end.bed.register(4096, 4096, Access::ALL, false);
    let whole = end.fpdu(&Header::write(stag, 4096, true).encode(&pattern(1420)));
    let bed = &mut end.bed;
    let crumbs: Vec<_> = whole.chunks(64).map(|crumb| bed.lose(crumb)).collect();
    for crumb in crumbs.iter().rev() {
        assert_eq!(bed.arena.read(4096, 1420), [0; 1420]);
        bed.resend(crumb);
    }
    assert_eq!(bed.arena.read(4096, 1420), pattern(1420));
}

// req-test: MPA-174
#[test]
fn fpdus_may_be_longer_than_the_packets_of_a_link() {
    let mut end = Marked { bed: Bed::of_mtu(104).into_marked(64), sent: 24 };
    let stag = end.bed.register(4096, 4096, Access::ALL, false);
    // The first is of 140 octets, the second has more of them and two markers.
    for (to, len) in [(4096, 120), (5000u16, 1000)] {
        let octets = pattern(len);
        let whole = end.fpdu(&Header::write(stag, to.into(), true).encode(&octets));
        assert_eq!(whole.len(), if len == 120 { 140 } else { 1028 });
        let bed = &mut end.bed;
        let pieces: Vec<_> = whole.chunks(64).map(|piece| bed.lose(piece)).collect();
        for piece in pieces.iter().rev() {
            bed.resend(piece);
        }
        assert_eq!(bed.arena.read(to.into(), octets.len()), octets);
    }
    // The stack's are cut as well.
    end.bed.arena.write(0, &pattern(3000));
    end.bed.write(1, 0, 3000, THEIRS, 0);
    let written: Vec<u8> =
        unmarked(&end.bed.hear()).iter().flat_map(|ulpdu| ulpdu[14..].to_vec()).collect();
    assert_eq!(written, pattern(3000));
    let lens: Vec<_> = end.bed.segments.iter().map(Vec::len).collect();
    assert!(lens.iter().all(|len| *len <= 64), "{lens:?}");
}

/// A connection that has no frames, and what the stack says when it accepts.
fn unframed(start: Start, first: &[u8]) -> (Bed, Option<Event>) {
    let mut bed = Bed::new();
    bed.engine.unlisten(PORT);
    bed.engine.listen_unframed(PORT, 4).unwrap();
    bed.say(first);
    bed.accept(&ConnParam { start, ..ConnParam::default() });
    let event = bed.engine.next_event();
    (bed, event)
}

/// Figure 5 of draft-02: a Send of 24 octets, versions 0, at the start of its direction.
fn figure_5() -> Vec<u8> {
    let mut ulpdu = vec![0; 42];
    ulpdu[..2].copy_from_slice(&[0x40, 3]);
    ulpdu[13] = 1;
    marked_fpdu(&ulpdu, true, 0)
}

// req-test: MPA-095, MPA-142
#[test]
fn fpdus_may_begin_with_the_first_octet() {
    // What comes before the stack has accepted is kept.
    let (mut bed, event) = unframed(Start::Immediate, &figure_5()[..30]);
    assert!(matches!(event, Some(Event::Established { .. })), "{event:?}");
    bed.receive(1, 0, 100);
    bed.say(&figure_5()[30..]);
    assert_eq!(bed.done().iter().map(|wc| wc.byte_len).collect::<Vec<_>>(), [24]);
    bed.send(2, 0, 24);
    let heard = bed.hear();
    assert_eq!(heard[..8], [0, 0, 0, 0, 0, 42, 0x40, 3]);
    assert_eq!(heard[48..], [0x4c, 0x86, 0xb3, 0x84]);
}

// req-test: MPA-017, MPA-018, MPA-036, MPA-144
#[test]
fn octets_of_the_applications_are_a_plain_stream_before() {
    let (mut bed, event) = unframed(Start::Streaming, b"who ");
    let Some(Event::Streaming { qp }) = event else { panic!("{event:?}") };
    // Out of order they wait for their turn.
    let lost = bed.lose(b"is ");
    bed.say(b"there?");
    let mut out = [0; 64];
    assert_eq!(bed.engine.stream_receive(qp, &mut out), Ok(4));
    bed.resend(&lost);
    assert_eq!(bed.engine.stream_receive(qp, &mut out), Ok(9));
    assert_eq!(&out[..9], b"is there?");
    // Segments are as full as can be, whatever was given at a time.
    for piece in pattern(5000).chunks(100) {
        assert_eq!(bed.engine.stream_send(qp, piece), Ok(piece.len()));
    }
    assert_eq!(bed.hear(), pattern(5000));
    let lens: Vec<_> = bed.segments.drain(..).map(|segment| segment.len()).collect();
    assert_eq!(lens, [1460, 1460, 1460, 620]);
    // From here on they are FPDUs, and markers are counted from here.
    let now = bed.now;
    bed.engine.start_fpdus(now, qp, &ConnParam::default()).unwrap();
    assert!(matches!(bed.engine.next_event(), Some(Event::Established { .. })));
    bed.write(1, 0, 4000, THEIRS, 0);
    let heard = bed.hear();
    assert_eq!(heard[..4], [0; 4]);
    let lens: Vec<usize> = bed.segments.iter().map(Vec::len).collect();
    let ulpdus = unmarked(&heard);
    assert_eq!(ulpdus.len(), lens.len(), "an FPDU to a segment: {lens:?}");
    bed.receive(1, 0, 100);
    bed.say(&figure_5());
    assert_eq!(bed.done().last().map(|wc| wc.byte_len), Some(24));
}

#[test]
fn a_stream_that_nobody_answers_is_no_start_up() {
    let (mut bed, event) = unframed(Start::Streaming, b"");
    assert!(matches!(event, Some(Event::Streaming { .. })), "{event:?}");
    // No patience is lost with applications that take their time.
    bed.now = bed.now + 60 * SECOND;
    bed.engine.drive(bed.now);
    assert_eq!(bed.ended(), None);
    assert!(!bed.reset && !bed.finished);
}
