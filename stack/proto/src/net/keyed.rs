//! Hash tables keyed by a secret: peers cannot choose addresses that collide, and a simulation
//! with the same seed walks the same way.

use core::hash::BuildHasher;

use siphasher::sip::SipHasher13;

/// Builds `SipHash`-1-3 with one key.
#[derive(Clone, Copy, Debug)]
pub struct KeyedHash {
    key: (u64, u64),
}

impl KeyedHash {
    /// A hash family member chosen by `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { key: (seed, seed.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15) }
    }
}

impl BuildHasher for KeyedHash {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.key.0, self.key.1)
    }
}
