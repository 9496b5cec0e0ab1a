//! Bytes to values and back. What `smoltcp::wire` has is not written again.

pub mod atomic;
pub mod checksum;
pub mod ddp;
pub mod ethernet;
pub mod ip;
pub mod mpa;
pub mod rdmap;
pub mod seq;
pub mod tcp;
pub mod terminate;
