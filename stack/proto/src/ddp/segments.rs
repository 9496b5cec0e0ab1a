//! Segmentation of a message into DDP segments at the Data Source (RFC 5041 section 5.2).

/// Part of a message that is still to be sent: `remaining` bytes, from `offset` on.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// Bytes of the message sent before.
    pub offset: u64,
    /// Bytes still to be sent.
    pub remaining: u64,
}

impl Chunk {
    /// Returns the payload length of the next segment, at most `payload_max`, and whether it is the
    /// last of the message.
    #[inline]
    #[must_use]
    pub fn next_segment(self, payload_max: usize) -> (usize, bool) {
        match usize::try_from(self.remaining) {
            // req: DDP-038, DDP-040
            Ok(len) if len <= payload_max => (len, true),
            // req: DDP-093
            _ => (payload_max, false),
        }
    }
}

/// Properties of a built segment.
#[derive(Clone, Copy, Debug)]
pub struct BuiltSegment {
    /// Length of header and payload in bytes.
    pub len: usize,
    /// Bytes of the message in it.
    pub payload_len: usize,
    /// Last segment of the message (the L flag).
    pub last: bool,
}
