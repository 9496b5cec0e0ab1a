//! Oracle for the atomic operations of the workload: each is executed once, in order with the
//! Reads, and the fetched values are linearizable.

use ferrowarp_proto::ddp::atomic::{ATOMIC_LEN, AtomicOp, apply};
use rand::Rng;

use super::linearizability::History;
use super::world::World;

/// Bytes at the start of each arena that hold 64-bit words.
pub(super) const WORDS_LEN: usize = 16 * 1024;
/// Words shared by all connections: one for each operation, and one for all of them.
pub(super) const SHARED_COUNT: usize = 4;

/// Access to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WordAccess {
    Atomic(AtomicOp),
    /// A Read, which sees the effect of all earlier requests, and of no later ones.
    Read,
    /// A Write with a fence: earlier requests do not see it.
    Write(u64),
}

/// Expected result of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// This value: the word belongs to the connection.
    Exact(u64),
    /// A value that some order of all operations on the shared word explains: its number, and this
    /// operation.
    Shared(usize, Option<AtomicOp>),
    /// No expectation.
    Unchecked,
}

/// The words at the peer of one end.
struct EndOracle {
    /// By connection: its own word after all posted requests.
    own: Vec<u64>,
    /// By connection: the latest request for its own word was a Write.
    is_set: Vec<bool>,
    shared: [SharedWord; SHARED_COUNT],
}

/// A word shared by several users, and its history.
#[derive(Default)]
pub(super) struct SharedWord {
    history: History,
    /// Value after the latest completed operation.
    seen: u64,
    /// Value that the latest compare-and-swap posted may store.
    predicted: u64,
}

/// The oracle of both ends.
pub(super) struct AtomicOracle([EndOracle; 2]);

/// Address of the own word of connection `conn`.
const fn own_word_addr(conn: usize) -> usize {
    ATOMIC_LEN * (SHARED_COUNT + conn)
}

/// Loads a word from an arena.
pub(super) fn load_word(world: &World, end: usize, at: usize) -> u64 {
    let bytes = world.ends[end].arena.read(at, ATOMIC_LEN);
    u64::from_ne_bytes(bytes.try_into().expect("a word"))
}

/// Draws a mask: often all ones, sometimes zero.
fn mask(rng: &mut impl Rng) -> u64 {
    match rng.random_range(0..4) {
        0 => 0,
        1 => rng.random(),
        _ => u64::MAX,
    }
}

impl SharedWord {
    /// Makes the first user the observer, whose operations take effect at once.
    pub(super) const fn set_observer(&mut self) {
        self.history.set_observer();
    }

    /// Ends a user: none of its operations takes effect from now on.
    pub(super) fn close(&mut self, user: usize) {
        self.history.close(user);
    }

    /// Adds a user and returns its number.
    pub(super) fn add_user(&mut self) -> usize {
        self.history.add_process()
    }

    /// Draws the next operation of a user of shared word `number`; `None` is a Read.
    ///
    /// Values swapped in are unique, which leaves hardly any choice of order.
    pub(super) fn draw(
        &mut self,
        rng: &mut impl Rng,
        number: usize,
        user: usize,
    ) -> Option<AtomicOp> {
        let kind = if number < 3 { number } else { rng.random_range(0..3) };
        let op = match kind {
            _ if rng.random_bool(0.15) => None,
            0 => Some(AtomicOp::fetch_add(rng.random())),
            1 => Some(AtomicOp::swap(rng.random())),
            _ => {
                let compare = if rng.random_bool(0.7) { self.seen } else { self.predicted };
                self.predicted = rng.random();
                Some(AtomicOp::cmp_swap(compare, self.predicted))
            }
        };
        self.history.invoke(user, op);
        op
    }

    /// Records that the oldest operation of a user completed.
    pub(super) fn complete(&mut self, user: usize, op: Option<AtomicOp>, fetched: u64) {
        self.history.respond(user, fetched);
        self.seen = op.map_or(fetched, |op| apply(op, fetched));
    }

    /// Records that a user reads `word`, which takes effect at once.
    pub(super) fn observe_value(&mut self, user: usize, word: u64) {
        self.history.invoke(user, None);
        self.history.respond(user, word);
    }

    /// Checks that some order of the operations explains the history and the final value `last`.
    pub(super) fn check_history(&self, last: u64) {
        self.history.check(last);
    }

    /// Numbers of operations invoked, and of those completed.
    pub(super) fn len(&self) -> (usize, usize) {
        self.history.len()
    }
}

impl AtomicOracle {
    /// Creates the oracle for `conns` connections. All words are 0.
    pub(super) fn new(conns: usize) -> Self {
        assert!(own_word_addr(conns) <= WORDS_LEN, "too many connections");
        let known = || {
            let mut shared: [SharedWord; SHARED_COUNT] = Default::default();
            for contest in &mut shared {
                for conn in 0..conns {
                    assert_eq!(contest.add_user(), conn);
                }
            }
            EndOracle { own: vec![0; conns], is_set: vec![false; conns], shared }
        };
        Self([known(), known()])
    }

    /// Draws the next access of a connection of `end`: access, address at the peer, and expected
    /// result.
    pub(super) fn draw(
        &mut self,
        rng: &mut impl Rng,
        end: usize,
        conn: usize,
    ) -> (WordAccess, u64, Expected) {
        let known = &mut self.0[end];
        if rng.random_bool(0.5) {
            let number = rng.random_range(0..SHARED_COUNT);
            let op = known.shared[number].draw(rng, number, conn);
            let touch = op.map_or(WordAccess::Read, WordAccess::Atomic);
            return (touch, (ATOMIC_LEN * number) as u64, Expected::Shared(number, op));
        }
        let word = &mut known.own[conn];
        let at = own_word_addr(conn) as u64;
        let op = match rng.random_range(0..5) {
            0 => AtomicOp::FetchAdd { add: rng.random(), boundaries: !mask(rng) },
            1 => AtomicOp::Swap { swap: rng.random(), mask: mask(rng) },
            2 => AtomicOp::CmpSwap {
                compare: if rng.random_bool(0.7) { *word } else { rng.random() },
                compare_mask: mask(rng),
                swap: rng.random(),
                swap_mask: mask(rng),
            },
            // Of two Writes to the same place in flight together, the older may be placed last.
            3 if !known.is_set[conn] => {
                *word = rng.random();
                known.is_set[conn] = true;
                return (WordAccess::Write(*word), at, Expected::Unchecked);
            }
            _ => {
                known.is_set[conn] = false;
                return (WordAccess::Read, at, Expected::Exact(*word));
            }
        };
        known.is_set[conn] = false;
        let original = std::mem::replace(word, apply(op, *word));
        (WordAccess::Atomic(op), at, Expected::Exact(original))
    }

    /// Checks the value fetched by a completed operation.
    pub(super) fn check(&mut self, end: usize, conn: usize, expected: Expected, fetched: u64) {
        match expected {
            Expected::Exact(original) => {
                assert_eq!(
                    fetched, original,
                    "connection {conn} of end {end} fetched another word"
                );
            }
            Expected::Shared(number, op) => {
                self.0[end].shared[number].complete(conn, op, fetched);
            }
            Expected::Unchecked => {}
        }
    }

    /// With all operations complete, checks that each was executed exactly once.
    pub(super) fn check_final(&self, world: &World) {
        for (end, known) in self.0.iter().enumerate() {
            for (number, contest) in known.shared.iter().enumerate() {
                let (asked, completed) = contest.len();
                assert_eq!(asked, completed, "shared word {number} of end {}", 1 - end);
                contest.check_history(load_word(world, 1 - end, ATOMIC_LEN * number));
            }
            for (conn, &expected) in known.own.iter().enumerate() {
                let found = load_word(world, 1 - end, own_word_addr(conn));
                assert_eq!(found, expected, "the word of connection {conn}");
            }
        }
    }
}
