//! Event queue towards the application.
//!
//! The application may poll events slowly, and peers must not be able to fill memory meanwhile. A
//! queue pair has a small number of events in its life, and a listener no more requests than its
//! backlog. But requests whose peers are gone, and queue pairs that were destroyed, leave stale
//! events. These are never returned. They are removed, some in each pass, once the queue has
//! doubled since the last sweep ([`EventSweep`](super::event_sweep::EventSweep)).

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

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Returns the oldest event. Connection requests whose peer is gone, and events of destroyed
    /// queue pairs, are skipped.
    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            let event = self.event_sweep.pop(&mut self.cx.verbs.events)?;
            if is_current(&self.cx.qps, &self.connections, &event) {
                return Some(event);
            }
        }
    }

    /// Returns the number of queued events, stale ones included.
    #[must_use]
    pub fn event_count(&self) -> usize {
        self.event_sweep.len() + self.cx.verbs.events.len()
    }

    /// True if a request can still be accepted or rejected: its connection is not gone.
    #[must_use]
    pub fn is_request_pending(&self, request: RequestId) -> bool {
        awaits_decision(&self.connections, request)
    }

    /// Removes stale events if the queue is long. Cost: bounded, and constant per event, amortized.
    #[inline(always)]
    pub(super) fn sweep_events(&mut self) {
        if self.event_sweep.is_due(&self.cx.verbs.events) {
            let Self { connections, cx, event_sweep, .. } = self;
            let is_current = |event: &Event| is_current(&cx.qps, connections, event);
            event_sweep.step(&mut cx.verbs.events, is_current);
        }
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
