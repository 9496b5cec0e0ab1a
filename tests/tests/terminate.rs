//! How streams end over an error: who says what, and what becomes of work and connection.

use ferrowarp_proto::ddp::memory::{Access, Memory};
use ferrowarp_proto::mpa::fpdu;
use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::cm::{Abort, EndReason, Event, Terminate, Version};
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wc::{QpId, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, Payload, SendWr, Sge};
use ferrowarp_proto::wire::ddp::{Tagged, Untagged};
use ferrowarp_proto::wire::rdmap::{Opcode, READ_REQUEST_LEN, ReadRequest};
use ferrowarp_proto::wire::tcp::{Flags, Options};
use ferrowarp_tests::raw::{Bed, CQ, PD, Peer, framed, inbox, nothing, untagged};

const SEND: Opcode = Opcode::Send { invalidate: false, solicited: false };
/// Where the peer may write.
const SHARED: u64 = 8192;
/// An STag that names nothing.
const UNKNOWN: u32 = 0x1234_5600;
/// What the peer says when it ends a stream: base or bounds, of a tagged segment of 15 octets.
const LAST_WORD: [u8; 20] =
    [0x11, 1, 0xc0, 0, 0, 15, 0xc1, 0x40, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 9];

/// One connection, its gate open.
struct Live {
    bed: Bed,
    peer: Peer,
    qp: QpId,
    stag: u32,
}

fn live() -> Live {
    live_of(1)
}

/// With so many buffers for FPDUs that come in pieces.
fn live_of(partial_fpdus: usize) -> Live {
    // 2 KiB each. A single one is scarce: streams that go on have the first claim.
    let mut bed = Bed::new(|config| config.partial_octets_max = partial_fpdus / 2 * 4096);
    let mut peer = Peer::connect(&mut bed, 5000, 1460);
    let qp = peer.set_up(&mut bed);
    let stag = bed.arena.register(SHARED, 4096, Access::ALL, PD);
    Live { bed, peer, qp, stag }
}

/// As [`Live::work`], with so many buffers for FPDUs that come in pieces.
fn work(partial_fpdus: usize) -> Live {
    live_of(partial_fpdus).at_work()
}

/// Short buffers of this number are as much memory as one long FPDU takes, and not two.
const MEMORY_OF_ONE: usize = 40;

/// The connection is in the middle of a long FPDU for longer than it may be, and another one wants
/// the memory: this end fails it.
fn evict(live: &mut Live) {
    let mut other = Peer::connect(&mut live.bed, 5001, 1460);
    other.set_up(&mut live.bed);
    let begin = |peer: &mut Peer, bed: &mut Bed| {
        peer.send(bed, &[&20_000u16.to_be_bytes()[..], &[0; 1398]].concat());
        peer.send(bed, &[0; 1400]);
    };
    begin(&mut live.peer, &mut live.bed);
    live.bed.now = live.bed.now + 11 * SECOND;
    live.bed.pass();
    begin(&mut other, &mut live.bed);
    assert_eq!(live.bed.engine.counters().partials_evicted, 1);
}

/// How this end comes to end a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Over a tagged segment that may not be placed.
    Placement,
    /// Over an opcode that RDMAP does not know.
    Opcode,
    /// Over an FPDU that is damaged.
    Crc,
    /// With a Terminate that the application asked for.
    Forced,
    /// Without one.
    Disconnected,
}

impl End {
    /// Terminates that this end sends.
    const fn says(self) -> u64 {
        if matches!(self, Self::Disconnected) { 0 } else { 1 }
    }
}

impl Live {
    /// Receives 1 to 3; Reads 4 and 5, which the peer never answers; a Write behind them.
    fn work() -> Self {
        live().at_work()
    }

    fn at_work(self) -> Self {
        let mut live = self;
        live.peer.send(&mut live.bed, &nothing());
        for wr_id in 1..=3 {
            let wr = inbox(&live.bed, wr_id);
            live.bed.engine.post_recv(live.qp, wr).unwrap();
        }
        let sink = Sge { addr: SHARED, len: 64, lkey: live.stag };
        let read = Operation::Read { sink, rkey: 1, remote: 0 };
        let payload = Payload::Inline(b"written".iter().copied().collect());
        live.post(4, read.clone());
        live.post(5, read);
        live.post(6, Operation::Write { payload, rkey: 1, remote: 0 });
        live.peer.settle(&mut live.bed);
        live
    }

    fn post(&mut self, wr_id: u64, operation: Operation) {
        let wr = SendWr { wr_id, operation, signaled: true, fence: false };
        self.bed.engine.post_send(self.qp, wr).unwrap();
    }

    fn say(&mut self, octets: &[u8]) {
        self.peer.send(&mut self.bed, octets);
    }

    /// ULPDUs that the engine sent, and took no word back.
    fn heard(&mut self) -> Vec<Vec<u8>> {
        self.peer.settle(&mut self.bed);
        let mut found = Vec::new();
        let mut rest = &self.peer.heard[..];
        while let Some((ulpdu, used)) = fpdu::parse(rest, true).unwrap() {
            found.push(ulpdu.to_vec());
            rest = &rest[used..];
        }
        assert!(rest.is_empty(), "{rest:02x?}");
        found
    }

    /// The Terminates among them: the last word, or none.
    fn told(&mut self) -> Option<Terminate> {
        let heard = self.heard();
        let is_terminate = |ulpdu: &Vec<u8>| ulpdu[1] & 0x0f == 7;
        let (last, others) = heard.split_last()?;
        assert!(!others.iter().any(is_terminate), "it is the last word");
        is_terminate(last).then(|| Terminate::parse(&last[18..]).unwrap())
    }

    /// Why the stream ended, which is said once.
    fn reason(&mut self) -> EndReason {
        self.reason_and(|event| assert_eq!(event, None))
    }

    /// The same, and what is said after it.
    fn reason_and(&mut self, check: impl FnOnce(Option<Event>)) -> EndReason {
        assert_eq!(self.bed.engine.qp_state(self.qp), QpState::Error);
        let event = self.bed.engine.next_event();
        let Some(Event::Disconnected { qp, reason }) = event else { panic!("{event:?}") };
        assert_eq!(qp, self.qp);
        check(self.bed.engine.next_event());
        assert_eq!(self.bed.engine.next_event(), None);
        reason
    }

    /// Has this end end the stream, says `pieces`, the first of them in the same segment as what
    /// is wrong, if anything is. The Terminate that this end sent.
    fn end_with(&mut self, end: End, pieces: &[&[u8]]) -> Option<Terminate> {
        let bad = match end {
            End::Placement => self.write_to(UNKNOWN, b"x"),
            End::Opcode => framed(14, |out| out[..2].copy_from_slice(&[0xc1, 0x4d]), b""),
            End::Crc => {
                let mut damaged = nothing();
                *damaged.last_mut().unwrap() ^= 1;
                damaged
            }
            End::Forced | End::Disconnected => Vec::new(),
        };
        let (now, qp, engine) = (self.bed.now, self.qp, &mut self.bed.engine);
        match end {
            End::Forced => engine.terminate(now, qp, Abort::Stream).unwrap(),
            End::Disconnected => engine.disconnect(now, qp).unwrap(),
            _ => {}
        }
        let first = pieces.first().copied().unwrap_or_default();
        self.say(&[&bad, first].concat());
        for piece in pieces.iter().skip(1) {
            self.say(piece);
        }
        self.told()
    }

    fn completions(&self) -> Vec<(u64, WcStatus)> {
        let found = std::iter::from_fn(|| self.bed.queues.poll(CQ));
        found.map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// The connection closes in good order, and is gone.
    fn closes(&mut self) {
        self.peer.settle(&mut self.bed);
        assert!(self.peer.finished && !self.peer.reset);
        self.peer.put(&self.bed, Flags::ACK | Flags::FIN, Options::default(), self.peer.seq, &[]);
        self.peer.settle(&mut self.bed);
        assert_eq!(self.bed.engine.unfinished_count(), 0);
    }

    fn write_to(&self, stag: u32, octets: &[u8]) -> Vec<u8> {
        let rsvd_ulp = Opcode::Write.control(Version::Ietf);
        let header = Tagged { last: true, rsvd_ulp, stag, to: SHARED };
        framed(14, |out| header.emit(Version::Ietf, out), octets)
    }

    fn shared(&self) -> Vec<u8> {
        self.bed.arena.read(usize::try_from(SHARED).unwrap(), 8)
    }
}

fn last_word() -> Vec<u8> {
    untagged(Opcode::Terminate, 2, 1, &LAST_WORD)
}

const FLUSHED: WcStatus = WcStatus::Flushed;

/// All of [`Live::work`]: none succeeds behind one that was flushed, not even the Write, whose
/// octets had left.
const ALL_FLUSHED: [(u64, WcStatus); 6] =
    [(4, FLUSHED), (5, FLUSHED), (6, FLUSHED), (1, FLUSHED), (2, FLUSHED), (3, FLUSHED)];

// req-test: DDP-164, DDP-139, DDP-028, DDP-162, RDMAP-253
#[test]
fn behind_an_error_nothing_is_placed_and_work_is_flushed_once() {
    let mut live = Live::work();
    let bad = live.write_to(UNKNOWN, b"x");
    let good = live.write_to(live.stag, b"late");
    let send = untagged(SEND, 0, 1, b"late");
    // In the same segment, and in later ones.
    live.say(&[&bad[..], &good, &send, &bad].concat());
    live.say(&good);
    let told = live.told().expect("a Terminate");
    assert_eq!((told.cause(), told.segment_len), ((1, 1, 0), Some(15)));
    assert_eq!(told.ddp_header(), &bad[2..16]);
    assert_eq!(live.shared(), [0; 8]);
    assert_eq!(live.reason(), EndReason::TerminateSent(told));
    assert_eq!(live.completions(), ALL_FLUSHED);
    let counters = live.bed.engine.counters();
    assert_eq!((counters.terminates_out, counters.terminates_in), (1, 0));
    live.closes();
}

// req-test: RDMAP-249, RDMAP-254, DDP-032, DDP-165, DDP-140
#[test]
fn the_terminate_arrives_before_the_end_of_the_connection() {
    let mut live = Live::work();
    let bad = live.write_to(UNKNOWN, b"x");
    live.say(&bad);
    // What the peer says meanwhile is acknowledged, so that no reset overtakes the Terminate.
    for _ in 0..5 {
        live.say(&bad);
    }
    assert!(live.told().is_some());
    live.closes();
}

/// The Terminate arrives with `octets` (and FIN, if `fin`): it is reported in full, nothing is
/// answered, nothing more is placed, and the connection closes.
fn is_told(mut live: Live, pieces: &[Vec<u8>], expected: &[(u64, WcStatus)], what: &str) {
    let before = live.heard();
    for piece in pieces {
        live.say(piece);
    }
    assert_eq!(live.heard(), before, "{what}: nothing is answered");
    let told = Terminate::parse(&LAST_WORD).unwrap();
    let reason = live.reason();
    assert_eq!(reason, EndReason::TerminateReceived(told), "{what}");
    assert_eq!(reason.error(), Some((1, 1, 1)));
    let EndReason::TerminateReceived(told) = reason else { unreachable!() };
    assert_eq!((told.segment_len, told.ddp_header()), (Some(15), &LAST_WORD[6..]), "{what}");
    assert_eq!(live.completions(), expected, "{what}");
    assert_eq!(live.shared(), [0; 8], "{what}");
    assert_eq!(live.bed.engine.counters().terminates_out, 0, "{what}");
    live.closes();
}

// req-test: RDMAP-192, RDMAP-044, RDMAP-196, RDMAP-247, RDMAP-186
#[test]
fn a_terminate_may_arrive_at_any_moment() {
    // The Terminate names a Write that is none of these.
    let all = ALL_FLUSHED;
    is_told(Live::work(), &[last_word()], &all, "alone");
    is_told(live(), &[last_word()], &[], "as the first FPDU");
    let bytes: Vec<_> = last_word().iter().map(|&octet| vec![octet]).collect();
    is_told(Live::work(), &bytes, &all, "octet by octet");
    let work = Live::work();
    let late = [&last_word()[..], &work.write_to(work.stag, b"late"), &last_word()].concat();
    is_told(work, &[late], &all, "before data");

    // Behind data, whose message is delivered first, then amid a message, which is not.
    let data = [untagged(SEND, 0, 1, b"data"), last_word()].concat();
    let done = [&all[..3], &[(2, FLUSHED), (3, FLUSHED)]].concat();
    let done = [&[(1, WcStatus::Success)][..], &done].concat();
    is_told(Live::work(), &[data], &done, "behind data");
    let rsvd_ulp = SEND.control(Version::Ietf);
    let part = Untagged { last: false, rsvd_ulp, rsvd_ulp_rest: 0, qn: 0, msn: 1, mo: 0 };
    let part = framed(18, |out| part.emit(Version::Ietf, out), b"part");
    is_told(Live::work(), &[part, last_word()], &all, "amid a message");
}

/// The copy of the header says which message was refused: a Read by its number, a Write by its
/// place. What is done already cannot be, and nothing else is marked in its stead.
#[test]
fn a_terminate_marks_the_request_that_it_names_and_no_other() {
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
        ("the Write behind them, its last octet", write(1, 6), Some(6)),
        ("a Write that ended before", write(1, 7), None),
        ("a Write to elsewhere", write(9, 0), None),
        ("nothing in particular", vec![0x01, 1, 0, 0], Some(4)),
        ("a tagged segment of which no more is known", vec![0x11, 0, 0, 0], None),
    ];
    for (name, octets, marked) in cases {
        let mut live = Live::work();
        live.heard();
        live.say(&untagged(Opcode::Terminate, 2, 1, &octets));
        assert!(matches!(live.reason(), EndReason::TerminateReceived(_)), "{name}");
        let expected = ALL_FLUSHED.map(|(wr_id, status)| {
            (wr_id, if marked == Some(wr_id) { WcStatus::RemoteAccess } else { status })
        });
        assert_eq!(live.completions(), expected, "{name}");
    }
}

#[test]
fn a_terminate_with_fin_or_ahead_of_its_turn() {
    let told = Terminate::parse(&LAST_WORD).unwrap();
    let mut live = Live::work();
    let (seq, octets) = (live.peer.seq, last_word());
    live.peer.put(&live.bed, Flags::ACK | Flags::FIN, Options::default(), seq, &octets);
    live.bed.settle();
    assert_eq!(live.reason(), EndReason::TerminateReceived(told));

    let mut live = Live::work();
    let (first, seq) = (nothing(), live.peer.seq);
    let next = seq + u32::try_from(first.len()).unwrap();
    live.peer.put(&live.bed, Flags::ACK, Options::default(), next, &last_word());
    live.bed.settle();
    assert_eq!(live.bed.engine.qp_state(live.qp), QpState::Rts);
    live.say(&first);
    live.bed.settle();
    assert_eq!(live.reason(), EndReason::TerminateReceived(told));
}

/// Ends the stream at this end, says `pieces`, and expects the peer's Terminate to be told, once,
/// besides this end's own error; but for that, what comes behind the end changes nothing.
fn is_told_too(mut live: Live, end: End, pieces: &[&[u8]], what: &str) {
    let told = live.end_with(end, pieces);
    let reason = live.reason_and(|event| {
        let Some(Event::TerminateReceived { qp: _, terminate: Some(told) }) = event else {
            panic!("{what}: {event:?}")
        };
        assert_eq!((told.cause(), told.segment_len), ((1, 1, 1), Some(15)), "{what}");
        assert_eq!(told.ddp_header(), &LAST_WORD[6..], "{what}");
    });
    match told {
        Some(told) if end != End::Forced => {
            assert_eq!(reason, EndReason::TerminateSent(told), "{what}");
        }
        _ => assert_eq!(reason, EndReason::Local, "{what}"),
    }
    assert_eq!(live.completions(), ALL_FLUSHED, "{what}");
    assert_eq!(live.shared(), [0; 8], "{what}");
    let counters = live.bed.engine.counters();
    assert_eq!((counters.terminates_out, counters.terminates_in), (end.says(), 1), "{what}");
    live.closes();
}

// req-test: RDMAP-192, RDMAP-044
#[test]
fn of_terminates_that_cross_the_peers_is_told_too() {
    for end in [End::Placement, End::Opcode, End::Forced, End::Disconnected] {
        let live = Live::work();
        let bad = live.write_to(UNKNOWN, b"x");
        let good = [live.write_to(live.stag, b"late"), untagged(SEND, 0, 1, b"late")].concat();
        let last = last_word();
        let both = [&good[..], &bad, &last].concat();
        // More than one is not told, and nothing that follows matters.
        let twice = [&last[..], &last, &good, &[0xff; 9]].concat();
        is_told_too(live, end, &[&last], "alone");
        is_told_too(Live::work(), end, &[&twice, &last, &bad], "twice");
        is_told_too(work(64), end, &[&both], "behind what would be placed, and what is wrong");
        let octets: Vec<_> = both.chunks(1).collect();
        is_told_too(work(64), end, &octets, "octet by octet");
    }
}

#[test]
fn a_terminate_that_crosses_may_come_ahead_of_its_turn_or_with_fin() {
    let mut live = Live::work();
    live.end_with(End::Placement, &[]);
    let (first, seq) = (nothing(), live.peer.seq);
    let next = seq + u32::try_from(first.len()).unwrap();
    live.peer.put(&live.bed, Flags::ACK | Flags::FIN, Options::default(), next, &last_word());
    live.peer.settle(&mut live.bed);
    live.reason();
    live.say(&first);
    live.peer.settle(&mut live.bed);
    let event = live.bed.engine.next_event();
    assert!(
        matches!(event, Some(Event::TerminateReceived { terminate: Some(_), .. })),
        "{event:?}"
    );
    assert_eq!(live.bed.engine.unfinished_count(), 0);
}

#[test]
fn a_terminate_that_crosses_and_breaks_the_rules_is_told_as_such() {
    for (msn, octets) in [(1, &LAST_WORD[..3]), (2, &LAST_WORD)] {
        let mut live = Live::work();
        live.end_with(End::Placement, &[&untagged(Opcode::Terminate, 2, msn, octets)]);
        live.reason_and(|event| {
            let Some(Event::TerminateReceived { terminate: None, .. }) = event else {
                panic!("{event:?}")
            };
        });
        assert_eq!(live.completions(), ALL_FLUSHED);
        live.closes();
    }
}

/// What cannot be told from any octets is none.
#[test]
fn behind_our_terminate_damage_ends_the_search_for_the_peers() {
    let last = last_word();
    let mut bad = last.clone();
    *bad.last_mut().unwrap() ^= 1;
    let behind = [&bad[..], &last].concat();
    let spoiled = [&LAST_WORD[..], &last].concat();
    for (end, octets) in [
        (End::Placement, &behind),
        (End::Forced, &spoiled),
        // This end's error was one of MPA: no FPDU is found any more (RFC 5044 section 8).
        (End::Crc, &last),
    ] {
        let mut live = Live::work();
        let told = live.end_with(end, &[octets, &last]);
        assert!(told.is_some());
        live.reason();
        assert_eq!(live.completions(), ALL_FLUSHED);
        assert_eq!(live.bed.engine.counters().terminates_in, 0);
        live.closes();
    }
}

#[test]
fn buffers_for_what_is_cut_are_for_streams_that_go_on() {
    let mut live = work(4);
    let mut others: Vec<_> =
        (1..=5).map(|at| Peer::connect(&mut live.bed, 5000 + at, 1460)).collect();
    let qps: Vec<_> = others.iter_mut().map(|peer| peer.set_up(&mut live.bed)).collect();
    // All of them have ended here and wait in the middle of an FPDU: two may have a buffer.
    for (peer, qp) in others.iter_mut().zip(&qps).take(3) {
        peer.send(&mut live.bed, &nothing());
        live.bed.engine.disconnect(live.bed.now, *qp).unwrap();
        peer.send(&mut live.bed, &last_word()[..9]);
    }
    // One that was in the middle when its end came gives its buffer up: there are too few.
    others[3].send(&mut live.bed, &last_word()[..9]);
    live.bed.engine.disconnect(live.bed.now, qps[3]).unwrap();
    // Two streams that go on find buffers.
    others[4].send(&mut live.bed, &nothing()[..9]);
    live.say(&nothing()[..9]);
    for (peer, qp) in [(&mut others[4], qps[4]), (&mut live.peer, live.qp)] {
        peer.send(&mut live.bed, &nothing()[9..]);
        assert_eq!(live.bed.engine.qp_state(qp), QpState::Rts);
    }
    for peer in &mut others[..4] {
        peer.send(&mut live.bed, &last_word()[9..]);
    }
    let ends = std::iter::from_fn(|| live.bed.engine.next_event());
    let told: Vec<_> = ends
        .filter_map(|event| match event {
            Event::TerminateReceived { qp, .. } => Some(qp),
            _ => None,
        })
        .collect();
    assert_eq!(told, qps[..2]);
    assert_eq!(live.bed.engine.counters().assembly_exhausted, 0);
}

#[test]
fn a_terminate_that_came_first_is_the_end() {
    let mut live = Live::work();
    let bad = live.write_to(UNKNOWN, b"x");
    live.say(&[last_word(), bad].concat());
    assert!(live.told().is_none(), "the peer's was first");
    assert!(matches!(live.reason(), EndReason::TerminateReceived(_)));
    live.closes();
}

#[test]
fn an_error_right_before_the_peers_fin_is_told() {
    let mut live = Live::work();
    let (seq, bad) = (live.peer.seq, live.write_to(UNKNOWN, b"x"));
    live.peer.put(&live.bed, Flags::ACK | Flags::FIN, Options::default(), seq, &bad);
    live.peer.seq += u32::try_from(bad.len() + 1).unwrap();
    let told = live.told().expect("through the half that is open");
    assert_eq!(live.reason(), EndReason::TerminateSent(told));
    assert!(live.peer.finished && !live.peer.reset);
    assert_eq!(live.bed.engine.unfinished_count(), 0);
}

#[test]
fn what_arrives_behind_our_own_end_changes_nothing() {
    for octets in [untagged(SEND, 0, 1, b"late"), live().write_to(UNKNOWN, b"x")] {
        let mut live = Live::work();
        live.bed.engine.disconnect(live.bed.now, live.qp).unwrap();
        live.say(&octets);
        assert!(live.told().is_none());
        assert_eq!(live.reason(), EndReason::Local);
        assert_eq!(live.completions(), ALL_FLUSHED);
        live.closes();
    }
}

#[test]
fn a_terminate_that_breaks_the_rules_is_reported_and_not_answered() {
    for (msn, octets) in [(1, &LAST_WORD[..3]), (1, &[]), (2, &LAST_WORD)] {
        let mut live = Live::work();
        live.say(&untagged(Opcode::Terminate, 2, msn, octets));
        assert!(live.told().is_none());
        assert_eq!(live.reason(), EndReason::BadTerminate);
        assert_eq!(live.completions(), ALL_FLUSHED);
        live.closes();
    }
}

/// RFC 5044 section 7.1.2: the responder sends no FPDU before it has a valid one of the initiator.
#[test]
fn before_the_first_valid_fpdu_nothing_is_said() {
    let mut crc = live();
    let mut bad = nothing();
    *bad.last_mut().unwrap() ^= 1;
    crc.say(&bad);
    let mut overrun = live();
    let mut beside = Peer::connect(&mut overrun.bed, 5001, 1460);
    let other = beside.set_up(&mut overrun.bed);
    overrun.bed.engine.post_recv(other, inbox(&overrun.bed, 1)).unwrap();
    overrun.bed.answers.borrow_mut().push_back(false);
    beside.send(&mut overrun.bed, &untagged(SEND, 0, 1, b"x"));
    let mut force = live();
    force.bed.engine.terminate(force.bed.now, force.qp, Abort::Stream).unwrap();
    let mut partial = live_of(MEMORY_OF_ONE);
    evict(&mut partial);

    let unsent = EndReason::TerminateUnsent(Terminate::new(2, 0, 2));
    assert_eq!(unsent.error(), Some((2, 0, 2)));
    for (mut live, reason) in [
        (crc, unsent),
        (overrun, EndReason::LocalError),
        (force, EndReason::Local),
        (partial, EndReason::LocalError),
    ] {
        let qp = live.qp;
        live.peer.settle(&mut live.bed);
        assert!(live.peer.heard.is_empty() && !live.peer.finished, "{reason:?}");
        // It is no end in good order, so it does not look like one.
        assert!(live.peer.reset, "{reason:?}");
        let ends = std::iter::from_fn(|| live.bed.engine.next_event());
        let ours = ends.filter(|event| {
            matches!(event, Event::Disconnected { qp: ended, reason: why }
                if *ended == qp && *why == reason)
        });
        assert_eq!(ours.count(), 1, "{reason:?}");
    }
}

#[test]
fn a_failure_of_this_end_is_told_as_local() {
    let mut live = work(MEMORY_OF_ONE);
    evict(&mut live);
    assert_eq!(live.told(), Some(Terminate::new(0, 0, 0)));
    let reason = live.reason();
    assert_eq!((reason, reason.error()), (EndReason::LocalError, Some((0, 0, 0))));
    assert_eq!(live.completions(), ALL_FLUSHED);
    assert!(live.peer.finished && !live.peer.reset);
}

// req-test: RDMAP-240, RDMAP-243, RDMAP-104, RDMAP-110
#[test]
fn a_stream_ended_by_force_says_why_and_nothing_else() {
    for (cause, expected) in [
        (Abort::Stream, (0, 2, 7)),
        (Abort::Global, (0, 2, 8)),
        (Abort::Protection, (0, 1, 0xff)),
        (Abort::Operation, (0, 2, 0xff)),
    ] {
        let mut live = Live::work();
        let before = live.heard().len();
        let sge = Sge { addr: SHARED, len: 4000, lkey: live.stag };
        let payload = Payload::Gather([sge].into_iter().collect());
        live.post(7, Operation::Send { payload, solicited: false, invalidate: None });
        live.bed.engine.terminate(live.bed.now, live.qp, cause).unwrap();
        let (layer, error_type, code) = expected;
        assert_eq!(live.told(), Some(Terminate::new(layer, error_type, code)));
        assert_eq!(live.heard().len(), before + 1, "nothing that waited is sent");
        assert_eq!(live.reason(), EndReason::Local);
        let seen = live.completions();
        assert_eq!(seen[3], (7, FLUSHED));
        assert_eq!(seen.len(), 7);
        live.closes();
    }
}

// req-test: DDP-134, DDP-138, DDP-143, RDMAP-244
#[test]
fn a_connection_that_is_lost_is_an_error_of_mpa() {
    let mut live = Live::work();
    live.peer.put(&live.bed, Flags::RST, Options::default(), live.peer.seq, &[]);
    live.bed.settle();
    let reason = live.reason();
    assert_eq!((reason, reason.error()), (EndReason::Reset, Some((2, 0, 1))));
    assert_eq!(live.completions(), ALL_FLUSHED);
    assert_eq!(live.bed.engine.connection_count(), 0);
}

// req-test: DDP-025, DDP-135, RDMAP-095
#[test]
fn a_crc_mismatch_is_an_error_of_mpa() {
    let mut live = live();
    let mut bad = live.write_to(live.stag, b"wrong");
    bad[18] ^= 1;
    live.say(&[nothing(), bad].concat());
    assert_eq!(live.told(), Some(Terminate::new(2, 0, 2)));
    assert_eq!(live.reason().error(), Some((2, 0, 2)));
    assert_eq!(live.shared(), [0; 8]);
    live.closes();
}

/// What a Read asked for goes away before its turn, and the window then has room for the answer
/// but not for the Terminate in its place.
#[test]
fn a_terminate_waits_for_more_room_than_the_answer_it_replaces() {
    let Live { mut bed, mut peer, stag, .. } = live();
    peer.send(&mut bed, &nothing());
    peer.settle(&mut bed);
    peer.offers = 0;
    let request =
        ReadRequest { sink_stag: 1, sink_to: 0, len: 8, source_stag: stag, source_to: SHARED };
    let mut payload = [0; READ_REQUEST_LEN];
    request.emit(&mut payload);
    peer.send(&mut bed, &untagged(Opcode::ReadRequest, 1, 1, &payload));
    assert!(bed.arena.regions().invalidate(stag));
    // The answer would have as many octets.
    peer.offers = 28;
    peer.put(&bed, Flags::ACK, Options::default(), peer.seq, &[]);
    peer.settle(&mut bed);
    peer.offers = 0xffff;
    peer.put(&bed, Flags::ACK, Options::default(), peer.seq, &[]);
    peer.settle(&mut bed);
    // Opcode, layer and type, code, and the whole request.
    assert_eq!((peer.heard[3], &peer.heard[20..24]), (0x47, &[0x01, 0, 0xe0, 0][..]));
    assert_eq!(peer.heard.len(), fpdu::fpdu_len(18 + 4 + 2 + 18 + READ_REQUEST_LEN));
    assert!(peer.finished);
}
