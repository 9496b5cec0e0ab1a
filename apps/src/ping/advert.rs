//! Message format and ping data of rping.

use crate::peer_text::escaped;

/// Length of a message in bytes.
pub const ADVERT_LEN: usize = 16;
/// Largest ping in bytes, as in rping.
pub const SIZE_MAX: u32 = 64 * 1024 - 1;
/// Smallest ping in bytes: the text with the largest number, and its NUL.
pub const SIZE_MIN: u32 = 32;
const FIRST_LETTER: u8 = b'A';
const LAST_LETTER: u8 = b'z';

/// Advertisement of a buffer that the peer may access. The server's go-ahead has the same format;
/// its contents are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advert {
    /// Tagged offset of the first byte.
    pub addr: u64,
    /// STag.
    pub rkey: u32,
    /// Length in bytes.
    pub size: u32,
}

impl Advert {
    /// Returns the message: big-endian, without padding.
    #[must_use]
    pub fn emit(self) -> [u8; ADVERT_LEN] {
        let mut out = [0; ADVERT_LEN];
        out[..8].copy_from_slice(&self.addr.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        out[12..].copy_from_slice(&self.size.to_be_bytes());
        out
    }

    /// Parses a message; `None` if it has another length.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ADVERT_LEN] = bytes.try_into().ok()?;
        let word =
            |at| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let addr = u64::from(word(0)) << 32 | u64::from(word(4));
        Some(Self { addr, rkey: word(8), size: word(12) })
    }
}

/// Returns the data of ping `number` as rping generates it: a text, rotating letters, a NUL.
#[must_use]
pub fn ping_data(number: u64, size: u32) -> Vec<u8> {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let mut out = format!("rdma-ping-{number}: ").into_bytes();
    let letters = u64::from(LAST_LETTER - FIRST_LETTER + 1);
    let start = u8::try_from(number % letters).expect("below the number of letters");
    let mut letter = FIRST_LETTER + start;
    while out.len() < size {
        out.push(letter);
        letter = if letter == LAST_LETTER { FIRST_LETTER } else { letter + 1 };
    }
    out.truncate(size);
    if let Some(last) = out.last_mut() {
        *last = 0;
    }
    out
}

/// Returns the text of a ping up to its NUL, escaped for a terminal.
#[must_use]
pub fn printable_text(bytes: &[u8]) -> String {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    escaped(&String::from_utf8_lossy(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advert_has_rpings_layout() {
        let advert = Advert { addr: 0x0102_0304_0506_0708, rkey: 0x1112_1314, size: 100 };
        let bytes = advert.emit();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0, 0, 0, 100]);
        assert_eq!(Advert::parse(&bytes), Some(advert));
        assert_eq!(Advert::parse(&bytes[..15]), None);
        assert_eq!(Advert::parse(&[0; 17]), None);
    }

    #[test]
    fn ping_data_matches_rping() {
        let first = ping_data(0, 100);
        assert!(first.starts_with(b"rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdef"));
        assert_eq!((first.len(), first[99]), (100, 0));
        assert!(ping_data(1, 100).starts_with(b"rdma-ping-1: BCDE"));
        assert!(ping_data(58, 100).starts_with(b"rdma-ping-58: ABCD"));
        assert_eq!(printable_text(&first).len(), 99);
        // Exactly one NUL, at the end: rping's server derives the length from it.
        let number = u64::MAX;
        let smallest = ping_data(number, SIZE_MIN);
        assert_eq!(smallest.iter().position(|&byte| byte == 0), Some(31));
    }
}
