//! Events of the engine, on their way to the application.

use ferrowarp_proto::device::Device;
use ferrowarp_proto::time::Instant;
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnectError};
use ferrowarp_proto::verbs::wc::QpId;

use super::{EVENT_COUNT_MAX, ShardEngine};
use crate::events::AsyncEvent;
use crate::shard::backlog::PendingRequest;
use crate::shard::srq::SrqLimit;

impl<D: Device> ShardEngine<D> {
    fn route(&mut self, now: Instant, event: ConnEvent) {
        match event {
            ConnEvent::ConnectRequest { listener, request, offer } => {
                let pending = PendingRequest { shard: self.index, id: request, offer };
                self.route_request(now, listener, pending);
            }
            ConnEvent::Established { qp, .. }
            | ConnEvent::PeerFinished { qp }
            | ConnEvent::Streaming { qp }
            | ConnEvent::Disconnected { qp, .. }
            | ConnEvent::TerminateReceived { qp, .. } => {
                self.inform(qp, event);
            }
            ConnEvent::ConnectFailed { qp, error, private_data, reads } => {
                let named = self.name_link(qp, error);
                if named != error {
                    self.engine.set_connect_error(qp, named);
                }
                let error = named;
                self.inform(qp, ConnEvent::ConnectFailed { qp, error, private_data, reads });
            }
            ConnEvent::SrqLimit { srq, left, most } => {
                if let Some(shared) = self.srqs.get(&srq) {
                    shared.push_limit_event(SrqLimit { left, most });
                    self.publisher.publish(shared.event());
                }
            }
            // Reported once its queue pairs are ended.
            ConnEvent::CqOverrun { .. } => {}
            event => debug_assert!(false, "{event:?} has no destination"),
        }
    }

    /// Names the link as the cause if it is down and a peer beyond it does not answer. Asked when
    /// the attempt fails: later the link may be in another state.
    #[cold]
    pub(super) fn name_link(&self, qp: QpId, error: ConnectError) -> ConnectError {
        let is_down = || !self.link.is_up() && !self.engine.has_local_peer(qp);
        match error {
            ConnectError::TimedOut | ConnectError::Unreachable if is_down() => {
                ConnectError::LinkDown
            }
            error => error,
        }
    }

    /// Reports an event to the application, after the state: the application acts on the event.
    pub(super) fn inform(&mut self, qp: QpId, event: ConnEvent) {
        self.publish_state(qp);
        if let Some(shard_qp) = self.shard_qps.get(qp) {
            shard_qp.shared.push_event(event);
            self.publisher.publish(AsyncEvent::Connection { qp });
        }
    }

    /// Reports the events of the engine, of many only a part. True if there were any.
    pub(super) fn route_events(&mut self, now: Instant) -> bool {
        // Before the events of queue pairs that have ended: the overrun is the reason.
        if self.engine.completions_mut().has_deferred() {
            self.report_overruns();
        }
        let mut any = false;
        for _ in 0..EVENT_COUNT_MAX {
            let Some(event) = self.engine.next_event() else {
                break;
            };
            any = true;
            self.route(now, event);
        }
        any
    }
}
