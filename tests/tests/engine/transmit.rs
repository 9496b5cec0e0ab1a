//! Rules for sent messages, checked on the wire: buffer model, queue and order of each message.

use ferrowarp_proto::verbs::cm::ConnEvent;
use ferrowarp_proto::verbs::wc::WcStatus;
use ferrowarp_proto::verbs::wr::{Operation, Payload, Sge};
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::compliance::fixture::{FpduFixture, parse_fpdus};
use ferrowarp_tests::compliance::messages::{
    PEER_STAG, connected, read_request, read_response, sent_opcodes, wc_statuses, write,
};
use ferrowarp_tests::conn_param;
use ferrowarp_tests::peer::Header;

/// T bit of the DDP control byte.
const TAGGED: u8 = 0x80;
/// L bit of the DDP control byte.
const LAST: u8 = 0x40;

fn is_tagged(ulpdu: &[u8]) -> bool {
    ulpdu[0] & TAGGED != 0
}

fn opcode_of(ulpdu: &[u8]) -> u8 {
    ulpdu[1] & 0x0f
}

/// The queue number of an untagged segment.
fn queue_of(ulpdu: &[u8]) -> [u8; 4] {
    ulpdu[6..10].try_into().unwrap()
}

/// One message of each kind, in segments of 300 bytes: a Write, one from two elements of memory,
/// the four kinds of Send, a Read Request, a Read Response and, at last, a Terminate.
fn one_of_each() -> Vec<Vec<u8>> {
    let mut fx = FpduFixture::connected(300, 4, 4);
    fx.post_write(1, 0, 1000, PEER_STAG, 0);
    let halves = [0, 500].map(|addr| Sge { addr, len: 500, lkey: fx.mem_stag });
    let payload = Payload::Gather(halves.into());
    fx.post_op(7, Operation::Write { payload, rkey: PEER_STAG, remote: 0 });
    for (wr_id, (solicited, invalidate)) in
        (2..).zip([(false, None), (false, Some(9)), (true, None), (true, Some(9))])
    {
        let payload = Payload::Gather([Sge { addr: 0, len: 700, lkey: fx.mem_stag }].into());
        fx.post_op(wr_id, Operation::Send { payload, solicited, invalidate });
    }
    fx.post_read(6, 0, 64, PEER_STAG, 0);
    let mut seen = fx.sent_ulpdus();
    fx.inject_ulpdu(&read_request(1, fx.mem_stag, 0, 700, 0));
    seen.extend(fx.sent_ulpdus());
    fx.inject_ulpdu(&write(0, 0, b"x"));
    seen.extend(fx.sent_ulpdus());
    seen
}

// req-test: RDMAP-133, RDMAP-144, RDMAP-160, RDMAP-168, RDMAP-187
#[test]
fn each_message_uses_its_buffer_model() {
    let mut counts = [0; 8];
    for ulpdu in one_of_each() {
        let opcode = opcode_of(&ulpdu);
        counts[usize::from(opcode)] += 1;
        // RDMA Write and Read Response are tagged, and nothing else is.
        assert_eq!(is_tagged(&ulpdu), matches!(opcode, 0 | 2), "{ulpdu:02x?}");
    }
    let [writes, requests, responses, sends @ .., terminates] = counts;
    assert!(writes >= 8 && responses >= 3, "in several segments each: {counts:?}");
    assert!(sends.iter().all(|count| *count >= 3), "{counts:?}");
    assert_eq!((requests, terminates), (1, 1));
}

// req-test: RDMAP-143, RDMAP-167
#[test]
fn read_is_one_request_and_one_response_to_one_sink() {
    let all = one_of_each();
    let of = |opcode| all.iter().filter(move |ulpdu| opcode_of(ulpdu) == opcode);
    assert_eq!(of(1).count(), 1);
    assert!(of(2).count() >= 3, "in several segments");
    assert_eq!(of(2).filter(|ulpdu| ulpdu[0] & LAST != 0).count(), 1);
    assert!(of(2).all(|ulpdu| ulpdu[2..6] == PEER_STAG.to_be_bytes()));
}

// req-test: RDMAP-149, RDMAP-177, RDMAP-188
#[test]
fn each_untagged_message_uses_its_queue() {
    let untagged: Vec<_> = one_of_each().into_iter().filter(|ulpdu| !is_tagged(ulpdu)).collect();
    assert!(untagged.len() >= 14, "{}", untagged.len());
    for ulpdu in untagged {
        let queue = match opcode_of(&ulpdu) {
            3..=6 => 0,
            1 => 1,
            7 => 2,
            opcode => panic!("opcode {opcode} is not untagged"),
        };
        assert_eq!(queue_of(&ulpdu), [0, 0, 0, queue], "{ulpdu:02x?}");
    }
}

// req-test: RDMAP-210
#[test]
fn reads_complete_in_order_on_whole_responses() {
    for sets_reserved_bit in [false, true] {
        let mut fx = FpduFixture::connected(1460, 4, 8);
        fx.sets_reserved_bit = sets_reserved_bit;
        for wr_id in 1..=8 {
            fx.post_read(wr_id, 100 * wr_id, 6, PEER_STAG, 0);
        }
        assert_eq!(sent_opcodes(&mut fx), [1; 8]);
        let segment = |fx: &FpduFixture, wr_id: u32, at: u64, last, bytes: &[u8]| {
            let to = u64::from(100 * wr_id) + at;
            fx.fpdu(&read_response(fx.mem_stag, to, last, bytes))
        };
        for wr_id in (1..=8).step_by(2) {
            // The head of one response is lost; the data after it, up to the end of the next
            // response, has arrived and is not delivered.
            let bytes = segment(&fx, wr_id, 0, false, b"abc");
            let head = fx.drop_segment(&bytes);
            let bytes = segment(&fx, wr_id, 3, true, b"def");
            let tail = fx.drop_segment(&bytes);
            let bytes = segment(&fx, wr_id + 1, 0, true, b"ghijkl");
            fx.inject(&bytes);
            assert_eq!(fx.poll_cq(), [], "Read {wr_id}");
            fx.retransmit(&head);
            assert_eq!(fx.poll_cq(), [], "Read {wr_id} has half of its response");
            fx.retransmit(&tail);
            let success = |wr_id: u32| (u64::from(wr_id), WcStatus::Success);
            assert_eq!(wc_statuses(&mut fx), [success(wr_id), success(wr_id + 1)]);
            assert_eq!(fx.arena.read(100 * wr_id as usize, 6), b"abcdef");
            assert_eq!(fx.arena.read(100 * (wr_id as usize + 1), 6), b"ghijkl");
        }
        assert_eq!(fx.end_reason(), None);
    }
}

// req-test: DDP-131, DDP-132
#[test]
fn queued_work_is_sent_before_fin_after_peer_fin() {
    let mut fx = FpduFixture::new();
    fx.inject(b"MPA ID Req Frame\x40\x01\0\0");
    fx.accept(&conn_param(|it| it.half_close = true));
    let event = fx.engine.next_event();
    assert!(matches!(event, Some(ConnEvent::Established { .. })), "{event:?}");
    fx.inject_ulpdu(&write(0, 0, b""));
    fx.take_sent();
    fx.inject_flags(Flags::ACK | Flags::FIN);
    let event = fx.engine.next_event();
    assert!(matches!(event, Some(ConnEvent::PeerFinished { .. })), "{event:?}");
    // The peer's window has space for only a part at a time.
    fx.stop_acks(2);
    fx.post_write(1, 0, 30_000, PEER_STAG, 0);
    let (now, qp) = (fx.now, fx.qp());
    fx.engine.close(now, qp).unwrap();
    let first = fx.take_sent();
    assert!(!fx.fin_sent, "what was posted goes first");
    fx.resume_acks(0xffff);
    let sent = [first, fx.take_sent()].concat();
    let (ulpdus, rest) = parse_fpdus(&sent);
    let len: usize = ulpdus.iter().map(|ulpdu| ulpdu.len() - 14).sum();
    assert_eq!((len, rest.len()), (30_000, 0));
    assert!(fx.fin_sent && !fx.rst_sent, "a FIN behind it, and no RST");
    assert_eq!(wc_statuses(&mut fx), [(1, WcStatus::Success)]);
}

// req-test: RDMAP-023, DDP-117
#[test]
fn segmented_send_reports_its_total_length() {
    let mut fx = connected();
    fx.post_recv(1, 0, 16_384);
    fx.post_recv(2, 20_000, 16_384);
    for (msn, cuts) in (1..).zip([&[1428usize; 7][..], &[1, 2, 3]]) {
        let len: usize = cuts.iter().sum();
        let bytes: Vec<u8> = (0..len).map(|at| (at % 251).to_le_bytes()[0]).collect();
        let mut at = 0;
        for cut in cuts {
            let mo = u32::try_from(at).unwrap();
            let header = Header::send(msn, mo, at + cut == len);
            fx.inject_ulpdu(&header.encode(&bytes[at..at + cut]));
            at += cut;
        }
        let done: Vec<_> = fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.byte_len as usize)).collect();
        assert_eq!(done, [(u64::from(msn), len)]);
    }
}
