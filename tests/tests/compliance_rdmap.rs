//! Rules of RDMAP, seen from the wire and from the completions.

use ferrowarp_proto::ddp::memory::{Access, Memory as _};
use ferrowarp_proto::verbs::cm::EndReason;
use ferrowarp_proto::verbs::wc::{WcOpcode, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, Payload, PostError, SendWr, Sge};
use ferrowarp_tests::compliance::bed::Bed;
use ferrowarp_tests::compliance::messages::{
    THEIRS, bed, opcodes, read, response, send, send_as, statuses, write,
};
use ferrowarp_tests::peer::{Header, ReadRequest, fpdu, opcode};

fn inline(octets: &[u8]) -> Payload {
    Payload::Inline(octets.iter().copied().collect())
}

fn flags(solicited: bool, invalidate: Option<u32>) -> Operation {
    Operation::Send { payload: inline(b"x"), solicited, invalidate }
}

fn is_terminate_sent(bed: &mut Bed) -> bool {
    matches!(bed.ended(), Some(EndReason::TerminateSent(_)))
}

// req-test: RDMAP-005, RDMAP-020, RDMAP-029, RDMAP-051, RDMAP-053
#[test]
fn each_operation_is_one_message_of_its_kind() {
    let mut bed = bed();
    for (wr_id, (solicited, invalidate)) in
        (0..).zip([(false, None), (false, Some(9)), (true, None), (true, Some(9))])
    {
        bed.ask(wr_id, flags(solicited, invalidate));
    }
    bed.ask(4, Operation::Write { payload: inline(b"x"), rkey: THEIRS, remote: 7 });
    bed.read(5, 0, 1, THEIRS, 8);
    let seen: Vec<_> = bed
        .messages()
        .into_iter()
        .map(|(header, _)| match header {
            Header::Untagged { opcode, qn, last: true, .. } => (opcode, Some(qn), 0, 0),
            Header::Tagged { opcode, last: true, stag, to } => (opcode, None, stag, to),
            other => panic!("{other:?}"),
        })
        .collect();
    let sends = [3, 4, 5, 6].map(|opcode| (opcode, Some(0), 0, 0));
    assert_eq!(seen[..4], sends);
    assert_eq!(seen[4..], [(0, None, THEIRS, 7), (1, Some(1), 0, 0)]);
    // A Read of the peer is answered with one message; an error with one.
    bed.put_ulpdu(&read(1, bed.local, 0, 1, 9));
    assert_eq!(bed.ulpdus(), [response(THEIRS, 9, true, b"\0")]);
    bed.put_ulpdu(&write(0, 0, b"x"));
    assert_eq!(bed.ulpdus()[0][..10], [0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2]);
}

// req-test: RDMAP-050, RDMAP-181, RDMAP-061, RDMAP-066, RDMAP-068
#[test]
fn only_sends_that_invalidate_name_an_stag() {
    let mut bed = bed();
    bed.ask(1, flags(false, Some(0xa1b2_c3d4)));
    bed.ask(2, flags(true, Some(0x0102_0304)));
    bed.ask(3, flags(true, None));
    bed.ask(4, flags(false, None));
    let heads: Vec<_> = bed.ulpdus().iter().map(|ulpdu| ulpdu[1..6].to_vec()).collect();
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
fn messages_leave_in_the_order_of_posting() {
    let mut bed = bed();
    let mut expected = Vec::new();
    for number in 0..16u32 {
        match number % 3 {
            0 => bed.send(number, 0, 3 * number),
            1 => bed.write(number, 0, 100 * number, THEIRS + number, 0),
            // Four at a time at most: with the fifth all that follows waits.
            _ => bed.read(number, 0, 1, THEIRS, number.into()),
        }
        expected.push([3, 0, 1][number as usize % 3]);
    }
    expected.truncate(14);
    let messages = bed.messages();
    let stags: Vec<_> = messages
        .iter()
        .filter_map(|(header, _)| match header {
            Header::Tagged { opcode: opcode::WRITE, stag, .. } => Some(*stag),
            _ => None,
        })
        .collect();
    assert_eq!(stags, [1, 4, 7, 10, 13].map(|number| THEIRS + number));
    // Sends are told apart by their lengths, Reads by their sources.
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
    bed.put_ulpdu(&response(bed.local, 0, true, b"r"));
    assert_eq!(opcodes(&mut bed), [1, 3]);
}

// req-test: RDMAP-219, RDMAP-223, RDMAP-039, RDMAP-162, RDMAP-226
#[test]
fn what_follows_a_read_completes_after_it() {
    let mut bed = bed();
    bed.read(1, 100, 4, THEIRS, 0);
    bed.send(2, 0, 4);
    bed.read(3, 200, 2, THEIRS, 0);
    bed.write(4, 0, 4, THEIRS, 0);
    assert_eq!(opcodes(&mut bed), [1, 3, 1, 0]);
    assert_eq!(bed.done(), []);
    bed.put_ulpdu(&response(bed.local, 100, false, b"ab"));
    assert_eq!(bed.done(), []);
    bed.put_ulpdu(&response(bed.local, 102, true, b"cd"));
    let success = WcStatus::Success;
    assert_eq!(statuses(&mut bed), [(1, success), (2, success)]);
    bed.put_ulpdu(&response(bed.local, 200, true, b"ef"));
    assert_eq!(statuses(&mut bed), [(3, success), (4, success)]);
    assert_eq!(bed.arena.read(100, 4), b"abcd");
    assert_eq!(bed.arena.read(200, 2), b"ef");
}

// req-test: RDMAP-031, RDMAP-035, RDMAP-218
#[test]
fn each_send_and_write_completes_once_under_its_name() {
    let mut bed = bed();
    let qp = bed.qp();
    for wr_id in 0..10u32 {
        let operation = if wr_id % 2 == 0 {
            Operation::Write { payload: inline(b"abc"), rkey: THEIRS, remote: 0 }
        } else {
            flags(false, None)
        };
        let signaled = wr_id % 5 != 4;
        let wr = SendWr { wr_id: wr_id.into(), operation, signaled, fence: false };
        bed.engine.post_send(qp, wr).unwrap();
    }
    // Posted, not yet handed to TCP.
    assert!(bed.segments.is_empty());
    let done: Vec<_> = bed.done().iter().map(|wc| (wc.wr_id, wc.opcode)).collect();
    let expected = [0u64, 1, 2, 3, 5, 6, 7, 8]
        .map(|wr_id| (wr_id, if wr_id % 2 == 0 { WcOpcode::Write } else { WcOpcode::Send }));
    assert_eq!(done, expected);
    assert_eq!(bed.ulpdus().len(), 10);
}

// req-test: RDMAP-006, RDMAP-022, RDMAP-078, RDMAP-079, RDMAP-080
#[test]
fn a_read_is_one_request_and_a_response_in_segments() {
    let mut bed = Bed::started(300, 4, 4);
    let octets: Vec<u8> = (0..1000u32).map(|at| (at % 251).to_le_bytes()[0]).collect();
    bed.arena.write(2000, &octets);
    let (source_stag, source_to) = (bed.local, 2000);
    let (sink_stag, sink_to) = (0xf1c0_ffee, 0xffff_0000_0000_0123);
    let request = ReadRequest { sink_stag, sink_to, len: 1000, source_stag, source_to };
    bed.put_ulpdu(&Header::read(1).encode(&request.encode()));
    let mut found = Vec::new();
    for (header, payload) in bed.messages() {
        let to = sink_to + found.len() as u64;
        let last = found.len() + payload.len() == 1000;
        let opcode = opcode::READ_RESPONSE;
        assert_eq!(header, Header::Tagged { opcode, last, stag: sink_stag, to });
        found.extend(payload);
    }
    assert_eq!(found, octets);
    // And the stack's own request.
    bed.read(1, 10, 1000, THEIRS, 77);
    let ulpdus = bed.ulpdus();
    assert_eq!((ulpdus.len(), ulpdus[0].len()), (1, 46));
    let sink_stag = bed.local;
    let request =
        ReadRequest { sink_stag, sink_to: 10, len: 1000, source_stag: THEIRS, source_to: 77 };
    assert_eq!(ulpdus[0][18..], request.encode());
}

// req-test: RDMAP-040, RDMAP-143, RDMAP-146, RDMAP-147, RDMAP-154
#[test]
fn the_peer_reads_without_the_application() {
    let mut bed = bed();
    bed.receive(1, 0, 64);
    bed.arena.write(2000, b"library");
    for msn in 1..=20u32 {
        let len = msn % 8;
        bed.put_ulpdu(&read(msn, bed.local, 2000, len, u64::from(msn)));
        let answer = bed.ulpdus();
        assert_eq!(answer, [response(THEIRS, msn.into(), true, &b"library"[..len as usize])]);
    }
    assert_eq!(bed.done(), []);
    assert_eq!(bed.ended(), None);
    // The buffer is still there.
    bed.put_ulpdu(&send(1, b"x"));
    assert_eq!(statuses(&mut bed), [(1, WcStatus::Success)]);
}

// req-test: RDMAP-036, RDMAP-134, RDMAP-136, RDMAP-137, RDMAP-008
#[test]
fn the_peer_writes_without_the_application() {
    let mut bed = bed();
    bed.receive(1, 0, 64);
    let stag = bed.register(1000, 10, Access::REMOTE_WRITE | Access::REMOTE_READ, false);
    for msn in 1..=100u32 {
        let at = u64::from(msn % 10);
        bed.put_ulpdu(&write(stag, 1000 + at, &[msn.to_le_bytes()[0]]));
        bed.put_ulpdu(&read(msn, stag, 1000, 10, 0));
    }
    let all: Vec<u8> = [100u8].into_iter().chain(91..=99).collect();
    assert_eq!(bed.arena.read(1000, 10), all);
    bed.put_ulpdu(&write(stag, 1000, b"0123456789"));
    assert_eq!(bed.arena.read(999, 12), b"\x000123456789\0");
    assert_eq!(opcodes(&mut bed), [2; 100]);
    assert_eq!((bed.done(), bed.ended()), (vec![], None));
    assert!(bed.arena.regions().invalidate(stag));
    bed.put_ulpdu(&write(stag, 1000, b"0"));
    assert_eq!(bed.terminate().cause(), (1, 1, 0));
}

// req-test: RDMAP-155, RDMAP-157, RDMAP-158, RDMAP-159
#[test]
fn a_read_of_nothing_is_answered_whatever_it_names() {
    let mut bed = bed();
    bed.put_ulpdu(&read(1, 0xdead_beef, u64::MAX, 0, 0x123));
    assert_eq!(bed.ulpdus(), [response(THEIRS, 0x123, true, b"")]);
    bed.ask(1, Operation::Read { sink: Sge::default(), rkey: 0xdead_beef, remote: u64::MAX });
    let ulpdus = bed.ulpdus();
    assert_eq!(ulpdus[0][30..34], [0; 4]);
    bed.put_ulpdu(&response(0, 0, true, b""));
    assert_eq!(statuses(&mut bed), [(1, WcStatus::Success)]);
    // One of something is looked at before anything of it is sent.
    let stag = bed.register(8192, 4000, Access::REMOTE_READ, false);
    bed.put_ulpdu(&read(2, stag, 8192, 4001, 0));
    assert_eq!(bed.terminate().cause(), (0, 1, 1));
}

// req-test: RDMAP-081, RDMAP-084, RDMAP-153, RDMAP-164, RDMAP-009
#[test]
fn reads_may_begin_anywhere_and_use_a_sink_again() {
    let mut bed = bed();
    let octets: Vec<u8> = (0..100u8).collect();
    bed.arena.write(4000, &octets);
    let source = bed.register(4000, 100, Access::REMOTE_READ, false);
    for (msn, (at, len)) in (1..).zip([(0u64, 100u32), (0, 1), (99, 1), (1, 3), (33, 44)]) {
        let sink_to = u64::MAX - 200 + at;
        bed.put_ulpdu(&read(msn, source, 4000 + at, len, sink_to));
        let at = usize::try_from(at).unwrap();
        let expected = &octets[at..at + len as usize];
        assert_eq!(bed.ulpdus(), [response(THEIRS, sink_to, true, expected)]);
    }
    for (wr_id, at) in [(1u32, 1u32), (2, 3), (3, 1), (4, 4095)] {
        bed.read(wr_id, at, 5, THEIRS, u64::from(wr_id));
        assert_eq!(opcodes(&mut bed), [1]);
        bed.put_ulpdu(&response(bed.local, at.into(), true, b"hello"));
        assert_eq!(statuses(&mut bed), [(u64::from(wr_id), WcStatus::Success)]);
        assert_eq!(bed.arena.read(at as usize, 5), b"hello");
    }
}

// req-test: RDMAP-151, RDMAP-165, RDMAP-224, RDMAP-161, RDMAP-354
#[test]
fn reads_are_answered_one_after_the_other() {
    let mut bed = Bed::started(300, 8, 4);
    let lens = [900u32, 0, 3, 1000, 1, 0, 700, 10];
    let requests: Vec<_> = (1..)
        .zip(lens)
        .flat_map(|(msn, len)| fpdu(&read(msn, bed.local, 0, len, u64::from(msn) << 32), true))
        .collect();
    bed.say(&requests);
    let mut seen = Vec::new();
    let mut open = false;
    for (header, payload) in bed.messages() {
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
    assert_eq!(bed.ended(), None);
}

// req-test: RDMAP-145, RDMAP-233, RDMAP-238, RDMAP-287
#[test]
fn no_more_reads_than_agreed_are_taken() {
    for ird in [1u8, 4, 16] {
        let mut bed = Bed::started(300, ird, 4);
        let local = bed.local;
        let request = |msn: u32| fpdu(&read(msn, local, 0, 2000, 0), true);
        let all: Vec<_> = (1..=u32::from(ird)).flat_map(request).collect();
        bed.say(&all);
        assert_eq!(bed.ended(), None);
        bed.ulpdus();
        let more: Vec<_> =
            (0..=u32::from(ird)).flat_map(|more| request(u32::from(ird) + 1 + more)).collect();
        bed.say(&more);
        // What was being answered when the one too many came, and the Terminate.
        let messages = bed.ulpdus();
        let last = messages.last().unwrap();
        assert_eq!((last[1] & 0x0f, last[18], last[19]), (7, 0x12, 2), "IRD {ird}");
        assert!(is_terminate_sent(&mut bed));
    }
}

/// A stream whose peer has asked for all the Reads that it may takes nothing from another one.
// req-test: RDMAP-296
#[test]
fn places_for_reads_are_each_streams_own() {
    let mut bed = Bed::started(300, 2, 4);
    let request = |bed: &Bed, msn| read(msn, bed.local, 0, 2000, 0);
    // Its window keeps the responses back, and with them the places.
    bed.stall(1);
    for msn in 1..=2 {
        let ulpdu = request(&bed, msn);
        bed.put_ulpdu(&ulpdu);
    }
    let mut full = bed.set_aside();
    bed.resume(0xffff);
    let _ = bed.start_another(2, 4);
    for msn in 1..=6 {
        let ulpdu = request(&bed, msn);
        bed.put_ulpdu(&ulpdu);
        let len: usize = bed.messages().iter().map(|(_, payload)| payload.len()).sum();
        assert_eq!(len, 2000, "Read {msn} of the other stream");
    }
    assert_eq!(bed.ended(), None);
    bed.go_back(&mut full);
    let ulpdu = request(&bed, 3);
    bed.put_ulpdu(&ulpdu);
    let reason = bed.ended();
    let Some(EndReason::TerminateSent(told)) = reason else { panic!("{reason:?}") };
    assert_eq!(told.cause(), (1, 2, 2), "the first one was full all the while");
}

// req-test: RDMAP-082, RDMAP-231, RDMAP-235, RDMAP-237
#[test]
fn no_more_reads_than_agreed_are_asked_for() {
    for ord in [1u8, 3, 8] {
        let mut bed = Bed::started(1460, 16, ord);
        for wr_id in 0..10 {
            bed.read(wr_id, 0, 1, THEIRS, 0);
        }
        let mut asked = opcodes(&mut bed).len();
        assert_eq!(asked, usize::from(ord));
        for answered in 1..=10 {
            bed.put_ulpdu(&response(bed.local, 0, true, b"x"));
            asked += opcodes(&mut bed).len();
            assert_eq!(asked, 10.min(answered + usize::from(ord)));
        }
        assert_eq!(bed.done().len(), 10);
    }
    let mut bed = Bed::started(1460, 4, 0);
    let operation = Operation::Read { sink: Sge::default(), rkey: 1, remote: 0 };
    let wr = SendWr { wr_id: 1, operation, signaled: true, fence: false };
    let qp = bed.qp();
    assert_eq!(bed.engine.post_send(qp, wr), Err(PostError::NoReads));
    assert_eq!(bed.ulpdus().len(), 0);
}

// req-test: RDMAP-007, RDMAP-032, RDMAP-182, RDMAP-183, RDMAP-337
#[test]
fn a_send_invalidates_before_it_completes() {
    for opcode in [opcode::SEND_INVALIDATE, opcode::SEND_SOLICITED_INVALIDATE] {
        for access in [Access::REMOTE_WRITE, Access::REMOTE_READ] {
            let mut bed = bed();
            bed.receive(1, 0, 64);
            let stag = bed.register_own(1000, 64, access);
            bed.put_ulpdu(&send_as(opcode, 1, stag, b"bye"));
            let done = bed.done();
            assert_eq!(done[0].invalidated, Some(stag));
            assert_eq!((done[0].byte_len, done[0].solicited), (3, opcode == 6));
            assert_eq!(bed.arena.regions().pd_of(stag), None);
            let bad = if access == Access::REMOTE_WRITE {
                write(stag, 1000, b"x")
            } else {
                read(1, stag, 1000, 1, 0)
            };
            bed.put_ulpdu(&bad);
            assert!(is_terminate_sent(&mut bed));
        }
    }
}

// req-test: RDMAP-169, RDMAP-170, RDMAP-171, RDMAP-180, RDMAP-023
#[test]
fn a_send_uses_one_buffer_and_tells_its_length() {
    let mut bed = bed();
    for wr_id in 1..=4 {
        bed.receive(wr_id, 0, 4096);
    }
    let lens = [64usize, 0, 1400, 1];
    for (msn, len) in (1..).zip(lens) {
        bed.put_ulpdu(&send(msn, &vec![7; len]));
    }
    let seen: Vec<_> = bed.done().iter().map(|wc| (wc.wr_id, wc.byte_len as usize)).collect();
    assert!(seen.into_iter().eq((1..).zip(lens)), "each its own, in the order of posting");
    bed.put_ulpdu(&send(5, b"one too many"));
    assert_eq!(bed.terminate().cause(), (1, 2, 2));
}

// req-test: RDMAP-173, RDMAP-208, RDMAP-346, RDMAP-209, DDP-024
#[test]
fn sends_are_delivered_in_order_and_after_the_writes_before_them() {
    let mut bed = bed();
    let stag = bed.register(1024, 64, Access::REMOTE_WRITE, false);
    for wr_id in 1..=8 {
        bed.receive(wr_id, 0, 64);
    }
    let mut lost = Vec::new();
    for msn in 1..=8u32 {
        let number = msn.to_le_bytes()[0];
        let to = 1024 + u64::from(msn);
        lost.push(bed.lose(&fpdu(&write(stag, to, &[number]), true)));
        lost.push(bed.lose(&fpdu(&send(msn, &vec![number; usize::from(number)]), true)));
    }
    // The Sends arrive first and backwards, then the Writes.
    for index in (1..16).step_by(2).rev().chain((0..16).step_by(2).rev()) {
        bed.resend(&lost[index]);
        for wc in bed.done() {
            let written = bed.arena.read(1025, wc.byte_len as usize);
            let expected: Vec<u8> = (1..=8).take(wc.byte_len as usize).collect();
            assert_eq!(written, expected, "all Writes before Send {}", wc.wr_id);
            assert_eq!(wc.wr_id, u64::from(wc.byte_len), "in order");
        }
    }
    assert_eq!(bed.arena.read(1025, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
    bed.put_ulpdu(&send(9, b""));
    assert_eq!(bed.terminate().cause(), (1, 2, 2), "each was delivered once");
}

// req-test: RDMAP-212, RDMAP-221, RDMAP-213, RDMAP-351, RDMAP-348
#[test]
fn a_read_returns_what_was_sent_before_it() {
    let mut bed = bed();
    bed.receive(1, 2048, 64);
    let stag = bed.register(1024, 64, Access::REMOTE_WRITE | Access::REMOTE_READ, false);
    let first = bed.lose(&fpdu(&write(stag, 1024, b"written"), true));
    let second = bed.lose(&fpdu(&send(1, b"sent"), true));
    bed.put_ulpdu(&read(1, stag, 1024, 7, 0));
    bed.put_ulpdu(&read(2, bed.local, 2048, 4, 0));
    bed.put_ulpdu(&read(3, 0, 0, 0, 0));
    assert_eq!(bed.ulpdus().len(), 0, "not before it is delivered");
    bed.resend(&second);
    assert_eq!(bed.ulpdus().len(), 0);
    bed.resend(&first);
    let answers: Vec<_> = bed.messages().into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(answers, [&b"written"[..], b"sent", b""]);
}
