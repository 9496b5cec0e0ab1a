//! Attributes of a queue pair while it is used (verbs: `ibv_query_qp`).

use core::net::SocketAddr;

use crate::ddp::recv_queue::RqCap;
use crate::ddp::untagged::BufferQueue;
use crate::rdmap::requester::Requester;
use crate::rdmap::send_queue::SqCap;
use crate::verbs::cm::{ConnectError, EndReason};
use crate::verbs::qp::QpState;

/// Attributes of a queue pair and of its connection, as they are at the moment (`ibv_qp_attr`,
/// `ibv_qp_init_attr`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_qp_attr")]
#[non_exhaustive]
pub struct QpAttrs {
    /// State.
    pub state: QpState,
    /// Maximum number of outstanding send requests.
    pub max_send_wr: usize,
    /// Scatter/gather elements of a send request.
    pub max_send_sge: usize,
    /// Inline bytes of a send request.
    pub max_inline_data: usize,
    /// Maximum number of outstanding receive requests; 0 with a shared receive queue.
    pub max_recv_wr: usize,
    /// Scatter/gather elements of a receive request; 0 with a shared receive queue.
    pub max_recv_sge: usize,
    /// Send requests that were posted, and not reported yet.
    pub send_depth: usize,
    /// Receive requests that were posted, and not used yet.
    pub recv_depth: usize,
    /// IRD: RDMA Reads and atomic operations of the peer served at a time (`max_dest_rd_atomic`). 0
    /// before the connection.
    pub ird: u16,
    /// ORD: local RDMA Reads and atomic operations outstanding at a time (`max_rd_atomic`). 0
    /// before the connection, and once no response can arrive any more.
    pub ord: u16,
    /// Local address of the connection, or of the last one.
    pub local: Option<SocketAddr>,
    /// Address of the peer, or of the last one.
    pub peer: Option<SocketAddr>,
    /// Reason for the end of the connection, in the error state.
    pub end: Option<EndReason>,
    /// Why the connection could not be set up, if that failed.
    pub connect_error: Option<ConnectError>,
}

impl QpAttrs {
    /// Attributes of a queue pair with these queues and no connection.
    #[must_use]
    pub fn of_queues(requester: &Requester, recv_queue: &BufferQueue) -> Self {
        let SqCap { max_send_wr, max_send_sge, max_inline_data } = requester.cap();
        let RqCap { max_recv_wr, max_recv_sge } = recv_queue.cap();
        Self {
            state: QpState::Idle,
            max_send_wr,
            max_send_sge,
            max_inline_data,
            max_recv_wr,
            max_recv_sge,
            send_depth: requester.depth(),
            recv_depth: recv_queue.depth(),
            ird: 0,
            ord: 0,
            local: None,
            peer: None,
            end: None,
            connect_error: None,
        }
    }

    /// The same of a queue pair that takes its buffers from a shared receive queue.
    #[must_use]
    pub const fn with_shared_receives(self) -> Self {
        Self { max_recv_wr: 0, max_recv_sge: 0, recv_depth: 0, ..self }
    }
}
