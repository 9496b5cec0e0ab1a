//! Random work on connections, and its oracle.
//!
//! Each request completes once and in order, whatever its status. The oldest message in flight is
//! received first, after all earlier Writes have been placed. Data match. Atomic operations are
//! executed once, in order with the Reads. Each queue pair reports its end once; each receive
//! completes once. With [`EndPlan::Completes`] all requests succeed, and the run makes progress.

use std::collections::VecDeque;
use std::path::PathBuf;

use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::wc::{QpId, WcOpcode};
use ferrowarp_proto::verbs::wr::{ImmediateData, RecvWr, Sge};
use rand::Rng;
use rand::rngs::SmallRng;

use self::connections::ConnSlot;
pub use self::requests::{Kind, any_kind, mostly_shared_words};

use super::atomic_oracle::{AtomicOracle, Expected, WORDS_LEN};
use super::fault_schedule::ScheduledFault;
use super::mw_workload::MemoryWindow;
use super::segment_mutator::SegmentMutator;
use super::world::{World, WorldOptions};
use crate::pattern;

mod completions;
mod connections;
mod end;
mod requests;

/// Slot length in bytes: the longest message.
const SLOT_LEN: usize = 24 * 1024;
/// Slots in each area of a connection; requests and receives outstanding.
const DEPTH: usize = 16;
/// Slots used of the targets, and of the sources of Reads.
const TARGET_COUNT: usize = 8;

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

fn addr_of(conn: usize, area: Area, number: usize) -> usize {
    WORDS_LEN + ((conn * 5 + area as usize) * DEPTH + number % DEPTH) * SLOT_LEN
}

/// Arena length in bytes for `conns` connections.
#[must_use]
pub const fn arena_len(conns: usize) -> usize {
    WORDS_LEN + conns * 5 * DEPTH * SLOT_LEN
}

/// The contents of a source of Reads.
fn read_source(end: usize, conn: usize, slot: usize) -> Vec<u8> {
    pattern(1 << 43 | (conn << 8 | slot << 1 | end) as u64, SLOT_LEN)
}

/// Expected effect of a request.
#[derive(Clone, Copy, Debug)]
enum Effect {
    /// None at the end that posts it.
    Nothing,
    /// A Read returns the bytes at this offset in this slot of the peer's sources of Reads.
    Fetches { slot: usize, offset: usize },
    /// An access to a word has this result.
    Word(Expected),
    /// The memory window changes its state.
    Window,
    /// The peer refuses it.
    Refused,
}

/// A posted request.
struct Posted {
    number: usize,
    signaled: bool,
    opcode: WcOpcode,
    len: usize,
    effect: Effect,
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
struct Side {
    qp: QpId,
    /// STag of the whole arena.
    stag: u32,
    /// STag of the shared words alone, with the access rights they need.
    words_stag: u32,
    /// Chooses the contents of its messages.
    salt: u32,
    posted: VecDeque<Posted>,
    posted_count: usize,
    /// Messages in flight to the peer.
    sends: VecDeque<Message>,
    /// Latest Write to each slot of the peer: number and length.
    writes: [Option<(usize, usize)>; TARGET_COUNT],
    /// Number of receives posted so far.
    receives: usize,
    /// Completed receives to be posted again.
    to_repost: usize,
    received: usize,
    /// Number of receives that completed without a message.
    flushed: usize,
    /// Number of its latest delivered message, plus one.
    delivered: usize,
    /// Memory window over the targets, in runs with windows.
    window: Option<MemoryWindow>,
    accepted: bool,
    is_up: bool,
    has_ended: bool,
    /// A request failed.
    has_failed: bool,
    /// An atomic operation or Read failed: no later one may complete.
    has_failed_read: bool,
    /// A request was refused: the connection ends.
    post_refused: bool,
}

impl Side {
    /// The bytes of message `number`.
    fn message(&self, number: usize, len: usize) -> Vec<u8> {
        pattern(u64::from(self.salt) << 12 | number as u64, len)
    }

    /// True if each receive has completed, with a message or flushed.
    const fn has_all_receives(&self) -> bool {
        !self.is_up || self.flushed == self.receives - self.received
    }

    fn sge(&self, addr: usize, len: usize) -> Sge {
        let len = u32::try_from(len).expect("a slot");
        Sge { addr: addr as u64, len, lkey: self.stag }
    }
}

/// How connections end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndPlan {
    /// They complete all requests.
    Completes,
    /// They may end at any time, because segments are forged or an end restarts.
    MayFail,
    /// This many in each slot are ended with work in flight, then one completes.
    EndedFirst(usize),
}

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Connections at a time.
    pub conns: usize,
    /// Requests of each end of a connection.
    pub per_side: usize,
    /// Draws the kind of the next request. `true`: the connection allows those of RFC 7306.
    pub draw: fn(&mut SmallRng, bool) -> Kind,
    /// Some Writes go through memory windows, bound and invalidated repeatedly.
    pub windows: bool,
    /// How the connections end.
    pub ends: EndPlan,
}

impl Plan {
    /// Requests of all kinds; all complete.
    #[must_use]
    pub const fn new(conns: usize, per_side: usize) -> Self {
        Self { conns, per_side, draw: any_kind, windows: false, ends: EndPlan::Completes }
    }

    /// Requests of all kinds on one connection that may end at any time.
    #[must_use]
    pub const fn may_fail(per_side: usize) -> Self {
        Self { ends: EndPlan::MayFail, ..Self::new(1, per_side) }
    }
}

/// Result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Requests completed.
    pub completed: usize,
    /// Bytes transferred.
    pub bytes: u64,
    /// Messages received.
    pub received: usize,
    /// Operations on shared words that were invoked, and those of them that completed.
    pub word_ops: (usize, usize),
    /// Virtual time, in nanoseconds.
    pub elapsed_ns: u64,
    /// Frames sent.
    pub frames: u64,
}

/// The connections of a run, and its oracle.
pub struct Workload {
    plan: Plan,
    slots: Vec<ConnSlot>,
    words: AtomicOracle,
    report: Report,
    is_finishing: bool,
}

/// Options for connections that may end at any time: keep-alives detect dead peers.
#[must_use]
pub const fn may_fail_options(seed: u64) -> WorldOptions {
    let mut options = WorldOptions::new(seed);
    options.arena_len = arena_len(1);
    options.keepalive_ns = Some(5 * SECOND);
    options
}

/// Runs a plan whose connections all complete.
///
/// # Panics
/// If the oracle finds an error.
pub fn run(world: &mut World, plan: Plan) -> Report {
    let start = world.now;
    let mut work = Workload::new(world, plan);
    let done = world.run_until(600 * SECOND, |world| work.step(world));
    assert!(
        done,
        "no progress within 600 s: {} requests done, counters {:?} and {:?}",
        work.report.completed,
        world.ends[0].engine.counters(),
        world.ends[1].engine.counters()
    );
    (work.report.elapsed_ns, work.report.frames) = (world.now.since(start), world.frames);
    work.finish(world)
}

/// Runs a plan on a link that is faulty for `lasts_ns`. With `must_end` every connection completes,
/// or both ends report its end. Otherwise the ends may stay inconsistent forever, until an
/// application timeout ends the connection.
///
/// # Panics
/// If the oracle finds an error.
pub fn run_with_faults_for(world: &mut World, plan: Plan, lasts_ns: u64, must_end: bool) -> Report {
    let mut work = Workload::new(world, plan);
    let heals = world.now + lasts_ns;
    world.run_until(lasts_ns, |world| work.step(world) || world.now >= heals);
    world.clear_faults();
    let limit = if plan.ends == EndPlan::MayFail { 400 * SECOND } else { 4000 * SECOND };
    let done = world.run_until(limit, |world| work.step(world));
    assert!(done || !must_end, "neither complete nor over");
    work.finish(world)
}

/// Runs one connection whose segments are forged for `lasts_ns`. With `keeps_seq`, all requests
/// complete or both ends report the end of the connection.
///
/// # Panics
/// If the oracle finds an error.
pub fn run_with_forged_segments(
    options: &WorldOptions,
    mutator: SegmentMutator,
    keeps_seq: bool,
    lasts_ns: u64,
    per_side: usize,
    capture: Option<PathBuf>,
) {
    let mut world = World::new(options);
    if let Some(path) = capture {
        eprintln!("keeps_seq: {keeps_seq}, for {lasts_ns} ns, {options:?}");
        world.capture_to(path);
    }
    world.mutator = Some(mutator);
    run_with_faults_for(&mut world, Plan::may_fail(per_side), lasts_ns, keeps_seq);
}

impl Workload {
    /// Listens at end 1 and starts to connect.
    ///
    /// # Panics
    /// If end 1 listens already.
    #[must_use]
    pub fn new(world: &mut World, plan: Plan) -> Self {
        let mut words = AtomicOracle::new(world, plan.conns);
        let mut slots = Vec::new();
        for conn in 0..plan.conns {
            for (end, slot) in (0..2).flat_map(|end| (0..TARGET_COUNT).map(move |slot| (end, slot)))
            {
                let bytes = read_source(end, conn, slot);
                world.ends[end].arena.write(addr_of(conn, Area::ReadSource, slot), &bytes);
            }
            world.ends[1].engine.listen(connections::port(conn), 4).expect("the port is free");
            slots.push(ConnSlot::new(world, &mut words, &plan, conn));
        }
        Self { plan, slots, words, report: Report::default(), is_finishing: false }
    }

    /// Handles events, polls and posts. True once all connections are complete or, if they may
    /// fail, over.
    ///
    /// # Panics
    /// If the oracle finds an error.
    pub fn step(&mut self, world: &mut World) -> bool {
        if world.rng.random_bool(0.1) {
            let end = world.rng.random_range(0..2);
            self.words.observe_changes(world);
            self.words.local_op(world, end);
        }
        self.step_end(world, 0);
        self.step_end(world, 1);
        self.advance_end_plans(world);
        let may_fail = self.plan.ends == EndPlan::MayFail;
        self.slots.iter().all(|slot| self.is_done(slot) || may_fail && slot.is_over())
    }

    /// Like [`Self::step`], at one end only.
    ///
    /// # Panics
    /// If the oracle finds an error.
    pub fn step_end(&mut self, world: &mut World, end: usize) {
        self.poll_events(world, end);
        if world.schedule.is_active(world.now, ScheduledFault::AppBusy { end })
            || !app_is_due(world, end)
        {
            return;
        }
        self.poll(world, end);
        for conn in 0..self.slots.len() {
            let to_repost = self.slots[conn].sides[end].to_repost;
            let is_slow = world.app_delay_max_ns().is_some();
            let again = if is_slow { world.rng.random_range(0..=to_repost) } else { to_repost };
            self.repost(world, (end, conn), again);
            self.post(world, (end, conn));
        }
    }

    /// Posts `count` completed receives again.
    fn repost(&mut self, world: &mut World, (end, conn): (usize, usize), count: usize) {
        let side = &mut self.slots[conn].sides[end];
        for _ in 0..count {
            side.to_repost -= 1;
            let is_posted = post_receive(world, side, end, conn);
            assert!(is_posted || self.plan.ends != EndPlan::Completes, "no room for the buffer");
        }
    }

    /// True if a connection has completed its work.
    fn is_done(&self, slot: &ConnSlot) -> bool {
        slot.ends_left == 0
            && slot.sides.iter().all(|side| {
                let is_complete = side.posted_count == self.plan.per_side
                    && side.posted.is_empty()
                    && side.sends.is_empty();
                is_complete && !side.has_failed && !side.post_refused
            })
    }

    /// True if all connections have completed their work.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.slots.iter().all(|slot| self.is_done(slot))
    }

    /// True if an end knows that all connections have ended.
    #[must_use]
    pub fn has_ended(&self, end: usize) -> bool {
        self.slots.iter().all(|slot| slot.sides[end].has_ended)
    }
}

/// True if the application polls now; a slow one is then not due again for a random time.
fn app_is_due(world: &mut World, end: usize) -> bool {
    let Some(longest_ns) = world.app_delay_max_ns() else { return true };
    if world.app_wakeups[end].is_some_and(|wake| world.now < wake) {
        return false;
    }
    world.app_wakeups[end] = Some(world.now + world.rng.random_range(0..longest_ns));
    true
}

/// Posts the next receive of an end. False if the connection has ended.
fn post_receive(world: &mut World, side: &mut Side, end: usize, conn: usize) -> bool {
    let start = addr_of(conn, Area::Receive, side.receives);
    // Two SGEs, to exercise scattering.
    let cut = world.rng.random_range(0..=SLOT_LEN);
    let sg_list = [side.sge(start, cut), side.sge(start + cut, SLOT_LEN - cut)];
    let wr = RecvWr { wr_id: side.receives as u64, sg_list: sg_list.into_iter().collect() };
    let is_posted = world.ends[end].engine.post_recv(side.qp, wr).is_ok();
    side.receives += usize::from(is_posted);
    is_posted
}
