//! Shard's side of all queue pairs: takes their posted requests to the engine, and decides which of
//! them are hot ([`ferrowarp_lockfree::doorbell::hot`]).

use std::ops::ControlFlow;
use std::sync::Arc;

use ferrowarp_lockfree::doorbell::Doorbells;
use ferrowarp_lockfree::doorbell::hot;
use ferrowarp_proto::device::Device;
use ferrowarp_proto::engine::Engine;
use ferrowarp_proto::time::{Instant, MILLISECOND};
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wc::{CqId, QpId};
use ferrowarp_proto::work_queue::Tails;

use crate::memory::HostMemory;
use crate::shard::cq_rings::CqRings;
use crate::shard::qp::QpShared;

/// Send requests taken from one queue per poll.
pub(crate) const TAKE_COUNT_MAX: usize = 256;

/// The engine's side of posting.
pub(crate) trait EngineQueues {
    /// Takes at most `max` posted send requests; returns their number, and whether there are more.
    fn take_sends(&mut self, qp: QpId, max: usize) -> (usize, bool);
    /// Receives were posted.
    fn on_recvs_posted(&mut self, qp: QpId);
    fn rings(&mut self) -> &mut CqRings;
}

impl<D: Device> EngineQueues for Engine<D, HostMemory, CqRings> {
    #[inline]
    fn take_sends(&mut self, qp: QpId, max: usize) -> (usize, bool) {
        Self::take_sends(self, qp, max)
    }

    #[inline]
    fn on_recvs_posted(&mut self, qp: QpId) {
        Self::on_recvs_posted(self, qp);
    }

    #[inline]
    fn rings(&mut self) -> &mut CqRings {
        self.completions_mut()
    }
}

/// Shard's view of a queue pair: its work queues, which the engine reads itself, and what was taken
/// of them.
pub(crate) struct ShardQp {
    pub(crate) id: QpId,
    pub(crate) shared: Arc<QpShared>,
    cqs: [CqId; 2],
    /// Tails of the send queue and of the receive queue.
    tails: Tails<2>,
    /// Low halves of two tails: of the send queue, up to which everything was taken, or left until
    /// the connection is up; of the receive queue, as announced to the engine. The queues have
    /// fewer slots than 2^32.
    seen: [u32; 2],
    /// The shard polls the tails.
    pub(crate) is_hot: bool,
    /// There were requests since this was last cleared.
    pub(crate) is_used: bool,
    /// Overruns of the completion queue of sends, and of receives, of which there was an event.
    overruns_noted: [bool; 2],
}

const _: () = assert!(size_of::<Option<ShardQp>>() == 56, "each queue pair has one");

/// Result of [`ShardQp::serve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    /// There were requests.
    pub(crate) any: bool,
    /// Number of sends taken.
    pub(crate) sends: usize,
    /// There are more: the next poll has to try again.
    pub(crate) sends_left: bool,
}

#[expect(clippy::cast_possible_truncation, reason = "for comparison of numbers that are close")]
#[inline(always)]
const fn low_half(tail: u64) -> u32 {
    tail as u32
}

impl ShardQp {
    /// `cqs`: of sends, of receives.
    pub(crate) fn new(id: QpId, shared: Arc<QpShared>, cqs: [CqId; 2], tails: Tails<2>) -> Self {
        Self {
            id,
            shared,
            cqs,
            tails,
            seen: [0; 2],
            is_hot: false,
            is_used: false,
            overruns_noted: [false; 2],
        }
    }

    /// True if there are requests that were not announced to the engine.
    #[inline(always)]
    pub(crate) fn has_posted(&self) -> bool {
        self.tails.load().map(low_half) != self.seen
    }

    /// Notes that `cq`, which it uses, has overrun; false if that was noted before.
    pub(crate) fn note_overrun(&mut self, cq: CqId) -> bool {
        let mut is_first = false;
        for (noted, _) in self.overruns_noted.iter_mut().zip(self.cqs).filter(|it| it.1 == cq) {
            is_first |= !std::mem::replace(noted, true);
        }
        is_first
    }

    /// Publishes the engine's state of the queue pair to the application, with what it may post.
    /// True if from now on the engine takes sends, and there may be some that it left before.
    pub(crate) fn publish_state<D: Device>(&self, engine: &Engine<D, HostMemory, CqRings>) -> bool {
        let (state, rights) = engine.qp_status(self.id);
        let is_new = self.shared.state() != state;
        self.shared.set_state(state, rights);
        let takes = !matches!(state, QpState::Idle | QpState::Connecting);
        is_new && takes && self.tails.load()[0] > 0
    }

    /// Announces posted requests to the engine, and has it take `max` sends at most.
    pub(crate) fn serve<E: EngineQueues>(&mut self, engine: &mut E, max: usize) -> Served {
        let [sq_tail, rq_tail] = self.tails.load().map(low_half);
        let any_recv = self.seen[1] != rq_tail;
        if any_recv {
            self.seen[1] = rq_tail;
            engine.on_recvs_posted(self.id);
        }
        let (sends, sends_left) = engine.take_sends(self.id, max);
        if !sends_left {
            // Or more: those that were posted meanwhile cost one call that takes nothing.
            self.seen[0] = sq_tail;
        }
        self.is_used = true;
        engine.rings().mark_dirty(self.id);
        Served { any: any_recv || sends > 0, sends, sends_left }
    }
}

/// Hot queue pairs that stay so although they are idle: loading so few tails costs less than the
/// barrier.
const IDLE_COUNT_MAX: usize = 4;
/// Time after which a queue pair without requests counts as idle, and interval between the barriers
/// of a shard.
const IDLE_NS: u64 = MILLISECOND;
/// Send requests taken from hot queue pairs in a poll, and from those that were rung. A pass sends
/// 32 segments, which take less than half as many short requests: more would only be work before
/// the port is looked at again.
const REQUESTS_PER_POLL: usize = 512;
/// Doorbells served in a poll.
const DOORBELLS_PER_POLL: usize = 64;
const NO_SLOT: u32 = u32::MAX;
pub(crate) const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Work queues of all queue pairs of a shard.
pub(crate) struct ShardQps {
    slots: Vec<Option<ShardQp>>,
    free: Vec<usize>,
    /// By number of the queue pair, which is the context's: its slot, or [`NO_SLOT`].
    by_number: Vec<u32>,
    /// Slots of the hot queue pairs.
    hot: Vec<usize>,
    /// Maximum number of those; 0 if the kernel lacks the barrier.
    hot_count_max: usize,
    /// When idle queue pairs are demoted; never while few are hot.
    demote_at: Instant,
    /// Queue pairs whose sends are taken in the next poll, because their state has changed.
    restarted: Vec<QpId>,
    /// When [`ShardQps::care`] is due: now for those, with the next demotion, or as asked for.
    care_at: Instant,
    /// Number of the queue pair at which the next poll begins with the doorbells.
    next_rung: usize,
}

impl ShardQps {
    pub(crate) fn new() -> Self {
        let hot_count_max = hot::count_max();
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            by_number: Vec::new(),
            hot: Vec::with_capacity(hot_count_max),
            hot_count_max,
            demote_at: NEVER,
            restarted: Vec::new(),
            care_at: NEVER,
            next_rung: 0,
        }
    }

    #[inline]
    fn slot(&self, number: usize) -> Option<usize> {
        self.by_number.get(number).filter(|&&slot| slot != NO_SLOT).map(|&slot| slot as usize)
    }

    #[inline]
    pub(crate) fn get(&self, qp: QpId) -> Option<&ShardQp> {
        let slot = self.slot(qp.slot())?;
        self.slots[slot].as_ref().filter(|shard_qp| shard_qp.id == qp)
    }

    pub(crate) fn get_mut(&mut self, qp: QpId) -> Option<&mut ShardQp> {
        let slot = self.slot(qp.slot())?;
        self.slots[slot].as_mut().filter(|shard_qp| shard_qp.id == qp)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &ShardQp> {
        self.slots.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut ShardQp> {
        self.slots.iter_mut().flatten()
    }

    pub(crate) fn insert(&mut self, shard_qp: ShardQp) {
        let number = shard_qp.id.slot();
        if number >= self.by_number.len() {
            self.by_number.resize(number + 1, NO_SLOT);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.by_number[number] = u32::try_from(slot).expect("as many as queue pairs at most");
        self.slots[slot] = Some(shard_qp);
    }

    /// Removes a queue pair, to which nothing is posted any more.
    pub(crate) fn remove(&mut self, qp: QpId) {
        if let Some(slot) = self.slot(qp.slot())
            && self.slots[slot].as_ref().is_some_and(|shard_qp| shard_qp.id == qp)
        {
            self.by_number[qp.slot()] = NO_SLOT;
            self.slots[slot] = None;
            self.hot.retain(|&hot| hot != slot);
            self.free.push(slot);
        }
    }

    /// Takes the requests posted to hot queue pairs, as many as one poll may. True if there were
    /// any.
    #[inline]
    pub(crate) fn serve_hot<E: EngineQueues>(&mut self, engine: &mut E) -> bool {
        let Self { slots, hot, .. } = self;
        let (mut any, mut budget, mut last) = (false, REQUESTS_PER_POLL, None);
        for &slot in &*hot {
            if let Some(Some(shard_qp)) = slots.get_mut(slot)
                && shard_qp.has_posted()
            {
                let served = shard_qp.serve(engine, budget.min(TAKE_COUNT_MAX));
                any |= served.any;
                budget -= served.sends;
                if budget == 0 {
                    last = Some(slot);
                    break;
                }
            }
        }
        if let Some(last) = last {
            self.begin_behind(last);
        }
        any
    }

    /// The next poll begins with the hot queue pairs behind this one.
    #[cold]
    fn begin_behind(&mut self, last: usize) {
        if let Some(at) = self.hot.iter().position(|&slot| slot == last) {
            self.hot.rotate_left(at + 1);
        }
    }

    /// Takes the requests posted to queue pairs whose doorbells are set, as many as one poll may;
    /// the next one goes on where this one stops. They become hot as far as there are places. True
    /// if there were any.
    #[inline(never)]
    pub(crate) fn serve_rung<E: EngineQueues>(
        &mut self,
        engine: &mut E,
        now: Instant,
        doorbells: &Doorbells,
    ) -> bool {
        let Self { slots, hot, by_number, .. } = self;
        let (mut any, hot_before) = (false, hot.len());
        let (mut requests, mut rings) = (REQUESTS_PER_POLL, DOORBELLS_PER_POLL);
        let stopped = doorbells.drain(self.next_rung, |number| {
            rings -= 1;
            let go_on = if rings > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
            let slot = by_number.get(number).map_or(usize::MAX, |&slot| slot as usize);
            let Some(Some(shard_qp)) = slots.get_mut(slot) else { return go_on };
            let served = shard_qp.serve(engine, requests.min(TAKE_COUNT_MAX));
            any |= served.any;
            requests -= served.sends;
            if !shard_qp.is_hot && hot.len() < self.hot_count_max {
                shard_qp.is_hot = true;
                shard_qp.shared.hot().promote();
                hot.push(slot);
            }
            // The next poll looks at a hot one anyway.
            if served.sends_left && !shard_qp.is_hot {
                doorbells.ring(number);
            }
            if requests == 0 { ControlFlow::Break(()) } else { go_on }
        });
        self.next_rung = stopped.unwrap_or(0);
        if hot.len() > hot_before {
            // A request that was posted after the tail was loaded is found by the next poll.
            doorbells.set_hot_count(hot.len());
            if hot.len() > IDLE_COUNT_MAX && self.demote_at == NEVER {
                self.demote_at = now + IDLE_NS;
                self.care_at = self.care_at.min(self.demote_at);
            }
        }
        any
    }

    /// Has the next poll take the sends of a queue pair, which begins to take them.
    #[cold]
    pub(crate) fn restart(&mut self, qp: QpId) {
        if let Some(shard_qp) = self.get_mut(qp) {
            // The engine has left what was seen.
            shard_qp.seen[0] = shard_qp.seen[0].wrapping_sub(1);
        }
        self.restarted.push(qp);
        self.care_at = Instant::ZERO;
    }

    /// Has [`ShardQps::is_care_due`] be true from `at` on, at the latest.
    pub(crate) fn care_by(&mut self, at: Instant) {
        self.care_at = self.care_at.min(at);
    }

    /// True if the next poll takes sends without a doorbell.
    pub(crate) const fn has_restarted(&self) -> bool {
        !self.restarted.is_empty()
    }

    /// True if [`ShardQps::care`] is to be called.
    #[inline]
    pub(crate) fn is_care_due(&self, now: Instant) -> bool {
        now >= self.care_at
    }

    /// Rings for the queue pairs that begin to take sends, and demotes idle ones.
    #[cold]
    pub(crate) fn care(&mut self, now: Instant, doorbells: &Doorbells) {
        for qp in self.restarted.drain(..) {
            doorbells.ring(qp.slot());
        }
        if now >= self.demote_at {
            self.demote_idle(now, doorbells);
        }
        self.care_at = self.demote_at;
    }

    /// Demotes queue pairs that have been idle since the call before, but for a few.
    fn demote_idle(&mut self, now: Instant, doorbells: &Doorbells) {
        let mut surplus = self.hot.len().saturating_sub(IDLE_COUNT_MAX);
        self.demote(doorbells, |shard_qp| {
            let is_idle = !std::mem::take(&mut shard_qp.is_used) && surplus > 0;
            surplus -= usize::from(is_idle);
            is_idle
        });
        let has_surplus = self.hot.len() > IDLE_COUNT_MAX;
        self.demote_at = if has_surplus { now + IDLE_NS } else { NEVER };
    }

    /// Demotes all queue pairs.
    #[cold]
    pub(crate) fn demote_all(&mut self, doorbells: &Doorbells) {
        self.demote(doorbells, |_| true);
        if self.hot.is_empty() {
            self.demote_at = NEVER;
        }
        // Also if the last of them were destroyed.
        doorbells.set_hot_count(self.hot.len());
    }

    /// Demotes the hot queue pairs for which `is_idle` returns true, with one barrier.
    fn demote(&mut self, doorbells: &Doorbells, mut is_idle: impl FnMut(&mut ShardQp) -> bool) {
        let Self { slots, hot, .. } = self;
        let mut idle_count = 0;
        for at in 0..hot.len() {
            if slots[hot[at]].as_mut().is_none_or(&mut is_idle) {
                hot.swap(idle_count, at);
                idle_count += 1;
            }
        }
        let flags = hot[..idle_count].iter().filter_map(|&index| slots[index].as_ref());
        if idle_count == 0 || !hot::demote(flags.map(|shard_qp| shard_qp.shared.hot())) {
            return;
        }
        for index in hot.drain(..idle_count) {
            if let Some(shard_qp) = &mut slots[index] {
                shard_qp.is_hot = false;
                if shard_qp.has_posted() {
                    doorbells.ring(shard_qp.id.slot());
                }
            }
        }
        doorbells.set_hot_count(hot.len());
    }
}

#[cfg(test)]
mod tests;
