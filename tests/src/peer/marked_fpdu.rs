//! FPDUs with markers, built and read byte by byte (RFC 5044 section 4.3).

/// Distance of markers in bytes.
const PERIOD: u64 = 512;

/// Builds an FPDU with markers; `sent` bytes were sent in its direction since full operation began.
///
/// # Panics
/// If `ulpdu` is longer than 65535 bytes.
#[must_use]
pub fn marked_fpdu(ulpdu: &[u8], crc: bool, sent: u64) -> Vec<u8> {
    let len = u16::try_from(ulpdu.len()).expect("a ULPDU fits in its length field");
    let mut content = len.to_be_bytes().to_vec();
    content.extend_from_slice(ulpdu);
    content.resize(content.len().next_multiple_of(4), 0);
    let mut bytes = Vec::new();
    // Position of the length field: after a marker at the start of the FPDU.
    let mut length_at = None;
    let mut push_marker_if_due = |bytes: &mut Vec<u8>| {
        if (sent + bytes.len() as u64).is_multiple_of(PERIOD) {
            let fpduptr = length_at.map_or(0, |at: usize| bytes.len() - at);
            let fpduptr = u32::try_from(fpduptr).expect("an FPDU is short");
            bytes.extend_from_slice(&fpduptr.to_be_bytes());
        }
        length_at.get_or_insert(bytes.len());
    };
    for byte in content {
        push_marker_if_due(&mut bytes);
        bytes.push(byte);
    }
    push_marker_if_due(&mut bytes);
    let check = if crc { crc32c::crc32c(&bytes) } else { 0x0BAD_0BAD };
    bytes.extend_from_slice(&check.to_le_bytes());
    bytes
}

/// Removes the markers, if negotiated, from one FPDU as its bytes are received.
#[derive(Debug)]
pub(super) struct MarkedReader {
    /// Bytes received before this FPDU since full operation began; `None` without markers.
    stream_pos: Option<u64>,
    /// Bytes of the FPDU so far, markers included.
    raw: Vec<u8>,
    /// Bytes of the FPDU so far, without markers.
    content: Vec<u8>,
    length_at: usize,
}

impl MarkedReader {
    pub(super) const fn new(before: Option<u64>) -> Self {
        Self { stream_pos: before, raw: Vec::new(), content: Vec::new(), length_at: 0 }
    }

    /// True if a marker is next.
    fn at_marker(&self) -> bool {
        self.stream_pos
            .is_some_and(|before| (before + self.raw.len() as u64).is_multiple_of(PERIOD))
    }

    /// Returns the number of bytes to read next towards `content_len` bytes of content: a whole
    /// marker, or the bytes up to the next one; 0 if the content is complete.
    pub(super) fn next_len(&self, content_len: usize) -> usize {
        let missing = content_len - self.content.len();
        if missing == 0 {
            return 0;
        }
        if self.at_marker() {
            return 4;
        }
        let Some(before) = self.stream_pos else { return missing };
        let to_marker = PERIOD - (before + self.raw.len() as u64) % PERIOD;
        missing.min(usize::try_from(to_marker).expect("at most a period"))
    }

    /// Appends the [`MarkedReader::next_len`] bytes that were read.
    ///
    /// # Errors
    /// If the FPDUPTR of a marker is wrong.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        if self.at_marker() {
            let fpduptr = u32::from_be_bytes(bytes.try_into().expect("a whole marker"));
            let at = self.raw.len();
            let expected = if self.content.is_empty() { 0 } else { at - self.length_at };
            if u64::from(fpduptr) != expected as u64 {
                return Err(format!("FPDUPTR is {fpduptr:#x} and not {expected:#x}"));
            }
        } else {
            if self.content.is_empty() {
                self.length_at = self.raw.len();
            }
            self.content.extend_from_slice(bytes);
        }
        self.raw.extend_from_slice(bytes);
        Ok(())
    }

    /// Returns the bytes so far without markers.
    pub(super) fn content(&self) -> &[u8] {
        &self.content
    }

    /// Returns the bytes so far, markers included.
    pub(super) fn raw(&self) -> &[u8] {
        &self.raw
    }
}
