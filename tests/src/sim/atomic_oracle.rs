//! Atomic operations in the workload, and their oracle: each is carried out once, in its turn among
//! the Reads, and what they fetch fits one order.

use ferrowarp_proto::ddp::atomic::{ATOMIC_LEN, AtomicOp, apply};
use rand::Rng;

use super::linearizability::History;
use super::world::World;

/// Bytes at the start of each arena that are words.
pub(super) const WORDS_LEN: usize = 16 * 1024;
/// Words that all connections use: one for each operation, and one for all of them.
pub(super) const SHARED_COUNT: usize = 4;

/// What is done to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WordAccess {
    Atomic(AtomicOp),
    /// A Read, which sees what was made of the word by what was asked before, and nothing else.
    Read,
    /// A Write behind a fence: what was asked before does not see it.
    Write(u64),
}

/// What an operation has to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// Just this: the word belongs to the connection.
    Exact(u64),
    /// What some order of all operations on the word explains: its number, and this operation.
    Shared(usize, Option<AtomicOp>),
    /// Nothing.
    Unchecked,
}

/// The words at the peer of one end, as its oracle knows them.
struct EndOracle {
    /// By connection: the word that it has for itself, with all that was posted carried out.
    own: Vec<u64>,
    /// By connection: the latest that was posted for it was to set it.
    is_set: Vec<bool>,
    shared: [SharedWord; SHARED_COUNT],
}

/// A word that many use, and what they are told of it.
#[derive(Default)]
pub(super) struct SharedWord {
    history: History,
    /// What the latest completion made of the word.
    seen: u64,
    /// What the latest operation that was posted may make of it.
    predicted: u64,
}

/// The oracle, of both ends.
pub(super) struct AtomicOracle([EndOracle; 2]);

/// Where the word of connection `conn` is.
const fn own_word_addr(conn: usize) -> usize {
    ATOMIC_LEN * (SHARED_COUNT + conn)
}

/// A word of an arena.
pub(super) fn load_word(world: &World, end: usize, at: usize) -> u64 {
    let bytes = world.ends[end].arena.read(at, ATOMIC_LEN);
    u64::from_ne_bytes(bytes.try_into().expect("a word"))
}

/// A mask that is often all, and sometimes none, of the word.
fn mask(rng: &mut impl Rng) -> u64 {
    match rng.random_range(0..4) {
        0 => 0,
        1 => rng.random(),
        _ => u64::MAX,
    }
}

impl SharedWord {
    /// The first user is one that sees and changes the word at once.
    pub(super) const fn set_observer(&mut self) {
        self.history.set_observer();
    }

    /// Nothing that a user asked for happens from now on.
    pub(super) fn close(&mut self, user: usize) {
        self.history.close(user);
    }

    /// Somebody else uses the word.
    pub(super) fn add_user(&mut self) -> usize {
        self.history.add_process()
    }

    /// Draws the next operation of a user of shared word `number`; `None` is a Read.
    ///
    /// What is swapped in is like nothing else, so that there is hardly a choice in the order.
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

    /// The oldest operation of a user completed.
    pub(super) fn complete(&mut self, user: usize, op: Option<AtomicOp>, fetched: u64) {
        self.history.respond(user, fetched);
        self.seen = op.map_or(fetched, |op| apply(op, fetched));
    }

    /// A user sees the word as it is.
    pub(super) fn observe_value(&mut self, user: usize, word: u64) {
        self.history.invoke(user, None);
        self.history.respond(user, word);
    }

    /// Some order explains all that is known, and the word as it is.
    pub(super) fn check_history(&self, last: u64) {
        self.history.check(last);
    }

    /// Operations asked for, and those of them that completed.
    pub(super) fn len(&self) -> (usize, usize) {
        self.history.len()
    }
}

impl AtomicOracle {
    /// For `conns` connections. All words are 0.
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

    /// Draws what a connection of `end` does next: what, where at the peer, and what it has to
    /// fetch.
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
            // Of two Writes to one place that are under way together the older one may win.
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

    /// An operation completed: what it fetched is what it had to.
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

    /// All completed and arrived: nothing was carried out twice, and nothing was left out.
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
