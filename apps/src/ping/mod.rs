//! iwping: rdma-core's rping on this stack. Client and server interoperate with rping.
//!
//! A round: the client advertises a source buffer by Send; the server fetches it by RDMA Read and
//! sends a go-ahead. The client advertises a sink buffer; the server writes the same bytes there by
//! RDMA Write and sends a go-ahead.

pub mod advert;
pub mod iwping_options;
pub mod iwping_program;
pub mod ping_client;
pub mod ping_server;

/// Kind of the server's RDMA Reads.
pub const KIND_READ: u8 = crate::endpoint::WrId::FIRST_APP_KIND;
/// Kind of the server's RDMA Writes.
pub const KIND_WRITE: u8 = crate::endpoint::WrId::FIRST_APP_KIND + 1;
/// Receives posted on each side; rping never has two messages in flight.
pub const CHANNEL_SLOTS: u16 = 8;
/// Default IRD and ORD; rping uses one RDMA Read at a time.
pub const IRD_ORD: u16 = 4;
