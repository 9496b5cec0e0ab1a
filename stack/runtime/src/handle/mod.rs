//! Handles: the objects of verbs that applications hold, each with its calls.
//!
//! A handle keeps its context open. Posting and polling work on rings; every other call locks a
//! shard for a moment.
//!
//! The call that creates a handle is a method of its parent, `Context` or `Pd`, as in verbs. It
//! stands in the file of the handle, next to the state that it makes.

#[cfg(feature = "tokio")]
pub mod asynchronous;
pub(crate) mod comp_channel;
pub(crate) mod cq;
mod debug;
pub(crate) mod event_channel;
pub(crate) mod listener;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod shard;
pub(crate) mod srq;
