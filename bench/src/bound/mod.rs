//! The bound of this machine: the copies and CRCs that a transfer cannot do without, and nothing
//! else.
//!
//! The *frozen* bound makes two passes over the bytes at each end: at the Data Source a copy from
//! the message to the frame, then the CRC of the frame; at the Data Sink the CRC of the frame, then
//! a copy to the message. Its definition does not change with the stack, so that a share of it can
//! be compared over years: the CRC is the faster of two crates ([`crc`]), not the stack's. The
//! *best* bound may use whatever is known to be faster ([`kernel`]); it is reported beside the
//! frozen one.
//!
//! Everything else is as in the run of `iwperf` that the bound is compared with: the split of
//! messages into segments and their order ([`layout`]); the addresses, one slot of the message in
//! hugepages at each end ([`message_memory`]); the frames, mbufs of the pools of a `ring` port, as
//! many of them in rotation and reused in the same order ([`frames`]); and the cores ([`rate`] on
//! one or two, [`ping_pong`] for latency).

pub mod cores;
pub mod crc;
pub mod frames;
pub mod kernel;
pub mod layout;
pub mod message_memory;
pub mod ping_pong;
pub mod rate;
pub mod transfer;
