//! iwcopy: copies a file from one end to the other, by RDMA Write or by RDMA Read, with a SHA-256
//! taken at both ends.
//!
//! The file goes through slots of registered memory: the source fills one and announces it, the
//! sink takes the bytes (with RDMA Read it fetches them first) and gives the slot back.

pub mod options;
pub mod program;
pub mod sink;
pub mod source;
pub mod wire;

/// Slots at each end.
pub const SLOTS: u32 = 8;
/// Bytes per slot.
pub const SLOT_LEN: u32 = 1 << 20;
/// Bytes between drives of the shard while a slot is filled, taken or digested.
pub const CHUNK_LEN: usize = 64 << 10;
/// Messages each end can take at a time: one per slot, and the first and last ones.
pub const CHANNEL_SLOTS: u16 = 32;
/// RDMA Reads under way at a time.
pub const IRD_ORD: u16 = 16;
/// Kind of the RDMA Writes and Reads.
pub const KIND_RDMA: u8 = crate::endpoint::WrId::FIRST_APP_KIND;

/// A SHA-256.
pub type Digest = [u8; 32];

/// A digest for people.
#[must_use]
pub fn hex(digest: &Digest) -> String {
    use std::fmt::Write as _;
    digest.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
