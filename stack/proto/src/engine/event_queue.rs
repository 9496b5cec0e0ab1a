//! Event queue towards the application.
//!
//! The application may poll events slowly, and peers must not be able to fill memory meanwhile. A
//! queue pair has a small number of events in its life, and a listener no more requests than its
//! backlog. But requests of peers that are gone, and queue pairs that were destroyed, leave stale
//! events. The application never gets these. Each pass removes some, once the queue has doubled
//! since the last sweep ([`EventSweep`]).

use std::collections::VecDeque;

use crate::connection::context::Env;
use crate::connection::phase::Phase;
use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::engine::connections::Connections;
use crate::verbs::cm::{ConnEvent, RequestId};
use crate::verbs::qp_table::QueuePairs;
use crate::verbs::wc::Completions;

/// Queue length below which stale events are not removed.
const SWEEP_MIN: usize = 256;
/// Events examined in a pass, at most.
const SWEEP_STEP: usize = 256;

/// Sweep of stale events. The queue has three parts: events that the current sweep has examined,
/// those that the one before has and this one has not, and newer ones, which [`Verbs`] has.
///
/// [`Verbs`]: crate::verbs::resources::Verbs
pub(super) struct EventSweep {
    examined: VecDeque<ConnEvent>,
    to_examine: VecDeque<ConnEvent>,
    /// Number of events in these two: the only one that a poll without events reads.
    older: usize,
    /// Events that the current sweep has to examine; 0: there is none.
    left: usize,
    /// Number of newer events at which a sweep begins, or 0 during one.
    due_at: usize,
}

impl EventSweep {
    pub(super) const fn new() -> Self {
        Self {
            examined: VecDeque::new(),
            to_examine: VecDeque::new(),
            older: 0,
            left: 0,
            due_at: SWEEP_MIN,
        }
    }

    /// Returns the number of events, without the newer ones.
    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.older
    }

    fn count(&mut self) {
        self.older = self.examined.len() + self.to_examine.len();
    }

    /// True if [`EventSweep::step`] is to be called in this pass.
    #[inline(always)]
    pub(super) fn is_due(&self, newer: &VecDeque<ConnEvent>) -> bool {
        newer.len() >= self.due_at
    }

    /// Removes and returns the oldest event, `newer` being the third part of the queue.
    pub(super) fn pop(&mut self, newer: &mut VecDeque<ConnEvent>) -> Option<ConnEvent> {
        let oldest = self.examined.pop_front().or_else(|| self.to_examine.pop_front());
        self.count();
        oldest.or_else(|| newer.pop_front())
    }

    /// Examines some events, and drops those that are not current.
    #[cold]
    pub(super) fn step(
        &mut self,
        newer: &mut VecDeque<ConnEvent>,
        is_current: impl Fn(&ConnEvent) -> bool,
    ) {
        if self.left == 0 {
            std::mem::swap(&mut self.examined, &mut self.to_examine);
            self.left = self.to_examine.len() + newer.len();
            self.due_at = 0;
        }
        for _ in 0..SWEEP_STEP.min(self.left) {
            let event = self.to_examine.pop_front().or_else(|| newer.pop_front());
            self.left = if event.is_some() { self.left - 1 } else { 0 };
            self.examined.extend(event.filter(&is_current));
        }
        if self.left == 0 {
            self.due_at = self.examined.len().max(SWEEP_MIN);
        }
        self.count();
    }

    /// Drops events that are not current any more.
    pub(super) fn retain(&mut self, is_current: impl Fn(&ConnEvent) -> bool) {
        self.examined.retain(&is_current);
        self.to_examine.retain(&is_current);
        self.count();
    }
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Returns the oldest event. Skips requests of peers that are gone, and events of destroyed
    /// queue pairs.
    pub fn next_event(&mut self) -> Option<ConnEvent> {
        loop {
            let event = self.event_sweep.pop(&mut self.cx.verbs.events)?;
            if is_current(&self.cx.qps, &self.connections, &event) {
                if let ConnEvent::ConnectRequest { request, .. } = event {
                    self.mark_taken(request);
                }
                return Some(event);
            }
        }
    }

    /// Records that the application has a request.
    fn mark_taken(&mut self, RequestId { index, .. }: RequestId) {
        if let Some(conn) = self.connections.get_mut(index)
            && let Phase::AwaitDecision(decision) = &mut conn.phase
        {
            decision.is_taken = true;
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
            let is_current = |event: &ConnEvent| is_current(&cx.qps, connections, event);
            event_sweep.step(&mut cx.verbs.events, is_current);
        }
    }
}

fn awaits_decision<E: Env>(connections: &Connections<E>, request: RequestId) -> bool {
    let RequestId { index, generation } = request;
    connections.get(index).is_some_and(|conn| {
        conn.id.generation == generation && matches!(conn.phase, Phase::AwaitDecision(_))
    })
}

/// True unless the event is stale.
fn is_current<E: Env>(qps: &QueuePairs, connections: &Connections<E>, event: &ConnEvent) -> bool {
    match *event {
        ConnEvent::ConnectRequest { request, .. } => awaits_decision(connections, request),
        ConnEvent::Streaming { qp }
        | ConnEvent::Established { qp, .. }
        | ConnEvent::PeerFinished { qp }
        | ConnEvent::ConnectFailed { qp, .. }
        | ConnEvent::Disconnected { qp, .. }
        | ConnEvent::TerminateReceived { qp, .. } => qps.slot(qp).is_some(),
        ConnEvent::SrqLimit { .. } | ConnEvent::CqOverrun { .. } => true,
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;
    use crate::verbs::wc::QpId;

    fn event(index: u32) -> ConnEvent {
        ConnEvent::Streaming { qp: QpId { index, generation: 0 } }
    }

    fn index_of(event: &ConnEvent) -> u32 {
        let ConnEvent::Streaming { qp } = event else { unreachable!("only these are queued") };
        qp.index
    }

    /// Stale are all but each tenth.
    #[test]
    fn sweep_examines_some_events_in_a_pass_and_keeps_the_order() {
        const COUNT: u32 = 10_000;
        let (mut sweep, mut newer) = (EventSweep::new(), VecDeque::new());
        let mut found = Vec::new();
        for round in 0..3 {
            newer.extend((round * COUNT..(round + 1) * COUNT).map(event));
            for _ in 0..200 {
                let examined = Cell::new(0);
                if sweep.is_due(&newer) {
                    sweep.step(&mut newer, |event| {
                        examined.set(examined.get() + 1);
                        index_of(event).is_multiple_of(10)
                    });
                }
                assert!(examined.get() <= SWEEP_STEP);
                // The application polls meanwhile.
                if examined.get() > 0 {
                    found.extend(sweep.pop(&mut newer));
                }
            }
            assert!(sweep.left == 0 && !sweep.is_due(&newer));
        }
        let left = sweep.len() + newer.len();
        assert!(left < 4000, "{left}");
        found.extend(std::iter::from_fn(|| sweep.pop(&mut newer)));
        assert!(found.is_sorted_by_key(index_of));
        let current = found.iter().filter(|event| index_of(event).is_multiple_of(10));
        assert_eq!(current.count(), 3000);
    }

    #[test]
    fn retain_drops_examined_events_too() {
        let (mut sweep, mut newer) = (EventSweep::new(), VecDeque::new());
        newer.extend((0..1000).map(event));
        sweep.step(&mut newer, |_| true);
        assert_eq!((sweep.len(), newer.len()), (SWEEP_STEP, 1000 - SWEEP_STEP));
        sweep.retain(|event| index_of(event) > 1);
        let left: Vec<_> = std::iter::from_fn(|| sweep.pop(&mut newer)).collect();
        assert!(left.iter().map(index_of).eq(2..1000));
        assert_eq!(sweep.len(), 0);
    }
}
