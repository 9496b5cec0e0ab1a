//! End of a shard whose engine has panicked, or whose device is to be removed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use ferrowarp_proto::device::Device;
use ferrowarp_proto::engine::Engine;
use ferrowarp_proto::verbs::cm::{EndReason, Event};
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wc::QpId;

use super::ShardEngine;
use crate::events::AsyncEvent;
use crate::memory::HostMemory;
use crate::shard::cq_rings::CqRings;
use crate::shard::srq::SrqLimit;
use crate::shard::work_queue::{Link, TAKE_COUNT_MAX};

/// Time for which closing waits for threads that are posting: one may have been preempted, or its
/// iterator may never end.
const POSTING_MAX: Duration = Duration::from_secs(1);

impl<D: Device> ShardEngine<D> {
    /// Ends every queue pair with an event and flushes its requests, without sending anything; see
    /// [`ShardControl::abandon`](crate::shard::ShardControl::abandon).
    pub(super) fn abandon_all(&mut self, is_last: bool, reason: EndReason) {
        if is_last {
            self.adopt_all();
        }
        let Self { engine, links, srqs, publisher, .. } = self;
        engine.completions_mut().accept_flushed();
        for link in links.iter_mut() {
            let its_event = AsyncEvent::Connection { qp: link.id };
            // Before the state, in which a thread that sees it looks for the reason.
            if !matches!(link.qp.state(), QpState::Idle | QpState::Error) {
                link.qp.push_event(Event::Disconnected { qp: link.id, reason });
                publisher.publish(its_event);
            }
            // No more requests can be posted.
            link.qp.close();
            // Caught for each queue pair separately: the defect may be in the state of one of them.
            let ended = catch_unwind(AssertUnwindSafe(|| flush(engine, link)));
            if ended.is_err() {
                tracing::error!(qp = link.id.index, "the requests of a queue pair are lost");
            }
            publisher.queue().end_source(its_event, link.qp.source());
        }
        if catch_unwind(AssertUnwindSafe(|| engine.abandon_srqs())).is_err() {
            tracing::error!("buffers of a shared receive queue are lost");
        }
        engine.completions_mut().publish_last();
        // Limit events of shared receive queues that other shards go on to use.
        while let Some(event) = engine.next_event() {
            if let Event::SrqLimit { srq, left, most } = event
                && let Some(shared) = srqs.get(&srq)
            {
                shared.push_limit_event(SrqLimit { left, most });
                publisher.publish(shared.event());
            }
        }
    }

    /// Flushes the queue pairs of a shard that is not polled any more, after waiting for threads
    /// that are posting.
    pub(super) fn flush_last(&mut self) {
        let Self { engine, links, .. } = self;
        engine.completions_mut().accept_flushed();
        links.iter().for_each(|link| link.qp.close());
        let deadline = Instant::now() + POSTING_MAX;
        for link in links.iter_mut() {
            if link.qp.wait_for_posting(deadline) {
                flush(engine, link);
            } else {
                tracing::warn!(qp = link.id.index, "a thread was posting for too long at the end");
            }
        }
        engine.completions_mut().publish_last();
    }

    /// Flushes what was posted to a queue pair after [`Self::abandon_all`] had flushed it.
    pub(super) fn flush_abandoned(&mut self, qp: QpId) {
        let Self { engine, links, .. } = self;
        if let Some(link) = links.get_mut(qp) {
            flush(engine, link);
        }
        engine.completions_mut().publish_last();
    }
}

/// Ends a queue pair, and flushes its requests, those posted and not taken after the others.
fn flush<D: Device>(engine: &mut Engine<D, HostMemory, CqRings>, link: &mut Link) {
    engine.abandon_qp(link.id);
    while link.serve(engine, TAKE_COUNT_MAX).any {
        engine.abandon_qp(link.id);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::device::DeviceSpec;
    use crate::{AsyncEvent, Config, Context, QpOptions, QpState};

    /// An engine that has panicked may also fail to take what belongs to no shard.
    #[test]
    fn failure_is_reported_although_a_queue_pair_cannot_be_adopted() {
        let config = |host: &str| {
            let mut config = Config::new(DeviceSpec::Ring, host.parse().unwrap(), 24);
            config.shards = 2;
            config
        };
        let (context, _peer) =
            Context::ring_pair(config("198.18.0.1"), config("198.18.0.2")).unwrap();
        let cq = context.create_cq(8).unwrap();
        let [lost, other, last] =
            [(); 3].map(|()| context.alloc_pd().create_qp(&QpOptions::new(&cq)).unwrap());
        let events = context.event_channel().unwrap();
        // The engine that fails last has a queue pair of that number.
        let (inner, id) = (context.inner(), lost.id());
        let queues = inner.unbound.remove(other.id()).unwrap();
        inner.shards.get(1).control(|engine, _| {
            let (stream, init) = (queues.stream, queues.init);
            engine.create_qp(id, stream, init, queues.requester, queues.recv_queue).unwrap();
        });
        inner.shards.control(|_, _| panic!("deliberate panic of this test"));
        assert!(context.has_failed());
        assert_eq!(events.next_event(), Some(AsyncEvent::ShardFailed { shard: 0 }));
        assert_eq!(events.next_event(), Some(AsyncEvent::Failed));
        assert_eq!([lost.state(), last.state()], [QpState::Error; 2]);
        assert_eq!(lost.wait_event(Duration::MAX), None);
        assert_eq!(events.wait(Duration::MAX), None);
    }
}
