//! Buffers of a shared receive queue, and the accounts of who took them: common to all engines that
//! have the queue.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ddp::recv_queue::{RecvWqeCopies, RqCap, RqConsumer, RqProducer};
use crate::verbs::wc::QpId;
use crate::verbs::wr::{PostError, RecvWr};

/// Buffers credited in a pass, at most: an application may post a whole queue at once.
const CREDITS_PER_PASS: usize = 1024;

/// Limit event: the number of buffers left, and the queue pair that took most, with their number.
pub(crate) type LimitEvent = (usize, Option<(QpId, u64)>);

/// Buffers of a shared receive queue, for one engine or several.
///
/// The lock is taken by a pass that takes buffers, twice, and by calls of the application outside
/// the data path; posting takes none.
#[derive(Debug)]
pub struct SrqBuffers {
    state: Mutex<State>,
    /// Maximum number of buffers that each queue pair may hold; 0: no cap.
    cap: AtomicUsize,
    /// Number of times that the limit was armed.
    arm_count: AtomicU64,
}

/// State under the lock.
#[derive(Debug)]
pub(super) struct State {
    /// Buffers, read where the application has posted them; an engine takes copies.
    rq: RqConsumer,
    /// For [`State::post`], unless the application posts itself.
    producer: Option<RqProducer>,
    /// Buffers posted since creation that were credited to the queue pairs. No others are taken: a
    /// buffer would replace itself.
    posted: u64,
    /// Buffers given back, older than those in `rq`; in the order of posting.
    returned: RecvWqeCopies,
    /// Limit: an event is raised when fewer buffers than this are left; 0: not armed.
    limit: usize,
    arm_count: u64,
    /// Queue pairs that took the buffers not replaced yet, oldest first, with their engines.
    /// Together with the buffers left they are at most its capacity.
    holders: VecDeque<(usize, QpId)>,
    engines: Vec<EngineAccount>,
}

/// Account of an engine.
#[derive(Debug, Default)]
struct EngineAccount {
    /// Buffers that it has taken and not accounted for.
    stashed: usize,
    /// Queue pairs for whose buffers others were posted; one entry for each.
    credits: VecDeque<QpId>,
    /// Older ones, by queue pair: they were counted to find those of another.
    counted: BTreeMap<QpId, u32>,
    /// Queue pair that took most buffers since the limit was armed, and their number.
    top_taker: Option<(QpId, u64)>,
}

impl SrqBuffers {
    /// Returns the buffers of a receive queue to whose producer the application posts, for as many
    /// engines as this.
    #[must_use]
    pub fn new(rq: RqConsumer, engines: usize) -> Self {
        Self::with_producer(rq, None, engines)
    }

    pub(crate) fn with_producer(
        rq: RqConsumer,
        producer: Option<RqProducer>,
        engines: usize,
    ) -> Self {
        let state = State {
            holders: VecDeque::with_capacity(rq.count_max()),
            returned: rq.new_copies(),
            rq,
            producer,
            posted: 0,
            limit: 0,
            arm_count: 0,
            engines: (0..engines).map(|_| EngineAccount::default()).collect(),
        };
        Self { state: Mutex::new(state), cap: AtomicUsize::new(0), arm_count: AtomicU64::new(0) }
    }

    /// Returns a queue for copies of its buffers.
    pub(super) fn new_copies(&self) -> RecvWqeCopies {
        self.lock().rq.new_copies()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn cap(&self) -> usize {
        self.cap.load(Ordering::Relaxed)
    }

    pub(super) fn set_cap(&self, cap: usize) {
        self.cap.store(cap, Ordering::Relaxed);
    }

    pub(super) fn arm_count(&self) -> u64 {
        self.arm_count.load(Ordering::Relaxed)
    }

    /// Arms the limit; `state` is that of this queue.
    pub(super) fn arm(&self, state: &mut State, limit: usize) {
        state.limit = limit;
        state.arm_count += 1;
        self.arm_count.store(state.arm_count, Ordering::Relaxed);
        for engine in &mut state.engines {
            engine.top_taker = None;
        }
    }
}

impl State {
    /// Returns the number of buffers left.
    fn len(&self) -> usize {
        self.taken_len() + self.rq.len()
    }

    /// Returns the number of buffers left that are not in the ring: engines have them, or gave them
    /// back.
    fn taken_len(&self) -> usize {
        self.returned.len() + self.engines.iter().map(|engine| engine.stashed).sum::<usize>()
    }

    /// Returns the number of buffers in the ring that may be taken.
    fn credited_len(&self) -> usize {
        usize::try_from(self.posted - self.rq.taken()).unwrap_or(usize::MAX)
    }

    /// Capacity of a receive queue for one of its buffers.
    pub(super) fn cap_of_one(&self) -> RqCap {
        self.rq.cap_of_one()
    }

    pub(super) fn free_slots(&self) -> usize {
        self.rq.count_max() - self.len()
    }

    /// True if a limit event may come.
    pub(super) const fn is_armed(&self) -> bool {
        self.limit > 0
    }

    /// Adds a buffer.
    ///
    /// # Errors
    /// `QueueFull`, also if the application posts itself; `TooManySges`.
    pub(super) fn post(&mut self, wr: &RecvWr) -> Result<(), PostError> {
        self.publish_retired();
        let producer = self.producer.as_mut().ok_or(PostError::QueueFull)?;
        let posted = producer.post(wr.wr_id, &wr.sg_list);
        producer.publish();
        posted
    }

    /// Lets the application post as many buffers as have left the queue.
    pub(super) fn publish_retired(&mut self) {
        self.rq.publish_retired(self.taken_len());
    }

    /// Credits queue pairs with buffers posted and not credited yet, at most
    /// [`CREDITS_PER_PASS`]: each replaces the one that was taken first. A buffer that replaces
    /// none adds to the queue.
    fn credit_posted(&mut self) {
        let posted = self.rq.taken() + self.rq.len() as u64;
        for _ in 0..CREDITS_PER_PASS {
            if self.posted == posted {
                break;
            }
            let Some((engine, holder)) = self.holders.pop_front() else {
                self.posted = posted;
                break;
            };
            self.posted += 1;
            self.engines[engine].credits.push_back(holder);
        }
    }

    /// Passes queue pairs of an engine that were credited to `credit`, with the number of buffers,
    /// as many as a pass may. The others keep their credits.
    pub(super) fn take_credits(&mut self, engine: usize, mut credit: impl FnMut(QpId, u32)) {
        self.credit_posted();
        let EngineAccount { credits, counted, .. } = &mut self.engines[engine];
        let mut left = CREDITS_PER_PASS;
        while left > 0
            && let Some((qp, count)) = counted.pop_first()
        {
            credit(qp, count);
            left -= 1;
        }
        credits.drain(..credits.len().min(left)).for_each(|qp| credit(qp, 1));
    }

    /// Returns the number of credits of one queue pair, which it keeps.
    pub(super) fn credits_of(&mut self, engine: usize, qp: QpId) -> u32 {
        let count = self.take_credits_of(engine, qp, u32::MAX);
        if count > 0 {
            self.engines[engine].counted.insert(qp, count);
        }
        count
    }

    /// Removes credits of one queue pair, all or at least `wanted`; returns their number.
    ///
    /// Cost: visits credits of others on the way, but each only once however often this is called:
    /// they are counted by queue pair.
    pub(super) fn take_credits_of(&mut self, engine: usize, qp: QpId, wanted: u32) -> u32 {
        let mut count = self.engines[engine].counted.remove(&qp).unwrap_or(0);
        while count < wanted {
            let posted = self.posted;
            self.credit_posted();
            let EngineAccount { credits, counted, .. } = &mut self.engines[engine];
            if credits.is_empty() && self.posted == posted {
                break;
            }
            for credited in credits.drain(..credits.len().min(CREDITS_PER_PASS)) {
                if credited == qp {
                    count += 1;
                } else {
                    *counted.entry(credited).or_insert(0) += 1;
                }
            }
        }
        count
    }

    /// Moves up to `max` buffers to `out`, for an engine, oldest first: one alone if there are
    /// fewer than a batch for each engine.
    pub(super) fn take_batch(&mut self, engine: usize, max: usize, out: &mut RecvWqeCopies) {
        self.credit_posted();
        let available = self.returned.len() + self.credited_len();
        let is_scarce = self.engines.len() > 1 && available < max * self.engines.len();
        let count = available.min(if is_scarce { 1 } else { max });
        let mut taken = out.take_front(&mut self.returned, count);
        while taken < count
            && let Some(wqe) = self.rq.front()
        {
            out.push_back(&wqe);
            self.rq.pop_front();
            taken += 1;
        }
        self.engines[engine].stashed += taken;
    }

    /// Accounts for the buffers that queue pairs of an engine have used, oldest first.
    pub(super) fn account(
        &mut self,
        engine: usize,
        used: impl Iterator<Item = QpId>,
        arm_count: u64,
        top_taker: Option<(QpId, u64)>,
    ) {
        for qp in used {
            self.engines[engine].stashed -= 1;
            self.holders.push_back((engine, qp));
        }
        if arm_count == self.arm_count {
            self.engines[engine].top_taker = top_taker;
        }
    }

    /// Returns unused buffers of an engine, which are older than those in the ring.
    pub(super) fn give_back(&mut self, engine: usize, unused: &mut RecvWqeCopies) {
        self.engines[engine].stashed -= unused.len();
        self.returned.put_back(unused);
    }

    /// Gives up the buffers that an engine has taken and neither accounts for nor returns any more.
    pub(super) fn write_off(&mut self, engine: usize) {
        self.engines[engine].stashed = 0;
    }

    /// Disarms the limit if fewer buffers are left, and returns its event.
    pub(super) fn take_limit_event(&mut self) -> Option<LimitEvent> {
        if self.limit == 0 {
            return None;
        }
        let left = self.len();
        if left >= self.limit {
            return None;
        }
        self.limit = 0;
        let takers = self.engines.iter().filter_map(|engine| engine.top_taker);
        Some((left, takers.max_by_key(|&(_, taken)| taken)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ddp::recv_queue::{RqCap, recv_queue};
    use crate::ddp::sgl::SgList;

    const QP: [QpId; 2] = [QpId { index: 1, generation: 0 }, QpId { index: 2, generation: 0 }];

    fn credits(state: &mut State, engine: usize) -> Vec<QpId> {
        let mut credits = Vec::new();
        state.take_credits(engine, |qp, count| credits.extend((0..count).map(|_| qp)));
        credits
    }

    /// A queue with `count` buffers, for two engines.
    fn queue(count: usize) -> SrqBuffers {
        let (producer, rq, _) = recv_queue(RqCap::new(64));
        let queue = SrqBuffers::with_producer(rq, Some(producer), 2);
        (0..count as u64).for_each(|wr_id| assert!(post(&queue, wr_id)));
        queue
    }

    fn post(queue: &SrqBuffers, wr_id: u64) -> bool {
        queue.lock().post(&RecvWr { wr_id, sg_list: SgList::default() }).is_ok()
    }

    fn take(queue: &SrqBuffers) -> RecvWqeCopies {
        let mut out = queue.new_copies();
        queue.lock().take_batch(0, 4, &mut out);
        out
    }

    fn ids(mut buffers: RecvWqeCopies) -> Vec<u64> {
        std::iter::from_fn(|| buffers.pop_front()).collect()
    }

    #[test]
    fn batches_become_single_when_few_are_left() {
        let queue = queue(13);
        assert_eq!(ids(take(&queue)), [0, 1, 2, 3]);
        assert_eq!(ids(take(&queue)), [4, 5, 6, 7]);
        // Fewer than a batch for each engine.
        assert_eq!(ids(take(&queue)), [8]);
        assert_eq!(ids(take(&queue)), [9]);
    }

    #[test]
    fn unused_buffers_come_first_again() {
        let queue = queue(12);
        let mut first = take(&queue);
        assert_eq!(first.pop_front(), Some(0));
        {
            let mut state = queue.lock();
            state.account(0, [QP[0]].into_iter(), 0, Some((QP[0], 1)));
            state.give_back(0, &mut first);
            assert_eq!((state.len(), state.engines[0].stashed), (11, 0));
        }
        assert_eq!(ids(take(&queue)), [1, 2, 3, 4]);
    }

    #[test]
    fn slots_are_free_once_their_buffers_are_used() {
        let queue = queue(64);
        assert!(!post(&queue, 64));
        let mut stash = take(&queue);
        assert!(!post(&queue, 64), "taken, not used");
        for _ in 0..2 {
            stash.pop_front();
        }
        let mut state = queue.lock();
        state.account(0, [QP[1]; 2].into_iter(), 0, None);
        state.give_back(0, &mut stash);
        drop(state);
        assert!(post(&queue, 64) && post(&queue, 65));
        assert!(!post(&queue, 66));
    }

    #[test]
    fn posts_replace_the_oldest_buffers_of_any_engine() {
        let queue = queue(12);
        let used = [(1, QP[1]), (0, QP[0]), (1, QP[1]), (1, QP[1])];
        for (engine, qp) in used {
            let mut taken = queue.new_copies();
            let mut state = queue.lock();
            state.take_batch(engine, 1, &mut taken);
            state.account(engine, [qp].into_iter(), 0, None);
        }
        (12..15).for_each(|wr_id| assert!(post(&queue, wr_id)));
        let mut state = queue.lock();
        assert_eq!(credits(&mut state, 0), [QP[0]]);
        assert_eq!(state.take_credits_of(1, QP[0], 1), 0);
        assert_eq!(state.take_credits_of(1, QP[1], 1), 2);
        assert_eq!(credits(&mut state, 1), []);
        assert_eq!(state.holders, [(1, QP[1])]);
    }

    #[test]
    fn whole_queue_posted_at_once_is_credited_over_several_passes() {
        const COUNT: usize = 8192;
        let (producer, rq, _) = recv_queue(RqCap::new(COUNT));
        let queue = SrqBuffers::with_producer(rq, Some(producer), 1);
        let mut state = queue.lock();
        let post_all = |state: &mut State| {
            for wr_id in 0..COUNT as u64 {
                state.post(&RecvWr { wr_id, sg_list: SgList::default() }).unwrap();
            }
        };
        post_all(&mut state);
        for at in 0..COUNT {
            let mut taken = state.rq.new_copies();
            state.take_batch(0, 1, &mut taken);
            assert_eq!(taken.len(), 1);
            state.account(0, [QP[at % 2]].into_iter(), 0, None);
        }
        state.publish_retired();
        post_all(&mut state);
        assert_eq!((state.len(), state.free_slots()), (COUNT, 0));
        assert_eq!(credits(&mut state, 0).len(), CREDITS_PER_PASS);
        // One that holds as many as it may counts with as many of its credits as it needs.
        assert_eq!(state.take_credits_of(0, QP[0], 1), 512);
        assert_eq!(state.take_credits_of(0, QP[0], 513), 1024);
        assert_eq!(state.credits_of(0, QP[0]), 2048);
        assert_eq!(state.take_credits_of(0, QP[0], u32::MAX), 2048);
        // Those of others were counted meanwhile.
        assert_eq!(credits(&mut state, 0), [QP[1]; 3584]);
        assert_eq!(credits(&mut state, 0), []);
    }

    /// A queue pair at its cap has its credits looked for with each message.
    #[test]
    fn credits_of_others_are_counted_once() {
        const COUNT: usize = 8192;
        let (producer, rq, _) = recv_queue(RqCap::new(COUNT));
        let queue = SrqBuffers::with_producer(rq, Some(producer), 1);
        let mut state = queue.lock();
        let post =
            |state: &mut State, wr_id| state.post(&RecvWr { wr_id, sg_list: SgList::default() });
        (0..COUNT as u64).for_each(|wr_id| post(&mut state, wr_id).unwrap());
        let mut taken = state.rq.new_copies();
        state.take_batch(0, COUNT, &mut taken);
        state.account(0, (0..taken.len()).map(|_| QP[0]), 0, None);
        state.publish_retired();
        (0..COUNT as u64).for_each(|wr_id| post(&mut state, wr_id).unwrap());
        assert_eq!(state.take_credits_of(0, QP[1], 1), 0);
        assert!(state.engines[0].credits.is_empty(), "{}", state.engines[0].credits.len());
        assert_eq!(state.take_credits_of(0, QP[0], 1), COUNT as u32);
    }

    #[test]
    fn limit_counts_all_engines_and_names_the_largest_taker() {
        let queue = queue(12);
        let mut state = queue.lock();
        queue.arm(&mut state, 10);
        assert_eq!(state.take_limit_event(), None);
        drop(state);
        take(&queue);
        let mut state = queue.lock();
        state.account(0, [QP[0]].into_iter(), 1, Some((QP[0], 1)));
        assert_eq!(state.take_limit_event(), None, "11 are left");
        let mut taken = state.rq.new_copies();
        state.take_batch(1, 2, &mut taken);
        state.account(1, [QP[1]; 2].into_iter(), 1, Some((QP[1], 2)));
        assert_eq!(state.take_limit_event(), Some((9, Some((QP[1], 2)))));
        assert_eq!(state.take_limit_event(), None, "once");
        // What was taken before the limit was armed again does not count.
        queue.arm(&mut state, 9);
        state.account(0, [].into_iter(), 1, Some((QP[0], 5)));
        assert_eq!(state.take_limit_event(), None);
        assert_eq!(queue.arm_count(), 2);
    }
}
