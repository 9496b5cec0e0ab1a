//! Atomic operations and Immediate Data (RFC 7306), between two streams and with a hostile peer.

use super::*;
use crate::ddp::regions::Registration;
use crate::rdmap::operation::{AtomicOp, ImmediateData};
use crate::wire::rdmap_extensions::{
    ATOMIC_REQUEST_LEN, ATOMIC_RESPONSE_LEN, AtomicRequest, AtomicResponse, QN_ATOMIC_RESPONSE,
};
use crate::wire::terminate::LAYER_DDP;

/// Offset of the word at the peer, and of the local buffer for its original value.
const WORD: u64 = 1024;
const SINK: u64 = 2048;

const ADD: AtomicOp = AtomicOp::fetch_add(5);

impl Fixture {
    fn atomic(&self, peer: &Self, op: AtomicOp, remote: u64, to: u64) -> Operation {
        let sink = Sge { addr: to, len: 8, lkey: self.stag };
        Operation::Atomic { op, sink, rkey: peer.stag, remote }
    }

    fn word(&self, at: u64) -> u64 {
        let bytes = self.arena.read(at as usize, 8);
        u64::from_ne_bytes(bytes.try_into().unwrap())
    }

    fn set_word(&self, at: u64, word: u64) {
        self.arena.write(at as usize, &word.to_ne_bytes());
    }
}

/// An Atomic Request of a hostile peer.
fn atomic_request(stag: u32, to: u64, msn: u32) -> Vec<u8> {
    let mut bytes = [0; ATOMIC_REQUEST_LEN];
    AtomicRequest { id: 7, stag, to, op: ADD }.emit(&mut bytes);
    untagged(Opcode::AtomicRequest, QN_READ_REQUEST, msn, 0, &bytes)
}

fn atomic_response(id: u32, msn: u32, original: u64) -> Vec<u8> {
    let mut bytes = [0; ATOMIC_RESPONSE_LEN];
    AtomicResponse { id, original }.emit(&mut bytes);
    untagged(Opcode::AtomicResponse, QN_ATOMIC_RESPONSE, msn, 0, &bytes)
}

const fn immediate(solicited: bool) -> Opcode {
    Opcode::Immediate { solicited }
}

#[test]
fn atomic_changes_word_and_returns_original() {
    let (mut left, mut right) = (fixture(), fixture());
    right.set_word(WORD, 100);
    let masked = AtomicOp::Swap { swap: 0xff, mask: 0x0f };
    let ops = [ADD, AtomicOp::cmp_swap(105, 7), AtomicOp::cmp_swap(105, 8), masked, ADD];
    for (slot, op) in (0..).zip(ops) {
        left.post(slot, left.atomic(&right, op, WORD, SINK + 8 * slot));
    }
    exchange(&mut left, &mut right, 1000);
    let fetched: Vec<u64> = (0..5).map(|slot| left.word(SINK + 8 * slot)).collect();
    assert_eq!(fetched, [100, 105, 7, 7, 15]);
    assert_eq!(right.word(WORD), 20);
    assert_eq!(left.completions().len(), 5);
    // Only the word was changed.
    right.set_word(WORD, 0);
    assert_eq!(right.arena.read(0, 4096), vec![0; 4096]);
}

#[test]
fn golden_bytes_of_an_atomic_exchange() {
    let (mut left, mut right) = (fixture(), fixture());
    right.set_word(WORD, 0x0102_0304_0506_0708);
    let op = AtomicOp::FetchAdd { add: 1, boundaries: 1 << 63 };
    left.post(1, left.atomic(&right, op, WORD, SINK));
    let request = left.build(1000);
    // DDP: last, untagged, version 1; RDMAP: version 1, opcode 10; queue 1, MSN 1, MO 0.
    let mut expected = vec![0x41, 0x4a, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0];
    // Operation 0, Request Identifier 1.
    expected.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 1]);
    expected.extend_from_slice(&right.stag.to_be_bytes());
    expected.extend_from_slice(&[0, 0, 0, 0, 0, 0, 4, 0]);
    expected.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 1, 0x80, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend_from_slice(&[0; 16]);
    assert_eq!(request, expected);
    assert_eq!(right.on_ulpdu(&request), Ok(Indication::ReadRequested));
    let response = right.build(1000);
    // Opcode 11, queue 3, MSN 1; identifier 1; the word, big-endian on the wire.
    let mut expected = vec![0x41, 0x4b, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0];
    expected.extend_from_slice(&[0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(response, expected);
    assert_eq!(left.on_ulpdu(&response), Ok(Indication::ReadCompleted));
    assert_eq!(left.word(SINK), 0x0102_0304_0506_0708);
    assert_eq!(left.completions(), [(1, RequestOutcome::Success)]);
}

#[test]
fn reads_and_atomics_are_answered_in_request_order() {
    let (mut left, mut right) = (fixture(), fixture());
    left.stream.start(Version::Ietf, 4, 4);
    right.stream.start(Version::Ietf, 4, 4);
    right.set_word(WORD, 1);
    left.post(1, left.read(&right, WORD, SINK, 8));
    left.post(2, left.atomic(&right, ADD, WORD, SINK + 8));
    left.post(3, left.read(&right, WORD, SINK + 16, 8));
    left.post(4, left.atomic(&right, ADD, WORD, SINK + 24));
    // All requests arrive before the first is answered.
    for _ in 0..4 {
        let ulpdu = left.build(1000);
        assert_eq!(right.on_ulpdu(&ulpdu), Ok(Indication::ReadRequested));
    }
    let mut opcodes = Vec::new();
    while right.stream.can_build() {
        let ulpdu = right.build(1000);
        opcodes.push(ulpdu[1] & 0x0f);
        assert_eq!(left.on_ulpdu(&ulpdu), Ok(Indication::ReadCompleted));
    }
    assert_eq!(opcodes, [2, 11, 2, 11]);
    let fetched: Vec<u64> = (0..4).map(|slot| left.word(SINK + 8 * slot)).collect();
    assert_eq!(fetched, [1, 1, 6, 6]);
    assert_eq!(right.word(WORD), 11);
}

#[test]
fn atomics_count_against_ord() {
    let (mut left, mut right) = (fixture(), fixture());
    left.post(1, left.read(&right, 0, 3000, 4));
    left.post(2, left.atomic(&right, ADD, WORD, SINK));
    left.post(3, left.atomic(&right, ADD, WORD, SINK + 8));
    left.post(4, left.write(&right, 0, 0, 4));
    for _ in 0..2 {
        let ulpdu = left.build(1000);
        right.on_ulpdu(&ulpdu).unwrap();
    }
    assert!(!left.stream.can_build(), "ORD is 2");
    left.on_ulpdu(&right.build(1000)).unwrap();
    assert!(left.stream.can_build());
    exchange(&mut left, &mut right, 1000);
    assert_eq!(left.completions().len(), 4);
}

#[test]
fn fence_waits_for_earlier_atomics() {
    let (mut left, mut right) = (fixture(), fixture());
    left.post(1, left.atomic(&right, ADD, WORD, SINK));
    let fenced = SendWr { fence: true, ..request(2, left.write(&right, 0, 0, 4)) };
    left.stream.requester.post_and_take(&fenced);
    right.on_ulpdu(&left.build(1000)).unwrap();
    assert!(!left.stream.can_build());
    left.on_ulpdu(&right.build(1000)).unwrap();
    assert!(left.stream.can_build());
}

#[test]
fn atomics_beyond_ird_find_no_buffer() {
    let mut right = fixture();
    for msn in 1..=2 {
        let ulpdu = atomic_request(right.stag, WORD, msn);
        assert_eq!(right.on_ulpdu(&ulpdu), Ok(Indication::ReadRequested));
    }
    let ulpdu = atomic_request(right.stag, WORD, 3);
    assert_eq!(right.on_ulpdu(&ulpdu), Err(Fault::Untagged(UntaggedFault::NoBuffer)));
    assert_eq!(right.word(WORD), 0, "none was answered yet");
}

#[test]
fn each_invalid_request_has_its_fault_and_changes_nothing() {
    let mut right = fixture();
    right.post_receive(1, 0, 4);
    let stag = right.stag;
    let all_but = Access::from_bits(Access::ALL.bits() & !Access::REMOTE_ATOMIC.bits());
    let no_right = right.arena.register(0, 2048, all_but, PD);
    let foreign = right.arena.register(0, 2048, Access::ALL, PD + 1);
    let request = |stag, to| atomic_request(stag, to, 1);
    let target = |fault| Fault::AtomicTarget(fault);
    let mut unknown = request(stag, WORD);
    unknown[UNTAGGED_LEN + 3] = 3;
    let with = |ulpdu: Vec<u8>, more: &[u8]| [&ulpdu, more].concat();
    let without = |ulpdu: Vec<u8>, cut: usize| ulpdu[..ulpdu.len() - cut].to_vec();
    let mut unfinished = request(stag, WORD);
    unfinished[0] &= !0x40;
    let mut moved = request(stag, WORD);
    moved[17] = 8;
    let mut unfinished_data = untagged(immediate(false), 0, 1, 0, b"12345678");
    unfinished_data[0] &= !0x40;
    let untagged_fault = Fault::Untagged;
    let cases = [
        (request(stag ^ 0x80, WORD), target(MemoryFault::InvalidStag)),
        (request(foreign, WORD), target(MemoryFault::NotAssociated)),
        (request(no_right, WORD), target(MemoryFault::AccessRights)),
        (request(stag, 4096), target(MemoryFault::Bounds)),
        (request(stag, 4096 - 4), target(MemoryFault::Bounds)),
        (request(stag, u64::MAX - 6), target(MemoryFault::Wrap)),
        (request(stag, WORD + 4), Fault::AtomicMisaligned),
        (unknown, Fault::AtomicOperation),
        (with(request(stag, WORD), b"x"), Fault::HeaderTooLong),
        (unfinished, Fault::HeaderTooLong),
        (without(request(stag, WORD), 1), Fault::Header(HeaderError::Truncated)),
        (moved, untagged_fault(UntaggedFault::MessageOffset)),
        (atomic_request(stag, WORD, 2), untagged_fault(UntaggedFault::MsnRange)),
        (untagged(Opcode::AtomicRequest, 0, 1, 0, &[0; 52]), Fault::UnexpectedOpcode),
        (untagged(Opcode::AtomicRequest, 3, 1, 0, &[0; 52]), Fault::UnexpectedOpcode),
        (untagged(Opcode::AtomicRequest, 4, 1, 0, &[0; 52]), Fault::QueueNumber),
        (tagged(Opcode::AtomicRequest, true, stag, 0, &[0; 52]), Fault::UnexpectedOpcode),
        (tagged(immediate(false), true, stag, 0, &[1; 8]), Fault::UnexpectedOpcode),
        (untagged(immediate(false), 1, 1, 0, &[1; 8]), Fault::UnexpectedOpcode),
        (untagged(immediate(true), 0, 1, 0, &[1; 9]), Fault::HeaderTooLong),
        (unfinished_data, Fault::HeaderTooLong),
        (untagged(immediate(true), 0, 1, 0, &[1; 7]), Fault::Header(HeaderError::Truncated)),
        (untagged(immediate(true), 0, 1, 8, &[1; 8]), untagged_fault(UntaggedFault::MessageOffset)),
        (untagged(immediate(true), 0, 2, 0, &[1; 8]), untagged_fault(UntaggedFault::NoBuffer)),
        (untagged(immediate(true), 0, 0, 0, &[1; 8]), untagged_fault(UntaggedFault::MsnRange)),
    ];
    for (ulpdu, fault) in cases {
        assert_eq!(right.on_ulpdu(&ulpdu), Err(fault), "{ulpdu:02x?}");
        assert_eq!(right.arena.read(0, 4096), vec![0; 4096], "{fault:?}");
        assert!(!right.stream.can_build(), "{fault:?}");
        assert!(right.stream.recv_queue.front().is_some(), "{fault:?}");
    }
}

#[test]
fn atomic_response_must_match_oldest_request() {
    let (mut left, right) = (fixture(), fixture());
    let (no_buffer, range) = (UntaggedFault::NoBuffer, UntaggedFault::MsnRange);
    assert_eq!(left.on_ulpdu(&atomic_response(1, 1, 9)), Err(Fault::Untagged(no_buffer)));
    left.post(1, left.read(&right, 0, SINK + 16, 8));
    left.post(2, left.atomic(&right, ADD, WORD, SINK));
    let ids: Vec<_> = (0..2).map(|_| left.build(1000)[UNTAGGED_LEN + 7]).collect();
    let id = u32::from(ids[1]);
    // The Read was requested first.
    assert_eq!(left.on_ulpdu(&atomic_response(id, 1, 9)), Err(Fault::UnexpectedOpcode));
    let read = tagged(Opcode::ReadResponse, true, left.stag, SINK + 16, b"12345678");
    assert_eq!(left.on_ulpdu(&read), Ok(Indication::ReadCompleted));
    // No Read is outstanding now.
    assert_eq!(left.on_ulpdu(&read), Err(Fault::UnexpectedOpcode));
    let mut moved = atomic_response(id, 1, 9);
    moved[17] = 1;
    let too_long = [&atomic_response(id, 1, 9)[..], b"x"].concat();
    let short = atomic_response(id, 1, 9)[..UNTAGGED_LEN + 11].to_vec();
    let cases = [
        (atomic_response(id, 0, 9), Fault::Untagged(range)),
        (atomic_response(id, 2, 9), Fault::Untagged(no_buffer)),
        (moved, Fault::Untagged(UntaggedFault::MessageOffset)),
        (too_long, Fault::HeaderTooLong),
        (short, Fault::Header(HeaderError::Truncated)),
        (atomic_response(id ^ 1, 1, 9), Fault::UnexpectedOpcode),
    ];
    for (ulpdu, fault) in cases {
        assert_eq!(left.on_ulpdu(&ulpdu), Err(fault), "{ulpdu:02x?}");
        assert_eq!(left.word(SINK), 0, "{fault:?}");
    }
    assert_eq!(left.completions(), [(1, RequestOutcome::Success)]);
    assert_eq!(left.on_ulpdu(&atomic_response(id, 1, 9)), Ok(Indication::ReadCompleted));
    assert_eq!((left.word(SINK), left.completions()), (9, vec![(2, RequestOutcome::Success)]));
}

#[test]
fn atomic_on_revoked_target_is_terminated() {
    let (mut left, mut right) = (fixture(), fixture());
    let id = 1;
    left.post(id, left.atomic(&right, ADD, WORD, SINK));
    let request = left.build(1000);
    right.on_ulpdu(&request).unwrap();
    right.arena.regions().invalidate(right.stag);
    let mut out = [0; 256];
    let Err(BuildError::Response(terminate)) = right.try_build(&mut out) else {
        panic!("the word is invalid");
    };
    assert_eq!((terminate.layer, terminate.error_type, terminate.code), (0, 1, 0));
    let len = right.try_build(&mut out).unwrap();
    // Segment length and DDP header of the request; HdrCt has no R bit for an Atomic Request.
    assert_eq!(out[UNTAGGED_LEN..UNTAGGED_LEN + 6], [0x01, 0, 0xc0, 0, 0, 70]);
    assert_eq!(out[UNTAGGED_LEN + 6..len], request[..UNTAGGED_LEN]);
    assert_eq!(right.word(WORD), 0);
}

#[test]
fn atomic_on_misaligned_region_is_terminated() {
    let (mut left, mut right) = (fixture(), fixture());
    let registration = Registration {
        pd: PD,
        stream: None,
        base: 0,
        len: 64,
        access: Access::ALL,
        backing: WORD + 4,
    };
    right.stag = right.arena.regions().register(&registration).unwrap();
    left.post(1, left.atomic(&right, ADD, 8, SINK));
    right.on_ulpdu(&left.build(1000)).unwrap();
    let mut out = [0; 256];
    let built = right.try_build(&mut out);
    let Err(BuildError::Response(terminate)) = built else { panic!("{built:?}") };
    assert_eq!(terminate.cause(), (0, 2, 0xff));
    assert_eq!(right.arena.read(0, 4096), vec![0; 4096]);
}

#[test]
fn invalid_sink_fails_its_request_and_stream() {
    // Sink invalid before the request is built: nothing is sent.
    let (mut left, mut right) = (fixture(), fixture());
    let sink = left.arena.register(SINK, 8, Access::LOCAL_WRITE, PD);
    let mut operation = left.atomic(&right, ADD, WORD, SINK);
    let Operation::Atomic { sink: sge, .. } = &mut operation else { unreachable!() };
    sge.lkey = sink;
    left.post(1, operation.clone());
    left.post(2, operation);
    right.on_ulpdu(&left.build(1000)).unwrap();
    left.arena.regions().invalidate(sink);
    let mut out = [0; 256];
    assert_eq!(left.try_build(&mut out), Err(BuildError::Request));
    // Sink invalid before the response arrives: the peer has executed the operation.
    let response = right.build(1000);
    assert_eq!(left.on_ulpdu(&response), Err(Fault::LocalCatastrophic));
    let failed = RequestOutcome::LocalProtection;
    assert_eq!(left.completions(), [(1, failed), (2, failed)]);
}

#[test]
fn immediate_data_consumes_receive_and_leaves_its_buffer() {
    let (mut left, mut right) = (fixture(), fixture());
    for wr_id in 0..4 {
        right.post_receive(wr_id, 64 * wr_id, 4);
    }
    let data: ImmediateData = *b"\x01\x02\x03\x04wxyz";
    left.post(1, send_of(b"abc"));
    left.post(2, Operation::Immediate { data, solicited: false });
    left.post(3, Operation::Immediate { data: [0; 8], solicited: true });
    left.post(4, send_of(b"def"));
    right.on_ulpdu(&left.build(1000)).unwrap();
    let ulpdu = left.build(1000);
    // Opcode 8, on the Send queue with the next MSN; the data unchanged.
    let mut golden = vec![0x41, 0x48, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0];
    golden.extend_from_slice(&data);
    assert_eq!(ulpdu, golden);
    let received = |wr_id, data, solicited| {
        let message = DeliveredMessage { wr_id, len: 0 };
        Ok(Indication::ImmediateReceived { message, data, solicited })
    };
    assert_eq!(right.on_ulpdu(&ulpdu), received(1, data, false));
    let ulpdu = left.build(1000);
    assert_eq!((ulpdu[1], ulpdu[13]), (0x49, 3));
    assert_eq!(right.on_ulpdu(&ulpdu), received(2, [0; 8], true));
    right.on_ulpdu(&left.build(1000)).unwrap();
    assert_eq!(right.arena.read(0, 3), b"abc");
    assert_eq!(right.arena.read(64, 128), vec![0; 128]);
    assert_eq!(right.arena.read(192, 3), b"def");
    assert_eq!(left.completions().len(), 4);
}

fn send_of(bytes: &[u8]) -> Operation {
    let payload = Payload::inline(bytes).unwrap();
    Operation::Send { payload, solicited: false, invalidate: None }
}

#[test]
fn write_is_placed_before_its_immediate_data_is_delivered() {
    for (len, segments) in [(0, 1), (300, 3)] {
        let (mut left, mut right) = (fixture(), fixture());
        left.arena.write(0, &[7; 300]);
        right.post_receive(5, 0, 0);
        left.post(
            1,
            Operation::WriteImmediate {
                payload: gather(left.stag, 0, len),
                rkey: right.stag,
                remote: 1000,
                data: *b"finished",
                solicited: true,
            },
        );
        for _ in 0..segments {
            assert_eq!(left.completions(), []);
            let ulpdu = left.build(128);
            assert_eq!(right.on_ulpdu(&ulpdu), Ok(Indication::Placed));
        }
        assert_eq!(left.completions(), [], "the Immediate Data are outstanding");
        let terminate = Terminate::new(LAYER_DDP, 1, 0);
        assert_eq!(
            left.stream.terminated_request(&terminate),
            Some(0),
            "its Write may still be refused"
        );
        assert_eq!(right.arena.read(1000, len as usize), vec![7; len as usize]);
        let message = DeliveredMessage { wr_id: 5, len: 0 };
        let expected =
            Indication::ImmediateReceived { message, data: *b"finished", solicited: true };
        let ulpdu = left.build(128);
        assert_eq!(right.on_ulpdu(&ulpdu), Ok(expected));
        assert_eq!(left.completions(), [(1, RequestOutcome::Success)]);
        assert!(!left.stream.can_build());
    }
}

#[test]
// req-test: RDMAP-020, RDMAP-070
fn disabled_extensions_are_unexpected_opcodes() {
    let mut right = fixture();
    right.post_receive(1, 0, 64);
    right.stream.disable_extensions();
    let stag = right.stag;
    let cases = [
        (untagged(immediate(false), 0, 1, 0, &[1; 8]), Fault::UnexpectedOpcode),
        (untagged(immediate(true), 0, 1, 0, &[1; 8]), Fault::UnexpectedOpcode),
        (atomic_request(stag, WORD, 1), Fault::UnexpectedOpcode),
        (atomic_response(1, 1, 0), Fault::QueueNumber),
    ];
    for (ulpdu, fault) in cases {
        assert_eq!(right.on_ulpdu(&ulpdu), Err(fault), "{ulpdu:02x?}");
        let code = fault.to_terminate(Version::Ietf, &ulpdu).cause();
        assert!([(0, 2, 6), (1, 2, 1)].contains(&code), "{code:?}");
    }
    // The RDMA Consortium's version has none of these opcodes.
    right.stream.start(Version::Rdmac, 2, 2);
    assert!(!right.stream.has_extensions());
    for code in 8..16 {
        let mut ulpdu = untagged(SEND, 0, 1, 0, &[1; 8]);
        (ulpdu[0], ulpdu[1]) = (0x40, code);
        assert_eq!(right.on_ulpdu(&ulpdu), Err(Fault::Control(ControlError::Opcode)));
    }
    assert_eq!(right.arena.read(0, 4096), vec![0; 4096]);
}
