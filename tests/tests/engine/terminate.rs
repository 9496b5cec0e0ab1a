//! Streams that end with an error: Terminates, completions, and the connection.

mod crossing;

use ferrowarp_proto::ddp::memory::{Access, Memory};
use ferrowarp_proto::mpa::fpdu;
use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::cm::{Abort, ConnEvent, EndReason, Terminate, Version};
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wc::{QpId, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, Payload, SendWr, Sge};
use ferrowarp_proto::wire::ddp::{Tagged, Untagged};
use ferrowarp_proto::wire::rdmap::{Opcode, READ_REQUEST_LEN, ReadRequest};
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::raw::{
    CQ, PD, Peer, SegmentFixture, build_fpdu, empty_write_fpdu, recv_wr, untagged_fpdu,
};

const SEND: Opcode = Opcode::Send { invalidate: false, solicited: false };
/// Address of the region that the peer may write.
const SHARED: u64 = 8192;
/// An STag that names nothing.
const UNKNOWN: u32 = 0x1234_5600;
/// The peer's Terminate: base or bounds violation, of a tagged segment of 15 bytes.
const PEER_TERMINATE: [u8; 20] =
    [0x11, 1, 0xc0, 0, 0, 15, 0xc1, 0x40, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 9];

/// One connection in RTS that may send.
struct Connection {
    fx: SegmentFixture,
    peer: Peer,
    qp: QpId,
    stag: u32,
}

fn connected() -> Connection {
    connected_with_buffers(1)
}

/// With memory for `partial_fpdus` short buffers of incomplete FPDUs.
fn connected_with_buffers(partial_fpdus: usize) -> Connection {
    // 2 KiB each. The last buffer is reserved for live streams.
    let mut fx = SegmentFixture::new(|config| config.partial_bytes_max = partial_fpdus / 2 * 4096);
    let mut peer = Peer::connect(&mut fx, 5000, 1460);
    let qp = peer.start_mpa(&mut fx);
    let stag = fx.arena.register(SHARED, 4096, Access::ALL, PD);
    Connection { fx, peer, qp, stag }
}

/// As [`Connection::with_work`], with memory for `partial_fpdus` short buffers of incomplete FPDUs.
fn connected_with_work_and_buffers(partial_fpdus: usize) -> Connection {
    connected_with_buffers(partial_fpdus).post_work()
}

/// This many short buffers are enough memory for one long FPDU, and not for two.
const BUFFERS_OF_ONE_LONG_FPDU: usize = 40;

/// The connection holds an incomplete long FPDU for longer than allowed, and another one needs the
/// memory: this end fails it.
fn evict_partial_fpdu(live: &mut Connection) {
    let mut other = Peer::connect(&mut live.fx, 5001, 1460);
    other.start_mpa(&mut live.fx);
    let begin = |peer: &mut Peer, fx: &mut SegmentFixture| {
        peer.send(fx, &[&20_000u16.to_be_bytes()[..], &[0; 1398]].concat());
        peer.send(fx, &[0; 1400]);
    };
    begin(&mut live.peer, &mut live.fx);
    live.fx.now = live.fx.now + 11 * SECOND;
    live.fx.poll();
    begin(&mut other, &mut live.fx);
    assert_eq!(live.fx.engine.counters().partials_evicted, 1);
}

/// Cause for which this end ends a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndCause {
    /// A tagged segment that may not be placed.
    Placement,
    /// An opcode unknown to RDMAP.
    Opcode,
    /// An FPDU with a bad CRC.
    Crc,
    /// A Terminate requested by the application.
    Forced,
    /// A disconnect without a Terminate.
    Disconnected,
}

impl EndCause {
    /// Number of Terminates that this end sends.
    const fn terminates_sent(self) -> u64 {
        if matches!(self, Self::Disconnected) { 0 } else { 1 }
    }
}

impl Connection {
    /// Receives 1 to 3; Reads 4 and 5, which the peer never answers; a Write after them.
    fn with_work() -> Self {
        connected().post_work()
    }

    fn post_work(self) -> Self {
        let mut live = self;
        live.peer.send(&mut live.fx, &empty_write_fpdu());
        for wr_id in 1..=3 {
            let wr = recv_wr(&live.fx, wr_id);
            live.fx.engine.post_recv(live.qp, wr).unwrap();
        }
        let sink = Sge { addr: SHARED, len: 64, lkey: live.stag };
        let read = Operation::Read { sink: [sink].into(), rkey: 1, remote: 0 };
        let payload = Payload::inline(b"written").unwrap();
        live.post(4, read.clone());
        live.post(5, read);
        live.post(6, Operation::Write { payload, rkey: 1, remote: 0 });
        live.peer.settle(&mut live.fx);
        live
    }

    fn post(&mut self, wr_id: u64, operation: Operation) {
        let wr = SendWr { wr_id, operation, signaled: true, fence: false };
        self.fx.engine.post_send(self.qp, wr).unwrap();
    }

    fn inject(&mut self, bytes: &[u8]) {
        self.peer.send(&mut self.fx, bytes);
    }

    /// ULPDUs that the engine has sent since the start, all of them complete.
    fn sent_ulpdus(&mut self) -> Vec<Vec<u8>> {
        self.peer.settle(&mut self.fx);
        let mut found = Vec::new();
        let mut rest = &self.peer.received[..];
        while let Some((ulpdu, used)) = fpdu::parse(rest, true).unwrap() {
            found.push(ulpdu.to_vec());
            rest = &rest[used..];
        }
        assert!(rest.is_empty(), "{rest:02x?}");
        found
    }

    /// The Terminate sent, if any, which must be the last ULPDU.
    fn sent_terminate(&mut self) -> Option<Terminate> {
        let sent = self.sent_ulpdus();
        let is_terminate = |ulpdu: &Vec<u8>| ulpdu[1] & 0x0f == 7;
        let (last, others) = sent.split_last()?;
        assert!(!others.iter().any(is_terminate), "the Terminate is the last ULPDU");
        is_terminate(last).then(|| Terminate::parse(&last[18..]).unwrap())
    }

    /// The reason of the disconnect event, which is the last event.
    fn disconnect_reason(&mut self) -> EndReason {
        self.disconnect_reason_then(|event| assert_eq!(event, None))
    }

    /// The same, with a check of the event after it.
    fn disconnect_reason_then(&mut self, check: impl FnOnce(Option<ConnEvent>)) -> EndReason {
        assert_eq!(self.fx.engine.qp_state(self.qp), QpState::Error);
        let event = self.fx.engine.next_event();
        let Some(ConnEvent::Disconnected { qp, reason }) = event else { panic!("{event:?}") };
        assert_eq!(qp, self.qp);
        check(self.fx.engine.next_event());
        assert_eq!(self.fx.engine.next_event(), None);
        reason
    }

    /// Ends the stream at this end; the peer sends `pieces`, the first of them in the same segment
    /// as the invalid FPDU, if any. Returns the Terminate that this end sent.
    fn end_stream(&mut self, end: EndCause, pieces: &[&[u8]]) -> Option<Terminate> {
        let bad = match end {
            EndCause::Placement => self.write_to(UNKNOWN, b"x"),
            EndCause::Opcode => build_fpdu(14, |out| out[..2].copy_from_slice(&[0xc1, 0x4d]), b""),
            EndCause::Crc => {
                let mut damaged = empty_write_fpdu();
                *damaged.last_mut().unwrap() ^= 1;
                damaged
            }
            EndCause::Forced | EndCause::Disconnected => Vec::new(),
        };
        let (now, qp, engine) = (self.fx.now, self.qp, &mut self.fx.engine);
        match end {
            EndCause::Forced => engine.terminate(now, qp, Abort::Stream).unwrap(),
            EndCause::Disconnected => engine.disconnect(now, qp).unwrap(),
            _ => {}
        }
        let first = pieces.first().copied().unwrap_or_default();
        self.inject(&[&bad, first].concat());
        for piece in pieces.iter().skip(1) {
            self.inject(piece);
        }
        self.sent_terminate()
    }

    fn completions(&self) -> Vec<(u64, WcStatus)> {
        let found = std::iter::from_fn(|| self.fx.queues.poll(CQ));
        found.map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// Expects the connection to close gracefully.
    fn expect_graceful_close(&mut self) {
        self.peer.settle(&mut self.fx);
        assert!(self.peer.fin_received && !self.peer.rst_received);
        self.peer.send_segment(&self.fx, Flags::ACK | Flags::FIN, self.peer.tcp.snd_nxt, &[]);
        self.peer.settle(&mut self.fx);
        assert_eq!(self.fx.engine.unfinished_count(), 0);
    }

    fn write_to(&self, stag: u32, bytes: &[u8]) -> Vec<u8> {
        let rsvd_ulp = Opcode::Write.control(Version::Ietf);
        let header = Tagged { last: true, rsvd_ulp, stag, to: SHARED };
        build_fpdu(14, |out| header.emit(Version::Ietf, out), bytes)
    }

    fn shared(&self) -> Vec<u8> {
        self.fx.arena.read(usize::try_from(SHARED).unwrap(), 8)
    }
}

fn peer_terminate_fpdu() -> Vec<u8> {
    untagged_fpdu(Opcode::Terminate, 2, 1, &PEER_TERMINATE)
}

const FLUSHED: WcStatus = WcStatus::Flushed;

/// All work of [`Connection::with_work`]: none succeeds after one that was flushed, not even the
/// Write, whose bytes were sent.
const ALL_FLUSHED: [(u64, WcStatus); 6] =
    [(4, FLUSHED), (5, FLUSHED), (6, FLUSHED), (1, FLUSHED), (2, FLUSHED), (3, FLUSHED)];

// req-test: DDP-164, DDP-139, DDP-028, DDP-162, RDMAP-253
#[test]
fn nothing_is_placed_after_an_error_and_work_is_flushed_once() {
    let mut live = Connection::with_work();
    let bad = live.write_to(UNKNOWN, b"x");
    let good = live.write_to(live.stag, b"late");
    let send = untagged_fpdu(SEND, 0, 1, b"late");
    // In the same segment, and in later ones.
    live.inject(&[&bad[..], &good, &send, &bad].concat());
    live.inject(&good);
    let terminate = live.sent_terminate().expect("a Terminate");
    assert_eq!((terminate.cause(), terminate.segment_len), ((1, 1, 0), Some(15)));
    assert_eq!(terminate.ddp_header(), &bad[2..16]);
    assert_eq!(live.shared(), [0; 8]);
    assert_eq!(live.disconnect_reason(), EndReason::TerminateSent(terminate));
    assert_eq!(live.completions(), ALL_FLUSHED);
    let counters = live.fx.engine.counters();
    assert_eq!((counters.terminates_out, counters.terminates_in), (1, 0));
    live.expect_graceful_close();
}

// req-test: RDMAP-249, RDMAP-254, DDP-032, DDP-165, DDP-140
#[test]
fn terminate_precedes_fin() {
    let mut live = Connection::with_work();
    let bad = live.write_to(UNKNOWN, b"x");
    live.inject(&bad);
    // Later data of the peer is acknowledged, so that no RST overtakes the Terminate.
    for _ in 0..5 {
        live.inject(&bad);
    }
    assert!(live.sent_terminate().is_some());
    live.expect_graceful_close();
}

/// The Terminate arrives in `pieces`: it is reported in full, nothing is sent in response, nothing
/// more is placed, and the connection closes.
fn expect_terminate_reported(
    mut live: Connection,
    pieces: &[Vec<u8>],
    expected: &[(u64, WcStatus)],
    what: &str,
) {
    let before = live.sent_ulpdus();
    for piece in pieces {
        live.inject(piece);
    }
    assert_eq!(live.sent_ulpdus(), before, "{what}: nothing is answered");
    let terminate = Terminate::parse(&PEER_TERMINATE).unwrap();
    let reason = live.disconnect_reason();
    assert_eq!(reason, EndReason::TerminateReceived(terminate), "{what}");
    assert_eq!(reason.error(), Some((1, 1, 1)));
    let EndReason::TerminateReceived(terminate) = reason else { unreachable!() };
    assert_eq!(
        (terminate.segment_len, terminate.ddp_header()),
        (Some(15), &PEER_TERMINATE[6..]),
        "{what}"
    );
    assert_eq!(live.completions(), expected, "{what}");
    assert_eq!(live.shared(), [0; 8], "{what}");
    assert_eq!(live.fx.engine.counters().terminates_out, 0, "{what}");
    live.expect_graceful_close();
}

// req-test: RDMAP-192, RDMAP-044, RDMAP-196, RDMAP-247, RDMAP-186
#[test]
fn terminate_is_accepted_at_any_point() {
    // The Terminate names a Write that is none of these.
    let all = ALL_FLUSHED;
    expect_terminate_reported(Connection::with_work(), &[peer_terminate_fpdu()], &all, "alone");
    expect_terminate_reported(connected(), &[peer_terminate_fpdu()], &[], "as the first FPDU");
    let bytes: Vec<_> = peer_terminate_fpdu().iter().map(|&byte| vec![byte]).collect();
    expect_terminate_reported(Connection::with_work(), &bytes, &all, "byte by byte");
    let work = Connection::with_work();
    let late =
        [&peer_terminate_fpdu()[..], &work.write_to(work.stag, b"late"), &peer_terminate_fpdu()]
            .concat();
    expect_terminate_reported(work, &[late], &all, "before data");

    // After data, whose message is delivered first; then within a message, which is not delivered.
    let data = [untagged_fpdu(SEND, 0, 1, b"data"), peer_terminate_fpdu()].concat();
    let done = [&all[..3], &[(2, FLUSHED), (3, FLUSHED)]].concat();
    let done = [&[(1, WcStatus::Success)][..], &done].concat();
    expect_terminate_reported(Connection::with_work(), &[data], &done, "behind data");
    let rsvd_ulp = SEND.control(Version::Ietf);
    let part = Untagged { last: false, rsvd_ulp, rsvd_ulp_rest: 0, qn: 0, msn: 1, mo: 0 };
    let part = build_fpdu(18, |out| part.emit(Version::Ietf, out), b"part");
    expect_terminate_reported(
        Connection::with_work(),
        &[part, peer_terminate_fpdu()],
        &all,
        "amid a message",
    );
}

/// The copied header identifies the refused message: a Read by its MSN, a Write by STag and TO.
/// Completed work is not affected, and no other request is marked instead.
#[test]
fn terminate_fails_only_the_request_it_names() {
    let read = |msn: u8| {
        let header = [0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, msn, 0, 0, 0, 0];
        [&[0x01, 1, 0xc0, 0, 0, 46][..], &header].concat()
    };
    let write = |stag: u8, to: u8| {
        let header = [0xc1, 0x40, 0, 0, 0, stag, 0, 0, 0, 0, 0, 0, 0, to];
        [&[0x11, 0, 0xc0, 0, 0, 21][..], &header].concat()
    };
    let cases = [
        ("the first Read", read(1), Some(4)),
        ("the second Read", read(2), Some(5)),
        ("a Read that was never asked for", read(3), None),
        ("the Write behind them, its last byte", write(1, 6), Some(6)),
        ("a Write that ended before", write(1, 7), None),
        ("a Write to elsewhere", write(9, 0), None),
        ("nothing in particular", vec![0x01, 1, 0, 0], Some(4)),
        ("a tagged segment of which no more is known", vec![0x11, 0, 0, 0], None),
    ];
    for (name, bytes, marked) in cases {
        let mut live = Connection::with_work();
        live.sent_ulpdus();
        live.inject(&untagged_fpdu(Opcode::Terminate, 2, 1, &bytes));
        assert!(matches!(live.disconnect_reason(), EndReason::TerminateReceived(_)), "{name}");
        let expected = ALL_FLUSHED.map(|(wr_id, status)| {
            (wr_id, if marked == Some(wr_id) { WcStatus::RemoteAccess } else { status })
        });
        assert_eq!(live.completions(), expected, "{name}");
    }
}

#[test]
fn terminate_with_fin_or_out_of_order_is_accepted() {
    let terminate = Terminate::parse(&PEER_TERMINATE).unwrap();
    let mut live = Connection::with_work();
    let (seq, bytes) = (live.peer.tcp.snd_nxt, peer_terminate_fpdu());
    live.peer.send_segment(&live.fx, Flags::ACK | Flags::FIN, seq, &bytes);
    live.fx.settle();
    assert_eq!(live.disconnect_reason(), EndReason::TerminateReceived(terminate));

    let mut live = Connection::with_work();
    let (first, seq) = (empty_write_fpdu(), live.peer.tcp.snd_nxt);
    let next = seq + u32::try_from(first.len()).unwrap();
    live.peer.send_segment(&live.fx, Flags::ACK, next, &peer_terminate_fpdu());
    live.fx.settle();
    assert_eq!(live.fx.engine.qp_state(live.qp), QpState::Rts);
    live.inject(&first);
    live.fx.settle();
    assert_eq!(live.disconnect_reason(), EndReason::TerminateReceived(terminate));
}

#[test]
fn partial_fpdu_buffers_prefer_live_streams() {
    let mut live = connected_with_work_and_buffers(4);
    let mut others: Vec<_> =
        (1..=5).map(|at| Peer::connect(&mut live.fx, 5000 + at, 1460)).collect();
    let qps: Vec<_> = others.iter_mut().map(|peer| peer.start_mpa(&mut live.fx)).collect();
    let mut long = Peer::connect(&mut live.fx, 6000, 1460);
    long.start_mpa(&mut live.fx);
    // These have ended here and hold an incomplete FPDU. When a long FPDU begins to arrive at a
    // live stream, the third has no buffer yet, and gets none.
    for (number, (peer, qp)) in others.iter_mut().zip(&qps).take(3).enumerate() {
        if number == 2 {
            for begun in [&[0xea; 1460], &[0; 1460]] {
                long.send(&mut live.fx, begun);
            }
        }
        peer.send(&mut live.fx, &empty_write_fpdu());
        live.fx.engine.disconnect(live.fx.now, *qp).unwrap();
        peer.send(&mut live.fx, &peer_terminate_fpdu()[..9]);
    }
    // A stream that ends with an incomplete FPDU gives up its buffer, as buffers are scarce.
    others[3].send(&mut live.fx, &peer_terminate_fpdu()[..9]);
    live.fx.engine.disconnect(live.fx.now, qps[3]).unwrap();
    // Two live streams get buffers.
    others[4].send(&mut live.fx, &empty_write_fpdu()[..9]);
    live.inject(&empty_write_fpdu()[..9]);
    for (peer, qp) in [(&mut others[4], qps[4]), (&mut live.peer, live.qp)] {
        peer.send(&mut live.fx, &empty_write_fpdu()[9..]);
        assert_eq!(live.fx.engine.qp_state(qp), QpState::Rts);
    }
    for peer in &mut others[..4] {
        peer.send(&mut live.fx, &peer_terminate_fpdu()[9..]);
    }
    let ends = std::iter::from_fn(|| live.fx.engine.next_event());
    let reported: Vec<_> = ends
        .filter_map(|event| match event {
            ConnEvent::TerminateReceived { qp, .. } => Some(qp),
            _ => None,
        })
        .collect();
    assert_eq!(reported, qps[..2]);
    assert_eq!(live.fx.engine.counters().assembly_exhausted, 0);
}

#[test]
fn received_terminate_suppresses_ours() {
    let mut live = Connection::with_work();
    let bad = live.write_to(UNKNOWN, b"x");
    live.inject(&[peer_terminate_fpdu(), bad].concat());
    assert!(live.sent_terminate().is_none(), "the peer's was first");
    assert!(matches!(live.disconnect_reason(), EndReason::TerminateReceived(_)));
    live.expect_graceful_close();
}

#[test]
fn error_before_peer_fin_sends_terminate() {
    let mut live = Connection::with_work();
    let (seq, bad) = (live.peer.tcp.snd_nxt, live.write_to(UNKNOWN, b"x"));
    live.peer.send_segment(&live.fx, Flags::ACK | Flags::FIN, seq, &bad);
    live.peer.tcp.snd_nxt += u32::try_from(bad.len() + 1).unwrap();
    let terminate = live.sent_terminate().expect("through the half that is open");
    assert_eq!(live.disconnect_reason(), EndReason::TerminateSent(terminate));
    assert!(live.peer.fin_received && !live.peer.rst_received);
    assert_eq!(live.fx.engine.unfinished_count(), 0);
}

#[test]
fn data_after_disconnect_is_ignored() {
    for bytes in [untagged_fpdu(SEND, 0, 1, b"late"), connected().write_to(UNKNOWN, b"x")] {
        let mut live = Connection::with_work();
        live.fx.engine.disconnect(live.fx.now, live.qp).unwrap();
        live.inject(&bytes);
        assert!(live.sent_terminate().is_none());
        assert_eq!(live.disconnect_reason(), EndReason::Local);
        assert_eq!(live.completions(), ALL_FLUSHED);
        live.expect_graceful_close();
    }
}

#[test]
fn malformed_terminate_is_reported_and_not_answered() {
    for (msn, bytes) in [(1, &PEER_TERMINATE[..3]), (1, &[]), (2, &PEER_TERMINATE)] {
        let mut live = Connection::with_work();
        live.inject(&untagged_fpdu(Opcode::Terminate, 2, msn, bytes));
        assert!(live.sent_terminate().is_none());
        assert_eq!(live.disconnect_reason(), EndReason::BadTerminate);
        assert_eq!(live.completions(), ALL_FLUSHED);
        live.expect_graceful_close();
    }
}

/// RFC 5044 section 7.1.2: the responder sends no FPDU before a valid one of the initiator.
#[test]
fn no_terminate_before_the_first_valid_fpdu() {
    let mut crc = connected();
    let mut bad = empty_write_fpdu();
    *bad.last_mut().unwrap() ^= 1;
    crc.inject(&bad);
    let mut overrun = connected();
    let mut beside = Peer::connect(&mut overrun.fx, 5001, 1460);
    let other = beside.start_mpa(&mut overrun.fx);
    overrun.fx.engine.post_recv(other, recv_wr(&overrun.fx, 1)).unwrap();
    overrun.fx.push_results.borrow_mut().push_back(false);
    beside.send(&mut overrun.fx, &untagged_fpdu(SEND, 0, 1, b"x"));
    let mut force = connected();
    force.fx.engine.terminate(force.fx.now, force.qp, Abort::Stream).unwrap();
    let mut partial = connected_with_buffers(BUFFERS_OF_ONE_LONG_FPDU);
    evict_partial_fpdu(&mut partial);

    let unsent = EndReason::TerminateUnsent(Terminate::new(2, 0, 2));
    assert_eq!(unsent.error(), Some((2, 0, 2)));
    for (mut live, reason) in [
        (crc, unsent),
        (overrun, EndReason::LocalError),
        (force, EndReason::Local),
        (partial, EndReason::LocalError),
    ] {
        let qp = live.qp;
        live.peer.settle(&mut live.fx);
        assert!(live.peer.received.is_empty() && !live.peer.fin_received, "{reason:?}");
        // Not a graceful close: RST, not FIN.
        assert!(live.peer.rst_received, "{reason:?}");
        let ends = std::iter::from_fn(|| live.fx.engine.next_event());
        let ours = ends.filter(|event| {
            matches!(event, ConnEvent::Disconnected { qp: ended, reason: why }
                if *ended == qp && *why == reason)
        });
        assert_eq!(ours.count(), 1, "{reason:?}");
    }
}

#[test]
fn local_failure_sends_a_local_terminate() {
    let mut live = connected_with_work_and_buffers(BUFFERS_OF_ONE_LONG_FPDU);
    evict_partial_fpdu(&mut live);
    assert_eq!(live.sent_terminate(), Some(Terminate::new(0, 0, 0)));
    let reason = live.disconnect_reason();
    assert_eq!((reason, reason.error()), (EndReason::LocalError, Some((0, 0, 0))));
    assert_eq!(live.completions(), ALL_FLUSHED);
    assert!(live.peer.fin_received && !live.peer.rst_received);
}

// req-test: RDMAP-240, RDMAP-243, RDMAP-104, RDMAP-110
#[test]
fn forced_terminate_sends_only_its_cause() {
    for (cause, expected) in [
        (Abort::Stream, (0, 2, 7)),
        (Abort::Global, (0, 2, 8)),
        (Abort::Protection, (0, 1, 0xff)),
        (Abort::Operation, (0, 2, 0xff)),
    ] {
        let mut live = Connection::with_work();
        let before = live.sent_ulpdus().len();
        let sge = Sge { addr: SHARED, len: 4000, lkey: live.stag };
        let payload = Payload::Gather([sge].into());
        live.post(7, Operation::Send { payload, solicited: false, invalidate: None });
        live.fx.engine.terminate(live.fx.now, live.qp, cause).unwrap();
        let (layer, error_type, code) = expected;
        assert_eq!(live.sent_terminate(), Some(Terminate::new(layer, error_type, code)));
        assert_eq!(live.sent_ulpdus().len(), before + 1, "nothing that waited is sent");
        assert_eq!(live.disconnect_reason(), EndReason::Local);
        let seen = live.completions();
        assert_eq!(seen[3], (7, FLUSHED));
        assert_eq!(seen.len(), 7);
        live.expect_graceful_close();
    }
}

// req-test: DDP-134, DDP-138, DDP-143, RDMAP-244
#[test]
fn lost_connection_is_an_mpa_error() {
    let mut live = Connection::with_work();
    live.peer.send_segment(&live.fx, Flags::RST, live.peer.tcp.snd_nxt, &[]);
    live.fx.settle();
    let reason = live.disconnect_reason();
    assert_eq!((reason, reason.error()), (EndReason::Reset, Some((2, 0, 1))));
    assert_eq!(live.completions(), ALL_FLUSHED);
    assert_eq!(live.fx.engine.connection_count(), 0);
}

// req-test: DDP-025, DDP-135, RDMAP-095
#[test]
fn crc_mismatch_is_an_mpa_error() {
    let mut live = connected();
    let mut bad = live.write_to(live.stag, b"wrong");
    bad[18] ^= 1;
    live.inject(&[empty_write_fpdu(), bad].concat());
    assert_eq!(live.sent_terminate(), Some(Terminate::new(2, 0, 2)));
    assert_eq!(live.disconnect_reason().error(), Some((2, 0, 2)));
    assert_eq!(live.shared(), [0; 8]);
    live.expect_graceful_close();
}

/// The region of a Read is invalidated before the response is sent, and the window then has space
/// for the response, but not for the Terminate in its place.
#[test]
fn terminate_waits_for_more_window_than_the_response() {
    let Connection { mut fx, mut peer, stag, .. } = connected();
    peer.send(&mut fx, &empty_write_fpdu());
    peer.settle(&mut fx);
    peer.tcp.rcv_wnd = 0;
    let request =
        ReadRequest { sink_stag: 1, sink_to: 0, len: 8, source_stag: stag, source_to: SHARED };
    let mut payload = [0; READ_REQUEST_LEN];
    request.emit(&mut payload);
    peer.send(&mut fx, &untagged_fpdu(Opcode::ReadRequest, 1, 1, &payload));
    assert!(fx.arena.regions().invalidate(stag));
    // The size of the response.
    peer.tcp.rcv_wnd = 28;
    peer.send_segment(&fx, Flags::ACK, peer.tcp.snd_nxt, &[]);
    peer.settle(&mut fx);
    peer.tcp.rcv_wnd = 0xffff;
    peer.send_segment(&fx, Flags::ACK, peer.tcp.snd_nxt, &[]);
    peer.settle(&mut fx);
    // Opcode, layer and type, code, and the whole request.
    assert_eq!((peer.received[3], &peer.received[20..24]), (0x47, &[0x01, 0, 0xe0, 0][..]));
    assert_eq!(peer.received.len(), fpdu::fpdu_len(18 + 4 + 2 + 18 + READ_REQUEST_LEN));
    assert!(peer.fin_received);
}
