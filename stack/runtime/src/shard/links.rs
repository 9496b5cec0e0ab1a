//! Work queues of all queue pairs of a shard, and which of them are hot
//! ([`ferrowarp_lockfree::doorbell::hot`]).

use std::ops::ControlFlow;

use ferrowarp_proto::time::{Instant, MILLISECOND};
use ferrowarp_proto::verbs::wc::QpId;

use crate::shard::work_queue::{EngineQueues, Link, TAKE_COUNT_MAX};
use ferrowarp_lockfree::doorbell::Doorbells;
use ferrowarp_lockfree::doorbell::hot;

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
const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Work queues of all queue pairs of a shard.
pub(crate) struct Links {
    slots: Vec<Option<Link>>,
    free: Vec<usize>,
    /// By number of the queue pair, which is the context's: its slot, or [`NO_SLOT`].
    by_number: Vec<u32>,
    /// Slots of the hot queue pairs.
    hot: Vec<usize>,
    /// Maximum number of those; 0 if the kernel lacks the barrier.
    hot_count_max: usize,
    /// When idle queue pairs are demoted; never while few are hot.
    demote_at: Instant,
    /// Number of the queue pair at which the next poll begins with the doorbells.
    next_rung: usize,
}

impl Links {
    pub(crate) fn new() -> Self {
        let hot_count_max = hot::count_max();
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            by_number: Vec::new(),
            hot: Vec::with_capacity(hot_count_max),
            hot_count_max,
            demote_at: NEVER,
            next_rung: 0,
        }
    }

    #[inline]
    fn slot(&self, number: usize) -> Option<usize> {
        self.by_number.get(number).filter(|&&slot| slot != NO_SLOT).map(|&slot| slot as usize)
    }

    #[inline]
    pub(crate) fn get(&self, qp: QpId) -> Option<&Link> {
        let slot = self.slot(qp.slot())?;
        self.slots[slot].as_ref().filter(|link| link.id == qp)
    }

    pub(crate) fn get_mut(&mut self, qp: QpId) -> Option<&mut Link> {
        let slot = self.slot(qp.slot())?;
        self.slots[slot].as_mut().filter(|link| link.id == qp)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Link> {
        self.slots.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Link> {
        self.slots.iter_mut().flatten()
    }

    pub(crate) fn insert(&mut self, link: Link) {
        let number = link.id.slot();
        if number >= self.by_number.len() {
            self.by_number.resize(number + 1, NO_SLOT);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.by_number[number] = u32::try_from(slot).expect("as many as queue pairs at most");
        self.slots[slot] = Some(link);
    }

    /// Removes a queue pair, to which nothing is posted any more.
    pub(crate) fn remove(&mut self, qp: QpId) {
        if self.get(qp).is_some()
            && let Some(slot) = self.slot(qp.slot())
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
            if let Some(Some(link)) = slots.get_mut(slot)
                && link.has_posted()
            {
                let served = link.serve(engine, budget.min(TAKE_COUNT_MAX));
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
            let Some(Some(link)) = slots.get_mut(slot) else { return go_on };
            let served = link.serve(engine, requests.min(TAKE_COUNT_MAX));
            any |= served.any;
            requests -= served.sends;
            if !link.is_hot && hot.len() < self.hot_count_max {
                link.is_hot = true;
                link.qp.hot().promote();
                hot.push(slot);
            }
            // The next poll looks at a hot one anyway.
            if served.sends_left && !link.is_hot {
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
            }
        }
        any
    }

    /// True if idle queue pairs have to be demoted.
    #[inline]
    pub(crate) fn is_demotion_due(&self, now: Instant) -> bool {
        now >= self.demote_at
    }

    /// Demotes queue pairs that have been idle since the call before, but for a few.
    #[cold]
    pub(crate) fn demote_idle(&mut self, now: Instant, doorbells: &Doorbells) {
        let mut surplus = self.hot.len().saturating_sub(IDLE_COUNT_MAX);
        self.demote(doorbells, |link| {
            let is_idle = !std::mem::take(&mut link.is_used) && surplus > 0;
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
    fn demote(&mut self, doorbells: &Doorbells, mut is_idle: impl FnMut(&mut Link) -> bool) {
        let Self { slots, hot, .. } = self;
        let mut idle_count = 0;
        for at in 0..hot.len() {
            if slots[hot[at]].as_mut().is_none_or(&mut is_idle) {
                hot.swap(idle_count, at);
                idle_count += 1;
            }
        }
        let flags = hot[..idle_count].iter().filter_map(|&index| slots[index].as_ref());
        if idle_count == 0 || !hot::demote(flags.map(|link| link.qp.hot())) {
            return;
        }
        for index in hot.drain(..idle_count) {
            if let Some(link) = &mut slots[index] {
                link.is_hot = false;
                if link.has_posted() {
                    doorbells.ring(link.id.slot());
                }
            }
        }
        doorbells.set_hot_count(hot.len());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ferrowarp_proto::verbs::wc::CqId;
    use ferrowarp_proto::verbs::work_queues::WorkQueues;
    use ferrowarp_proto::verbs::wr::RecvWr;

    use super::*;
    use crate::shard::cq_rings::CqRings;
    use crate::shard::qp::QpShared;

    const COUNT: usize = IDLE_COUNT_MAX + 2;

    /// Engine that is told of receives.
    struct Fake {
        told_of: Vec<QpId>,
        rings: CqRings,
    }

    impl EngineQueues for Fake {
        fn take_sends(&mut self, _: QpId, _: usize) -> (usize, bool) {
            (0, false)
        }

        fn on_recvs_posted(&mut self, qp: QpId) {
            self.told_of.push(qp);
        }

        fn rings(&mut self) -> &mut CqRings {
            &mut self.rings
        }
    }

    /// A shard with queue pairs that were all rung.
    struct Fixture {
        links: Links,
        qps: Vec<Arc<QpShared>>,
        doorbells: Doorbells,
        engine: Fake,
    }

    impl Fixture {
        fn new() -> Self {
            let mut links = Links::new();
            links.hot_count_max = COUNT;
            let mut fixture = Self {
                links,
                qps: Vec::new(),
                doorbells: Doorbells::new(COUNT),
                engine: Fake { told_of: Vec::new(), rings: CqRings::new(COUNT) },
            };
            for index in 0..COUNT {
                let id = QpId { index: u32::try_from(index).unwrap(), generation: 0 };
                let WorkQueues { sends, recvs, tails, .. } = WorkQueues::new(1, 4);
                let qp = Arc::new(QpShared::new(sends, recvs));
                fixture.links.insert(Link::new(id, Arc::clone(&qp), [CqId(0); 2], tails));
                fixture.qps.push(qp);
                fixture.doorbells.ring(index);
            }
            fixture.serve_rung();
            fixture
        }

        fn serve_rung(&mut self) {
            let Self { links, doorbells, engine, .. } = self;
            links.serve_rung(engine, Instant::ZERO, doorbells);
        }

        fn post(&self, index: usize) {
            let wr = RecvWr { wr_id: 0, sg_list: Default::default() };
            assert_eq!(self.qps[index].post_recvs([wr]), (1, None));
        }

        fn hot_count(&self) -> usize {
            self.qps.iter().filter(|qp| qp.hot().is_hot()).count()
        }
    }

    #[test]
    fn rung_queue_pairs_become_hot_and_need_no_doorbell() {
        let mut fixture = Fixture::new();
        assert_eq!((fixture.hot_count(), fixture.doorbells.has_hot()), (COUNT, true));
        fixture.post(3);
        assert!(!fixture.doorbells.is_pending());
        assert!(fixture.links.serve_hot(&mut fixture.engine));
        assert_eq!(fixture.engine.told_of.len(), 1);
        assert!(!fixture.links.serve_hot(&mut fixture.engine));
    }

    #[test]
    fn surplus_of_idle_queue_pairs_is_demoted() {
        let mut fixture = Fixture::new();
        let due = Instant::ZERO + IDLE_NS;
        assert!(fixture.links.is_demotion_due(due));
        // All were used since they were rung.
        fixture.links.demote_idle(due, &fixture.doorbells);
        assert_eq!(fixture.hot_count(), COUNT);
        fixture.post(0);
        fixture.links.serve_hot(&mut fixture.engine);
        fixture.links.demote_idle(due + IDLE_NS, &fixture.doorbells);
        assert_eq!(fixture.hot_count(), if hot::count_max() > 0 { 4 } else { COUNT });
        assert!(fixture.qps[0].hot().is_hot(), "in use");
    }

    #[test]
    fn demotion_rings_for_requests_that_were_not_taken() {
        let mut fixture = Fixture::new();
        if !hot::count_max() > 0 {
            return;
        }
        fixture.post(5);
        fixture.links.demote_all(&fixture.doorbells);
        assert_eq!((fixture.hot_count(), fixture.doorbells.has_hot()), (0, false));
        assert!(fixture.doorbells.is_pending());
        fixture.serve_rung();
        assert_eq!(fixture.engine.told_of.len(), 1);
        assert_eq!(fixture.hot_count(), 1, "the one that was rung");
        assert!(!fixture.links.is_demotion_due(Instant::ZERO + IDLE_NS));
    }

    #[test]
    fn removed_queue_pair_is_not_polled() {
        let mut fixture = Fixture::new();
        let id = fixture.links.iter().next().unwrap().id;
        fixture.links.remove(id);
        assert!(fixture.links.get(id).is_none());
        fixture.post(0);
        assert!(!fixture.links.serve_hot(&mut fixture.engine));
    }
}
