//! The shared words of both ends, and their oracle.

use ferrowarp_proto::ddp::atomic::{ATOMIC_LEN, apply};
use rand::Rng;

use crate::sim::atomic_oracle::{SHARED_COUNT, SharedWord, load_word};
use crate::sim::world::World;

/// Process number of an end's own CPU in the history of its words.
const LOCAL: usize = 0;

/// The shared words of each end.
pub(super) struct SharedWords {
    pub(super) words: [[SharedWord; SHARED_COUNT]; 2],
    /// Values last seen by the end's own CPU.
    latest: [[u64; SHARED_COUNT]; 2],
}

impl SharedWords {
    pub(super) fn new() -> Self {
        let mut words: [[SharedWord; SHARED_COUNT]; 2] = Default::default();
        for contest in words.iter_mut().flatten() {
            contest.set_observer();
            assert_eq!(contest.add_user(), LOCAL);
        }
        Self { words, latest: [[0; SHARED_COUNT]; 2] }
    }

    /// Lets the local CPUs read all words that have changed. This narrows down when operations took
    /// effect, also those that never completed.
    pub(super) fn observe_changes(&mut self, world: &World) {
        for (end, words) in self.words.iter_mut().enumerate() {
            for (number, contest) in words.iter_mut().enumerate() {
                let now = load_word(world, end, ATOMIC_LEN * number);
                if std::mem::replace(&mut self.latest[end][number], now) != now {
                    contest.observe_value(LOCAL, now);
                }
            }
        }
    }

    /// Lets the local CPU of an end execute an operation on one of its words.
    pub(super) fn local_op(&mut self, world: &mut World, end: usize) {
        let number = world.rng.random_range(0..SHARED_COUNT);
        let (contest, user) = (&mut self.words[end][number], LOCAL);
        let op = contest.draw(&mut world.rng, number, user);
        let fetched = load_word(world, end, ATOMIC_LEN * number);
        contest.complete(user, op, fetched);
        if let Some(op) = op {
            let after = apply(op, fetched).to_ne_bytes();
            world.ends[end].arena.write(ATOMIC_LEN * number, &after);
        }
    }
}
