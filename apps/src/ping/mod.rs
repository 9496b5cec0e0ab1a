//! iwping: rdma-core's rping, over this stack. Both sides can have rping as their peer.
//!
//! A round: the client advertises a source buffer by Send, the server fetches it by RDMA Read and
//! says go ahead; the client advertises a sink, the server puts the same octets there by RDMA
//! Write and says go ahead.

pub mod client;
pub mod options;
pub mod program;
pub mod server;
pub mod wire;

/// Kind of the server's RDMA Reads.
pub const READ: u8 = crate::link::Id::FIRST_FREE;
/// Kind of the server's RDMA Writes.
pub const WRITE: u8 = crate::link::Id::FIRST_FREE + 1;
/// Messages each end can take at a time; rping never has two under way.
pub const CHANNEL_SLOTS: u16 = 8;
/// RDMA Reads that each end serves and issues at a time: rping does one.
pub const READS: u16 = 4;
