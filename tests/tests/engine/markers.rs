//! MPA rules on markers and on streaming mode, checked on the wire.

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam, EndReason, Start};
use ferrowarp_proto::verbs::wc::WcOpcode;
use ferrowarp_tests::compliance::fixture::{FpduFixture, PORT};
use ferrowarp_tests::compliance::messages::PEER_STAG;
use ferrowarp_tests::conn_param;
use ferrowarp_tests::pattern;
use ferrowarp_tests::peer::{Header, marked_fpdu};

/// A connection with markers in both directions, and the bytes of FPDUs that the peer has sent.
struct MarkedConnection {
    fx: FpduFixture,
    sent: u64,
}

impl MarkedConnection {
    fn new(mss: u16) -> Self {
        Self { fx: FpduFixture::connected_with_markers(mss), sent: 24 }
    }

    /// Builds the peer's next FPDU without sending it.
    fn fpdu(&mut self, ulpdu: &[u8]) -> Vec<u8> {
        let bytes = marked_fpdu(ulpdu, true, self.sent);
        self.sent += bytes.len() as u64;
        bytes
    }

    /// Error of the Terminate sent by the stack, its last FPDU.
    fn sent_cause(&mut self) -> (u8, u8, u8) {
        let ulpdus = strip_markers(&self.fx.take_sent());
        let (header, payload) = Header::decode(ulpdus.last().expect("a Terminate")).unwrap();
        assert!(matches!(header, Header::Untagged { opcode: 7, qn: 2, .. }), "{header:?}");
        (payload[0] >> 4, payload[0] & 15, payload[1])
    }
}

/// Strips the markers from a stream, each of which is checked, and returns the ULPDUs.
fn strip_markers(stream: &[u8]) -> Vec<Vec<u8>> {
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

/// Sets FPDUPTR of the marker at `at` bytes from the start of an FPDU, and fixes the CRC.
fn set_fpduptr(fpdu: &mut [u8], at: usize, pointer: u16) {
    fpdu[at + 2..at + 4].copy_from_slice(&pointer.to_be_bytes());
    let end = fpdu.len() - 4;
    let sum = crc32c::crc32c(&fpdu[..end]).to_le_bytes();
    fpdu[end..].copy_from_slice(&sum);
}

// req-test: MPA-062, MPA-063, MPA-067, MPA-075, MPA-076
#[test]
fn markers_are_exactly_every_512_bytes() {
    let MarkedConnection { mut fx, .. } = MarkedConnection::new(1460);
    fx.arena.write(0, &pattern(0, 30_000));
    fx.post_write(1, 0, 30_000, PEER_STAG, 0);
    for wr_id in 2..12 {
        fx.post_send(wr_id, 0, wr_id * 7);
    }
    let sent = fx.take_sent();
    assert!(sent.len() > 30_000 && sent[..4] == [0; 4]);
    let written: Vec<u8> = strip_markers(&sent)
        .iter()
        .filter(|ulpdu| ulpdu[0] & 0x80 != 0)
        .flat_map(|ulpdu| ulpdu[14..].to_vec())
        .collect();
    assert_eq!(written, pattern(0, 30_000));
}

// req-test: MPA-085, MPA-104
#[test]
fn marker_positions_do_not_depend_on_segmentation() {
    for mss in [64, 139, 140, 536, 1448] {
        let MarkedConnection { mut fx, .. } = MarkedConnection::new(mss);
        fx.arena.write(0, &pattern(0, 5000));
        fx.post_write(1, 0, 5000, PEER_STAG, 0);
        let written: usize =
            strip_markers(&fx.take_sent()).iter().map(|ulpdu| ulpdu.len() - 14).sum();
        assert_eq!(written, 5000);
        assert!(fx.segments.iter().all(|segment| segment.len() <= usize::from(mss)), "{mss}");
    }
}

// req-test: MPA-115
#[test]
fn each_segment_holds_one_whole_marked_fpdu() {
    for mss in [536u16, 1448, 1460] {
        let MarkedConnection { mut fx, .. } = MarkedConnection::new(mss);
        fx.post_write(1, 0, 60_000, PEER_STAG, 0);
        let sent = fx.take_sent();
        let ends: Vec<usize> = strip_markers(&sent)
            .iter()
            .scan(0, |at, ulpdu| {
                *at += marked_fpdu(ulpdu, true, *at as u64).len();
                Some(*at)
            })
            .collect();
        let cuts: Vec<usize> = fx
            .segments
            .iter()
            .scan(0, |at, segment| {
                *at += segment.len();
                Some(*at)
            })
            .collect();
        assert_eq!(cuts, ends, "one FPDU to a segment");
        // Most segments are full, though few contain as many markers as MULPDU reserves space for.
        let full = fx.segments.iter().filter(|segment| segment.len() == usize::from(mss));
        assert!(2 * full.count() > fx.segments.len());
    }
}

// req-test: MPA-004, MPA-006, MPA-022, MPA-037, MPA-133
#[test]
fn ooo_fpdu_located_by_marker_is_placed_and_delivered_in_order() {
    let mut end = MarkedConnection::new(1460);
    let stag = end.fx.register(4096, 8192, Access::ALL, false);
    end.fx.post_recv(9, 0, 100);
    let write = |to: u64, bytes: &[u8]| Header::write(stag, to, true).encode(bytes);
    let first = end.fpdu(&write(4096, &pattern(0, 700)));
    let second = end.fpdu(&write(6000, &pattern(0, 1200)));
    let third = end.fpdu(&write(8000, &pattern(0, 1000)));
    let message = end.fpdu(&Header::send(1, 0, true).encode(b"all there?"));
    let fx = &mut end.fx;
    let lost = fx.drop_segment(&first);
    fx.inject(&second);
    assert_eq!(fx.arena.read(6000, 1200), pattern(0, 1200), "placed out of order");
    fx.inject(&third);
    assert_eq!(fx.arena.read(8000, 1000), pattern(0, 1000));
    assert_eq!(fx.engine.ooo_usage(), (0, 0), "and not held");
    fx.inject(&message);
    assert_eq!(fx.poll_cq(), [], "nothing is delivered out of order");
    assert_eq!(fx.engine.counters().fpdus_placed_ooo, 2);
    fx.retransmit(&lost);
    assert_eq!(fx.arena.read(4096, 700), pattern(0, 700));
    let done: Vec<_> = fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len)).collect();
    assert_eq!(done, [(9, WcOpcode::Recv, 10)]);
    assert_eq!(fx.engine.counters().fpdus_in, 5);
    assert_eq!(fx.end_reason(), None);
}

// req-test: DDP-033, DDP-113, MPA-026
#[test]
fn old_fpdu_before_new_data_is_not_placed_by_its_marker() {
    let mut end = MarkedConnection::new(1460);
    let stag = end.fx.register(4096, 8192, Access::ALL, false);
    let write = |to: u64, bytes: &[u8]| Header::write(stag, to, true).encode(bytes);
    let sent = end.sent;
    let first = end.fpdu(&write(4096, &[1; 600]));
    let next = end.fpdu(&write(6000, &[2; 600]));
    let fx = &mut end.fx;
    let first = fx.drop_segment(&first);
    fx.retransmit(&first);
    // Other bytes with a valid CRC, and a marker within: the first copy stays.
    let other = marked_fpdu(&write(4096, &[3; 600]), true, sent);
    fx.drop_segment(&next);
    fx.retransmit(&first.shifted_back(0, &[other, next].concat()));
    assert_eq!(fx.arena.read(4096, 600), [1; 600]);
    assert_eq!(fx.arena.read(6000, 600), [2; 600]);
    assert_eq!((fx.engine.counters().fpdus_in, fx.engine.counters().fpdus_placed_ooo), (3, 0));
    assert_eq!(fx.end_reason(), None);
}

/// Each gap between FPDUs that were placed takes memory of the pool for out-of-order data, until it
/// is filled.
#[test]
fn gaps_between_placed_fpdus_are_bounded_by_the_pool() {
    const COUNT: usize = 240;
    let fx = FpduFixture::with_config(1500, |config| {
        (config.ooo_frames_max, config.ooo_bytes_max) = (0, 8192);
    });
    let mut end = MarkedConnection { fx: fx.connect_with_markers(1460), sent: 24 };
    let stag = end.fx.register(4096, 8192, Access::ALL, false);
    let mut placed = 0;
    for round in 1..=2 {
        let fpdus: Vec<_> = (0..COUNT)
            .map(|_| end.fpdu(&Header::write(stag, 4096, true).encode(&pattern(0, 500))))
            .collect();
        let lost: Vec<_> = fpdus.iter().map(|fpdu| end.fx.drop_segment(fpdu)).collect();
        lost.iter().skip(1).step_by(2).for_each(|early| end.fx.retransmit(early));
        let count = end.fx.engine.counters().fpdus_placed_ooo - placed;
        // 64 bytes each; a connection gets twice what it leaves.
        assert!((50..=80).contains(&count), "round {round}: {count}");
        placed += count;
        lost.iter().for_each(|lost| end.fx.retransmit(lost));
        assert_eq!(end.fx.engine.counters().fpdus_in, 1 + (COUNT * round) as u64);
    }
    assert_eq!(end.fx.end_reason(), None);
}

#[test]
fn nothing_is_placed_ooo_without_markers() {
    let mut fx = FpduFixture::connected(1460, 4, 4);
    let stag = fx.register(4096, 4096, Access::ALL, false);
    let fpdu = |to| {
        let ulpdu = Header::write(stag, to, true).encode(&pattern(0, 1000));
        ferrowarp_tests::peer::fpdu(&ulpdu, true)
    };
    let lost = fx.drop_segment(&fpdu(4096));
    fx.inject(&fpdu(6000));
    assert_eq!(fx.arena.read(6000, 1000), [0; 1000]);
    fx.retransmit(&lost);
    assert_eq!(fx.arena.read(6000, 1000), pattern(0, 1000));
}

// req-test: MPA-150
#[test]
fn wrong_fpduptr_terminates() {
    // The first marker of the FPDU, and its last.
    for (index, back) in [(0, [1, 0xe8]), (1, [3, 0xe8])] {
        let mut end = MarkedConnection::new(1460);
        let stag = end.fx.register(4096, 4096, Access::ALL, false);
        let start = usize::try_from(end.sent).unwrap();
        let mut wrong = end.fpdu(&Header::write(stag, 4096, true).encode(&pattern(0, 1000)));
        let at = 512 * (index + 1) - start;
        assert_eq!(wrong[at..at + 4], [0, 0, back[0], back[1]], "488 or 1000 bytes back");
        set_fpduptr(&mut wrong, at, u16::from_be_bytes(back) + 4);
        end.fx.inject(&wrong);
        assert_eq!(end.sent_cause(), (2, 0, 3));
        assert!(matches!(end.fx.end_reason(), Some(EndReason::TerminateSent(_))));
        assert_eq!(end.fx.arena.read(4096, 1000), [0; 1000], "nothing of it was placed");
        assert_eq!(end.fx.engine.counters().marker_errors, 1);
    }
}

// req-test: MPA-153, MPA-154
#[test]
fn ulpdu_length_contradicting_a_marker_terminates() {
    let mut end = MarkedConnection::new(1460);
    let stag = end.fx.register(4096, 4096, Access::ALL, false);
    let first = end.fpdu(&Header::write(stag, 4096, true).encode(&pattern(0, 100)));
    let second = end.fpdu(&Header::write(stag, 6000, true).encode(&pattern(0, 1000)));
    // The FPDU that fills the gap has a larger ULPDU_Length.
    let mut other = first.clone();
    other[..2].copy_from_slice(&600u16.to_be_bytes());
    let lost = end.fx.drop_segment(&first);
    end.fx.inject(&second);
    assert_eq!(end.fx.engine.counters().fpdus_placed_ooo, 1);
    end.fx.retransmit(&lost.shifted_back(0, &other));
    assert_eq!(end.sent_cause(), (2, 0, 3));
}

// req-test: MPA-156
#[test]
fn ooo_fpdu_with_bad_crc_counts_as_lost() {
    let mut end = MarkedConnection::new(1460);
    let stag = end.fx.register(4096, 8192, Access::ALL, false);
    let first = end.fpdu(&Header::write(stag, 4096, true).encode(&pattern(0, 700)));
    let second = end.fpdu(&Header::write(stag, 6000, true).encode(&pattern(0, 1200)));
    let mut damaged = second.clone();
    damaged[900] ^= 0x10;
    let fx = &mut end.fx;
    let lost = fx.drop_segment(&first);
    let again = fx.drop_segment(&second);
    fx.retransmit(&again.shifted_back(0, &damaged));
    assert_eq!(fx.engine.counters().ooo_dropped, 1);
    assert_eq!(fx.arena.read(6000, 1200), [0; 1200]);
    fx.retransmit(&lost);
    fx.retransmit(&again);
    assert_eq!(fx.arena.read(6000, 1200), pattern(0, 1200));
    assert_eq!((fx.end_reason(), fx.engine.counters().crc_errors), (None, 0));
    // A bad CRC in order is fatal.
    let third = end.fpdu(&Header::write(stag, 4096, true).encode(&pattern(0, 700)));
    let mut damaged = third;
    damaged[300] ^= 1;
    end.fx.inject(&damaged);
    assert_eq!(end.sent_cause(), (2, 0, 2));
}

// req-test: MPA-173
#[test]
fn marked_fpdu_is_reassembled_from_reversed_sub_segments() {
    let mut end = MarkedConnection::new(1460);
    let stag = end.fx.register(4096, 4096, Access::ALL, false);
    let whole = end.fpdu(&Header::write(stag, 4096, true).encode(&pattern(0, 1420)));
    let fx = &mut end.fx;
    let lost: Vec<_> = whole.chunks(64).map(|part| fx.drop_segment(part)).collect();
    for sub_segment in lost.iter().rev() {
        assert_eq!(fx.arena.read(4096, 1420), [0; 1420]);
        fx.retransmit(sub_segment);
    }
    assert_eq!(fx.arena.read(4096, 1420), pattern(0, 1420));
}

// req-test: MPA-174
#[test]
fn fpdu_longer_than_the_mtu_spans_segments() {
    let mut end =
        MarkedConnection { fx: FpduFixture::with_mtu(104).connect_with_markers(64), sent: 24 };
    let stag = end.fx.register(4096, 4096, Access::ALL, false);
    // The first FPDU has 140 bytes; the second is longer and contains two markers.
    for (to, len) in [(4096, 120), (5000u16, 1000)] {
        let bytes = pattern(0, len);
        let whole = end.fpdu(&Header::write(stag, to.into(), true).encode(&bytes));
        assert_eq!(whole.len(), if len == 120 { 140 } else { 1028 });
        let fx = &mut end.fx;
        let pieces: Vec<_> = whole.chunks(64).map(|piece| fx.drop_segment(piece)).collect();
        for piece in pieces.iter().rev() {
            fx.retransmit(piece);
        }
        assert_eq!(fx.arena.read(to.into(), bytes.len()), bytes);
    }
    // The stack's own FPDUs are split as well.
    end.fx.arena.write(0, &pattern(0, 3000));
    end.fx.post_write(1, 0, 3000, PEER_STAG, 0);
    let written: Vec<u8> =
        strip_markers(&end.fx.take_sent()).iter().flat_map(|ulpdu| ulpdu[14..].to_vec()).collect();
    assert_eq!(written, pattern(0, 3000));
    let lens: Vec<_> = end.fx.segments.iter().map(Vec::len).collect();
    assert!(lens.iter().all(|len| *len <= 64), "{lens:?}");
}

/// A connection in streaming mode, and the event that accepting it reports.
fn accept_unframed(start: Start, first: &[u8]) -> (FpduFixture, Option<ConnEvent>) {
    let mut fx = FpduFixture::new();
    fx.engine.unlisten(PORT);
    fx.engine.listen_unframed(PORT, 4).unwrap();
    fx.inject(first);
    fx.accept(&conn_param(|it| it.start = start));
    let event = fx.engine.next_event();
    (fx, event)
}

/// Figure 5 of draft-02: a Send of 24 bytes, both versions 0, at the start of its direction.
fn figure_5() -> Vec<u8> {
    let mut ulpdu = vec![0; 42];
    ulpdu[..2].copy_from_slice(&[0x40, 3]);
    ulpdu[13] = 1;
    marked_fpdu(&ulpdu, true, 0)
}

// req-test: MPA-095, MPA-142
#[test]
fn immediate_start_begins_with_fpdus() {
    // Data received before the accept is kept.
    let (mut fx, event) = accept_unframed(Start::Immediate, &figure_5()[..30]);
    assert!(matches!(event, Some(ConnEvent::Established { .. })), "{event:?}");
    fx.post_recv(1, 0, 100);
    fx.inject(&figure_5()[30..]);
    assert_eq!(fx.poll_cq().iter().map(|wc| wc.byte_len).collect::<Vec<_>>(), [24]);
    fx.post_send(2, 0, 24);
    let sent = fx.take_sent();
    assert_eq!(sent[..8], [0, 0, 0, 0, 0, 42, 0x40, 3]);
    assert_eq!(sent[48..], [0x4c, 0x86, 0xb3, 0x84]);
}

// req-test: MPA-017, MPA-018, MPA-036, MPA-144
#[test]
fn streaming_mode_carries_plain_bytes_before_fpdus() {
    let (mut fx, event) = accept_unframed(Start::Streaming, b"who ");
    let Some(ConnEvent::Streaming { qp }) = event else { panic!("{event:?}") };
    // Out-of-order data waits for the gap to be filled.
    let lost = fx.drop_segment(b"is ");
    fx.inject(b"there?");
    let mut out = [0; 64];
    assert_eq!(fx.engine.stream_receive(qp, &mut out), Ok(4));
    fx.retransmit(&lost);
    assert_eq!(fx.engine.stream_receive(qp, &mut out), Ok(9));
    assert_eq!(&out[..9], b"is there?");
    // Segments are as full as possible, whatever the size of each write.
    for piece in pattern(0, 5000).chunks(100) {
        assert_eq!(fx.engine.stream_send(qp, piece), Ok(piece.len()));
    }
    assert_eq!(fx.take_sent(), pattern(0, 5000));
    let lens: Vec<_> = fx.segments.drain(..).map(|segment| segment.len()).collect();
    assert_eq!(lens, [1460, 1460, 1460, 620]);
    // FPDU mode starts here, and marker positions count from here.
    let now = fx.now;
    fx.engine.start_fpdus(now, qp, &ConnParam::default()).unwrap();
    assert!(matches!(fx.engine.next_event(), Some(ConnEvent::Established { .. })));
    fx.post_write(1, 0, 4000, PEER_STAG, 0);
    let sent = fx.take_sent();
    assert_eq!(sent[..4], [0; 4]);
    let lens: Vec<usize> = fx.segments.iter().map(Vec::len).collect();
    let ulpdus = strip_markers(&sent);
    assert_eq!(ulpdus.len(), lens.len(), "an FPDU to a segment: {lens:?}");
    fx.post_recv(1, 0, 100);
    fx.inject(&figure_5());
    assert_eq!(fx.poll_cq().last().map(|wc| wc.byte_len), Some(24));
}

#[test]
fn streaming_mode_has_no_startup_timeout() {
    let (mut fx, event) = accept_unframed(Start::Streaming, b"");
    assert!(matches!(event, Some(ConnEvent::Streaming { .. })), "{event:?}");
    // Streaming mode has no deadline for the application.
    fx.now = fx.now + 60 * SECOND;
    fx.drive();
    assert_eq!(fx.end_reason(), None);
    assert!(!fx.rst_sent && !fx.fin_sent);
}
