//! DDP rules checked on the wire: segments sent, and the effects of segments received.

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam, EndReason};
use ferrowarp_proto::verbs::wc::{WcOpcode, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, Payload, PostError, SendWr, Sge};
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::compliance::fixture::FpduFixture;
use ferrowarp_tests::compliance::messages::{
    PEER_STAG, connected, connected_for_each_path, elements, read_request, send_of, write_of,
};
use ferrowarp_tests::pattern;
use ferrowarp_tests::peer::{Header, fpdu, marked_fpdu, opcode};

/// Bytes of a tagged and of an untagged DDP header.
const HEADER_LENS: (usize, usize) = (14, 18);

/// MULPDU without markers (RFC 5044 section 4.5).
fn mulpdu(emss: usize) -> usize {
    (emss - 6 - emss % 4).max(128)
}

/// Message lengths around the capacity of one segment and of two, untagged and tagged.
fn message_lens(emss: usize) -> Vec<usize> {
    let around = |capacity| [capacity - 1, capacity, capacity + 1, 2 * capacity, 2 * capacity + 3];
    let capacities = [HEADER_LENS.1, HEADER_LENS.0].map(|header_len| mulpdu(emss) - header_len);
    [&[0, 1, 20_000][..], &capacities.map(around).concat()].concat()
}

fn send_segment(msn: u32, mo: u32, last: bool, payload: &[u8]) -> Vec<u8> {
    Header::send(msn, mo, last).encode(payload)
}

fn write_segment(stag: u32, to: u64, last: bool, payload: &[u8]) -> Vec<u8> {
    Header::write(stag, to, last).encode(payload)
}

/// Segments of a Send of `len` bytes: L bit, queue number, MSN, MO and payload of each.
fn segments_of_send(emss: u16, len: usize, halved: bool) -> Vec<(bool, u32, u32, u32, Vec<u8>)> {
    let mut fx = FpduFixture::connected(emss, 4, 4);
    fx.arena.write(0, &pattern(0, len));
    fx.post_op(1, send_of(&elements(&fx, len, halved)));
    fx.sent_messages()
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
fn send_segments_cover_the_message_once_in_order() {
    for emss in [200u16, 537, 1460] {
        let lens = message_lens(emss.into()).into_iter();
        for (len, halved) in lens.flat_map(|len| [(len, false), (len, true)]) {
            let mut bytes = Vec::new();
            let segments = segments_of_send(emss, len, halved);
            let capacity = mulpdu(emss.into()) - HEADER_LENS.1;
            assert_eq!(segments.len(), len.div_ceil(capacity).max(1), "EMSS {emss}, {len} bytes");
            for (_, _, _, mo, payload) in segments {
                assert_eq!(mo as usize, bytes.len(), "EMSS {emss}, {len} bytes");
                bytes.extend(payload);
            }
            assert!(bytes == pattern(0, len), "EMSS {emss}, {len} bytes");
        }
    }
    // Offsets of more than 16 bits: segments in one element, and one that crosses both.
    let mut fx = connected();
    let half = Sge { addr: 0, len: 50_000, lkey: fx.mem_stag };
    fx.post_op(1, send_of(&[half; 2]));
    let mut next = 0;
    for (header, payload) in fx.sent_messages() {
        assert!(matches!(header, Header::Untagged { mo, .. } if mo == next), "{header:?}: {next}");
        next += u32::try_from(payload.len()).unwrap();
    }
    assert_eq!(next, 100_000);
}

// req-test: DDP-038, DDP-039, DDP-040, DDP-041, DDP-043
#[test]
fn only_the_final_segment_has_the_l_bit() {
    let lens = message_lens(300).into_iter();
    for (len, halved) in lens.flat_map(|len| [(len, false), (len, true)]) {
        let segments = segments_of_send(300, len, halved);
        let (last, others) = segments.split_last().unwrap();
        assert!(last.0 && others.iter().all(|segment| !segment.0), "{len} bytes");
        assert!(others.iter().all(|segment| segment.3 < last.3), "{len} bytes");
        assert!(len == 0 || !last.4.is_empty(), "{len} bytes");
        // The same for a Write, and for a response to the peer's Read.
        let mut fx = FpduFixture::connected(300, 4, 4);
        let len_32 = u32::try_from(len).unwrap();
        fx.post_op(1, write_of(&elements(&fx, len, halved)));
        fx.inject_ulpdu(&read_request(1, fx.mem_stag, 0, len_32, 0));
        let messages = fx.sent_messages();
        for kind in [opcode::WRITE, opcode::READ_RESPONSE] {
            let segments: Vec<_> = messages
                .iter()
                .filter_map(|(header, payload)| match *header {
                    Header::Tagged { opcode, last, .. } if opcode == kind => Some((last, payload)),
                    _ => None,
                })
                .collect();
            let (last, others) = segments.split_last().unwrap();
            assert!(last.0 && others.iter().all(|segment| !segment.0), "{kind}, {len} bytes");
            assert!(len == 0 || !last.1.is_empty(), "{kind}, {len} bytes");
            let sum: usize = segments.iter().map(|(_, payload)| payload.len()).sum();
            assert_eq!(sum, len, "{kind}");
        }
    }
    // On receipt, only the last segment delivers the message.
    for mut fx in connected_for_each_path() {
        fx.post_recv(1, 0, 64);
        fx.inject_ulpdu(&send_segment(1, 0, false, b"abc"));
        fx.inject_ulpdu(&send_segment(1, 3, false, b"def"));
        assert_eq!(fx.poll_cq(), []);
        fx.inject_ulpdu(&send_segment(1, 6, true, b""));
        assert_eq!(fx.poll_cq()[0].byte_len, 6);
    }
}

// req-test: DDP-077, DDP-078, DDP-084, DDP-085, DDP-079
#[test]
fn segments_of_a_send_share_qn_and_msn() {
    let mut fx = FpduFixture::connected(300, 4, 4);
    fx.post_send(1, 0, 1000);
    fx.post_read(2, 2000, 10, PEER_STAG, 0);
    fx.post_send(3, 0, 1000);
    let seen: Vec<_> = fx
        .sent_messages()
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
fn segments_of_a_message_share_rsvd_ulp() {
    let mut fx = FpduFixture::connected(300, 4, 4);
    let payload = Payload::Gather([Sge { addr: 0, len: 900, lkey: fx.mem_stag }].into());
    fx.post_op(1, Operation::Send { payload, solicited: true, invalidate: Some(0xa1b2_c3d4) });
    fx.post_write(2, 0, 900, PEER_STAG, 5);
    let ulpdus = fx.sent_ulpdus();
    let (sends, writes) = ulpdus.split_at(4);
    assert_eq!(writes.len(), 4);
    assert!(sends.iter().all(|ulpdu| ulpdu[1..6] == [0x46, 0xa1, 0xb2, 0xc3, 0xd4]));
    assert!(writes.iter().all(|ulpdu| ulpdu[1] == 0x40));
    fx.post_send(3, 0, 900);
    let sends = fx.sent_ulpdus();
    assert_eq!(sends.len(), 4);
    assert!(sends.iter().all(|ulpdu| ulpdu[1..6] == [0x43, 0, 0, 0, 0]));
    fx.inject_ulpdu(&read_request(1, fx.mem_stag, 0, 900, 0));
    let responses = fx.sent_ulpdus();
    assert_eq!(responses.len(), 4);
    assert!(responses.iter().all(|ulpdu| ulpdu[1] == 0x42));
}

// req-test: DDP-060, DDP-062, DDP-063, DDP-064, DDP-101
#[test]
fn segments_of_a_write_share_the_stag_and_advance_to() {
    for (stag, to, halved) in [
        (PEER_STAG, 0u64, false),
        (0xf1c0_ffee, 16_384, false),
        (PEER_STAG, 0xffff_ffff_ffff_0000, false),
        // With a carry into the upper half.
        (PEER_STAG, 0x0001_ffff_fe00, false),
        (PEER_STAG, 0x0001_ffff_fa00, true),
    ] {
        let mut fx = FpduFixture::connected(537, 4, 4);
        fx.arena.write(0, &pattern(0, 2048));
        let payload = Payload::gather(&elements(&fx, 2048, halved)).unwrap();
        fx.post_op(1, Operation::Write { payload, rkey: stag, remote: to });
        let mut bytes = Vec::new();
        for (header, payload) in fx.sent_messages() {
            let last = bytes.len() + payload.len() == 2048;
            let expected = Header::write(stag, to + bytes.len() as u64, last);
            assert_eq!(header, expected);
            bytes.extend(payload);
        }
        assert!(bytes == pattern(0, 2048));
    }
}

// req-test: DDP-015, DDP-094, MPA-041, MPA-043, MPA-117
#[test]
fn segments_fill_mulpdu() {
    let sizes = [200usize, 536, 537, 1448, 1460].into_iter();
    for (emss, halved) in sizes.flat_map(|emss| [(emss, false), (emss, true)]) {
        let mut fx = FpduFixture::connected(u16::try_from(emss).unwrap(), 4, 4);
        fx.post_op(1, send_of(&elements(&fx, 20_000, halved)));
        fx.post_op(2, write_of(&elements(&fx, 20_000, halved)));
        for header_len in [HEADER_LENS.1, HEADER_LENS.0] {
            let capacity = mulpdu(emss) - header_len;
            let ulpdus = fx.sent_ulpdus_of(20_000, header_len);
            let (last, others) = ulpdus.split_last().unwrap();
            assert!(others.iter().all(|ulpdu| ulpdu.len() == mulpdu(emss)), "EMSS {emss}");
            assert!(last.len() <= mulpdu(emss), "EMSS {emss}");
            assert_eq!(last.len() - header_len, 20_000 - others.len() * capacity, "EMSS {emss}");
        }
    }
}

// req-test: DDP-044, RDMAP-059
#[test]
fn reserved_fields_are_sent_as_zero() {
    let mut fx = FpduFixture::connected(300, 4, 4);
    fx.post_send(1, 0, 900);
    fx.post_write(2, 0, 900, PEER_STAG, 5);
    fx.post_read(3, 0, 9, PEER_STAG, 5);
    let ulpdus = fx.sent_ulpdus();
    assert_eq!(ulpdus.len(), 9);
    for ulpdu in ulpdus {
        assert_eq!((ulpdu[0] & 0x3c, ulpdu[1] & 0x30), (0, 0));
        // The other bits: DV and RV are 1.
        assert_eq!((ulpdu[0] & 0x03, ulpdu[1] >> 6), (1, 1));
        // Neither a Send nor a Read Request names an STag to invalidate.
        assert!(ulpdu[0] & 0x80 != 0 || ulpdu[2..6] == [0; 4]);
    }
    fx.inject_ulpdu(&write_segment(0xdead_beef, 0, true, b"x"));
    let terminate = &fx.sent_ulpdus()[0];
    assert_eq!(terminate[..6], [0x41, 0x47, 0, 0, 0, 0]);
}

// req-test: DDP-045, RDMAP-058, RDMAP-060
#[test]
fn reserved_fields_are_ignored_on_receipt() {
    let mut fx = connected();
    fx.post_recv(1, 0, 64);
    let stag = fx.register(128, 64, Access::REMOTE_WRITE, false);
    let mut send = send_segment(1, 0, true, b"abcd");
    send[0] |= 0x3c;
    send[1] |= 0x30;
    send[2..6].copy_from_slice(&stag.to_be_bytes());
    fx.inject_ulpdu(&send);
    let done = fx.poll_cq();
    assert_eq!((done[0].status, done[0].byte_len), (WcStatus::Success, 4));
    assert_eq!(done[0].invalidated(), None);
    let mut write = write_segment(stag, 128, true, b"efgh");
    write[0] |= 0x3c;
    write[1] |= 0x30;
    fx.inject_ulpdu(&write);
    assert_eq!(fx.arena.read(128, 4), b"efgh");
    assert_eq!(fx.end_reason(), None);
}

// req-test: DDP-080, DDP-081, DDP-082, RDMAP-021, RDMAP-150
#[test]
fn msn_counts_per_queue() {
    let mut fx = connected();
    for wr_id in 0..4 {
        fx.post_send(wr_id, 0, if wr_id == 2 { 5000 } else { 3 });
        fx.post_read(10 + wr_id, 6000, 1, PEER_STAG, wr_id.into());
    }
    let (mut sends, mut reads) = (Vec::new(), Vec::new());
    for (header, payload) in fx.sent_messages() {
        match header {
            Header::Untagged { qn: 0, msn, last: true, .. } => sends.push(msn),
            // The Data Source TO tells the Reads apart.
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
fn messages_consume_receives_in_posting_order() {
    let long = pattern(0, 5000);
    for mut fx in connected_for_each_path() {
        for (wr_id, at) in [(7, 20_000), (5, 0), (9, 10_000)] {
            fx.post_recv(wr_id, at, 5000);
        }
        fx.inject_ulpdu(&send_segment(1, 0, true, b"a"));
        for (index, piece) in long.chunks(1000).enumerate() {
            let mo = u32::try_from(index * 1000).unwrap();
            fx.inject_ulpdu(&send_segment(2, mo, index == 4, piece));
        }
        fx.inject_ulpdu(&send_segment(3, 0, true, &long[..17]));
        let done: Vec<_> =
            fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len)).collect();
        let recv = WcOpcode::Recv;
        assert_eq!(done, [(7, recv, 1), (5, recv, 5000), (9, recv, 17)]);
        assert_eq!(fx.arena.read(20_000, 2), b"a\0");
        assert!(fx.arena.read(0, 5000) == long);
        assert_eq!(fx.arena.read(10_000, 17), long[..17]);
        // No receive buffer is left.
        fx.inject_ulpdu(&send_segment(4, 0, true, b"a"));
        assert_eq!(fx.sent_terminate().cause(), (1, 2, 2));
    }
}

// req-test: DDP-004, DDP-147, DDP-181, RDMAP-172, RDMAP-033
#[test]
fn message_longer_than_its_buffer_is_refused() {
    for (mo, len) in [(0u32, 65usize), (60, 5), (64, 1)] {
        let mut fx = connected();
        fx.post_recv(1, 0, 64);
        fx.post_recv(2, 64, 64);
        if mo > 0 {
            let before = vec![0; mo as usize];
            fx.inject_ulpdu(&send_segment(1, 0, false, &before));
        }
        fx.inject_ulpdu(&send_segment(1, mo, true, &vec![0xff; len]));
        let done: Vec<_> = fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(done, [(1, WcStatus::LocalLength), (2, WcStatus::Flushed)]);
        assert_eq!(fx.arena.read(0, 192), [0; 192], "nothing of it was placed");
        assert_eq!(fx.sent_terminate().cause(), (1, 2, 5));
        assert!(matches!(fx.end_reason(), Some(EndReason::TerminateSent(_))));
    }
    for mut fx in connected_for_each_path() {
        fx.post_recv(1, 0, 64);
        fx.inject_ulpdu(&send_segment(1, 0, true, &[0xff; 64]));
        assert_eq!(fx.poll_cq()[0].status, WcStatus::Success, "one that just fits");
    }
}

// req-test: DDP-036, DDP-037, DDP-051, DDP-069, DDP-086
#[test]
fn t_bit_selects_tagged_or_untagged_placement() {
    for mut fx in connected_for_each_path() {
        fx.post_recv(1, 0, 64);
        let stag = fx.register(128, 64, Access::REMOTE_WRITE, false);
        fx.inject_ulpdu(&write_segment(stag, 130, true, b"tagged"));
        assert_eq!(fx.poll_cq(), []);
        fx.inject_ulpdu(&send_segment(1, 0, false, b"un"));
        fx.inject_ulpdu(&send_segment(1, 2, true, b"tagged"));
        assert_eq!(fx.poll_cq()[0].byte_len, 8);
        assert_eq!(fx.arena.read(0, 9), b"untagged\0");
        assert_eq!(fx.arena.read(127, 10), b"\0\0\0tagged\0");
    }
}

// req-test: DDP-006, DDP-007, DDP-065, DDP-066, DDP-090
#[test]
fn tagged_buffer_takes_any_number_of_writes_at_any_to() {
    for mut fx in connected_for_each_path() {
        let stag = fx.register(1000, 100, Access::REMOTE_WRITE, false);
        let mut expected = vec![0; 102];
        for (to, bytes) in [
            (1000u64, &b"first"[..]),
            (1001, b"odd"),
            (1099, b"!"),
            (1000, b"again"),
            (1050, b"mid"),
        ] {
            fx.inject_ulpdu(&write_segment(stag, to, true, bytes));
            let at = usize::try_from(to).unwrap() - 999;
            expected[at..at + bytes.len()].copy_from_slice(bytes);
        }
        assert_eq!(fx.arena.read(999, 102), expected);
        assert_eq!(fx.end_reason(), None);
        fx.post_write(1, 0, 3, PEER_STAG, 0xdead_beef_0000_0001);
        let (header, _) = fx.sent_messages().remove(0);
        assert_eq!(header, Header::write(PEER_STAG, 0xdead_beef_0000_0001, true));
    }
}

// req-test: DDP-097, DDP-022, DDP-026, RDMAP-016
#[test]
fn message_is_reassembled_from_any_segmentation() {
    let cuts = [(1usize, 1usize), (5000, 13), (5000, 1000), (12_000, 1442)];
    let each = || connected_for_each_path();
    for ((len, step), mut fx) in cuts.into_iter().flat_map(|cut| each().map(|fx| (cut, fx))) {
        let bytes = pattern(0, len);
        let stag = fx.register(20_000, 20_000, Access::REMOTE_WRITE, false);
        fx.post_recv(1, 0, 20_000);
        for (index, piece) in bytes.chunks(step).enumerate() {
            let (at, last) = (index * step, index * step + piece.len() == len);
            let mo = u32::try_from(at).unwrap();
            let send = send_segment(1, mo, last, piece);
            let write = write_segment(stag, 20_000 + at as u64, last, piece);
            fx.inject_ulpdu(&send);
            fx.inject_ulpdu(&write);
        }
        assert_eq!(fx.poll_cq()[0].byte_len as usize, len);
        assert!(fx.arena.read(0, len) == bytes && fx.arena.read(20_000, len) == bytes);
        assert_eq!(fx.arena.read(len, 8), [0; 8]);
    }
}

// req-test: DDP-089, DDP-105, DDP-106, DDP-160, RDMAP-142
#[test]
fn zero_length_write_ignores_stag_and_to() {
    for mut fx in connected_for_each_path() {
        fx.inject_ulpdu(&write_segment(0xdead_beef, u64::MAX, true, b""));
        fx.post_recv(1, 0, 0);
        fx.inject_ulpdu(&send_segment(1, 0, true, b""));
        assert_eq!(fx.poll_cq()[0].byte_len, 0);
        assert_eq!(fx.end_reason(), None);
        let payload = Payload::empty();
        fx.post_op(2, Operation::Write { payload, rkey: 0xdead_beef, remote: u64::MAX });
        assert_eq!(fx.sent_ulpdus(), [write_segment(0xdead_beef, u64::MAX, true, b"")]);
        let done: Vec<_> = fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(done, [(2, WcStatus::Success)]);
        // With one byte of payload the STag is checked.
        fx.inject_ulpdu(&write_segment(0xdead_beef, 0, true, b"x"));
        assert_eq!(fx.sent_terminate().cause(), (1, 1, 0));
    }
    // DDP version and RDMAP control byte are checked even without payload.
    let nothing = write_segment(0xdead_beef, u64::MAX, true, b"");
    for (at, byte, cause) in [(0, nothing[0] ^ 1, (1, 1, 4)), (1, 0x43, (0, 2, 6))] {
        let mut fx = self::connected();
        let mut bad = nothing.clone();
        bad[at] = byte;
        fx.inject_ulpdu(&bad);
        assert_eq!(fx.sent_terminate().cause(), cause);
    }
}

// req-test: DDP-103, RDMAP-047, RDMAP-179
#[test]
fn zero_length_messages_are_one_segment() {
    let mut fx = connected();
    let nothing = Payload::empty;
    for (wr_id, (solicited, invalidate)) in
        [(false, None), (true, None), (false, Some(5)), (true, Some(5))].into_iter().enumerate()
    {
        let wr_id = u32::try_from(wr_id).unwrap();
        fx.post_op(wr_id, Operation::Send { payload: nothing(), solicited, invalidate });
    }
    fx.post_op(8, Operation::Write { payload: nothing(), rkey: 1, remote: 2 });
    fx.post_op(9, Operation::Read { sink: [Sge::default()].into(), rkey: 1, remote: 2 });
    let lens: Vec<_> =
        fx.sent_ulpdus().iter().map(|ulpdu| (ulpdu.len(), ulpdu[0] & 0x40)).collect();
    assert_eq!(lens, [(18, 0x40), (18, 0x40), (18, 0x40), (18, 0x40), (14, 0x40), (46, 0x40)]);
}

// req-test: DDP-095, RDMAP-002
#[test]
fn message_of_4_gib_is_refused() {
    for operation_of in [send_of, write_of] {
        let mut fx = connected();
        let sge = |len| Sge { addr: 0, len, lkey: fx.mem_stag };
        let too_long = [vec![sge(u32::MAX), sge(1)], vec![sge(u32::MAX); 2], vec![sge(1 << 31); 2]];
        let longest = vec![sge(u32::MAX)];
        let qp = fx.qp();
        let wr = |list: &[Sge]| {
            let operation = operation_of(list);
            SendWr { wr_id: 1, operation, signaled: true, fence: false }
        };
        for list in too_long {
            assert_eq!(fx.engine.post_send(qp, wr(&list)), Err(PostError::TooLong));
        }
        assert_eq!(fx.sent_ulpdus().len(), 0);
        assert_eq!(fx.engine.post_send(qp, wr(&longest)), Ok(()));
    }
}

// req-test: DDP-042, DDP-114, DDP-116, RDMAP-220, MPA-034
#[test]
fn delivery_waits_for_all_earlier_segments() {
    for mut fx in connected_for_each_path() {
        for wr_id in 1..=3 {
            fx.post_recv(wr_id, 64 * wr_id, 64);
        }
        let stag = fx.register(1024, 64, Access::REMOTE_WRITE, false);
        fx.inject_ulpdu(&send_segment(1, 0, false, b"one "));
        let lost = fx.drop_segment(&fx.fpdu(&send_segment(1, 4, true, b"message")));
        fx.inject_ulpdu(&send_segment(2, 0, true, b"two"));
        let lost_write = fx.drop_segment(&fx.fpdu(&write_segment(stag, 1024, true, b"written")));
        fx.inject_ulpdu(&send_segment(3, 0, true, b"three"));
        assert_eq!(fx.poll_cq(), []);
        fx.retransmit(&lost);
        let seen: Vec<_> = fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.byte_len)).collect();
        assert_eq!(seen, [(1, 11), (2, 3)]);
        assert_eq!(fx.arena.read(64, 11), b"one message");
        fx.retransmit(&lost_write);
        let seen: Vec<_> = fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.byte_len)).collect();
        assert_eq!(seen, [(3, 5)]);
        assert_eq!(fx.arena.read(1024, 7), b"written");
    }
}

// req-test: DDP-113, DDP-033, MPA-026, MPA-029, MPA-031
#[test]
fn duplicate_segments_are_placed_once() {
    let mut fx = connected();
    fx.post_recv(1, 0, 64);
    fx.post_recv(2, 64, 64);
    let stag = fx.register(1024, 64, Access::REMOTE_WRITE, false);
    let send = fx.drop_segment(&fpdu(&send_segment(1, 0, true, b"once"), true));
    let write = fx.drop_segment(&fpdu(&write_segment(stag, 1024, true, b"first"), true));
    fx.retransmit(&send);
    fx.retransmit(&write);
    let before = fx.engine.counters().fpdus_in;
    fx.retransmit(&send);
    fx.retransmit(&write);
    // Other bytes of the same length with a valid CRC: the first copy stays.
    let end = fx.drop_segment(&[]);
    let other = fpdu(&write_segment(stag, 1024, true, b"again"), true);
    let len = u32::try_from(other.len()).unwrap();
    fx.retransmit(&end.shifted_back(len, &other));
    assert_eq!(fx.engine.counters().fpdus_in, before);
    assert_eq!(fx.arena.read(1024, 5), b"first");
    assert_eq!(fx.poll_cq().len(), 1);
    // Half old data, half new.
    let overlap = [&other[..], &fpdu(&send_segment(2, 0, true, b"twice"), true)].concat();
    fx.drop_segment(&overlap[other.len()..]);
    fx.retransmit(&end.shifted_back(len, &overlap));
    assert_eq!(fx.engine.counters().fpdus_in, before + 1);
    assert_eq!(fx.poll_cq()[0].byte_len, 5);
}

// req-test: DDP-088, DDP-137, MPA-049, RDMAP-107
#[test]
fn segment_shorter_than_its_header_terminates() {
    for (control, lens) in [(0xc1u8, 0..14usize), (0x41, 0..18)] {
        for len in lens {
            let mut fx = connected();
            fx.post_recv(1, 0, 64);
            let mut ulpdu = vec![0x40; len];
            if let Some(first) = ulpdu.first_mut() {
                *first = control;
            }
            fx.inject_ulpdu(&ulpdu);
            let ended = fx.end_reason();
            assert!(matches!(ended, Some(EndReason::TerminateSent(_))), "{len}: {ended:?}");
            assert_eq!(fx.sent_ulpdus()[0][18..20], [0x02, 7], "{len}");
            assert_eq!(fx.poll_cq()[0].status, WcStatus::Flushed);
            assert_eq!(fx.arena.read(0, 64), [0; 64]);
        }
    }
}

// req-test: DDP-162, DDP-164, DDP-165, DDP-028
#[test]
fn only_the_first_error_is_reported_and_nothing_is_placed_after_it() {
    // In one segment, and after a part of the bad FPDU.
    for cut in [0, 20] {
        let mut fx = connected();
        for wr_id in 1..=6 {
            fx.post_recv(wr_id, 0, 64);
        }
        let stag = fx.register(1024, 64, Access::REMOTE_WRITE, false);
        let bad = write_segment(stag, 1080, true, b"too far out");
        let mut bytes = fpdu(&bad, true);
        for msn in 1..=3 {
            bytes.extend(fpdu(&send_segment(msn, 0, true, b"late"), true));
            bytes.extend(fpdu(&write_segment(stag, 1024, true, b"late"), true));
            bytes.extend(fpdu(&write_segment(0, 0, true, b"worse"), true));
        }
        fx.inject(&bytes[..cut]);
        fx.inject(&bytes[cut..]);
        fx.inject_ulpdu(&send_segment(4, 0, true, b"later still"));
        assert_eq!(fx.arena.read(0, 2048), [0; 2048]);
        let terminate = fx.sent_terminate();
        assert_eq!(terminate.cause(), (1, 1, 1));
        assert_eq!(terminate.ddp_header, bad[..14]);
        let done: Vec<_> = fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(done, (1..=6).map(|wr_id| (wr_id, WcStatus::Flushed)).collect::<Vec<_>>());
        assert!(matches!(fx.end_reason(), Some(EndReason::TerminateSent(_))));
    }
}

// req-test: DDP-134, DDP-139, RDMAP-244, RDMAP-247, MPA-148
#[test]
fn rst_flushes_each_request_once_without_terminate() {
    let mut fx = connected();
    for wr_id in 0..10 {
        fx.post_recv(wr_id, 0, 64);
        fx.post_read(100 + wr_id, 0, 1, PEER_STAG, 0);
    }
    fx.sent_ulpdus();
    fx.inject_flags(Flags::RST);
    assert_eq!(fx.end_reason(), Some(EndReason::Reset));
    let mut done: Vec<_> = fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    done.sort_unstable_by_key(|(wr_id, _)| *wr_id);
    let expected = (0..10).chain(100..110).map(|wr_id| (wr_id, WcStatus::Flushed));
    assert_eq!(done, expected.collect::<Vec<_>>());
    assert_eq!(fx.sent_ulpdus().len(), 0);
    assert_eq!(fx.engine.unfinished_count(), 0);
}

// req-test: DDP-136
#[test]
fn rst_ends_an_rdmac_stream() {
    let mut fx = FpduFixture::new();
    fx.inject(b"MPA ID Req Frame\xc0\0\0\0");
    fx.accept(&ConnParam::default());
    let event = fx.engine.next_event();
    let Some(ConnEvent::Established { info, .. }) = event else { panic!("{event:?}") };
    assert_eq!(info.revision, 0);
    fx.post_recv(1, 0, 64);
    fx.inject_flags(Flags::RST);
    let reason = fx.end_reason().expect("the end is reported");
    assert_eq!((reason.error(), reason), (Some((2, 0, 1)), EndReason::Reset));
    let done: Vec<_> = fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(1, WcStatus::Flushed)]);
}

// req-test: DDP-011
#[test]
fn lost_segment_delays_only_its_own_stream() {
    let mut fx = connected();
    fx.post_recv(1, 0, 64);
    let lost = fx.drop_segment(&fpdu(&send_segment(1, 0, true, b"late"), true));
    let mut first = fx.connect_another(4, 4);
    for wr_id in 2..5 {
        fx.post_recv(wr_id, 64, 64);
        fx.inject_ulpdu(&send_segment(wr_id - 1, 0, true, b"in time"));
        let done: Vec<_> = fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(done, [(u64::from(wr_id), WcStatus::Success)]);
    }
    // The end of one connection does not affect the other.
    fx.inject_flags(Flags::RST);
    assert_eq!(fx.end_reason(), Some(EndReason::Reset));
    fx.swap_connection(&mut first);
    fx.retransmit(&lost);
    let done: Vec<_> = fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.byte_len)).collect();
    assert_eq!(done, [(1, 4)]);
}

// req-test: DDP-029, DDP-030, MPA-012, MPA-054, MPA-147
#[test]
fn graceful_close_is_reported_after_earlier_data() {
    let mut fx = connected();
    fx.post_recv(1, 0, 64);
    fx.post_recv(2, 0, 64);
    let last = fx.drop_segment(&fpdu(&send_segment(1, 0, true, b"the last"), true));
    fx.inject_flags(Flags::ACK | Flags::FIN);
    assert_eq!(fx.end_reason(), None);
    fx.retransmit(&last);
    assert_eq!(fx.end_reason(), Some(EndReason::PeerClosed));
    let done: Vec<_> = fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::Flushed)]);
    assert!(fx.fin_sent && !fx.rst_sent);
    // In the segment of the last data.
    let mut fx = connected();
    fx.post_recv(1, 0, 64);
    let last = fx.fpdu(&send_segment(1, 0, true, b"the last"));
    fx.inject_with_flags(Flags::ACK | Flags::FIN, &last);
    assert_eq!(fx.end_reason(), Some(EndReason::PeerClosed));
    assert_eq!(fx.poll_cq()[0].status, WcStatus::Success);
}

// req-test: DDP-025, DDP-135, MPA-093, MPA-149, MPA-125
#[test]
fn fpdu_with_bad_crc_is_not_placed_and_terminates() {
    // The last two are of the CRC itself.
    for bit in [0, 13, 100, 8 * 19, 8 * 31, 8 * 33] {
        for has_markers in [false, true] {
            let mut fx =
                if has_markers { FpduFixture::connected_with_markers(1460) } else { connected() };
            let stag = fx.register(0, 64, Access::REMOTE_WRITE, false);
            let write = write_segment(stag, 0, true, b"guarded bytes!");
            // 24 bytes were sent, and no marker is due.
            let mut bytes =
                if has_markers { marked_fpdu(&write, true, 24) } else { fpdu(&write, true) };
            assert_eq!(bytes.len(), 36);
            bytes[2 + bit / 8] ^= 1 << (bit % 8);
            fx.inject(&bytes);
            assert_eq!(fx.arena.read(0, 64), [0; 64]);
            let reason = fx.end_reason();
            let Some(EndReason::TerminateSent(sent)) = reason else { panic!("{reason:?}") };
            assert_eq!(sent.cause(), (2, 0, 2), "bit {bit}, markers: {has_markers}");
        }
    }
}
