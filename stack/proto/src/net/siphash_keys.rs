//! Keyed hashes (`SipHash`).
//!
//! For hash tables: peers cannot choose addresses that collide, and a simulation with the same seed
//! is reproducible. For values that appear on the wire and must not be guessed: initial sequence
//! numbers, timestamp offsets, SYN cookies.

use core::hash::{BuildHasher, Hash, Hasher};
use core::net::IpAddr;

use siphasher::sip::{SipHasher13, SipHasher24};

/// Builds `SipHash`-1-3 hashers with one key, for hash tables.
#[derive(Clone, Copy, Debug)]
pub struct SipBuildHasher {
    key: (u64, u64),
}

impl SipBuildHasher {
    /// The hash function selected by `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { key: (seed, seed.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15) }
    }

    /// Returns the group of an address. An IPv6 peer has its whole /64: all of it is one group.
    #[expect(clippy::cast_possible_truncation, reason = "part of a hash")]
    #[must_use]
    pub fn address_group(&self, address: IpAddr) -> u8 {
        let mut hasher = self.build_hasher();
        match address {
            IpAddr::V4(address) => address.hash(&mut hasher),
            IpAddr::V6(address) => (address.to_bits() >> 64).hash(&mut hasher),
        }
        hasher.finish() as u8
    }
}

impl BuildHasher for SipBuildHasher {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.key.0, self.key.1)
    }
}

/// Purpose of a [`Secret`]. The keys are independent: values made with one key reveal nothing about
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPurpose {
    /// Initial sequence numbers (RFC 6528).
    SequenceNumbers,
    /// Offsets of timestamp clocks (RFC 7323 section 7.1).
    Timestamps,
    /// Source ports (RFC 6056).
    Ports,
    /// SYN cookies (RFC 4987).
    Cookies,
    /// Random quotas of rate limits on replies.
    Limits,
    /// Flow labels (RFC 6437).
    FlowLabels,
}

/// Key of a hash whose values peers can observe: `SipHash`-2-4 as a pseudo-random function.
#[derive(Clone, Copy)]
pub struct Secret {
    key: (u64, u64),
}

impl Secret {
    /// Derives the key for `purpose` from `seed`.
    #[must_use]
    pub fn new(seed: u64, purpose: KeyPurpose) -> Self {
        let part = |index: u8| {
            let mut hasher = SipHasher24::new_with_keys(seed, purpose as u64);
            hasher.write_u8(index);
            hasher.finish()
        };
        Self { key: (part(0), part(1)) }
    }

    /// Returns a hasher with this key.
    #[must_use]
    pub fn hasher(&self) -> SipHasher24 {
        SipHasher24::new_with_keys(self.key.0, self.key.1)
    }
}

#[cfg(test)]
mod tests {
    use core::hash::Hasher;

    use super::{KeyPurpose, Secret};

    #[test]
    fn purposes_have_independent_keys() {
        let purposes = [
            KeyPurpose::SequenceNumbers,
            KeyPurpose::Timestamps,
            KeyPurpose::Ports,
            KeyPurpose::Cookies,
            KeyPurpose::Limits,
            KeyPurpose::FlowLabels,
        ];
        let value = |seed, purpose| {
            let mut hasher = Secret::new(seed, purpose).hasher();
            hasher.write_u64(1);
            hasher.finish()
        };
        let mut values: Vec<u64> =
            [1, 2].iter().flat_map(|&seed| purposes.map(|purpose| value(seed, purpose))).collect();
        assert_eq!(values[0], value(1, KeyPurpose::SequenceNumbers));
        values.sort_unstable();
        values.dedup();
        assert_eq!(values.len(), 12);
    }
}
