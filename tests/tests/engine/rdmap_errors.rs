//! RDMAP error handling: refused messages, the Terminate sent, and the end of the stream.

use ferrowarp_proto::ddp::memory::{Access, Memory as _};
use ferrowarp_proto::verbs::cm::EndReason;
use ferrowarp_proto::verbs::wc::WcStatus;
use ferrowarp_proto::verbs::wr::{Operation, Payload, Sge};
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::compliance::fixture::FpduFixture;
use ferrowarp_tests::compliance::messages::{
    PEER_STAG, connected, read_request, read_response, send, send_as, sent_opcodes, wc_statuses,
    write,
};
use ferrowarp_tests::peer::{Header, fpdu, opcode};

fn is_terminate_sent(fx: &mut FpduFixture) -> bool {
    matches!(fx.end_reason(), Some(EndReason::TerminateSent(_)))
}

// req-test: RDMAP-103, RDMAP-184, RDMAP-266, RDMAP-329, RDMAP-276
#[test]
fn foreign_pd_stag_is_not_invalidated_read_or_written() {
    let others = |fx: &FpduFixture| fx.register(1000, 64, Access::ALL, true);
    let mut fx = connected();
    let stag = others(&fx);
    fx.post_recv(1, 0, 64);
    let bad = send_as(opcode::SEND_INVALIDATE, 1, stag, b"bye");
    fx.inject_ulpdu(&bad);
    let terminate = fx.sent_terminate();
    assert_eq!((terminate.cause(), &terminate.ddp_header[..]), ((0, 1, 9), &bad[..18]));
    assert!(terminate.rdma_header.is_empty());
    assert_eq!(wc_statuses(&mut fx), [(1, WcStatus::Flushed)]);
    assert!(fx.arena.regions().pd_of(stag).is_some());
    for (ulpdu, cause) in [(0, (1, 1, 2)), (1, (0, 1, 3))] {
        let mut fx = self::connected();
        let own = fx.register(2000, 64, Access::ALL, false);
        fx.inject_ulpdu(&write(own, 2000, b"own"));
        assert_eq!(fx.arena.read(2000, 3), b"own");
        let stag = others(&fx);
        let bad = [write(stag, 1000, b"x"), read_request(1, stag, 1000, 1, 0)];
        fx.inject_ulpdu(&bad[ulpdu]);
        assert_eq!(fx.sent_terminate().cause(), cause);
        assert_eq!(fx.arena.read(1000, 64), [0; 64]);
    }
}

// req-test: RDMAP-265, RDMAP-175, RDMAP-185, RDMAP-109
#[test]
fn invalidate_of_unknown_stag_is_refused() {
    for opcode in [opcode::SEND_INVALIDATE, opcode::SEND_SOLICITED_INVALIDATE] {
        let mut fx = connected();
        fx.post_recv(1, 0, 64);
        fx.inject_ulpdu(&send_as(opcode, 1, 0x1234_5678, b"bye"));
        let terminate = fx.sent_terminate();
        assert_eq!(terminate.cause(), (0, 2, 9));
        assert_eq!(wc_statuses(&mut fx), [(1, WcStatus::Flushed)]);
        assert!(is_terminate_sent(&mut fx));
    }
}

// req-test: RDMAP-098, RDMAP-041, RDMAP-126, RDMAP-148, RDMAP-270
#[test]
fn read_of_unknown_stag_is_refused() {
    let mut fx = connected();
    let bad = read_request(1, fx.mem_stag ^ 1, 0, 10, 0x123);
    fx.inject_ulpdu(&bad);
    let terminate = fx.sent_terminate();
    assert_eq!(terminate.cause(), (0, 1, 0));
    assert_eq!((&terminate.ddp_header[..], &terminate.rdma_header[..]), (&bad[..18], &bad[18..]));
    assert!(is_terminate_sent(&mut fx));
}

/// Expects a Read from a region of 64 bytes at 4096 with rights `access` to be refused with `code`.
fn expect_read_refused(access: Access, foreign: bool, to: u64, len: u32, code: u8) {
    let mut fx = connected();
    let stag = fx.register(4096, 64, access, foreign);
    let bad = read_request(1, stag, to, len, 0x123);
    fx.inject_ulpdu(&bad);
    let terminate = fx.sent_terminate();
    assert_eq!(terminate.cause(), (0, 1, code), "{len} bytes at {to}");
    assert_eq!((&terminate.ddp_header[..], &terminate.rdma_header[..]), (&bad[..18], &bad[18..]));
    assert!(is_terminate_sent(&mut fx));
}

// req-test: RDMAP-099, RDMAP-156, RDMAP-272, RDMAP-273, RDMAP-278
#[test]
fn read_beyond_bounds_is_refused() {
    for (to, len) in [(4095, 1), (4160, 1), (4096, 65), (4159, 2), (4000, 300)] {
        expect_read_refused(Access::REMOTE_READ, false, to, len, 1);
    }
    let mut fx = connected();
    let stag = fx.register(4096, 64, Access::REMOTE_READ, false);
    fx.inject_ulpdu(&read_request(1, stag, 4096, 64, 0));
    fx.inject_ulpdu(&read_request(2, stag, 4159, 1, 0));
    assert_eq!(sent_opcodes(&mut fx), [2, 2]);
    // The STag of a zero-length Read is not checked.
    fx.inject_ulpdu(&read_request(3, 0xdead_beef, u64::MAX, 0, 0));
    assert_eq!(sent_opcodes(&mut fx), [2]);
    // Any other Read is checked as a whole before anything is sent.
    let stag = fx.register(8192, 4000, Access::REMOTE_READ, false);
    fx.inject_ulpdu(&read_request(4, stag, 8192, 4001, 0));
    assert_eq!(fx.sent_terminate().cause(), (0, 1, 1));
}

/// A DDP error in a Read Request, and an RDMAP error in a message of the same length: only a Read
/// Request refused by RDMAP has its RDMA header copied.
// req-test: RDMAP-091, RDMAP-129, RDMAP-131, RDMAP-258, RDMAP-259
#[test]
fn only_a_refused_read_request_has_its_rdma_header_in_terminate() {
    let mut out_of_turn = read_request(1, 0, 0, 10, 0x123);
    out_of_turn[17] = 1;
    let invalidating = send_as(opcode::SEND_INVALIDATE, 1, 0x1234_5678, &[7; 28]);
    assert_eq!(out_of_turn.len(), invalidating.len());
    let refused = read_request(1, 0x1234_5678, 0, 10, 0x123);
    for (bad, cause, copied) in [
        (out_of_turn, (1, 2, 4), 18..18),
        (invalidating, (0, 2, 9), 18..18),
        (refused, (0, 1, 0), 18..46),
    ] {
        let mut fx = connected();
        fx.post_recv(1, 0, 64);
        fx.inject_ulpdu(&bad);
        let terminate = fx.sent_terminate();
        assert_eq!(terminate.cause(), cause);
        assert_eq!(terminate.ddp_header, bad[..18]);
        assert_eq!(terminate.rdma_header, bad[copied]);
    }
}

// req-test: RDMAP-100, RDMAP-280
#[test]
fn read_without_access_right_is_refused() {
    expect_read_refused(Access::REMOTE_WRITE | Access::LOCAL_READ, false, 4096, 1, 2);
}

// req-test: RDMAP-101, RDMAP-271, RDMAP-328, RDMAP-259
#[test]
fn read_of_foreign_pd_is_refused() {
    expect_read_refused(Access::ALL, true, 4096, 1, 3);
}

// req-test: RDMAP-102, RDMAP-274
#[test]
fn read_with_to_wrap_is_refused() {
    expect_read_refused(Access::REMOTE_READ, false, u64::MAX - 7, 16, 4);
    expect_read_refused(Access::REMOTE_READ, false, u64::MAX, 4096, 4);
}

// req-test: RDMAP-127, RDMAP-124, RDMAP-125
#[test]
fn failing_read_terminates_with_the_remaining_range() {
    let mut fx = FpduFixture::connected(300, 4, 4);
    let stag = fx.register(4096, 50_000, Access::REMOTE_READ, false);
    // More than the window allows to be sent before the region is invalidated.
    fx.stop_acks(2);
    fx.inject_ulpdu(&read_request(1, stag, 4096, 50_000, 0x1_0000_0000));
    assert!(fx.arena.regions().invalidate(stag));
    fx.resume_acks(0xffff);
    let messages = fx.sent_messages();
    let (terminate, responses) = messages.split_last().unwrap();
    let done: usize = responses.iter().map(|(_, payload)| payload.len()).sum();
    assert!(done > 0 && done < 50_000, "{done}");
    assert_eq!(terminate.1[..3], [0x01, 0, 0xe0]);
    let left = u32::try_from(50_000 - done).unwrap();
    let rest = read_request(1, stag, 4096 + done as u64, left, 0x1_0000_0000 + done as u64);
    assert_eq!(terminate.1[6..], rest[..]);
}

// req-test: RDMAP-166, RDMAP-163, RDMAP-106
#[test]
fn read_response_must_match_its_request() {
    let mut fx = connected();
    fx.inject_ulpdu(&read_response(fx.mem_stag, 0, true, b"x"));
    assert_eq!(fx.sent_terminate().cause(), (0, 2, 6), "nobody asked");
    type Change = fn(u32) -> Vec<Vec<u8>>;
    let cases: [(Change, u8); 5] = [
        (|stag| vec![read_response(stag, 101, true, b"abcd")], 1),
        (|stag| vec![read_response(stag ^ 1, 100, true, b"abcd")], 0),
        (|stag| vec![read_response(stag, 100, true, b"abc")], 1),
        (|stag| vec![read_response(stag, 100, true, b"abcde")], 1),
        (
            |stag| {
                vec![
                    read_response(stag, 100, false, b"ab"),
                    read_response(stag ^ 1, 102, true, b"cd"),
                ]
            },
            0,
        ),
    ];
    for (answer, code) in cases {
        let mut fx = self::connected();
        fx.post_read(1, 100, 4, PEER_STAG, 0);
        assert_eq!(sent_opcodes(&mut fx), [1]);
        for ulpdu in answer(fx.mem_stag) {
            fx.inject_ulpdu(&ulpdu);
        }
        assert_eq!(fx.sent_terminate().cause(), (1, 1, code));
        assert_eq!(wc_statuses(&mut fx), [(1, WcStatus::Flushed)]);
    }
    let mut fx = self::connected();
    fx.post_read(1, 100, 4, PEER_STAG, 0);
    assert_eq!(sent_opcodes(&mut fx), [1]);
    fx.inject_ulpdu(&read_response(fx.mem_stag, 100, false, b"ab"));
    fx.inject_ulpdu(&read_response(fx.mem_stag, 102, true, b"cd"));
    assert_eq!(wc_statuses(&mut fx), [(1, WcStatus::Success)]);
}

// req-test: RDMAP-105, RDMAP-264, RDMAP-269, RDMAP-055, RDMAP-130
#[test]
fn wrong_rdmap_version_is_refused() {
    // Each valid but for its version, alone or as the second segment of a message.
    let messages = |fx: &mut FpduFixture| {
        let stag = fx.register_for_stream(1000, 64, Access::ALL);
        let sink = fx.mem_stag;
        let segment_of_send = |mo, last| Header::send(1, mo, last).encode(b"xy");
        let terminate =
            Header::Untagged { opcode: 7, last: true, invalidate: 0, qn: 2, msn: 1, mo: 0 };
        let mut messages = vec![
            (None, write(stag, 1000, b"xyzw")),
            (Some(Header::write(stag, 1000, false).encode(b"xy")), write(stag, 1002, b"zw")),
            (Some(segment_of_send(0, false)), segment_of_send(2, false)),
            (Some(segment_of_send(0, false)), segment_of_send(2, true)),
            (None, read_request(1, stag, 1000, 1, 0)),
            (None, read_response(sink, 100, false, b"xy")),
            (None, read_response(sink, 100, true, b"xyzw")),
            (Some(read_response(sink, 100, false, b"xy")), read_response(sink, 102, false, b"z")),
            (Some(read_response(sink, 100, false, b"xy")), read_response(sink, 102, true, b"zw")),
            (None, terminate.encode(&[0x11, 0, 0, 0])),
        ];
        messages.extend([3, 5].map(|opcode| (None, send_as(opcode, 1, 0, b"xy"))));
        messages.extend([4, 6].map(|opcode| (None, send_as(opcode, 1, stag, b"xy"))));
        messages.extend([8, 9].map(|opcode| (None, send_as(opcode, 1, 0, b"immediat"))));
        messages
    };
    let count = messages(&mut connected()).len();
    for (version, index) in
        [0u8, 0x80, 0xc0].into_iter().flat_map(|v| (0..count).map(move |i| (v, i)))
    {
        let mut fx = connected();
        fx.post_recv(1, 0, 64);
        fx.post_read(2, 100, 4, PEER_STAG, 0);
        fx.take_sent();
        let (first, good) = messages(&mut fx).swap_remove(index);
        let mut bad = good;
        bad[1] = bad[1] & 0x3f | version;
        // Both in one TCP segment, so that the second is in the run of the first.
        let segments = [first.as_deref(), Some(&bad[..])].into_iter().flatten();
        fx.inject(&segments.flat_map(|ulpdu| fpdu(ulpdu, true)).collect::<Vec<_>>());
        let terminate = fx.sent_terminate();
        assert_eq!(terminate.cause(), (0, 2, 5), "message {index}");
        let len = if bad[0] & 0x80 == 0 { 18 } else { 14 };
        // A whole Read Request has its RDMA header copied (section 7.1, item 3).
        let request = if bad.len() == 46 { 28 } else { 0 };
        assert_eq!(
            (&terminate.ddp_header[..], terminate.rdma_header.len()),
            (&bad[..len], request)
        );
        let flushed = [(2, WcStatus::Flushed), (1, WcStatus::Flushed)];
        assert_eq!(wc_statuses(&mut fx), flushed, "message {index}");
        let placed = if first.is_some() { 2 } else { 0 };
        for at in [0, 100, 1000] {
            assert_eq!(fx.arena.read(at + placed, 4), [0; 4], "message {index}");
        }
    }
}

/// Expects an opcode in the wrong buffer model or on the wrong queue to be refused.
fn expect_opcode_refused(ulpdu: &[u8], opcode: u8, tagged: bool, qn: u32) {
    let mut fx = connected();
    fx.post_recv(1, 0, 64);
    let mut bad = ulpdu.to_vec();
    bad[0] = if tagged { 0xc1 } else { 0x41 };
    bad[1] = 0x40 | opcode;
    if !tagged {
        bad[6..10].copy_from_slice(&qn.to_be_bytes());
    }
    fx.inject_ulpdu(&bad);
    assert_eq!(fx.sent_terminate().cause(), (0, 2, 6), "opcode {opcode}, queue {qn}, {tagged}");
    assert_eq!(wc_statuses(&mut fx), [(1, WcStatus::Flushed)]);
}

// req-test: RDMAP-262, RDMAP-263
#[test]
fn opcode_in_wrong_buffer_model_is_refused() {
    for opcode in [opcode::WRITE, opcode::READ_RESPONSE] {
        for qn in 0..3 {
            expect_opcode_refused(&send(1, b"x"), opcode, false, qn);
        }
    }
    for opcode in [1, 3, 4, 5, 6, 7] {
        expect_opcode_refused(&write(0, 0, b"x"), opcode, true, 0);
    }
}

// req-test: RDMAP-263, RDMAP-268
#[test]
fn opcode_on_wrong_queue_is_refused() {
    for opcode in [3, 4, 5, 6] {
        expect_opcode_refused(&send(1, b"x"), opcode, false, 1);
        expect_opcode_refused(&send(1, b"x"), opcode, false, 2);
    }
    // Opcodes that do not belong on queue 1, those of RFC 7306 included; of these only Atomic
    // Request does.
    for opcode in [0, 2, 8, 9, 11] {
        expect_opcode_refused(&send(1, b"x"), opcode, false, 1);
    }
    for qn in [0, 2] {
        expect_opcode_refused(&read_request(1, 0, 0, 0, 0), opcode::READ_REQUEST, false, qn);
    }
    for qn in [0, 1] {
        expect_opcode_refused(&send(1, &[0; 4]), opcode::TERMINATE, false, qn);
    }
}

// req-test: RDMAP-070, RDMAP-262
#[test]
fn unknown_opcode_is_refused() {
    for opcode in 12..16 {
        expect_opcode_refused(&send(1, b"x"), opcode, false, 0);
        expect_opcode_refused(&write(0, 0, b"x"), opcode, true, 0);
    }
}

// req-test: RDMAP-072, RDMAP-267
#[test]
fn read_request_must_be_28_bytes_in_one_segment() {
    let good = read_request(1, 0, 0, 0, 0);
    let too_long = [&good[..], &[0]].concat();
    let mut not_last = good.clone();
    not_last[0] &= !0x40;
    let mut further = good.clone();
    further[17] = 1;
    let mut far = good.clone();
    far[14] = 1;
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
        (&far, (1, 2, 4)),
        (&skipped, (1, 2, 3)),
        (&before_the_first, (1, 2, 3)),
    ] {
        let mut fx = connected();
        fx.inject_ulpdu(bad);
        assert_eq!(fx.sent_terminate().cause(), cause, "{bad:02x?}");
        assert!(is_terminate_sent(&mut fx), "{bad:02x?}");
    }
    let mut fx = connected();
    fx.inject_ulpdu(&good);
    assert_eq!(sent_opcodes(&mut fx), [2]);
    fx.inject_ulpdu(&good);
    assert_eq!(fx.sent_terminate().cause(), (1, 2, 3), "it has been there");
}

/// A Terminate of the peer with `bytes` as its payload.
fn terminate_ulpdu(bytes: &[u8]) -> Vec<u8> {
    let opcode = opcode::TERMINATE;
    Header::Untagged { opcode, last: true, invalidate: 0, qn: 2, msn: 1, mo: 0 }.encode(bytes)
}

fn received_cause(fx: &mut FpduFixture) -> (u8, u8, u8) {
    match fx.end_reason() {
        Some(EndReason::TerminateReceived(terminate)) => {
            (terminate.layer, terminate.error_type, terminate.code)
        }
        other => panic!("{other:?}"),
    }
}

// req-test: RDMAP-044, RDMAP-189, RDMAP-190, RDMAP-191, RDMAP-192
#[test]
fn terminate_needs_no_receive_and_is_reported() {
    for cause in [(0, 1, 9), (1, 2, 5), (2, 0, 2), (0, 2, 0xff), (15, 15, 255)] {
        let mut fx = connected();
        fx.post_send(1, 0, 4);
        assert_eq!(sent_opcodes(&mut fx), [3]);
        fx.inject_ulpdu(&terminate_ulpdu(&[cause.0 << 4 | cause.1, cause.2, 0, 0]));
        assert_eq!(received_cause(&mut fx), cause);
        assert_eq!(wc_statuses(&mut fx), [(1, WcStatus::Success)]);
    }
}

// req-test: RDMAP-097, RDMAP-116, RDMAP-094, RDMAP-117
#[test]
fn terminate_with_unknown_code_or_reserved_bits_is_accepted() {
    for code in [0u8, 1, 77, 255] {
        let mut fx = connected();
        fx.inject_ulpdu(&terminate_ulpdu(&[0, code, 0x1f, 0xff]));
        assert_eq!(received_cause(&mut fx), (0, 0, code));
    }
    for layer in [0u8, 1, 2, 9, 15] {
        let mut fx = connected();
        // An unassigned code, in either order of layer and type.
        fx.inject_ulpdu(&terminate_ulpdu(&[layer << 4, 0x55, 0, 0]));
        assert_eq!(received_cause(&mut fx), (layer, 0, 0x55));
    }
}

// req-test: RDMAP-193, RDMAP-196, RDMAP-248
#[test]
fn malformed_terminate_ends_the_stream() {
    for bytes in [&b""[..], &[0x11], &[0x11, 0, 0xe0]] {
        let mut fx = connected();
        fx.post_recv(1, 0, 64);
        fx.inject_ulpdu(&terminate_ulpdu(bytes));
        assert!(fx.end_reason().is_some());
        assert_eq!(wc_statuses(&mut fx), [(1, WcStatus::Flushed)]);
        fx.inject_ulpdu(&send(1, b"x"));
        assert_eq!(fx.arena.read(0, 1), [0]);
    }
    // After a valid Terminate the stack sends nothing more.
    let mut fx = connected();
    fx.inject_ulpdu(&terminate_ulpdu(&[0x11, 0, 0, 0]));
    fx.post_send(1, 0, 4);
    assert_eq!(wc_statuses(&mut fx), [(1, WcStatus::Flushed)]);
    assert_eq!(fx.sent_ulpdus().len(), 0);
    assert!(fx.fin_sent);
}

// req-test: RDMAP-186, RDMAP-195, RDMAP-253, RDMAP-261, RDMAP-194
#[test]
fn terminate_is_last_and_reports_the_first_error() {
    let mut fx = FpduFixture::connected(300, 4, 4);
    for wr_id in 1..=8 {
        fx.post_read(wr_id, 0, 1, PEER_STAG, 0);
    }
    fx.post_send(9, 0, 1000);
    assert_eq!(sent_opcodes(&mut fx), [1; 4]);
    let stag = fx.register(1024, 64, Access::REMOTE_WRITE, false);
    let bytes: Vec<_> = [
        write(stag, 1020, b"first error"),
        send(1, b"second error"),
        write(stag, 1024, b"nothing wrong"),
    ]
    .iter()
    .flat_map(|ulpdu| fpdu(ulpdu, true))
    .collect();
    fx.inject(&bytes);
    assert_eq!(fx.sent_terminate().cause(), (1, 1, 1));
    assert_eq!(fx.arena.read(1024, 64), [0; 64]);
    let expected: Vec<_> = (1..=9).map(|wr_id| (wr_id, WcStatus::Flushed)).collect();
    assert_eq!(wc_statuses(&mut fx), expected);
    assert!(is_terminate_sent(&mut fx));
    assert!(fx.fin_sent && !fx.rst_sent);
}

// req-test: RDMAP-118, RDMAP-119, RDMAP-120, RDMAP-123, RDMAP-258
#[test]
fn terminate_carries_ddp_header_and_segment_length() {
    for bad in [
        write(5, 6, &[7; 1000]),
        Header::send(2, 3, true).encode(&[7; 500]),
        read_response(5, 6, true, &[7; 100]),
    ] {
        let mut fx = connected();
        fx.inject_ulpdu(&bad);
        let ulpdus = fx.sent_ulpdus();
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
fn application_sees_the_sent_terminate() {
    for (bad, cause) in [
        (write(5, 6, &[7; 1000]), (1, 1, 0)),
        (Header::send(1, 3, true).encode(&[7; 500]), (1, 2, 4)),
        (read_request(1, 5, 0, 10, 0x123), (0, 1, 0)),
    ] {
        let mut fx = connected();
        fx.post_recv(1, 0, 64);
        fx.inject_ulpdu(&bad);
        let sent = fx.sent_terminate();
        let Some(EndReason::TerminateSent(terminate)) = fx.end_reason() else {
            panic!("no Terminate")
        };
        assert_eq!((terminate.cause(), sent.cause()), (cause, cause));
        assert_eq!(terminate.segment_len.map(usize::from), Some(bad.len()));
        let header_len = if bad[0] & 0x80 == 0 { 18 } else { 14 };
        assert_eq!(terminate.ddp_header(), &bad[..header_len]);
    }
}

// req-test: RDMAP-095, RDMAP-132, MPA-158, MPA-161, DDP-183
#[test]
fn terminate_for_mpa_error_has_no_headers() {
    let mut fx = connected();
    fx.post_recv(1, 0, 64);
    let mut bytes = fpdu(&send(1, b"x"), true);
    bytes[21] ^= 1;
    for msn in 1..100 {
        bytes.extend(fpdu(&send(msn, b"x"), true));
    }
    fx.inject(&bytes);
    let ulpdus = fx.sent_ulpdus();
    assert_eq!(ulpdus.len(), 1);
    assert_eq!(ulpdus[0][18..], [0x20, 2, 0, 0]);
    assert_eq!(fx.arena.read(0, 1), [0]);
    assert_eq!(wc_statuses(&mut fx), [(1, WcStatus::Flushed)]);
}

// req-test: RDMAP-121, RDMAP-128, RDMAP-257, RDMAP-096
#[test]
fn terminate_for_local_error_has_no_headers() {
    let nowhere = Sge { addr: 0, len: 8, lkey: 0x77 };
    let payload = || Payload::Gather([nowhere].into());
    for operation in [
        Operation::Write { payload: payload(), rkey: PEER_STAG, remote: 0 },
        Operation::Send { payload: payload(), solicited: false, invalidate: None },
        Operation::Read { sink: [nowhere].into(), rkey: PEER_STAG, remote: 0 },
    ] {
        let mut fx = connected();
        fx.post_op(1, operation);
        let ulpdus = fx.sent_ulpdus();
        assert_eq!((ulpdus.len(), &ulpdus[0][..2]), (1, &[0x41, 0x47][..]), "a Terminate alone");
        assert_eq!(ulpdus[0][18..], [0; 4]);
        assert_eq!(wc_statuses(&mut fx), [(1, WcStatus::LocalProtection)]);
    }
}

// req-test: RDMAP-243, RDMAP-245, RDMAP-249, RDMAP-251, RDMAP-254
#[test]
fn terminate_is_followed_by_graceful_close() {
    let mut fx = connected();
    fx.inject_ulpdu(&write(0, 0, b"x"));
    assert_eq!(sent_opcodes(&mut fx), [7]);
    assert!(fx.fin_sent && !fx.rst_sent, "a FIN behind it");
    assert!(is_terminate_sent(&mut fx));
    fx.inject_flags(Flags::ACK | Flags::FIN);
    assert_eq!(fx.engine.unfinished_count(), 0);
}
