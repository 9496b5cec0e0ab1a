//! The stream of a kernel's end: Sends in FPDUs, the same as those of our end.

use ferrowarp_tests::peer::{Header, fpdu, opcode};

/// Bytes of an untagged header (RFC 5041 section 4.3).
const HEADER_LEN: usize = 18;
/// The largest ULPDU whose FPDU fills a segment of 1,448 bytes, with the timestamps option.
const ULPDU_LEN: usize = 1442;
/// FPDUs per message.
const FPDU_COUNT: usize = 46;
/// Bytes per message: a multiple of full FPDUs.
pub(crate) const MESSAGE_LEN: usize = FPDU_COUNT * (ULPDU_LEN - HEADER_LEN);

/// Generator of consecutive Sends.
pub(crate) struct Messages {
    bytes: Vec<u8>,
    msn: u32,
}

impl Messages {
    pub(crate) const fn new() -> Self {
        Self { bytes: Vec::new(), msn: 0 }
    }

    /// Returns the FPDUs of the next message.
    pub(crate) fn next(&mut self) -> &[u8] {
        self.msn = self.msn.wrapping_add(1);
        self.bytes.clear();
        let payload = [0x5a; ULPDU_LEN - HEADER_LEN];
        for index in 0..FPDU_COUNT {
            let mo = u32::try_from(index * payload.len()).expect("shorter than a message");
            let header = Header::Untagged {
                opcode: opcode::SEND,
                last: index + 1 == FPDU_COUNT,
                invalidate: 0,
                qn: 0,
                msn: self.msn,
                mo,
            };
            self.bytes.extend(fpdu(&header.encode(&payload), true));
        }
        &self.bytes
    }
}

/// Parses a stream of FPDUs and counts the bytes of messages in it.
#[derive(Default)]
pub(crate) struct FpduCounter {
    /// Bytes until the next FPDU starts.
    fpdu_remaining: usize,
    /// First byte of a length field whose second was not received yet.
    len_high: Option<u8>,
    /// Bytes of messages so far.
    pub(crate) bytes: u64,
}

impl FpduCounter {
    /// True if the last FPDU is complete, CRC included.
    pub(crate) const fn is_at_fpdu_boundary(&self) -> bool {
        self.fpdu_remaining == 0 && self.len_high.is_none()
    }

    pub(crate) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.fpdu_remaining > 0 {
                let skip = self.fpdu_remaining.min(bytes.len());
                self.fpdu_remaining -= skip;
                bytes = &bytes[skip..];
                continue;
            }
            let next = bytes[0];
            bytes = &bytes[1..];
            let Some(high) = self.len_high.take() else {
                self.len_high = Some(next);
                continue;
            };
            let len = usize::from(u16::from_be_bytes([high, next]));
            self.bytes += len.saturating_sub(HEADER_LEN) as u64;
            // The ULPDU, padded with its length to four bytes, and the CRC.
            self.fpdu_remaining = (2 + len).next_multiple_of(4) - 2 + 4;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_counts_messages_in_any_chunking() {
        let mut messages = Messages::new();
        let stream = [messages.next().to_vec(), messages.next().to_vec()].concat();
        assert_eq!(stream.len(), 2 * FPDU_COUNT * 1448);
        let odd = fpdu(&[0x41; 18 + 5], true);
        let stream = [odd.clone(), stream, odd].concat();
        for chunk_len in [1, 2, 3, 1447, 1448, 100_000] {
            let mut counter = FpduCounter::default();
            stream.chunks(chunk_len).for_each(|chunk| counter.feed(chunk));
            assert_eq!(counter.bytes, 2 * MESSAGE_LEN as u64 + 10);
            assert!(counter.is_at_fpdu_boundary());
        }
    }
}
