//! Ends in good order: what was posted is carried out first, and each half closes for itself.

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::cm::{Abort, CmError, ConnParam, EndReason, Event};
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wc::WcStatus;
use ferrowarp_proto::verbs::wr::{Operation, Payload, PostError, SendWr, Sge};
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::compliance::bed::{Bed, PORT};
use ferrowarp_tests::compliance::messages::{THEIRS, bed, opcodes, read, response, send, statuses};
use ferrowarp_tests::peer::{Header, fpdu, opcode};

const FIN: Flags = Flags(Flags::ACK.0 | Flags::FIN.0);

/// A connection that is to outlive the peer's half.
fn outliving() -> Bed {
    let mut bed = Bed::new();
    bed.say(&[b"MPA ID Req Frame", &[0x50, 2, 0, 4, 0, 4, 0, 4][..]].concat());
    bed.accept(&ConnParam { ird: 4, ord: 4, half_close: true, ..ConnParam::default() });
    assert!(matches!(bed.engine.next_event(), Some(Event::Established { .. })));
    bed.put_ulpdu(&Header::write(0, 0, true).encode(&[]));
    bed.hear();
    bed
}

fn close(bed: &mut Bed) {
    let qp = bed.qp();
    bed.engine.close(bed.now, qp).unwrap();
}

fn half_close(bed: &mut Bed) {
    let qp = bed.qp();
    bed.engine.half_close(bed.now, qp).unwrap();
}

/// FINs that the stack has sent, each as often as it was.
fn fins(bed: &Bed) -> usize {
    let is_fin = |frame: &&Vec<u8>| frame[34..36] == PORT.to_be_bytes() && frame[47] & 1 != 0;
    bed.frames.iter().filter(is_fin).count()
}

fn rest(bed: &mut Bed, seconds: u64) {
    for _ in 0..seconds {
        bed.now = bed.now + SECOND;
        bed.hear();
    }
}

fn state(bed: &Bed) -> QpState {
    bed.engine.qp_state(bed.qp())
}

// req-test: DDP-126, DDP-127
#[test]
fn a_mebibyte_that_was_posted_arrives_before_the_connection_closes() {
    const LEN: u32 = 1 << 16;
    let mut bed = bed();
    bed.stall(4);
    for wr_id in 0..16 {
        bed.send(wr_id, 0, LEN);
    }
    close(&mut bed);
    assert_eq!((state(&bed), bed.finished), (QpState::Closing, false));
    let nothing = Operation::Write { payload: Payload::empty(), rkey: 0, remote: 0 };
    let late = SendWr { wr_id: 99, operation: nothing, signaled: true, fence: false };
    let qp = bed.qp();
    assert_eq!(bed.engine.post_send(qp, late), Err(PostError::WrongState));
    bed.resume(0xffff);
    let mut done = statuses(&mut bed);
    while !bed.finished && done.len() < 20 {
        done.extend(statuses(&mut bed));
    }
    assert_eq!(done, (0..16).map(|wr_id| (wr_id, WcStatus::Success)).collect::<Vec<_>>());
    let octets: usize = bed.messages().iter().map(|(_, payload)| payload.len()).sum();
    assert_eq!((octets, bed.finished, bed.reset), (16 << 16, true, false));
    // The end is told when the peer has closed as well.
    assert_eq!(bed.ended(), None);
    bed.signal(FIN);
    assert_eq!(bed.ended(), Some(EndReason::Local));
    assert_eq!((state(&bed), fins(&bed), bed.reset), (QpState::Error, 1, false));
}

#[test]
fn fin_waits_for_answers_in_both_directions() {
    let mut bed = bed();
    bed.receive(7, 512, 64);
    bed.read(1, 0, 4, THEIRS, 0);
    bed.stall(2);
    bed.put_ulpdu(&read(1, bed.local, 0, 40_000, 0));
    close(&mut bed);
    bed.resume(0xffff);
    bed.done();
    let answered: usize = bed.messages()[1..].iter().map(|(_, payload)| payload.len()).sum();
    // What the peer asked for is answered; what was asked of it is waited for.
    assert_eq!((answered, bed.finished), (40_000, false));
    bed.put_ulpdu(&send(1, b"meanwhile"));
    bed.put_ulpdu(&response(bed.local, 0, true, b"here"));
    assert_eq!(statuses(&mut bed), [(7, WcStatus::Success), (1, WcStatus::Success)]);
    assert!(bed.finished);
    assert_eq!(
        (bed.arena.read(0, 4), bed.arena.read(512, 9)),
        (b"here".to_vec(), b"meanwhile".to_vec())
    );
}

// req-test: DDP-129, DDP-130, DDP-131
#[test]
fn the_other_half_goes_on_until_the_application_ends_it() {
    let mut bed = outliving();
    bed.send(200, 0, 8);
    bed.signal(FIN);
    let qp = bed.qp();
    assert_eq!(bed.engine.next_event(), Some(Event::PeerFinished { qp }));
    assert_eq!((bed.engine.next_event(), state(&bed)), (None, QpState::Rts));
    assert_eq!((statuses(&mut bed), bed.ulpdus().len()), (vec![(200, WcStatus::Success)], 1));
    // Long after the time that a closed connection is given.
    rest(&mut bed, 60);
    for wr_id in 0..100 {
        bed.send(wr_id, 0, 1000);
        assert_eq!(statuses(&mut bed), [(u64::from(wr_id), WcStatus::Success)]);
    }
    assert_eq!(opcodes(&mut bed), [opcode::SEND; 100]);
    // Nobody is left to answer.
    let sink = Sge { addr: 0, len: 4, lkey: bed.local };
    let operation = Operation::Read { sink, rkey: THEIRS, remote: 0 };
    let wr = SendWr { wr_id: 1, operation, signaled: true, fence: false };
    assert_eq!(bed.engine.post_send(qp, wr), Err(PostError::NoReads));
    assert_eq!((fins(&bed), bed.ended()), (0, None));
    bed.send(100, 0, 50_000);
    close(&mut bed);
    assert_eq!(statuses(&mut bed), [(100, WcStatus::Success)]);
    assert_eq!(bed.ended(), Some(EndReason::Local));
    rest(&mut bed, 60);
    assert_eq!((bed.finished, fins(&bed), bed.reset), (true, 1, false));
    assert_eq!(bed.engine.connection_count(), 0);
}

// req-test: DDP-133
#[test]
fn a_half_that_was_closed_leaves_the_other_one_open() {
    let mut bed = bed();
    bed.send(1, 0, 5000);
    half_close(&mut bed);
    assert_eq!(statuses(&mut bed), [(1, WcStatus::Success)]);
    assert!(bed.finished);
    for msn in 1..=100 {
        rest(&mut bed, 1);
        bed.receive(msn, 0, 64);
        let octets = [u8::try_from(msn).unwrap(); 64];
        bed.put_ulpdu(&send(msn, &octets));
        assert_eq!(statuses(&mut bed), [(u64::from(msn), WcStatus::Success)]);
        assert_eq!(bed.arena.read(0, 64), octets);
    }
    assert_eq!((bed.ended(), bed.reset), (None, false));
    // What only an answer could serve is not served any more, and no fault.
    bed.put_ulpdu(&read(1, bed.local, 0, 4, 0));
    assert_eq!((bed.ulpdus().len(), bed.ended()), (0, None));
    bed.receive(101, 0, 64);
    bed.signal(FIN);
    assert_eq!(bed.ended(), Some(EndReason::Local));
    assert_eq!(statuses(&mut bed), [(101, WcStatus::Flushed)]);
    assert_eq!((fins(&bed), bed.reset), (1, false));
}

#[test]
fn by_default_what_is_queued_leaves_and_the_connection_closes_in_turn() {
    let mut bed = bed();
    bed.receive(50, 0, 64);
    bed.stall(2);
    for wr_id in 0..8 {
        bed.send(wr_id, 0, 5000);
    }
    bed.signal(FIN);
    assert_eq!((state(&bed), bed.ended()), (QpState::Closing, None));
    bed.resume(0xffff);
    let mut expected: Vec<_> = (0..8).map(|wr_id| (wr_id, WcStatus::Success)).collect();
    expected.push((50, WcStatus::Flushed));
    assert_eq!(statuses(&mut bed), expected);
    assert_eq!(bed.messages().iter().map(|(_, payload)| payload.len()).sum::<usize>(), 40_000);
    assert_eq!(bed.ended(), Some(EndReason::PeerClosed));
    assert_eq!((bed.finished, bed.reset, bed.engine.connection_count()), (true, false, 0));
}

#[test]
fn a_read_that_nobody_will_answer_ends_the_connection_in_any_case() {
    for outlives in [false, true] {
        let mut bed = if outlives { outliving() } else { bed() };
        bed.stall(2);
        bed.send(1, 0, 5000);
        bed.read(2, 0, 4, THEIRS, 0);
        bed.send(3, 0, 4);
        bed.signal(FIN);
        bed.resume(0xffff);
        // What goes before it arrives, and it is not even sent.
        let flushed = WcStatus::Flushed;
        assert_eq!(statuses(&mut bed), [(1, WcStatus::Success), (2, flushed), (3, flushed)]);
        assert!(opcodes(&mut bed).iter().all(|&sent| sent == opcode::SEND));
        assert_eq!(bed.ended(), Some(EndReason::PeerClosed));
        assert!(bed.finished && !bed.reset);
    }
}

#[test]
fn a_stream_that_is_cut_within_an_fpdu_ends_at_once() {
    let mut bed = outliving();
    bed.receive(1, 0, 64);
    let whole = fpdu(&send(1, b"never whole"), true);
    bed.say(&whole[..whole.len() - 5]);
    bed.stall(1);
    bed.send(2, 0, 5000);
    bed.signal(FIN);
    assert_eq!(bed.ended(), Some(EndReason::PeerClosed));
    let flushed = WcStatus::Flushed;
    assert_eq!(statuses(&mut bed), [(2, flushed), (1, flushed)]);
}

#[test]
fn a_peer_that_never_closes_is_left_in_the_end() {
    // It acknowledges, and says no more.
    let mut bed = self::bed();
    bed.receive(9, 0, 64);
    close(&mut bed);
    rest(&mut bed, 3);
    assert!(bed.finished && bed.ended().is_none());
    // What still comes is received, and shows that it is there.
    bed.put_ulpdu(&send(1, b"one more"));
    assert_eq!(statuses(&mut bed), [(9, WcStatus::Success)]);
    rest(&mut bed, 4);
    assert_eq!(bed.ended(), None);
    rest(&mut bed, 10);
    assert_eq!((bed.ended(), bed.reset), (Some(EndReason::Local), true));
    // It does not even acknowledge.
    let mut bed = self::bed();
    bed.stall(1);
    bed.send(1, 0, 50_000);
    close(&mut bed);
    rest(&mut bed, 20);
    assert_eq!(bed.ended(), Some(EndReason::TimedOut));
    assert_eq!(statuses(&mut bed), [(1, WcStatus::Flushed)]);
}

#[test]
fn a_peer_that_has_gone_for_good_has_closed() {
    let mut bed = bed();
    bed.stall(1);
    bed.send(1, 0, 50_000);
    bed.signal(FIN);
    bed.signal(Flags::RST);
    assert_eq!(bed.ended(), Some(EndReason::PeerClosed));
    assert_eq!(statuses(&mut bed), [(1, WcStatus::Flushed)]);
}

#[test]
fn a_fault_behind_our_last_word_resets_the_connection() {
    let mut bed = bed();
    half_close(&mut bed);
    bed.done();
    let before = bed.engine.counters().terminates_out;
    bed.put_ulpdu(&send(1, b"no buffer"));
    let Some(EndReason::TerminateUnsent(told)) = bed.ended() else { panic!("it is told") };
    assert_eq!((told.cause(), bed.reset, bed.ulpdus().len()), ((1, 2, 2), true, 0));
    assert_eq!(bed.engine.counters().terminates_out, before);
}

#[test]
fn an_end_in_good_order_can_be_cut_short() {
    for by_force in [false, true] {
        let mut bed = bed();
        bed.read(1, 0, 4, THEIRS, 0);
        close(&mut bed);
        bed.hear();
        let qp = bed.qp();
        if by_force {
            bed.engine.terminate(bed.now, qp, Abort::Stream).unwrap();
            assert_eq!(opcodes(&mut bed), [opcode::TERMINATE]);
        } else {
            bed.engine.disconnect(bed.now, qp).unwrap();
        }
        assert_eq!(bed.ended(), Some(EndReason::Local));
        assert_eq!(statuses(&mut bed), [(1, WcStatus::Flushed)]);
        assert!(bed.finished && !bed.reset);
        assert_eq!(bed.engine.half_close(bed.now, qp), Err(CmError::WrongState));
    }
}

#[test]
fn a_half_that_stays_open_has_an_end_once_the_application_wants_one() {
    let enders: [fn(&mut Bed); 3] = [
        close,
        |bed| bed.engine.disconnect(bed.now, bed.qp()).unwrap(),
        |bed| bed.engine.terminate(bed.now, bed.qp(), Abort::Stream).unwrap(),
    ];
    for end in enders {
        let mut bed = bed();
        half_close(&mut bed);
        rest(&mut bed, 60);
        assert_eq!((bed.engine.connection_count(), bed.ended()), (1, None));
        end(&mut bed);
        rest(&mut bed, 20);
        assert_eq!((bed.engine.connection_count(), bed.ended()), (0, Some(EndReason::Local)));
    }
}

#[test]
fn an_stag_is_gone_before_the_last_answer() {
    // What cannot be answered while the end is waited for ends the stream with a Terminate.
    let mut bed = bed();
    let stag = bed.register(0, 64, Access::REMOTE_READ, false);
    bed.read(1, 0, 4, THEIRS, 0);
    close(&mut bed);
    bed.hear();
    bed.put_ulpdu(&read(1, stag, 0, 65, 0));
    assert_eq!(bed.terminate().cause(), (0, 1, 1));
    assert!(matches!(bed.ended(), Some(EndReason::TerminateSent(_))));
    assert_eq!(statuses(&mut bed), [(1, WcStatus::Flushed)]);
    assert!(bed.finished && !bed.reset);
}
