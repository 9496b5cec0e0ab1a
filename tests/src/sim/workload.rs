//! Random work and its oracles: data match, order is kept, each request completes once, and the run
//! makes progress.

use std::collections::VecDeque;

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::cm::{ConnectError, Event};
use ferrowarp_proto::verbs::qp::QpInit;
use ferrowarp_proto::verbs::wc::{CqId, QpId, WcOpcode};
use ferrowarp_proto::verbs::wr::{ImmediateData, RecvWr, Sge};
use rand::Rng;

use self::completions::poll;
use self::requests::post;

use super::atomic_oracle::{AtomicOracle, Expected, WORDS_LEN};
use super::end_checks::{check_byte_counters, check_disconnects, disconnect_all};
use super::fault_schedule::ScheduledFault;
use super::link::Faults;
use super::mw_workload::MemoryWindow;
use super::world::World;
use crate::pattern;

mod completions;
mod requests;

/// Port of the passive end.
pub const PORT: u16 = 18515;
/// Protection domain of all queue pairs and regions.
const PD: u32 = 7;
/// Slot length in bytes: the longest message.
const SLOT_LEN: usize = 24 * 1024;
/// Slots in each area of a connection.
const SLOT_COUNT: usize = 8;
/// Requests and receives outstanding.
const DEPTH: usize = 16;

/// Areas of connection `conn` in the arena of an end.
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
    /// Data that the peer reads; never changes.
    ReadSource,
}

fn addr_of(conn: usize, area: Area, slot: usize) -> usize {
    WORDS_LEN + ((conn * 5 + area as usize) * SLOT_COUNT * 2 + slot) * SLOT_LEN
}

/// Arena length in bytes for `conns` connections.
#[must_use]
pub const fn arena_len(conns: usize) -> usize {
    WORDS_LEN + conns * 5 * SLOT_COUNT * 2 * SLOT_LEN
}

/// The bytes of message `number` of an end: different for each message and offset.
fn message(end: usize, conn: usize, number: usize, len: usize) -> Vec<u8> {
    pattern((end * 131 + conn * 31 + number * 7) as u64, len)
}

/// A posted request.
struct Posted {
    number: usize,
    signaled: bool,
    opcode: WcOpcode,
    len: usize,
    slot: usize,
    read_slot: usize,
    read_offset: usize,
    /// Expected result of an access to a word.
    word: Option<Expected>,
}

/// A message that consumes a receive of the peer.
#[derive(Clone, Copy)]
struct Message {
    number: usize,
    len: usize,
    immediate: Option<ImmediateData>,
    invalidate: Option<u32>,
    solicited: bool,
}

/// One end of one connection, and the state of its oracle.
pub(super) struct Side {
    pub(super) qp: QpId,
    stag: u32,
    posted: VecDeque<Posted>,
    next_number: usize,
    /// Sends and Immediate Data in flight to the peer.
    sends: VecDeque<Message>,
    /// Latest Write to each slot of the peer: number and length.
    writes: [Option<(usize, usize)>; SLOT_COUNT],
    /// Number of receives posted so far.
    pub(super) receives: usize,
    /// Completed receives to be posted again.
    to_repost: usize,
    pub(super) received: usize,
    /// Number of receives flushed.
    pub(super) flushed: usize,
    /// Number of its latest delivered message, plus one.
    delivered: usize,
    /// Memory window over the targets, in runs with windows.
    window: Option<MemoryWindow>,
}

/// Result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Requests completed.
    pub completed: usize,
    /// Bytes transferred.
    pub bytes: u64,
    /// Virtual time, in nanoseconds.
    pub elapsed_ns: u64,
    /// Frames sent.
    pub frames: u64,
}

/// Connects `conns` connections and runs `per_side` requests at each end of each.
///
/// # Panics
/// If an oracle finds an error.
pub fn run(world: &mut World, conns: usize, per_side: usize) -> Report {
    let sides = connect(world, conns);
    run_on(world, sides, per_side)
}

/// Like [`run`], but some Writes go through memory windows, bound and invalidated repeatedly.
///
/// # Panics
/// If an oracle finds an error.
pub fn run_with_mws(world: &mut World, conns: usize, per_side: usize) -> Report {
    let mut sides = connect(world, conns);
    for (conn, pair) in sides.iter_mut().enumerate() {
        for (end, side) in pair.iter_mut().enumerate() {
            let targets = (addr_of(conn, Area::Target, 0) as u64, (SLOT_COUNT * SLOT_LEN) as u64);
            side.window =
                Some(MemoryWindow::new(&world.ends[end], PD, side.qp, side.stag, targets));
        }
    }
    run_on(world, sides, per_side)
}

fn run_on(world: &mut World, mut sides: Vec<[Side; 2]>, per_side: usize) -> Report {
    let conns = sides.len();
    let mut words = AtomicOracle::new(conns);
    let mut report = Report::default();
    let start = world.now;
    let done = world.run_until(600 * SECOND, |world| {
        let is_up = [0, 1].map(|end| !app_is_busy(world, end) && app_is_due(world, end));
        for (conn, pair) in sides.iter_mut().enumerate() {
            for end in (0..2).filter(|&end| is_up[end]) {
                post(world, pair, &mut words, (end, conn), per_side);
                let again = if world.app_delay_max_ns().is_some() {
                    world.rng.random_range(0..=pair[end].to_repost)
                } else {
                    pair[end].to_repost
                };
                for _ in 0..again {
                    pair[end].to_repost -= 1;
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
    world.app_wakeups = [None; 2];
    check_byte_counters(world, &sides);
    words.check_final(world);
    if world.rng.random_bool(0.5) {
        close_under_load(world, &mut sides, &mut words, per_side);
    } else {
        disconnect_all(world, &sides);
    }
    report
}

/// Closes every connection at end 0 with requests outstanding: those posted before the close are
/// carried out and complete. End 1 has none, and closes in turn.
fn close_under_load(
    world: &mut World,
    sides: &mut [[Side; 2]],
    words: &mut AtomicOracle,
    per_side: usize,
) {
    world.clear_faults();
    // Low enough a loss rate for progress within the linger time.
    world.set_faults(Faults { loss: 0.02, delay_ns: 10_000, ..Faults::NONE });
    let mut report = Report::default();
    for (conn, pair) in sides.iter_mut().enumerate() {
        post(world, pair, words, (0, conn), per_side + DEPTH);
        let now = world.now;
        world.ends[0].engine.close(now, pair[0].qp).expect("connected");
    }
    world.run_until(600 * SECOND, |world| {
        for end in 0..2 {
            poll(world, sides, words, end, &mut report);
        }
        sides.iter().all(|pair| pair[0].posted.is_empty() && pair[0].sends.is_empty())
    });
    let left: usize = sides.iter().map(|[side, _]| side.posted.len() + side.sends.len()).sum();
    assert_eq!(left, 0, "requests posted before the end, or their messages, were lost");
    world.clear_faults();
    check_disconnects(world, sides);
    words.check_final(world);
}

fn app_is_busy(world: &World, end: usize) -> bool {
    world.schedule.is_active(world.now, ScheduledFault::AppBusy { end })
}

/// True if the application polls now; a slow one is then not due again for a random time.
fn app_is_due(world: &mut World, end: usize) -> bool {
    if world.app_wakeups[end].is_some_and(|wake| world.now < wake) {
        return false;
    }
    let rest = world.app_delay_max_ns().map(|longest_ns| world.rng.random_range(0..longest_ns));
    world.app_wakeups[end] = rest.map(|rest| world.now + rest);
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
        let mut active = world.ends[0].engine.create_qp(init(conn)).expect("room");
        world.ends[0].engine.connect(now, active, remote, &params[0]).expect("idle");
        let passive = world.ends[1].engine.create_qp(init(conn)).expect("room");
        let mut up = [false; 2];
        let mut asked = false;
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
                            asked = true;
                        }
                        // All neighbor solicitations were lost: try again.
                        Event::ConnectFailed { error: ConnectError::TimedOut, .. } if !asked => {
                            let (now, engine) = (world.now, &mut world.ends[0].engine);
                            engine.destroy_qp(now, active);
                            active = engine.create_qp(init(conn)).expect("room");
                            engine.connect(now, active, remote, &params[0]).expect("idle");
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
            to_repost: 0,
            received: 0,
            flushed: 0,
            delivered: 0,
            window: None,
        };
        pairs.push([side(0, active), side(1, passive)]);
    }
    for (conn, pair) in pairs.iter_mut().enumerate() {
        for (end, side) in pair.iter_mut().enumerate() {
            for slot in 0..SLOT_COUNT {
                let bytes = message(end, conn, 1_000_000 + slot, SLOT_LEN);
                world.ends[end].arena.write(addr_of(conn, Area::ReadSource, slot), &bytes);
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
    let start = addr_of(conn, Area::Receive, slot);
    // Two SGEs, to exercise scattering.
    let cut = world.rng.random_range(0..=SLOT_LEN);
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

fn check_events(world: &mut World) {
    for end in &mut world.ends {
        if let Some(event) = end.engine.next_event() {
            panic!("unexpected {event:?}");
        }
    }
}
