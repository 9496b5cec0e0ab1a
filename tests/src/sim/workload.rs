//! Random work, and the oracles: bytes match, order holds, each request completes once, progress
//! goes on.

use std::collections::VecDeque;

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::engine::Usage;
use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::cm::{ConnParam, Event};
use ferrowarp_proto::verbs::qp::QpInit;
use ferrowarp_proto::verbs::wc::{CqId, QpId, WcOpcode, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, Payload, RecvWr, SendWr, Sge};
use rand::Rng;

use super::incident::Incident;
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
    ((conn * 5 + area as usize) * SLOT_COUNT * 2 + slot) * SLOT_LEN
}

/// Octets of arena that `conns` connections need.
#[must_use]
pub const fn arena_len(conns: usize) -> usize {
    conns * 5 * SLOT_COUNT * 2 * SLOT_LEN
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
}

/// One end of one connection, and what its oracle knows.
struct Side {
    qp: QpId,
    stag: u32,
    posted: VecDeque<Posted>,
    next_number: usize,
    /// Number and length of the Sends that are on their way to the peer.
    sends: VecDeque<(usize, usize)>,
    /// The latest Write to each slot of the peer: number and length.
    writes: [Option<(usize, usize)>; SLOT_COUNT],
    /// Receive buffers posted in all.
    receives: usize,
    received: usize,
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
    let mut sides = connect(world, conns);
    let mut report = Report::default();
    let start = world.now;
    let done = world.run_until(600 * SECOND, |world| {
        for (conn, pair) in sides.iter_mut().enumerate() {
            for end in 0..2 {
                if !is_busy(world, end) {
                    post(world, pair, end, conn, per_side);
                }
            }
        }
        check_events(world);
        for end in 0..2 {
            if !is_busy(world, end) {
                poll(world, &mut sides, end, &mut report);
            }
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
    check_stats(world, &sides);
    close(world, &sides);
    report
}

fn is_busy(world: &World, end: usize) -> bool {
    world.schedule.is_on(world.now, Incident::Busy { end })
}

/// All that one end counts as sent the other one counts as received.
fn check_stats(world: &mut World, sides: &[[Side; 2]]) {
    let agreed = world.run_until(100 * SECOND, |world| {
        sides.iter().all(|pair| {
            let stats = |end: usize| {
                world.ends[end].engine.tcp_stats(pair[end].qp).expect("still connected")
            };
            let (a, b) = (stats(0), stats(1));
            (a.octets_out, b.octets_out) == (b.octets_in, a.octets_in)
        })
    });
    assert!(agreed, "octets sent and octets received differ");
    let counted: u64 = world.ends.iter().map(|end| end.engine.counters().frames_out).sum();
    assert_eq!(counted, world.frames, "frames");
}

fn init(conn: usize) -> QpInit {
    let cq = CqId(u32::try_from(conn % 16).expect("small"));
    QpInit { pd: PD, send_cq: cq, recv_cq: cq, max_send_wr: DEPTH, max_recv_wr: DEPTH }
}

fn connect(world: &mut World, conns: usize) -> Vec<[Side; 2]> {
    let param = ConnParam::default();
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
        world.ends[0].engine.connect(now, active, remote, &param).expect("idle");
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
                                .accept(now, request, passive, &param)
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
            received: 0,
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
fn post(world: &mut World, pair: &mut [Side; 2], end: usize, conn: usize, per_side: usize) {
    while pair[end].next_number < per_side && pair[end].posted.len() < DEPTH {
        let (number, slot) = (pair[end].next_number, pair[end].next_number % SLOT_COUNT);
        let kind = world.chance.random_range(0..4);
        // A receive buffer must be there: the peer's posted ones minus those under way.
        let peer = &pair[1 - end];
        let credit = peer.receives - peer.received > pair[end].sends.len();
        if kind == 0 && !credit {
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
        let payload = if len <= 64 && kind != 2 && world.chance.random_bool(0.5) {
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
        let (opcode, operation) = match kind {
            0 => {
                pair[end].sends.push_back((number, len));
                (WcOpcode::Send, Operation::Send { payload, solicited: false, invalidate: None })
            }
            1 => {
                let sink_slot = number % DEPTH;
                let sink =
                    Sge { addr: place(conn, Area::Sink, sink_slot) as u64, len: len32, lkey: stag };
                let remote = (place(conn, Area::Library, library_slot) + library_offset) as u64;
                (WcOpcode::Read, Operation::Read { sink, rkey, remote })
            }
            _ => {
                pair[end].writes[slot] = Some((number, len));
                let remote = place(conn, Area::Target, slot) as u64;
                (WcOpcode::Write, Operation::Write { payload, rkey, remote })
            }
        };
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
        });
    }
}

fn poll(world: &mut World, sides: &mut [[Side; 2]], end: usize, report: &mut Report) {
    for cq in 0..16 {
        while let Some(wc) = world.ends[end].queues.poll(CqId(cq)) {
            assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
            let conn = sides.iter().position(|pair| pair[end].qp == wc.qp).expect("a known QP");
            if wc.opcode == WcOpcode::Recv {
                check_receive(world, &mut sides[conn], end, conn, wc.wr_id, wc.byte_len);
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

/// A Send arrived: it is the oldest under way, its octets are right, and every Write before it
/// is in memory.
fn check_receive(
    world: &mut World,
    pair: &mut [Side; 2],
    end: usize,
    conn: usize,
    wr_id: u64,
    len: u32,
) {
    let from = 1 - end;
    assert_eq!(wr_id, pair[end].received as u64, "receive buffers complete in order");
    pair[end].received += 1;
    let (number, sent_len) = pair[from].sends.pop_front().expect("a Send that nobody sent");
    assert_eq!(len as usize, sent_len, "length of message {number}");
    let slot = usize::try_from(wr_id).expect("small") % DEPTH;
    let got = world.ends[end].arena.read(place(conn, Area::Receive, slot), sent_len);
    assert!(got == pattern(from, conn, number, sent_len), "octets of message {number} differ");
    for (slot, write) in pair[from].writes.iter().enumerate() {
        let Some((written, len)) = *write else { continue };
        if written < number {
            let got = world.ends[end].arena.read(place(conn, Area::Target, slot), len);
            assert!(
                got == pattern(from, conn, written, len),
                "Write {written} is not in memory when Send {number} is delivered"
            );
        }
    }
    post_receive(world, &mut pair[end], end, conn);
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

/// Ends every connection: nothing is lost, nothing stays, every frame comes home.
fn close(world: &mut World, sides: &[[Side; 2]]) {
    world.heal();
    let now = world.now;
    for pair in sides {
        world.ends[0].engine.disconnect(now, pair[0].qp).expect("connected");
    }
    let gone = world.run_until(100 * SECOND, |world| {
        world.ends.iter().all(|end| end.engine.connection_count() == 0)
    });
    assert!(gone, "connections stay after the end");
    for (index, end) in world.ends.iter_mut().enumerate() {
        let mut ended = 0;
        while let Some(event) = end.engine.next_event() {
            assert!(matches!(event, Event::Disconnected { .. }), "unexpected {event:?}");
            ended += 1;
        }
        assert_eq!(ended, sides.len(), "each queue pair of end {index} learns of its end once");
        let mut flushed = 0;
        for cq in 0..16 {
            while let Some(wc) = end.queues.poll(CqId(cq)) {
                assert_eq!((wc.status, wc.opcode), (WcStatus::Flushed, WcOpcode::Recv));
                flushed += 1;
            }
        }
        let open: usize =
            sides.iter().map(|pair| pair[index].receives - pair[index].received).sum();
        assert_eq!(flushed, open, "each buffer of end {index} is flushed once");
    }
    check_nothing_left(world);
}

/// With no connection left, nothing is in use.
///
/// # Panics
/// If something is.
pub fn check_nothing_left(world: &mut World) {
    // Long enough for any timer.
    let now = world.now + 700 * SECOND;
    for (index, end) in world.ends.iter_mut().enumerate() {
        assert_eq!(end.engine.device().lent(), 0, "frames of end {index} did not come home");
        let usage = end.engine.usage();
        assert_eq!(usage, Usage { timers: usage.timers, ..Usage::default() }, "end {index}");
        for _ in 0..4 {
            end.engine.drive(now);
        }
        assert_eq!(end.engine.usage(), Usage::default(), "end {index}");
    }
}
