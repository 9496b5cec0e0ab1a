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
        let Self { index, engine, links, srqs, publisher, .. } = self;
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
        publisher.publish_failure(*index, is_last);
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
