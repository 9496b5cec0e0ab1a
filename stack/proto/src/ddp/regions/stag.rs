//! How STags are made: a slot by chance, a tag by chance, a key.

use core::hash::Hasher as _;

use siphasher::sip::SipHasher13;

use super::Stag;

/// The same STag with the next key.
pub(super) const fn with_next_key(stag: Stag) -> Stag {
    stag & !0xff | (stag.wrapping_add(1) & 0xff)
}

/// What occupies a slot, whatever its key and whether it is valid: the STag without its key, and
/// what it is. 0: nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Name(pub(super) u32);

impl Name {
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

    pub(super) const fn is_window(self) -> bool {
        self.0 & 0xff >= Self::WINDOW
    }
}

/// Free slots and the chance that picks them; control path only.
pub(super) struct Control {
    free: Vec<u32>,
    key: u64,
    count: u64,
}

impl Control {
    pub(super) fn new(slot_count: u32, key: u64) -> Self {
        Self { free: (0..slot_count).collect(), key, count: 0 }
    }

    /// Takes a free slot and makes an STag for it; `None` if there is none.
    pub(super) fn draw(&mut self, index_mask: u32) -> Option<Stag> {
        if self.free.is_empty() {
            return None;
        }
        let pick = usize::try_from(self.chance() % self.free.len() as u64)
            .expect("below the length of a Vec");
        let index = self.free.swap_remove(pick);
        loop {
            let [tag_and_key, _] = halves(self.chance());
            let tag = (tag_and_key >> 8) & !index_mask;
            // Whatever key it is given later, it is not 0.
            if tag | index != 0 {
                return Some((tag | index) << 8 | tag_and_key & 0xff);
            }
        }
    }

    pub(super) fn give_back(&mut self, index: u32) {
        self.free.push(index);
    }

    /// A keyed pseudo-random function of a counter: who has seen some STags learns nothing of the
    /// next ones.
    fn chance(&mut self) -> u64 {
        self.count += 1;
        let mut hasher = SipHasher13::new_with_keys(self.key, !self.key);
        hasher.write_u64(self.count);
        hasher.finish()
    }
}

/// High and low half.
fn halves(word: u64) -> [u32; 2] {
    let b = word.to_be_bytes();
    [u32::from_be_bytes([b[0], b[1], b[2], b[3]]), u32::from_be_bytes([b[4], b[5], b[6], b[7]])]
}
