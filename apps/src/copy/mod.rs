//! iwcopy: copies a file by RDMA Write or by RDMA Read, and compares SHA-256 digests of source and
//! sink.
//!
//! The file passes through slots of registered memory: the source fills a slot and announces it;
//! the sink consumes the bytes (with RDMA Read it fetches them first) and returns a slot credit.

pub mod copy_message;
mod failure;
pub mod iwcopy_options;
pub mod iwcopy_program;
pub mod sink;
pub mod source;

/// Slots on each side.
pub const SLOTS: u32 = 8;
/// Bytes per slot.
pub const SLOT_LEN: u32 = 1 << 20;
/// Bytes processed between two polls of the shard while a slot is filled, consumed or digested.
pub const CHUNK_LEN: usize = 64 << 10;
/// Receives posted on each side: one per slot, and those for the first and last messages.
pub const CHANNEL_SLOTS: u16 = 32;
/// IRD and ORD.
pub const IRD_ORD: u16 = 16;
/// Kind of the RDMA Writes and Reads.
pub const KIND_RDMA: u8 = crate::endpoint::WrId::FIRST_APP_KIND;

/// A SHA-256 digest.
pub type Digest = [u8; 32];

/// Formats a digest in hexadecimal.
#[must_use]
pub fn hex(digest: &Digest) -> String {
    use std::fmt::Write as _;
    digest.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
