//! Keys of successive bindings of a memory window.

use super::allocator::StagRng;
use super::{RegionTable, Stag};

/// Number of keys under one tag.
const KEY_COUNT: usize = 256;

/// STags of one window, one for each binding (verbs: the consumer owns the low 8 bits).
///
/// Each of the 256 keys of a tag is used once, in random order; then the window gets a new random
/// tag. A peer that has seen any number of the window's STags cannot predict the next one, and an
/// invalidated STag does not become valid again with a later binding under the same tag.
// req: RDMAP-283
pub struct WindowKeys {
    rng: StagRng,
    /// The first `used` keys were issued; the others were not.
    keys: [u8; KEY_COUNT],
    used: usize,
}

impl WindowKeys {
    pub(super) fn new(rng: StagRng) -> Self {
        let mut keys = [0; KEY_COUNT];
        keys.iter_mut().zip(0..=u8::MAX).for_each(|(key, value)| *key = value);
        Self { rng, keys, used: 0 }
    }

    /// Returns the STag for the next request to bind `window`. `window` has the tag of the previous
    /// request.
    pub fn next(&mut self, table: &RegionTable, window: Stag) -> Stag {
        let mut window = window;
        if self.used == KEY_COUNT {
            window = table.retag_window(window, false);
            self.used = 0;
        }
        // One step of a Fisher-Yates shuffle.
        let pick = self.used + self.rng.below(KEY_COUNT - self.used);
        self.keys.swap(self.used, pick);
        self.used += 1;
        window & !0xff | Stag::from(self.keys[self.used - 1])
    }

    /// Gives the window a new tag now: queued requests to bind it fail. Returns an STag with the
    /// new tag.
    pub fn revoke(&mut self, table: &RegionTable, window: Stag) -> Stag {
        self.used = 0;
        table.retag_window(window, true)
    }
}
