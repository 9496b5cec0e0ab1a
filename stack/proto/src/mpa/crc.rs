//! CRC32C, the polynomial of iSCSI that MPA uses (RFC 5044 section 4.4).

use crc_fast::CrcAlgorithm::Crc32Iscsi;

/// CRC32C of `octets`.
///
/// `crc-fast` was measured against `crc32c` on this path: 28 against 14 GB/s at 1,460 octets with
/// AVX-512. The other crate is the oracle of the tests.
#[must_use]
#[inline]
pub fn crc32c(octets: &[u8]) -> u32 {
    let wide = crc_fast::checksum(Crc32Iscsi, octets).to_le_bytes();
    u32::from_le_bytes([wide[0], wide[1], wide[2], wide[3]])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::crc32c;

    #[test]
    fn known_answers() {
        // RFC 3720 appendix B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }

    proptest! {
        #[test]
        fn agrees_with_another_implementation(
            octets in proptest::collection::vec(any::<u8>(), 0..4000),
        ) {
            prop_assert_eq!(crc32c(&octets), ::crc32c::crc32c(&octets));
        }
    }
}
