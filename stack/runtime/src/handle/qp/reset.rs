//! Return of a queue pair to its first state (`ibv_modify_qp` to `IBV_QPS_RESET`).

use ferrowarp_proto::ddp::recv_queue::RqCap;
use ferrowarp_proto::rdmap::send_queue::SqCap;
use ferrowarp_proto::verbs::qp::QpCap;
use ferrowarp_proto::verbs::qp_attrs::QpAttrs;
use ferrowarp_proto::verbs::wc::QpId;

use super::Qp;
use crate::error::CreateError;
use crate::handle::srq::Srq;

impl Qp {
    /// Makes the queue pair as it was when it was created, for another connection: ends the one it
    /// has as [`Qp::disconnect`] does, and removes its requests, and its completions and events
    /// that were not taken. [`Qp::id`] keeps its index and gets another generation. Regions that
    /// were registered for it alone ([`Pd::register_for`](crate::Pd::register_for)) are not of the
    /// next connection. If a completion queue has overrun, it begins in the error state, as a new
    /// one does.
    ///
    /// Costs some microseconds, as creating one does.
    ///
    /// # Errors
    /// [`CreateError::Ended`], of the context or of its shard: the queue pair cannot be used any
    /// more.
    #[doc(alias = "IBV_QPS_RESET")]
    pub fn reset(&mut self) -> Result<(), CreateError> {
        let attrs = self.query()?;
        let QpAttrs { max_send_wr, max_send_sge, max_inline_data, .. } = attrs;
        let QpAttrs { max_recv_wr, max_recv_sge, .. } = attrs;
        let cap = QpCap {
            sends: SqCap { max_send_wr, max_send_sge, max_inline_data },
            recvs: RqCap { max_recv_wr: max_recv_wr.max(1), max_recv_sge },
        };
        let channel = self.context().events.channel_of(self.event());
        self.leave();
        let index = self.id.index;
        self.id = QpId { index, generation: self.context().qp_ids.renew(index) };
        self.context().events.route(self.event(), channel);
        let (shared, stream, added) =
            Self::add_queues(&self.pd, [&self.send_cq, &self.recv_cq], cap, self.id);
        (self.shared, self.stream) = (shared, stream);
        added?;
        let srq_shard = self.srq.as_ref().and_then(Srq::shard);
        let of_queues = self.send_cq.shard().or(self.recv_cq.shard()).or(srq_shard);
        self.begin(self.shard.map(usize::from).or(of_queues))
    }
}
