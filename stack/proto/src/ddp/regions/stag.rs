//! How STags are made: a slot by chance, a tag by chance, a key.

use core::hash::Hasher as _;
use std::collections::BTreeSet;

use siphasher::sip::SipHasher13;

use super::Stag;

/// What occupies a slot, whatever its key and whether it is valid: the STag without its key, and
/// what it is. 0: nothing.
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

    /// A window that is not bound any more once it is invalidated.
    pub(super) const fn retired(stag: Stag) -> Self {
        Self(stag & !0xff | Self::RETIRED)
    }

    /// An STag that has this name.
    pub(super) const fn stag(self) -> Stag {
        self.0 & !0xff
    }

    pub(super) const fn is_window(self) -> bool {
        self.0 & 0xff >= Self::WINDOW
    }
}

/// Free slots, slots of windows, and the chance that picks STags; control path only.
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

    /// Takes a free slot and makes an STag for it; `None` if there is none.
    pub(super) fn alloc(&mut self, index_mask: u32) -> Option<Stag> {
        if self.free.is_empty() {
            return None;
        }
        let pick = self.rng.below(self.free.len());
        let index = self.free.swap_remove(pick);
        Some(self.random_stag(index, index_mask))
    }

    /// Another STag for the slot of `stag`: tag and key by chance, the tag not the one before.
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
            // Whatever key it is given later, it is not 0.
            if tag | index != 0 {
                return (tag | index) << 8 | tag_and_key & 0xff;
            }
        }
    }

    /// A source of chance for somebody else.
    pub(super) fn fork_rng(&mut self) -> StagRng {
        StagRng::new([self.rng.next(), self.rng.next()])
    }

    pub(super) fn release(&mut self, index: u32) {
        self.windows.remove(&index);
        self.free.push(index);
    }
}

/// A keyed pseudo-random function of a counter: who has seen some of its values learns nothing of
/// the next ones.
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

    /// A number below `bound`, which is small against 2^64.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("below a usize")
    }
}

/// High and low half.
fn halves(word: u64) -> [u32; 2] {
    let b = word.to_be_bytes();
    [u32::from_be_bytes([b[0], b[1], b[2], b[3]]), u32::from_be_bytes([b[4], b[5], b[6], b[7]])]
}
