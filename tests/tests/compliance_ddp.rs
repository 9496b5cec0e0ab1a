//! Rules of DDP, seen from the wire: segments out, and what segments in bring about.

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::verbs::cm::{CmError, ConnParam, EndReason, Event};
use ferrowarp_proto::verbs::wc::{WcOpcode, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, Payload, PostError, SendWr, Sge};
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::compliance::bed::Bed;
use ferrowarp_tests::compliance::messages::read;
use ferrowarp_tests::peer::{Header, fpdu, opcode};

/// STag of the peer's memory.
const THEIRS: u32 = 0x00c0_ffee;
/// Octets of a tagged header, and of an untagged one.
const LENS: (usize, usize) = (14, 18);

fn bed() -> Bed {
    Bed::started(1460, 4, 4)
}

/// Octets that tell their place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 7 + at / 256) % 251).to_le_bytes()[0]).collect()
}

/// MULPDU without markers (RFC 5044 section 4.5).
fn mulpdu(emss: usize) -> usize {
    (emss - 6 - emss % 4).max(128)
}

/// Lengths of messages around those that a segment takes.
fn lens(emss: usize) -> [usize; 8] {
    let room = mulpdu(emss) - LENS.1;
    [0, 1, room - 1, room, room + 1, 2 * room, 2 * room + 3, 20_000]
}

fn summed(list: Vec<Sge>) -> Operation {
    let payload = Payload::Gather(list.into_iter().collect());
    Operation::Send { payload, solicited: false, invalidate: None }
}

fn written(list: Vec<Sge>) -> Operation {
    let payload = Payload::Gather(list.into_iter().collect());
    Operation::Write { payload, rkey: THEIRS, remote: 0 }
}

fn segment_of_send(msn: u32, mo: u32, last: bool, payload: &[u8]) -> Vec<u8> {
    Header::send(msn, mo, last).encode(payload)
}

fn segment_of_write(stag: u32, to: u64, last: bool, payload: &[u8]) -> Vec<u8> {
    Header::write(stag, to, last).encode(payload)
}

/// The segments of a Send of `len` octets: last, queue, MSN, offset and payload of each.
fn sent(emss: u16, len: usize) -> Vec<(bool, u32, u32, u32, Vec<u8>)> {
    let mut bed = Bed::started(emss, 4, 4);
    bed.arena.write(0, &pattern(len));
    bed.send(1, 0, u32::try_from(len).unwrap());
    bed.messages()
        .into_iter()
        .map(|(header, payload)| match header {
            Header::Untagged { opcode: opcode::SEND, last, qn, msn, mo, .. } => {
                (last, qn, msn, mo, payload)
            }
            other => panic!("{other:?}"),
        })
        .collect()
}

// req-test: DDP-093, DDP-096, DDP-099, DDP-110, DDP-087
#[test]
fn every_octet_of_a_send_goes_out_once_in_rising_order() {
    for emss in [200u16, 537, 1460] {
        for len in lens(emss.into()) {
            let mut octets = Vec::new();
            let segments = sent(emss, len);
            let room = mulpdu(emss.into()) - LENS.1;
            assert_eq!(segments.len(), len.div_ceil(room).max(1), "EMSS {emss}, {len} octets");
            for (_, _, _, mo, payload) in segments {
                assert_eq!(mo as usize, octets.len(), "EMSS {emss}, {len} octets");
                octets.extend(payload);
            }
            assert!(octets == pattern(len), "EMSS {emss}, {len} octets");
        }
    }
}

// req-test: DDP-038, DDP-039, DDP-040, DDP-041, DDP-043
#[test]
fn the_last_segment_says_so_and_no_other() {
    for len in lens(300) {
        let segments = sent(300, len);
        let (last, others) = segments.split_last().unwrap();
        assert!(last.0 && others.iter().all(|segment| !segment.0), "{len} octets");
        assert!(others.iter().all(|segment| segment.3 < last.3), "{len} octets");
        assert!(len == 0 || !last.4.is_empty(), "{len} octets");
        // Nor of a Write, or of a response to the peer's Read.
        let mut bed = Bed::started(300, 4, 4);
        let len_32 = u32::try_from(len).unwrap();
        bed.write(1, 0, len_32, THEIRS, 0);
        bed.put_ulpdu(&read(1, bed.local, 0, len_32, 0));
        let messages = bed.messages();
        for kind in [opcode::WRITE, opcode::READ_RESPONSE] {
            let segments: Vec<_> = messages
                .iter()
                .filter_map(|(header, payload)| match *header {
                    Header::Tagged { opcode, last, .. } if opcode == kind => Some((last, payload)),
                    _ => None,
                })
                .collect();
            let (last, others) = segments.split_last().unwrap();
            assert!(last.0 && others.iter().all(|segment| !segment.0), "{kind}, {len} octets");
            assert!(len == 0 || !last.1.is_empty(), "{kind}, {len} octets");
            let sum: usize = segments.iter().map(|(_, payload)| payload.len()).sum();
            assert_eq!(sum, len, "{kind}");
        }
    }
    // And what is not the last delivers nothing.
    let mut bed = bed();
    bed.receive(1, 0, 64);
    bed.put_ulpdu(&segment_of_send(1, 0, false, b"abc"));
    bed.put_ulpdu(&segment_of_send(1, 3, false, b"def"));
    assert_eq!(bed.done(), []);
    bed.put_ulpdu(&segment_of_send(1, 6, true, b""));
    assert_eq!(bed.done()[0].byte_len, 6);
}

// req-test: DDP-077, DDP-078, DDP-084, DDP-085, DDP-079
#[test]
fn segments_of_a_send_share_queue_and_number() {
    let mut bed = Bed::started(300, 4, 4);
    bed.send(1, 0, 1000);
    bed.read(2, 2000, 10, THEIRS, 0);
    bed.send(3, 0, 1000);
    let seen: Vec<_> = bed
        .messages()
        .into_iter()
        .map(|(header, _)| match header {
            Header::Untagged { opcode, qn, msn, .. } => (opcode, qn, msn),
            other => panic!("{other:?}"),
        })
        .collect();
    let (send, read) = (opcode::SEND, opcode::READ_REQUEST);
    let expected: Vec<_> =
        [vec![(send, 0, 1); 4], vec![(read, 1, 1)], vec![(send, 0, 2); 4]].concat();
    assert_eq!(seen, expected);
}

// req-test: DDP-053, DDP-055, DDP-071, DDP-073, DDP-056
#[test]
fn segments_of_a_message_share_what_the_upper_layer_gave() {
    let mut bed = Bed::started(300, 4, 4);
    let payload =
        Payload::Gather([Sge { addr: 0, len: 900, lkey: bed.local }].into_iter().collect());
    bed.ask(1, Operation::Send { payload, solicited: true, invalidate: Some(0xa1b2_c3d4) });
    bed.write(2, 0, 900, THEIRS, 5);
    let ulpdus = bed.ulpdus();
    let (sends, writes) = ulpdus.split_at(4);
    assert_eq!(writes.len(), 4);
    assert!(sends.iter().all(|ulpdu| ulpdu[1..6] == [0x46, 0xa1, 0xb2, 0xc3, 0xd4]));
    assert!(writes.iter().all(|ulpdu| ulpdu[1] == 0x40));
    bed.send(3, 0, 900);
    let sends = bed.ulpdus();
    assert_eq!(sends.len(), 4);
    assert!(sends.iter().all(|ulpdu| ulpdu[1..6] == [0x43, 0, 0, 0, 0]));
    bed.put_ulpdu(&read(1, bed.local, 0, 900, 0));
    let responses = bed.ulpdus();
    assert_eq!(responses.len(), 4);
    assert!(responses.iter().all(|ulpdu| ulpdu[1] == 0x42));
}

// req-test: DDP-060, DDP-062, DDP-063, DDP-064, DDP-101
#[test]
fn segments_of_a_write_share_the_stag_and_go_on() {
    for (stag, to) in [(THEIRS, 0u64), (0xf1c0_ffee, 16_384), (THEIRS, 0xffff_ffff_ffff_0000)] {
        let mut bed = Bed::started(537, 4, 4);
        bed.arena.write(0, &pattern(2048));
        bed.write(1, 0, 2048, stag, to);
        let mut octets = Vec::new();
        for (header, payload) in bed.messages() {
            let last = octets.len() + payload.len() == 2048;
            let expected = Header::write(stag, to + octets.len() as u64, last);
            assert_eq!(header, expected);
            octets.extend(payload);
        }
        assert!(octets == pattern(2048));
    }
}

// req-test: DDP-015, DDP-094, MPA-041, MPA-043, MPA-117
#[test]
fn segments_are_as_large_as_may_be_and_no_larger() {
    for emss in [200usize, 536, 537, 1448, 1460] {
        let mut bed = Bed::started(u16::try_from(emss).unwrap(), 4, 4);
        bed.send(1, 0, 20_000);
        bed.write(2, 0, 20_000, THEIRS, 0);
        for header_len in [LENS.1, LENS.0] {
            let room = mulpdu(emss) - header_len;
            let ulpdus = bed.ulpdus_of(20_000, header_len);
            let (last, others) = ulpdus.split_last().unwrap();
            assert!(others.iter().all(|ulpdu| ulpdu.len() == mulpdu(emss)), "EMSS {emss}");
            assert!(last.len() <= mulpdu(emss), "EMSS {emss}");
            assert_eq!(last.len() - header_len, 20_000 - others.len() * room, "EMSS {emss}");
        }
    }
}

// req-test: DDP-044, RDMAP-059
#[test]
fn reserved_fields_are_sent_as_zero() {
    let mut bed = Bed::started(300, 4, 4);
    bed.send(1, 0, 900);
    bed.write(2, 0, 900, THEIRS, 5);
    bed.read(3, 0, 9, THEIRS, 5);
    let ulpdus = bed.ulpdus();
    assert_eq!(ulpdus.len(), 9);
    for ulpdu in ulpdus {
        assert_eq!((ulpdu[0] & 0x3c, ulpdu[1] & 0x30), (0, 0));
        // All else is as it has to be.
        assert_eq!((ulpdu[0] & 0x03, ulpdu[1] >> 6), (1, 1));
        // Neither Send nor Read Request name an STag to invalidate.
        assert!(ulpdu[0] & 0x80 != 0 || ulpdu[2..6] == [0; 4]);
    }
    bed.put_ulpdu(&segment_of_write(0xdead_beef, 0, true, b"x"));
    let terminate = &bed.ulpdus()[0];
    assert_eq!(terminate[..6], [0x41, 0x47, 0, 0, 0, 0]);
}

// req-test: DDP-045, RDMAP-058, RDMAP-060
#[test]
fn reserved_fields_are_not_looked_at() {
    let mut bed = bed();
    bed.receive(1, 0, 64);
    let stag = bed.register(128, 64, Access::REMOTE_WRITE, false);
    let mut send = segment_of_send(1, 0, true, b"abcd");
    send[0] |= 0x3c;
    send[1] |= 0x30;
    send[2..6].copy_from_slice(&stag.to_be_bytes());
    bed.put_ulpdu(&send);
    let done = bed.done();
    assert_eq!((done[0].status, done[0].byte_len), (WcStatus::Success, 4));
    assert_eq!(done[0].invalidated, None);
    let mut write = segment_of_write(stag, 128, true, b"efgh");
    write[0] |= 0x3c;
    write[1] |= 0x30;
    bed.put_ulpdu(&write);
    assert_eq!(bed.arena.read(128, 4), b"efgh");
    assert_eq!(bed.ended(), None);
}

// req-test: DDP-080, DDP-081, DDP-082, RDMAP-021, RDMAP-150
#[test]
fn messages_are_numbered_queue_by_queue() {
    let mut bed = bed();
    for wr_id in 0..4 {
        bed.send(wr_id, 0, if wr_id == 2 { 5000 } else { 3 });
        bed.read(10 + wr_id, 6000, 1, THEIRS, wr_id.into());
    }
    let (mut sends, mut reads) = (Vec::new(), Vec::new());
    for (header, payload) in bed.messages() {
        match header {
            Header::Untagged { qn: 0, msn, last: true, .. } => sends.push(msn),
            // Which Read it is, its source's offset tells.
            Header::Untagged { qn: 1, msn, .. } => reads.push((msn, payload[27])),
            Header::Untagged { qn: 0, .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(sends, [1, 2, 3, 4]);
    assert_eq!(reads, [(1, 0), (2, 1), (3, 2), (4, 3)]);
}

// req-test: DDP-002, DDP-003, DDP-005, DDP-117, DDP-118
#[test]
fn each_message_fills_one_buffer_in_the_order_of_posting() {
    let mut bed = bed();
    let long = pattern(5000);
    for (wr_id, at) in [(7, 20_000), (5, 0), (9, 10_000)] {
        bed.receive(wr_id, at, 5000);
    }
    bed.put_ulpdu(&segment_of_send(1, 0, true, b"a"));
    for (index, piece) in long.chunks(1000).enumerate() {
        let mo = u32::try_from(index * 1000).unwrap();
        bed.put_ulpdu(&segment_of_send(2, mo, index == 4, piece));
    }
    bed.put_ulpdu(&segment_of_send(3, 0, true, &long[..17]));
    let done: Vec<_> = bed.done().iter().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len)).collect();
    let recv = WcOpcode::Recv;
    assert_eq!(done, [(7, recv, 1), (5, recv, 5000), (9, recv, 17)]);
    assert_eq!(bed.arena.read(20_000, 2), b"a\0");
    assert!(bed.arena.read(0, 5000) == long);
    assert_eq!(bed.arena.read(10_000, 17), long[..17]);
    // No buffer is left.
    bed.put_ulpdu(&segment_of_send(4, 0, true, b"a"));
    assert_eq!(bed.terminate().cause(), (1, 2, 2));
}

// req-test: DDP-004, DDP-147, DDP-181, RDMAP-172, RDMAP-033
#[test]
fn a_message_longer_than_its_buffer_is_an_error() {
    for (mo, len) in [(0u32, 65usize), (60, 5), (64, 1)] {
        let mut bed = bed();
        bed.receive(1, 0, 64);
        bed.receive(2, 64, 64);
        if mo > 0 {
            let before = vec![0; mo as usize];
            bed.put_ulpdu(&segment_of_send(1, 0, false, &before));
        }
        bed.put_ulpdu(&segment_of_send(1, mo, true, &vec![0xff; len]));
        let done: Vec<_> = bed.done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(done, [(1, WcStatus::LocalLength), (2, WcStatus::Flushed)]);
        assert_eq!(bed.arena.read(0, 192), [0; 192], "nothing of it was placed");
        assert_eq!(bed.terminate().cause(), (1, 2, 5));
        assert!(matches!(bed.ended(), Some(EndReason::TerminateSent(_))));
    }
    let mut bed = bed();
    bed.receive(1, 0, 64);
    bed.put_ulpdu(&segment_of_send(1, 0, true, &[0xff; 64]));
    assert_eq!(bed.done()[0].status, WcStatus::Success, "one that just fits");
}

// req-test: DDP-036, DDP-037, DDP-051, DDP-069, DDP-086
#[test]
fn the_tagged_bit_tells_where_octets_go() {
    let mut bed = bed();
    bed.receive(1, 0, 64);
    let stag = bed.register(128, 64, Access::REMOTE_WRITE, false);
    bed.put_ulpdu(&segment_of_write(stag, 130, true, b"tagged"));
    assert_eq!(bed.done(), []);
    bed.put_ulpdu(&segment_of_send(1, 0, false, b"un"));
    bed.put_ulpdu(&segment_of_send(1, 2, true, b"tagged"));
    assert_eq!(bed.done()[0].byte_len, 8);
    assert_eq!(bed.arena.read(0, 9), b"untagged\0");
    assert_eq!(bed.arena.read(127, 10), b"\0\0\0tagged\0");
}

// req-test: DDP-006, DDP-007, DDP-065, DDP-066, DDP-090
#[test]
fn a_tagged_buffer_takes_any_number_of_messages_anywhere() {
    let mut bed = bed();
    let stag = bed.register(1000, 100, Access::REMOTE_WRITE, false);
    let mut expected = vec![0; 102];
    for (to, octets) in
        [(1000u64, &b"first"[..]), (1001, b"odd"), (1099, b"!"), (1000, b"again"), (1050, b"mid")]
    {
        bed.put_ulpdu(&segment_of_write(stag, to, true, octets));
        let at = usize::try_from(to).unwrap() - 999;
        expected[at..at + octets.len()].copy_from_slice(octets);
    }
    assert_eq!(bed.arena.read(999, 102), expected);
    assert_eq!(bed.ended(), None);
    bed.write(1, 0, 3, THEIRS, 0xdead_beef_0000_0001);
    let (header, _) = bed.messages().remove(0);
    assert_eq!(header, Header::write(THEIRS, 0xdead_beef_0000_0001, true));
}

// req-test: DDP-097, DDP-022, DDP-026, RDMAP-016
#[test]
fn whatever_the_segments_the_message_is_whole() {
    for (len, step) in [(1usize, 1usize), (5000, 13), (5000, 1000), (12_000, 1442)] {
        let mut bed = bed();
        let octets = pattern(len);
        let stag = bed.register(20_000, 20_000, Access::REMOTE_WRITE, false);
        bed.receive(1, 0, 20_000);
        for (index, piece) in octets.chunks(step).enumerate() {
            let (at, last) = (index * step, index * step + piece.len() == len);
            let mo = u32::try_from(at).unwrap();
            bed.put_ulpdu(&segment_of_send(1, mo, last, piece));
            bed.put_ulpdu(&segment_of_write(stag, 20_000 + at as u64, last, piece));
        }
        assert_eq!(bed.done()[0].byte_len as usize, len);
        assert!(bed.arena.read(0, len) == octets && bed.arena.read(20_000, len) == octets);
        assert_eq!(bed.arena.read(len, 8), [0; 8]);
    }
}

// req-test: DDP-089, DDP-105, DDP-106, DDP-160, RDMAP-142
#[test]
fn a_message_of_nothing_is_one_segment_whose_target_is_not_looked_at() {
    let mut bed = bed();
    bed.put_ulpdu(&segment_of_write(0xdead_beef, u64::MAX, true, b""));
    bed.receive(1, 0, 0);
    bed.put_ulpdu(&segment_of_send(1, 0, true, b""));
    assert_eq!(bed.done()[0].byte_len, 0);
    assert_eq!(bed.ended(), None);
    let payload = Payload::empty();
    bed.ask(2, Operation::Write { payload, rkey: 0xdead_beef, remote: u64::MAX });
    assert_eq!(bed.ulpdus(), [segment_of_write(0xdead_beef, u64::MAX, true, b"")]);
    let done: Vec<_> = bed.done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(2, WcStatus::Success)]);
    // With an octet it is.
    bed.put_ulpdu(&segment_of_write(0xdead_beef, 0, true, b"x"));
    assert_eq!(bed.terminate().cause(), (1, 1, 0));
    // What has to be right of it still: the version, and RDMAP's octet.
    let nothing = segment_of_write(0xdead_beef, u64::MAX, true, b"");
    for (at, octet, cause) in [(0, nothing[0] ^ 1, (1, 1, 4)), (1, 0x43, (0, 2, 6))] {
        let mut bed = self::bed();
        let mut bad = nothing.clone();
        bad[at] = octet;
        bed.put_ulpdu(&bad);
        assert_eq!(bed.terminate().cause(), cause);
    }
}

// req-test: DDP-103, RDMAP-047, RDMAP-179
#[test]
fn messages_of_nothing_take_one_segment() {
    let mut bed = bed();
    let nothing = Payload::empty;
    for (wr_id, (solicited, invalidate)) in
        [(false, None), (true, None), (false, Some(5)), (true, Some(5))].into_iter().enumerate()
    {
        let wr_id = u32::try_from(wr_id).unwrap();
        bed.ask(wr_id, Operation::Send { payload: nothing(), solicited, invalidate });
    }
    bed.ask(8, Operation::Write { payload: nothing(), rkey: 1, remote: 2 });
    bed.ask(9, Operation::Read { sink: Sge::default(), rkey: 1, remote: 2 });
    let lens: Vec<_> = bed.ulpdus().iter().map(|ulpdu| (ulpdu.len(), ulpdu[0] & 0x40)).collect();
    assert_eq!(lens, [(18, 0x40), (18, 0x40), (18, 0x40), (18, 0x40), (14, 0x40), (46, 0x40)]);
}

// req-test: DDP-095, RDMAP-002
#[test]
fn a_message_has_less_than_4_gib() {
    for operation_of in [summed, written] {
        let mut bed = bed();
        let sge = |len| Sge { addr: 0, len, lkey: bed.local };
        let too_long = [vec![sge(u32::MAX), sge(1)], vec![sge(u32::MAX); 2], vec![sge(1 << 31); 2]];
        let longest = vec![sge(u32::MAX)];
        let qp = bed.qp();
        let wr = |list| {
            let operation = operation_of(list);
            SendWr { wr_id: 1, operation, signaled: true, fence: false }
        };
        for list in too_long {
            assert_eq!(bed.engine.post_send(qp, wr(list)), Err(PostError::TooLong));
        }
        assert_eq!(bed.ulpdus().len(), 0);
        assert_eq!(bed.engine.post_send(qp, wr(longest)), Ok(()));
    }
}

// req-test: DDP-042, DDP-114, DDP-116, RDMAP-220, MPA-034
#[test]
fn nothing_is_delivered_before_all_that_was_sent_before_it() {
    let mut bed = bed();
    for wr_id in 1..=3 {
        bed.receive(wr_id, 64 * wr_id, 64);
    }
    let stag = bed.register(1024, 64, Access::REMOTE_WRITE, false);
    bed.put_ulpdu(&segment_of_send(1, 0, false, b"one "));
    let lost = bed.lose(&fpdu(&segment_of_send(1, 4, true, b"message"), true));
    bed.put_ulpdu(&segment_of_send(2, 0, true, b"two"));
    let lost_write = bed.lose(&fpdu(&segment_of_write(stag, 1024, true, b"written"), true));
    bed.put_ulpdu(&segment_of_send(3, 0, true, b"three"));
    assert_eq!(bed.done(), []);
    bed.resend(&lost);
    let seen: Vec<_> = bed.done().iter().map(|wc| (wc.wr_id, wc.byte_len)).collect();
    assert_eq!(seen, [(1, 11), (2, 3)]);
    assert_eq!(bed.arena.read(64, 11), b"one message");
    bed.resend(&lost_write);
    let seen: Vec<_> = bed.done().iter().map(|wc| (wc.wr_id, wc.byte_len)).collect();
    assert_eq!(seen, [(3, 5)]);
    assert_eq!(bed.arena.read(1024, 7), b"written");
}

// req-test: DDP-113, DDP-033, MPA-026, MPA-029, MPA-031
#[test]
fn octets_that_arrive_twice_are_taken_once() {
    let mut bed = bed();
    bed.receive(1, 0, 64);
    bed.receive(2, 64, 64);
    let stag = bed.register(1024, 64, Access::REMOTE_WRITE, false);
    let send = bed.lose(&fpdu(&segment_of_send(1, 0, true, b"once"), true));
    let write = bed.lose(&fpdu(&segment_of_write(stag, 1024, true, b"first"), true));
    bed.resend(&send);
    bed.resend(&write);
    let before = bed.engine.counters().fpdus_in;
    bed.resend(&send);
    bed.resend(&write);
    // With other octets of the same length, rightly summed: the first copy stays.
    let end = bed.lose(&[]);
    let other = fpdu(&segment_of_write(stag, 1024, true, b"again"), true);
    let len = u32::try_from(other.len()).unwrap();
    bed.resend(&end.back(len, &other));
    assert_eq!(bed.engine.counters().fpdus_in, before);
    assert_eq!(bed.arena.read(1024, 5), b"first");
    assert_eq!(bed.done().len(), 1);
    // Half of it old, half new.
    let overlap = [&other[..], &fpdu(&segment_of_send(2, 0, true, b"twice"), true)].concat();
    bed.lose(&overlap[other.len()..]);
    bed.resend(&end.back(len, &overlap));
    assert_eq!(bed.engine.counters().fpdus_in, before + 1);
    assert_eq!(bed.done()[0].byte_len, 5);
}

// req-test: DDP-088, DDP-137, MPA-049, RDMAP-107
#[test]
fn a_segment_shorter_than_its_header_is_fatal() {
    for (control, lens) in [(0xc1u8, 0..14usize), (0x41, 0..18)] {
        for len in lens {
            let mut bed = bed();
            bed.receive(1, 0, 64);
            let mut ulpdu = vec![0x40; len];
            if let Some(first) = ulpdu.first_mut() {
                *first = control;
            }
            bed.put_ulpdu(&ulpdu);
            let ended = bed.ended();
            assert!(matches!(ended, Some(EndReason::TerminateSent(_))), "{len}: {ended:?}");
            assert_eq!(bed.ulpdus()[0][18..20], [0x02, 7], "{len}");
            assert_eq!(bed.done()[0].status, WcStatus::Flushed);
            assert_eq!(bed.arena.read(0, 64), [0; 64]);
        }
    }
}

// req-test: DDP-162, DDP-164, DDP-165, DDP-028
#[test]
fn after_an_error_only_the_first_is_told_and_nothing_is_placed() {
    let mut bed = bed();
    for wr_id in 1..=6 {
        bed.receive(wr_id, 0, 64);
    }
    let stag = bed.register(1024, 64, Access::REMOTE_WRITE, false);
    let bad = segment_of_write(stag, 1080, true, b"too far out");
    let mut octets = fpdu(&bad, true);
    for msn in 1..=3 {
        octets.extend(fpdu(&segment_of_send(msn, 0, true, b"late"), true));
        octets.extend(fpdu(&segment_of_write(stag, 1024, true, b"late"), true));
        octets.extend(fpdu(&segment_of_write(0, 0, true, b"worse"), true));
    }
    bed.say(&octets);
    bed.put_ulpdu(&segment_of_send(4, 0, true, b"later still"));
    assert_eq!(bed.arena.read(0, 2048), [0; 2048]);
    let told = bed.terminate();
    assert_eq!(told.cause(), (1, 1, 1));
    assert_eq!(told.ddp_header, bad[..14]);
    let done: Vec<_> = bed.done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, (1..=6).map(|wr_id| (wr_id, WcStatus::Flushed)).collect::<Vec<_>>());
    assert!(matches!(bed.ended(), Some(EndReason::TerminateSent(_))));
}

// req-test: DDP-134, DDP-139, RDMAP-244, RDMAP-247, MPA-148
#[test]
fn a_reset_ends_each_request_once_and_without_a_terminate() {
    let mut bed = bed();
    for wr_id in 0..10 {
        bed.receive(wr_id, 0, 64);
        bed.read(100 + wr_id, 0, 1, THEIRS, 0);
    }
    bed.ulpdus();
    bed.signal(Flags::RST);
    assert_eq!(bed.ended(), Some(EndReason::Reset));
    let mut done: Vec<_> = bed.done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    done.sort_unstable_by_key(|(wr_id, _)| *wr_id);
    let expected = (0..10).chain(100..110).map(|wr_id| (wr_id, WcStatus::Flushed));
    assert_eq!(done, expected.collect::<Vec<_>>());
    assert_eq!(bed.ulpdus().len(), 0);
    assert_eq!(bed.engine.unfinished_count(), 0);
}

// req-test: DDP-136
#[test]
fn a_reset_ends_a_stream_of_the_older_version_too() {
    let mut bed = Bed::new();
    bed.say(b"MPA ID Req Frame\xc0\0\0\0");
    bed.accept(&ConnParam::default());
    let event = bed.engine.next_event();
    let Some(Event::Established { info: agreed, .. }) = event else { panic!("{event:?}") };
    assert_eq!(agreed.revision, 0);
    bed.receive(1, 0, 64);
    bed.signal(Flags::RST);
    let reason = bed.ended().expect("the end is told");
    assert_eq!((reason.error(), reason), (Some((2, 0, 1)), EndReason::Reset));
    let done: Vec<_> = bed.done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(1, WcStatus::Flushed)]);
}

// req-test: DDP-011
#[test]
fn a_stream_waits_for_no_other() {
    let mut bed = bed();
    bed.receive(1, 0, 64);
    let lost = bed.lose(&fpdu(&segment_of_send(1, 0, true, b"late"), true));
    let mut first = bed.start_another(4, 4);
    for wr_id in 2..5 {
        bed.receive(wr_id, 64, 64);
        bed.put_ulpdu(&segment_of_send(wr_id - 1, 0, true, b"in time"));
        let done: Vec<_> = bed.done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(done, [(u64::from(wr_id), WcStatus::Success)]);
    }
    // The end of one leaves the other alone.
    bed.signal(Flags::RST);
    assert_eq!(bed.ended(), Some(EndReason::Reset));
    bed.go_back(&mut first);
    bed.resend(&lost);
    let done: Vec<_> = bed.done().iter().map(|wc| (wc.wr_id, wc.byte_len)).collect();
    assert_eq!(done, [(1, 4)]);
}

// req-test: DDP-029, DDP-030, MPA-012, MPA-054, MPA-147
#[test]
fn a_graceful_end_is_told_as_such_after_what_came_before_it() {
    let mut bed = bed();
    bed.receive(1, 0, 64);
    bed.receive(2, 0, 64);
    let last = bed.lose(&fpdu(&segment_of_send(1, 0, true, b"the last"), true));
    bed.signal(Flags::ACK | Flags::FIN);
    assert_eq!(bed.ended(), None);
    bed.resend(&last);
    assert_eq!(bed.ended(), Some(EndReason::PeerClosed));
    let done: Vec<_> = bed.done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::Flushed)]);
    assert!(bed.finished && !bed.reset);
}

// req-test: DDP-025, DDP-135, MPA-093, MPA-149, MPA-125
#[test]
fn octets_that_do_not_fit_their_crc_are_not_placed_and_end_the_stream() {
    for bit in [0, 13, 100, 8 * 19, 8 * 31] {
        let mut bed = bed();
        let stag = bed.register(0, 64, Access::REMOTE_WRITE, false);
        let mut octets = fpdu(&segment_of_write(stag, 0, true, b"guarded octets"), true);
        octets[2 + bit / 8] ^= 1 << (bit % 8);
        bed.say(&octets);
        assert_eq!(bed.arena.read(0, 64), [0; 64]);
        assert_eq!(bed.terminate().cause(), (2, 0, 2), "bit {bit}");
        assert!(matches!(bed.ended(), Some(EndReason::TerminateSent(_))));
    }
}

// req-test: DDP-012, DDP-127
#[test]
fn a_queue_pair_has_one_connection_and_ends_with_it() {
    let mut bed = bed();
    let (qp, now, param) = (bed.qp(), bed.now, ConnParam::default());
    let remote = (ferrowarp_tests::sim::world::address(0), 9).into();
    assert_eq!(bed.engine.connect(now, qp, remote, &param), Err(CmError::WrongState));
    bed.engine.disconnect(now, qp).unwrap();
    assert_eq!(bed.ended(), Some(EndReason::Local));
    bed.send(1, 0, 4);
    let done: Vec<_> = bed.done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(1, WcStatus::Flushed)]);
    assert_eq!(bed.ulpdus().len(), 0);
    assert!(bed.finished);
    assert_eq!(bed.engine.connect(now, qp, remote, &param), Err(CmError::WrongState));
}
