//! Queue pair attributes.

use crate::verbs::wc::CqId;

/// What a queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Protection domain: only its regions are reachable.
    pub pd: u32,
    /// Completions of the send queue.
    pub send_cq: CqId,
    /// Completions of the receive queue.
    pub recv_cq: CqId,
    /// Send requests that may be outstanding.
    pub max_send_wr: usize,
    /// Receive requests that may be outstanding.
    pub max_recv_wr: usize,
}

/// State of a queue pair, as verbs sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// Created; receives may be posted.
    Idle,
    /// A connection is being set up.
    Connecting,
    /// Connected: requests are executed.
    Rts,
    /// The connection ends in good order: what was posted is executed, nothing more is taken but
    /// receive requests.
    Closing,
    /// The connection ended or failed; what is outstanding is flushed.
    Error,
}

impl QpState {
    /// Requests are executed.
    #[must_use]
    pub const fn is_connected(self) -> bool {
        matches!(self, Self::Rts | Self::Closing)
    }
}

/// Names a shared receive queue to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqId {
    /// Slot.
    pub index: u32,
    /// Use of the slot.
    pub generation: u32,
}

/// Why a call about a shared receive queue failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SrqError {
    /// No such queue.
    #[error("no such shared receive queue")]
    NoSuchSrq,
    /// No such queue pair.
    #[error("no such queue pair")]
    NoSuchQp,
    /// Queue pairs take from it.
    #[error("queue pairs still take from the shared receive queue: destroy them first")]
    InUse,
    /// The queue pair is connected, or has a shared queue already.
    #[error("the queue pair is in use already, or takes from a shared receive queue")]
    NotIdle,
    /// The two belong to different protection domains.
    #[error("the shared receive queue belongs to another protection domain")]
    OtherDomain,
    /// There are as many as may be.
    #[error("as many shared receive queues exist as may be: destroy some")]
    TooMany,
}
