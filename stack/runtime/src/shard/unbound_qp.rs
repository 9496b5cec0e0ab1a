//! Queue pairs that belong to no shard yet, as a shard gets them.

use std::sync::Arc;

use ferrowarp_proto::ddp::regions::StreamId;
use ferrowarp_proto::ddp::untagged::BufferQueue;
use ferrowarp_proto::rdmap::requester::Requester;
use ferrowarp_proto::verbs::qp::QpInit;
use ferrowarp_proto::verbs::wc::{CqId, QpId};
use ferrowarp_proto::work_queue::Tails;

use crate::shard::qp::QpShared;

/// Queue pair that belongs to no shard yet: the engine's side of its queues.
pub(crate) struct UnboundQp {
    pub(crate) id: QpId,
    pub(crate) shared: Arc<QpShared>,
    pub(crate) queues: UnboundQueues,
}

/// Engine's side of the queues of a queue pair that belongs to no shard yet.
pub(crate) struct UnboundQueues {
    pub(crate) init: QpInit,
    pub(crate) stream: StreamId,
    pub(crate) requester: Requester,
    pub(crate) recv_queue: BufferQueue,
    /// Tails of the send queue and of the receive queue.
    pub(crate) tails: Tails<2>,
}

/// All queue pairs of a context that belong to no shard yet.
pub(crate) trait UnboundQpTable: Send + Sync {
    /// Looks at `count` queue pairs, from the number `from` on. Removes those that use a completion
    /// queue, or all, and passes each to `adopt`, by which it belongs to the calling shard. A queue
    /// pair is not destroyed meanwhile. Returns the number to go on from, if there are more.
    fn adopt(
        &self,
        of: Option<CqId>,
        from: u32,
        count: usize,
        adopt: &mut dyn FnMut(UnboundQp),
    ) -> Option<u32>;
}
