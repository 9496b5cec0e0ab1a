//! Rules of DDP on what may be placed and where, each broken and answered.

use ferrowarp_proto::ddp::memory::{Access, Memory as _};
use ferrowarp_proto::verbs::cm::{ConnParam, EndReason, Event};
use ferrowarp_proto::verbs::wc::WcStatus;
use ferrowarp_proto::verbs::wr::{Bind, Operation, RecvWr, Sge};
use ferrowarp_tests::compliance::bed::Bed;
use ferrowarp_tests::compliance::messages::read;
use ferrowarp_tests::peer::{Header, ReadRequest, marked_fpdu};

/// Octets of a tagged header, and of an untagged one.
const LENS: (usize, usize) = (14, 18);

fn bed() -> Bed {
    Bed::started(1460, 4, 4)
}

fn segment_of_send(msn: u32, mo: u32, last: bool, payload: &[u8]) -> Vec<u8> {
    Header::send(msn, mo, last).encode(payload)
}

fn segment_of_write(stag: u32, to: u64, last: bool, payload: &[u8]) -> Vec<u8> {
    Header::write(stag, to, last).encode(payload)
}

/// A segment that may not be placed: Terminate, nothing placed, and the stream's end.
fn refused(bed: &mut Bed, ulpdu: &[u8], expected: (u8, u8, u8)) {
    let before = bed.arena.read(0, 1 << 16);
    bed.put_ulpdu(ulpdu);
    let told = bed.terminate();
    assert_eq!(told.cause(), expected, "{ulpdu:02x?}");
    let len = if ulpdu[0] & 0x80 == 0 { LENS.1 } else { LENS.0 };
    assert_eq!(told.ddp_header, ulpdu[..len], "the header comes back");
    assert!(bed.arena.read(0, 1 << 16) == before, "{ulpdu:02x?}");
    assert!(matches!(bed.ended(), Some(EndReason::TerminateSent(_))));
}

/// A fresh connection, and regions of it: 64 octets at 4096 that may be written, 64 at 4160 that
/// may be read, and one of another protection domain.
fn with_regions() -> (Bed, [u32; 3]) {
    let bed = bed();
    let stags = [
        bed.register(4096, 64, Access::REMOTE_WRITE, false),
        bed.register(4160, 64, Access::REMOTE_READ, false),
        bed.register(4224, 64, Access::ALL, true),
    ];
    (bed, stags)
}

// req-test: DDP-058, DDP-155, DDP-171, RDMAP-334
#[test]
fn an_stag_that_nobody_has_is_refused() {
    for change in [0x100, 1, u32::MAX] {
        let (mut bed, [own, ..]) = with_regions();
        let stag = if change == u32::MAX { 0 } else { own ^ change };
        refused(&mut bed, &segment_of_write(stag, 4096, true, b"x"), (1, 1, 0));
    }
}

// req-test: DDP-173, DDP-188, DDP-205
#[test]
fn an_stag_of_another_domain_is_refused() {
    let (mut bed, [own, _, foreign]) = with_regions();
    bed.put_ulpdu(&segment_of_write(own, 4096, true, b"y"));
    assert_eq!(bed.arena.read(4096, 1), b"y");
    refused(&mut bed, &segment_of_write(foreign, 4224, true, b"x"), (1, 1, 2));
    let (mut bed, [.., foreign]) = with_regions();
    refused(&mut bed, &read(1, foreign, 4224, 1, 0), (0, 1, 3));
}

// req-test: DDP-173, DDP-190, DDP-206, RDMAP-332
#[test]
fn an_stag_of_another_stream_is_refused() {
    let mut bed = bed();
    let theirs = bed.register_own(4096, 64, Access::ALL);
    let mut first = bed.start_another(4, 4);
    refused(&mut bed, &segment_of_write(theirs, 4096, true, b"x"), (1, 1, 2));
    bed.go_back(&mut first);
    bed.put_ulpdu(&segment_of_write(theirs, 4096, true, b"y"));
    assert_eq!(bed.arena.read(4096, 1), b"y");
}

/// In DDP 1.0, with RV 0 and with that of draft-00: it is called invalid, as if nobody had it.
// req-test: RDMAP-333
#[test]
fn an_stag_of_another_stream_is_invalid_to_the_older_versions() {
    for rdmap_draft00 in [false, true] {
        let mut bed = bed();
        let theirs = bed.register_own(4096, 64, Access::ALL);
        let mut first = bed.set_aside();
        bed.say(b"MPA ID Req Frame\xc0\0\0\0");
        bed.accept(&ConnParam { rdmap_draft00, ..ConnParam::default() });
        let event = bed.engine.next_event();
        assert!(matches!(event, Some(Event::Established { .. })), "{event:?}");
        bed.hear();
        let mut ulpdu = segment_of_write(theirs, 4096, true, b"x");
        let rv = if rdmap_draft00 { 0x40 } else { 0 };
        ulpdu[..2].copy_from_slice(&[0xc0, rv]);
        bed.say(&marked_fpdu(&ulpdu, true, 0));
        let heard = bed.hear();
        // Behind a marker and the length: the Terminate's header, and its cause.
        assert_eq!(heard[6..8], [0x40, rv | 7]);
        assert_eq!(heard[24..26], [0x11, 0], "1/1/00");
        let reason = bed.ended();
        let Some(EndReason::TerminateSent(told)) = reason else { panic!("{reason:?}") };
        assert_eq!(told.cause(), (1, 1, 0));
        assert_eq!(bed.arena.read(4096, 1), [0]);
        // Its own stream has it still.
        bed.go_back(&mut first);
        bed.put_ulpdu(&segment_of_write(theirs, 4096, true, b"y"));
        assert_eq!(bed.arena.read(4096, 1), b"y");
    }
}

/// Each binding of a window to a buffer that the poster may not access that way.
// req-test: DDP-216
#[test]
fn an_stag_is_not_tied_to_a_buffer_that_its_owner_may_not_access() {
    type Registered = fn(&Bed) -> u32;
    fn own(bed: &Bed) -> u32 {
        bed.register(4096, 64, Access::ALL, false)
    }
    let all = Access::ALL;
    let cases: [(&str, Registered, u64, u64, Access, bool); 6] = [
        ("its own", own, 4096, 64, all, true),
        (
            "of another domain",
            |bed| bed.register(4096, 64, Access::ALL, true),
            4096,
            64,
            all,
            false,
        ),
        ("of nobody", |bed| bed.local ^ 1, 4096, 64, all, false),
        ("beyond its end", own, 4096, 65, all, false),
        ("before its beginning", own, 4095, 64, all, false),
        (
            "that the owner itself may not change",
            |bed| bed.register(4096, 64, Access::REMOTE_READ | Access::WINDOW_BIND, false),
            4096,
            64,
            Access::REMOTE_WRITE,
            false,
        ),
    ];
    for (name, buffer, addr, len, access, is_allowed) in cases {
        let mut bed = bed();
        let window = bed.arena.regions().allocate_window(bed.pd()).unwrap();
        let lkey = buffer(&bed);
        let bind = Bind { rkey: window, lkey, addr, len, access, zero_based: false };
        bed.ask(1, Operation::Bind(bind));
        let statuses: Vec<_> = bed.done().iter().map(|wc| wc.status).collect();
        let expected = if is_allowed { WcStatus::Success } else { WcStatus::Bind };
        assert_eq!(statuses, [expected], "{name}");
        assert_eq!(bed.arena.regions().pd_of(window).is_some(), is_allowed, "{name}");
        let write = segment_of_write(window, 4096, true, b"x");
        bed.put_ulpdu(&write);
        assert_eq!(bed.arena.read(4096, 1) == b"x", is_allowed, "{name}");
    }
}

// req-test: DDP-156, DDP-196, DDP-197, DDP-208, DDP-209
#[test]
fn an_stag_that_does_not_permit_placement_is_refused() {
    let (mut bed, [_, readable, _]) = with_regions();
    refused(&mut bed, &segment_of_write(readable, 4160, true, b"x"), (1, 1, 0));
    // Revoked between two segments of a message.
    let (mut bed, [own, ..]) = with_regions();
    bed.put_ulpdu(&segment_of_write(own, 4096, false, b"x"));
    assert_eq!(bed.arena.read(4096, 1), b"x");
    assert!(bed.arena.regions().invalidate(own));
    refused(&mut bed, &segment_of_write(own, 4097, true, b"x"), (1, 1, 0));
}

// req-test: DDP-157, DDP-158, DDP-172, DDP-195, DDP-207
#[test]
fn a_region_ends_at_its_octet() {
    for (to, octets) in [(4095u64, &b"x"[..]), (4160, b"x"), (4158, b"xyz"), (4095, b"xy")] {
        let (mut bed, [own, ..]) = with_regions();
        refused(&mut bed, &segment_of_write(own, to, true, octets), (1, 1, 1));
    }
    let (mut bed, [own, ..]) = with_regions();
    bed.put_ulpdu(&segment_of_write(own, 4158, true, b"yz"));
    bed.put_ulpdu(&segment_of_write(own, 4096, true, b"a"));
    assert_eq!(bed.arena.read(4158, 3), b"yz\0");
    assert_eq!((bed.arena.read(4095, 2), bed.ended()), (b"\0a".to_vec(), None));
}

// req-test: DDP-159, DDP-174, DDP-185
#[test]
fn an_offset_that_wraps_is_refused() {
    for (to, octets) in [(u64::MAX, &b"xy"[..]), (u64::MAX - 1, b"wxyz")] {
        let (mut bed, [own, ..]) = with_regions();
        refused(&mut bed, &segment_of_write(own, to, true, octets), (1, 1, 3));
    }
    let (mut bed, [own, ..]) = with_regions();
    bed.put_ulpdu(&segment_of_write(own, 4096, true, b"fits"));
    assert_eq!(bed.arena.read(4096, 4), b"fits");
}

// req-test: DDP-175, DDP-182, DDP-170, DDP-176, DDP-137
#[test]
fn another_version_is_refused() {
    for version in [0u8, 2, 3] {
        let (mut bed, [own, ..]) = with_regions();
        let mut tagged = segment_of_write(own, 4096, true, b"x");
        tagged[0] = tagged[0] & !3 | version;
        refused(&mut bed, &tagged, (1, 1, 4));
        let (mut bed, _) = with_regions();
        bed.receive(1, 0, 64);
        let mut untagged = segment_of_send(1, 0, true, b"x");
        untagged[0] = untagged[0] & !3 | version;
        refused(&mut bed, &untagged, (1, 2, 6));
    }
}

// req-test: DDP-144, DDP-145, DDP-177, DDP-178, DDP-154
#[test]
fn a_queue_that_is_not_there_or_empty_is_refused() {
    for qn in [4u32, 5, u32::MAX] {
        let mut bed = bed();
        bed.receive(1, 0, 64);
        let mut ulpdu = segment_of_send(1, 0, true, b"x");
        ulpdu[6..10].copy_from_slice(&qn.to_be_bytes());
        refused(&mut bed, &ulpdu, (1, 2, 1));
    }
    let mut bed = bed();
    refused(&mut bed, &segment_of_send(1, 0, true, b"x"), (1, 2, 2));
    // Behind the last of the buffers.
    let mut bed = self::bed();
    bed.receive(1, 0, 64);
    bed.receive(2, 0, 64);
    bed.put_ulpdu(&segment_of_send(1, 0, true, b""));
    assert_eq!(bed.done().len(), 1);
    refused(&mut bed, &segment_of_send(3, 0, true, b"x"), (1, 2, 2));
}

// req-test: DDP-146, DDP-148, DDP-149, DDP-179, DDP-180
#[test]
fn a_number_or_offset_out_of_turn_is_refused() {
    for msn in [0u32, u32::MAX, 0x8000_0002] {
        let mut bed = bed();
        bed.receive(1, 0, 64);
        refused(&mut bed, &segment_of_send(msn, 0, true, b"x"), (1, 2, 3));
    }
    let mut bed = bed();
    for wr_id in 1..=3 {
        bed.receive(wr_id, 0, 64);
    }
    for msn in [1, 2] {
        bed.put_ulpdu(&segment_of_send(msn, 0, true, b""));
    }
    assert_eq!(bed.done().len(), 2);
    refused(&mut bed, &segment_of_send(1, 0, true, b"x"), (1, 2, 3));
    for mo in [1u32, 64, u32::MAX] {
        let mut bed = self::bed();
        bed.receive(1, 0, 64);
        refused(&mut bed, &segment_of_send(1, mo, true, b"xy"), (1, 2, 4));
    }
}

/// A fault in the second of three pieces of a buffer: what belongs into the third is not placed.
// req-test: DDP-161
#[test]
fn the_rest_of_a_segment_behind_a_fault_is_not_placed() {
    let (mut bed, _) = with_regions();
    let sge = |addr, lkey| Sge { addr, len: 4, lkey };
    let pieces = [sge(0, bed.local), sge(4, bed.local ^ 1), sge(8, bed.local)];
    let wr = RecvWr { wr_id: 1, sg_list: pieces.into_iter().collect() };
    let qp = bed.qp();
    bed.engine.post_recv(qp, wr).unwrap();
    bed.put_ulpdu(&segment_of_send(1, 0, true, b"goodbad!rest"));
    assert_eq!(bed.arena.read(4, 8), [0; 8]);
    assert_eq!(bed.terminate().cause(), (1, 0, 0));
    assert_eq!(bed.done()[0].status, WcStatus::LocalProtection);
}

// req-test: DDP-082, DDP-148, DDP-179
#[test]
fn the_first_number_of_a_queue_is_1() {
    for (msn, fits) in [(0, false), (1, true)] {
        let mut bed = bed();
        bed.receive(1, 0, 64);
        let first = segment_of_send(msn, 0, true, b"x");
        if fits {
            bed.put_ulpdu(&first);
            assert_eq!(bed.done()[0].status, WcStatus::Success);
        } else {
            refused(&mut bed, &first, (1, 2, 3));
        }
        // And of the queue of Read Requests.
        let mut bed = self::bed();
        let request =
            ReadRequest { sink_stag: 1, sink_to: 0, len: 0, source_stag: 0, source_to: 0 };
        bed.put_ulpdu(&Header::read(msn).encode(&request.encode()));
        assert_eq!(bed.ended().is_none(), fits);
    }
}

// req-test: DDP-194
#[test]
fn memory_that_was_not_registered_for_it_is_not_written() {
    let (mut bed, [_, readable, foreign]) = with_regions();
    for (wr_id, lkey) in [(1, readable), (2, foreign)] {
        let sg_list = [Sge { addr: 4160, len: 8, lkey }].into_iter().collect();
        let qp = bed.qp();
        bed.engine.post_recv(qp, RecvWr { wr_id, sg_list }).unwrap();
    }
    bed.put_ulpdu(&segment_of_send(1, 0, true, b"x"));
    let done: Vec<_> = bed.done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(1, WcStatus::LocalProtection), (2, WcStatus::Flushed)]);
    assert_eq!(bed.arena.read(4096, 192), [0; 192]);
    assert_eq!(bed.terminate().cause(), (1, 0, 0));
}
