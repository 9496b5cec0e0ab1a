//! Work completions.

use crate::ddp::regions::Stag;
use crate::rdmap::operation::{AtomicOp, Operation};
use crate::wire::atomic::ImmediateData;

/// Names a completion queue to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub u32);

/// Names a queue pair to its engine; never reused for another within 2^32 creations of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpId {
    /// Slot.
    pub index: u32,
    /// Use of the slot.
    pub generation: u32,
}

/// What a completion is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WcOpcode {
    /// A Send of any form.
    Send,
    /// An RDMA Write, with or without immediate data.
    Write,
    /// An RDMA Read.
    Read,
    /// An incoming Send filled a receive buffer.
    Recv,
    /// An atomic addition.
    FetchAdd,
    /// An atomic swap.
    Swap,
    /// An atomic comparison and swap, whether it swapped or not.
    CmpSwap,
    /// Immediate Data, alone.
    Immediate,
    /// Incoming Immediate Data used up a receive buffer: [`Wc::immediate`].
    RecvImmediate,
    /// A window was bound.
    Bind,
    /// An STag of this end was invalidated.
    Invalidate,
}

impl WcOpcode {
    /// The completion is one of the receive queue.
    #[must_use]
    pub const fn is_receive(self) -> bool {
        matches!(self, Self::Recv | Self::RecvImmediate)
    }
}

impl From<&Operation> for WcOpcode {
    fn from(operation: &Operation) -> Self {
        match operation {
            Operation::Send { .. } => Self::Send,
            Operation::Write { .. } | Operation::WriteImmediate { .. } => Self::Write,
            Operation::Read { .. } => Self::Read,
            Operation::Atomic { op: AtomicOp::FetchAdd { .. }, .. } => Self::FetchAdd,
            Operation::Atomic { op: AtomicOp::Swap { .. }, .. } => Self::Swap,
            Operation::Atomic { op: AtomicOp::CmpSwap { .. }, .. } => Self::CmpSwap,
            Operation::Immediate { .. } => Self::Immediate,
            Operation::Bind(_) => Self::Bind,
            Operation::Invalidate { .. } => Self::Invalidate,
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WcStatus {
    /// As asked.
    #[error("success")]
    Success,
    /// A local buffer was not registered as the request claimed.
    #[error("local protection error: a buffer of the request is not registered for this use")]
    LocalProtection,
    /// A window could not be bound: it is bound already, or the region does not allow it.
    #[error("bind error: the window is bound already, or the region does not allow the binding")]
    Bind,
    /// A message was longer than the receive buffer.
    #[error("local length error: the message is longer than the receive buffer")]
    LocalLength,
    /// The peer refused the access with a Terminate.
    #[error("remote access error: the peer refused the access")]
    RemoteAccess,
    /// The peer could not process the operation.
    #[error("remote operation error: the peer could not process the operation")]
    RemoteOperation,
    /// The queue pair left its connected state before the request ended.
    #[error("flushed: the connection ended first")]
    Flushed,
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wc {
    /// The request's.
    pub wr_id: u64,
    /// The queue pair it was posted to.
    pub qp: QpId,
    /// How it ended.
    pub status: WcStatus,
    /// What it was. Meaningful also on failure.
    pub opcode: WcOpcode,
    /// Bytes received (`Recv`) or moved.
    pub byte_len: u32,
    /// `Recv`, `RecvImmediate`: the sender asked for an event.
    pub solicited: bool,
    /// `Recv`: this STag of ours was invalidated by the Send.
    pub invalidated: Option<Stag>,
    /// `RecvImmediate`: what the sender said. RDMA Writes that it posted before are in place.
    pub immediate: Option<ImmediateData>,
}

/// Where the engine puts completions. Production implements it over lock-free rings.
pub trait Completions {
    /// Appends to a queue; `false` if it is full (nothing was appended).
    fn push(&mut self, cq: CqId, wc: Wc) -> bool;
}
