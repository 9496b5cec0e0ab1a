//! Doorbells: a two-level bitmap of the queue pairs with posted work. Ringing a doorbell that is
//! already set is one atomic operation, an idle check is one load per summary word, and no entry is
//! ever queued.
//!
//! Only cold queue pairs are rung. The tails of at most 64 hot ones are polled ([`hot`]): posting
//! to those costs neither an atomic read-modify-write nor a fence.

pub mod hot;

use std::ops::{ControlFlow, Range};

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

const WORD_BITS: usize = 64;

/// One bit per queue pair, and one summary bit per 64 of those.
#[derive(Debug)]
pub struct Doorbells {
    words: Box<[AtomicU64]>,
    summary: Box<[AtomicU64]>,
    /// Number of hot queue pairs; written by the holder of the shard's lock.
    hot_count: AtomicU32,
    /// Other shards have requests for this one. Here, because a poll loads this cache line anyway.
    has_requests: AtomicBool,
    /// The shard has failed: no poll serves doorbells any more.
    is_closed: AtomicBool,
}

impl Doorbells {
    /// Returns doorbells for indices below `count`, all clear.
    pub fn new(count: usize) -> Self {
        let words = count.div_ceil(WORD_BITS).max(1);
        let zeroed = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        let summary = zeroed(words.div_ceil(WORD_BITS));
        Self {
            words: zeroed(words),
            summary,
            hot_count: AtomicU32::new(0),
            has_requests: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Announces a request of another shard.
    #[cold]
    pub fn announce_request(&self) {
        self.has_requests.store(true, Ordering::Release);
    }

    /// True if other shards may have requests.
    #[inline]
    pub fn has_requests(&self) -> bool {
        self.has_requests.load(Ordering::Relaxed)
    }

    /// Called before the requests are taken: one announced later is seen by a later poll.
    #[cold]
    pub fn clear_requests(&self) {
        self.has_requests.swap(false, Ordering::AcqRel);
    }

    /// Sets the doorbell. A later [`Doorbells::drain`] sees what the caller wrote before. Costs one
    /// or two atomic operations and a load. An index without a doorbell is ignored.
    #[inline]
    pub fn ring(&self, index: usize) {
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

    /// Ends the service of the doorbells. Afterwards the caller sees all that was posted before a
    /// ring whose thread does not find [`Doorbells::is_closed`]: on each word either the exchange
    /// here comes later, and acquires the ring, or the ring acquires the exchange.
    #[cold]
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        for word in &self.words {
            word.swap(0, Ordering::AcqRel);
        }
    }

    /// To be called after [`Doorbells::ring`]: true if no poll will serve it, or may have served it
    /// without the caller's request.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Sets the number of hot queue pairs, when it has changed. A thread whose poll promotes one
    /// checks afterwards whether another sleeps that has to poll, which checks
    /// [`Doorbells::has_hot`] before: there is a fence between the two steps on both sides.
    pub fn set_hot_count(&self, count: usize) {
        let count = u32::try_from(count).expect("at most 64");
        self.hot_count.store(count, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// True if there are hot queue pairs: no doorbell announces their requests.
    #[inline]
    pub fn has_hot(&self) -> bool {
        self.hot_count.load(Ordering::Relaxed) != 0
    }

    /// True if a doorbell is set. Sees every earlier `ring` that a fence separates from this call;
    /// may miss a concurrent one.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.summary.iter().any(|summary| summary.load(Ordering::Relaxed) != 0)
    }

    /// Clears doorbells that are set, and calls `serve` with the index of each, once: those from
    /// `from` on, then those below. One caller at a time.
    ///
    /// Once `serve` breaks, the rest stays set, and the index to go on from is returned: so all
    /// have their turn, however often some are rung.
    #[inline]
    pub fn drain(
        &self,
        from: usize,
        mut serve: impl FnMut(usize) -> ControlFlow<()>,
    ) -> Option<usize> {
        let (first, below) = (from / WORD_BITS, !(u64::MAX << (from % WORD_BITS)));
        let stopped = self.drain_words(first..self.words.len(), !below, &mut serve);
        if stopped.is_some() || from == 0 {
            return stopped;
        }
        let stopped = self.drain_words(0..first, u64::MAX, &mut serve);
        stopped.or_else(|| self.drain_words(first..first + 1, below, &mut serve))
    }

    /// [`Doorbells::drain`] to the end. True if any was set.
    #[cfg(test)]
    pub fn drain_all(&self, mut serve: impl FnMut(usize)) -> bool {
        let mut any = false;
        self.drain(0, |index| {
            any = true;
            serve(index);
            ControlFlow::Continue(())
        });
        any
    }

    /// [`Doorbells::drain`] for some words, and of the first of them only for these bits.
    #[inline]
    fn drain_words(
        &self,
        words: Range<usize>,
        mut bits_of_first: u64,
        serve: &mut impl FnMut(usize) -> ControlFlow<()>,
    ) -> Option<usize> {
        let mut at = words.start;
        while at < words.end.min(self.words.len()) {
            // The load may miss a concurrent `ring`; the next poll sees it.
            let marks = self.summary[at / WORD_BITS].load(Ordering::Relaxed) >> (at % WORD_BITS);
            if marks == 0 {
                at = (at / WORD_BITS + 1) * WORD_BITS;
                bits_of_first = u64::MAX;
                continue;
            }
            if marks & 1 == 0 {
                at += marks.trailing_zeros() as usize;
                bits_of_first = u64::MAX;
                continue;
            }
            let stopped = self.drain_word(at, bits_of_first, serve);
            if stopped.is_some() {
                return stopped;
            }
            at += 1;
            bits_of_first = u64::MAX;
        }
        None
    }

    #[inline]
    fn drain_word(
        &self,
        at: usize,
        bits: u64,
        serve: &mut impl FnMut(usize) -> ControlFlow<()>,
    ) -> Option<usize> {
        // The mark before the bits, as `ring` sets them after them.
        self.summary[at / WORD_BITS].fetch_and(!(1 << (at % WORD_BITS)), Ordering::AcqRel);
        let rung = self.words[at].swap(0, Ordering::AcqRel);
        let mut left = rung & bits;
        let mut stopped = None;
        while left != 0 && stopped.is_none() {
            let index = at * WORD_BITS + left.trailing_zeros() as usize;
            left &= left - 1;
            if serve(index).is_break() {
                stopped = Some(index + 1);
            }
        }
        let kept = left | rung & !bits;
        if kept != 0 {
            self.words[at].fetch_or(kept, Ordering::AcqRel);
            self.summary[at / WORD_BITS].fetch_or(1 << (at % WORD_BITS), Ordering::AcqRel);
        }
        stopped
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Serves `count` doorbells at most, from an index on; returns them, and the index to go on
    /// from.
    fn drain(doorbells: &Doorbells, from: usize, count: usize) -> (Vec<usize>, Option<usize>) {
        let mut drained = Vec::new();
        let next = doorbells.drain(from, |index| {
            drained.push(index);
            if drained.len() < count { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        (drained, next)
    }

    #[test]
    fn each_ring_is_drained_once() {
        let doorbells = Doorbells::new(5_000);
        for index in [0, 63, 64, 4_095, 4_096, 4_999, 64] {
            doorbells.ring(index);
        }
        doorbells.ring(1 << 30);
        let all = [0, 63, 64, 4_095, 4_096, 4_999];
        assert_eq!(drain(&doorbells, 0, 9), (all.to_vec(), None));
        assert_eq!(drain(&doorbells, 0, 9), (vec![], None), "already drained");
        all.iter().for_each(|&index| doorbells.ring(index));
        assert_eq!(drain(&doorbells, 64, 9).0, [64, 4_095, 4_096, 4_999, 0, 63]);
        assert!(!doorbells.is_pending());
    }

    #[test]
    fn rest_of_a_drain_stays_set_and_has_its_turn() {
        let doorbells = Doorbells::new(5_000);
        let all = [0, 1, 40, 64, 70, 4_999];
        all.iter().for_each(|&index| doorbells.ring(index));
        let (mut seen, mut from) = (Vec::new(), 0);
        for _ in 0..3 {
            let (drained, next) = drain(&doorbells, from, 2);
            // Those served are rung again at once.
            drained.iter().for_each(|&index| doorbells.ring(index));
            seen.extend(drained);
            from = next.unwrap();
        }
        assert_eq!(seen, all);
        assert_eq!(drain(&doorbells, from, 4), (vec![0, 1, 40, 64], Some(65)));
        assert_eq!(drain(&doorbells, 65, 9), (vec![70, 4_999], None));
        assert!(!doorbells.is_pending());
        // In the middle of a word, whose lower half is rung again and again.
        [10, 20, 30, 100].iter().for_each(|&index| doorbells.ring(index));
        assert_eq!(drain(&doorbells, 15, 2), (vec![20, 30], Some(31)));
        [20, 30].iter().for_each(|&index| doorbells.ring(index));
        assert_eq!(drain(&doorbells, 31, 1), (vec![100], Some(101)));
        assert_eq!(drain(&doorbells, 101, 9), (vec![10, 20, 30], None));
    }

    #[test]
    fn preempted_ringer_hides_no_other_in_its_word() {
        let doorbells = Doorbells::new(64);
        // State left by another thread that is preempted inside `ring`.
        doorbells.words[0].fetch_or(1 << 5, Ordering::AcqRel);
        doorbells.ring(7);
        assert_eq!(drain(&doorbells, 0, 9), (vec![5, 7], None));
    }

    #[test]
    fn ring_during_drain_is_seen_by_the_next_drain() {
        let doorbells = Doorbells::new(64);
        doorbells.ring(3);
        doorbells.drain_all(|index| doorbells.ring(index));
        assert_eq!(drain(&doorbells, 0, 9), (vec![3], None));
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
            doorbells.drain_all(&mut serve);
            application.join().unwrap();
            doorbells.drain_all(&mut serve);
            assert_eq!(seen, [2, 1]);
        });
    }

    /// Nor where a drain stops, and leaves the rest of a word to the next one: what it sets again
    /// may be rung meanwhile.
    #[test]
    fn no_ring_is_lost_where_a_drain_stops() {
        loom::model(|| {
            let doorbells = Arc::new(Doorbells::new(64));
            doorbells.ring(0);
            doorbells.ring(1);
            let posted = Arc::new(AtomicU64::new(0));
            let application = {
                let (doorbells, posted) = (Arc::clone(&doorbells), Arc::clone(&posted));
                thread::spawn(move || {
                    posted.store(1, Ordering::Release);
                    doorbells.ring(1);
                    doorbells.ring(2);
                })
            };
            let mut seen = [false; 3];
            let mut serve = |index: usize, is_last: bool| {
                seen[index] = index == 0 || posted.load(Ordering::Acquire) == 1;
                if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let next = doorbells.drain(0, |index| serve(index, true));
            assert_eq!(next, Some(1));
            application.join().unwrap();
            doorbells.drain(1, |index| serve(index, false));
            assert_eq!(seen, [true; 3]);
            assert!(!doorbells.is_pending());
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
            doorbells.drain_all(|index| drained[index] += 1);
            second.join().unwrap();
            doorbells.drain_all(|index| drained[index] += 1);
            assert_eq!(drained[1], 1);
            first.join().unwrap();
            doorbells.drain_all(|index| drained[index] += 1);
            assert_eq!(drained, [1, 1]);
        });
    }
}
