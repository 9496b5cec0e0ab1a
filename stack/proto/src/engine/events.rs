//! Event queue towards the application.
//!
//! The application may poll events slowly, and peers must not be able to fill memory meanwhile. A
//! queue pair has a small number of events in its life, and a listener no more requests than its
//! backlog. But requests whose peers are gone, and queue pairs that were destroyed, leave stale
//! events. These are never returned; they are removed once the queue has doubled since the last
//! sweep.

use crate::cm::connection::Phase;
use crate::cm::env::Env;
use crate::cm::schedule::ConnId;
use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::engine::connections::Connections;
use crate::verbs::cm::{Event, RequestId};
use crate::verbs::queue_pairs::QueuePairs;
use crate::verbs::wc::Completions;

/// Queue length below which stale events are not removed.
const SWEEP_MIN: usize = 256;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Returns the oldest event. Connection requests whose peer is gone, and events of destroyed
    /// queue pairs, are skipped.
    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            let event = self.cx.verbs.events.pop_front()?;
            if is_current(&self.cx.qps, &self.connections, &event) {
                return Some(event);
            }
        }
    }

    /// Returns the number of queued events, stale ones included.
    #[must_use]
    pub fn event_count(&self) -> usize {
        self.cx.verbs.events.len()
    }

    /// True if a request can still be accepted or rejected: its connection is not gone.
    #[must_use]
    pub fn is_request_pending(&self, request: RequestId) -> bool {
        awaits_decision(&self.connections, request)
    }

    /// Removes stale events if the queue is long. Cost: constant, amortized.
    #[inline(always)]
    pub(super) fn sweep_events(&mut self) {
        if self.cx.verbs.events.len() >= self.sweep_events_at {
            self.remove_stale_events();
        }
    }

    #[cold]
    fn remove_stale_events(&mut self) {
        let Self { connections, cx, sweep_events_at, .. } = self;
        cx.verbs.events.retain(|event| is_current(&cx.qps, connections, event));
        *sweep_events_at = (2 * cx.verbs.events.len()).max(SWEEP_MIN);
    }
}

fn awaits_decision<E: Env>(connections: &Connections<E>, request: RequestId) -> bool {
    let RequestId { index, generation } = request;
    connections
        .index(ConnId { index, generation })
        .and_then(|index| connections.get(index))
        .is_some_and(|conn| matches!(conn.phase, Phase::AwaitDecision(_)))
}

/// True unless the event is stale.
fn is_current<E: Env>(qps: &QueuePairs, connections: &Connections<E>, event: &Event) -> bool {
    match *event {
        Event::ConnectRequest { request, .. } => awaits_decision(connections, request),
        Event::Streaming { qp }
        | Event::Established { qp, .. }
        | Event::PeerFinished { qp }
        | Event::ConnectFailed { qp, .. }
        | Event::Disconnected { qp, .. }
        | Event::TerminateReceived { qp, .. } => qps.slot(qp).is_some(),
        Event::SrqLimit { .. } | Event::CqOverrun { .. } => true,
    }
}
