//! RFC 7306 on connections that end with work in flight. Several connections at a time use the same
//! 64-bit words, which are also accessed by the local CPU of each end. Each connection that ended
//! is followed by another one.
//!
//! An atomic operation that completed was executed once, in order with the Reads. One that did not
//! complete may have been executed, but not twice, not after one that was not executed, and not
//! after the end with the word reported the end of the connection. Messages arrive in the order in
//! which they were posted, Immediate Data among the Sends, up to the end of the connection.

use std::collections::VecDeque;

use ferrowarp_proto::ddp::atomic::{ATOMIC_LEN, AtomicOp};
use ferrowarp_proto::ddp::memory::Memory;
use ferrowarp_proto::time::{Instant, MILLISECOND, SECOND};
use ferrowarp_proto::verbs::cm::Abort;
use ferrowarp_proto::verbs::wc::{CqId, QpId, WcOpcode};
use ferrowarp_proto::verbs::wr::ImmediateData;
use rand::Rng;

use self::setup::{connect, handle_events};
use self::shared_words::SharedWords;
use super::atomic_oracle::{SHARED_COUNT, load_word};
use super::end_checks::check_nothing_left;
use super::world::World;

mod completions;
mod requests;
mod setup;
mod shared_words;

/// Port of the first connection; each connection has its own.
const PORT: u16 = 20_049;
const PD: u32 = 9;
/// Requests and receives outstanding.
const DEPTH: usize = 8;
/// Length of a Send, and of a receive buffer, in bytes.
const MESSAGE_LEN: usize = 16;
/// Length of the region for block Reads in bytes: more than fits a segment.
const READ_SOURCE_LEN: usize = 4000;
/// Bytes shared by all connections.
const COMMON_LEN: usize = ATOMIC_LEN * SHARED_COUNT + READ_SOURCE_LEN;
/// Bytes of a connection's own: see [`Area`].
const OWN_LEN: usize = DEPTH * (READ_SOURCE_LEN + 2 * ATOMIC_LEN + MESSAGE_LEN);
/// Maximum number of connections in one slot until one completes its work.
const ATTEMPTS_MAX: usize = 60;

/// Memory of a single connection.
#[derive(Clone, Copy)]
enum Area {
    /// Sinks of Reads and atomic operations.
    Sink,
    /// Targets of Writes with Immediate Data.
    Target,
    /// Receive buffers.
    Receive,
}

fn addr_of(conn: usize, area: Area, number: u64) -> usize {
    let (before, len, count) = match area {
        Area::Sink => (0, READ_SOURCE_LEN, DEPTH),
        // The sender does not know which of its latest Writes have been noticed.
        Area::Target => (READ_SOURCE_LEN, ATOMIC_LEN, 2 * DEPTH),
        Area::Receive => (READ_SOURCE_LEN + 2 * ATOMIC_LEN, MESSAGE_LEN, DEPTH),
    };
    let slot = usize::try_from(number).expect("small") % count;
    COMMON_LEN + conn * OWN_LEN + DEPTH * before + slot * len
}

/// Arena length in bytes for `conns` connections.
#[must_use]
pub const fn arena_len(conns: usize) -> usize {
    COMMON_LEN + conns * OWN_LEN
}

fn read_source() -> Vec<u8> {
    (0..READ_SOURCE_LEN).map(|at| u8::try_from(at % 251).expect("an octet")).collect()
}

/// Purpose of a request.
#[derive(Clone, Copy, Debug)]
enum Task {
    /// Atomic operation on a word; `None` is a Read.
    AccessWord { word: usize, op: Option<AtomicOp> },
    /// A Read of the first bytes of the block.
    ReadBlock { len: u32 },
    /// A message to the peer.
    Message,
    /// An atomic operation that the peer has to refuse.
    InvalidAtomic,
}

struct Posted {
    number: u64,
    opcode: WcOpcode,
    task: Task,
}

/// A message to the peer.
#[derive(Clone, Copy)]
struct Message {
    data: ImmediateData,
    opcode: WcOpcode,
    solicited: bool,
}

/// One end of a connection.
struct Side {
    qp: QpId,
    /// STag of the words and the block.
    common: u32,
    /// STag of the connection's own memory.
    own: u32,
    /// Its process number in the history of each of the peer's words.
    users: [usize; SHARED_COUNT],
    posted: VecDeque<Posted>,
    posted_count: u64,
    messages: Vec<Message>,
    receives: u64,
    received: u64,
    accepted: bool,
    is_up: bool,
    has_ended: bool,
    /// An atomic operation or Read failed: no later one may complete.
    has_failed: bool,
    /// A request was refused.
    post_refused: bool,
}

/// Planned end of a connection.
#[derive(Clone, Copy, Debug)]
enum EndPlan {
    /// The connection is not up yet.
    NotUp,
    /// The connection will be ended at this time.
    EndAt(Instant),
    /// The connection was ended; at this time it is disconnected if an end does not know yet.
    EndBy(Instant),
    /// All requests are to complete.
    RunToCompletion,
}

impl EndPlan {
    const fn deadline(self) -> Option<Instant> {
        match self {
            Self::EndAt(date) | Self::EndBy(date) => Some(date),
            Self::NotUp | Self::RunToCompletion => None,
        }
    }
}

/// A slot for connections, of which a new one follows one that ended.
struct ConnSlot {
    sides: [Side; 2],
    /// Connections that are still to end with work in flight.
    ends_left: usize,
    attempts: usize,
    end_plan: EndPlan,
    is_over: bool,
}

/// Result of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Operations on words that were invoked.
    pub asked: usize,
    /// Those of them that completed.
    pub completed: usize,
    /// Messages received.
    pub received: u64,
}

/// Runs `conns` connections at a time. In each slot, `ends` connections end with work in flight,
/// then one completes. Each end of each connection has `per_side` requests. The link is faulty for
/// `lasts_ns`.
///
/// # Panics
/// If an oracle finds an error.
pub fn run(world: &mut World, conns: usize, ends: usize, per_side: u64, lasts_ns: u64) -> Report {
    let mut contests = SharedWords::new();
    let mut report = Report::default();
    for end in 0..2 {
        world.ends[end].arena.write(ATOMIC_LEN * SHARED_COUNT, &read_source());
    }
    let mut seats = Vec::new();
    for conn in 0..conns {
        world.ends[1].engine.listen(port(conn), 4).expect("the port is free");
        seats.push(ConnSlot::new(world, &mut contests, conn, ends));
    }
    let heals = world.now + lasts_ns;
    let done = world.run_until(4000 * SECOND, |world| {
        if world.now >= heals {
            world.clear_faults();
        }
        contests.observe_changes(world);
        if world.rng.random_bool(0.1) {
            let end = world.rng.random_range(0..2);
            contests.local_op(world, end);
        }
        handle_events(world, &mut seats, &mut contests);
        for (conn, seat) in seats.iter_mut().enumerate().filter(|(_, seat)| !seat.is_over) {
            seat.step(world, &mut contests, conn, per_side, &mut report);
        }
        // Times that have passed need no wakeup.
        let dates = seats.iter().filter_map(|seat| seat.end_plan.deadline()).chain([heals]);
        world.app_wakeups[0] = dates.filter(|&date| date > world.now).min();
        seats.iter().all(|seat| seat.is_over)
    });
    assert!(done, "neither complete nor over");
    world.app_wakeups = [None; 2];
    world.clear_faults();
    let gone = world.run_until(200 * SECOND, |world| {
        world.ends.iter().all(|end| end.engine.connection_count() == 0)
    });
    assert!(gone, "connections stay after the end");
    for (end, words) in contests.words.iter().enumerate() {
        for (number, contest) in words.iter().enumerate() {
            contest.check_history(load_word(world, end, ATOMIC_LEN * number));
            let (asked, completed) = contest.len();
            report.asked += asked;
            report.completed += completed;
        }
    }
    check_nothing_left(world);
    report
}

fn port(conn: usize) -> u16 {
    PORT + u16::try_from(conn).expect("few connections")
}

impl ConnSlot {
    fn new(world: &mut World, contests: &mut SharedWords, conn: usize, ends: usize) -> Self {
        let sides = connect(world, contests, conn);
        Self { sides, ends_left: ends, attempts: 1, end_plan: EndPlan::NotUp, is_over: false }
    }

    /// Posts and polls; ends the connection as planned and starts the next one.
    fn step(
        &mut self,
        world: &mut World,
        contests: &mut SharedWords,
        conn: usize,
        per_side: u64,
        report: &mut Report,
    ) {
        for end in 0..2 {
            self.poll(world, contests, end, conn);
            while self.post(world, contests, (end, conn), per_side) {}
        }
        let [active, passive] = &self.sides;
        let is_told = active.has_ended && (passive.has_ended || !passive.accepted);
        let is_up = self.sides.iter().all(|side| side.is_up);
        if is_told && self.sides.iter().all(|side| side.posted.is_empty()) {
            let is_complete = self.is_complete(per_side);
            self.destroy(world, report);
            if self.ends_left == 0 && is_complete {
                self.is_over = true;
                return;
            }
            self.ends_left = self.ends_left.saturating_sub(usize::from(is_up));
            self.attempts += 1;
            assert!(self.attempts < ATTEMPTS_MAX, "no connection goes well");
            self.sides = connect(world, contests, conn);
            self.end_plan = EndPlan::NotUp;
        } else if is_up {
            self.advance_end_plan(world, conn, per_side);
        }
    }

    fn advance_end_plan(&mut self, world: &mut World, conn: usize, per_side: u64) {
        let now = world.now;
        match self.end_plan {
            EndPlan::NotUp if self.ends_left == 0 => self.end_plan = EndPlan::RunToCompletion,
            EndPlan::NotUp => {
                let timeout = world.rng.random_range(0..5 * MILLISECOND);
                self.end_plan = EndPlan::EndAt(now + timeout);
            }
            EndPlan::EndAt(date) if now >= date => {
                self.end_plan = EndPlan::EndBy(now + 5 * SECOND);
                let end = world.rng.random_range(0..2);
                self.end_connection(world, end, conn);
            }
            EndPlan::EndBy(date) if now >= date => self.disconnect(world),
            EndPlan::RunToCompletion if self.is_complete(per_side) => self.disconnect(world),
            _ => {}
        }
    }

    /// Ends the connection in one of several ways.
    fn end_connection(&mut self, world: &mut World, end: usize, conn: usize) {
        let (now, qp) = (world.now, self.sides[end].qp);
        let engine = &mut world.ends[end].engine;
        // It may have ended already.
        let _ = match world.rng.random_range(0..5) {
            0 => engine.disconnect(now, qp),
            1 => engine.close(now, qp),
            2 => {
                world.ends[end].arena.regions().invalidate(self.sides[end].common);
                Ok(())
            }
            3 if self.post_invalid_atomic(world, end, conn) => Ok(()),
            _ => world.ends[end].engine.terminate(now, qp, Abort::Operation),
        };
    }

    fn disconnect(&self, world: &mut World) {
        for (end, side) in self.sides.iter().enumerate() {
            let _ = world.ends[end].engine.disconnect(world.now, side.qp);
        }
    }

    /// True if all requests of both ends have completed and all messages were received.
    fn is_complete(&self, per_side: u64) -> bool {
        (0..2).all(|end| {
            let (side, peer) = (&self.sides[end], &self.sides[1 - end]);
            let is_done = side.posted_count == per_side && side.posted.is_empty();
            is_done
                && !side.post_refused
                && !side.has_failed
                && peer.received == side.messages.len() as u64
        })
    }

    /// Destroys a connection that has ended at both ends.
    fn destroy(&self, world: &mut World, report: &mut Report) {
        for (end, side) in self.sides.iter().enumerate() {
            report.received += side.received;
            world.ends[end].engine.destroy_qp(world.now, side.qp);
            let regions = world.ends[end].arena.regions();
            for stag in [side.common, side.own] {
                regions.invalidate(stag);
                regions.release(stag);
            }
        }
    }
}

fn cq(conn: usize) -> CqId {
    CqId(u32::try_from(conn).expect("few connections"))
}
