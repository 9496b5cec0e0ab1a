//! Steering: which engine a received frame belongs to, where several engines poll the queues of
//! one port.
//!
//! Each engine, with its queue, is a shard. A connection belongs to one shard, and normally the
//! port delivers its frames to that shard's queue. A frame that arrives elsewhere is forwarded to
//! its owner, once.
//!
//! - `owners`: the owner of each four-tuple, reserved before the connection exists.
//! - `mesh`: the rings between the shards, and what the shards share.
//! - `message`: what the rings carry.
//! - `toeplitz`: RSS, which queue a port delivers a four-tuple to.
//! - `backlog`: passive connections in setup, counted over all shards.

pub(crate) mod backlog;
pub mod mesh;
pub(crate) mod message;
pub mod owners;
pub mod toeplitz;
