//! End of a shard whose engine has panicked, or whose device is to be removed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrowarp_proto::device::Device;
use ferrowarp_proto::ended::Ended;
use ferrowarp_proto::engine::Engine;
use ferrowarp_proto::verbs::cm::{ConnEvent, EndReason};
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wc::QpId;

use super::ShardEngine;
use crate::events::AsyncEvent;
use crate::memory::HostMemory;
use crate::shard::control::ShardEnd;
use crate::shard::cq_rings::CqRings;
use crate::shard::shard_qps::{ShardQp, TAKE_COUNT_MAX};
use crate::shard::srq::SrqLimit;

/// Time for which closing waits for threads that are posting: one may have been preempted, or its
/// iterator may never end.
const POSTING_MAX: Duration = Duration::from_secs(1);

impl<D: Device> ShardEnd for ShardEngine<D> {
    // Takes all queue pairs that belong to no shard, to end and flush them. Ends those that it
    // cannot take: the engine may have panicked before.
    fn adopt_unbound(&mut self) {
        let table = Arc::clone(&self.unbound);
        table.adopt(None, 0, usize::MAX, &mut |unbound| {
            let (id, shared) = (unbound.id, Arc::clone(&unbound.shared));
            let adopted = catch_unwind(AssertUnwindSafe(|| self.adopt(unbound)));
            if !matches!(adopted, Ok(true)) {
                tracing::error!(qp = id.index, "the requests of a queue pair are lost");
                shared.close(Ended::Failed);
                let event = AsyncEvent::Connection { qp: id };
                self.publisher.queue().end_source(event, shared.source());
            }
        });
    }

    fn abandon(&mut self, is_last: bool, reason: EndReason) {
        if is_last {
            self.adopt_unbound();
        }
        let Self { engine, shard_qps, srqs, publisher, .. } = self;
        engine.completions_mut().accept_flushed();
        for shard_qp in shard_qps.iter_mut() {
            let its_event = AsyncEvent::Connection { qp: shard_qp.id };
            // Before the state, in which a thread that sees it looks for the reason.
            if !matches!(shard_qp.shared.state(), QpState::Idle | QpState::Error) {
                shard_qp.shared.push_event(ConnEvent::Disconnected { qp: shard_qp.id, reason });
                publisher.publish(its_event);
            }
            // No more requests can be posted.
            shard_qp.shared.close(Ended::Failed);
            // Caught for each queue pair separately: the defect may be in the state of one of them.
            let ended = catch_unwind(AssertUnwindSafe(|| flush(engine, shard_qp)));
            if ended.is_err() {
                tracing::error!(qp = shard_qp.id.index, "the requests of a queue pair are lost");
            }
            publisher.queue().end_source(its_event, shard_qp.shared.source());
        }
        if catch_unwind(AssertUnwindSafe(|| engine.abandon_srqs())).is_err() {
            tracing::error!("buffers of a shared receive queue are lost");
        }
        engine.completions_mut().publish_last();
        // Limit events of shared receive queues that other shards go on to use.
        while let Some(event) = engine.next_event() {
            if let ConnEvent::SrqLimit { srq, left, most } = event
                && let Some(shared) = srqs.get(&srq)
            {
                shared.push_limit_event(SrqLimit { left, most });
                publisher.publish(shared.event());
            }
        }
    }

    fn close_queues(&mut self) {
        // Closing itself ends connections, and may leave nothing to poll for.
        while self.route_events(self.now) {}
        let Self { engine, shard_qps, .. } = self;
        engine.completions_mut().accept_flushed();
        shard_qps.iter().for_each(|shard_qp| shard_qp.shared.close(Ended::Closed));
        let deadline = Instant::now() + POSTING_MAX;
        for shard_qp in shard_qps.iter_mut() {
            if shard_qp.shared.wait_for_posting(deadline) {
                flush(engine, shard_qp);
            } else {
                tracing::warn!(
                    qp = shard_qp.id.index,
                    "a thread was posting for too long at the end"
                );
            }
        }
        engine.completions_mut().publish_last();
    }

    fn publish_failure(&mut self, is_last: bool) {
        self.publisher.publish_failure(self.index, is_last);
    }

    fn flush_posted(&mut self, qp: QpId) {
        let Self { engine, shard_qps, .. } = self;
        if let Some(shard_qp) = shard_qps.get_mut(qp) {
            flush(engine, shard_qp);
        }
        engine.completions_mut().publish_last();
    }
}

/// Ends a queue pair, and flushes its requests, those posted and not taken after the others.
fn flush<D: Device>(engine: &mut Engine<D, HostMemory, CqRings>, shard_qp: &mut ShardQp) {
    engine.abandon_qp(shard_qp.id);
    while shard_qp.serve(engine, TAKE_COUNT_MAX).any {
        engine.abandon_qp(shard_qp.id);
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
        let _ = inner.shards.get(1).control(|engine, _| {
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
