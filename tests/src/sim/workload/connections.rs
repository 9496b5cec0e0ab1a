//! Connection events, and planned ends.

use ferrowarp_proto::ddp::atomic::AtomicOp;
use ferrowarp_proto::ddp::memory::Memory;
use ferrowarp_proto::time::{MILLISECOND, SECOND};
use ferrowarp_proto::verbs::cm::{Abort, ConnEvent, ConnectError, ReadDepths};
use ferrowarp_proto::verbs::wc::QpId;
use ferrowarp_proto::verbs::wr::Operation;
use rand::RngExt;

use super::Workload;
use super::plan::EndPlan;
use super::side::{Area, Effect, PORT, Side, addr_of};
use super::slot::{Progress, TIME_TO_CONNECT, connect};
use crate::sim::world::World;

/// Maximum number of connections in one slot until one completes its work; attempts that found no
/// peer are not counted.
const CONNECTIONS_MAX: usize = 60;

impl Workload {
    /// Handles the events of an end.
    pub(super) fn poll_events(&mut self, world: &mut World, end: usize) {
        self.words.observe_changes(world);
        while let Some((shard, event)) = world.ends[end].next_event() {
            match event {
                ConnEvent::ConnectRequest { listener, request, .. } => {
                    let conn = usize::from(listener.port() - PORT);
                    let side = &mut self.slots[conn].sides[end];
                    if side.shard != shard && !side.accepted && !side.has_ended {
                        side.move_to(world, end, conn, shard);
                    }
                    let (now, param) = (world.now, world.param(end));
                    let engine = world.ends[end].shard_mut(shard);
                    if engine.accept(now, request, side.qp, &param).is_ok() {
                        side.accepted = true;
                    } else if self.plan.ends != EndPlan::MayFail {
                        // The request may be gone, or be left over from an earlier connection.
                        assert_ne!(self.plan.ends, EndPlan::Completes, "the request is new");
                        let _ = engine.reject(now, request, ReadDepths::default(), &[]);
                    }
                }
                ConnEvent::Established { qp, .. } => {
                    let (_, side) = self.find(end, qp);
                    assert!(!side.is_up, "end {end} reports Established twice");
                    side.is_up = true;
                }
                ConnEvent::Disconnected { qp, .. } | ConnEvent::ConnectFailed { qp, .. } => {
                    let must_last = self.plan.ends == EndPlan::Completes && !self.is_finishing;
                    // Lost frames: of TCP, or of address resolution.
                    let found_nobody = matches!(
                        event,
                        ConnEvent::ConnectFailed {
                            error: ConnectError::TimedOut | ConnectError::Unreachable,
                            ..
                        }
                    );
                    assert!(!must_last || found_nobody, "unexpected {event:?}");
                    let (conn, side) = self.find(end, qp);
                    assert!(!side.has_ended, "end {end} reports its end twice");
                    side.has_ended = true;
                    // From now on, no operation of the peer takes effect on its words.
                    self.words.close(1 - end, conn);
                }
                ConnEvent::TerminateReceived { qp, terminate }
                    if self.plan.ends == EndPlan::MayFail =>
                {
                    assert!(self.find(end, qp).1.has_ended);
                    assert!(terminate.is_some(), "end {end}: a Terminate that breaks the rules");
                }
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    fn find(&mut self, end: usize, qp: QpId) -> (usize, &mut Side) {
        let sides = self.slots.iter_mut().map(|slot| &mut slot.sides[end]).enumerate();
        sides.into_iter().find(|(_, side)| side.qp == qp).expect("a queue pair of ours")
    }

    /// Ends connections as planned, and starts the next ones.
    pub(super) fn advance_end_plans(&mut self, world: &mut World) {
        if self.plan.ends == EndPlan::MayFail {
            return;
        }
        for conn in 0..self.slots.len() {
            if !self.is_done(&self.slots[conn]) {
                self.advance_end_plan(world, conn);
            }
        }
        if let EndPlan::EndedFirst(_) = self.plan.ends {
            let deadlines = self.slots.iter().filter_map(|slot| match slot.progress {
                Progress::EndAt(date) | Progress::EndBy(date) => Some(date),
                Progress::NotUp | Progress::RunToCompletion => None,
            });
            // Times that have passed need no wakeup.
            world.app_wakeups[0] = deadlines.filter(|&date| date > world.now).min();
        }
    }

    fn advance_end_plan(&mut self, world: &mut World, conn: usize) {
        if self.slots[conn].is_over() {
            // A busy application has left completions.
            self.poll(world, 0);
            self.poll(world, 1);
        }
        let now = world.now;
        let slot = &mut self.slots[conn];
        if slot.is_over() && slot.sides.iter().all(|side| side.posted.is_empty()) {
            let is_accepted = slot.sides[1].accepted;
            assert!(self.plan.ends != EndPlan::Completes || !is_accepted, "it has failed");
            slot.destroy(world);
            slot.ends_left = slot.ends_left.saturating_sub(usize::from(slot.is_up()));
            if is_accepted {
                slot.connections += 1;
                assert!(slot.connections < CONNECTIONS_MAX, "no connection goes well");
                slot.connect_by = now + TIME_TO_CONNECT;
            } else {
                // All neighbor solicitations were lost, or an earlier failure is remembered: it
                // connects again.
                assert!(now < slot.connect_by, "no connection finds its peer");
            }
            slot.sides = connect(world, &mut self.words, &self.plan, conn);
            slot.progress = Progress::NotUp;
            return;
        }
        match slot.progress {
            Progress::NotUp if !slot.is_up() => {}
            Progress::NotUp if slot.ends_left == 0 => slot.progress = Progress::RunToCompletion,
            Progress::NotUp => {
                let timeout = world.rng.random_range(0..5 * MILLISECOND);
                slot.progress = Progress::EndAt(now + timeout);
            }
            Progress::EndAt(date) if now >= date => {
                slot.progress = Progress::EndBy(now + 5 * SECOND);
                let end = world.rng.random_range(0..2);
                self.end_connection(world, end, conn);
            }
            Progress::EndBy(date) if now >= date => slot.disconnect(world, 0..2),
            _ => {}
        }
    }

    /// Ends a connection in one of several ways.
    fn end_connection(&mut self, world: &mut World, end: usize, conn: usize) {
        let side = &self.slots[conn].sides[end];
        let (now, qp) = (world.now, side.qp);
        let shard = side.shard;
        let engine = world.ends[end].shard_mut(shard);
        // It may have ended already.
        let _ = match world.rng.random_range(0..5) {
            0 => engine.disconnect(now, qp),
            1 => engine.close(now, qp),
            2 => {
                world.ends[end].arena.regions().invalidate(side.words_stag);
                Ok(())
            }
            3 if self.post_invalid_atomic(world, (end, conn)) => Ok(()),
            _ => world.ends[end].shard_mut(shard).terminate(now, qp, Abort::Operation),
        };
    }

    /// Posts an atomic operation with an invalid STag. False if the queue is full or the connection
    /// has ended.
    fn post_invalid_atomic(&mut self, world: &mut World, (end, conn): (usize, usize)) -> bool {
        let pair = &self.slots[conn].sides;
        let sink = pair[end].sge(addr_of(conn, Area::Sink, pair[end].posted_count), 8);
        // Same STag index, other key.
        let rkey = pair[1 - end].words_stag ^ 1;
        let operation = Operation::Atomic { op: AtomicOp::fetch_add(1), sink, rkey, remote: 0 };
        self.submit(world, (end, conn), operation, Effect::Refused, false)
    }
}
