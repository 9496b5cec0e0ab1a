//! Test pattern of `--verify`. The bytes depend on the message number, the stream and the offset
//! in the message, so a stale, shifted, swapped or missing chunk is detected.
//!
//! A message is a sequence of 8-byte words, little-endian, the last one cut to the length:
//!
//! ```text
//! x       = (number * 0x9E3779B97F4A7C15 + stream * 0xD6E8FEB86659FD93 + k) * 0xBF58476D1CE4E5B9
//! word(k) = x ^ (x >> 32)                                       (all modulo 2^64, k from zero)
//! ```
//!
//! A program in another language can be the peer: `CONTROL.md` defines `number` and `stream`.

const NUMBER_FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
const STREAM_FACTOR: u64 = 0xD6E8_FEB8_6659_FD93;
const WORD_FACTOR: u64 = 0xBF58_476D_1CE4_E5B9;
const WORD_LEN: usize = 8;

/// Pattern of one message.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    base: u64,
}

impl Pattern {
    /// Returns the pattern of message `number` (from zero) of `stream`.
    #[must_use]
    pub const fn new(stream: u32, number: u64) -> Self {
        let number = number.wrapping_mul(NUMBER_FACTOR);
        let stream = (stream as u64).wrapping_mul(STREAM_FACTOR);
        Self { base: number.wrapping_add(stream) }
    }

    #[inline]
    const fn word(self, k: u64) -> u64 {
        let x = self.base.wrapping_add(k).wrapping_mul(WORD_FACTOR);
        x ^ (x >> 32)
    }

    /// Writes the pattern from `offset` of the message on to `out`.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8.
    pub fn fill(self, offset: usize, out: &mut [u8]) {
        assert!(offset.is_multiple_of(WORD_LEN), "a piece starts at a word boundary");
        let first = (offset / WORD_LEN) as u64;
        let (words, rest) = out.as_chunks_mut::<WORD_LEN>();
        let count = words.len() as u64;
        for (k, word) in (first..).zip(words) {
            *word = self.word(k).to_le_bytes();
        }
        let last = self.word(first + count).to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }

    /// Returns how many of `bytes`, which start at `offset` of the message, differ from the
    /// pattern.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8.
    #[must_use]
    pub fn mismatches(self, offset: usize, bytes: &[u8]) -> u64 {
        assert!(offset.is_multiple_of(WORD_LEN), "a piece starts at a word boundary");
        let first = (offset / WORD_LEN) as u64;
        let (words, rest) = bytes.as_chunks::<WORD_LEN>();
        let last = self.word(first + words.len() as u64).to_le_bytes();
        let differences = (first..)
            .zip(words)
            .fold(0, |bits, (k, word)| bits | (u64::from_le_bytes(*word) ^ self.word(k)));
        if differences == 0 && *rest == last[..rest.len()] {
            return 0;
        }
        self.count_mismatches(offset, bytes)
    }

    /// Compares byte by byte; only called if there is a mismatch.
    #[cold]
    fn count_mismatches(self, offset: usize, bytes: &[u8]) -> u64 {
        let mut expected = vec![0; bytes.len()];
        self.fill(offset, &mut expected);
        bytes.iter().zip(expected).filter(|&(&byte, right)| byte != right).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(stream: u32, number: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        Pattern::new(stream, number).fill(0, &mut bytes);
        bytes
    }

    #[test]
    fn pattern_matches_documented_formula() {
        let x = 7u64
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .wrapping_add(3u64.wrapping_mul(0xD6E8_FEB8_6659_FD93))
            .wrapping_add(2)
            .wrapping_mul(0xBF58_476D_1CE4_E5B9);
        assert_eq!(message(3, 7, 24)[16..], (x ^ (x >> 32)).to_le_bytes());
    }

    #[test]
    fn pattern_filled_in_chunks_equals_whole() {
        let expected = message(1, 9, 1003);
        let mut filled = vec![0; 1003];
        for start in (0..1003).step_by(64) {
            let end = (start + 64).min(1003);
            Pattern::new(1, 9).fill(start, &mut filled[start..end]);
        }
        assert_eq!(expected, filled);
        assert_eq!(Pattern::new(1, 9).mismatches(0, &expected), 0);
        assert_eq!(Pattern::new(1, 9).mismatches(64, &expected[64..]), 0);
    }

    #[test]
    fn mismatches_counts_each_changed_byte() {
        let mut bytes = message(0, 1, 100);
        bytes[0] ^= 1;
        bytes[57] ^= 0x80;
        bytes[99] ^= 0xFF;
        assert_eq!(Pattern::new(0, 1).mismatches(0, &bytes), 3);
    }

    #[test]
    fn patterns_differ_by_message_stream_and_offset() {
        let bytes = message(0, 1, 64);
        for other in [Pattern::new(0, 2), Pattern::new(1, 1), Pattern::new(0, 1 << 40)] {
            assert!(other.mismatches(0, &bytes) > 48);
        }
        let mut shifted = message(0, 1, 72);
        shifted.rotate_left(8);
        assert!(Pattern::new(0, 1).mismatches(0, &shifted[..64]) > 48);
    }
}
