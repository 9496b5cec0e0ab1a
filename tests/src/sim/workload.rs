//! Random work on connections, and its oracle.
//!
//! Each request completes once and in order, whatever its status. The oldest message in flight is
//! received first, after all earlier Writes have been placed. Data match. Atomic operations are
//! executed once, in order with the Reads. Each queue pair reports its end once; each receive
//! completes once. With [`EndPlan::Completes`] all requests succeed, and the run makes progress.

use std::path::PathBuf;

use ferrowarp_proto::time::SECOND;
use rand::RngExt;

pub use self::plan::{EndPlan, Kind, Plan, any_kind, mostly_shared_words};
pub use self::side::arena_len;
use self::side::{Area, SLOT_LEN, TARGET_COUNT, addr_of, port, post_receive, read_source};
use self::slot::ConnSlot;

use super::atomic_oracle::AtomicOracle;
use super::fault_schedule::ScheduledFault;
use super::segment_mutator::SegmentMutator;
use super::world::{World, WorldOptions};

mod completions;
mod connections;
mod final_checks;
mod plan;
mod requests;
mod side;
mod slot;

/// Result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Requests completed.
    pub completed: usize,
    /// Bytes transferred.
    pub bytes: u64,
    /// Messages received.
    pub received: usize,
    /// Operations on shared words that were invoked, and the number that completed.
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
    /// Segments of no connection so far, at both ends.
    unmatched_before: u64,
}

/// A connection is probed after it was idle for so long, in tests whose ends may be gone.
pub const KEEPALIVE_NS: u64 = 5 * SECOND;

/// Within this time an idle end learns that its peer is gone, whatever the link loses: after
/// [`KEEPALIVE_NS`] and nine probes at intervals of 75 s it gives up.
pub const PEER_GONE_NS: u64 = KEEPALIVE_NS + 10 * 75 * SECOND;

/// Options for connections that may end at any time: keepalives detect dead peers.
#[must_use]
pub const fn may_fail_options(seed: u64) -> WorldOptions {
    let mut options = WorldOptions::of_seed(seed);
    options.arena_len = arena_len(1);
    options.keepalive_ns = Some(KEEPALIVE_NS);
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
                let bytes = read_source(end, conn, slot, 0..SLOT_LEN);
                world.ends[end].arena.write(addr_of(conn, Area::ReadSource, slot), &bytes);
            }
            world.ends[1].listen(port(conn), 4);
            slots.push(ConnSlot::new(world, &mut words, &plan, conn));
        }
        let (report, unmatched_before) = (Report::default(), world.unmatched_count());
        Self { plan, slots, words, report, is_finishing: false, unmatched_before }
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
            if world.ends[end].is_dead(self.slots[conn].sides[end].shard) {
                continue;
            }
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
            assert!(is_posted || self.plan.ends != EndPlan::Completes, "the receive queue is full");
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

    /// Ends a shard. The application is told so: its queue pairs there fail. All other connections
    /// that are up have to complete.
    pub fn kill_shard(&mut self, world: &mut World, end: usize, shard: usize) {
        world.ends[end].kill_shard(shard);
        for conn in 0..self.slots.len() {
            let slot = &mut self.slots[conn];
            let is_there = slot.sides[end].shard == shard;
            slot.is_doomed |= is_there || !slot.is_up();
            if slot.is_doomed
                && let Some(checker) = &mut world.invariants
            {
                // An ACK that the peer repeats, with a SYN cookie, may open it again elsewhere.
                checker.ignore_port(port(conn));
            }
            let side = &mut slot.sides[end];
            if is_there && !side.has_ended {
                (side.has_ended, side.post_refused) = (true, true);
                side.engine(world, end).abandon_qp(side.qp);
                self.words.close(1 - end, conn);
            }
        }
        self.poll(world, end);
    }

    /// Checks that only connections on shards that have died did not complete. Returns the number
    /// of those.
    ///
    /// # Panics
    /// If another one did not.
    #[must_use]
    pub fn check_others_complete(&self) -> usize {
        let failed = self.slots.iter().filter(|slot| !self.is_done(slot));
        failed.inspect(|slot| assert!(slot.is_doomed, "it was on shards that live")).count()
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
