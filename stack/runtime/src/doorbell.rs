//! Which queue pairs have posted work: a bitmap of two levels, so that ringing is one atomic
//! operation when the bell already rings, an idle look is one load, and nothing is ever queued.

use crate::sync::{AtomicU64, Ordering};

const BITS: usize = 64;

/// One bit per queue pair, and one bit per word of those.
#[derive(Debug)]
pub(crate) struct Doorbells {
    words: Box<[AtomicU64]>,
    summary: Box<[AtomicU64]>,
}

impl Doorbells {
    /// Bells for indices below `count`.
    pub(crate) fn new(count: usize) -> Self {
        let words = count.div_ceil(BITS).max(1);
        let zeroed = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self { words: zeroed(words), summary: zeroed(words.div_ceil(BITS)) }
    }

    /// How many indices there are bells for.
    pub(crate) fn capacity(&self) -> usize {
        self.words.len() * BITS
    }

    /// Rings. Whoever answers after that sees what the caller wrote before. One or two atomic
    /// operations and a load; an index without a bell is ignored.
    #[inline]
    pub(crate) fn ring(&self, index: usize) {
        let Some(word) = self.words.get(index / BITS) else {
            return;
        };
        word.fetch_or(1 << (index % BITS), Ordering::AcqRel);
        let (at, mark) = (index / BITS, 1 << (index / BITS % BITS));
        let summary = &self.summary[at / BITS];
        // Asked of the summary itself: whoever rang first in this word may be off its core before
        // it has said so there. The load is not too old: an answer that took the word before the
        // bit was set cleared the summary before that, and `fetch_or` above has acquired this.
        if summary.load(Ordering::Relaxed) & mark == 0 {
            summary.fetch_or(mark, Ordering::AcqRel);
        }
    }

    /// True if a bell rings. Whoever has rung before is heard, given a fence between; a bell that
    /// rings at this moment may be missed.
    pub(crate) fn any(&self) -> bool {
        self.summary.iter().any(|summary| summary.load(Ordering::Relaxed) != 0)
    }

    /// Calls `serve` once for each index that rang, and silences it before. Returns whether any
    /// did. One answerer at a time.
    #[inline]
    pub(crate) fn answer(&self, mut serve: impl FnMut(usize)) -> bool {
        let mut any = false;
        for (group, summary) in self.summary.iter().enumerate() {
            // The load may miss a ring of this moment; the next pass sees it.
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            for word in ones(summary.swap(0, Ordering::AcqRel)) {
                let at = group * BITS + word;
                for bit in ones(self.words[at].swap(0, Ordering::AcqRel)) {
                    any = true;
                    serve(at * BITS + bit);
                }
            }
        }
        any
    }
}

/// The positions of the set bits, lowest first.
fn ones(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if word == 0 {
            return None;
        }
        let position = word.trailing_zeros() as usize;
        word &= word - 1;
        Some(position)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_ring_is_answered_once() {
        let bells = Doorbells::new(5_000);
        for index in [0, 63, 64, 4_095, 4_096, 4_999, 64] {
            bells.ring(index);
        }
        bells.ring(1 << 30);
        let mut heard = Vec::new();
        assert!(bells.answer(|index| heard.push(index)));
        assert_eq!(heard, [0, 63, 64, 4_095, 4_096, 4_999]);
        assert!(!bells.answer(|_| panic!("silenced")));
    }

    #[test]
    fn a_thread_that_stops_halfway_silences_nobody() {
        let bells = Doorbells::new(64);
        // What another thread has done when it is taken off its core inside `ring`.
        bells.words[0].fetch_or(1 << 5, Ordering::AcqRel);
        bells.ring(7);
        let mut heard = Vec::new();
        bells.answer(|index| heard.push(index));
        assert_eq!(heard, [5, 7]);
    }

    #[test]
    fn a_bell_rung_while_answering_rings_again() {
        let bells = Doorbells::new(64);
        bells.ring(3);
        bells.answer(|index| bells.ring(index));
        assert!(bells.answer(|index| assert_eq!(index, 3)));
    }
}

#[cfg(all(test, loom))]
mod proofs {
    use loom::thread;

    use super::*;
    use crate::sync::Arc;

    /// Work posted before a ring is never left behind: either the answer that runs meanwhile
    /// sees it, or the bell still rings.
    #[test]
    fn no_ring_is_lost() {
        loom::model(|| {
            let bells = Arc::new(Doorbells::new(128));
            let posted = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
            let poster = {
                let (bells, posted) = (Arc::clone(&bells), Arc::clone(&posted));
                thread::spawn(move || {
                    posted[0].store(1, Ordering::Release);
                    bells.ring(0);
                    posted[0].store(2, Ordering::Release);
                    bells.ring(0);
                    posted[1].store(1, Ordering::Release);
                    bells.ring(65);
                })
            };
            let mut seen = [0, 0];
            let mut look =
                |index: usize| seen[index / 64] = posted[index / 64].load(Ordering::Acquire);
            bells.answer(&mut look);
            poster.join().unwrap();
            bells.answer(&mut look);
            assert_eq!(seen, [2, 1]);
        });
    }

    /// Whoever has rung is heard by the next answer, however far others are with the same word.
    #[test]
    fn a_ring_waits_for_no_other() {
        loom::model(|| {
            let bells = Arc::new(Doorbells::new(64));
            let ring = |index| {
                let bells = Arc::clone(&bells);
                thread::spawn(move || bells.ring(index))
            };
            let (first, second) = (ring(0), ring(1));
            let mut heard = [0; 2];
            bells.answer(|index| heard[index] += 1);
            second.join().unwrap();
            bells.answer(|index| heard[index] += 1);
            assert_eq!(heard[1], 1);
            first.join().unwrap();
            bells.answer(|index| heard[index] += 1);
            assert_eq!(heard, [1, 1]);
        });
    }
}
