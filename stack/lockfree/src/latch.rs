//! Sequence latch: some words that one thread replaces together, and all others read.
//!
//! There are two copies. A writer fills the one that nobody is sent to, and then sends readers
//! there. So a reader never waits for a writer, also for one that is preempted or stopped.

use crate::sync::{AtomicU64, Ordering, fence};

/// `N` words that change together.
#[derive(Debug)]
#[repr(align(64))]
pub struct Latch<const N: usize> {
    /// Number of the last change; its lowest bit names the current copy.
    sequence: AtomicU64,
    copies: [[AtomicU64; N]; 2],
}

impl<const N: usize> Latch<N> {
    /// Returns a latch with these words.
    pub fn new(words: [u64; N]) -> Self {
        let copy = || words.map(AtomicU64::new);
        Self { sequence: AtomicU64::new(0), copies: [copy(), copy()] }
    }

    /// Returns the first `K` words, all of one change.
    #[inline]
    pub fn read<const K: usize>(&self) -> [u64; K] {
        const { assert!(K <= N, "not more words than there are") };
        loop {
            let sequence = self.sequence.load(Ordering::Acquire);
            let copy = &self.copies[usize::from(sequence & 1 != 0)];
            let words = std::array::from_fn(|index| copy[index].load(Ordering::Relaxed));
            // A word of a later change was stored after this number had been replaced.
            fence(Ordering::Acquire);
            if self.sequence.load(Ordering::Relaxed) == sequence {
                return words;
            }
        }
    }

    /// Replaces the words. Callers exclude each other.
    pub fn write(&self, words: [u64; N]) {
        let sequence = self.sequence.load(Ordering::Relaxed).wrapping_add(1);
        // Readers that are still at this copy see that its number has been replaced.
        fence(Ordering::Release);
        let copy = &self.copies[usize::from(sequence & 1 != 0)];
        for (cell, word) in copy.iter().zip(words) {
            cell.store(word, Ordering::Relaxed);
        }
        self.sequence.store(sequence, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod proofs {
    use loom::thread;

    use super::*;
    use crate::sync::Arc;

    #[test]
    fn reader_gets_words_of_one_change() {
        loom::model(|| {
            let latch = Arc::new(Latch::new([0, 0]));
            let writing = Arc::clone(&latch);
            let writer = thread::spawn(move || {
                // The second change fills the copy that a reader may still be at.
                (1..=2).for_each(|change| writing.write([change, change]));
            });
            let [first, second] = latch.read();
            assert_eq!(first, second, "words of two changes");
            writer.join().unwrap();
            assert_eq!(latch.read(), [2, 2]);
        });
    }
}
