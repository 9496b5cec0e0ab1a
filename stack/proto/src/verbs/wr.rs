//! Work requests.

pub use crate::rdmap::operation::{
    AtomicOp, Bind, INLINE_LEN_MAX, ImmediateData, Operation, Payload, SGE_COUNT_MAX, SgList, Sge,
};

/// A request for the send queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// What to do.
    pub operation: Operation,
    /// Report success too. Failures are always reported.
    pub signaled: bool,
    /// Start only when all earlier RDMA Reads and atomic operations have completed.
    pub fence: bool,
}

/// A buffer for one incoming Send, or Immediate Data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecvWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Filled in order.
    pub sg_list: SgList,
}

/// Why a request was not accepted. Nothing of it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue already holds as many requests as it was created for.
    #[error("the queue is full; poll completions before posting more")]
    QueueFull,
    /// The queue pair takes no requests in its present state.
    #[error("the queue pair is not connected")]
    WrongState,
    /// The message is longer than 2^32-1 bytes.
    #[error("the message is longer than 4294967295 octets")]
    TooLong,
    /// More scatter/gather elements, or more inline bytes, than the queue pair allows.
    #[error("too many scatter/gather elements or inline octets for this queue pair")]
    TooMany,
    /// RDMA Read or atomic operation on a connection that granted no credits for them (ORD 0).
    #[error("the connection grants no RDMA Reads or atomic operations (ORD is 0)")]
    NoReads,
    /// The word of an atomic operation is not at a multiple of eight, or its sink has not eight
    /// bytes.
    #[error("an atomic operation needs a remote word at a multiple of 8 and a sink of 8 octets")]
    Misaligned,
    /// Atomic operation or Immediate Data on a connection without RFC 7306.
    #[error("the connection has no atomic operations and no immediate data (RFC 7306)")]
    Unsupported,
    /// The queue pair takes its buffers from a shared receive queue.
    #[error("the queue pair takes buffers from a shared receive queue: post there")]
    SharedReceives,
    /// No shared receive queue has this handle.
    #[error("no such shared receive queue")]
    NoSuchSrq,
    /// No queue pair has this handle.
    #[error("no such queue pair")]
    NoSuchQp,
}
