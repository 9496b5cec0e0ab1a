//! Rules of RDMAP about errors: what is refused, the Terminate that tells of it, and the end.

use ferrowarp_proto::ddp::memory::{Access, Memory as _};
use ferrowarp_proto::verbs::cm::EndReason;
use ferrowarp_proto::verbs::wc::WcStatus;
use ferrowarp_proto::verbs::wr::{Operation, Payload, Sge};
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::compliance::bed::Bed;
use ferrowarp_tests::compliance::messages::{
    THEIRS, bed, opcodes, read, response, send, send_as, statuses, write,
};
use ferrowarp_tests::peer::{Header, fpdu, opcode};

fn is_terminate_sent(bed: &mut Bed) -> bool {
    matches!(bed.ended(), Some(EndReason::TerminateSent(_)))
}

// req-test: RDMAP-103, RDMAP-184, RDMAP-266, RDMAP-329, RDMAP-276
#[test]
fn what_belongs_to_others_is_not_invalidated_read_or_written() {
    let others = |bed: &Bed| bed.register(1000, 64, Access::ALL, true);
    let mut bed = bed();
    let stag = others(&bed);
    bed.receive(1, 0, 64);
    let bad = send_as(opcode::SEND_INVALIDATE, 1, stag, b"bye");
    bed.put_ulpdu(&bad);
    let told = bed.terminate();
    assert_eq!((told.cause(), &told.ddp_header[..]), ((0, 1, 9), &bad[..18]));
    assert!(told.rdma_header.is_empty());
    assert_eq!(statuses(&mut bed), [(1, WcStatus::Flushed)]);
    assert!(bed.arena.regions().pd_of(stag).is_some());
    for (ulpdu, cause) in [(0, (1, 1, 2)), (1, (0, 1, 3))] {
        let mut bed = self::bed();
        let own = bed.register(2000, 64, Access::ALL, false);
        bed.put_ulpdu(&write(own, 2000, b"own"));
        assert_eq!(bed.arena.read(2000, 3), b"own");
        let stag = others(&bed);
        let bad = [write(stag, 1000, b"x"), read(1, stag, 1000, 1, 0)];
        bed.put_ulpdu(&bad[ulpdu]);
        assert_eq!(bed.terminate().cause(), cause);
        assert_eq!(bed.arena.read(1000, 64), [0; 64]);
    }
}

// req-test: RDMAP-265, RDMAP-175, RDMAP-185, RDMAP-109
#[test]
fn an_stag_that_names_nothing_is_not_invalidated() {
    for opcode in [opcode::SEND_INVALIDATE, opcode::SEND_SOLICITED_INVALIDATE] {
        let mut bed = bed();
        bed.receive(1, 0, 64);
        bed.put_ulpdu(&send_as(opcode, 1, 0x1234_5678, b"bye"));
        let told = bed.terminate();
        assert_eq!(told.cause(), (0, 2, 9));
        assert_eq!(statuses(&mut bed), [(1, WcStatus::Flushed)]);
        assert!(is_terminate_sent(&mut bed));
    }
}

// req-test: RDMAP-098, RDMAP-041, RDMAP-126, RDMAP-148, RDMAP-270
#[test]
fn a_read_of_an_unknown_region_is_refused() {
    let mut bed = bed();
    let bad = read(1, bed.local ^ 1, 0, 10, 0x123);
    bed.put_ulpdu(&bad);
    let told = bed.terminate();
    assert_eq!(told.cause(), (0, 1, 0));
    assert_eq!((&told.ddp_header[..], &told.rdma_header[..]), (&bad[..18], &bad[18..]));
    assert!(is_terminate_sent(&mut bed));
}

/// A Read from a region of 64 octets at 4096 with the rights of `access`, refused with a code.
fn refused_read(access: Access, foreign: bool, to: u64, len: u32, code: u8) {
    let mut bed = bed();
    let stag = bed.register(4096, 64, access, foreign);
    let bad = read(1, stag, to, len, 0x123);
    bed.put_ulpdu(&bad);
    let told = bed.terminate();
    assert_eq!(told.cause(), (0, 1, code), "{len} octets at {to}");
    assert_eq!((&told.ddp_header[..], &told.rdma_header[..]), (&bad[..18], &bad[18..]));
    assert!(is_terminate_sent(&mut bed));
}

// req-test: RDMAP-099, RDMAP-156, RDMAP-272, RDMAP-273, RDMAP-278
#[test]
fn a_read_beyond_its_region_is_refused() {
    for (to, len) in [(4095, 1), (4160, 1), (4096, 65), (4159, 2), (4000, 300)] {
        refused_read(Access::REMOTE_READ, false, to, len, 1);
    }
    let mut bed = bed();
    let stag = bed.register(4096, 64, Access::REMOTE_READ, false);
    bed.put_ulpdu(&read(1, stag, 4096, 64, 0));
    bed.put_ulpdu(&read(2, stag, 4159, 1, 0));
    assert_eq!(opcodes(&mut bed), [2, 2]);
    // One of nothing is not checked.
    bed.put_ulpdu(&read(3, 0xdead_beef, u64::MAX, 0, 0));
    assert_eq!(opcodes(&mut bed), [2]);
    // Any other is, as a whole and before anything of it is sent.
    let stag = bed.register(8192, 4000, Access::REMOTE_READ, false);
    bed.put_ulpdu(&read(4, stag, 8192, 4001, 0));
    assert_eq!(bed.terminate().cause(), (0, 1, 1));
}

/// An error of DDP in a Read Request, and one of RDMAP in a message as long as a Read Request: only
/// of a request that RDMAP refuses its own header goes back.
// req-test: RDMAP-091, RDMAP-129, RDMAP-131, RDMAP-258, RDMAP-259
#[test]
fn only_a_read_request_that_rdmap_refuses_is_copied_with_its_own_header() {
    let mut out_of_turn = read(1, 0, 0, 10, 0x123);
    out_of_turn[17] = 1;
    let invalidating = send_as(opcode::SEND_INVALIDATE, 1, 0x1234_5678, &[7; 28]);
    assert_eq!(out_of_turn.len(), invalidating.len());
    let refused = read(1, 0x1234_5678, 0, 10, 0x123);
    for (bad, cause, copied) in [
        (out_of_turn, (1, 2, 4), 18..18),
        (invalidating, (0, 2, 9), 18..18),
        (refused, (0, 1, 0), 18..46),
    ] {
        let mut bed = bed();
        bed.receive(1, 0, 64);
        bed.put_ulpdu(&bad);
        let told = bed.terminate();
        assert_eq!(told.cause(), cause);
        assert_eq!(told.ddp_header, bad[..18]);
        assert_eq!(told.rdma_header, bad[copied]);
    }
}

// req-test: RDMAP-100, RDMAP-280
#[test]
fn a_read_without_the_right_is_refused() {
    refused_read(Access::REMOTE_WRITE | Access::LOCAL_READ, false, 4096, 1, 2);
}

// req-test: RDMAP-101, RDMAP-271, RDMAP-328, RDMAP-259
#[test]
fn a_read_of_another_domain_is_refused() {
    refused_read(Access::ALL, true, 4096, 1, 3);
}

// req-test: RDMAP-102, RDMAP-274
#[test]
fn a_read_that_wraps_is_refused() {
    refused_read(Access::REMOTE_READ, false, u64::MAX - 7, 16, 4);
    refused_read(Access::REMOTE_READ, false, u64::MAX, 4096, 4);
}

// req-test: RDMAP-127, RDMAP-124, RDMAP-125
#[test]
fn a_read_that_fails_on_the_way_tells_what_was_left() {
    let mut bed = Bed::started(300, 4, 4);
    let stag = bed.register(4096, 50_000, Access::REMOTE_READ, false);
    // More than the windows let out before the region goes.
    bed.stall(2);
    bed.put_ulpdu(&read(1, stag, 4096, 50_000, 0x1_0000_0000));
    assert!(bed.arena.regions().invalidate(stag));
    bed.resume(0xffff);
    let messages = bed.messages();
    let (terminate, responses) = messages.split_last().unwrap();
    let done: usize = responses.iter().map(|(_, payload)| payload.len()).sum();
    assert!(done > 0 && done < 50_000, "{done}");
    assert_eq!(terminate.1[..3], [0x01, 0, 0xe0]);
    let left = u32::try_from(50_000 - done).unwrap();
    let rest = read(1, stag, 4096 + done as u64, left, 0x1_0000_0000 + done as u64);
    assert_eq!(terminate.1[6..], rest[..]);
}

// req-test: RDMAP-166, RDMAP-163, RDMAP-106
#[test]
fn a_response_must_be_what_was_asked_for() {
    let mut bed = bed();
    bed.put_ulpdu(&response(bed.local, 0, true, b"x"));
    assert_eq!(bed.terminate().cause(), (0, 2, 6), "nobody asked");
    type Change = fn(u32) -> Vec<Vec<u8>>;
    let cases: [(Change, u8); 5] = [
        (|stag| vec![response(stag, 101, true, b"abcd")], 1),
        (|stag| vec![response(stag ^ 1, 100, true, b"abcd")], 0),
        (|stag| vec![response(stag, 100, true, b"abc")], 1),
        (|stag| vec![response(stag, 100, true, b"abcde")], 1),
        (|stag| vec![response(stag, 100, false, b"ab"), response(stag ^ 1, 102, true, b"cd")], 0),
    ];
    for (answer, code) in cases {
        let mut bed = self::bed();
        bed.read(1, 100, 4, THEIRS, 0);
        assert_eq!(opcodes(&mut bed), [1]);
        for ulpdu in answer(bed.local) {
            bed.put_ulpdu(&ulpdu);
        }
        assert_eq!(bed.terminate().cause(), (1, 1, code));
        assert_eq!(statuses(&mut bed), [(1, WcStatus::Flushed)]);
    }
    let mut bed = self::bed();
    bed.read(1, 100, 4, THEIRS, 0);
    assert_eq!(opcodes(&mut bed), [1]);
    bed.put_ulpdu(&response(bed.local, 100, false, b"ab"));
    bed.put_ulpdu(&response(bed.local, 102, true, b"cd"));
    assert_eq!(statuses(&mut bed), [(1, WcStatus::Success)]);
}

// req-test: RDMAP-105, RDMAP-264, RDMAP-269, RDMAP-055, RDMAP-130
#[test]
fn another_version_is_refused() {
    for version in [0u8, 0x80, 0xc0] {
        let stag = 5;
        for ulpdu in [write(stag, 0, b"x"), send(1, b"x"), read(1, stag, 0, 1, 0)] {
            let mut bed = bed();
            bed.receive(1, 0, 64);
            let mut bad = ulpdu;
            bad[1] = bad[1] & 0x3f | version;
            bed.put_ulpdu(&bad);
            let told = bed.terminate();
            assert_eq!(told.cause(), (0, 2, 5));
            let len = if bad[0] & 0x80 == 0 { 18 } else { 14 };
            // A Read Request that is whole is told with its own header (section 7.1, item 3).
            let request = if bad.len() == 46 { 28 } else { 0 };
            assert_eq!((&told.ddp_header[..], told.rdma_header.len()), (&bad[..len], request));
            assert_eq!(statuses(&mut bed), [(1, WcStatus::Flushed)]);
        }
    }
}

/// An opcode where it does not belong.
fn misplaced(ulpdu: &[u8], opcode: u8, tagged: bool, qn: u32) {
    let mut bed = bed();
    bed.receive(1, 0, 64);
    let mut bad = ulpdu.to_vec();
    bad[0] = if tagged { 0xc1 } else { 0x41 };
    bad[1] = 0x40 | opcode;
    if !tagged {
        bad[6..10].copy_from_slice(&qn.to_be_bytes());
    }
    bed.put_ulpdu(&bad);
    assert_eq!(bed.terminate().cause(), (0, 2, 6), "opcode {opcode}, queue {qn}, {tagged}");
    assert_eq!(statuses(&mut bed), [(1, WcStatus::Flushed)]);
}

// req-test: RDMAP-262, RDMAP-263
#[test]
fn each_opcode_has_its_model() {
    for opcode in [opcode::WRITE, opcode::READ_RESPONSE] {
        for qn in 0..3 {
            misplaced(&send(1, b"x"), opcode, false, qn);
        }
    }
    for opcode in [1, 3, 4, 5, 6, 7] {
        misplaced(&write(0, 0, b"x"), opcode, true, 0);
    }
}

// req-test: RDMAP-263, RDMAP-268
#[test]
fn each_opcode_has_its_queue() {
    for opcode in [3, 4, 5, 6] {
        misplaced(&send(1, b"x"), opcode, false, 1);
        misplaced(&send(1, b"x"), opcode, false, 2);
    }
    // Those that belong elsewhere, RFC 7306's too: of these Atomic Requests alone belong there.
    for opcode in [0, 2, 8, 9, 11] {
        misplaced(&send(1, b"x"), opcode, false, 1);
    }
    for qn in [0, 2] {
        misplaced(&read(1, 0, 0, 0, 0), opcode::READ_REQUEST, false, qn);
    }
    for qn in [0, 1] {
        misplaced(&send(1, &[0; 4]), opcode::TERMINATE, false, qn);
    }
}

// req-test: RDMAP-070, RDMAP-262
#[test]
fn opcodes_of_nobody_are_refused() {
    for opcode in 12..16 {
        misplaced(&send(1, b"x"), opcode, false, 0);
        misplaced(&write(0, 0, b"x"), opcode, true, 0);
    }
}

// req-test: RDMAP-072, RDMAP-267
#[test]
fn a_read_request_is_28_octets_in_one_segment() {
    let good = read(1, 0, 0, 0, 0);
    let too_long = [&good[..], &[0]].concat();
    let mut not_last = good.clone();
    not_last[0] &= !0x40;
    let mut further = good.clone();
    further[17] = 1;
    let mut skipped = good.clone();
    skipped[13] = 2;
    let mut before_the_first = good.clone();
    before_the_first[13] = 0;
    for (bad, cause) in [
        (&good[..45], (0, 2, 255)),
        (&good[..18], (0, 2, 255)),
        (&too_long, (1, 2, 5)),
        (&not_last, (1, 2, 5)),
        (&further, (1, 2, 4)),
        (&skipped, (1, 2, 3)),
        (&before_the_first, (1, 2, 3)),
    ] {
        let mut bed = bed();
        bed.put_ulpdu(bad);
        assert_eq!(bed.terminate().cause(), cause, "{bad:02x?}");
        assert!(is_terminate_sent(&mut bed), "{bad:02x?}");
    }
    let mut bed = bed();
    bed.put_ulpdu(&good);
    assert_eq!(opcodes(&mut bed), [2]);
    bed.put_ulpdu(&good);
    assert_eq!(bed.terminate().cause(), (1, 2, 3), "it has been there");
}

/// A Terminate of the peer's with `octets` behind the header.
fn terminate(octets: &[u8]) -> Vec<u8> {
    let opcode = opcode::TERMINATE;
    Header::Untagged { opcode, last: true, invalidate: 0, qn: 2, msn: 1, mo: 0 }.encode(octets)
}

fn told(bed: &mut Bed) -> (u8, u8, u8) {
    match bed.ended() {
        Some(EndReason::TerminateReceived(told)) => (told.layer, told.error_type, told.code),
        other => panic!("{other:?}"),
    }
}

// req-test: RDMAP-044, RDMAP-189, RDMAP-190, RDMAP-191, RDMAP-192
#[test]
fn a_terminate_finds_its_place_without_a_buffer_and_is_told() {
    for cause in [(0, 1, 9), (1, 2, 5), (2, 0, 2), (0, 2, 0xff), (15, 15, 255)] {
        let mut bed = bed();
        bed.send(1, 0, 4);
        assert_eq!(opcodes(&mut bed), [3]);
        bed.put_ulpdu(&terminate(&[cause.0 << 4 | cause.1, cause.2, 0, 0]));
        assert_eq!(told(&mut bed), cause);
        assert_eq!(statuses(&mut bed), [(1, WcStatus::Success)]);
    }
}

// req-test: RDMAP-097, RDMAP-116, RDMAP-094, RDMAP-117
#[test]
fn a_terminate_is_taken_with_any_code_and_reserved_bits() {
    for code in [0u8, 1, 77, 255] {
        let mut bed = bed();
        bed.put_ulpdu(&terminate(&[0, code, 0x1f, 0xff]));
        assert_eq!(told(&mut bed), (0, 0, code));
    }
    for layer in [0u8, 1, 2, 9, 15] {
        let mut bed = bed();
        // A code that no table has, whichever way round layer and type are.
        bed.put_ulpdu(&terminate(&[layer << 4, 0x55, 0, 0]));
        assert_eq!(told(&mut bed), (layer, 0, 0x55));
    }
}

// req-test: RDMAP-193, RDMAP-196, RDMAP-248
#[test]
fn a_terminate_that_is_none_ends_the_stream_too() {
    for octets in [&b""[..], &[0x11], &[0x11, 0, 0xe0]] {
        let mut bed = bed();
        bed.receive(1, 0, 64);
        bed.put_ulpdu(&terminate(octets));
        assert!(bed.ended().is_some());
        assert_eq!(statuses(&mut bed), [(1, WcStatus::Flushed)]);
        bed.put_ulpdu(&send(1, b"x"));
        assert_eq!(bed.arena.read(0, 1), [0]);
    }
    // And after a right one the stack sends no more.
    let mut bed = bed();
    bed.put_ulpdu(&terminate(&[0x11, 0, 0, 0]));
    bed.send(1, 0, 4);
    assert_eq!(statuses(&mut bed), [(1, WcStatus::Flushed)]);
    assert_eq!(bed.ulpdus().len(), 0);
    assert!(bed.finished);
}

// req-test: RDMAP-186, RDMAP-195, RDMAP-253, RDMAP-261, RDMAP-194
#[test]
fn nothing_follows_a_terminate_and_it_tells_of_the_first_error() {
    let mut bed = Bed::started(300, 4, 4);
    for wr_id in 1..=8 {
        bed.read(wr_id, 0, 1, THEIRS, 0);
    }
    bed.send(9, 0, 1000);
    assert_eq!(opcodes(&mut bed), [1; 4]);
    let stag = bed.register(1024, 64, Access::REMOTE_WRITE, false);
    let octets: Vec<_> = [
        write(stag, 1020, b"first error"),
        send(1, b"second error"),
        write(stag, 1024, b"nothing wrong"),
    ]
    .iter()
    .flat_map(|ulpdu| fpdu(ulpdu, true))
    .collect();
    bed.say(&octets);
    assert_eq!(bed.terminate().cause(), (1, 1, 1));
    assert_eq!(bed.arena.read(1024, 64), [0; 64]);
    let expected: Vec<_> = (1..=9).map(|wr_id| (wr_id, WcStatus::Flushed)).collect();
    assert_eq!(statuses(&mut bed), expected);
    assert!(is_terminate_sent(&mut bed));
    assert!(bed.finished && !bed.reset);
}

// req-test: RDMAP-118, RDMAP-119, RDMAP-120, RDMAP-123, RDMAP-258
#[test]
fn a_terminate_copies_the_header_and_tells_the_length() {
    for bad in [
        write(5, 6, &[7; 1000]),
        Header::send(2, 3, true).encode(&[7; 500]),
        response(5, 6, true, &[7; 100]),
    ] {
        let mut bed = bed();
        bed.put_ulpdu(&bad);
        let ulpdus = bed.ulpdus();
        let terminate = &ulpdus[0][18..];
        assert_eq!(terminate[2..4], [0xc0, 0], "M and D");
        let len = u16::from_be_bytes([terminate[4], terminate[5]]);
        assert_eq!(usize::from(len), bad.len());
        let header_len = if bad[0] & 0x80 == 0 { 18 } else { 14 };
        assert_eq!(terminate[6..], bad[..header_len]);
    }
}

// req-test: DDP-163, DDP-200
#[test]
fn the_application_is_told_what_the_peer_is_told() {
    for (bad, cause) in [
        (write(5, 6, &[7; 1000]), (1, 1, 0)),
        (Header::send(1, 3, true).encode(&[7; 500]), (1, 2, 4)),
        (read(1, 5, 0, 10, 0x123), (0, 1, 0)),
    ] {
        let mut bed = bed();
        bed.receive(1, 0, 64);
        bed.put_ulpdu(&bad);
        let sent = bed.terminate();
        let Some(EndReason::TerminateSent(told)) = bed.ended() else { panic!("no Terminate") };
        assert_eq!((told.cause(), sent.cause()), (cause, cause));
        assert_eq!(told.segment_len.map(usize::from), Some(bad.len()));
        let header_len = if bad[0] & 0x80 == 0 { 18 } else { 14 };
        assert_eq!(told.ddp_header(), &bad[..header_len]);
    }
}

// req-test: RDMAP-095, RDMAP-132, MPA-158, MPA-161, DDP-183
#[test]
fn an_error_below_is_told_without_copies() {
    let mut bed = bed();
    bed.receive(1, 0, 64);
    let mut octets = fpdu(&send(1, b"x"), true);
    octets[21] ^= 1;
    for msn in 1..100 {
        octets.extend(fpdu(&send(msn, b"x"), true));
    }
    bed.say(&octets);
    let ulpdus = bed.ulpdus();
    assert_eq!(ulpdus.len(), 1);
    assert_eq!(ulpdus[0][18..], [0x20, 2, 0, 0]);
    assert_eq!(bed.arena.read(0, 1), [0]);
    assert_eq!(statuses(&mut bed), [(1, WcStatus::Flushed)]);
}

// req-test: RDMAP-121, RDMAP-128, RDMAP-257, RDMAP-096
#[test]
fn an_error_of_our_own_is_told_without_copies() {
    let nowhere = Sge { addr: 0, len: 8, lkey: 0x77 };
    let payload = || Payload::Gather([nowhere].into_iter().collect());
    for operation in [
        Operation::Write { payload: payload(), rkey: THEIRS, remote: 0 },
        Operation::Send { payload: payload(), solicited: false, invalidate: None },
        Operation::Read { sink: nowhere, rkey: THEIRS, remote: 0 },
    ] {
        let mut bed = bed();
        bed.ask(1, operation);
        let ulpdus = bed.ulpdus();
        assert_eq!((ulpdus.len(), &ulpdus[0][..2]), (1, &[0x41, 0x47][..]), "a Terminate alone");
        assert_eq!(ulpdus[0][18..], [0; 4]);
        assert_eq!(statuses(&mut bed), [(1, WcStatus::LocalProtection)]);
    }
}

// req-test: RDMAP-243, RDMAP-245, RDMAP-249, RDMAP-251, RDMAP-254
#[test]
fn after_a_terminate_the_connection_ends_in_good_order() {
    let mut bed = bed();
    bed.put_ulpdu(&write(0, 0, b"x"));
    assert_eq!(opcodes(&mut bed), [7]);
    assert!(bed.finished && !bed.reset, "a FIN behind it");
    assert!(is_terminate_sent(&mut bed));
    bed.signal(Flags::ACK | Flags::FIN);
    assert_eq!(bed.engine.unfinished_count(), 0);
}
