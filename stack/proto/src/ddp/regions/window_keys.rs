//! The keys under which a window is bound.

use super::stag::StagRng;
use super::{RegionTable, Stag};

/// Keys of a window's tag.
const KEY_COUNT: usize = 256;

/// The STags of one window, one for each binding (verbs: the consumer owns the low 8 bits).
///
/// Each of the 256 keys of a tag comes once, in an order drawn by chance as it goes, and then the
/// window gets another tag, drawn by chance as well: a peer that has seen any number of the
/// window's STags does not know the next one, and one that was taken back does not come to life
/// again with a later binding under the same tag.
// req: RDMAP-283
pub struct WindowKeys {
    rng: StagRng,
    /// The first `used` were given out; the others are still to come.
    keys: [u8; KEY_COUNT],
    used: usize,
}

impl WindowKeys {
    pub(super) fn new(rng: StagRng) -> Self {
        let mut keys = [0; KEY_COUNT];
        keys.iter_mut().zip(0..=u8::MAX).for_each(|(key, value)| *key = value);
        Self { rng, keys, used: 0 }
    }

    /// The STag for the next request to bind `window`, whose tag is that of the request before.
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

    /// Gives the window a new tag now: requests to bind it that are queued fail. Returns an STag
    /// of the new tag.
    pub fn revoke(&mut self, table: &RegionTable, window: Stag) -> Stag {
        self.used = 0;
        table.retag_window(window, true)
    }
}
