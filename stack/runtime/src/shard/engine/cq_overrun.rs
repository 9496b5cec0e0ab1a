//! End of the queue pairs of a completion queue that has overrun.

use std::sync::Arc;

use ferrowarp_proto::device::Device;
use ferrowarp_proto::verbs::cm::Event;
use ferrowarp_proto::verbs::wc::{CqId, QpId};

use super::ShardEngine;
use crate::events::AsyncEvent;
use crate::shard::unbound_qp::{UnboundQp, UnboundQueues};
use crate::shard::work_queue::Link;

impl<D: Device> ShardEngine<D> {
    /// The engine has ended the queue pairs that it has of a queue, which overran in this shard or
    /// in another: reports that.
    #[cold]
    pub(super) fn on_cq_overrun(&mut self, cq: CqId) {
        for link in self.links.iter().filter(|link| link.uses(cq)) {
            link.qp.set_state(self.engine.qp_state(link.id));
            link.qp.push_event(Event::CqOverrun { cq });
            self.publisher.publish(link.qp.source());
        }
        // Last: a thread that it wakes finds the states and events.
        if self.engine.completions_mut().mark_overrun(cq) {
            self.end_unbound(cq);
            self.publisher.publish_error(AsyncEvent::CqOverrun { cq });
        }
    }

    /// Ends the queue pairs of the queue that belong to no shard yet: they belong to this one then,
    /// which flushes what was posted to them. After the queue was marked, so that a queue pair that
    /// is not found here is ended by the thread that gives it to a shard.
    fn end_unbound(&mut self, cq: CqId) {
        let table = Arc::clone(&self.unbound);
        table.adopt_of_cq(cq, &mut |UnboundQp { id, shared, queues }| {
            let UnboundQueues { init, stream, requester, recv_queue, tails } = queues;
            // There is a slot for each queue pair of the context.
            if self.engine.create_qp_as(id, stream, init, requester, recv_queue).is_ok() {
                let cqs = [init.send_cq, init.recv_cq];
                self.links.insert(Link::new(id, Arc::clone(&shared), cqs, tails));
                shared.binding().bind(self.index);
                self.end_idle(id, cq);
            }
        });
    }

    /// Ends a queue pair without a connection, because the queue has overrun before.
    pub(super) fn end_idle(&mut self, qp: QpId, cq: CqId) {
        self.engine.end_idle_qp(qp);
        self.inform(qp, Event::CqOverrun { cq });
    }
}
