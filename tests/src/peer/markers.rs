//! FPDUs with markers, byte by byte as the text has it (RFC 5044 section 4.3).

/// Bytes from one marker to the next.
const PERIOD: u64 = 512;

/// Puts an FPDU together whose direction has sent `sent` bytes since full operation began.
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
    // Behind a marker that the FPDU opens with.
    let mut length_at = None;
    let mut mark = |bytes: &mut Vec<u8>| {
        if (sent + bytes.len() as u64).is_multiple_of(PERIOD) {
            let back = length_at.map_or(0, |at: usize| bytes.len() - at);
            let back = u32::try_from(back).expect("an FPDU is short");
            bytes.extend_from_slice(&back.to_be_bytes());
        }
        length_at.get_or_insert(bytes.len());
    };
    for byte in content {
        mark(&mut bytes);
        bytes.push(byte);
    }
    mark(&mut bytes);
    let check = if crc { crc32c::crc32c(&bytes) } else { 0x0BAD_0BAD };
    bytes.extend_from_slice(&check.to_le_bytes());
    bytes
}

/// Takes the markers, if there are any, out of one FPDU as its bytes arrive.
#[derive(Debug)]
pub(super) struct MarkedReader {
    /// Bytes of the direction before this FPDU, if there are markers in it.
    stream_pos: Option<u64>,
    /// All bytes so far, markers included.
    raw: Vec<u8>,
    /// The same without markers.
    content: Vec<u8>,
    length_at: usize,
}

impl MarkedReader {
    pub(super) const fn new(before: Option<u64>) -> Self {
        Self { stream_pos: before, raw: Vec::new(), content: Vec::new(), length_at: 0 }
    }

    /// True if the next byte of the direction begins a marker.
    fn at_marker(&self) -> bool {
        self.stream_pos
            .is_some_and(|before| (before + self.raw.len() as u64).is_multiple_of(PERIOD))
    }

    /// How many bytes to read next on the way to `wanted` bytes of content: a whole marker, or
    /// what lies before the next one. 0: all are there.
    pub(super) fn next_len(&self, wanted: usize) -> usize {
        let missing = wanted - self.content.len();
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

    /// Takes the bytes that [`MarkedReader::next_len`] asked for.
    ///
    /// # Errors
    /// What is wrong with a marker.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        if self.at_marker() {
            let fpduptr = u32::from_be_bytes(bytes.try_into().expect("a whole marker"));
            let at = self.raw.len();
            let right = if self.content.is_empty() { 0 } else { at - self.length_at };
            if u64::from(fpduptr) != right as u64 {
                return Err(format!("FPDUPTR is {fpduptr:#x} and not {right:#x}"));
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

    /// What has come without markers.
    pub(super) fn content(&self) -> &[u8] {
        &self.content
    }

    /// What has come, markers included.
    pub(super) fn raw(&self) -> &[u8] {
        &self.raw
    }
}
