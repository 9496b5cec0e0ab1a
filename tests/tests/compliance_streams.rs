//! Rules on streams as a whole: how they begin, what is told of them, and how they end.

use ferrowarp_proto::ddp::memory::{Access, Memory as _};
use ferrowarp_proto::ddp::regions::StreamId;
use ferrowarp_proto::verbs::cm::{ConnParam, EndReason, Event};
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wc::WcStatus;
use ferrowarp_proto::verbs::wr::{Operation, Payload, Sge};
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::compliance::bed::Bed;
use ferrowarp_tests::peer::{Header, ReadRequest, fpdu, opcode};

/// STag of the peer's memory.
const THEIRS: u32 = 0x00c0_ffee;

fn bed() -> Bed {
    Bed::started(1460, 4, 4)
}

fn send(opcode: u8, msn: u32, invalidate: u32, payload: &[u8]) -> Vec<u8> {
    Header::Untagged { opcode, last: true, invalidate, qn: 0, msn, mo: 0 }.encode(payload)
}

fn write(stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    Header::write(stag, to, true).encode(payload)
}

fn read(msn: u32, source_stag: u32, source_to: u64, len: u32) -> Vec<u8> {
    let request = ReadRequest { sink_stag: THEIRS, sink_to: 0, len, source_stag, source_to };
    Header::read(msn).encode(&request.encode())
}

// req-test: DDP-120
#[test]
fn nothing_is_parsed_before_both_ends_have_agreed() {
    let mut bed = Bed::new();
    let stag = bed.register(0, 64, Access::REMOTE_WRITE, false);
    let request = [b"MPA ID Req Frame", &[0x50, 2, 0, 4, 0, 4, 0, 4][..]].concat();
    bed.say(&[request, fpdu(&write(stag, 0, b"early"), true)].concat());
    assert_eq!((bed.arena.read(0, 5), bed.engine.counters().fpdus_in), (vec![0; 5], 0));
    bed.accept(&ConnParam::default());
    assert!(matches!(bed.engine.next_event(), Some(Event::Established { .. })));
    bed.done();
    assert_eq!((bed.arena.read(0, 5), bed.engine.counters().fpdus_in), (b"early".to_vec(), 1));
}

// req-test: DDP-072, DDP-119, RDMAP-032
#[test]
fn what_the_header_says_of_a_message_is_told() {
    let mut bed = bed();
    for (msn, opcode) in (1..).zip([
        opcode::SEND,
        opcode::SEND_INVALIDATE,
        opcode::SEND_SOLICITED,
        opcode::SEND_SOLICITED_INVALIDATE,
    ]) {
        let stag = bed.register_own(1024, 64, Access::REMOTE_WRITE);
        bed.receive(msn, 0, 64);
        let names = opcode % 2 == 0;
        bed.put_ulpdu(&send(opcode, msn, if names { stag } else { 0 }, b"x"));
        let wc = bed.done()[0];
        assert_eq!((wc.solicited, wc.byte_len), (opcode >= 5, 1));
        assert_eq!(wc.invalidated, names.then_some(stag));
    }
}

// req-test: DDP-054, DDP-061, DDP-119, RDMAP-162
#[test]
fn only_a_response_completes_a_read() {
    let mut bed = bed();
    bed.read(1, 100, 4, THEIRS, 0);
    assert_eq!(bed.ulpdus().len(), 1);
    // A Write to the same place is none.
    bed.put_ulpdu(&write(bed.local, 100, b"wxyz"));
    assert_eq!((bed.done(), bed.arena.read(100, 4)), (vec![], b"wxyz".to_vec()));
    let answer =
        Header::Tagged { opcode: opcode::READ_RESPONSE, last: true, stag: bed.local, to: 100 };
    bed.put_ulpdu(&answer.encode(b"abcd"));
    assert_eq!(bed.done()[0].status, WcStatus::Success);
    assert_eq!(bed.arena.read(100, 4), b"abcd");
}

// req-test: DDP-091, DDP-098
#[test]
fn messages_of_one_number_on_two_queues_do_not_mix() {
    let mut bed = bed();
    bed.receive(1, 0, 64);
    bed.arena.write(1024, b"source");
    bed.put_ulpdu(&Header::send(1, 0, false).encode(b"one "));
    bed.put_ulpdu(&read(1, bed.local, 1024, 6));
    bed.put_ulpdu(&Header::send(1, 4, true).encode(b"message"));
    assert_eq!(bed.done()[0].byte_len, 11);
    assert_eq!(bed.arena.read(0, 12), b"one message\0");
    assert_eq!(bed.messages()[0].1, b"source");
}

// req-test: DDP-115, RDMAP-218
#[test]
fn a_message_completes_when_it_no_longer_needs_its_memory() {
    let mut bed = bed();
    bed.stall(2);
    bed.send(1, 0, 60_000);
    bed.send(2, 0, 4);
    // The window lets out a part of it.
    assert_eq!(bed.done(), []);
    bed.arena.write(0, &[1; 60_000]);
    bed.resume(0xffff);
    let done: Vec<_> = bed.done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::Success)]);
    // What changes from now on changes nothing.
    bed.arena.write(0, &[2; 60_000]);
    let octets: Vec<_> = bed.messages().into_iter().flat_map(|(_, payload)| payload).collect();
    assert_eq!(octets.len(), 60_004);
    assert!(octets.iter().all(|&octet| octet < 2));
}

// req-test: DDP-027, DDP-123, DDP-151, RDMAP-252
#[test]
fn a_stream_in_error_stays_so_and_takes_nothing() {
    let mut bed = bed();
    let before = bed.engine.counters().terminates_out;
    bed.put_ulpdu(&send(opcode::SEND, 1, 0, b"no buffer"));
    assert_eq!(bed.engine.counters().terminates_out, before + 1, "it is counted");
    let qp = bed.qp();
    assert_eq!(bed.engine.qp_state(qp), QpState::Error);
    assert_eq!(bed.terminate().cause(), (1, 2, 2));
    bed.receive(1, 0, 64);
    bed.send(2, 0, 4);
    bed.put_ulpdu(&send(opcode::SEND, 1, 0, b"again"));
    let mut done: Vec<_> = bed.done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    done.sort_unstable_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(done, [(1, WcStatus::Flushed), (2, WcStatus::Flushed)]);
    assert_eq!((bed.ulpdus().len(), bed.arena.read(0, 4)), (0, vec![0; 4]));
    assert!(matches!(bed.ended(), Some(EndReason::TerminateSent(_))));
    assert_eq!(bed.engine.qp_state(qp), QpState::Error);
}

// req-test: RDMAP-241, RDMAP-256
#[test]
fn every_end_is_told_and_how() {
    type Cause = fn(&mut Bed);
    let causes: [(Cause, &str); 7] = [
        (|bed| bed.put_ulpdu(&write(0, 0, b"x")), "TerminateSent"),
        (|bed| bed.put_ulpdu(&read(1, 0, 0, 4)), "TerminateSent"),
        (|bed| bed.put_ulpdu(&send(15, 1, 0, b"x")), "TerminateSent"),
        (|bed| bed.say(&[0; 64]), "TerminateSent"),
        (
            |bed| {
                let nowhere = Sge { addr: 0, len: 4, lkey: 9 };
                let payload = Payload::Gather([nowhere].into_iter().collect());
                bed.ask(1, Operation::Write { payload, rkey: 0, remote: 0 });
            },
            "LocalError",
        ),
        (|bed| bed.signal(Flags::RST), "Reset"),
        (|bed| bed.signal(Flags::ACK | Flags::FIN), "PeerClosed"),
    ];
    for (index, (cause, expected)) in causes.into_iter().enumerate() {
        let mut bed = bed();
        bed.receive(7, 0, 64);
        cause(&mut bed);
        let ended = format!("{:?}", bed.ended().expect("it is told"));
        assert!(ended.starts_with(expected), "{index}: {ended}");
        assert_eq!(bed.done().iter().filter(|wc| wc.wr_id == 7).count(), 1, "{index}");
    }
}

// req-test: RDMAP-260
#[test]
fn a_terminate_overtakes_all_that_waits() {
    let mut bed = bed();
    bed.stall(3);
    bed.write(1, 0, 60_000, THEIRS, 0);
    bed.write(2, 0, 4, THEIRS, 0);
    bed.done();
    bed.put_ulpdu(&send(opcode::SEND, 1, 0, b"no buffer"));
    let before = bed.segments.len();
    bed.resume(0xffff);
    let messages = bed.messages();
    let (last, others) = messages.split_last().unwrap();
    let is_terminate =
        |header: &Header| matches!(header, Header::Untagged { opcode: opcode::TERMINATE, .. });
    assert!(is_terminate(&last.0));
    assert!(others.len() <= before && others.iter().all(|(header, _)| !is_terminate(header)));
}

// req-test: RDMAP-043, RDMAP-279, RDMAP-323
#[test]
fn a_region_may_be_used_while_it_is_registered() {
    for _ in 0..3 {
        let mut bed = bed();
        let stag = bed.register(1024, 64, Access::ALL, false);
        bed.put_ulpdu(&write(stag, 1024, b"in"));
        bed.put_ulpdu(&read(1, stag, 1024, 2));
        assert_eq!(bed.messages()[0].1, b"in");
        assert!(bed.arena.regions().invalidate(stag));
        bed.arena.regions().release(stag);
        // Another region takes its place, and the old name does not fit.
        let new = bed.register(1024, 64, Access::ALL, false);
        bed.put_ulpdu(&write(new, 1024, b"on"));
        bed.put_ulpdu(&write(stag, 1024, b"no"));
        assert_eq!(bed.terminate().cause(), (1, 1, 0));
        assert_eq!(bed.arena.read(1024, 2), b"on");
    }
}

// req-test: DDP-058, RDMAP-042
#[test]
fn stag_range_rights_and_domain_each_count() {
    let cases = [
        (1024, 64, Access::REMOTE_WRITE, false, true),
        (1024, 3, Access::REMOTE_WRITE, false, false),
        (1025, 64, Access::REMOTE_WRITE, false, false),
        (1024, 64, Access::REMOTE_READ, false, false),
        (1024, 64, Access::REMOTE_WRITE, true, false),
    ];
    for (at, len, access, foreign, fits) in cases {
        let mut bed = bed();
        let stag = bed.register(at, len, access, foreign);
        bed.put_ulpdu(&write(stag, 1024, b"four"));
        assert_eq!(bed.ended().is_none(), fits);
        assert_eq!(bed.arena.read(1024, 4) == b"four", fits);
    }
}

// req-test: DDP-198, RDMAP-325, RDMAP-326, RDMAP-327, RDMAP-330
#[test]
fn an_stag_is_good_for_its_domain_or_for_one_stream_of_it() {
    for (own, others) in [(false, false), (true, false), (false, true)] {
        for attempt in 0..3 {
            let mut bed = bed();
            bed.receive(1, 2048, 64);
            let stag = if own {
                bed.register_own(1024, 64, Access::ALL)
            } else if others {
                let stream = StreamId(0x7777);
                bed.arena.register_for(1024, 64, Access::ALL, bed.pd(), stream)
            } else {
                bed.register(1024, 64, Access::ALL, false)
            };
            let (ulpdu, cause) = match attempt {
                0 => (write(stag, 1024, b"x"), (1, 1, 2)),
                1 => (read(1, stag, 1024, 4), (0, 1, 3)),
                _ => (send(opcode::SEND_INVALIDATE, 1, stag, b"x"), (0, 1, 9)),
            };
            bed.put_ulpdu(&ulpdu);
            // What the domain shares may be used by all of it, and invalidated by none.
            if others || (attempt == 2 && !own) {
                let told = bed.terminate();
                let causes = [cause, (0, 2, 9)];
                assert!(causes.contains(&told.cause()), "{attempt}: {:?}", told.cause());
                assert_eq!(bed.arena.read(1024, 1), [0]);
                assert!(bed.arena.regions().pd_of(stag).is_some(), "it stays valid");
            } else {
                assert_eq!(bed.ended(), None, "{own} {others} {attempt}");
            }
        }
    }
}
