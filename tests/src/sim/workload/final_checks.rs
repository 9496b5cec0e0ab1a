//! The end of a run: the counters of both ends agree, and no resource stays in use.

use ferrowarp_proto::engine::Usage;
use ferrowarp_proto::time::SECOND;
use rand::RngExt;

use super::plan::EndPlan;
use super::side::{DEPTH, port};
use super::{Report, Workload};
use crate::sim::link::Faults;
use crate::sim::world::World;

impl Workload {
    /// Ends all connections, and checks the words, and that no resource stays in use.
    ///
    /// # Panics
    /// If one does, or the oracle finds another error.
    pub fn finish(mut self, world: &mut World) -> Report {
        let must_complete = self.plan.ends == EndPlan::Completes;
        world.app_wakeups = [None; 2];
        if must_complete {
            self.check_byte_counters(world);
        }
        world.clear_faults();
        self.is_finishing = true;
        if must_complete && world.rng.random_bool(0.5) {
            self.close_under_load(world);
        } else {
            // Where both are sure to be connected, one end ends the connection and tells the other.
            let ends = if must_complete { 0..1 } else { 0..2 };
            for slot in &self.slots {
                slot.disconnect(world, ends.clone());
            }
        }
        let is_gone = |world: &World| world.ends.iter().all(|end| end.connection_count() == 0);
        world.run_until(200 * SECOND, |world| {
            self.drain(world);
            let mut sides = self.slots.iter().flat_map(|slot| &slot.sides);
            is_gone(world) && sides.all(|side| side.posted.is_empty() && side.has_all_receives())
        });
        assert!(is_gone(world), "connections stay after the end");
        for slot in &self.slots {
            for (end, side) in slot.sides.iter().enumerate() {
                assert!(side.has_ended || !side.is_up, "end {end} did not report its end");
                assert!(side.posted.is_empty(), "requests of end {end} never completed");
                assert!(side.has_all_receives(), "each buffer of end {end} completes once");
            }
            slot.destroy(world);
        }
        let counts = [0, 1].map(|end| self.words.check_shared(world, end));
        self.report.word_ops = (counts[0].0 + counts[1].0, counts[0].1 + counts[1].1);
        if must_complete {
            self.words.check_own(world);
            assert_eq!(self.report.word_ops.0, self.report.word_ops.1, "all operations complete");
        }
        for conn in 0..self.slots.len() {
            world.ends[1].unlisten(port(conn));
        }
        check_nothing_left(world);
        self.report
    }

    fn drain(&mut self, world: &mut World) {
        for end in 0..2 {
            self.poll_events(world, end);
            self.poll(world, end);
        }
    }

    /// Closes every connection at end 0 with requests outstanding: those posted before the close
    /// are carried out and complete. End 1 has none, and closes in turn.
    fn close_under_load(&mut self, world: &mut World) {
        // Low enough a loss rate for progress within the linger time.
        world.set_faults(Faults { loss: 0.02, delay_ns: 10_000, ..Faults::NONE });
        self.plan.per_side += DEPTH;
        for conn in 0..self.slots.len() {
            let to_repost = self.slots[conn].sides[1].to_repost;
            self.repost(world, (1, conn), to_repost);
            self.post(world, (0, conn));
            let (now, side) = (world.now, &self.slots[conn].sides[0]);
            side.engine(world, 0).close(now, side.qp).expect("connected");
        }
        let done = world.run_until(600 * SECOND, |world| {
            self.drain(world);
            let mut sides = self.slots.iter().map(|slot| &slot.sides[0]);
            sides.all(|side| side.posted.is_empty() && side.sends.is_empty())
        });
        assert!(done, "requests posted before the end, or their messages, were lost");
        world.clear_faults();
    }

    /// Checks that each end counts as received what the other counts as sent.
    fn check_byte_counters(&self, world: &mut World) {
        let are_equal = world.run_until(100 * SECOND, |world| {
            self.slots.iter().all(|slot| {
                let stats = |end: usize| {
                    let side = &slot.sides[end];
                    let engine = world.ends[end].shard(side.shard);
                    engine.tcp_stats(side.qp).expect("still connected")
                };
                let (a, b) = (stats(0), stats(1));
                (a.bytes_out, b.bytes_out) == (b.bytes_in, a.bytes_in)
            })
        });
        assert!(are_equal, "bytes sent and bytes received differ");
        let counted: u64 = world.ends.iter().map(|end| end.count(|of| of.frames_out)).sum();
        assert_eq!(counted, world.frames, "frames");
        if world.ends.iter().all(|end| end.owned_count().is_some()) {
            let abandoned: u64 =
                world.ends.iter().map(|end| end.count(|of| of.source_ports_abandoned)).sum();
            // A SYN-ACK that is repeated to a source port given up belongs to no connection.
            let answered = match &world.invariants {
                Some(checker) if abandoned > 0 => checker.resets,
                _ => world.unmatched_count() - self.unmatched_before,
            };
            assert_eq!(answered, 0, "a shard has answered for a connection of another");
        }
    }

    /// Destroys the queue pairs of an end after the other end was restarted.
    ///
    /// # Panics
    /// If they have requests or receives that never completed, or the oracle finds another error.
    pub fn destroy_survivor(mut self, world: &mut World, end: usize) {
        // A request posted after the end is flushed when the engine is driven next.
        for shard in 0..world.ends[end].shard_count() {
            world.ends[end].shard_mut(shard).drive(world.now);
        }
        self.poll(world, end);
        for slot in &self.slots {
            let side = &slot.sides[end];
            assert!(side.posted.is_empty(), "requests of end {end} never completed");
            assert!(side.has_all_receives(), "each buffer of end {end} completes once");
            side.destroy(world, end);
        }
        // The words of the survivor, which the other end used.
        self.words.check_shared(world, 1 - end);
    }
}

/// Checks that nothing is in use once no connection is left.
fn check_nothing_left(world: &mut World) {
    // Longer than any timer.
    let now = world.now + 700 * SECOND;
    for (index, end) in world.ends.iter_mut().enumerate() {
        assert!(end.owned_count().is_none_or(|count| count == 0), "four-tuples of end {index}");
        for shard in end.live_shards().collect::<Vec<_>>() {
            let name = format!("shard {shard} of end {index}");
            let engine = end.shard_mut(shard);
            let frames = engine.device().frames_in_use();
            assert_eq!(frames, 0, "frames of {name} did not come home");
            let mut usage = engine.usage();
            usage.timers = 0;
            assert_eq!(usage, Usage::default(), "{name}: all but timers");
            // A pass fires a bounded number of timers.
            for _ in 0..100 {
                engine.drive(now);
            }
            assert_eq!(engine.usage(), Usage::default(), "{name}");
        }
    }
}
