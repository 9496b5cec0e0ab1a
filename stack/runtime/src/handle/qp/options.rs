//! Options of queue pairs.

use ferrowarp_proto::rdmap::operation::{INLINE_LEN_MAX, SGE_COUNT_MAX};
use ferrowarp_proto::setters;
use ferrowarp_proto::verbs::qp::QpCap;

use crate::error::CreateError;
use crate::handle::cq::Cq;
use crate::handle::event_channel::EventChannel;
use crate::handle::srq::Srq;
use crate::limits::check_request;

/// Options of a queue pair (`ibv_qp_init_attr`). Start from [`QpOptions::new`] and set what
/// differs.
#[doc(alias = "ibv_qp_init_attr")]
#[doc(alias = "ibv_qp_cap")]
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct QpOptions<'a> {
    /// Completion queue of the send queue.
    pub send_cq: &'a Cq,
    /// Completion queue of the receive queue.
    pub recv_cq: &'a Cq,
    /// Shared receive queue of the same domain, from which it takes its receive buffers;
    /// `max_recv_wr` and `max_recv_sge` are then ignored.
    pub srq: Option<&'a Srq>,
    /// Maximum number of outstanding send requests, at least 1.
    pub max_send_wr: usize,
    /// Maximum number of outstanding receive requests, at least 1.
    pub max_recv_wr: usize,
    /// Scatter/gather elements of a send request, at most [`SGE_COUNT_MAX`].
    pub max_send_sge: usize,
    /// Scatter/gather elements of a receive request, at most [`SGE_COUNT_MAX`].
    pub max_recv_sge: usize,
    /// Inline bytes of a send request, at most [`INLINE_LEN_MAX`].
    pub max_inline_data: usize,
    /// Shard to which it is to belong. `None`: that of its queues, or of its connection.
    pub shard: Option<usize>,
    /// Channel of its events; `None`: the context's own ([`Context::event_channel`]).
    ///
    /// [`Context::event_channel`]: crate::Context::event_channel
    #[doc(alias = "rdma_create_id")]
    pub event_channel: Option<&'a EventChannel>,
    /// Word of the application ([`Qp::user_data`](crate::Qp::user_data)); 0 if it is not set.
    pub user_data: u64,
}

impl<'a> QpOptions<'a> {
    /// A queue pair with one completion queue, and 64 requests in each direction, each with at most
    /// 6 elements or 96 inline bytes: such a request takes 128 bytes of memory.
    #[must_use]
    pub const fn new(cq: &'a Cq) -> Self {
        let QpCap { sends, recvs } = QpCap::new(64, 64);
        Self {
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            max_send_wr: sends.max_send_wr,
            max_recv_wr: recvs.max_recv_wr,
            max_send_sge: sends.max_send_sge,
            max_recv_sge: recvs.max_recv_sge,
            max_inline_data: sends.max_inline_data,
            shard: None,
            event_channel: None,
            user_data: 0,
        }
    }

    setters! {
        recv_cq: &'a Cq,
        srq: Option<&'a Srq>,
        max_send_wr: usize,
        max_recv_wr: usize,
        max_send_sge: usize,
        max_recv_sge: usize,
        max_inline_data: usize,
        shard: Option<usize>,
        event_channel: Option<&'a EventChannel>,
        user_data: u64,
    }

    /// Checks the maximum sizes of requests.
    pub(crate) fn check_requests(&self) -> Result<(), CreateError> {
        check_request("max_send_sge", self.max_send_sge, SGE_COUNT_MAX)?;
        check_request("max_recv_sge", self.max_recv_sge, SGE_COUNT_MAX)?;
        check_request("max_inline_data", self.max_inline_data, INLINE_LEN_MAX)
    }

    /// Returns the shard to which a queue pair with these options belongs from the beginning, in a
    /// context with `count` shards: that of the options or of any of its queues.
    pub(crate) fn shard_of(&self, count: usize) -> Result<Option<usize>, CreateError> {
        if let Some(shard) = self.shard.filter(|&shard| shard >= count) {
            return Err(CreateError::NoShard { shard, count });
        }
        let queues =
            [self.send_cq.shard(), self.recv_cq.shard(), self.srq.and_then(Srq::shard), self.shard];
        let mut shards = queues.into_iter().flatten();
        let first = shards.next();
        if shards.any(|other| Some(other) != first) {
            return Err(CreateError::DifferentShards);
        }
        Ok(first)
    }
}
