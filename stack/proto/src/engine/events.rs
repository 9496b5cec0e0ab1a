//! Events on their way to the application.
//!
//! An application may be slow to ask for them, and peers must not fill memory meanwhile. A queue
//! pair has a handful of events in its life, and a listener as many requests as its backlog; but
//! requests whose peers have gone, and queue pairs that were destroyed, would leave theirs behind.
//! Those are never told, and are swept out when the queue has doubled since it last was.

use crate::ddp::memory::Memory;
use crate::device::{Device, Retained, RxFrame};
use crate::engine::Engine;
use crate::engine::connection::{Connections, Phase};
use crate::engine::queue_pairs::QueuePairs;
use crate::verbs::cm::{Event, RequestId};
use crate::verbs::wc::Completions;

/// Events that are never looked through.
pub(super) const SWEEP_MIN: usize = 256;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// The oldest event that was not asked for yet. A request whose peer has gone meanwhile is
    /// none, nor is what concerns a queue pair that was destroyed.
    pub fn next_event(&mut self) -> Option<Event> {
        let Self { verbs, connections, .. } = self;
        loop {
            let event = verbs.events.pop_front()?;
            if is_current(verbs, connections, &event) {
                return Some(event);
            }
        }
    }

    /// Events that wait to be asked for, at most: some of them may be of no use any more.
    #[must_use]
    pub fn event_count(&self) -> usize {
        self.verbs.events.len()
    }

    /// A request may still be accepted or rejected: its peer has not gone.
    #[must_use]
    pub fn is_request_pending(&self, request: RequestId) -> bool {
        awaits_decision(&self.connections, request)
    }

    /// Makes room for events of peers or queue pairs that come and go. Cost: constant, over many.
    pub(super) fn sweep_events(&mut self) {
        if self.verbs.events.len() < self.sweep_events_at {
            return;
        }
        let mut events = std::mem::take(&mut self.verbs.events);
        events.retain(|event| is_current(&self.verbs, &self.connections, event));
        self.sweep_events_at = (2 * events.len()).max(SWEEP_MIN);
        self.verbs.events = events;
    }
}

fn awaits_decision<R: RxFrame, T: Retained>(
    connections: &Connections<R, T>,
    request: RequestId,
) -> bool {
    connections
        .live_index(request.index, request.generation)
        .and_then(|index| connections.get(index))
        .is_some_and(|conn| matches!(conn.phase, Phase::AwaitDecision(_)))
}

/// An event still means something to the application.
fn is_current<R: RxFrame, T: Retained, M: Memory, C: Completions>(
    verbs: &QueuePairs<M, C>,
    connections: &Connections<R, T>,
    event: &Event,
) -> bool {
    match *event {
        Event::ConnectRequest { request, .. } => awaits_decision(connections, request),
        Event::Streaming { qp }
        | Event::Established { qp, .. }
        | Event::PeerFinished { qp }
        | Event::ConnectFailed { qp, .. }
        | Event::Disconnected { qp, .. }
        | Event::TerminateReceived { qp, .. } => verbs.index(qp).is_some(),
        Event::SrqLimit { .. } | Event::CqOverrun { .. } => true,
    }
}
