//! Operations that the ULP can post to a stream.

use crate::bounded_vec::{BoundedVec, LengthError};
pub use crate::ddp::regions::Bind;
use crate::ddp::regions::Stag;
pub use crate::ddp::sgl::{INLINE_LEN_MAX, SGE_COUNT_MAX, SgList, Sge};
use crate::rdmap::send_queue::wqe::{SendFlags, WqeOpcode};
use crate::rdmap::send_queue::{SqProducer, WqeHead, WqePayload};
pub use crate::wire::rdmap_extensions::{AtomicOp, ImmediateData, immediate_u32};
use crate::work_queue::PostError;

/// Maximum length of a message in bytes (RFC 5040 section 1.1).
pub const MESSAGE_LEN_MAX: u32 = u32::MAX;

/// Source of the bytes of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "owned requests are for tests and the simulation")]
pub enum Payload {
    /// Gathered from registered memory when its segments are built.
    Gather(SgList),
    /// Copied into the request when it was posted (verbs: `IBV_SEND_INLINE`); [`Payload::inline`]
    /// checks the length.
    Inline(BoundedVec<u8, INLINE_LEN_MAX>),
}

/// Returns a scatter/gather list of these elements.
///
/// # Errors
/// [`LengthError`]: more than [`SGE_COUNT_MAX`].
pub fn sg_list(elements: &[Sge]) -> Result<SgList, LengthError> {
    SgList::named(elements, "scatter/gather elements")
}

impl Payload {
    /// A payload that is copied into the request.
    ///
    /// # Errors
    /// [`LengthError`]: more than [`INLINE_LEN_MAX`] bytes.
    pub fn inline(bytes: &[u8]) -> Result<Self, LengthError> {
        BoundedVec::named(bytes, "inline bytes").map(Self::Inline)
    }

    /// A payload of registered memory.
    ///
    /// # Errors
    /// [`LengthError`]: more than [`SGE_COUNT_MAX`] elements.
    pub fn gather(elements: &[Sge]) -> Result<Self, LengthError> {
        sg_list(elements).map(Self::Gather)
    }

    /// Creates an empty payload.
    #[must_use]
    pub const fn empty() -> Self {
        Self::Inline(BoundedVec::new())
    }

    /// Returns it as the encoder takes it.
    fn as_wqe(&self) -> WqePayload<'_> {
        match self {
            Self::Gather(list) => WqePayload::Gather(list),
            Self::Inline(bytes) => WqePayload::Inline(bytes),
        }
    }

    /// Returns the length in bytes; more than [`MESSAGE_LEN_MAX`] is refused when posted.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Gather(list) => crate::ddp::sgl::len(list),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// True if the payload is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Send request (verbs: `ibv_send_wr`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// Work request ID, returned in the completion.
    pub wr_id: u64,
    /// Operation to perform (verbs: `ibv_wr_opcode` and its operands).
    pub operation: Operation,
    /// Success is reported too (verbs: `IBV_SEND_SIGNALED`). Errors are always reported.
    pub signaled: bool,
    /// Fence: starts only when all earlier RDMA Reads and atomic operations have completed (verbs:
    /// `IBV_SEND_FENCE`).
    pub fence: bool,
}

impl Operation {
    /// Returns the number of bytes that the operation transfers.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Send { payload, .. }
            | Self::Write { payload, .. }
            | Self::WriteImmediate { payload, .. } => payload.len(),
            Self::Read { sink, .. } => crate::ddp::sgl::len(sink),
            Self::Atomic { sink, .. } => u64::from(sink.len),
            Self::Immediate { .. } => 0,
            Self::Bind(_) | Self::Invalidate { .. } => 0,
        }
    }

    /// True for a local operation: it sends nothing.
    #[must_use]
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::Bind(_) | Self::Invalidate { .. })
    }

    /// True if it transfers no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if it uses an ORD credit until its response has been received.
    #[must_use]
    pub const fn is_answered(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Atomic { .. })
    }

    /// True for an operation of RFC 7306: a peer may not support it.
    #[must_use]
    pub const fn is_extension(&self) -> bool {
        matches!(self, Self::Atomic { .. } | Self::Immediate { .. } | Self::WriteImmediate { .. })
    }

    /// Returns the opcode.
    #[must_use]
    pub const fn opcode(&self) -> WqeOpcode {
        match self {
            Self::Send { .. } => WqeOpcode::Send,
            Self::Write { .. } => WqeOpcode::Write,
            Self::WriteImmediate { .. } => WqeOpcode::WriteImmediate,
            Self::Read { .. } => WqeOpcode::Read,
            Self::Atomic { op: AtomicOp::FetchAdd { .. }, .. } => WqeOpcode::FetchAdd,
            Self::Atomic { op: AtomicOp::Swap { .. }, .. } => WqeOpcode::Swap,
            Self::Atomic { op: AtomicOp::CmpSwap { .. }, .. } => WqeOpcode::CmpSwap,
            Self::Immediate { .. } => WqeOpcode::Immediate,
            Self::Bind(_) => WqeOpcode::Bind,
            Self::Invalidate { .. } => WqeOpcode::Invalidate,
        }
    }
}

impl SendWr {
    /// Posts it to a send queue.
    ///
    /// # Errors
    /// [`PostError`]; the rights of the connection are not checked.
    pub fn post_to(&self, queue: &mut SqProducer) -> Result<(), PostError> {
        let wr_id = self.wr_id;
        let flags = SendFlags::SIGNALED.when(self.signaled).and(SendFlags::FENCE.when(self.fence));
        let solicited = |is_set: &bool| flags.and(SendFlags::SOLICITED.when(*is_set));
        let head = WqeHead { wr_id, flags, stag: 0, remote: 0 };
        let posted = match &self.operation {
            Operation::Send { payload, solicited: is_set, invalidate } => {
                let flags = solicited(is_set);
                let flags = flags.and(SendFlags::INVALIDATE.when(invalidate.is_some()));
                let head = WqeHead { flags, stag: invalidate.unwrap_or(0), ..head };
                queue.post(WqeOpcode::Send, &head, payload.as_wqe())
            }
            Operation::Write { payload, rkey: stag, remote } => {
                let head = WqeHead { stag: *stag, remote: *remote, ..head };
                queue.post(WqeOpcode::Write, &head, payload.as_wqe())
            }
            Operation::Read { sink, rkey: stag, remote } => {
                let head = WqeHead { stag: *stag, remote: *remote, ..head };
                queue.post(WqeOpcode::Read, &head, WqePayload::Gather(sink))
            }
            Operation::Atomic { op, sink, rkey: stag, remote } => {
                let head = WqeHead { stag: *stag, remote: *remote, ..head };
                queue.post_atomic(&head, *op, sink)
            }
            Operation::Immediate { data, solicited: is_set } => {
                queue.post_immediate(&WqeHead { flags: solicited(is_set), ..head }, *data)
            }
            Operation::WriteImmediate { payload, rkey, remote, data, solicited: is_set } => {
                let (flags, stag, remote) = (solicited(is_set), *rkey, *remote);
                let head = WqeHead { wr_id, flags, stag, remote };
                queue.post_write_immediate(&head, *data, payload.as_wqe())
            }
            Operation::Bind(bind) => queue.post_bind(wr_id, flags, bind),
            Operation::Invalidate { stag } => queue.post_invalidate(wr_id, flags, *stag),
        };
        posted.map(|_| ())
    }
}

/// RDMAP operation (RFC 5040 section 1.2, RFC 7306 sections 4 and 5), or a local operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Send, in its four forms (verbs: `IBV_WR_SEND`, `IBV_WR_SEND_WITH_INV`).
    Send {
        /// The message.
        payload: Payload,
        /// Send with Solicited Event (verbs: `IBV_SEND_SOLICITED`).
        solicited: bool,
        /// Send with Invalidate: the peer's STag to invalidate before delivery.
        invalidate: Option<Stag>,
    },
    /// RDMA Write to the peer's tagged buffer (verbs: `IBV_WR_RDMA_WRITE`).
    Write {
        /// The message.
        payload: Payload,
        /// STag at the peer.
        rkey: Stag,
        /// Tagged offset at the peer.
        remote: u64,
    },
    /// RDMA Read from the peer's tagged buffer (verbs: `IBV_WR_RDMA_READ`).
    Read {
        /// Data Sink: the local buffer for the response. Each element that is not empty gets a
        /// Read Request.
        sink: SgList,
        /// STag at the peer.
        rkey: Stag,
        /// Tagged offset at the peer.
        remote: u64,
    },
    /// Atomic operation on a word of the peer's tagged buffer, whose region grants
    /// [`Access::REMOTE_ATOMIC`](crate::ddp::memory::Access::REMOTE_ATOMIC) (verbs:
    /// `IBV_WR_ATOMIC_FETCH_AND_ADD`, `IBV_WR_ATOMIC_CMP_AND_SWP`).
    ///
    /// Completes when the original remote value has been placed. It is ordered with RDMA Reads and
    /// uses their ORD credits; requests posted after it may overtake it unless they are fenced.
    Atomic {
        /// Operation and operands.
        op: AtomicOp,
        /// Local buffer for the original remote value, in the byte order of this machine: eight
        /// bytes.
        sink: Sge,
        /// STag at the peer.
        rkey: Stag,
        /// Tagged offset at the peer: a multiple of eight.
        remote: u64,
    },
    /// Immediate Data: consumes a receive buffer of the peer and writes nothing to it. The data are
    /// reported in its completion. RDMA Writes posted before are placed by then.
    Immediate {
        /// Eight bytes.
        data: ImmediateData,
        /// Immediate Data with Solicited Event.
        solicited: bool,
    },
    /// RDMA Write followed by Immediate Data, which notifies the peer of the Write (verbs:
    /// `IBV_WR_RDMA_WRITE_WITH_IMM`).
    WriteImmediate {
        /// The message.
        payload: Payload,
        /// STag at the peer.
        rkey: Stag,
        /// Tagged offset at the peer.
        remote: u64,
        /// Eight bytes.
        data: ImmediateData,
        /// Immediate Data with Solicited Event.
        solicited: bool,
    },
    /// Local operation (verbs: `IBV_WR_BIND_MW`): binds a memory window for the peer of this
    /// stream. Requests posted after it may advertise its STag.
    Bind(Bind),
    /// Local operation (verbs: `IBV_WR_LOCAL_INV`): invalidates an STag that is valid for this
    /// stream only, of a window bound through it or a region registered for it. It does not wait
    /// for Reads whose sink has that STag, unless posted with a fence.
    Invalidate {
        /// The STag.
        stag: Stag,
    },
}
