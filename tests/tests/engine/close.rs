//! Graceful close: posted work completes first, and each direction closes separately (half-close).

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::cm::{Abort, CmError, ConnEvent, EndReason};
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wc::WcStatus;
use ferrowarp_proto::verbs::wr::{Operation, Payload, PostError, SendWr, Sge};
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::compliance::fixture::{FpduFixture, PORT};
use ferrowarp_tests::compliance::messages::{
    PEER_STAG, connected, read_request, read_response, send, sent_opcodes, wc_statuses,
};
use ferrowarp_tests::conn_param;
use ferrowarp_tests::peer::{Header, fpdu, opcode};

const FIN: Flags = Flags(Flags::ACK.0 | Flags::FIN.0);

/// A connection that stays open after the peer's FIN.
fn connected_with_half_close() -> FpduFixture {
    let mut fx = FpduFixture::new();
    fx.inject(&[b"MPA ID Req Frame", &[0x50, 2, 0, 4, 0, 4, 0, 4][..]].concat());
    fx.accept(&conn_param(|it| {
        it.ird = 4;
        it.ord = 4;
        it.half_close = true;
    }));
    assert!(matches!(fx.engine.next_event(), Some(ConnEvent::Established { .. })));
    fx.inject_ulpdu(&Header::write(0, 0, true).encode(&[]));
    fx.take_sent();
    fx
}

fn close(fx: &mut FpduFixture) {
    let qp = fx.qp();
    fx.engine.close(fx.now, qp).unwrap();
}

fn half_close(fx: &mut FpduFixture) {
    let qp = fx.qp();
    fx.engine.half_close(fx.now, qp).unwrap();
}

/// FINs sent by the stack, retransmissions included.
fn fins_sent(fx: &FpduFixture) -> usize {
    let is_fin = |frame: &&Vec<u8>| frame[34..36] == PORT.to_be_bytes() && frame[47] & 1 != 0;
    fx.frames.iter().filter(is_fin).count()
}

fn advance_seconds(fx: &mut FpduFixture, seconds: u64) {
    for _ in 0..seconds {
        fx.now = fx.now + SECOND;
        fx.take_sent();
    }
}

fn state(fx: &FpduFixture) -> QpState {
    fx.engine.qp_state(fx.qp())
}

// req-test: DDP-126, DDP-127
#[test]
fn close_sends_all_posted_work_before_fin() {
    const LEN: u32 = 1 << 16;
    let mut fx = connected();
    fx.stop_acks(4);
    for wr_id in 0..15 {
        fx.post_send(wr_id, 0, LEN);
    }
    close(&mut fx);
    assert_eq!((state(&fx), fx.fin_sent), (QpState::Closing, false));
    let nothing = Operation::Write { payload: Payload::empty(), rkey: 0, remote: 0 };
    let late = SendWr { wr_id: 99, operation: nothing, signaled: true, fence: false };
    let qp = fx.qp();
    fx.engine.post_send(qp, late).unwrap();
    fx.resume_acks(0xffff);
    let mut done = wc_statuses(&mut fx);
    while !fx.fin_sent && done.len() < 20 {
        done.extend(wc_statuses(&mut fx));
    }
    let expected = (0..15).map(|wr_id| (wr_id, WcStatus::Success));
    assert_eq!(done, expected.chain([(99, WcStatus::Flushed)]).collect::<Vec<_>>());
    let bytes: usize = fx.sent_messages().iter().map(|(_, payload)| payload.len()).sum();
    assert_eq!((bytes, fx.fin_sent, fx.rst_sent), (15 << 16, true, false));
    // The disconnect event follows the peer's FIN.
    assert_eq!(fx.end_reason(), None);
    fx.inject_flags(FIN);
    assert_eq!(fx.end_reason(), Some(EndReason::Local));
    assert_eq!((state(&fx), fins_sent(&fx), fx.rst_sent), (QpState::Error, 1, false));
}

#[test]
fn fin_waits_for_outstanding_reads_of_both_ends() {
    let mut fx = connected();
    fx.post_recv(7, 512, 64);
    fx.post_read(1, 0, 4, PEER_STAG, 0);
    fx.stop_acks(2);
    fx.inject_ulpdu(&read_request(1, fx.mem_stag, 0, 40_000, 0));
    close(&mut fx);
    fx.resume_acks(0xffff);
    fx.poll_cq();
    let answered: usize = fx.sent_messages()[1..].iter().map(|(_, payload)| payload.len()).sum();
    // The peer's Read has been answered; our own Read is still outstanding.
    assert_eq!((answered, fx.fin_sent), (40_000, false));
    fx.inject_ulpdu(&send(1, b"meanwhile"));
    fx.inject_ulpdu(&read_response(fx.mem_stag, 0, true, b"here"));
    assert_eq!(wc_statuses(&mut fx), [(7, WcStatus::Success), (1, WcStatus::Success)]);
    assert!(fx.fin_sent);
    assert_eq!(
        (fx.arena.read(0, 4), fx.arena.read(512, 9)),
        (b"here".to_vec(), b"meanwhile".to_vec())
    );
}

// req-test: DDP-129, DDP-130, DDP-131
#[test]
fn sending_continues_after_peer_fin_until_close() {
    let mut fx = connected_with_half_close();
    fx.post_send(200, 0, 8);
    fx.inject_flags(FIN);
    let qp = fx.qp();
    assert_eq!(fx.engine.next_event(), Some(ConnEvent::PeerFinished { qp }));
    assert_eq!((fx.engine.next_event(), state(&fx)), (None, QpState::Rts));
    assert_eq!((wc_statuses(&mut fx), fx.sent_ulpdus().len()), (vec![(200, WcStatus::Success)], 1));
    // Long after the linger time of a closed connection.
    advance_seconds(&mut fx, 60);
    for wr_id in 0..100 {
        fx.post_send(wr_id, 0, 1000);
        assert_eq!(wc_statuses(&mut fx), [(u64::from(wr_id), WcStatus::Success)]);
    }
    assert_eq!(sent_opcodes(&mut fx), [opcode::SEND; 100]);
    // A Read is refused: the peer can no longer respond.
    let sink = Sge { addr: 0, len: 4, lkey: fx.mem_stag };
    let operation = Operation::Read { sink: [sink].into(), rkey: PEER_STAG, remote: 0 };
    let wr = SendWr { wr_id: 1, operation, signaled: true, fence: false };
    assert_eq!(fx.engine.post_send(qp, wr), Err(PostError::NoReads));
    assert_eq!((fins_sent(&fx), fx.end_reason()), (0, None));
    fx.post_send(100, 0, 50_000);
    close(&mut fx);
    assert_eq!(wc_statuses(&mut fx), [(100, WcStatus::Success)]);
    assert_eq!(fx.end_reason(), Some(EndReason::Local));
    advance_seconds(&mut fx, 60);
    assert_eq!((fx.fin_sent, fins_sent(&fx), fx.rst_sent), (true, 1, false));
    assert_eq!(fx.engine.connection_count(), 0);
}

// req-test: DDP-133
#[test]
fn half_close_keeps_receiving() {
    let mut fx = connected();
    fx.post_send(1, 0, 5000);
    half_close(&mut fx);
    assert_eq!(wc_statuses(&mut fx), [(1, WcStatus::Success)]);
    assert!(fx.fin_sent);
    for msn in 1..=100 {
        advance_seconds(&mut fx, 1);
        fx.post_recv(msn, 0, 64);
        let bytes = [u8::try_from(msn).unwrap(); 64];
        fx.inject_ulpdu(&send(msn, &bytes));
        assert_eq!(wc_statuses(&mut fx), [(u64::from(msn), WcStatus::Success)]);
        assert_eq!(fx.arena.read(0, 64), bytes);
    }
    assert_eq!((fx.end_reason(), fx.rst_sent), (None, false));
    // A Read Request, which would need a response, is ignored and is no error.
    fx.inject_ulpdu(&read_request(1, fx.mem_stag, 0, 4, 0));
    assert_eq!((fx.sent_ulpdus().len(), fx.end_reason()), (0, None));
    fx.post_recv(101, 0, 64);
    fx.inject_flags(FIN);
    assert_eq!(fx.end_reason(), Some(EndReason::Local));
    assert_eq!(wc_statuses(&mut fx), [(101, WcStatus::Flushed)]);
    assert_eq!((fins_sent(&fx), fx.rst_sent), (1, false));
}

#[test]
fn peer_fin_drains_the_send_queue_then_closes() {
    let mut fx = connected();
    fx.post_recv(50, 0, 64);
    fx.stop_acks(2);
    for wr_id in 0..8 {
        fx.post_send(wr_id, 0, 5000);
    }
    fx.inject_flags(FIN);
    assert_eq!((state(&fx), fx.end_reason()), (QpState::Closing, None));
    fx.resume_acks(0xffff);
    let mut expected: Vec<_> = (0..8).map(|wr_id| (wr_id, WcStatus::Success)).collect();
    expected.push((50, WcStatus::Flushed));
    assert_eq!(wc_statuses(&mut fx), expected);
    assert_eq!(fx.sent_messages().iter().map(|(_, payload)| payload.len()).sum::<usize>(), 40_000);
    assert_eq!(fx.end_reason(), Some(EndReason::PeerClosed));
    assert_eq!((fx.fin_sent, fx.rst_sent, fx.engine.connection_count()), (true, false, 0));
}

#[test]
fn read_outstanding_at_peer_fin_ends_the_connection() {
    for outlives in [false, true] {
        let mut fx = if outlives { connected_with_half_close() } else { connected() };
        fx.stop_acks(2);
        fx.post_send(1, 0, 5000);
        fx.post_read(2, 0, 4, PEER_STAG, 0);
        fx.post_send(3, 0, 4);
        fx.inject_flags(FIN);
        fx.resume_acks(0xffff);
        // The Send before the Read is sent; the Read is not.
        let flushed = WcStatus::Flushed;
        assert_eq!(wc_statuses(&mut fx), [(1, WcStatus::Success), (2, flushed), (3, flushed)]);
        assert!(sent_opcodes(&mut fx).iter().all(|&sent| sent == opcode::SEND));
        assert_eq!(fx.end_reason(), Some(EndReason::PeerClosed));
        assert!(fx.fin_sent && !fx.rst_sent);
    }
}

#[test]
fn fin_within_an_fpdu_ends_the_stream_at_once() {
    let mut fx = connected_with_half_close();
    fx.post_recv(1, 0, 64);
    let whole = fpdu(&send(1, b"never whole"), true);
    fx.inject(&whole[..whole.len() - 5]);
    fx.stop_acks(1);
    fx.post_send(2, 0, 5000);
    fx.inject_flags(FIN);
    assert_eq!(fx.end_reason(), Some(EndReason::PeerClosed));
    let flushed = WcStatus::Flushed;
    assert_eq!(wc_statuses(&mut fx), [(2, flushed), (1, flushed)]);
}

#[test]
fn peer_that_never_closes_is_reset_after_the_linger_time() {
    // The peer acknowledges, but sends nothing else.
    let mut fx = self::connected();
    fx.post_recv(9, 0, 64);
    close(&mut fx);
    advance_seconds(&mut fx, 3);
    assert!(fx.fin_sent && fx.end_reason().is_none());
    // Data that still arrives is received, and shows that the peer is alive.
    fx.inject_ulpdu(&send(1, b"one more"));
    assert_eq!(wc_statuses(&mut fx), [(9, WcStatus::Success)]);
    advance_seconds(&mut fx, 4);
    assert_eq!(fx.end_reason(), None);
    advance_seconds(&mut fx, 10);
    assert_eq!((fx.end_reason(), fx.rst_sent), (Some(EndReason::Local), true));
    // The peer does not even acknowledge.
    let mut fx = self::connected();
    fx.stop_acks(1);
    fx.post_send(1, 0, 50_000);
    close(&mut fx);
    advance_seconds(&mut fx, 20);
    assert_eq!(fx.end_reason(), Some(EndReason::TimedOut));
    assert_eq!(wc_statuses(&mut fx), [(1, WcStatus::Flushed)]);
}

#[test]
fn rst_after_peer_fin_reports_peer_closed() {
    let mut fx = connected();
    fx.stop_acks(1);
    fx.post_send(1, 0, 50_000);
    fx.inject_flags(FIN);
    fx.inject_flags(Flags::RST);
    assert_eq!(fx.end_reason(), Some(EndReason::PeerClosed));
    assert_eq!(wc_statuses(&mut fx), [(1, WcStatus::Flushed)]);
}

#[test]
fn error_after_half_close_resets_without_terminate() {
    let mut fx = connected();
    half_close(&mut fx);
    fx.poll_cq();
    let before = fx.engine.counters().terminates_out;
    fx.inject_ulpdu(&send(1, b"no buffer"));
    let Some(EndReason::TerminateUnsent(terminate)) = fx.end_reason() else {
        panic!("the end is reported")
    };
    assert_eq!((terminate.cause(), fx.rst_sent, fx.sent_ulpdus().len()), ((1, 2, 2), true, 0));
    assert_eq!(fx.engine.counters().terminates_out, before);
}

#[test]
fn graceful_close_can_be_aborted() {
    for by_force in [false, true] {
        let mut fx = connected();
        fx.post_read(1, 0, 4, PEER_STAG, 0);
        close(&mut fx);
        fx.take_sent();
        let qp = fx.qp();
        if by_force {
            fx.engine.terminate(fx.now, qp, Abort::Stream).unwrap();
            assert_eq!(sent_opcodes(&mut fx), [opcode::TERMINATE]);
        } else {
            fx.engine.disconnect(fx.now, qp).unwrap();
        }
        assert_eq!(fx.end_reason(), Some(EndReason::Local));
        assert_eq!(wc_statuses(&mut fx), [(1, WcStatus::Flushed)]);
        assert!(fx.fin_sent && !fx.rst_sent);
        assert_eq!(fx.engine.half_close(fx.now, qp), Err(CmError::WrongState));
    }
}

#[test]
fn half_closed_connection_lasts_until_close_or_abort() {
    let enders: [fn(&mut FpduFixture); 3] = [
        close,
        |fx| fx.engine.disconnect(fx.now, fx.qp()).unwrap(),
        |fx| fx.engine.terminate(fx.now, fx.qp(), Abort::Stream).unwrap(),
    ];
    for end in enders {
        let mut fx = connected();
        half_close(&mut fx);
        advance_seconds(&mut fx, 60);
        assert_eq!((fx.engine.connection_count(), fx.end_reason()), (1, None));
        end(&mut fx);
        advance_seconds(&mut fx, 20);
        assert_eq!((fx.engine.connection_count(), fx.end_reason()), (0, Some(EndReason::Local)));
    }
}

#[test]
fn refused_read_during_close_sends_terminate() {
    // A Read Request that has to be refused during the close terminates the stream.
    let mut fx = connected();
    let stag = fx.register(0, 64, Access::REMOTE_READ, false);
    fx.post_read(1, 0, 4, PEER_STAG, 0);
    close(&mut fx);
    fx.take_sent();
    fx.inject_ulpdu(&read_request(1, stag, 0, 65, 0));
    assert_eq!(fx.sent_terminate().cause(), (0, 1, 1));
    assert!(matches!(fx.end_reason(), Some(EndReason::TerminateSent(_))));
    assert_eq!(wc_statuses(&mut fx), [(1, WcStatus::Flushed)]);
    assert!(fx.fin_sent && !fx.rst_sent);
}
