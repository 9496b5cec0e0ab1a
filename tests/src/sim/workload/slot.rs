//! Slots for connections.

use std::ops::Range;

use ferrowarp_proto::time::{Instant, SECOND};

use super::plan::{EndPlan, Plan};
use super::side::{Side, port};
use crate::sim::atomic_oracle::AtomicOracle;
use crate::sim::world::World;

/// Time in which a connection has to find its peer, however often it tries.
pub(super) const TIME_TO_CONNECT: u64 = 100 * SECOND;

/// Progress of a connection to its planned end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Progress {
    /// It is not up yet.
    NotUp,
    /// It will be ended at this time.
    EndAt(Instant),
    /// It was ended; at this time it is disconnected if an end does not know yet.
    EndBy(Instant),
    /// All its requests are to complete.
    RunToCompletion,
}

/// A slot for connections, of which a new one follows one that ended.
pub(super) struct ConnSlot {
    pub(super) sides: [Side; 2],
    /// Connections that are still to end with work in flight.
    pub(super) ends_left: usize,
    pub(super) connections: usize,
    /// A connection has to have found its peer by then.
    pub(super) connect_by: Instant,
    pub(super) progress: Progress,
    /// The death of a shard may have ended it.
    pub(super) is_doomed: bool,
}

impl ConnSlot {
    pub(super) fn new(
        world: &mut World,
        words: &mut AtomicOracle,
        plan: &Plan,
        conn: usize,
    ) -> Self {
        let ends_left = if let EndPlan::EndedFirst(count) = plan.ends { count } else { 0 };
        let sides = connect(world, words, plan, conn);
        let connect_by = world.now + TIME_TO_CONNECT;
        Self {
            sides,
            ends_left,
            connections: 1,
            connect_by,
            progress: Progress::NotUp,
            is_doomed: false,
        }
    }

    /// True if both ends know that the connection has ended, or never had it.
    pub(super) const fn is_over(&self) -> bool {
        let [active, passive] = &self.sides;
        active.has_ended && (passive.has_ended || !passive.accepted)
    }

    /// The given end, and its peer.
    pub(super) const fn ends(&mut self, end: usize) -> [&mut Side; 2] {
        let [active, passive] = &mut self.sides;
        if end == 0 { [active, passive] } else { [passive, active] }
    }

    pub(super) fn is_up(&self) -> bool {
        self.sides.iter().all(|side| side.is_up)
    }

    pub(super) fn disconnect(&self, world: &mut World, ends: Range<usize>) {
        let now = world.now;
        for end in ends {
            let side = &self.sides[end];
            // It may have ended already.
            let _ = side.engine(world, end).disconnect(now, side.qp);
        }
    }

    /// Destroys the queue pairs of a connection that has ended at both ends.
    pub(super) fn destroy(&self, world: &mut World) {
        for (end, side) in self.sides.iter().enumerate() {
            side.destroy(world, end);
        }
    }
}

/// Creates two queue pairs and starts connecting the first to the second.
pub(super) fn connect(
    world: &mut World,
    words: &mut AtomicOracle,
    plan: &Plan,
    conn: usize,
) -> [Side; 2] {
    words.connect(world, conn);
    let sides = [0, 1].map(|end| Side::new(world, plan, end, conn));
    let (now, remote, param) = (world.now, world.socket(1, port(conn)), world.param(0));
    sides[0].engine(world, 0).connect(now, sides[0].qp, remote, &param).expect("idle");
    sides
}
