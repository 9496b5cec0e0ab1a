//! End of the queue pairs of a completion queue that has overrun.

use std::sync::Arc;

use ferrowarp_proto::device::Device;
use ferrowarp_proto::verbs::cm::Event;
use ferrowarp_proto::verbs::wc::{CqId, QpId};

use super::{ShardEngine, publish_state};
use crate::events::AsyncEvent;
use crate::shard::unbound_qp::{UnboundQp, UnboundQueues};
use crate::shard::work_queue::Link;

impl<D: Device> ShardEngine<D> {
    /// The engine has ended the queue pairs that it has of a queue, which overran in this shard or
    /// in another: reports that.
    #[cold]
    pub(super) fn on_cq_overrun(&mut self, cq: CqId) {
        for link in self.links.iter_mut().filter(|link| link.uses(cq)) {
            publish_state(&self.engine, link);
            if link.has_news_of_overrun(cq) {
                link.qp.push_event(Event::CqOverrun { cq });
                self.publisher.publish(AsyncEvent::Connection { qp: link.id });
            }
        }
        let is_first = self.engine.completions_mut().mark_overrun(cq);
        if is_first {
            self.end_unbound(cq);
        }
        // Last: a thread that is woken finds the states and events.
        self.engine.completions_mut().notify_of_overrun(cq);
        if is_first {
            self.publisher.publish(AsyncEvent::CqOverrun { cq });
        }
    }

    /// Ends the queue pairs of the queue that belong to no shard yet: they belong to this one then,
    /// which flushes what was posted to them. After the queue was marked, so that a queue pair that
    /// is not found here is ended by the thread that gives it to a shard.
    fn end_unbound(&mut self, cq: CqId) {
        let table = Arc::clone(&self.unbound);
        table.adopt(Some(cq), &mut |unbound| {
            let (id, shared) = (unbound.id, Arc::clone(&unbound.shared));
            if self.adopt(unbound) {
                self.end_idle(id, cq);
                return;
            }
            shared.push_event(Event::CqOverrun { cq });
            let event = AsyncEvent::Connection { qp: id };
            self.publisher.publish(event);
            shared.close();
            self.publisher.queue().end_source(event, shared.source());
        });
    }

    /// Takes all queue pairs that belong to no shard, to end and flush them.
    pub(super) fn adopt_all(&mut self) {
        let table = Arc::clone(&self.unbound);
        table.adopt(None, &mut |unbound| {
            self.adopt(unbound);
        });
    }

    /// Takes a queue pair that belongs to no shard. False if it cannot.
    fn adopt(&mut self, unbound: UnboundQp) -> bool {
        let UnboundQp { id, shared, queues } = unbound;
        let UnboundQueues { init, stream, requester, recv_queue, tails } = queues;
        if let Err(error) = self.engine.create_qp_as(id, stream, init, requester, recv_queue) {
            // There is a slot for each queue pair of the context.
            debug_assert!(false, "{error}");
            return false;
        }
        let cqs = [init.send_cq, init.recv_cq];
        self.links.insert(Link::new(id, Arc::clone(&shared), cqs, tails));
        shared.binding().bind(self.index);
        true
    }

    /// Ends a queue pair without a connection, because the queue has overrun before.
    pub(super) fn end_idle(&mut self, qp: QpId, cq: CqId) {
        self.engine.end_idle_qp(qp);
        self.publish_state(qp);
        if let Some(link) = self.links.get_mut(qp)
            && link.has_news_of_overrun(cq)
        {
            link.qp.push_event(Event::CqOverrun { cq });
            self.publisher.publish(AsyncEvent::Connection { qp });
        }
    }
}
