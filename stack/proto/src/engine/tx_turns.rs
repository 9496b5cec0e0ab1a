//! Turns of the connections to transmit: those that await a frame, then the ready ones, in
//! round-robin order.

use std::collections::VecDeque;

use crate::connection::Connection;
use crate::connection::schedule::BURST_LEN;
use crate::connection::schedule::ConnId;
use crate::connection::tx::{TX_QUANTUM_SEGMENTS, TxResult};
use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::{Engine, Types};
use crate::tcp;
use crate::time::{Instant, MILLISECOND};
use crate::verbs::wc::Completions;

/// With more segments than this sent, pure ACKs aside, a pass ends; the other ready connections
/// come first in the next one. So a pass sends a burst at most, as many as the peer's passes
/// receive. If it sent for all connections it would fill the transmit queue: ACKs would be late,
/// and the frames in use far more than the caches hold.
const TX_BURST_BEGUN: u64 = (BURST_LEN - TX_QUANTUM_SEGMENTS) as u64;
/// Connections of a list that a pass visits, at most, whether they send or not; the others come
/// first in the next one. Those that only acknowledge, or find no frame, do not count as a burst.
const VISITS_MAX: usize = 512;
/// No connection has this ID. It is noted if nothing was sent before the first starved connection:
/// the order is right then, as those not visited are at the front.
const NOBODY: ConnId = ConnId { index: u32::MAX, generation: u32::MAX };

/// Interval between visits of all ready connections while the transmit queue is full, at least.
const FULL_QUEUE_INTERVAL_NS: u64 = MILLISECOND;
/// The interval is at least so many times the duration of a pass with a visit, or hardly anything
/// else would be done.
const DURATION_FACTOR: u64 = 8;
/// Longest duration that is taken into account: a thread that was not scheduled says nothing.
const DURATION_NS_MAX: u64 = 50 * MILLISECOND;

/// While the transmit queue is full a pass ends with the connections that have sent, and the others
/// come first in the next one. Now and then it visits as many more as a pass may, in turn: their
/// timers are armed by it, and entries of ended connections leave the list.
#[derive(Debug)]
pub(super) struct TxVisits {
    /// Earliest time of the next visit.
    due_at: Instant,
    /// Time of the pass with the last one, until the next pass tells how long that took.
    begun_at: Option<Instant>,
}

impl TxVisits {
    pub(super) const fn new() -> Self {
        Self { due_at: Instant::ZERO, begun_at: None }
    }

    /// Called at the beginning of a pass that may transmit.
    #[inline]
    pub(super) fn on_pass(&mut self, now: Instant) {
        if let Some(begun_at) = self.begun_at.take() {
            let duration = now.since(begun_at).min(DURATION_NS_MAX);
            self.due_at = self.due_at.max(now + duration * DURATION_FACTOR);
        }
    }

    /// True if a pass that finds the transmit queue full has to visit connections
    /// nevertheless; the next one after it has not, for a while.
    #[cold]
    pub(super) fn begin_if_due(&mut self, now: Instant) -> bool {
        let is_due = self.due_at <= now;
        if is_due {
            self.due_at = now + FULL_QUEUE_INTERVAL_NS;
            self.begun_at = Some(now);
        }
        is_due
    }
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Lets connections transmit one quantum each, until a burst is sent. Once the transmit queue
    /// is full a visit would be in vain: the others come first in the next pass.
    #[inline(always)]
    pub(super) fn transmit_ready(&mut self, now: Instant) -> bool {
        let schedule = &self.cx.schedule;
        match (schedule.ready.len(), schedule.awaiting_frame.len()) {
            (0, 0) => false,
            (1, 0) => self.serve_only(now) || self.serve_all(now),
            _ => self.serve_all(now),
        }
    }

    /// Lets the only ready connection send by the short way; otherwise does nothing and returns
    /// false.
    #[inline(always)]
    fn serve_only(&mut self, now: Instant) -> bool {
        let Some(&id) = self.cx.schedule.ready.front() else { return false };
        let Some((conn, cx)) = self.by_id(id) else { return false };
        if !cx.config.short_way || !conn.send_short(cx, now) {
            return false;
        }
        cx.schedule.short_way_counts[1] += 1;
        conn.on_served();
        cx.schedule.ready.clear();
        self.tx_visits.on_pass(now);
        self.after_visit(now, id);
        true
    }

    /// Handles the events of a connection that was visited, and arms its timer.
    #[inline(always)]
    fn after_visit(&mut self, now: Instant, id: ConnId) {
        let Some((conn, cx)) = self.at(id.index) else { return };
        if conn.tcb.has_events() || !cx.deferred.is_empty() {
            self.handle_tcp_events_and_arm(now, id.index);
        } else {
            conn.arm_timer(&mut cx.schedule);
        }
    }

    #[inline(never)]
    fn serve_all(&mut self, now: Instant) -> bool {
        self.tx_visits.on_pass(now);
        let sent_max = self.cx.stream_segments_out() + TX_BURST_BEGUN;
        let mut worked = false;
        if !self.cx.schedule.awaiting_frame.is_empty() {
            worked |= self.serve_awaiting(now, sent_max);
        }
        worked |= self.serve_ready(now, sent_max);
        self.reclaim_if_needed(now);
        worked
    }

    /// Serves the connections that await a frame, as long as there are frames: in order, since one
    /// that finds none ends the pass of all of them. The first is always visited, so that frames
    /// are reclaimed for it.
    #[cold]
    fn serve_awaiting(&mut self, now: Instant, sent_max: u64) -> bool {
        let mut worked = false;
        let count_max = 2 * self.connections.len() + TX_QUANTUM_SEGMENTS;
        if self.cx.schedule.awaiting_frame.len() > count_max {
            // While there are no frames connections may end, and others come.
            let Self { connections, cx, .. } = self;
            cx.schedule.awaiting_frame.retain(|&id| connections.index(id).is_some());
        }
        let mut visits = 0;
        while visits < VISITS_MAX
            && self.cx.device.tx_free_count() > 0
            && self.cx.stream_segments_out() <= sent_max
            && let Some(id) = self.cx.schedule.awaiting_frame.pop_front()
        {
            visits += 1;
            let Some(result) = self.visit(now, id, Connection::on_frame_awaited, true) else {
                continue;
            };
            worked |= result.has_sent();
            if let TxResult::AwaitFrame { .. } = result {
                // It is the first again.
                let awaiting = &mut self.cx.schedule.awaiting_frame;
                if let Some(id) = awaiting.pop_back() {
                    awaiting.push_front(id);
                }
                break;
            }
        }
        worked
    }

    /// Serves the ready connections. If frames for retransmissions or ACKs ran out, the next pass
    /// begins with the first connection that was starved; if nothing was sent before it, with those
    /// that this pass has not visited. Those come first, too, if the pass has ended early.
    #[inline(always)]
    fn serve_ready(&mut self, now: Instant, sent_max: u64) -> bool {
        let mut worked = false;
        let mut starved = None;
        let mut visits_all = None;
        let prefetches = self.prefetches() && self.cx.schedule.ready.len() > 1;
        for _ in 0..self.cx.schedule.ready.len().min(VISITS_MAX) {
            if self.cx.stream_segments_out() > sent_max
                || self.cx.device.tx_free_count() == 0
                    && !*visits_all.get_or_insert_with(|| self.tx_visits.begin_if_due(now))
            {
                // Those not visited are at the front already, and go before one that was starved.
                starved = None;
                break;
            }
            if prefetches {
                self.prefetch_ready();
            }
            let Some(id) = self.cx.schedule.ready.pop_front() else { break };
            let has_turn = self.cx.schedule.awaiting_frame.is_empty();
            let Some(result) = self.visit(now, id, Connection::on_served, has_turn) else {
                continue;
            };
            worked |= result.has_sent();
            if let TxResult::Again { starved: true, .. } = result {
                starved.get_or_insert(if worked { id } else { NOBODY });
            }
        }
        if let Some(first) = starved {
            begin_with(&mut self.cx.schedule.ready, first);
        }
        worked
    }

    /// Lets a connection transmit, unless it is gone. It was taken off a list, which `on_taken`
    /// records; `has_turn` is as in [`Connection::transmit`].
    #[inline(always)]
    fn visit(
        &mut self,
        now: Instant,
        id: ConnId,
        on_taken: impl FnOnce(&mut Connection<Types<D, M, C>>),
        has_turn: bool,
    ) -> Option<TxResult> {
        let (conn, cx) = self.by_id(id)?;
        on_taken(conn);
        if !conn.next_hop.is_resolved() && conn.tcb.state() != tcp::State::Closed {
            conn.arm_timer(&mut cx.schedule);
            return Some(TxResult::Done { sent: false });
        }
        if conn.next_hop.needs_refresh(now, cx.net.neighbor_epoch()) {
            conn.refresh_next_hop(cx, now);
        }
        let result = conn.transmit(cx, now, has_turn);
        match result {
            TxResult::Done { .. } => {}
            TxResult::Again { .. } => conn.make_ready(&mut cx.schedule),
            TxResult::AwaitFrame { .. } => conn.await_frame(&mut cx.schedule),
        }
        self.after_visit(now, id);
        Some(result)
    }
}

/// Begins the next turn of the ready connections with `first`, if it is among them. It was visited:
/// those not visited come before it.
#[cold]
fn begin_with(ready: &mut VecDeque<ConnId>, first: ConnId) {
    if let Some(at) = ready.iter().position(|&id| id == first) {
        ready.rotate_left(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each pass visits some of the connections, and has a frame for the first alone.
    #[test]
    fn connections_that_find_no_frame_take_turns() {
        const VISITS: usize = 5;
        for count in [1, 3, 5, 6, 9, 10, 11, 15, 40] {
            let all = (0..count).map(|index| ConnId { index, generation: 0 });
            let mut ready: VecDeque<_> = all.clone().collect();
            let mut served = Vec::new();
            for _ in 0..2 * count {
                let visits = ready.len().min(VISITS);
                let unvisited = ready.len() - visits;
                served.push(ready[0]);
                ready.rotate_left(visits);
                let starved = ready[(unvisited + 1) % ready.len()];
                begin_with(&mut ready, starved);
            }
            assert!(served.iter().copied().eq(all.clone().chain(all)), "{served:?}");
        }
    }

    /// Returns the number of visits among 10,000 passes, of which one with a visit takes `long_ns`
    /// and any other `short_ns`, and the share of the time that they take.
    fn visits(long_ns: u64, short_ns: u64) -> (u32, f64) {
        let (mut visits, mut now, mut visiting_ns) = (TxVisits::new(), Instant::ZERO, 0);
        let mut count = 0;
        for _ in 0..10_000 {
            visits.on_pass(now);
            if visits.begin_if_due(now) {
                count += 1;
                visiting_ns += long_ns;
                now = now + long_ns;
            } else {
                now = now + short_ns;
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let share = visiting_ns as f64 / now.as_nanos() as f64;
        (count, share)
    }

    #[test]
    fn short_visits_have_a_fixed_interval() {
        let (count, _) = visits(MILLISECOND / 10, MILLISECOND / 10);
        assert_eq!(count, 1000, "in a second");
    }

    #[test]
    fn long_visits_take_a_small_part_of_the_time() {
        for long_ms in [5, 20, 50] {
            let (count, share) = visits(long_ms * MILLISECOND, MILLISECOND / 10);
            assert!(count >= 2 && share < 0.2, "{long_ms} ms: {count}, {share}");
            let (_, share) = visits(long_ms * MILLISECOND, MILLISECOND);
            assert!(share < 0.2, "{long_ms} ms: {share}");
        }
    }
}
