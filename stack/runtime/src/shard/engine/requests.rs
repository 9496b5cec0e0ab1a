//! Connection requests, on their way to the backlogs of the listeners.

use ferrowarp_proto::device::Device;
use ferrowarp_proto::time::Instant;
use ferrowarp_proto::verbs::cm::{ListenAddr, ReadDepths};

use super::{EVENT_COUNT_MAX, ShardEngine};
use crate::shard::backlog::{PendingRequest, Pushed};

impl<D: Device> ShardEngine<D> {
    /// Adds a request to the backlog of its listener. The poll does not wait for a thread of the
    /// application that holds the lock of the backlog, and may have been preempted.
    pub(super) fn route_request(
        &mut self,
        now: Instant,
        listener: ListenAddr,
        request: PendingRequest,
    ) {
        let is_alive = |request| self.engine.is_request_pending(request);
        let id = request.id;
        let pushed = self.listeners.get(&listener).map(|backlog| {
            let pushed = backlog.try_push(request, is_alive);
            if let Pushed::Done = pushed {
                self.publisher.publish(backlog.event());
            }
            pushed
        });
        match pushed {
            Some(Pushed::Done) => {}
            Some(Pushed::Busy(request)) => self.deferred_requests.push_back((listener, request)),
            // The listener has ended.
            Some(Pushed::Full) | None => {
                let _ = self.engine.reject(now, id, ReadDepths::default(), &[]);
            }
        }
    }

    /// Rejects the requests of a listener that has ended, as far as they have not reached its
    /// backlog.
    pub(super) fn reject_deferred_requests(&mut self, listener: ListenAddr) {
        let Self { engine, deferred_requests, now, .. } = self;
        deferred_requests.retain(|(of, request)| {
            let is_kept = *of != listener;
            if !is_kept {
                let _ = engine.reject(*now, request.id, ReadDepths::default(), &[]);
            }
            is_kept
        });
    }

    /// Routes requests whose backlog another thread had locked.
    #[cold]
    pub(super) fn retry_deferred_requests(&mut self, now: Instant) {
        for _ in 0..self.deferred_requests.len().min(EVENT_COUNT_MAX) {
            let Some((listener, request)) = self.deferred_requests.pop_front() else { break };
            self.route_request(now, listener, request);
        }
    }
}
