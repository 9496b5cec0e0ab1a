//! Big-endian fields of a header.

/// Returns the `N` bytes at offset `at`.
#[inline]
pub(super) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk::<N>().expect("callers index inside a fixed header")
}

/// Returns the big-endian word at offset `at`.
#[inline]
pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(*array_at(bytes, at))
}

/// Returns the big-endian double word at offset `at`.
#[inline]
pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(*array_at(bytes, at))
}
