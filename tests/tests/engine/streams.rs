//! Rules on streams as a whole: setup, events, and teardown.

use ferrowarp_proto::ddp::memory::{Access, Memory as _};
use ferrowarp_proto::ddp::regions::StreamId;
use ferrowarp_proto::verbs::cm::{CmError, ConnEvent, ConnParam, EndReason};
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wc::WcStatus;
use ferrowarp_proto::verbs::wr::{Operation, Payload, SgList, Sge};
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::compliance::fixture::FpduFixture;
use ferrowarp_tests::compliance::messages::{PEER_STAG, connected, read_request, send_as, write};
use ferrowarp_tests::peer::{Header, fpdu, opcode};

// req-test: DDP-120
#[test]
fn fpdus_wait_for_the_mpa_reply() {
    let mut fx = FpduFixture::new();
    let stag = fx.register(0, 64, Access::REMOTE_WRITE, false);
    let request = [b"MPA ID Req Frame", &[0x50, 2, 0, 4, 0, 4, 0, 4][..]].concat();
    fx.inject(&[request, fpdu(&write(stag, 0, b"early"), true)].concat());
    assert_eq!((fx.arena.read(0, 5), fx.engine.counters().fpdus_in), (vec![0; 5], 0));
    fx.accept(&ConnParam::default());
    assert!(matches!(fx.engine.next_event(), Some(ConnEvent::Established { .. })));
    fx.poll_cq();
    assert_eq!((fx.arena.read(0, 5), fx.engine.counters().fpdus_in), (b"early".to_vec(), 1));
}

// req-test: DDP-072, DDP-119, RDMAP-032
#[test]
fn completion_reports_solicited_event_and_invalidated_stag() {
    let mut fx = connected();
    for (msn, opcode) in (1..).zip([
        opcode::SEND,
        opcode::SEND_INVALIDATE,
        opcode::SEND_SOLICITED,
        opcode::SEND_SOLICITED_INVALIDATE,
    ]) {
        let stag = fx.register_for_stream(1024, 64, Access::REMOTE_WRITE);
        fx.post_recv(msn, 0, 64);
        let names = opcode % 2 == 0;
        fx.inject_ulpdu(&send_as(opcode, msn, if names { stag } else { 0 }, b"x"));
        let wc = fx.poll_cq()[0];
        assert_eq!((wc.solicited, wc.byte_len), (opcode >= 5, 1));
        assert_eq!(wc.invalidated(), names.then_some(stag));
    }
}

// req-test: DDP-054, DDP-061, DDP-119, RDMAP-162
#[test]
fn only_a_read_response_completes_a_read() {
    let mut fx = connected();
    fx.post_read(1, 100, 4, PEER_STAG, 0);
    assert_eq!(fx.sent_ulpdus().len(), 1);
    // A Write to the same buffer does not complete the Read.
    fx.inject_ulpdu(&write(fx.mem_stag, 100, b"wxyz"));
    assert_eq!((fx.poll_cq(), fx.arena.read(100, 4)), (vec![], b"wxyz".to_vec()));
    let answer =
        Header::Tagged { opcode: opcode::READ_RESPONSE, last: true, stag: fx.mem_stag, to: 100 };
    fx.inject_ulpdu(&answer.encode(b"abcd"));
    assert_eq!(fx.poll_cq()[0].status, WcStatus::Success);
    assert_eq!(fx.arena.read(100, 4), b"abcd");
}

// req-test: DDP-091, DDP-098
#[test]
fn equal_msns_on_two_queues_do_not_mix() {
    let mut fx = connected();
    fx.post_recv(1, 0, 64);
    fx.arena.write(1024, b"source");
    fx.inject_ulpdu(&Header::send(1, 0, false).encode(b"one "));
    fx.inject_ulpdu(&read_request(1, fx.mem_stag, 1024, 6, 0));
    fx.inject_ulpdu(&Header::send(1, 4, true).encode(b"message"));
    assert_eq!(fx.poll_cq()[0].byte_len, 11);
    assert_eq!(fx.arena.read(0, 12), b"one message\0");
    assert_eq!(fx.sent_messages()[0].1, b"source");
}

// req-test: DDP-115, RDMAP-218
#[test]
fn completion_allows_the_buffer_to_be_reused() {
    // From one element of memory and, which takes the general path, from two.
    for cuts in [&[60_000][..], &[29_999, 30_001]] {
        let mut fx = connected();
        fx.stop_acks(2);
        let sges = cuts.iter().scan(0, |at, &len| {
            let sge = Sge { addr: *at, len, lkey: fx.mem_stag };
            *at += u64::from(len);
            Some(sge)
        });
        let payload = Payload::Gather(SgList::try_from_iter(sges).unwrap());
        fx.post_op(1, Operation::Send { payload, solicited: false, invalidate: None });
        fx.post_send(2, 0, 4);
        // The window allows only a part to be sent.
        assert_eq!(fx.poll_cq(), []);
        fx.arena.write(0, &[1; 60_000]);
        fx.resume_acks(0xffff);
        let done: Vec<_> = fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::Success)]);
        // After the completion, changes to the buffer have no effect.
        fx.arena.write(0, &[2; 60_000]);
        let bytes: Vec<_> =
            fx.sent_messages().into_iter().flat_map(|(_, payload)| payload).collect();
        assert_eq!(bytes.len(), 60_004);
        assert!(bytes.iter().all(|&byte| byte < 2));
    }
}

// req-test: DDP-027, DDP-123, DDP-151, RDMAP-252
#[test]
fn stream_in_error_accepts_nothing() {
    let mut fx = connected();
    let before = fx.engine.counters().terminates_out;
    fx.inject_ulpdu(&send_as(opcode::SEND, 1, 0, b"no buffer"));
    assert_eq!(fx.engine.counters().terminates_out, before + 1, "it is counted");
    let qp = fx.qp();
    assert_eq!(fx.engine.qp_state(qp), QpState::Error);
    assert_eq!(fx.sent_terminate().cause(), (1, 2, 2));
    fx.post_recv(1, 0, 64);
    fx.post_send(2, 0, 4);
    fx.inject_ulpdu(&send_as(opcode::SEND, 1, 0, b"again"));
    let mut done: Vec<_> = fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    done.sort_unstable_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(done, [(1, WcStatus::Flushed), (2, WcStatus::Flushed)]);
    assert_eq!((fx.sent_ulpdus().len(), fx.arena.read(0, 4)), (0, vec![0; 4]));
    assert!(matches!(fx.end_reason(), Some(EndReason::TerminateSent(_))));
    assert_eq!(fx.engine.qp_state(qp), QpState::Error);
}

// req-test: RDMAP-241, RDMAP-256
#[test]
fn every_disconnect_reports_its_reason() {
    type Cause = fn(&mut FpduFixture);
    let causes: [(Cause, &str); 7] = [
        (|fx| fx.inject_ulpdu(&write(0, 0, b"x")), "TerminateSent"),
        (|fx| fx.inject_ulpdu(&read_request(1, 0, 0, 4, 0)), "TerminateSent"),
        (|fx| fx.inject_ulpdu(&send_as(15, 1, 0, b"x")), "TerminateSent"),
        (|fx| fx.inject(&[0; 64]), "TerminateSent"),
        (
            |fx| {
                let nowhere = Sge { addr: 0, len: 4, lkey: 9 };
                let payload = Payload::Gather([nowhere].into());
                fx.post_op(1, Operation::Write { payload, rkey: 0, remote: 0 });
            },
            "LocalError",
        ),
        (|fx| fx.inject_flags(Flags::RST), "Reset"),
        (|fx| fx.inject_flags(Flags::ACK | Flags::FIN), "PeerClosed"),
    ];
    for (index, (cause, expected)) in causes.into_iter().enumerate() {
        let mut fx = connected();
        fx.post_recv(7, 0, 64);
        cause(&mut fx);
        let ended = format!("{:?}", fx.end_reason().expect("the end is reported"));
        assert!(ended.starts_with(expected), "{index}: {ended}");
        assert_eq!(fx.poll_cq().iter().filter(|wc| wc.wr_id == 7).count(), 1, "{index}");
    }
}

// req-test: RDMAP-260
#[test]
fn terminate_overtakes_queued_messages() {
    let mut fx = connected();
    fx.stop_acks(3);
    fx.post_write(1, 0, 60_000, PEER_STAG, 0);
    fx.post_write(2, 0, 4, PEER_STAG, 0);
    fx.poll_cq();
    fx.inject_ulpdu(&send_as(opcode::SEND, 1, 0, b"no buffer"));
    let before = fx.segments.len();
    fx.resume_acks(0xffff);
    let messages = fx.sent_messages();
    let (last, others) = messages.split_last().unwrap();
    let is_terminate =
        |header: &Header| matches!(header, Header::Untagged { opcode: opcode::TERMINATE, .. });
    assert!(is_terminate(&last.0));
    assert!(others.len() <= before && others.iter().all(|(header, _)| !is_terminate(header)));
}

// req-test: RDMAP-043, RDMAP-279, RDMAP-323
#[test]
fn stag_is_valid_only_while_registered() {
    for _ in 0..3 {
        let mut fx = connected();
        let stag = fx.register(1024, 64, Access::ALL, false);
        fx.inject_ulpdu(&write(stag, 1024, b"in"));
        fx.inject_ulpdu(&read_request(1, stag, 1024, 2, 0));
        assert_eq!(fx.sent_messages()[0].1, b"in");
        assert!(fx.arena.regions().invalidate(stag));
        fx.arena.regions().release(stag);
        // Another region reuses the slot, and the old STag is invalid.
        let new = fx.register(1024, 64, Access::ALL, false);
        fx.inject_ulpdu(&write(new, 1024, b"on"));
        fx.inject_ulpdu(&write(stag, 1024, b"no"));
        assert_eq!(fx.sent_terminate().cause(), (1, 1, 0));
        assert_eq!(fx.arena.read(1024, 2), b"on");
    }
}

// req-test: DDP-058, RDMAP-042
#[test]
fn stag_bounds_rights_and_pd_are_each_checked() {
    let cases = [
        (1024, 64, Access::REMOTE_WRITE, false, true),
        (1024, 3, Access::REMOTE_WRITE, false, false),
        (1025, 64, Access::REMOTE_WRITE, false, false),
        (1024, 64, Access::REMOTE_READ, false, false),
        (1024, 64, Access::REMOTE_WRITE, true, false),
    ];
    for (at, len, access, foreign, fits) in cases {
        let mut fx = connected();
        let stag = fx.register(at, len, access, foreign);
        fx.inject_ulpdu(&write(stag, 1024, b"four"));
        assert_eq!(fx.end_reason().is_none(), fits);
        assert_eq!(fx.arena.read(1024, 4) == b"four", fits);
    }
}

// req-test: DDP-198, RDMAP-325, RDMAP-326, RDMAP-327, RDMAP-330
#[test]
fn stag_scope_is_a_pd_or_one_stream_of_it() {
    for (own, others) in [(false, false), (true, false), (false, true)] {
        for attempt in 0..3 {
            let mut fx = connected();
            fx.post_recv(1, 2048, 64);
            let stag = if own {
                fx.register_for_stream(1024, 64, Access::ALL)
            } else if others {
                let stream = StreamId(0x7777);
                fx.arena.register_for(1024, 64, Access::ALL, fx.pd(), stream)
            } else {
                fx.register(1024, 64, Access::ALL, false)
            };
            let (ulpdu, cause) = match attempt {
                0 => (write(stag, 1024, b"x"), (1, 1, 2)),
                1 => (read_request(1, stag, 1024, 4, 0), (0, 1, 3)),
                _ => (send_as(opcode::SEND_INVALIDATE, 1, stag, b"x"), (0, 1, 9)),
            };
            fx.inject_ulpdu(&ulpdu);
            // An STag of the protection domain is valid on all its streams, but cannot be
            // invalidated remotely.
            if others || (attempt == 2 && !own) {
                let terminate = fx.sent_terminate();
                let causes = [cause, (0, 2, 9)];
                assert!(causes.contains(&terminate.cause()), "{attempt}: {:?}", terminate.cause());
                assert_eq!(fx.arena.read(1024, 1), [0]);
                assert!(fx.arena.regions().pd_of(stag).is_some(), "it stays valid");
            } else {
                assert_eq!(fx.end_reason(), None, "{own} {others} {attempt}");
            }
        }
    }
}

// req-test: DDP-012, DDP-127
#[test]
fn qp_serves_one_connection() {
    let mut fx = connected();
    let (qp, now, param) = (fx.qp(), fx.now, ConnParam::default());
    let remote = (ferrowarp_tests::sim::world::address(0), 9).into();
    assert_eq!(fx.engine.connect(now, qp, remote, &param), Err(CmError::WrongState));
    fx.engine.disconnect(now, qp).unwrap();
    assert_eq!(fx.end_reason(), Some(EndReason::Local));
    fx.post_send(1, 0, 4);
    let done: Vec<_> = fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(1, WcStatus::Flushed)]);
    assert_eq!(fx.sent_ulpdus().len(), 0);
    assert!(fx.fin_sent);
    assert_eq!(fx.engine.connect(now, qp, remote, &param), Err(CmError::WrongState));
}
