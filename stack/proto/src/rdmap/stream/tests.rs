//! Two streams connected back to back, and invalid segments of a hostile peer.

use super::*;
use crate::ddp::memory::{Access, MemoryFault};
use crate::ddp::recv_queue::RqCap;
use crate::ddp::regions::StreamId;
use crate::ddp::sgl::Sge;
use crate::ddp::untagged::BufferQueue;
use crate::ddp::vec_memory::VecMemory;
use crate::rdmap::operation::SendWr;
use crate::rdmap::operation::{Operation, Payload};
use crate::rdmap::requester::RequestOutcome;
use crate::rdmap::send_queue::SqCap;
use crate::wire::ddp::{HeaderError, TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged};
use crate::wire::rdmap::{ControlError, Opcode, QN_READ_REQUEST, READ_REQUEST_LEN, ReadRequest};

mod extensions;
mod page_faults;
mod read_sinks;
mod runs;
mod terminate_table;

const PD: u32 = 1;
const STREAM: StreamId = StreamId(7);

struct Fixture {
    arena: VecMemory,
    stag: u32,
    stream: Stream,
}

/// A stream with 4,096 bytes of memory, all access rights, IRD and ORD 2.
fn fixture() -> Fixture {
    let arena = VecMemory::new(4096);
    let stag = arena.register(0, 4096, Access::ALL, PD);
    let mut stream = Stream::new(
        AccessScope { pd: PD, stream: STREAM },
        Requester::new(SqCap::new(8)),
        BufferQueue::new(RqCap::new(8)),
    );
    stream.start(Version::Ietf, 2, 2);
    Fixture { arena, stag, stream }
}

fn gather(stag: u32, addr: u64, len: u32) -> Payload {
    Payload::Gather([Sge { addr, len, lkey: stag }].into())
}

fn request(wr_id: u64, operation: Operation) -> SendWr {
    SendWr { wr_id, operation, signaled: true, fence: false }
}

impl Fixture {
    fn post(&mut self, wr_id: u64, operation: Operation) {
        self.stream.requester.post_and_take(&request(wr_id, operation));
    }

    fn post_receive(&mut self, wr_id: u64, addr: u64, len: u32) {
        let sg_list = [Sge { addr, len, lkey: self.stag }];
        self.stream.recv_queue.post(wr_id, &sg_list).unwrap();
    }

    fn write(&self, peer: &Self, from: u64, to: u64, len: u32) -> Operation {
        Operation::Write { payload: gather(self.stag, from, len), rkey: peer.stag, remote: to }
    }

    fn read(&self, peer: &Self, from: u64, to: u64, len: u32) -> Operation {
        let sink = Sge { addr: to, len, lkey: self.stag };
        Operation::Read { sink: [sink].into(), rkey: peer.stag, remote: from }
    }

    /// Builds one ULPDU of at most `mulpdu` bytes.
    fn build(&mut self, mulpdu: usize) -> Vec<u8> {
        assert!(self.stream.can_build());
        let mut out = vec![0xee; mulpdu];
        let next = self.stream.next_tx().expect("a ULPDU can be built");
        let len = self.stream.build_next(next, &self.arena, &mut out).unwrap();
        assert_eq!(len as u64, next.ulpdu_len.min(mulpdu as u64));
        out.truncate(len);
        out
    }

    /// Builds the ULPDU of a Send by the loop of short messages.
    fn build_last_of_sends(&mut self) -> Vec<u8> {
        let (mut bytes, mut len) = (vec![0xee; 1000], 0);
        let mut buffer = Some(&mut bytes[..]);
        let built = self.stream.build_last_segments(LastOf::Sends, &self.arena, |ulpdu_len| {
            len = ulpdu_len;
            buffer.take()?.get_mut(..ulpdu_len)
        });
        assert_eq!(built.count, 1);
        bytes.truncate(len);
        bytes
    }

    fn try_build(&mut self, out: &mut [u8]) -> Result<usize, BuildError> {
        try_build(&mut self.stream, &self.arena, out)
    }

    fn on_ulpdu(&mut self, ulpdu: &[u8]) -> Result<Indication, Fault> {
        self.stream.on_ulpdu(&self.arena, ulpdu)
    }

    fn completions(&mut self) -> Vec<(u64, RequestOutcome)> {
        let mut done = Vec::new();
        while let Some((request, outcome)) = self.stream.requester.completed() {
            done.push((request.wr_id, outcome));
            self.stream.requester.pop();
        }
        done
    }
}

/// Builds the next ULPDU, of which there must be one.
fn try_build(stream: &mut Stream, arena: &VecMemory, out: &mut [u8]) -> Result<usize, BuildError> {
    let next = stream.next_tx().expect("a ULPDU can be built");
    stream.build_next(next, arena, out)
}

/// Exchanges ULPDUs in both directions until neither side has more to send.
fn exchange(left: &mut Fixture, right: &mut Fixture, mulpdu: usize) -> Vec<Indication> {
    let mut seen = Vec::new();
    while left.stream.can_build() || right.stream.next_tx().is_some() {
        if left.stream.can_build() {
            seen.push(right.on_ulpdu(&left.build(mulpdu)).unwrap());
        }
        if right.stream.can_build() {
            seen.push(left.on_ulpdu(&right.build(mulpdu)).unwrap());
        }
    }
    seen
}

#[test]
fn write_is_placed_whole_for_any_mulpdu() {
    for mulpdu in [128, 129, 500, 1442, 4096] {
        let (mut left, mut right) = (fixture(), fixture());
        let bytes: Vec<u8> = (0..1500u32).map(|at| (at * 7) as u8).collect();
        left.arena.write(100, &bytes);
        left.post(1, left.write(&right, 100, 2000, 1500));
        let seen = exchange(&mut left, &mut right, mulpdu);
        assert_eq!(seen.len(), 1500usize.div_ceil(mulpdu - TAGGED_LEN));
        assert_eq!(right.arena.read(2000, 1500), bytes);
        assert_eq!(right.arena.read(0, 2000), vec![0; 2000]);
        assert_eq!(left.completions(), [(1, RequestOutcome::Success)]);
    }
}

// req-test: DDP-083
#[test]
fn msn_wraps_to_zero() {
    for is_short_way in [false, true] {
        let (mut left, mut right) = (fixture(), fixture());
        left.stream.requester.set_next_send_msn(u32::MAX - 1);
        right.stream.recv_queue.set_next_msn(u32::MAX - 1);
        left.stream.requester.set_next_read_msn(u32::MAX - 1);
        right.stream.responder.set_next_msn(u32::MAX - 1);
        for (wr_id, msn) in [(1u16, u32::MAX - 1), (2, u32::MAX), (3, 0), (4, 1)] {
            let at = 64 * wr_id;
            right.post_receive(wr_id.into(), at.into(), 64);
            left.arena.write(0, &[msn.to_le_bytes()[0]; 20]);
            let payload = gather(left.stag, 0, 20);
            let send = Operation::Send { payload, solicited: false, invalidate: None };
            left.post(wr_id.into(), send);
            let ulpdu = if is_short_way { left.build_last_of_sends() } else { left.build(1000) };
            assert_eq!(ulpdu[10..14], msn.to_be_bytes());
            if is_short_way {
                let mut sinks = LastSinks::NONE;
                let placed = runs::place_fast(&mut right, &ulpdu, &mut sinks);
                assert!(placed.is_some(), "{msn:#x}");
            } else {
                assert!(right.on_ulpdu(&ulpdu).is_ok(), "{msn:#x}");
            }
            assert_eq!(right.arena.read(at.into(), 20), [msn.to_le_bytes()[0]; 20]);
            // The same on the Read Request queue.
            left.post(u64::from(wr_id) + 4, left.read(&right, at.into(), 3000, 20));
            let ulpdu = left.build(1000);
            assert_eq!(ulpdu[6..14], [&[0, 0, 0, 1], &msn.to_be_bytes()[..]].concat());
            assert_eq!(right.on_ulpdu(&ulpdu), Ok(Indication::ReadRequested), "{msn:#x}");
            assert_eq!(left.on_ulpdu(&right.build(1000)), Ok(Indication::ReadCompleted));
            assert_eq!(left.arena.read(3000, 20), [msn.to_le_bytes()[0]; 20]);
        }
    }
}

#[test]
fn read_is_placed_and_completes_in_posting_order() {
    let (mut left, mut right) = (fixture(), fixture());
    right.arena.write(10, b"what the peer has to say");
    left.post(1, left.read(&right, 10, 3000, 24));
    left.post(2, left.write(&right, 0, 500, 8));
    let ulpdu = left.build(1000);
    assert_eq!(ulpdu.len(), UNTAGGED_LEN + READ_REQUEST_LEN);
    assert_eq!(right.on_ulpdu(&ulpdu), Ok(Indication::ReadRequested));
    assert_eq!(right.on_ulpdu(&left.build(1000)), Ok(Indication::Placed));
    // The Write is done, but was posted after the Read.
    assert_eq!(left.completions(), []);
    assert_eq!(left.on_ulpdu(&right.build(1000)), Ok(Indication::ReadCompleted));
    assert_eq!(left.arena.read(3000, 24), b"what the peer has to say");
    assert_eq!(left.completions(), [(1, RequestOutcome::Success), (2, RequestOutcome::Success)]);
}

// req-test: RDMAP-237
#[test]
fn rtr_read_takes_the_credit_of_a_read() {
    let (mut left, right) = (fixture(), fixture());
    left.stream.requester.start_rtr_read();
    for wr_id in 1..=2 {
        left.post(wr_id, left.read(&right, 10, 3000, 24));
    }
    left.build(1000);
    assert!(!left.stream.can_build(), "ORD is 2");
    assert!(left.stream.requester.on_rtr_read_response(true));
    left.build(1000);
}

#[test]
fn reads_beyond_ord_block_later_requests() {
    let (mut left, mut right) = (fixture(), fixture());
    for wr_id in 0..3 {
        left.post(wr_id, left.read(&right, 0, 3000, 4));
    }
    left.post(3, left.write(&right, 0, 0, 4));
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
fn fence_waits_for_earlier_reads() {
    let (mut left, mut right) = (fixture(), fixture());
    left.post(1, left.read(&right, 0, 3000, 4));
    let fenced = SendWr { fence: true, ..request(2, left.write(&right, 0, 0, 4)) };
    left.stream.requester.post_and_take(&fenced);
    right.on_ulpdu(&left.build(1000)).unwrap();
    assert!(!left.stream.can_build());
    left.on_ulpdu(&right.build(1000)).unwrap();
    assert!(left.stream.can_build());
}

// req-test: RDMAP-183, RDMAP-266, RDMAP-282, RDMAP-329, RDMAP-337
#[test]
fn send_with_invalidate_invalidates_before_delivery() {
    let (mut left, mut right) = (fixture(), fixture());
    let window = right.arena.register_for(0, 16, Access::REMOTE_WRITE, PD, STREAM);
    right.post_receive(7, 1000, 64);
    let send = |solicited, invalidate| Operation::Send {
        payload: Payload::inline(b"hello").unwrap(),
        solicited,
        invalidate,
    };
    left.post(1, send(true, Some(window)));
    let ulpdu = left.build(1000);
    let message = DeliveredMessage { wr_id: 7, len: 5 };
    let indication = right.on_ulpdu(&ulpdu);
    let invalidated = Some(window);
    assert_eq!(indication, Ok(Indication::Received { message, solicited: true, invalidated }));
    assert_eq!(right.arena.regions().pd_of(window), None);
    assert_eq!(right.arena.read(1000, 5), b"hello");

    // The second time the STag is invalid. An STag of another protection domain, or one shared by
    // the whole domain, cannot be invalidated by the peer.
    right.post_receive(8, 1000, 64);
    left.post(2, send(false, Some(window)));
    let ulpdu = left.build(1000);
    assert_eq!(right.on_ulpdu(&ulpdu), Err(Fault::InvalidateUnknown));
    let foreign = right.arena.register(0, 16, Access::REMOTE_WRITE, PD + 1);
    right.post_receive(9, 1000, 64);
    left.post(3, send(false, Some(foreign)));
    let ulpdu = left.build(1000);
    assert_eq!(right.on_ulpdu(&ulpdu), Err(Fault::InvalidateForeign));
    assert_eq!(right.arena.regions().pd_of(foreign), Some(PD + 1));
    left.post(4, send(false, Some(right.stag)));
    let ulpdu = left.build(1000);
    assert_eq!(right.on_ulpdu(&ulpdu), Err(Fault::InvalidateShared));
    assert_eq!(right.arena.regions().pd_of(right.stag), Some(PD));
}

#[test]
fn requests_and_responses_alternate_by_message() {
    let (mut left, mut right) = (fixture(), fixture());
    left.post(1, left.read(&right, 0, 3000, 400));
    right.on_ulpdu(&left.build(1000)).unwrap();
    right.post(1, right.write(&left, 0, 0, 400));
    right.post(2, right.write(&left, 0, 0, 400));
    let mut opcodes = Vec::new();
    while right.stream.can_build() {
        opcodes.push(right.build(228)[1] & 0x0f);
    }
    assert_eq!(opcodes, [0, 0, 2, 2, 0, 0]);
}

#[test]
fn zero_length_messages_access_no_memory() {
    let (mut left, mut right) = (fixture(), fixture());
    let nowhere = Sge { addr: 9, len: 0, lkey: 0 };
    left.post(1, Operation::Write { payload: Payload::empty(), rkey: 0, remote: 5 });
    left.post(2, Operation::Read { sink: [nowhere].into(), rkey: 0, remote: 5 });
    right.post_receive(3, 0, 0);
    let payload = Payload::empty();
    left.post(3, Operation::Send { payload, solicited: false, invalidate: None });
    let seen = exchange(&mut left, &mut right, 1000);
    let received = Indication::Received {
        message: DeliveredMessage { wr_id: 3, len: 0 },
        solicited: false,
        invalidated: None,
    };
    assert!(seen.contains(&received) && seen.contains(&Indication::ReadCompleted));
    assert_eq!(left.completions().len(), 3);
}

#[test]
fn request_with_invalid_lkey_fails_and_ends_stream() {
    let mut left = fixture();
    let bad = gather(left.stag ^ 0x100, 0, 8);
    left.post(1, Operation::Write { payload: bad, rkey: 5, remote: 0 });
    let mut out = [0; 256];
    let built = left.try_build(&mut out);
    assert_eq!(built, Err(BuildError::Request));
    assert_eq!(left.completions(), [(1, RequestOutcome::LocalProtection)]);
    assert!(left.stream.is_terminate_pending());
    let len = left.try_build(&mut out).unwrap();
    assert_eq!(&out[UNTAGGED_LEN..len], &[0, 0, 0, 0]);
}

/// A tagged ULPDU of a hostile peer.
fn tagged(opcode: Opcode, last: bool, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0; TAGGED_LEN];
    let rsvd_ulp = opcode.control(Version::Ietf);
    Tagged { last, rsvd_ulp, stag, to }.emit(Version::Ietf, &mut ulpdu);
    ulpdu.extend_from_slice(payload);
    ulpdu
}

/// An untagged ULPDU of a hostile peer.
fn untagged(opcode: Opcode, queue: u32, msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0; UNTAGGED_LEN];
    let rsvd_ulp = opcode.control(Version::Ietf);
    Untagged { last: true, rsvd_ulp, rsvd_ulp_rest: 0, qn: queue, msn, mo }
        .emit(Version::Ietf, &mut ulpdu);
    ulpdu.extend_from_slice(payload);
    ulpdu
}

const SEND: Opcode = Opcode::Send { invalidate: false, solicited: false };

#[test]
fn each_invalid_segment_has_its_fault_and_places_nothing() {
    let mut right = fixture();
    right.post_receive(1, 0, 4);
    let stag = right.stag;
    let read_only = right.arena.register(0, 64, Access::REMOTE_READ, PD);
    let foreign = right.arena.register(0, 64, Access::ALL, PD + 1);
    let read = |len, source_stag, source_to| {
        let request = ReadRequest { sink_stag: 1, sink_to: 2, len, source_stag, source_to };
        let mut bytes = vec![0; READ_REQUEST_LEN];
        request.emit(&mut bytes);
        untagged(Opcode::ReadRequest, 1, 1, 0, &bytes)
    };
    let mut wrong_version = tagged(Opcode::Write, true, stag, 0, b"x");
    wrong_version[0] ^= 3;
    let mut wrong_rdmap = tagged(Opcode::Write, true, stag, 0, b"x");
    wrong_rdmap[1] ^= 0xc0;
    let mut reserved = tagged(Opcode::Write, true, stag, 0, b"x");
    reserved[1] |= 0x0f;
    let too_long = UntaggedFault::TooLong { wr_id: 1 };
    let cases = [
        (vec![], Fault::Header(HeaderError::Truncated)),
        (wrong_version, Fault::Header(HeaderError::VersionTagged)),
        (wrong_rdmap, Fault::Control(ControlError::Version)),
        (reserved, Fault::Control(ControlError::Opcode)),
        (tagged(SEND, true, stag, 0, b"x"), Fault::UnexpectedOpcode),
        (tagged(Opcode::ReadResponse, true, stag, 0, b"x"), Fault::UnexpectedOpcode),
        (untagged(Opcode::Write, 0, 1, 0, b"x"), Fault::UnexpectedOpcode),
        (untagged(SEND, 1, 1, 0, b"x"), Fault::UnexpectedOpcode),
        (untagged(SEND, 3, 1, 0, b"x"), Fault::UnexpectedOpcode),
        (untagged(SEND, 4, 1, 0, b"x"), Fault::QueueNumber),
        (
            tagged(Opcode::Write, true, stag ^ 0x80, 0, b"x"),
            Fault::Tagged(MemoryFault::InvalidStag),
        ),
        (tagged(Opcode::Write, true, foreign, 0, b"x"), Fault::Tagged(MemoryFault::NotAssociated)),
        (tagged(Opcode::Write, true, read_only, 0, b"x"), Fault::Tagged(MemoryFault::AccessRights)),
        (tagged(Opcode::Write, true, stag, u64::MAX, b"xy"), Fault::Tagged(MemoryFault::Wrap)),
        (tagged(Opcode::Write, true, stag, 4095, b"xy"), Fault::Tagged(MemoryFault::Bounds)),
        (untagged(SEND, 0, 0, 0, b"x"), Fault::Untagged(UntaggedFault::MsnRange)),
        (untagged(SEND, 0, 2, 0, b"x"), Fault::Untagged(UntaggedFault::NoBuffer)),
        (untagged(SEND, 0, 1, 1, b"x"), Fault::Untagged(UntaggedFault::MessageOffset)),
        (untagged(SEND, 0, 1, 0, b"12345"), Fault::Untagged(too_long)),
        (read(1, stag ^ 0x80, 0), Fault::ReadSource(MemoryFault::InvalidStag)),
        (read(1, foreign, 0), Fault::ReadSource(MemoryFault::NotAssociated)),
        (read(4097, stag, 0), Fault::ReadSource(MemoryFault::Bounds)),
        (read(2, stag, u64::MAX), Fault::ReadSource(MemoryFault::Wrap)),
        (untagged(Opcode::ReadRequest, 1, 1, 0, &[0; 29]), Fault::ReadRequestTooLong),
        (untagged(Opcode::ReadRequest, 1, 1, 0, &[0; 27]), Fault::ReadRequestTooShort),
        (
            untagged(Opcode::ReadRequest, 1, 9, 0, &[0; 28]),
            Fault::Untagged(UntaggedFault::MsnRange),
        ),
    ];
    for (ulpdu, fault) in cases {
        assert_eq!(right.on_ulpdu(&ulpdu), Err(fault), "{ulpdu:02x?}");
        assert_eq!(right.arena.read(0, 4096), vec![0; 4096], "{fault:?}");
    }
}

// req-test: RDMAP-145
#[test]
fn reads_beyond_ird_find_no_buffer() {
    let mut right = fixture();
    let mut bytes = [0; READ_REQUEST_LEN];
    let (stag, to) = (right.stag, 0);
    ReadRequest { sink_stag: 1, sink_to: 2, len: 1, source_stag: stag, source_to: to }
        .emit(&mut bytes);
    for msn in 1..=2 {
        let ulpdu = untagged(Opcode::ReadRequest, 1, msn, 0, &bytes);
        assert_eq!(right.on_ulpdu(&ulpdu), Ok(Indication::ReadRequested));
    }
    let ulpdu = untagged(Opcode::ReadRequest, 1, 3, 0, &bytes);
    assert_eq!(right.on_ulpdu(&ulpdu), Err(Fault::Untagged(UntaggedFault::NoBuffer)));
}

#[test]
fn read_response_must_match_its_request() {
    let (mut left, right) = (fixture(), fixture());
    left.post(1, left.read(&right, 0, 100, 8));
    left.build(1000);
    let stag = left.stag;
    let response = |last, stag, to, bytes| tagged(Opcode::ReadResponse, last, stag, to, bytes);
    let bounds = Err(Fault::Tagged(MemoryFault::Bounds));
    let invalid = Err(Fault::Tagged(MemoryFault::InvalidStag));
    assert_eq!(left.on_ulpdu(&response(false, stag ^ 1, 100, b"abcd")), invalid);
    assert_eq!(left.on_ulpdu(&response(false, stag, 101, b"abcd")), bounds);
    assert_eq!(left.on_ulpdu(&response(true, stag, 100, b"abcd")), bounds);
    assert_eq!(left.on_ulpdu(&response(true, stag, 100, b"123456789")), bounds);
    assert_eq!(left.on_ulpdu(&response(false, stag, 100, b"abcd")), Ok(Indication::Placed));
    let done = left.on_ulpdu(&response(true, stag, 104, b"efgh"));
    assert_eq!(done, Ok(Indication::ReadCompleted));
    assert_eq!(left.arena.read(99, 10), b"\0abcdefgh\0");
}

#[test]
fn terminate_for_revoked_read_source_names_the_remainder() {
    let (mut left, mut right) = (fixture(), fixture());
    left.post(1, left.read(&right, 1000, 2000, 300));
    right.on_ulpdu(&left.build(1000)).unwrap();
    left.on_ulpdu(&right.build(114)).unwrap();
    right.arena.regions().invalidate(right.stag);
    let mut out = [0; 256];
    let Err(BuildError::Response(terminate)) = right.try_build(&mut out) else {
        panic!("the source is invalid");
    };
    assert_eq!(terminate.cause(), (0, 1, 0));
    let len = right.try_build(&mut out).unwrap();
    // Terminate control 4, segment length 2, DDP header 18, Read Request header 28.
    assert_eq!(len, UNTAGGED_LEN + 52);
    let rest = ReadRequest::parse(&out[UNTAGGED_LEN + 24..len]).unwrap();
    assert_eq!((rest.sink_to, rest.len, rest.source_to), (2100, 200, 1100));
    assert_eq!(left.on_ulpdu(&out[..len]), Ok(Indication::Terminated(Some(*terminate))));
    assert_eq!(terminate.rdma_header(), &out[UNTAGGED_LEN + 24..len]);
}

// req-test: DDP-164, RDMAP-261
#[test]
fn only_first_fault_sends_terminate() {
    let mut right = fixture();
    let ulpdu = tagged(Opcode::Write, true, 1, 0, b"x");
    let fault = right.on_ulpdu(&ulpdu).unwrap_err();
    assert!(right.stream.fail(fault, &ulpdu).is_some());
    assert!(right.stream.fail(Fault::Crc, &[]).is_none());
    let mut out = [0; 256];
    let len = right.try_build(&mut out).unwrap();
    assert_eq!(out[..2], [0x41, 0x47]);
    assert_eq!(out[UNTAGGED_LEN..UNTAGGED_LEN + 6], [0x11, 0, 0xc0, 0, 0, 15]);
    assert_eq!(out[UNTAGGED_LEN + 6..len], ulpdu[..14]);
    assert!(!right.stream.can_build());
}
