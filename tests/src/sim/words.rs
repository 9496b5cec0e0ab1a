//! Atomic operations in the workload, and their oracle: each is carried out once, and what they
//! fetch fits one order.

use ferrowarp_proto::ddp::atomic::{ATOMIC_LEN, AtomicOp, apply};
use rand::Rng;

use super::world::World;

/// Octets at the start of each arena that are words.
pub(super) const WORDS_LEN: usize = 16 * 1024;
/// Where the word is that all connections count with.
const SHARED: usize = 0;

/// What an operation has to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// Just this: the word belongs to the connection.
    Own(u64),
    /// What no other one fetches: each adds 1 to the word of all connections.
    Shared,
}

/// The words at the peer of one end, as its oracle knows them.
#[derive(Default)]
struct Known {
    /// By connection: the word that it has for itself, with all that was posted carried out.
    own: Vec<u64>,
    /// Additions posted to the shared word, and what those that completed fetched.
    added: u64,
    fetched: Vec<u64>,
    /// By connection: the latest of these.
    latest: Vec<Option<u64>>,
}

/// The oracle, of both ends.
pub(super) struct Words([Known; 2]);

/// Where the word of connection `conn` is.
const fn own(conn: usize) -> usize {
    ATOMIC_LEN * (1 + conn)
}

/// A mask that is often all, and sometimes none, of the word.
fn mask(chance: &mut impl Rng) -> u64 {
    match chance.random_range(0..4) {
        0 => 0,
        1 => chance.random(),
        _ => u64::MAX,
    }
}

impl Words {
    /// For `conns` connections. All words are 0.
    pub(super) fn new(conns: usize) -> Self {
        assert!(own(conns) <= WORDS_LEN, "too many connections");
        let known = || Known { own: vec![0; conns], latest: vec![None; conns], ..Known::default() };
        Self([known(), known()])
    }

    /// Draws the next operation of a connection of `end`: what to do, where at the peer, and what
    /// it has to fetch.
    pub(super) fn draw(
        &mut self,
        chance: &mut impl Rng,
        end: usize,
        conn: usize,
    ) -> (AtomicOp, u64, Expected) {
        let known = &mut self.0[end];
        if chance.random_bool(0.3) {
            known.added += 1;
            return (AtomicOp::fetch_add(1), SHARED as u64, Expected::Shared);
        }
        let word = &mut known.own[conn];
        let op = match chance.random_range(0..3) {
            0 => AtomicOp::FetchAdd { add: chance.random(), boundaries: !mask(chance) },
            1 => AtomicOp::Swap { swap: chance.random(), mask: mask(chance) },
            _ => AtomicOp::CmpSwap {
                compare: if chance.random_bool(0.7) { *word } else { chance.random() },
                compare_mask: mask(chance),
                swap: chance.random(),
                swap_mask: mask(chance),
            },
        };
        let original = std::mem::replace(word, apply(op, *word));
        (op, own(conn) as u64, Expected::Own(original))
    }

    /// An operation completed: what it fetched is what it had to.
    pub(super) fn check(&mut self, end: usize, conn: usize, expected: Expected, fetched: &[u8]) {
        let fetched = u64::from_ne_bytes(fetched.try_into().expect("a word"));
        let known = &mut self.0[end];
        match expected {
            Expected::Own(original) => {
                assert_eq!(
                    fetched, original,
                    "connection {conn} of end {end} fetched another word"
                );
            }
            Expected::Shared => {
                let latest = known.latest[conn].replace(fetched);
                assert!(latest < Some(fetched), "{fetched} came after {latest:?}");
                known.fetched.push(fetched);
            }
        }
    }

    /// All completed: nothing was carried out twice, and nothing was left out.
    pub(super) fn conclude(&mut self, world: &World) {
        for (end, known) in self.0.iter_mut().enumerate() {
            let word = |at| {
                let octets = world.ends[1 - end].arena.read(at, ATOMIC_LEN);
                u64::from_ne_bytes(octets.try_into().expect("a word"))
            };
            assert_eq!(word(SHARED), known.added, "the shared word of end {}", 1 - end);
            known.fetched.sort_unstable();
            assert!(
                known.fetched.iter().copied().eq(0..known.added),
                "{} additions fetched {:?}",
                known.added,
                known.fetched
            );
            for (conn, &expected) in known.own.iter().enumerate() {
                assert_eq!(word(own(conn)), expected, "the word of connection {conn}");
            }
        }
    }
}
