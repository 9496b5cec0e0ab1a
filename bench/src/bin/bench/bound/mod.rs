//! The bound of this machine: the copies and CRCs that a transfer cannot do without, and nothing
//! else.
//!
//! The *frozen* bound makes two passes over the bytes at each end: at the Data Source a copy from
//! the message to the frame, then the CRC of the frame; at the Data Sink the CRC of the frame, then
//! a copy to the message. Its definition does not change with the stack, so that a share of it can
//! be compared over years: the CRC is the faster of two crates ([`crc`]), not the stack's. The
//! *best* bound may use the CRC of the stack as well, where that is faster; it is reported next to
//! the frozen one.
//!
//! Everything else is as in the run of `iwperf` that the bound is compared with: the split of
//! messages into segments and their order ([`layout`]); the addresses, one slot of the message in
//! hugepages at each end ([`message_memory`]); the frames, mbufs of the pools of a `ring` port, as
//! many of them in rotation and reused in the same order ([`frames`]); and the cores ([`rate`] on
//! one or two, [`ping_pong`] for latency).

pub(crate) mod crc;
pub(crate) mod frames;
pub(crate) mod layout;
pub(crate) mod message_memory;
pub(crate) mod ping_pong;
pub(crate) mod rate;
pub(crate) mod transfer;
