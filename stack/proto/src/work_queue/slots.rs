//! Slots of work queues: cache lines of atomic words.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::Arc;
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::Arc;

/// Words per slot.
pub(crate) const SLOT_WORDS: usize = 8;

/// Slot: a cache line. Its words are accessed without an ordering of their own, but for those of
/// the first and the last of [`Lines`].
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Slot([AtomicU64; SLOT_WORDS]);

impl Slot {
    fn zeroed() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
    }

    #[inline(always)]
    pub(crate) fn load(&self, word: usize) -> u64 {
        self.0[word].load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn store(&self, word: usize, value: u64) {
        self.0[word].store(value, Ordering::Relaxed);
    }
}

#[cfg(not(loom))]
type SharedSlots = Arc<[Slot]>;
/// Loom's has no slices.
#[cfg(loom)]
type SharedSlots = Arc<Box<[Slot]>>;

/// Memory of the work queues of one owner, at most [`SLOT_WORDS`]: a line with their tails, the
/// rings of slots, and a line with their numbers of retired requests. So each line is written by
/// one side alone, and an idle queue has no line of its own but its slots.
#[derive(Clone, Debug)]
pub(crate) struct Lines(SharedSlots);

impl Lines {
    /// Returns memory for rings of so many slots in all, zeroed.
    fn new(slot_count: usize) -> Self {
        let lines = (0..slot_count + 2).map(|_| Slot::zeroed());
        #[cfg(not(loom))]
        let lines = lines.collect();
        #[cfg(loom)]
        let lines = Arc::new(lines.collect());
        Self(lines)
    }

    /// Slots published to a queue since creation; written by its producer.
    #[inline(always)]
    pub(super) fn tail(&self, queue: usize) -> &AtomicU64 {
        &self.0[0].0[queue]
    }

    /// Requests of a queue retired since creation; written by its consumer.
    #[inline(always)]
    pub(super) fn retired(&self, queue: usize) -> &AtomicU64 {
        &self.0[self.0.len() - 1].0[queue]
    }
}

/// Ring of slots, a power of two.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    pub(super) lines: Lines,
    /// Line of the first slot.
    first: u32,
    /// Number of slots less one.
    mask: u32,
}

impl Slots {
    /// Returns rings of at least so many slots each, at least one, zeroed, in one memory.
    pub(super) fn rings<const N: usize>(counts_min: [usize; N]) -> [Self; N] {
        const { assert!(N <= SLOT_WORDS, "each has a word in the first line and in the last") };
        let counts = counts_min.map(usize::next_power_of_two);
        let lines = Lines::new(counts.iter().sum());
        let mut first = 1;
        counts.map(|count| {
            let u32_of = |value| u32::try_from(value).expect("fewer slots than 2^32");
            let ring = Self { lines: lines.clone(), first: u32_of(first), mask: u32_of(count - 1) };
            first += count;
            ring
        })
    }

    /// Returns the slot with this number, counted from the first ever used.
    #[inline(always)]
    pub(crate) fn get(&self, number: u64) -> &Slot {
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let index = self.first + (number as u32 & self.mask);
        &self.lines.0[index as usize]
    }
}
