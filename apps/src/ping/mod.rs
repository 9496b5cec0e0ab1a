//! iwping: rdma-core's rping, over this stack. Both sides can have rping as their peer.
//!
//! A round: the client advertises a source buffer by Send, the server fetches it by RDMA Read and
//! says go ahead; the client advertises a sink, the server puts the same bytes there by RDMA
//! Write and says go ahead.

pub mod client;
pub mod options;
pub mod program;
pub mod server;
pub mod wire;

/// Kind of the server's RDMA Reads.
pub const KIND_READ: u8 = crate::endpoint::WrId::FIRST_APP_KIND;
/// Kind of the server's RDMA Writes.
pub const KIND_WRITE: u8 = crate::endpoint::WrId::FIRST_APP_KIND + 1;
/// Messages each end can take at a time; rping never has two under way.
pub const CHANNEL_SLOTS: u16 = 8;
/// RDMA Reads that each end serves and issues at a time: rping does one.
pub const IRD_ORD: u16 = 4;
