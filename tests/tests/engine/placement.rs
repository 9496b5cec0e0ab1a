//! DDP rules on placement, each violated, with the stack's response.

use ferrowarp_proto::ddp::memory::{Access, Memory as _};
use ferrowarp_proto::verbs::cm::{ConnEvent, EndReason};
use ferrowarp_proto::verbs::wc::WcStatus;
use ferrowarp_proto::verbs::wr::{Bind, Operation, RecvWr, Sge};
use ferrowarp_tests::compliance::fixture::FpduFixture;
use ferrowarp_tests::compliance::messages::{connected, read_request};
use ferrowarp_tests::conn_param;
use ferrowarp_tests::peer::{Header, ReadRequest, marked_fpdu};

/// Bytes of a tagged and of an untagged DDP header.
const HEADER_LENS: (usize, usize) = (14, 18);

fn send_segment(msn: u32, mo: u32, last: bool, payload: &[u8]) -> Vec<u8> {
    Header::send(msn, mo, last).encode(payload)
}

fn write_segment(stag: u32, to: u64, last: bool, payload: &[u8]) -> Vec<u8> {
    Header::write(stag, to, last).encode(payload)
}

/// Expects that a segment is refused: Terminate, nothing placed, and the end of the stream.
fn expect_refused(fx: &mut FpduFixture, ulpdu: &[u8], expected: (u8, u8, u8)) {
    let before = fx.arena.read(0, 1 << 16);
    fx.inject_ulpdu(ulpdu);
    let terminate = fx.sent_terminate();
    assert_eq!(terminate.cause(), expected, "{ulpdu:02x?}");
    let len = if ulpdu[0] & 0x80 == 0 { HEADER_LENS.1 } else { HEADER_LENS.0 };
    assert_eq!(terminate.ddp_header, ulpdu[..len], "the header comes back");
    assert!(fx.arena.read(0, 1 << 16) == before, "{ulpdu:02x?}");
    assert!(matches!(fx.end_reason(), Some(EndReason::TerminateSent(_))));
}

/// A fresh connection and three regions: 64 writable bytes at 4096, 64 readable bytes at 4160, and
/// one of another protection domain.
fn connected_with_regions() -> (FpduFixture, [u32; 3]) {
    let fx = connected();
    let stags = [
        fx.register(4096, 64, Access::REMOTE_WRITE, false),
        fx.register(4160, 64, Access::REMOTE_READ, false),
        fx.register(4224, 64, Access::ALL, true),
    ];
    (fx, stags)
}

// req-test: DDP-058, DDP-155, DDP-171, RDMAP-334
#[test]
fn write_to_unknown_stag_is_refused() {
    for change in [0x100, 1, u32::MAX] {
        let (mut fx, [own, ..]) = connected_with_regions();
        let stag = if change == u32::MAX { 0 } else { own ^ change };
        expect_refused(&mut fx, &write_segment(stag, 4096, true, b"x"), (1, 1, 0));
        // After a Write to the right STag in the same segment.
        let (mut fx, [own, ..]) = connected_with_regions();
        let stag = if change == u32::MAX { 0 } else { own ^ change };
        let writes = [(own, b"y"), (stag, b"x")];
        fx.inject(
            &writes.map(|(stag, byte)| fx.fpdu(&write_segment(stag, 4096, true, byte))).concat(),
        );
        assert_eq!(fx.arena.read(4096, 1), b"y");
        assert_eq!(fx.sent_terminate().cause(), (1, 1, 0));
    }
}

// req-test: DDP-173, DDP-188, DDP-205
#[test]
fn stag_of_foreign_pd_is_refused() {
    let (mut fx, [own, _, foreign]) = connected_with_regions();
    fx.inject_ulpdu(&write_segment(own, 4096, true, b"y"));
    assert_eq!(fx.arena.read(4096, 1), b"y");
    expect_refused(&mut fx, &write_segment(foreign, 4224, true, b"x"), (1, 1, 2));
    let (mut fx, [.., foreign]) = connected_with_regions();
    expect_refused(&mut fx, &read_request(1, foreign, 4224, 1, 0), (0, 1, 3));
}

// req-test: DDP-173, DDP-190, DDP-206, RDMAP-332
#[test]
fn stag_of_another_stream_is_refused() {
    let mut fx = connected();
    let theirs = fx.register_for_stream(4096, 64, Access::ALL);
    let mut first = fx.connect_another(4, 4);
    expect_refused(&mut fx, &write_segment(theirs, 4096, true, b"x"), (1, 1, 2));
    fx.swap_connection(&mut first);
    fx.inject_ulpdu(&write_segment(theirs, 4096, true, b"y"));
    assert_eq!(fx.arena.read(4096, 1), b"y");
}

/// DDP 1.0 with RV 0 or 1 (draft-00): reported as an invalid STag.
// req-test: RDMAP-333
#[test]
fn stag_of_another_stream_is_invalid_in_older_versions() {
    for rdmap_draft00 in [false, true] {
        let mut fx = connected();
        let theirs = fx.register_for_stream(4096, 64, Access::ALL);
        let mut first = fx.park_connection();
        fx.inject(b"MPA ID Req Frame\xc0\0\0\0");
        fx.accept(&conn_param(|it| it.rdmap_draft00 = rdmap_draft00));
        let event = fx.engine.next_event();
        assert!(matches!(event, Some(ConnEvent::Established { .. })), "{event:?}");
        fx.take_sent();
        let mut ulpdu = write_segment(theirs, 4096, true, b"x");
        let rv = if rdmap_draft00 { 0x40 } else { 0 };
        ulpdu[..2].copy_from_slice(&[0xc0, rv]);
        fx.inject(&marked_fpdu(&ulpdu, true, 0));
        let sent = fx.take_sent();
        // After a marker and ULPDU_Length: the Terminate's header, and its cause.
        assert_eq!(sent[6..8], [0x40, rv | 7]);
        assert_eq!(sent[24..26], [0x11, 0], "1/1/00");
        let reason = fx.end_reason();
        let Some(EndReason::TerminateSent(terminate)) = reason else { panic!("{reason:?}") };
        assert_eq!(terminate.cause(), (1, 1, 0));
        assert_eq!(fx.arena.read(4096, 1), [0]);
        // Its own stream may still use it.
        fx.swap_connection(&mut first);
        fx.inject_ulpdu(&write_segment(theirs, 4096, true, b"y"));
        assert_eq!(fx.arena.read(4096, 1), b"y");
    }
}

/// Binds of a window to a buffer that the poster may not access that way.
// req-test: DDP-216
#[test]
fn bind_without_access_to_the_region_is_refused() {
    type Registered = fn(&FpduFixture) -> u32;
    fn own(fx: &FpduFixture) -> u32 {
        fx.register(4096, 64, Access::ALL, false)
    }
    let all = Access::ALL;
    let cases: [(&str, Registered, u64, u64, Access, bool); 6] = [
        ("its own", own, 4096, 64, all, true),
        ("of another domain", |fx| fx.register(4096, 64, Access::ALL, true), 4096, 64, all, false),
        ("of nobody", |fx| fx.mem_stag ^ 1, 4096, 64, all, false),
        ("beyond its end", own, 4096, 65, all, false),
        ("before its beginning", own, 4095, 64, all, false),
        (
            "that the owner itself may not change",
            |fx| fx.register(4096, 64, Access::REMOTE_READ | Access::WINDOW_BIND, false),
            4096,
            64,
            Access::REMOTE_WRITE,
            false,
        ),
    ];
    for (name, buffer, addr, len, access, is_allowed) in cases {
        let mut fx = connected();
        let window = fx.arena.regions().allocate_window(fx.pd()).unwrap();
        let lkey = buffer(&fx);
        let bind = Bind { rkey: window, lkey, addr, len, access, zero_based: false };
        fx.post_op(1, Operation::Bind(bind));
        let statuses: Vec<_> = fx.poll_cq().iter().map(|wc| wc.status).collect();
        let expected = if is_allowed { WcStatus::Success } else { WcStatus::Bind };
        assert_eq!(statuses, [expected], "{name}");
        assert_eq!(fx.arena.regions().pd_of(window).is_some(), is_allowed, "{name}");
        let write = write_segment(window, 4096, true, b"x");
        fx.inject_ulpdu(&write);
        assert_eq!(fx.arena.read(4096, 1) == b"x", is_allowed, "{name}");
    }
}

// req-test: DDP-156, DDP-196, DDP-197, DDP-208, DDP-209
#[test]
fn write_without_valid_write_access_is_refused() {
    let (mut fx, [_, readable, _]) = connected_with_regions();
    expect_refused(&mut fx, &write_segment(readable, 4160, true, b"x"), (1, 1, 0));
    // Invalidated between two segments of a message.
    let (mut fx, [own, ..]) = connected_with_regions();
    fx.inject_ulpdu(&write_segment(own, 4096, false, b"x"));
    assert_eq!(fx.arena.read(4096, 1), b"x");
    assert!(fx.arena.regions().invalidate(own));
    expect_refused(&mut fx, &write_segment(own, 4097, true, b"x"), (1, 1, 0));
}

// req-test: DDP-157, DDP-158, DDP-172, DDP-195, DDP-207
#[test]
fn write_one_byte_beyond_bounds_is_refused() {
    for (to, bytes) in [(4095u64, &b"x"[..]), (4160, b"x"), (4158, b"xyz"), (4095, b"xy")] {
        let (mut fx, [own, ..]) = connected_with_regions();
        expect_refused(&mut fx, &write_segment(own, to, true, bytes), (1, 1, 1));
    }
    for sets_reserved_bit in [false, true] {
        let (mut fx, [own, ..]) = connected_with_regions();
        fx.sets_reserved_bit = sets_reserved_bit;
        fx.inject_ulpdu(&write_segment(own, 4158, true, b"yz"));
        fx.inject_ulpdu(&write_segment(own, 4096, true, b"a"));
        assert_eq!(fx.arena.read(4158, 3), b"yz\0");
        assert_eq!((fx.arena.read(4095, 2), fx.end_reason()), (b"\0a".to_vec(), None));
    }
}

// req-test: DDP-159, DDP-174, DDP-185
#[test]
fn write_with_to_wrap_is_refused() {
    for (to, bytes) in [(u64::MAX, &b"xy"[..]), (u64::MAX - 1, b"wxyz")] {
        let (mut fx, [own, ..]) = connected_with_regions();
        expect_refused(&mut fx, &write_segment(own, to, true, bytes), (1, 1, 3));
    }
    let (mut fx, [own, ..]) = connected_with_regions();
    fx.inject_ulpdu(&write_segment(own, 4096, true, b"fits"));
    assert_eq!(fx.arena.read(4096, 4), b"fits");
}

// req-test: DDP-175, DDP-182, DDP-170, DDP-176, DDP-137
#[test]
fn wrong_ddp_version_is_refused() {
    for version in [0u8, 2, 3] {
        let (mut fx, [own, ..]) = connected_with_regions();
        let mut tagged = write_segment(own, 4096, true, b"x");
        tagged[0] = tagged[0] & !3 | version;
        expect_refused(&mut fx, &tagged, (1, 1, 4));
        let (mut fx, _) = connected_with_regions();
        fx.post_recv(1, 0, 64);
        let mut untagged = send_segment(1, 0, true, b"x");
        untagged[0] = untagged[0] & !3 | version;
        expect_refused(&mut fx, &untagged, (1, 2, 6));
    }
}

// req-test: DDP-144, DDP-145, DDP-177, DDP-178, DDP-154
#[test]
fn invalid_qn_or_empty_queue_is_refused() {
    for qn in [4u32, 5, u32::MAX] {
        let mut fx = connected();
        fx.post_recv(1, 0, 64);
        let mut ulpdu = send_segment(1, 0, true, b"x");
        ulpdu[6..10].copy_from_slice(&qn.to_be_bytes());
        expect_refused(&mut fx, &ulpdu, (1, 2, 1));
    }
    let mut fx = connected();
    expect_refused(&mut fx, &send_segment(1, 0, true, b"x"), (1, 2, 2));
    // Beyond the last posted buffer.
    let mut fx = self::connected();
    fx.post_recv(1, 0, 64);
    fx.post_recv(2, 0, 64);
    fx.inject_ulpdu(&send_segment(1, 0, true, b""));
    assert_eq!(fx.poll_cq().len(), 1);
    expect_refused(&mut fx, &send_segment(3, 0, true, b"x"), (1, 2, 2));
    // One that was delivered lacks no buffer.
    let mut fx = self::connected();
    fx.post_recv(1, 0, 64);
    fx.post_recv(2, 0, 64);
    fx.inject_ulpdu(&send_segment(1, 0, true, b""));
    assert_eq!(fx.poll_cq().len(), 1);
    expect_refused(&mut fx, &send_segment(1, 0, true, b"x"), (1, 2, 3));
}

// req-test: DDP-146, DDP-148, DDP-149, DDP-179, DDP-180
#[test]
fn msn_or_mo_out_of_range_is_refused() {
    for msn in [0u32, u32::MAX, 0x8000_0002] {
        let mut fx = connected();
        fx.post_recv(1, 0, 64);
        expect_refused(&mut fx, &send_segment(msn, 0, true, b"x"), (1, 2, 3));
    }
    let mut fx = connected();
    for wr_id in 1..=3 {
        fx.post_recv(wr_id, 0, 64);
    }
    for msn in [1, 2] {
        fx.inject_ulpdu(&send_segment(msn, 0, true, b""));
    }
    assert_eq!(fx.poll_cq().len(), 2);
    expect_refused(&mut fx, &send_segment(1, 0, true, b"x"), (1, 2, 3));
    for mo in [1u32, 64, u32::MAX] {
        let mut fx = self::connected();
        fx.post_recv(1, 0, 64);
        expect_refused(&mut fx, &send_segment(1, mo, true, b"xy"), (1, 2, 4));
    }
}

/// A fault in the second of three SGEs of a buffer: data for the third is not placed.
// req-test: DDP-161
#[test]
fn nothing_is_placed_after_a_faulty_sge() {
    let (mut fx, _) = connected_with_regions();
    let sge = |addr, lkey| Sge { addr, len: 4, lkey };
    let pieces = [sge(0, fx.mem_stag), sge(4, fx.mem_stag ^ 1), sge(8, fx.mem_stag)];
    let wr = RecvWr { wr_id: 1, sg_list: pieces.into() };
    let qp = fx.qp();
    fx.engine.post_recv(qp, wr).unwrap();
    fx.inject_ulpdu(&send_segment(1, 0, true, b"goodbad!rest"));
    assert_eq!(fx.arena.read(4, 8), [0; 8]);
    assert_eq!(fx.sent_terminate().cause(), (1, 0, 0));
    assert_eq!(fx.poll_cq()[0].status, WcStatus::LocalProtection);
}

// req-test: DDP-082, DDP-148, DDP-179
#[test]
fn msn_starts_at_1() {
    for (msn, fits) in [(0, false), (1, true)] {
        let mut fx = connected();
        fx.post_recv(1, 0, 64);
        let first = send_segment(msn, 0, true, b"x");
        if fits {
            fx.inject_ulpdu(&first);
            assert_eq!(fx.poll_cq()[0].status, WcStatus::Success);
        } else {
            expect_refused(&mut fx, &first, (1, 2, 3));
        }
        // The same for the queue of Read Requests.
        let mut fx = self::connected();
        let request =
            ReadRequest { sink_stag: 1, sink_to: 0, len: 0, source_stag: 0, source_to: 0 };
        fx.inject_ulpdu(&Header::read(msn).encode(&request.encode()));
        assert_eq!(fx.end_reason().is_none(), fits);
    }
}

// req-test: DDP-194
#[test]
fn receive_without_local_write_access_fails() {
    let (mut fx, [_, readable, foreign]) = connected_with_regions();
    for (wr_id, lkey) in [(1, readable), (2, foreign)] {
        let sg_list = [Sge { addr: 4160, len: 8, lkey }].into();
        let qp = fx.qp();
        fx.engine.post_recv(qp, RecvWr { wr_id, sg_list }).unwrap();
    }
    fx.inject_ulpdu(&send_segment(1, 0, true, b"x"));
    let done: Vec<_> = fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(1, WcStatus::LocalProtection), (2, WcStatus::Flushed)]);
    assert_eq!(fx.arena.read(4096, 192), [0; 192]);
    assert_eq!(fx.sent_terminate().cause(), (1, 0, 0));
}
