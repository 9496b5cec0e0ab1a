//! RDMAP rules, checked on the wire and by completions.

use ferrowarp_proto::ddp::memory::{Access, Memory as _};
use ferrowarp_proto::verbs::cm::EndReason;
use ferrowarp_proto::verbs::wc::{WcOpcode, WcStatus};
use ferrowarp_proto::verbs::wr::{AtomicOp, Operation, Payload, PostError, SendWr, Sge};
use ferrowarp_tests::compliance::fixture::FpduFixture;
use ferrowarp_tests::compliance::messages::{
    PEER_STAG, connected, connected_for_each_path, read_request, read_response, send, sent_opcodes,
    wc_statuses, write,
};
use ferrowarp_tests::peer::{AtomicResponse, Header, ReadRequest, fpdu, opcode};

fn inline(bytes: &[u8]) -> Payload {
    Payload::inline(bytes).unwrap()
}

fn send_op(solicited: bool, invalidate: Option<u32>) -> Operation {
    Operation::Send { payload: inline(b"x"), solicited, invalidate }
}

fn is_terminate_sent(fx: &mut FpduFixture) -> bool {
    matches!(fx.end_reason(), Some(EndReason::TerminateSent(_)))
}

// req-test: RDMAP-005, RDMAP-020, RDMAP-029, RDMAP-051, RDMAP-053
#[test]
fn each_operation_is_one_rdmap_message() {
    let mut fx = connected();
    for (wr_id, (solicited, invalidate)) in
        (0..).zip([(false, None), (false, Some(9)), (true, None), (true, Some(9))])
    {
        fx.post_op(wr_id, send_op(solicited, invalidate));
    }
    fx.post_op(4, Operation::Write { payload: inline(b"x"), rkey: PEER_STAG, remote: 7 });
    fx.post_read(5, 0, 1, PEER_STAG, 8);
    let seen: Vec<_> = fx
        .sent_messages()
        .into_iter()
        .map(|(header, _)| match header {
            Header::Untagged { opcode, qn, last: true, .. } => (opcode, Some(qn), 0, 0),
            Header::Tagged { opcode, last: true, stag, to } => (opcode, None, stag, to),
            other => panic!("{other:?}"),
        })
        .collect();
    let sends = [3, 4, 5, 6].map(|opcode| (opcode, Some(0), 0, 0));
    assert_eq!(seen[..4], sends);
    assert_eq!(seen[4..], [(0, None, PEER_STAG, 7), (1, Some(1), 0, 0)]);
    // A Read of the peer is answered with one message; an error with one.
    fx.inject_ulpdu(&read_request(1, fx.mem_stag, 0, 1, 9));
    assert_eq!(fx.sent_ulpdus(), [read_response(PEER_STAG, 9, true, b"\0")]);
    fx.inject_ulpdu(&write(0, 0, b"x"));
    assert_eq!(fx.sent_ulpdus()[0][..10], [0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2]);
}

// req-test: RDMAP-050, RDMAP-181, RDMAP-061, RDMAP-066, RDMAP-068
#[test]
fn only_send_with_invalidate_carries_an_stag() {
    let mut fx = connected();
    fx.post_op(1, send_op(false, Some(0xa1b2_c3d4)));
    fx.post_op(2, send_op(true, Some(0x0102_0304)));
    fx.post_op(3, send_op(true, None));
    fx.post_op(4, send_op(false, None));
    let heads: Vec<_> = fx.sent_ulpdus().iter().map(|ulpdu| ulpdu[1..6].to_vec()).collect();
    let expected = [
        [0x44, 0xa1, 0xb2, 0xc3, 0xd4],
        [0x46, 1, 2, 3, 4],
        [0x45, 0, 0, 0, 0],
        [0x43, 0, 0, 0, 0],
    ];
    assert_eq!(heads, expected);
}

// req-test: RDMAP-003, RDMAP-139, RDMAP-178, RDMAP-217, DDP-109
#[test]
fn messages_are_sent_in_posting_order() {
    let mut fx = connected();
    let mut expected = Vec::new();
    for number in 0..16u32 {
        match number % 3 {
            0 => fx.post_send(number, 0, 3 * number),
            1 => fx.post_write(number, 0, 100 * number, PEER_STAG + number, 0),
            // At most four Reads at a time: everything from the fifth on waits.
            _ => fx.post_read(number, 0, 1, PEER_STAG, number.into()),
        }
        expected.push([3, 0, 1][number as usize % 3]);
    }
    expected.truncate(14);
    let messages = fx.sent_messages();
    let stags: Vec<_> = messages
        .iter()
        .filter_map(|(header, _)| match header {
            Header::Tagged { opcode: opcode::WRITE, stag, .. } => Some(*stag),
            _ => None,
        })
        .collect();
    assert_eq!(stags, [1, 4, 7, 10, 13].map(|number| PEER_STAG + number));
    // The length tells the Sends apart, the Data Source TO the Reads.
    let sends: Vec<_> = messages
        .iter()
        .filter_map(|(header, payload)| match header {
            Header::Untagged { opcode: opcode::SEND, .. } => Some(payload.len()),
            _ => None,
        })
        .collect();
    assert_eq!(sends, [0, 9, 18, 27, 36]);
    let sources: Vec<_> = messages
        .iter()
        .filter_map(|(header, payload)| match header {
            Header::Untagged { opcode: opcode::READ_REQUEST, .. } => payload.last().copied(),
            _ => None,
        })
        .collect();
    assert_eq!(sources, [2, 5, 8, 11]);
    let seen: Vec<_> = messages
        .iter()
        .map(|(header, _)| match header {
            Header::Tagged { opcode, .. } | Header::Untagged { opcode, .. } => *opcode,
        })
        .collect();
    assert_eq!(seen, expected);
    fx.inject_ulpdu(&read_response(fx.mem_stag, 0, true, b"r"));
    assert_eq!(sent_opcodes(&mut fx), [1, 3]);
}

// req-test: RDMAP-219, RDMAP-223, RDMAP-039, RDMAP-162, RDMAP-226
#[test]
fn requests_after_a_read_complete_after_it() {
    for mut fx in connected_for_each_path() {
        fx.post_read(1, 100, 4, PEER_STAG, 0);
        fx.post_send(2, 0, 4);
        fx.post_read(3, 200, 2, PEER_STAG, 0);
        fx.post_write(4, 0, 4, PEER_STAG, 0);
        assert_eq!(sent_opcodes(&mut fx), [1, 3, 1, 0]);
        assert_eq!(fx.poll_cq(), []);
        fx.inject_ulpdu(&read_response(fx.mem_stag, 100, false, b"ab"));
        assert_eq!(fx.poll_cq(), []);
        fx.inject_ulpdu(&read_response(fx.mem_stag, 102, true, b"cd"));
        let success = WcStatus::Success;
        assert_eq!(wc_statuses(&mut fx), [(1, success), (2, success)]);
        fx.inject_ulpdu(&read_response(fx.mem_stag, 200, true, b"ef"));
        assert_eq!(wc_statuses(&mut fx), [(3, success), (4, success)]);
        assert_eq!(fx.arena.read(100, 4), b"abcd");
        assert_eq!(fx.arena.read(200, 2), b"ef");
    }
}

// req-test: RDMAP-031, RDMAP-035, RDMAP-218
#[test]
fn signaled_sends_and_writes_complete_once_with_their_wr_id() {
    let mut fx = connected();
    let qp = fx.qp();
    for wr_id in 0..10u32 {
        let operation = if wr_id % 2 == 0 {
            Operation::Write { payload: inline(b"abc"), rkey: PEER_STAG, remote: 0 }
        } else {
            send_op(false, None)
        };
        let signaled = wr_id % 5 != 4;
        let wr = SendWr { wr_id: wr_id.into(), operation, signaled, fence: false };
        fx.engine.post_send(qp, wr).unwrap();
    }
    // Posted, not yet handed to TCP.
    assert!(fx.segments.is_empty());
    let done: Vec<_> = fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.opcode)).collect();
    let expected = [0u64, 1, 2, 3, 5, 6, 7, 8]
        .map(|wr_id| (wr_id, if wr_id % 2 == 0 { WcOpcode::Write } else { WcOpcode::Send }));
    assert_eq!(done, expected);
    assert_eq!(fx.sent_ulpdus().len(), 10);
}

// req-test: RDMAP-006, RDMAP-022, RDMAP-078, RDMAP-079, RDMAP-080
#[test]
fn read_is_one_request_and_a_segmented_response() {
    let mut fx = FpduFixture::connected(300, 4, 4);
    let bytes: Vec<u8> = (0..1000u32).map(|at| (at % 251).to_le_bytes()[0]).collect();
    fx.arena.write(2000, &bytes);
    let (source_stag, source_to) = (fx.mem_stag, 2000);
    let (sink_stag, sink_to) = (0xf1c0_ffee, 0xffff_0000_ffff_fe23);
    let request = ReadRequest { sink_stag, sink_to, len: 1000, source_stag, source_to };
    fx.inject_ulpdu(&Header::read(1).encode(&request.encode()));
    let mut found = Vec::new();
    for (header, payload) in fx.sent_messages() {
        let to = sink_to + found.len() as u64;
        let last = found.len() + payload.len() == 1000;
        let opcode = opcode::READ_RESPONSE;
        assert_eq!(header, Header::Tagged { opcode, last, stag: sink_stag, to });
        found.extend(payload);
    }
    assert_eq!(found, bytes);
    // The stack's own request.
    fx.post_read(1, 10, 1000, PEER_STAG, 77);
    let ulpdus = fx.sent_ulpdus();
    assert_eq!((ulpdus.len(), ulpdus[0].len()), (1, 46));
    let sink_stag = fx.mem_stag;
    let request =
        ReadRequest { sink_stag, sink_to: 10, len: 1000, source_stag: PEER_STAG, source_to: 77 };
    assert_eq!(ulpdus[0][18..], request.encode());
}

// req-test: RDMAP-040, RDMAP-143, RDMAP-146, RDMAP-147, RDMAP-154
#[test]
fn remote_reads_bypass_the_application() {
    let mut fx = connected();
    fx.post_recv(1, 0, 64);
    fx.arena.write(2000, b"library");
    for msn in 1..=20u32 {
        let len = msn % 8;
        fx.inject_ulpdu(&read_request(msn, fx.mem_stag, 2000, len, u64::from(msn)));
        let answer = fx.sent_ulpdus();
        assert_eq!(
            answer,
            [read_response(PEER_STAG, msn.into(), true, &b"library"[..len as usize])]
        );
    }
    assert_eq!(fx.poll_cq(), []);
    assert_eq!(fx.end_reason(), None);
    // The receive buffer was not consumed.
    fx.inject_ulpdu(&send(1, b"x"));
    assert_eq!(wc_statuses(&mut fx), [(1, WcStatus::Success)]);
}

// req-test: RDMAP-036, RDMAP-134, RDMAP-136, RDMAP-137, RDMAP-008
#[test]
fn remote_writes_bypass_the_application() {
    for mut fx in connected_for_each_path() {
        fx.post_recv(1, 0, 64);
        let stag = fx.register(1000, 10, Access::REMOTE_WRITE | Access::REMOTE_READ, false);
        for msn in 1..=100u32 {
            let at = u64::from(msn % 10);
            fx.inject_ulpdu(&write(stag, 1000 + at, &[msn.to_le_bytes()[0]]));
            fx.inject_ulpdu(&read_request(msn, stag, 1000, 10, 0));
        }
        let all: Vec<u8> = [100u8].into_iter().chain(91..=99).collect();
        assert_eq!(fx.arena.read(1000, 10), all);
        fx.inject_ulpdu(&write(stag, 1000, b"0123456789"));
        assert_eq!(fx.arena.read(999, 12), b"\x000123456789\0");
        assert_eq!(sent_opcodes(&mut fx), [2; 100]);
        assert_eq!((fx.poll_cq(), fx.end_reason()), (vec![], None));
        assert!(fx.arena.regions().invalidate(stag));
        fx.inject_ulpdu(&write(stag, 1000, b"0"));
        assert_eq!(fx.sent_terminate().cause(), (1, 1, 0));
    }
}

// req-test: RDMAP-155, RDMAP-157, RDMAP-158, RDMAP-159
#[test]
fn zero_length_read_ignores_stag_and_to() {
    let mut fx = connected();
    fx.inject_ulpdu(&read_request(1, 0xdead_beef, u64::MAX, 0, 0x123));
    assert_eq!(fx.sent_ulpdus(), [read_response(PEER_STAG, 0x123, true, b"")]);
    fx.post_op(
        1,
        Operation::Read { sink: [Sge::default()].into(), rkey: 0xdead_beef, remote: u64::MAX },
    );
    let ulpdus = fx.sent_ulpdus();
    assert_eq!(ulpdus[0][30..34], [0; 4]);
    fx.inject_ulpdu(&read_response(0, 0, true, b""));
    assert_eq!(wc_statuses(&mut fx), [(1, WcStatus::Success)]);
    // A Read of nonzero length is checked as a whole before anything is sent.
    let stag = fx.register(8192, 4000, Access::REMOTE_READ, false);
    fx.inject_ulpdu(&read_request(2, stag, 8192, 4001, 0));
    assert_eq!(fx.sent_terminate().cause(), (0, 1, 1));
}

// req-test: RDMAP-081, RDMAP-084, RDMAP-153, RDMAP-164, RDMAP-009
#[test]
fn reads_use_any_offset_and_may_reuse_a_sink() {
    let mut fx = connected();
    let bytes: Vec<u8> = (0..100u8).collect();
    fx.arena.write(4000, &bytes);
    let source = fx.register(4000, 100, Access::REMOTE_READ, false);
    for (msn, (at, len)) in (1..).zip([(0u64, 100u32), (0, 1), (99, 1), (1, 3), (33, 44)]) {
        let sink_to = u64::MAX - 200 + at;
        fx.inject_ulpdu(&read_request(msn, source, 4000 + at, len, sink_to));
        let at = usize::try_from(at).unwrap();
        let expected = &bytes[at..at + len as usize];
        assert_eq!(fx.sent_ulpdus(), [read_response(PEER_STAG, sink_to, true, expected)]);
    }
    for (wr_id, at) in [(1u32, 1u32), (2, 3), (3, 1), (4, 4095)] {
        fx.post_read(wr_id, at, 5, PEER_STAG, u64::from(wr_id));
        assert_eq!(sent_opcodes(&mut fx), [1]);
        fx.inject_ulpdu(&read_response(fx.mem_stag, at.into(), true, b"hello"));
        assert_eq!(wc_statuses(&mut fx), [(u64::from(wr_id), WcStatus::Success)]);
        assert_eq!(fx.arena.read(at as usize, 5), b"hello");
    }
}

// req-test: RDMAP-151, RDMAP-165, RDMAP-224, RDMAP-161, RDMAP-354
#[test]
fn read_responses_do_not_interleave() {
    let mut fx = FpduFixture::connected(300, 8, 4);
    let lens = [900u32, 0, 3, 1000, 1, 0, 700, 10];
    let requests: Vec<_> = (1..)
        .zip(lens)
        .flat_map(|(msn, len)| {
            fpdu(&read_request(msn, fx.mem_stag, 0, len, u64::from(msn) << 32), true)
        })
        .collect();
    fx.inject(&requests);
    let mut seen = Vec::new();
    let mut open = false;
    for (header, payload) in fx.sent_messages() {
        let Header::Tagged { opcode: opcode::READ_RESPONSE, last, to, .. } = header else {
            panic!("{header:?}")
        };
        if !open {
            seen.push((to >> 32, 0));
        }
        let (number, len) = seen.last_mut().unwrap();
        assert_eq!(*number, to >> 32, "responses do not mix");
        *len += payload.len();
        open = !last;
    }
    let expected: Vec<_> = (1..).zip(lens.map(|len| len as usize)).collect();
    assert_eq!(seen, expected);
    assert_eq!(fx.end_reason(), None);
}

// req-test: RDMAP-145, RDMAP-233, RDMAP-238, RDMAP-287
#[test]
fn read_requests_beyond_ird_terminate() {
    for ird in [1u8, 4, 16] {
        let mut fx = FpduFixture::connected(300, ird, 4);
        let local = fx.mem_stag;
        let request = |msn: u32| fpdu(&read_request(msn, local, 0, 2000, 0), true);
        let all: Vec<_> = (1..=u32::from(ird)).flat_map(request).collect();
        fx.inject(&all);
        assert_eq!(fx.end_reason(), None);
        fx.sent_ulpdus();
        let more: Vec<_> =
            (0..=u32::from(ird)).flat_map(|more| request(u32::from(ird) + 1 + more)).collect();
        fx.inject(&more);
        // Responses in progress when the excess request arrived, then the Terminate.
        let messages = fx.sent_ulpdus();
        let last = messages.last().unwrap();
        assert_eq!((last[1] & 0x0f, last[18], last[19]), (7, 0x12, 2), "IRD {ird}");
        assert!(is_terminate_sent(&mut fx));
    }
}

/// A stream whose peer uses all of its IRD takes nothing from another stream.
// req-test: RDMAP-296
#[test]
fn ird_is_per_stream() {
    let mut fx = FpduFixture::connected(300, 2, 4);
    let request = |fx: &FpduFixture, msn| read_request(msn, fx.mem_stag, 0, 2000, 0);
    // The zero window holds the responses back, and with them the IRD slots.
    fx.stop_acks(1);
    for msn in 1..=2 {
        let ulpdu = request(&fx, msn);
        fx.inject_ulpdu(&ulpdu);
    }
    let mut full = fx.connect_another(2, 4);
    for msn in 1..=6 {
        let ulpdu = request(&fx, msn);
        fx.inject_ulpdu(&ulpdu);
        let len: usize = fx.sent_messages().iter().map(|(_, payload)| payload.len()).sum();
        assert_eq!(len, 2000, "Read {msn} of the other stream");
    }
    assert_eq!(fx.end_reason(), None);
    fx.swap_connection(&mut full);
    let ulpdu = request(&fx, 3);
    fx.inject_ulpdu(&ulpdu);
    let reason = fx.end_reason();
    let Some(EndReason::TerminateSent(terminate)) = reason else { panic!("{reason:?}") };
    assert_eq!(terminate.cause(), (1, 2, 2), "the first one was full all the while");
}

// req-test: RDMAP-082, RDMAP-231, RDMAP-235, RDMAP-237
#[test]
fn outstanding_reads_never_exceed_ord() {
    for ord in [1u8, 3, 8] {
        let mut fx = FpduFixture::connected(1460, 16, ord);
        for wr_id in 0..10 {
            fx.post_read(wr_id, 0, 1, PEER_STAG, 0);
        }
        let mut asked = sent_opcodes(&mut fx).len();
        assert_eq!(asked, usize::from(ord));
        for answered in 1..=10 {
            fx.inject_ulpdu(&read_response(fx.mem_stag, 0, true, b"x"));
            asked += sent_opcodes(&mut fx).len();
            assert_eq!(asked, 10.min(answered + usize::from(ord)));
        }
        assert_eq!(fx.poll_cq().len(), 10);
    }
    // Atomic operations take the same credit.
    let mut fx = FpduFixture::connected(1460, 16, 1);
    let sink = Sge { addr: 0, len: 8, lkey: fx.mem_stag };
    let atomic = || {
        let op = AtomicOp::fetch_add(1);
        Operation::Atomic { op, sink, rkey: PEER_STAG, remote: 0 }
    };
    fx.post_op(1, atomic());
    fx.post_read(2, 0, 1, PEER_STAG, 0);
    fx.post_op(3, atomic());
    assert_eq!(sent_opcodes(&mut fx), [opcode::ATOMIC_REQUEST]);
    let header = Header::Untagged {
        opcode: opcode::ATOMIC_RESPONSE,
        last: true,
        invalidate: 0,
        qn: 3,
        msn: 1,
        mo: 0,
    };
    fx.inject_ulpdu(&header.encode(&AtomicResponse { id: 1, original: 0 }.encode()));
    assert_eq!(sent_opcodes(&mut fx), [opcode::READ_REQUEST]);
    fx.inject_ulpdu(&read_response(fx.mem_stag, 0, true, b"x"));
    assert_eq!(sent_opcodes(&mut fx), [opcode::ATOMIC_REQUEST]);
    let mut fx = FpduFixture::connected(1460, 4, 0);
    let operation = Operation::Read { sink: [Sge::default()].into(), rkey: 1, remote: 0 };
    let wr = SendWr { wr_id: 1, operation, signaled: true, fence: false };
    let qp = fx.qp();
    assert_eq!(fx.engine.post_send(qp, wr), Err(PostError::NoReads));
    assert_eq!(fx.sent_ulpdus().len(), 0);
}

// req-test: RDMAP-007, RDMAP-032, RDMAP-182, RDMAP-183, RDMAP-337
#[test]
fn send_with_invalidate_invalidates_before_completion() {
    for opcode in [opcode::SEND_INVALIDATE, opcode::SEND_SOLICITED_INVALIDATE] {
        for access in [Access::REMOTE_WRITE, Access::REMOTE_READ] {
            let mut fx = connected();
            fx.post_recv(1, 0, 64);
            let stag = fx.register_for_stream(1000, 64, access);
            let header =
                |last, mo| Header::Untagged { opcode, last, invalidate: stag, qn: 0, msn: 1, mo };
            fx.inject_ulpdu(&header(false, 0).encode(b"by"));
            assert!(fx.arena.regions().pd_of(stag).is_some(), "valid to the end of the message");
            fx.inject_ulpdu(&header(true, 2).encode(b"e"));
            let done = fx.poll_cq();
            assert_eq!(done[0].invalidated(), Some(stag));
            assert_eq!((done[0].byte_len, done[0].solicited), (3, opcode == 6));
            assert_eq!(fx.arena.regions().pd_of(stag), None);
            let bad = if access == Access::REMOTE_WRITE {
                write(stag, 1000, b"x")
            } else {
                read_request(1, stag, 1000, 1, 0)
            };
            fx.inject_ulpdu(&bad);
            assert!(is_terminate_sent(&mut fx));
        }
    }
}

// req-test: RDMAP-169, RDMAP-170, RDMAP-171, RDMAP-180, RDMAP-023
#[test]
fn send_consumes_one_receive_and_reports_its_length() {
    let mut fx = connected();
    for wr_id in 1..=4 {
        fx.post_recv(wr_id, 0, 4096);
    }
    let lens = [64usize, 0, 1400, 1];
    for (msn, len) in (1..).zip(lens) {
        fx.inject_ulpdu(&send(msn, &vec![7; len]));
    }
    let seen: Vec<_> = fx.poll_cq().iter().map(|wc| (wc.wr_id, wc.byte_len as usize)).collect();
    assert!(seen.into_iter().eq((1..).zip(lens)), "each its own, in the order of posting");
    fx.inject_ulpdu(&send(5, b"one too many"));
    assert_eq!(fx.sent_terminate().cause(), (1, 2, 2));
}

// req-test: RDMAP-173, RDMAP-208, RDMAP-346, RDMAP-209, DDP-024
#[test]
fn sends_are_delivered_in_order_after_earlier_writes() {
    let mut fx = connected();
    let stag = fx.register(1024, 64, Access::REMOTE_WRITE, false);
    for wr_id in 1..=8 {
        fx.post_recv(wr_id, 0, 64);
    }
    let mut lost = Vec::new();
    for msn in 1..=8u32 {
        let number = msn.to_le_bytes()[0];
        let to = 1024 + u64::from(msn);
        lost.push(fx.drop_segment(&fpdu(&write(stag, to, &[number]), true)));
        lost.push(fx.drop_segment(&fpdu(&send(msn, &vec![number; usize::from(number)]), true)));
    }
    // The Sends arrive first, in reverse order, then the Writes.
    for index in (1..16).step_by(2).rev().chain((0..16).step_by(2).rev()) {
        fx.retransmit(&lost[index]);
        for wc in fx.poll_cq() {
            let written = fx.arena.read(1025, wc.byte_len as usize);
            let expected: Vec<u8> = (1..=8).take(wc.byte_len as usize).collect();
            assert_eq!(written, expected, "all Writes before Send {}", wc.wr_id);
            assert_eq!(wc.wr_id, u64::from(wc.byte_len), "in order");
        }
    }
    assert_eq!(fx.arena.read(1025, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
    fx.inject_ulpdu(&send(9, b""));
    assert_eq!(fx.sent_terminate().cause(), (1, 2, 2), "each was delivered once");
}

// req-test: RDMAP-212, RDMAP-221, RDMAP-213, RDMAP-351, RDMAP-348
#[test]
fn read_returns_data_of_earlier_messages() {
    let mut fx = connected();
    fx.post_recv(1, 2048, 64);
    let stag = fx.register(1024, 64, Access::REMOTE_WRITE | Access::REMOTE_READ, false);
    let first = fx.drop_segment(&fpdu(&write(stag, 1024, b"written"), true));
    let second = fx.drop_segment(&fpdu(&send(1, b"sent"), true));
    fx.inject_ulpdu(&read_request(1, stag, 1024, 7, 0));
    fx.inject_ulpdu(&read_request(2, fx.mem_stag, 2048, 4, 0));
    fx.inject_ulpdu(&read_request(3, 0, 0, 0, 0));
    assert_eq!(fx.sent_ulpdus().len(), 0, "not before it is delivered");
    fx.retransmit(&second);
    assert_eq!(fx.sent_ulpdus().len(), 0);
    fx.retransmit(&first);
    let answers: Vec<_> = fx.sent_messages().into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(answers, [&b"written"[..], b"sent", b""]);
}
