//! End of the queue pairs of a completion queue that has overrun.

use std::sync::Arc;

use ferrowarp_proto::device::Device;
use ferrowarp_proto::ended::Ended;
use ferrowarp_proto::verbs::cm::ConnEvent;
use ferrowarp_proto::verbs::wc::{CqId, QpId};

use super::ShardEngine;
use crate::events::AsyncEvent;
use crate::shard::cq_rings::EndedCq;
use crate::shard::shard_qps::ShardQp;
use crate::shard::unbound_qp::{UnboundQp, UnboundQueues};

/// Queue pairs without a shard at which a call looks.
const UNBOUND_PER_CALL: usize = 64;

impl<D: Device> ShardEngine<D> {
    /// Reports the queue pairs that the engine has ended, in this poll, over queues that overran in
    /// this shard or in another. Of a queue of which it has ended all, the shard that found the
    /// overrun ends those that belong to none, and reports it: a bounded number in a call.
    #[cold]
    pub(super) fn report_overruns(&mut self) {
        for (qp, cq) in self.engine.completions_mut().take_ended_qps() {
            self.report_end(qp, cq);
        }
        let Some(mut ended) = self.engine.completions_mut().take_ended_cq() else { return };
        let EndedCq { cq, is_reporter, .. } = ended;
        ended.next_unbound = ended.next_unbound.and_then(|from| self.end_unbound(cq, from));
        if ended.next_unbound.is_some() {
            return self.engine.completions_mut().go_on_with(ended);
        }
        // Last: a thread that is woken finds the states and events.
        self.engine.completions_mut().notify_of_overrun(cq);
        if is_reporter {
            self.publisher.publish(AsyncEvent::CqOverrun { cq });
        }
    }

    /// Reports that a queue pair has ended over an overrun of this queue.
    fn report_end(&mut self, qp: QpId, cq: CqId) {
        self.publish_state(qp);
        let Some(shard_qp) = self.shard_qps.get_mut(qp) else { return };
        if shard_qp.note_overrun(cq) {
            shard_qp.shared.push_event(ConnEvent::CqOverrun { cq });
            self.publisher.publish(AsyncEvent::Connection { qp });
        }
    }

    /// Ends queue pairs of the queue that belong to no shard yet: they belong to this one then,
    /// which flushes what was posted to them. The queue is marked before, so that a queue pair that
    /// is not found here is ended by the thread that gives it to a shard. Looks at a bounded number
    /// from the number `from` on; returns the one to go on from, if there are more.
    fn end_unbound(&mut self, cq: CqId, from: u32) -> Option<u32> {
        let table = Arc::clone(&self.unbound);
        table.adopt(Some(cq), from, UNBOUND_PER_CALL, &mut |unbound| {
            let (id, shared) = (unbound.id, Arc::clone(&unbound.shared));
            if self.adopt(unbound) {
                self.end_idle(id, cq);
                return;
            }
            shared.push_event(ConnEvent::CqOverrun { cq });
            let event = AsyncEvent::Connection { qp: id };
            self.publisher.publish(event);
            shared.close(Ended::Failed);
            self.publisher.queue().end_source(event, shared.source());
        })
    }

    /// Takes a queue pair that belongs to no shard. False if it cannot.
    pub(super) fn adopt(&mut self, unbound: UnboundQp) -> bool {
        let UnboundQp { id, shared, queues } = unbound;
        let UnboundQueues { init, stream, requester, recv_queue, tails } = queues;
        if let Err(error) = self.engine.create_qp_as(id, stream, init, requester, recv_queue) {
            // There is a slot for each queue pair of the context.
            debug_assert!(false, "{error}");
            return false;
        }
        let cqs = [init.send_cq, init.recv_cq];
        self.shard_qps.insert(ShardQp::new(id, Arc::clone(&shared), cqs, tails));
        shared.binding().bind(self.index);
        true
    }

    /// Ends a queue pair without a connection, because the queue has overrun before.
    pub(super) fn end_idle(&mut self, qp: QpId, cq: CqId) {
        self.engine.end_idle_qp(qp);
        self.report_end(qp, cq);
    }
}
