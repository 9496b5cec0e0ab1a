//! The words of both ends, and their oracle.

use ferrowarp_proto::ddp::atomic::{ATOMIC_LEN, apply};
use rand::Rng;

use crate::sim::words::{Contest, SHARED_COUNT, word};
use crate::sim::world::World;

/// The number of an end's own processor as a user of its words.
const LOCAL: usize = 0;

/// The words of each end.
pub(super) struct Contests {
    pub(super) words: [[Contest; SHARED_COUNT]; 2],
    /// What the end's own processor saw last.
    latest: [[u64; SHARED_COUNT]; 2],
}

impl Contests {
    pub(super) fn new() -> Self {
        let mut words: [[Contest; SHARED_COUNT]; 2] = Default::default();
        for contest in words.iter_mut().flatten() {
            contest.observe();
            assert_eq!(contest.user(), LOCAL);
        }
        Self { words, latest: [[0; SHARED_COUNT]; 2] }
    }

    /// The processors look at all words that have changed. What happened to each is known all the
    /// better, also where nobody was told that it did.
    pub(super) fn watch(&mut self, world: &World) {
        for (end, words) in self.words.iter_mut().enumerate() {
            for (number, contest) in words.iter_mut().enumerate() {
                let now = word(world, end, ATOMIC_LEN * number);
                if std::mem::replace(&mut self.latest[end][number], now) != now {
                    contest.witness(LOCAL, now);
                }
            }
        }
    }

    /// The processor of an end does something to a word of it.
    pub(super) fn act(&mut self, world: &mut World, end: usize) {
        let number = world.chance.random_range(0..SHARED_COUNT);
        let (contest, user) = (&mut self.words[end][number], LOCAL);
        let op = contest.draw(&mut world.chance, number, user);
        let fetched = word(world, end, ATOMIC_LEN * number);
        contest.complete(user, op, fetched);
        if let Some(op) = op {
            let after = apply(op, fetched).to_ne_bytes();
            world.ends[end].arena.write(ATOMIC_LEN * number, &after);
        }
    }
}
