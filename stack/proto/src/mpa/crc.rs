//! CRC32C, the polynomial of iSCSI that MPA uses (RFC 5044 section 4.4).

pub use ferrowarp_crc32c::crc32c;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::crc32c;

    /// Computes the CRC bit by bit, from the polynomial alone (reflected: RFC 3385 section 4).
    fn crc32c_bitwise(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0, |crc: u32, &byte| {
            (0..8).fold(crc ^ u32::from(byte), |crc, _| {
                (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
            })
        })
    }

    #[test]
    fn crc_matches_rfc3720_examples() {
        // RFC 3720 appendix B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }

    proptest! {
        #[test]
        fn crc_matches_the_polynomial(
            bytes in proptest::collection::vec(any::<u8>(), 0..4000),
        ) {
            prop_assert_eq!(crc32c(&bytes), crc32c_bitwise(&bytes));
        }
    }
}
