//! Allocation of STags: a random slot, a random tag, a random key.

use core::hash::Hasher as _;
use std::collections::BTreeSet;

use siphasher::sip::SipHasher13;

use super::Stag;

/// Occupant of a slot, whatever its key and whether it is valid: the STag without its key, and its
/// kind in the low 8 bits. 0: the slot is free.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Occupant(pub(super) u32);

impl Occupant {
    const REGION: u32 = 1;
    const WINDOW: u32 = 2;
    const RETIRED: u32 = 3;

    pub(super) const fn region(stag: Stag) -> Self {
        Self(stag & !0xff | Self::REGION)
    }

    pub(super) const fn window(stag: Stag) -> Self {
        Self(stag & !0xff | Self::WINDOW)
    }

    /// A window that cannot be bound again once it is invalidated.
    pub(super) const fn retired(stag: Stag) -> Self {
        Self(stag & !0xff | Self::RETIRED)
    }

    /// Returns the STag with key 0.
    pub(super) const fn stag(self) -> Stag {
        self.0 & !0xff
    }

    pub(super) const fn is_window(self) -> bool {
        self.0 & 0xff >= Self::WINDOW
    }
}

/// Free slots, slots of windows, and the generator of STags. Control path only.
pub(super) struct StagAllocator {
    free: Vec<u32>,
    pub(super) windows: BTreeSet<u32>,
    rng: StagRng,
}

impl StagAllocator {
    pub(super) fn new(slot_count: u32, key: u64) -> Self {
        let windows = BTreeSet::new();
        Self { free: (0..slot_count).collect(), windows, rng: StagRng::new([key, !key]) }
    }

    /// Takes a free slot and creates an STag for it; `None` if no slot is free.
    pub(super) fn alloc(&mut self, index_mask: u32) -> Option<Stag> {
        if self.free.is_empty() {
            return None;
        }
        let pick = self.rng.below(self.free.len());
        let index = self.free.swap_remove(pick);
        Some(self.random_stag(index, index_mask))
    }

    /// Returns another STag for the slot of `stag`, with random tag and key. The tag differs from
    /// that of `stag`.
    pub(super) fn retag(&mut self, stag: Stag, index_mask: u32) -> Stag {
        let index = (stag >> 8) & index_mask;
        loop {
            let next = self.random_stag(index, index_mask);
            if (next ^ stag) >> 8 != 0 {
                return next;
            }
        }
    }

    fn random_stag(&mut self, index: u32, index_mask: u32) -> Stag {
        loop {
            let [tag_and_key, _] = halves(self.rng.next());
            let tag = (tag_and_key >> 8) & !index_mask;
            // The STag is then not 0, whatever key it is given later.
            if tag | index != 0 {
                return (tag | index) << 8 | tag_and_key & 0xff;
            }
        }
    }

    /// Returns an independent generator for another owner.
    pub(super) fn fork_rng(&mut self) -> StagRng {
        StagRng::new([self.rng.next(), self.rng.next()])
    }

    pub(super) fn release(&mut self, index: u32) {
        self.windows.remove(&index);
        self.free.push(index);
    }
}

/// Pseudo-random function (SipHash) of a counter: its values do not predict later ones, so STags
/// are unpredictable (RFC 5042 section 7.1.1).
pub(super) struct StagRng {
    keys: [u64; 2],
    count: u64,
}

impl StagRng {
    const fn new(keys: [u64; 2]) -> Self {
        Self { keys, count: 0 }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.count += 1;
        let mut hasher = SipHasher13::new_with_keys(self.keys[0], self.keys[1]);
        hasher.write_u64(self.count);
        hasher.finish()
    }

    /// Returns a number below `bound`, which is small compared to 2^64.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("below a usize")
    }
}

/// Splits a word into its high and low half.
fn halves(word: u64) -> [u32; 2] {
    let b = word.to_be_bytes();
    [u32::from_be_bytes([b[0], b[1], b[2], b[3]]), u32::from_be_bytes([b[4], b[5], b[6], b[7]])]
}
