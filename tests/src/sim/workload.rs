//! Random work, and the oracles: bytes match, order holds, each request completes once, progress
//! goes on.

use std::collections::VecDeque;

use ferrowarp_proto::ddp::atomic::ATOMIC_LEN;
use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::cm::Event;
use ferrowarp_proto::verbs::qp::QpInit;
use ferrowarp_proto::verbs::wc::{CqId, QpId, Wc, WcOpcode, WcStatus};
use ferrowarp_proto::verbs::wr::{ImmediateData, Operation, Payload, RecvWr, SendWr, Sge};
use rand::Rng;

use super::closing::{check_stats, close};
use super::incident::Incident;
use super::pane::Pane;
use super::words::{Expected, WORDS_LEN, Words};
use super::world::World;

/// Port of the passive end.
pub const PORT: u16 = 18515;
/// Protection domain of everything.
const PD: u32 = 7;
/// Octets of a slot: the longest message.
const SLOT_LEN: usize = 24 * 1024;
/// Slots for each purpose and connection.
const SLOT_COUNT: usize = 8;
/// Requests and buffers outstanding.
const DEPTH: usize = 16;

/// Where things lie in the arena of an end, for connection `conn`.
#[derive(Clone, Copy)]
enum Area {
    /// Sources of Sends and Writes.
    Source,
    /// Targets of the peer's Writes.
    Target,
    /// Buffers for the peer's Sends.
    Receive,
    /// Sinks of Reads.
    Sink,
    /// What the peer Reads; never changes.
    Library,
}

fn place(conn: usize, area: Area, slot: usize) -> usize {
    WORDS_LEN + ((conn * 5 + area as usize) * SLOT_COUNT * 2 + slot) * SLOT_LEN
}

/// Octets of arena that `conns` connections need.
#[must_use]
pub const fn arena_len(conns: usize) -> usize {
    WORDS_LEN + conns * 5 * SLOT_COUNT * 2 * SLOT_LEN
}

/// The octets of message `number` of an end: all different, and telling.
fn pattern(end: usize, conn: usize, number: usize, len: usize) -> Vec<u8> {
    let base = (end * 131 + conn * 31 + number * 7) as u64;
    (0..len as u64)
        .map(|at| {
            let mixed = (base << 20 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed.to_be_bytes()[0]
        })
        .collect()
}

/// A request in flight.
struct Posted {
    number: usize,
    signaled: bool,
    opcode: WcOpcode,
    len: usize,
    slot: usize,
    library_slot: usize,
    library_offset: usize,
    /// What an atomic operation has to fetch.
    word: Option<Expected>,
}

/// A message that uses up a receive of the peer.
#[derive(Clone, Copy)]
struct Message {
    number: usize,
    len: usize,
    immediate: Option<ImmediateData>,
    invalidate: Option<u32>,
}

/// One end of one connection, and what its oracle knows.
pub(super) struct Side {
    pub(super) qp: QpId,
    stag: u32,
    posted: VecDeque<Posted>,
    next_number: usize,
    /// Sends and Immediate Data that are on their way to the peer.
    sends: VecDeque<Message>,
    /// The latest Write to each slot of the peer: number and length.
    writes: [Option<(usize, usize)>; SLOT_COUNT],
    /// Receive buffers posted in all.
    pub(super) receives: usize,
    /// Receive buffers that were used and are to be posted again.
    used: usize,
    pub(super) received: usize,
    /// Number of its latest message that was delivered, plus one.
    delivered: usize,
    /// Shows the targets to the peer, in runs with windows.
    pane: Option<Pane>,
}

/// What to post next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send,
    Read,
    Write,
    /// Never inline.
    GatherWrite,
    Atomic,
    Immediate,
    WriteImmediate,
    /// About its own window.
    Own,
}

impl Kind {
    fn draw(world: &mut World) -> Self {
        // What RFC 7306 added is of the IETF's version alone.
        let count = if world.param(0).revision == 0 { 8 } else { 10 };
        match world.chance.random_range(0..count) {
            0 | 1 => Self::Send,
            2 | 3 => Self::Read,
            4 | 5 => Self::Write,
            6 | 7 => Self::GatherWrite,
            8 => Self::Atomic,
            _ if world.chance.random_bool(0.5) => Self::Immediate,
            _ => Self::WriteImmediate,
        }
    }

    const fn uses_receive(self) -> bool {
        matches!(self, Self::Send | Self::Immediate | Self::WriteImmediate)
    }

    const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::GatherWrite | Self::WriteImmediate)
    }
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Requests completed.
    pub completed: usize,
    /// Octets moved.
    pub octets: u64,
    /// Virtual time, in nanoseconds.
    pub elapsed_ns: u64,
    /// Frames sent.
    pub frames: u64,
}

/// Sets up `conns` connections and runs `per_side` requests on each end of each; panics with the
/// reason when an oracle objects.
///
/// # Panics
/// When an oracle objects.
pub fn run(world: &mut World, conns: usize, per_side: usize) -> Report {
    let sides = connect(world, conns);
    run_on(world, sides, per_side)
}

/// The same, and some of the Writes go through memory windows that come and go.
///
/// # Panics
/// When an oracle objects.
pub fn run_with_windows(world: &mut World, conns: usize, per_side: usize) -> Report {
    let mut sides = connect(world, conns);
    for (conn, pair) in sides.iter_mut().enumerate() {
        for (end, side) in pair.iter_mut().enumerate() {
            let targets = (place(conn, Area::Target, 0) as u64, (SLOT_COUNT * SLOT_LEN) as u64);
            side.pane = Some(Pane::new(&world.ends[end], PD, side.qp, side.stag, targets));
        }
    }
    run_on(world, sides, per_side)
}

fn run_on(world: &mut World, mut sides: Vec<[Side; 2]>, per_side: usize) -> Report {
    let conns = sides.len();
    let mut words = Words::new(conns);
    let mut report = Report::default();
    let start = world.now;
    let done = world.run_until(600 * SECOND, |world| {
        let is_up = [0, 1].map(|end| !is_busy(world, end) && has_rested(world, end));
        for (conn, pair) in sides.iter_mut().enumerate() {
            for end in (0..2).filter(|&end| is_up[end]) {
                post(world, pair, &mut words, (end, conn), per_side);
                let again = if world.slowness().is_some() {
                    world.chance.random_range(0..=pair[end].used)
                } else {
                    pair[end].used
                };
                for _ in 0..again {
                    pair[end].used -= 1;
                    post_receive(world, &mut pair[end], end, conn);
                }
            }
        }
        check_events(world);
        for end in (0..2).filter(|&end| is_up[end]) {
            poll(world, &mut sides, &mut words, end, &mut report);
        }
        sides.iter().flatten().all(|side| {
            side.next_number == per_side && side.posted.is_empty() && side.sends.is_empty()
        })
    });
    assert!(
        done,
        "no progress within 600 s: {} requests done, counters {:?} and {:?}",
        report.completed,
        world.ends[0].engine.counters(),
        world.ends[1].engine.counters()
    );
    report.elapsed_ns = world.now.since(start);
    report.frames = world.frames;
    world.wakes = [None; 2];
    words.conclude(world);
    check_stats(world, &sides);
    close(world, &sides);
    report
}

fn is_busy(world: &World, end: usize) -> bool {
    world.schedule.is_on(world.now, Incident::Busy { end })
}

/// True if a slow application looks at its queues now; then it does something else for a while.
fn has_rested(world: &mut World, end: usize) -> bool {
    if world.wakes[end].is_some_and(|wake| world.now < wake) {
        return false;
    }
    let rest = world.slowness().map(|longest_ns| world.chance.random_range(0..longest_ns));
    world.wakes[end] = rest.map(|rest| world.now + rest);
    true
}

fn init(conn: usize) -> QpInit {
    let cq = CqId(u32::try_from(conn % 16).expect("small"));
    QpInit { pd: PD, send_cq: cq, recv_cq: cq, max_send_wr: DEPTH, max_recv_wr: DEPTH }
}

fn connect(world: &mut World, conns: usize) -> Vec<[Side; 2]> {
    let params = [world.param(0), world.param(1)];
    world.ends[1].engine.listen(PORT, conns).expect("the port is free");
    let stags: Vec<u32> = world
        .ends
        .iter()
        .map(|end| end.arena.register(0, arena_len(conns) as u64, Access::ALL, PD))
        .collect();
    let remote = world.socket(1, PORT);
    let mut pairs = Vec::new();
    for conn in 0..conns {
        let now = world.now;
        let active = world.ends[0].engine.create_qp(init(conn)).expect("room");
        world.ends[0].engine.connect(now, active, remote, &params[0]).expect("idle");
        let passive = world.ends[1].engine.create_qp(init(conn)).expect("room");
        let mut up = [false; 2];
        let connected = world.run_until(100 * SECOND, |world| {
            for (end, up) in up.iter_mut().enumerate() {
                while let Some(event) = world.ends[end].engine.next_event() {
                    match event {
                        Event::ConnectRequest { request, .. } => {
                            let now = world.now;
                            world.ends[1]
                                .engine
                                .accept(now, request, passive, &params[1])
                                .expect("the request is fresh");
                        }
                        Event::Established { .. } => *up = true,
                        other => panic!("unexpected {other:?}"),
                    }
                }
            }
            up == [true; 2]
        });
        assert!(connected, "connection {conn} was not set up within 100 s");
        let side = |end: usize, qp| Side {
            qp,
            stag: stags[end],
            posted: VecDeque::new(),
            next_number: 0,
            sends: VecDeque::new(),
            writes: [None; SLOT_COUNT],
            receives: 0,
            used: 0,
            received: 0,
            delivered: 0,
            pane: None,
        };
        pairs.push([side(0, active), side(1, passive)]);
    }
    for (conn, pair) in pairs.iter_mut().enumerate() {
        for (end, side) in pair.iter_mut().enumerate() {
            for slot in 0..SLOT_COUNT {
                let octets = pattern(end, conn, 1_000_000 + slot, SLOT_LEN);
                world.ends[end].arena.write(place(conn, Area::Library, slot), &octets);
            }
            for _ in 0..DEPTH {
                post_receive(world, side, end, conn);
            }
        }
    }
    pairs
}

fn post_receive(world: &mut World, side: &mut Side, end: usize, conn: usize) {
    let slot = side.receives % DEPTH;
    let start = place(conn, Area::Receive, slot);
    // In two pieces, so that scattering is exercised.
    let cut = world.chance.random_range(0..=SLOT_LEN);
    let piece = |addr: usize, len: usize| Sge {
        addr: addr as u64,
        len: u32::try_from(len).expect("a slot"),
        lkey: side.stag,
    };
    let sg_list = [piece(start, cut), piece(start + cut, SLOT_LEN - cut)].into_iter().collect();
    let wr = RecvWr { wr_id: side.receives as u64, sg_list };
    world.ends[end].engine.post_recv(side.qp, wr).expect("room for the buffer");
    side.receives += 1;
}

/// Posts as much as flow control between the two ends admits.
fn post(
    world: &mut World,
    pair: &mut [Side; 2],
    words: &mut Words,
    (end, conn): (usize, usize),
    per_side: usize,
) {
    while pair[end].next_number < per_side && pair[end].posted.len() < DEPTH {
        let (number, slot) = (pair[end].next_number, pair[end].next_number % SLOT_COUNT);
        let mut kind = Kind::draw(world);
        // Of Writes to one place that are under way together the older one may win.
        let is_settled = pair[end].writes[slot].is_none_or(|(last, _)| last < pair[end].delivered);
        if kind.writes() && world.places_early() && !is_settled {
            kind = Kind::Send;
        }
        let has_pane = pair[end].pane.is_some();
        let own = pair[end].pane.as_mut().filter(|_| world.chance.random_bool(0.2));
        let own = own.and_then(Pane::wants);
        if own.is_some() {
            kind = Kind::Own;
        }
        // A receive buffer must be there: the peer's posted ones minus those under way.
        let peer = &pair[1 - end];
        let credit = peer.receives - peer.received > pair[end].sends.len();
        if kind.uses_receive() && !credit {
            return;
        }
        let len = match world.chance.random_range(0..4) {
            0 => world.chance.random_range(0..64),
            1 => world.chance.random_range(0..2_000),
            _ => world.chance.random_range(0..=SLOT_LEN),
        };
        let source_slot = number % DEPTH;
        let source = place(conn, Area::Source, source_slot);
        let octets = pattern(end, conn, number, len);
        let len32 = u32::try_from(len).expect("a slot");
        let stag = pair[end].stag;
        let payload = if len <= 64 && kind != Kind::GatherWrite && world.chance.random_bool(0.5) {
            Payload::Inline(octets.iter().copied().collect())
        } else {
            world.ends[end].arena.write(source, &octets);
            let cut = len32 / 3;
            Payload::Gather(
                [
                    Sge { addr: source as u64, len: cut, lkey: stag },
                    Sge { addr: source as u64 + u64::from(cut), len: len32 - cut, lkey: stag },
                ]
                .into_iter()
                .collect(),
            )
        };
        let library_slot = world.chance.random_range(0..SLOT_COUNT);
        let library_offset = world.chance.random_range(0..=SLOT_LEN - len);
        let rkey = pair[1 - end].stag;
        let sink = |len| {
            let start = place(conn, Area::Sink, number % DEPTH);
            Sge { addr: start as u64, len, lkey: stag }
        };
        let target = place(conn, Area::Target, slot) as u64;
        let data = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let solicited = world.chance.random_bool(0.5);
        let mut word = None;
        let mut operation = match kind {
            Kind::Own => own.expect("just seen"),
            Kind::Send => Operation::Send { payload, solicited: false, invalidate: None },
            Kind::Read => {
                let remote = (place(conn, Area::Library, library_slot) + library_offset) as u64;
                Operation::Read { sink: sink(len32), rkey, remote }
            }
            Kind::Write | Kind::GatherWrite => Operation::Write { payload, rkey, remote: target },
            Kind::Atomic => {
                let (op, remote, expected) = words.draw(&mut world.chance, end, conn);
                word = Some(expected);
                Operation::Atomic { op, sink: sink(8), rkey, remote }
            }
            Kind::Immediate => Operation::Immediate { data, solicited },
            Kind::WriteImmediate => {
                Operation::WriteImmediate { payload, rkey, remote: target, data, solicited }
            }
        };
        if has_pane
            && world.chance.random_bool(0.3)
            && let Some(pane) = &mut pair[1 - end].pane
        {
            pane.lend(&mut operation, number, slot * SLOT_LEN);
        }
        let (opcode, len) = (WcOpcode::from(&operation), operation.len());
        let len = usize::try_from(len).expect("a slot");
        if kind.uses_receive() {
            let immediate = (kind != Kind::Send).then_some(data);
            let invalidate = match operation {
                Operation::Send { invalidate, .. } => invalidate,
                _ => None,
            };
            pair[end].sends.push_back(Message { number, len, immediate, invalidate });
        }
        if opcode == WcOpcode::Write {
            pair[end].writes[slot] = Some((number, len));
        }
        let signaled = world.chance.random_bool(0.7) || number + 1 == per_side;
        let fence = world.chance.random_bool(0.1);
        let wr = SendWr { wr_id: number as u64, operation, signaled, fence };
        let qp = pair[end].qp;
        if world.ends[end].engine.post_send(qp, wr).is_err() {
            panic!("the send queue of end {end} refused request {number}");
        }
        pair[end].next_number += 1;
        pair[end].posted.push_back(Posted {
            number,
            signaled,
            opcode,
            len,
            slot: number % DEPTH,
            library_slot,
            library_offset,
            word,
        });
    }
}

fn poll(
    world: &mut World,
    sides: &mut [[Side; 2]],
    words: &mut Words,
    end: usize,
    report: &mut Report,
) {
    for cq in 0..16 {
        while let Some(wc) = world.ends[end].queues.poll(CqId(cq)) {
            assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
            let conn = sides.iter().position(|pair| pair[end].qp == wc.qp).expect("a known QP");
            if wc.opcode.is_receive() {
                check_receive(world, &mut sides[conn], end, conn, &wc);
                continue;
            }
            let side = &mut sides[conn][end];
            loop {
                let posted = side.posted.pop_front().expect("a completion without a request");
                report.completed += 1;
                report.octets += posted.len as u64;
                if posted.opcode == WcOpcode::Read {
                    check_read(world, end, conn, &posted);
                }
                if let WcOpcode::Bind | WcOpcode::Invalidate = posted.opcode {
                    let pane = side.pane.as_mut().expect("a run with windows");
                    pane.posted_done(&world.ends[end]);
                }
                if let Some(expected) = posted.word {
                    let sink = place(conn, Area::Sink, posted.slot);
                    let fetched = world.ends[end].arena.read(sink, ATOMIC_LEN);
                    words.check(end, conn, expected, &fetched);
                }
                if posted.number as u64 == wc.wr_id {
                    assert!(posted.signaled, "request {} asked for no completion", wc.wr_id);
                    assert_eq!((posted.opcode, posted.len), (wc.opcode, wc.byte_len as usize));
                    break;
                }
                assert!(!posted.signaled, "request {} was skipped", posted.number);
            }
        }
    }
}

/// A Send or Immediate Data arrived: it is the oldest under way, its octets are right, and every
/// Write before it is in memory.
fn check_receive(world: &mut World, pair: &mut [Side; 2], end: usize, conn: usize, wc: &Wc) {
    let from = 1 - end;
    let wr_id = wc.wr_id;
    assert_eq!(wr_id, pair[end].received as u64, "receive buffers complete in order");
    pair[end].received += 1;
    let sent = pair[from].sends.pop_front().expect("a message that nobody sent");
    let number = sent.number;
    pair[from].delivered = number + 1;
    assert_eq!(wc.immediate, sent.immediate, "immediate data of message {number}");
    assert_eq!(wc.opcode == WcOpcode::Recv, sent.immediate.is_none(), "kind of message {number}");
    // Immediate Data leave the buffer as it is.
    let len = if sent.immediate.is_some() { 0 } else { sent.len };
    assert_eq!(wc.byte_len as usize, len, "length of message {number}");
    if let Some(pane) = &mut pair[end].pane {
        pane.received(&world.ends[end], number, wc, sent.invalidate);
    }
    let slot = usize::try_from(wr_id).expect("small") % DEPTH;
    let got = world.ends[end].arena.read(place(conn, Area::Receive, slot), len);
    assert!(got == pattern(from, conn, number, len), "octets of message {number} differ");
    for (slot, write) in pair[from].writes.iter().enumerate() {
        let Some((written, len)) = *write else { continue };
        // The Write of one with immediate data has its number.
        if written <= number {
            let got = world.ends[end].arena.read(place(conn, Area::Target, slot), len);
            assert!(
                got == pattern(from, conn, written, len),
                "Write {written} is not in memory when message {number} is delivered"
            );
        }
    }
    pair[end].used += 1;
}

fn check_read(world: &World, end: usize, conn: usize, posted: &Posted) {
    let whole = pattern(1 - end, conn, 1_000_000 + posted.library_slot, SLOT_LEN);
    let expected = &whole[posted.library_offset..posted.library_offset + posted.len];
    let got = world.ends[end].arena.read(place(conn, Area::Sink, posted.slot), posted.len);
    assert!(got == expected, "octets of Read {} differ", posted.number);
}

fn check_events(world: &mut World) {
    for end in &mut world.ends {
        if let Some(event) = end.engine.next_event() {
            panic!("unexpected {event:?}");
        }
    }
}
