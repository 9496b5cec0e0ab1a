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
    /// The connection ended or failed; what is outstanding is flushed.
    Error,
}
