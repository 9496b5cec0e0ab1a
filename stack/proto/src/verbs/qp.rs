//! Queue pair attributes.

use crate::ddp::recv_queue::RqCap;
use crate::rdmap::send_queue::SqCap;
use crate::verbs::wc::CqId;

/// Attributes for the creation of a queue pair (verbs: `ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Protection domain: only its regions can be accessed (verbs: `ibv_pd`).
    pub pd: u32,
    /// Completion queue of the send queue.
    pub send_cq: CqId,
    /// Completion queue of the receive queue.
    pub recv_cq: CqId,
    /// Capacities of its work queues.
    pub cap: QpCap,
}

/// Capacities of a queue pair's work queues (verbs: `ibv_qp_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Of the send queue.
    pub sends: SqCap,
    /// Of the receive queue.
    pub recvs: RqCap,
}

impl QpCap {
    /// So many requests, each of two slots at most.
    #[must_use]
    pub const fn new(max_send_wr: usize, max_recv_wr: usize) -> Self {
        Self { sends: SqCap::new(max_send_wr), recvs: RqCap::new(max_recv_wr) }
    }
}

/// State of a queue pair (verbs: `ibv_qp_state`).
#[doc(alias = "ibv_qp_state")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// Created; requests may be posted, and wait (`IBV_QPS_INIT`).
    #[doc(alias = "IBV_QPS_INIT")]
    Idle,
    /// The connection is being set up; requests wait.
    Connecting,
    /// Connected: requests are executed (`IBV_QPS_RTS`).
    #[doc(alias = "IBV_QPS_RTS")]
    Rts,
    /// Graceful close: requests already posted are executed; sends posted now are flushed.
    Closing,
    /// The connection ended or failed; outstanding requests are flushed, and what is posted
    /// (`IBV_QPS_ERR`).
    #[doc(alias = "IBV_QPS_ERR")]
    Error,
}

/// Event that may change the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QpEvent {
    /// Setup of a connection begins: an active open, or streaming mode.
    Setup,
    /// FPDUs may be exchanged from now on (RFC 5044 section 7.1).
    Start,
    /// Graceful close, by a call or the peer's FIN (RFC 5041 section 6.2.1).
    Close,
    /// The connection or its setup has ended, for any reason.
    End,
}

impl QpState {
    /// Returns the state after `event`, or `None` if the event does not apply.
    pub(super) const fn after(self, event: QpEvent) -> Option<Self> {
        use QpState::*;
        Some(match (self, event) {
            (Error, _) => return None,
            (_, QpEvent::End) => Error,
            // Streaming mode may follow an active open.
            (Idle | Connecting, QpEvent::Setup) => Connecting,
            // An accepted connection starts at once.
            (Idle | Connecting, QpEvent::Start) => Rts,
            // The second close sets another deadline.
            (Rts | Closing, QpEvent::Close) => Closing,
            _ => return None,
        })
    }

    /// True if requests are executed.
    #[must_use]
    pub const fn is_connected(self) -> bool {
        matches!(self, Self::Rts | Self::Closing)
    }
}

#[cfg(test)]
mod tests {
    use super::{QpEvent, QpState};
    use crate::state_machine::Machine;

    #[test]
    fn transition_table_is_as_listed() {
        Machine {
            title: "Queue pair",
            initial: &[QpState::Idle],
            states: &[
                QpState::Idle,
                QpState::Connecting,
                QpState::Rts,
                QpState::Closing,
                QpState::Error,
            ],
            events: &[QpEvent::Setup, QpEvent::Start, QpEvent::Close, QpEvent::End],
            after: QpState::after,
        }
        .check();
    }
}
