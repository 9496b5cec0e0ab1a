//! DDP: tagged and untagged segments, STags and the memory that they name (RFC 5041, and the RDMA
//! Consortium's version 1.0, which differs on the wire in one field).

mod access;
pub mod atomic;
pub mod memory;
pub mod recv_queue;
pub mod regions;
pub mod sgl;
pub mod untagged;
pub mod vec_memory;
