//! What an upper layer may ask of a stream.

use arrayvec::ArrayVec;

use crate::ddp::regions::Stag;
pub use crate::ddp::sgl::{INLINE_LEN_MAX, SGE_COUNT_MAX, SgList, Sge};

/// Octets a message may have (RFC 5040 section 1.1).
pub const MESSAGE_LEN_MAX: u32 = u32::MAX;

/// Where the octets of a message come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Gathered from registered memory when the message is built.
    Gather(SgList),
    /// Copied into the request when it was posted.
    Inline(ArrayVec<u8, INLINE_LEN_MAX>),
}

impl Payload {
    /// No octets.
    #[must_use]
    pub const fn empty() -> Self {
        Self::Inline(ArrayVec::new_const())
    }

    /// Octets in total; more than [`MESSAGE_LEN_MAX`] is refused when posted.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Gather(list) => crate::ddp::sgl::len(list),
            Self::Inline(octets) => octets.len() as u64,
        }
    }

    /// True if there is no octet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Operation {
    /// Octets that the operation moves.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Send { payload, .. } | Self::Write { payload, .. } => payload.len(),
            Self::Read { sink, .. } => u64::from(sink.len),
        }
    }

    /// True if it moves no octet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An operation of RDMAP (RFC 5040 section 1.2).
#[derive(Clone, Debug, PartialEq, Eq)]
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
}
