//! Options of queue pairs.

use crate::error::CreateError;
use crate::handle::cq::Cq;
use crate::handle::srq::Srq;

/// Options of a queue pair (`ibv_qp_init_attr`). Start from [`QpOptions::new`] and set what
/// differs.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct QpOptions<'a> {
    /// Completion queue of the send queue.
    pub send_cq: &'a Cq,
    /// Completion queue of the receive queue.
    pub recv_cq: &'a Cq,
    /// Shared receive queue of the same domain, from which it takes its receive buffers;
    /// `max_recv_wr` is then ignored.
    pub srq: Option<&'a Srq>,
    /// Maximum number of outstanding send requests, at least 1.
    pub max_send_wr: usize,
    /// Maximum number of outstanding receive requests, at least 1.
    pub max_recv_wr: usize,
    /// Shard to which it is to belong. `None`: that of its queues, or of its connection.
    pub shard: Option<usize>,
}

impl<'a> QpOptions<'a> {
    /// A queue pair with one completion queue, and 64 requests in each direction.
    #[must_use]
    pub const fn new(cq: &'a Cq) -> Self {
        let (max_send_wr, max_recv_wr) = (64, 64);
        Self { send_cq: cq, recv_cq: cq, srq: None, max_send_wr, max_recv_wr, shard: None }
    }

    /// Sets the completion queue of the receive queue.
    #[must_use]
    pub const fn recv_cq(mut self, cq: &'a Cq) -> Self {
        self.recv_cq = cq;
        self
    }

    /// Sets the shared receive queue.
    #[must_use]
    pub const fn srq(mut self, srq: &'a Srq) -> Self {
        self.srq = Some(srq);
        self
    }

    /// Sets the maximum number of outstanding send requests.
    #[must_use]
    pub const fn max_send_wr(mut self, count: usize) -> Self {
        self.max_send_wr = count;
        self
    }

    /// Sets the maximum number of outstanding receive requests.
    #[must_use]
    pub const fn max_recv_wr(mut self, count: usize) -> Self {
        self.max_recv_wr = count;
        self
    }

    /// Sets the shard.
    #[must_use]
    pub const fn shard(mut self, shard: usize) -> Self {
        self.shard = Some(shard);
        self
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
