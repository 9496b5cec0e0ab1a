//! Slots of a work queue: cache lines of atomic words.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};

/// Words per slot.
pub(crate) const SLOT_WORDS: usize = 8;

/// Slot: a cache line. Its words are accessed without an ordering of their own.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros))]
#[repr(C, align(64))]
pub(crate) struct Slot([AtomicU64; SLOT_WORDS]);

impl Slot {
    #[inline(always)]
    pub(crate) fn load(&self, word: usize) -> u64 {
        self.0[word].load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn store(&self, word: usize, value: u64) {
        self.0[word].store(value, Ordering::Relaxed);
    }
}

/// Ring of slots, a power of two.
#[derive(Debug)]
pub(crate) struct Slots(Box<[Slot]>);

impl Slots {
    /// Returns at least `count_min` zeroed slots.
    #[cfg(not(loom))]
    pub(crate) fn new(count_min: usize) -> Self {
        use zerocopy::FromZeros as _;
        let count = count_min.next_power_of_two();
        Self(<[Slot]>::new_box_zeroed_with_elems(count).expect("memory for a work queue"))
    }

    #[cfg(loom)]
    pub(crate) fn new(count_min: usize) -> Self {
        let zeroed = || Slot(core::array::from_fn(|_| AtomicU64::new(0)));
        Self((0..count_min.next_power_of_two()).map(|_| zeroed()).collect())
    }

    /// Returns the slot with this number, counted from the first ever used.
    #[inline(always)]
    pub(crate) fn get(&self, number: u64) -> &Slot {
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let index = number as usize & (self.0.len() - 1);
        &self.0[index]
    }
}
