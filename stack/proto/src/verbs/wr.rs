//! Work requests.

use crate::bounded_vec::LengthError;
pub use crate::rdmap::operation::{
    AtomicOp, Bind, INLINE_LEN_MAX, ImmediateData, MESSAGE_LEN_MAX, Operation, Payload,
    SGE_COUNT_MAX, SendWr, SgList, Sge, sg_list,
};

/// Receive request (verbs: `ibv_recv_wr`): a buffer for one incoming Send or Immediate Data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecvWr {
    /// Work request ID, returned in the completion.
    pub wr_id: u64,
    /// Scatter/gather list, filled front to back.
    pub sg_list: SgList,
}

impl RecvWr {
    /// A buffer of these elements.
    ///
    /// # Errors
    /// [`LengthError`]: more than [`SGE_COUNT_MAX`] elements.
    pub fn new(wr_id: u64, elements: &[Sge]) -> Result<Self, LengthError> {
        Ok(Self { wr_id, sg_list: sg_list(elements)? })
    }
}

/// Reason why a request was refused (verbs: the error of `ibv_post_send`, `ibv_post_recv` and
/// `ibv_post_srq_recv`). Nothing of it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue already holds the maximum number of requests.
    #[error("the queue is full; poll completions before posting more")]
    QueueFull,
    /// The state of the queue pair does not allow the request.
    #[error("the queue pair is not connected")]
    WrongState,
    /// The message is longer than 2^32-1 bytes.
    #[error("the message is longer than 4294967295 bytes")]
    TooLong,
    /// RDMA Read or atomic operation on a connection with ORD 0.
    #[error("the connection grants no RDMA Reads or atomic operations (ORD is 0)")]
    NoReads,
    /// The word of an atomic operation is not at a multiple of eight, or its sink is not eight
    /// bytes.
    #[error("an atomic operation needs a remote word at a multiple of 8 and a sink of 8 bytes")]
    Misaligned,
    /// Atomic operation or Immediate Data on a connection without RFC 7306.
    #[error("the connection has no atomic operations and no immediate data (RFC 7306)")]
    Unsupported,
    /// The queue pair is attached to a shared receive queue.
    #[error("the queue pair takes buffers from a shared receive queue: post there")]
    SharedReceives,
    /// No shared receive queue has this handle.
    #[error("no such shared receive queue")]
    NoSuchSrq,
    /// No queue pair has this handle.
    #[error("no such queue pair")]
    NoSuchQp,
}

/// Rights of a connection to post to its send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendRights {
    /// The connection grants RDMA Reads and atomic operations: ORD is not 0.
    pub reads: bool,
    /// The connection has the operations of RFC 7306.
    pub extensions: bool,
}

impl SendRights {
    /// Rights without a connection: no RDMA Reads, no atomic operations, no extensions.
    pub const NONE: Self = Self { reads: false, extensions: false };
}

impl SendWr {
    /// Checks a request before it is posted. Costs a few instructions.
    ///
    /// # Errors
    /// `TooLong`, `Misaligned`, `NoReads`, `Unsupported`.
    #[inline]
    pub fn check(&self, rights: SendRights) -> Result<(), PostError> {
        let operation = &self.operation;
        if operation.is_extension() && !rights.extensions {
            return Err(PostError::Unsupported);
        }
        // req: DDP-095, RDMAP-002
        if operation.len() > u64::from(MESSAGE_LEN_MAX) {
            return Err(PostError::TooLong);
        }
        if operation.is_misaligned() {
            return Err(PostError::Misaligned);
        }
        if operation.is_answered() && !rights.reads {
            return Err(PostError::NoReads);
        }
        Ok(())
    }
}
