//! Work requests.

use crate::bounded_vec::LengthError;
pub use crate::rdmap::operation::{
    AtomicOp, Bind, INLINE_LEN_MAX, ImmediateData, MESSAGE_LEN_MAX, Operation, Payload,
    SGE_COUNT_MAX, SendWr, SgList, Sge, sg_list,
};
use crate::rdmap::send_queue::wqe::{OpcodeSet, WqeOpcode};
pub use crate::work_queue::PostError;

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
    /// Rights that a connection may give.
    pub const ALL: Self = Self { reads: true, extensions: true };

    /// Checks that they permit an operation.
    ///
    /// # Errors
    /// `NoReads`, `Unsupported`.
    #[inline(always)]
    pub const fn check(self, opcode: WqeOpcode) -> Result<(), PostError> {
        if !self.extensions && OpcodeSet::EXTENSIONS.contains(opcode) {
            return Err(PostError::Unsupported);
        }
        if !self.reads && OpcodeSet::ANSWERED.contains(opcode) {
            return Err(PostError::NoReads);
        }
        Ok(())
    }
}
