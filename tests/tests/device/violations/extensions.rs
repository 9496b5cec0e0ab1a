//! The same for RFC 7306: invalid atomic operations and Immediate Data, and a peer's on a
//! connection without RFC 7306.

use ferrowarp::{AtomicOp, RemoteAddr, WcOpcode};
use ferrowarp_tests::peer::{AtomicRequest, AtomicResponse};
use ferrowarp_tests::stack::post_read;
use ferrowarp_tests::test_name;

use super::*;

/// A 64-bit word of the peer: STag and address in the stack's requests.
const REMOTE: RemoteAddr = RemoteAddr { addr: 64, rkey: peer::PEER_STAG };

/// A FetchAdd of 5 on queue 1.
fn atomic(stag: u32, to: u64) -> Vec<u8> {
    fetch_add_request(5, stag, to, 1)
}

fn fetch_add_request(add: u64, stag: u32, to: u64, msn: u32) -> Vec<u8> {
    let request = AtomicRequest { id: 77, stag, to, data: [add, 0], ..AtomicRequest::default() };
    untagged(opcode::ATOMIC_REQUEST, 1, msn, 0, &request.encode())
}

fn operation(code: u8, stag: u32, to: u64) -> Vec<u8> {
    changed(atomic(stag, to), 18 + 3, code)
}

fn response(id: u32, msn: u32) -> Vec<u8> {
    let bytes = AtomicResponse { id, original: 9 }.encode();
    untagged(opcode::ATOMIC_RESPONSE, 3, msn, 0, &bytes)
}

fn immediate(msn: u32, bytes: &[u8]) -> Vec<u8> {
    untagged(opcode::IMMEDIATE, 0, msn, 0, bytes)
}

fn solicited(msn: u32, bytes: &[u8]) -> Vec<u8> {
    untagged(opcode::IMMEDIATE_SOLICITED, 0, msn, 0, bytes)
}

/// The same message on another queue.
fn on_queue(ulpdu: Vec<u8>, qn: u8) -> Vec<u8> {
    changed(ulpdu, 9, qn)
}

/// A segment without the L bit.
fn unfinished(ulpdu: Vec<u8>) -> Vec<u8> {
    changed(ulpdu, 0, 0x01)
}

/// With a nonzero MO.
fn at_offset(ulpdu: Vec<u8>) -> Vec<u8> {
    changed(ulpdu, 17, 8)
}

fn longer(ulpdu: Vec<u8>) -> Vec<u8> {
    [&ulpdu[..], b"x"].concat()
}

fn shorter(mut ulpdu: Vec<u8>) -> Vec<u8> {
    ulpdu.pop();
    ulpdu
}

/// Atomic operations. `plain` is a region with all rights except atomic operations.
fn atomic_cases(stags: &Stags, plain: u32) -> Vec<Case> {
    let Stags { open, base, closed, foreign, unknown } = *stags;
    let end = base + u64::from(LEN);
    let good = atomic(open, base);
    // Does not change the word.
    let none = |msn| fetch_add_request(0, open, base, msn);
    vec![
        ("an operation that is none", vec![], operation(3, open, base), (0, 2, 6)),
        ("the last operation", vec![], operation(15, open, base), (0, 2, 6)),
        ("an operation that is none, nowhere", vec![], operation(3, 0, base), (0, 2, 6)),
        ("a word: an unknown STag", vec![], atomic(unknown, base), (0, 1, 0)),
        ("a word: STag 0", vec![], atomic(0, base), (0, 1, 0)),
        ("a word: before the region", vec![], atomic(open, base - 8), (0, 1, 1)),
        ("a word: half in the region", vec![], atomic(open, end - 4), (0, 1, 1)),
        ("a word: behind the region", vec![], atomic(open, end), (0, 1, 1)),
        ("a word: no right at all", vec![], atomic(closed, base), (0, 1, 2)),
        ("a word: all rights but this", vec![], atomic(plain, base), (0, 1, 2)),
        ("a word: another domain", vec![], atomic(foreign, base), (0, 1, 3)),
        ("a word: around the end of all offsets", vec![], atomic(open, u64::MAX - 6), (0, 1, 4)),
        ("a word across two", vec![], atomic(open, base + 4), (0, 2, 0xFF)),
        (
            "a word one byte on",
            vec![none(1)],
            fetch_add_request(5, open, base + 9, 2),
            (0, 2, 0xFF),
        ),
        ("an Atomic Request with a tail", vec![], longer(good.clone()), (1, 2, 5)),
        ("an Atomic Request in two segments", vec![], unfinished(good.clone()), (1, 2, 5)),
        ("an Atomic Request cut short", vec![], shorter(good.clone()), (0, 2, 7)),
        ("an Atomic Request at an offset", vec![], at_offset(good.clone()), (1, 2, 4)),
        ("an Atomic Request left out", vec![], fetch_add_request(5, open, base, 2), (1, 2, 3)),
        ("an Atomic Request twice", vec![none(1)], none(1), (1, 2, 3)),
        ("a Read with an Atomic Request's number", vec![none(1)], read(open, base, 5), (1, 2, 3)),
        ("an Atomic Request on queue 0", vec![], on_queue(good.clone(), 0), (0, 2, 6)),
        ("an Atomic Request on queue 2", vec![], on_queue(good.clone(), 2), (0, 2, 6)),
        ("an Atomic Request on queue 3", vec![], on_queue(good.clone(), 3), (0, 2, 6)),
        ("an Atomic Request on queue 4", vec![], on_queue(good, 4), (1, 2, 1)),
        ("an Atomic Request, tagged", vec![], changed(write(open, base, 52), 1, 0x4A), (0, 2, 6)),
        ("an Atomic Response nobody asked for", vec![], response(1, 1), (1, 2, 2)),
        ("an Atomic Response on queue 0", vec![], on_queue(response(1, 1), 0), (0, 2, 6)),
        ("an Atomic Response on queue 1", vec![], on_queue(response(1, 1), 1), (0, 2, 6)),
        ("an Atomic Response, tagged", vec![], changed(write(open, base, 12), 1, 0x4B), (0, 2, 6)),
        ("a Send on queue 3", vec![], on_queue(send(b"x"), 3), (0, 2, 6)),
        ("the first opcode behind", vec![], changed(send(b"x"), 1, 0x4C), (0, 2, 6)),
    ]
}

/// Immediate Data.
fn immediate_cases(stags: &Stags) -> Vec<Case> {
    let Stags { open, base, .. } = *stags;
    let good = || immediate(1, b"8 bytes!");
    let all = || (1..4).map(|msn| solicited(msn, b"8 bytes!")).collect::<Vec<_>>();
    let tagged = |opcode| changed(write(open, base, 8), 1, opcode);
    vec![
        ("no immediate data", vec![], immediate(1, b""), (0, 2, 7)),
        ("immediate data cut short", vec![], shorter(good()), (0, 2, 7)),
        ("immediate data with event, cut short", vec![], solicited(1, b"four"), (0, 2, 7)),
        ("immediate data with a tail", vec![], longer(good()), (1, 2, 5)),
        ("immediate data like a Send", vec![], solicited(1, &[7; 1000]), (1, 2, 5)),
        ("immediate data in two segments", vec![], unfinished(good()), (1, 2, 5)),
        ("immediate data at an offset", vec![], at_offset(good()), (1, 2, 4)),
        ("immediate data left out", vec![], immediate(2, b"8 bytes!"), (1, 2, 3)),
        ("no immediate data's number", vec![], immediate(0, b"8 bytes!"), (1, 2, 3)),
        ("immediate data twice", vec![good()], good(), (1, 2, 3)),
        ("immediate data with a Send's number", vec![send(b"x")], good(), (1, 2, 3)),
        ("a Send with their number", vec![good()], send(b"x"), (1, 2, 3)),
        ("immediate data and no buffer", all(), immediate(4, b"8 bytes!"), (1, 2, 2)),
        ("immediate data with event, no buffer", all(), solicited(4, b"8 bytes!"), (1, 2, 2)),
        ("immediate data far ahead", vec![], immediate(1000, b"8 bytes!"), (1, 2, 2)),
        ("immediate data on queue 1", vec![], on_queue(good(), 1), (0, 2, 6)),
        ("immediate data on queue 2", vec![], on_queue(good(), 2), (0, 2, 6)),
        ("immediate data on queue 3", vec![], on_queue(good(), 3), (0, 2, 6)),
        ("immediate data on queue 4", vec![], on_queue(good(), 4), (1, 2, 1)),
        ("immediate data, tagged", vec![], tagged(0x48), (0, 2, 6)),
        ("immediate data with event, tagged", vec![], tagged(0x49), (0, 2, 6)),
    ]
}

/// Valid messages of RFC 7306, and the error each causes on a connection without RFC 7306.
fn unknown_cases(stags: &Stags, version: Version) -> Vec<Case> {
    let Stags { open, base, .. } = *stags;
    // The IETF version without RFC 7306 knows the opcode and lacks the queue.
    let queue = if version == Version::Ietf { (1, 2, 1) } else { (0, 2, 6) };
    vec![
        ("off: immediate data", vec![], immediate(1, b"8 bytes!"), (0, 2, 6)),
        ("off: immediate data with event", vec![], solicited(1, b"8 bytes!"), (0, 2, 6)),
        (
            "off: immediate data behind a Send",
            vec![send(b"x")],
            immediate(2, b"12345678"),
            (0, 2, 6),
        ),
        ("off: an Atomic Request", vec![], atomic(open, base), (0, 2, 6)),
        ("off: an Atomic Response", vec![], response(1, 1), queue),
        ("off: an operation that is none", vec![], operation(3, open, base), (0, 2, 6)),
    ]
}

/// Responses of the peer to an atomic operation `id`; true if a Read precedes it.
fn answer_cases(id: u32) -> Vec<(bool, Case)> {
    let good = || response(id, 1);
    let read = Header::Tagged { opcode: opcode::READ_RESPONSE, last: true, stag: 0, to: 0 };
    let alone = [
        ("another identifier", vec![], response(id ^ 1, 1), (0, 2, 6)),
        ("a response twice", vec![good()], good(), (1, 2, 3)),
        ("one response more", vec![good()], response(id, 2), (1, 2, 2)),
        ("no response's number", vec![], response(id, 0), (1, 2, 3)),
        ("a response left out", vec![], response(id, 2), (1, 2, 2)),
        ("a response at an offset", vec![], at_offset(good()), (1, 2, 4)),
        ("a response with a tail", vec![], longer(good()), (1, 2, 5)),
        ("a response in two segments", vec![], unfinished(good()), (1, 2, 5)),
        ("a response cut short", vec![], shorter(good()), (0, 2, 7)),
        ("a Read Response instead", vec![], read.encode(b"12345678"), (0, 2, 6)),
    ];
    let after_read = [("a response before the Read's", vec![], good(), (0, 2, 6))];
    let alone = alone.into_iter().map(|case| (false, case));
    alone.chain(after_read.into_iter().map(|case| (true, case))).collect()
}

/// Sends the ULPDUs of a case and checks the outcome.
fn check(fx: &ViolationFixture, version: Version, case: Case, answered: &mut u64) {
    let (name, earlier, ulpdu, expected) = case;
    let (qp, mut peer) = fx.connect(version);
    for ulpdu in earlier {
        peer.send_ulpdu(&ulpdu).unwrap();
    }
    peer.send_ulpdu(&ulpdu).unwrap();
    check_answer(&qp, &mut peer, name, ulpdu, expected);
    fx.check_receives(name);
    *answered += 1;
    assert_eq!(fx.stack.context.counters().engine.terminates_out, *answered, "{name}");
}

fn check_answer(qp: &Qp, peer: &mut Peer, name: &str, mut ulpdu: Vec<u8>, expected: (u8, u8, u8)) {
    peer.serve_until(|peer| peer.terminate.is_some())
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    let terminate = peer.terminate.clone().unwrap();
    assert_eq!(terminate.cause(), expected, "{name}");
    if peer.rdmac {
        peer::toggle_versions(&mut ulpdu);
    }
    check_terminate_headers(name, &terminate, &ulpdu);
    match qp.wait_event(TIMEOUT) {
        Some(ConnEvent::Disconnected { reason: EndReason::TerminateSent(sent), .. }) => {
            assert_eq!(sent.cause(), expected, "{name}");
        }
        event => panic!("{name}: {event:?}"),
    }
    assert!(!peer.serve_one().unwrap_or(false), "{name}: more after the Terminate");
}

fn is_zero(mr: &Mr) -> bool {
    let mut found = vec![0xEE; LEN as usize];
    mr.read(0, &mut found);
    found.iter().all(|byte| *byte == 0)
}

#[test]
fn each_rfc7306_violation_gets_its_terminate() {
    if !Path::new("/dev/net/tun").exists() {
        return skip("no /dev/net/tun, so no tap devices");
    }
    if !netns::inside(test_name!()) {
        return;
    }
    let fx = ViolationFixture::new();
    let rights = Access::ALL.bits() & !Access::REMOTE_ATOMIC.bits();
    let plain = fx.stack.alloc_mr(LEN as usize, Access::from_bits(rights));
    let stags = fx.stags();
    let mut answered = 0;
    for case in atomic_cases(&stags, plain.rkey()).into_iter().chain(immediate_cases(&stags)) {
        check(&fx, Version::Ietf, case, &mut answered);
    }
    // The RDMAC version has none of RFC 7306.
    for case in unknown_cases(&stags, Version::Rdmac) {
        check(&fx, Version::Rdmac, case, &mut answered);
    }

    // More requests than IRD, which is 2, in one segment: the first cannot be answered in time.
    let requests: Vec<_> =
        (1..5).map(|msn| fetch_add_request(5, stags.open, stags.base, msn)).collect();
    let (qp, mut peer) = fx.connect(Version::Ietf);
    let bytes: Vec<u8> = requests.iter().flat_map(|ulpdu| peer.next_fpdu(ulpdu)).collect();
    peer.write_raw(&bytes).unwrap();
    check_answer(&qp, &mut peer, "more than IRD", requests[2].clone(), (1, 2, 2));
    assert_eq!(peer.atomic_responses, [], "nothing is answered any more");
    fx.check_receives("more than IRD");

    // After all of that nothing was changed, and the next connection works.
    assert!(is_zero(&fx.open) && is_zero(&plain) && is_zero(&fx.foreign));
    let (_qp, mut peer) = fx.connect(Version::Ietf);
    for msn in 1..3 {
        peer.send_ulpdu(&fetch_add_request(5, stags.open, stags.base, msn)).unwrap();
    }
    peer.serve_until(|peer| peer.atomic_responses.len() == 2).unwrap();
    assert_eq!(peer.atomic_responses, [0, 5].map(|original| AtomicResponse { id: 77, original }));
    assert_eq!(fx.open.load_word(0), 10);
    for (msn, message) in [(1, immediate(1, b"8 bytes!")), (2, solicited(2, b"and more"))] {
        peer.send_ulpdu(&message).unwrap();
        let wc = fx.stack.expect_success();
        assert_eq!((wc.wr_id, wc.opcode), (msn - 1, WcOpcode::RecvImmediate));
        assert_eq!((wc.immediate(), wc.solicited), (message[18..].try_into().ok(), msn == 2));
    }
}

#[test]
fn connection_without_rfc7306_refuses_its_opcodes() {
    if !Path::new("/dev/net/tun").exists() {
        return skip("no /dev/net/tun, so no tap devices");
    }
    if !netns::inside(test_name!()) {
        return;
    }
    let fx = ViolationFixture::with_config(|config| config.extensions = false);
    let mut answered = 0;
    for case in unknown_cases(&fx.stags(), Version::Ietf) {
        check(&fx, Version::Ietf, case, &mut answered);
    }
    assert!(is_zero(&fx.open));
}

#[test]
fn each_invalid_atomic_response_gets_its_terminate() {
    if !Path::new("/dev/net/tun").exists() {
        return skip("no /dev/net/tun, so no tap devices");
    }
    if !netns::inside(test_name!()) {
        return;
    }
    let fx = ViolationFixture::new();
    let sink = fx.stack.alloc_mr(16, Access::LOCAL_WRITE);
    for index in 0..answer_cases(0).len() {
        let (qp, mut peer) = fx.connect(Version::Ietf);
        // The responder may not send before the initiator's first FPDU.
        peer.send_ulpdu(&write(0, 0, 0)).unwrap();
        let (is_after_read, _) = answer_cases(0)[index];
        if is_after_read {
            post_read(&qp, 10, sink.sge(8, 8), REMOTE.rkey, REMOTE.addr);
            // Not answered.
            assert_eq!(peer.recv_ulpdu().unwrap().unwrap()[1], 0x40 | opcode::READ_REQUEST);
        }
        let op = AtomicOp::fetch_add(3);
        qp.post().atomic(op, sink.sge(0, 8), REMOTE).wr_id(11).signaled().ring().unwrap();
        let request = peer.recv_ulpdu().unwrap().unwrap();
        assert_eq!(request[1], 0x40 | opcode::ATOMIC_REQUEST);
        let id = u32::from_be_bytes(request[22..26].try_into().unwrap());
        let (_, (name, earlier, ulpdu, expected)) = answer_cases(id).swap_remove(index);
        let is_answered = !earlier.is_empty();
        for ulpdu in earlier.iter().chain([&ulpdu]) {
            peer.send_ulpdu(ulpdu).unwrap();
        }
        if is_answered {
            let wc = fx.stack.expect_success();
            assert_eq!((wc.wr_id, wc.opcode, sink.load_word(0)), (11, WcOpcode::FetchAdd, 9));
        }
        check_answer(&qp, &mut peer, name, ulpdu, expected);
        let open: &[u64] = match (is_answered, is_after_read) {
            (true, _) => &[],
            (false, true) => &[10, 11],
            (false, false) => &[11],
        };
        let ended = fx.stack.completions(3 + open.len());
        let is_flushed = ended.iter().all(|wc| wc.status == WcStatus::Flushed);
        let requests = ended.iter().filter(|wc| !wc.opcode.is_receive());
        assert!(is_flushed && requests.map(|wc| wc.wr_id).eq(open.iter().copied()), "{name}");
        assert_eq!(sink.load_word(0), if is_answered { 9 } else { 0 }, "{name}");
        sink.write(0, &[0; 8]);
    }
}
