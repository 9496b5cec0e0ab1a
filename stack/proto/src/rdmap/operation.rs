//! What an upper layer may ask of a stream.

use arrayvec::ArrayVec;

use crate::ddp::atomic::ATOMIC_LEN;
pub use crate::ddp::regions::Bind;
use crate::ddp::regions::Stag;
pub use crate::ddp::sgl::{INLINE_LEN_MAX, SGE_COUNT_MAX, SgList, Sge};
pub use crate::wire::atomic::{AtomicOp, ImmediateData};

/// Bytes a message may have (RFC 5040 section 1.1).
pub const MESSAGE_LEN_MAX: u32 = u32::MAX;

/// Where the bytes of a message come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Gathered from registered memory when the message is built.
    Gather(SgList),
    /// Copied into the request when it was posted.
    Inline(ArrayVec<u8, INLINE_LEN_MAX>),
}

impl Payload {
    /// No bytes.
    #[must_use]
    pub const fn empty() -> Self {
        Self::Inline(ArrayVec::new_const())
    }

    /// Bytes in total; more than [`MESSAGE_LEN_MAX`] is refused when posted.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Gather(list) => crate::ddp::sgl::len(list),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// True if there is no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Operation {
    /// Bytes that the operation moves.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Send { payload, .. }
            | Self::Write { payload, .. }
            | Self::WriteImmediate { payload, .. } => payload.len(),
            Self::Read { sink, .. } | Self::Atomic { sink, .. } => u64::from(sink.len),
            Self::Immediate { .. } => 0,
            Self::Bind(_) | Self::Invalidate { .. } => 0,
        }
    }

    /// True if it concerns this end alone: nothing is sent for it.
    #[must_use]
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::Bind(_) | Self::Invalidate { .. })
    }

    /// True if it moves no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// It takes one of the ORD credits of the connection until it is answered.
    #[must_use]
    pub const fn is_answered(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Atomic { .. })
    }

    /// It is one that RFC 7306 added: a peer may not know it.
    #[must_use]
    pub const fn is_extension(&self) -> bool {
        matches!(self, Self::Atomic { .. } | Self::Immediate { .. } | Self::WriteImmediate { .. })
    }

    /// An atomic operation whose word cannot be one, or whose sink does not take a word.
    #[must_use]
    pub const fn is_misaligned(&self) -> bool {
        const LEN: u64 = ATOMIC_LEN as u64;
        match self {
            Self::Atomic { sink, remote, .. } => {
                !remote.is_multiple_of(LEN) || sink.len as u64 != LEN
            }
            _ => false,
        }
    }
}

/// An operation of RDMAP (RFC 5040 section 1.2, RFC 7306 sections 4 and 5).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Send, in its four forms.
    Send {
        /// The message.
        payload: Payload,
        /// Asks the peer for an event (Send with Solicited Event).
        solicited: bool,
        /// Invalidates this STag at the peer before its completion.
        invalidate: Option<Stag>,
    },
    /// RDMA Write to the peer's tagged buffer.
    Write {
        /// The message.
        payload: Payload,
        /// STag at the peer.
        rkey: Stag,
        /// Tagged offset at the peer.
        remote: u64,
    },
    /// RDMA Read from the peer's tagged buffer.
    Read {
        /// Where the response is placed.
        sink: Sge,
        /// STag at the peer.
        rkey: Stag,
        /// Tagged offset at the peer.
        remote: u64,
    },
    /// An atomic operation on a word of the peer's tagged buffer, whose region grants
    /// [`Access::REMOTE_ATOMIC`](crate::ddp::memory::Access::REMOTE_ATOMIC).
    ///
    /// Completes when the word that was there before has been placed. It takes part in the order
    /// and the credits of RDMA Reads; what is posted after it may overtake it unless it is fenced.
    Atomic {
        /// What to do.
        op: AtomicOp,
        /// Where the word that was there before is placed, in the byte order of this machine:
        /// eight bytes.
        sink: Sge,
        /// STag at the peer.
        rkey: Stag,
        /// Tagged offset at the peer: a multiple of eight.
        remote: u64,
    },
    /// Immediate Data: uses up a receive buffer of the peer and puts nothing there; the data come
    /// with its completion. Whatever was written before is in place by then.
    Immediate {
        /// Eight bytes.
        data: ImmediateData,
        /// Asks the peer for an event (Immediate Data with Solicited Event).
        solicited: bool,
    },
    /// RDMA Write, and Immediate Data behind it: the peer is told that it was written.
    WriteImmediate {
        /// The message.
        payload: Payload,
        /// STag at the peer.
        rkey: Stag,
        /// Tagged offset at the peer.
        remote: u64,
        /// Eight bytes.
        data: ImmediateData,
        /// Asks the peer for an event.
        solicited: bool,
    },
    /// Binds a memory window for the peer of this stream; what is posted later may advertise it.
    Bind(Bind),
    /// Invalidates an STag of this end that is for this stream alone: a window bound through it,
    /// or a region registered for it. It does not wait for Reads whose sink has that STag, unless
    /// posted with a fence.
    Invalidate {
        /// The STag.
        stag: Stag,
    },
}
