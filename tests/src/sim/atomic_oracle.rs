//! Oracle for the atomic operations of the workload: each is executed once, in order with the
//! Reads, and the fetched values are linearizable.

use ferrowarp_proto::ddp::atomic::{ATOMIC_LEN, AtomicOp, apply};
use rand::RngExt;

use super::linearizability::History;
use super::world::World;

/// Bytes at the start of each arena that hold 64-bit words.
pub(super) const WORDS_LEN: usize = 16 * 1024;
/// Words shared by all connections: one for each operation, and one for all of them.
const SHARED_COUNT: usize = 4;
/// Bytes of the shared words, which are the first.
pub(super) const SHARED_LEN: usize = ATOMIC_LEN * SHARED_COUNT;

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

/// Process number of the CPU of the end with the words.
const LOCAL: usize = 0;

/// The words at the peer of one end.
struct EndOracle {
    /// By connection: its own word after all posted requests.
    own: Vec<u64>,
    /// By connection: the value before the latest request for its own word, if that was a Write.
    overwritten: Vec<Option<u64>>,
    /// By connection: its process number in the histories of the shared words.
    processes: Vec<usize>,
    shared: [SharedWord; SHARED_COUNT],
    /// Values of the shared words last seen by the local CPU.
    latest: [u64; SHARED_COUNT],
}

/// A word shared by several processes, and its history.
#[derive(Default)]
struct SharedWord {
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
    SHARED_LEN + ATOMIC_LEN * conn
}

/// Loads a word from an arena.
pub(super) fn load_word(world: &World, end: usize, at: usize) -> u64 {
    let bytes = world.ends[end].arena.read(at, ATOMIC_LEN);
    u64::from_ne_bytes(bytes.try_into().expect("a word"))
}

/// Draws a mask: often all ones, sometimes zero.
fn mask(rng: &mut impl RngExt) -> u64 {
    match rng.random_range(0..4) {
        0 => 0,
        1 => rng.random(),
        _ => u64::MAX,
    }
}

impl SharedWord {
    /// Draws the next operation of a process on shared word `number`; `None` is a Read.
    ///
    /// Values swapped in are unique, which leaves hardly any choice of order.
    fn draw(&mut self, rng: &mut impl RngExt, number: usize, process: usize) -> Option<AtomicOp> {
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
        self.history.invoke(process, op);
        op
    }

    /// Records that the oldest operation of a process completed.
    fn complete(&mut self, process: usize, op: Option<AtomicOp>, fetched: u64) {
        self.history.respond(process, fetched);
        self.seen = op.map_or(fetched, |op| apply(op, fetched));
    }
}

impl AtomicOracle {
    /// Creates the oracle for `conns` connections and clears the words at both ends.
    pub(super) fn new(world: &World, conns: usize) -> Self {
        assert!(own_word_addr(conns) <= WORDS_LEN, "too many connections");
        Self([1, 0].map(|peer: usize| {
            world.ends[peer].arena.write(0, &vec![0; own_word_addr(conns)]);
            let mut shared: [SharedWord; SHARED_COUNT] = Default::default();
            for word in &mut shared {
                word.history.set_observer();
                assert_eq!(word.history.add_process(), LOCAL);
            }
            EndOracle {
                own: vec![0; conns],
                overwritten: vec![None; conns],
                processes: vec![LOCAL; conns],
                shared,
                latest: [0; SHARED_COUNT],
            }
        }))
    }

    /// Starts a connection, after the end of an earlier one with that number at both ends.
    pub(super) fn connect(&mut self, world: &World, conn: usize) {
        for (end, known) in self.0.iter_mut().enumerate() {
            known.own[conn] = load_word(world, 1 - end, own_word_addr(conn));
            known.overwritten[conn] = None;
            for word in &mut known.shared {
                known.processes[conn] = word.history.add_process();
            }
        }
    }

    /// Records that the end with the words has reported the end of a connection of `end`: none of
    /// its operations takes effect from now on.
    pub(super) fn close(&mut self, end: usize, conn: usize) {
        let known = &mut self.0[end];
        known.shared.iter_mut().for_each(|word| word.history.close(known.processes[conn]));
    }

    /// Lets the local CPUs read all shared words that have changed. This narrows down when
    /// operations took effect, also those that never completed.
    pub(super) fn observe_changes(&mut self, world: &World) {
        for (end, known) in self.0.iter_mut().enumerate() {
            for (number, word) in known.shared.iter_mut().enumerate() {
                let now = load_word(world, 1 - end, ATOMIC_LEN * number);
                if std::mem::replace(&mut known.latest[number], now) != now {
                    word.history.invoke(LOCAL, None);
                    word.history.respond(LOCAL, now);
                }
            }
        }
    }

    /// Lets the local CPU execute an operation on one of the words at the peer of `end`.
    pub(super) fn local_op(&mut self, world: &mut World, end: usize) {
        let number = world.rng.random_range(0..SHARED_COUNT);
        let word = &mut self.0[end].shared[number];
        let op = word.draw(&mut world.rng, number, LOCAL);
        let fetched = load_word(world, 1 - end, ATOMIC_LEN * number);
        word.complete(LOCAL, op, fetched);
        if let Some(op) = op {
            let after = apply(op, fetched).to_ne_bytes();
            world.ends[1 - end].arena.write(ATOMIC_LEN * number, &after);
        }
    }

    /// Draws the next access of a connection of `end` to a shared word: access, address at the
    /// peer, and expected result.
    pub(super) fn draw_shared(
        &mut self,
        rng: &mut impl RngExt,
        end: usize,
        conn: usize,
    ) -> (WordAccess, u64, Expected) {
        let known = &mut self.0[end];
        let number = rng.random_range(0..SHARED_COUNT);
        let op = known.shared[number].draw(rng, number, known.processes[conn]);
        let access = op.map_or(WordAccess::Read, WordAccess::Atomic);
        (access, (ATOMIC_LEN * number) as u64, Expected::Shared(number, op))
    }

    /// Draws the next access of a connection of `end` to its own word.
    pub(super) fn draw_own(
        &mut self,
        rng: &mut impl RngExt,
        end: usize,
        conn: usize,
    ) -> (WordAccess, u64, Expected) {
        let known = &mut self.0[end];
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
            3 if known.overwritten[conn].is_none() => {
                known.overwritten[conn] = Some(std::mem::replace(word, rng.random()));
                return (WordAccess::Write(*word), at, Expected::Unchecked);
            }
            _ => {
                known.overwritten[conn] = None;
                return (WordAccess::Read, at, Expected::Exact(*word));
            }
        };
        known.overwritten[conn] = None;
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
                let known = &mut self.0[end];
                known.shared[number].complete(known.processes[conn], op, fetched);
            }
            Expected::Unchecked => {}
        }
    }

    /// Checks that some order of all operations of `end` explains the histories of the shared words
    /// and their final values. Returns the numbers of operations invoked, and of those completed.
    pub(super) fn check_shared(&self, world: &World, end: usize) -> (usize, usize) {
        let mut counts = (0, 0);
        for (number, word) in self.0[end].shared.iter().enumerate() {
            word.history.check(load_word(world, 1 - end, ATOMIC_LEN * number));
            let (invoked, completed) = word.history.len();
            counts = (counts.0 + invoked, counts.1 + completed);
        }
        counts
    }

    /// With all operations complete, checks the words that belong to connections. A Write is
    /// complete when TCP has its bytes: it may be lost if the peer then ends the connection.
    pub(super) fn check_own(&self, world: &World) {
        for (end, known) in self.0.iter().enumerate() {
            for (conn, &expected) in known.own.iter().enumerate() {
                let found = load_word(world, 1 - end, own_word_addr(conn));
                let is_lost_write = known.overwritten[conn] == Some(found);
                assert!(
                    found == expected || is_lost_write,
                    "the word of connection {conn} is {found}, expected {expected}"
                );
            }
        }
    }
}
