//! Which queue pairs have posted work: a bitmap of two levels, so that ringing is one atomic
//! operation when the bell already rings, an idle look is one load, and nothing is ever queued.

use crate::sync::{AtomicU64, Ordering};

const WORD_BITS: usize = 64;

/// One bit per queue pair, and one bit per word of those.
#[derive(Debug)]
pub(crate) struct Doorbells {
    words: Box<[AtomicU64]>,
    summary: Box<[AtomicU64]>,
}

impl Doorbells {
    /// Bells for indices below `count`.
    pub(crate) fn new(count: usize) -> Self {
        let words = count.div_ceil(WORD_BITS).max(1);
        let zeroed = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self { words: zeroed(words), summary: zeroed(words.div_ceil(WORD_BITS)) }
    }

    /// How many indices there are bells for.
    pub(crate) fn capacity(&self) -> usize {
        self.words.len() * WORD_BITS
    }

    /// Rings. Whoever answers after that sees what the caller wrote before. One or two atomic
    /// operations and a load; an index without a bell is ignored.
    #[inline]
    pub(crate) fn ring(&self, index: usize) {
        let Some(word) = self.words.get(index / WORD_BITS) else {
            return;
        };
        word.fetch_or(1 << (index % WORD_BITS), Ordering::AcqRel);
        let (at, mark) = (index / WORD_BITS, 1 << (index / WORD_BITS % WORD_BITS));
        let summary = &self.summary[at / WORD_BITS];
        // Asked of the summary itself: whoever rang first in this word may be off its core before
        // it has said so there. The load is not too old: an answer that took the word before the
        // bit was set cleared the summary before that, and `fetch_or` above has acquired this.
        if summary.load(Ordering::Relaxed) & mark == 0 {
            summary.fetch_or(mark, Ordering::AcqRel);
        }
    }

    /// True if a bell rings. Whoever has rung before is heard, given a fence between; a bell that
    /// rings at this moment may be missed.
    pub(crate) fn is_pending(&self) -> bool {
        self.summary.iter().any(|summary| summary.load(Ordering::Relaxed) != 0)
    }

    /// Calls `serve` once for each index that rang, and silences it before. Returns whether any
    /// did. One answerer at a time.
    #[inline]
    pub(crate) fn drain(&self, mut serve: impl FnMut(usize)) -> bool {
        let mut any = false;
        for (group, summary) in self.summary.iter().enumerate() {
            // The load may miss a ring of this moment; the next pass sees it.
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            for word in set_bits(summary.swap(0, Ordering::AcqRel)) {
                let at = group * WORD_BITS + word;
                for bit in set_bits(self.words[at].swap(0, Ordering::AcqRel)) {
                    any = true;
                    serve(at * WORD_BITS + bit);
                }
            }
        }
        any
    }
}

/// The positions of the set bits, lowest first.
fn set_bits(mut word: u64) -> impl Iterator<Item = usize> {
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
    fn each_ring_is_drained_once() {
        let bells = Doorbells::new(5_000);
        for index in [0, 63, 64, 4_095, 4_096, 4_999, 64] {
            bells.ring(index);
        }
        bells.ring(1 << 30);
        let mut heard = Vec::new();
        assert!(bells.drain(|index| heard.push(index)));
        assert_eq!(heard, [0, 63, 64, 4_095, 4_096, 4_999]);
        assert!(!bells.drain(|_| panic!("silenced")));
    }

    #[test]
    fn preempted_ringer_hides_no_other_in_its_word() {
        let bells = Doorbells::new(64);
        // What another thread has done when it is taken off its core inside `ring`.
        bells.words[0].fetch_or(1 << 5, Ordering::AcqRel);
        bells.ring(7);
        let mut heard = Vec::new();
        bells.drain(|index| heard.push(index));
        assert_eq!(heard, [5, 7]);
    }

    #[test]
    fn ring_during_drain_is_seen_by_the_next_drain() {
        let bells = Doorbells::new(64);
        bells.ring(3);
        bells.drain(|index| bells.ring(index));
        assert!(bells.drain(|index| assert_eq!(index, 3)));
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
            let doorbells = Arc::new(Doorbells::new(128));
            let posted = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
            let poster = {
                let (doorbells, posted) = (Arc::clone(&doorbells), Arc::clone(&posted));
                thread::spawn(move || {
                    posted[0].store(1, Ordering::Release);
                    doorbells.ring(0);
                    posted[0].store(2, Ordering::Release);
                    doorbells.ring(0);
                    posted[1].store(1, Ordering::Release);
                    doorbells.ring(65);
                })
            };
            let mut seen = [0, 0];
            let mut look =
                |index: usize| seen[index / 64] = posted[index / 64].load(Ordering::Acquire);
            doorbells.drain(&mut look);
            poster.join().unwrap();
            doorbells.drain(&mut look);
            assert_eq!(seen, [2, 1]);
        });
    }

    /// Whoever has rung is drained by the next answer, however far others are with the same word.
    #[test]
    fn ring_does_not_depend_on_a_preempted_ringer() {
        loom::model(|| {
            let doorbells = Arc::new(Doorbells::new(64));
            let ring = |index| {
                let doorbells = Arc::clone(&doorbells);
                thread::spawn(move || doorbells.ring(index))
            };
            let (first, second) = (ring(0), ring(1));
            let mut drained = [0; 2];
            doorbells.drain(|index| drained[index] += 1);
            second.join().unwrap();
            doorbells.drain(|index| drained[index] += 1);
            assert_eq!(drained[1], 1);
            first.join().unwrap();
            doorbells.drain(|index| drained[index] += 1);
            assert_eq!(drained, [1, 1]);
        });
    }
}
