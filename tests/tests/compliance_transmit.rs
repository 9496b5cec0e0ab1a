//! Rules on what an end sends, seen from the wire: buffer model, queue and order of each message.

use ferrowarp_proto::verbs::cm::{ConnParam, Event};
use ferrowarp_proto::verbs::wc::WcStatus;
use ferrowarp_proto::verbs::wr::{Operation, Payload, Sge};
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::compliance::bed::{Bed, split};
use ferrowarp_tests::compliance::messages::{
    THEIRS, bed, opcodes, read, response, statuses, write,
};
use ferrowarp_tests::peer::{Header, fpdu};

/// T of a segment's control octet.
const TAGGED: u8 = 0x80;
/// L of a segment's control octet.
const LAST: u8 = 0x40;

fn is_tagged(ulpdu: &[u8]) -> bool {
    ulpdu[0] & TAGGED != 0
}

fn opcode_of(ulpdu: &[u8]) -> u8 {
    ulpdu[1] & 0x0f
}

/// The queue of an untagged segment.
fn queue_of(ulpdu: &[u8]) -> [u8; 4] {
    ulpdu[6..10].try_into().unwrap()
}

/// Each message that a stack sends, in segments of 300 octets: a Write, the four kinds of Send, a
/// Read Request, a Read Response and, at last, a Terminate.
fn one_of_each() -> Vec<Vec<u8>> {
    let mut bed = Bed::started(300, 4, 4);
    bed.write(1, 0, 1000, THEIRS, 0);
    for (wr_id, (solicited, invalidate)) in
        (2..).zip([(false, None), (false, Some(9)), (true, None), (true, Some(9))])
    {
        let payload =
            Payload::Gather([Sge { addr: 0, len: 700, lkey: bed.local }].into_iter().collect());
        bed.ask(wr_id, Operation::Send { payload, solicited, invalidate });
    }
    bed.read(6, 0, 64, THEIRS, 0);
    let mut seen = bed.ulpdus();
    bed.put_ulpdu(&read(1, bed.local, 0, 700, 0));
    seen.extend(bed.ulpdus());
    bed.put_ulpdu(&write(0, 0, b"x"));
    seen.extend(bed.ulpdus());
    seen
}

// req-test: RDMAP-133, RDMAP-144, RDMAP-160, RDMAP-168, RDMAP-187
#[test]
fn each_message_leaves_in_its_buffer_model() {
    let mut counts = [0; 8];
    for ulpdu in one_of_each() {
        let opcode = opcode_of(&ulpdu);
        counts[usize::from(opcode)] += 1;
        // RDMA Write and Read Response are tagged, and nothing else is.
        assert_eq!(is_tagged(&ulpdu), matches!(opcode, 0 | 2), "{ulpdu:02x?}");
    }
    let [writes, requests, responses, sends @ .., terminates] = counts;
    assert!(writes >= 4 && responses >= 3, "in several segments each: {counts:?}");
    assert!(sends.iter().all(|count| *count >= 3), "{counts:?}");
    assert_eq!((requests, terminates), (1, 1));
}

// req-test: RDMAP-143, RDMAP-167
#[test]
fn a_read_is_one_request_and_one_response_to_one_buffer() {
    let all = one_of_each();
    let of = |opcode| all.iter().filter(move |ulpdu| opcode_of(ulpdu) == opcode);
    assert_eq!(of(1).count(), 1);
    assert!(of(2).count() >= 3, "in several segments");
    assert_eq!(of(2).filter(|ulpdu| ulpdu[0] & LAST != 0).count(), 1);
    assert!(of(2).all(|ulpdu| ulpdu[2..6] == THEIRS.to_be_bytes()));
}

// req-test: RDMAP-149, RDMAP-177, RDMAP-188
#[test]
fn each_untagged_message_leaves_on_its_queue() {
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
fn a_read_completes_once_its_whole_response_is_delivered_and_in_the_order_of_posting() {
    let mut bed = Bed::started(1460, 4, 8);
    for wr_id in 1..=8 {
        bed.read(wr_id, 100 * wr_id, 6, THEIRS, 0);
    }
    assert_eq!(opcodes(&mut bed), [1; 8]);
    let segment = |bed: &Bed, wr_id: u32, at: u64, last, octets: &[u8]| {
        fpdu(&response(bed.local, u64::from(100 * wr_id) + at, last, octets), true)
    };
    for wr_id in (1..=8).step_by(2) {
        // The head of one response gets lost; what follows it, up to the end of the next response,
        // is here and not delivered.
        let octets = segment(&bed, wr_id, 0, false, b"abc");
        let head = bed.lose(&octets);
        let octets = segment(&bed, wr_id, 3, true, b"def");
        let tail = bed.lose(&octets);
        let octets = segment(&bed, wr_id + 1, 0, true, b"ghijkl");
        bed.say(&octets);
        assert_eq!(bed.done(), [], "Read {wr_id}");
        bed.resend(&head);
        assert_eq!(bed.done(), [], "Read {wr_id} has half of its response");
        bed.resend(&tail);
        let success = |wr_id: u32| (u64::from(wr_id), WcStatus::Success);
        assert_eq!(statuses(&mut bed), [success(wr_id), success(wr_id + 1)]);
        assert_eq!(bed.arena.read(100 * wr_id as usize, 6), b"abcdef");
        assert_eq!(bed.arena.read(100 * (wr_id as usize + 1), 6), b"ghijkl");
    }
    assert_eq!(bed.ended(), None);
}

// req-test: DDP-131, DDP-132
#[test]
fn after_the_peers_end_all_that_is_queued_leaves_and_a_fin_follows_it() {
    let mut bed = Bed::new();
    bed.say(b"MPA ID Req Frame\x40\x01\0\0");
    bed.accept(&ConnParam { half_close: true, ..ConnParam::default() });
    let event = bed.engine.next_event();
    assert!(matches!(event, Some(Event::Established { .. })), "{event:?}");
    bed.put_ulpdu(&write(0, 0, b""));
    bed.hear();
    bed.signal(Flags::ACK | Flags::FIN);
    let event = bed.engine.next_event();
    assert!(matches!(event, Some(Event::PeerFinished { .. })), "{event:?}");
    // The peer's window has room for a part of it at a time.
    bed.stall(2);
    bed.write(1, 0, 30_000, THEIRS, 0);
    let (now, qp) = (bed.now, bed.qp());
    bed.engine.close(now, qp).unwrap();
    let first = bed.hear();
    assert!(!bed.finished, "what was posted goes first");
    bed.resume(0xffff);
    let heard = [first, bed.hear()].concat();
    let (ulpdus, rest) = split(&heard);
    let len: usize = ulpdus.iter().map(|ulpdu| ulpdu.len() - 14).sum();
    assert_eq!((len, rest.len()), (30_000, 0));
    assert!(bed.finished && !bed.reset, "a FIN behind it, and no RST");
    assert_eq!(statuses(&mut bed), [(1, WcStatus::Success)]);
}

// req-test: RDMAP-023, DDP-117
#[test]
fn a_message_in_segments_has_the_length_of_all_of_them() {
    let mut bed = bed();
    bed.receive(1, 0, 16_384);
    bed.receive(2, 20_000, 16_384);
    for (msn, cuts) in (1..).zip([&[1428usize; 7][..], &[1, 2, 3]]) {
        let len: usize = cuts.iter().sum();
        let octets: Vec<u8> = (0..len).map(|at| (at % 251).to_le_bytes()[0]).collect();
        let mut at = 0;
        for cut in cuts {
            let mo = u32::try_from(at).unwrap();
            let header = Header::send(msn, mo, at + cut == len);
            bed.put_ulpdu(&header.encode(&octets[at..at + cut]));
            at += cut;
        }
        let done: Vec<_> = bed.done().iter().map(|wc| (wc.wr_id, wc.byte_len as usize)).collect();
        assert_eq!(done, [(u64::from(msn), len)]);
    }
}
