//! Doorbells: a two-level bitmap of the queue pairs with posted work. Ringing a doorbell that is
//! already set is one atomic operation, an idle check is one load per summary word, and no entry is
//! ever queued.
//!
//! Only cold queue pairs are rung. The tails of at most 64 hot ones are polled ([`hot`]): posting
//! to those costs neither an atomic read-modify-write nor a fence.

pub(crate) mod hot;

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

const WORD_BITS: usize = 64;

/// One bit per queue pair, and one summary bit per 64 of those.
#[derive(Debug)]
pub(crate) struct Doorbells {
    words: Box<[AtomicU64]>,
    summary: Box<[AtomicU64]>,
    /// Number of hot queue pairs; written by the holder of the shard's lock.
    hot_count: AtomicU32,
    /// Other shards have requests for this one. Here, because a poll loads this cache line anyway.
    has_requests: AtomicBool,
}

impl Doorbells {
    /// Returns doorbells for indices below `count`, all clear.
    pub(crate) fn new(count: usize) -> Self {
        let words = count.div_ceil(WORD_BITS).max(1);
        let zeroed = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        let summary = zeroed(words.div_ceil(WORD_BITS));
        Self {
            words: zeroed(words),
            summary,
            hot_count: AtomicU32::new(0),
            has_requests: AtomicBool::new(false),
        }
    }

    /// Announces a request of another shard.
    #[cold]
    pub(crate) fn announce_request(&self) {
        self.has_requests.store(true, Ordering::Release);
    }

    /// True if other shards may have requests.
    #[inline]
    pub(crate) fn has_requests(&self) -> bool {
        self.has_requests.load(Ordering::Relaxed)
    }

    /// Called before the requests are taken: one announced later is seen by a later poll.
    #[cold]
    pub(crate) fn clear_requests(&self) {
        self.has_requests.swap(false, Ordering::AcqRel);
    }

    /// Sets the doorbell. A later [`Doorbells::drain`] sees what the caller wrote before. Costs one
    /// or two atomic operations and a load. An index without a doorbell is ignored.
    #[inline]
    pub(crate) fn ring(&self, index: usize) {
        let Some(word) = self.words.get(index / WORD_BITS) else {
            return;
        };
        word.fetch_or(1 << (index % WORD_BITS), Ordering::AcqRel);
        let (at, mark) = (index / WORD_BITS, 1 << (index / WORD_BITS % WORD_BITS));
        let summary = &self.summary[at / WORD_BITS];
        // The summary itself is checked, not the old value of the word: the thread that set the
        // first bit of this word may be preempted before it sets the summary. The relaxed load is
        // not stale: a drain that cleared the word before the bit was set has cleared the summary
        // before that, and `fetch_or` above has acquired this.
        if summary.load(Ordering::Relaxed) & mark == 0 {
            summary.fetch_or(mark, Ordering::AcqRel);
        }
    }

    /// Sets the number of hot queue pairs, when it has changed. A thread whose poll promotes one
    /// checks afterwards whether another sleeps that has to poll, which checks
    /// [`Doorbells::has_hot`] before: there is a fence between the two steps on both sides.
    pub(crate) fn set_hot_count(&self, count: usize) {
        let count = u32::try_from(count).expect("at most 64");
        self.hot_count.store(count, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// True if there are hot queue pairs: no doorbell announces their requests.
    #[inline]
    pub(crate) fn has_hot(&self) -> bool {
        self.hot_count.load(Ordering::Relaxed) != 0
    }

    /// True if a doorbell is set. Sees every earlier `ring` that a fence separates from this call;
    /// may miss a concurrent one.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.summary.iter().any(|summary| summary.load(Ordering::Relaxed) != 0)
    }

    /// Clears each doorbell that is set, then calls `serve` with its index, once. Returns true if
    /// any was set. One caller at a time.
    #[inline]
    pub(crate) fn drain(&self, mut serve: impl FnMut(usize)) -> bool {
        let mut any = false;
        for (group, summary) in self.summary.iter().enumerate() {
            // The load may miss a concurrent `ring`; the next poll sees it.
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

/// Positions of the set bits, lowest first.
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
        let doorbells = Doorbells::new(5_000);
        for index in [0, 63, 64, 4_095, 4_096, 4_999, 64] {
            doorbells.ring(index);
        }
        doorbells.ring(1 << 30);
        let mut drained = Vec::new();
        assert!(doorbells.drain(|index| drained.push(index)));
        assert_eq!(drained, [0, 63, 64, 4_095, 4_096, 4_999]);
        assert!(!doorbells.drain(|_| panic!("already drained")));
    }

    #[test]
    fn preempted_ringer_hides_no_other_in_its_word() {
        let doorbells = Doorbells::new(64);
        // State left by another thread that is preempted inside `ring`.
        doorbells.words[0].fetch_or(1 << 5, Ordering::AcqRel);
        doorbells.ring(7);
        let mut drained = Vec::new();
        doorbells.drain(|index| drained.push(index));
        assert_eq!(drained, [5, 7]);
    }

    #[test]
    fn ring_during_drain_is_seen_by_the_next_drain() {
        let doorbells = Doorbells::new(64);
        doorbells.ring(3);
        doorbells.drain(|index| doorbells.ring(index));
        assert!(doorbells.drain(|index| assert_eq!(index, 3)));
    }
}

#[cfg(all(test, loom))]
mod proofs {
    use loom::thread;

    use super::*;
    use crate::sync::Arc;

    /// Work posted before a ring is never lost: either the concurrent drain sees it, or the
    /// doorbell stays set.
    #[test]
    fn no_ring_is_lost() {
        loom::model(|| {
            let doorbells = Arc::new(Doorbells::new(128));
            let posted = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
            let application = {
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
            let mut serve =
                |index: usize| seen[index / 64] = posted[index / 64].load(Ordering::Acquire);
            doorbells.drain(&mut serve);
            application.join().unwrap();
            doorbells.drain(&mut serve);
            assert_eq!(seen, [2, 1]);
        });
    }

    /// A doorbell that has been rung is seen by the next drain, wherever other threads are in
    /// ringing doorbells of the same word.
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
