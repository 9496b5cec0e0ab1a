//! All queue pairs of an engine.

use crate::ddp::memory::Memory;
use crate::ddp::regions::{AccessScope, StreamId};
use crate::ddp::untagged::BufferQueue;
use crate::device::Device;
use crate::rdmap::requester::Requester;
use crate::slab::Slab;
use crate::verbs::cm::CmError;
use crate::verbs::qp::{QpInit, QpState};
use crate::verbs::queue_pair::{FlushResult, Qp};
use crate::verbs::resources::Verbs;
use crate::verbs::srq::SrqUsage;
use crate::verbs::srq::{SrqError, SrqId};
use crate::verbs::wc::{Completions, QpId};
use crate::verbs::wr::{PostError, RecvWr};

/// Requests flushed in a pass, at most; visits of queue pairs count as well. Half of them are left
/// to queue pairs that have waited.
const FLUSHES_PER_PASS: usize = 256;
/// Requests flushed in the turn of a completion queue, or of a queue pair that was not looked at.
const FLUSHES_PER_TURN: usize = 32;
/// Full completion queues looked at in a pass.
const FULL_CQS_PER_PASS: usize = 2;
/// Slots visited in a pass, in search of the queue pairs that took most shared receive buffers.
const TOP_TAKERS_PER_PASS: usize = 1024;

/// Table of queue pairs, by slot index. The handle of a queue pair is its number: that of its slot,
/// or one that was chosen for it, because several engines have the queue pairs of one application.
pub(crate) struct QueuePairs {
    qps: Slab<Qp>,
    /// By index of the handle: the slot; [`NO_SLOT`] if there is none.
    slots: Vec<u32>,
}

const NO_SLOT: u32 = u32::MAX;

impl QueuePairs {
    pub(crate) fn new(count_max: usize) -> Self {
        Self { qps: Slab::new(count_max), slots: Vec::new() }
    }

    /// Creates a queue pair in the access scope of `stream`, with the handle `id` if it is given.
    ///
    /// # Errors
    /// [`CmError::NoResources`] when the limit is reached, or the index of `id` is in use.
    pub(crate) fn create(
        &mut self,
        id: Option<QpId>,
        stream: StreamId,
        init: QpInit,
        requester: Requester,
        recv_queue: BufferQueue,
    ) -> Result<QpId, CmError> {
        let scope = AccessScope { pd: init.pd, stream };
        if id.is_some_and(|id| self.slots.get(id.slot()).is_some_and(|&slot| slot != NO_SLOT)) {
            return Err(CmError::NoResources);
        }
        let make = |index, generation| {
            let id = id.unwrap_or(QpId { index, generation });
            Qp::new(id, index, &init, scope, requester, recv_queue)
        };
        let slot = self.qps.insert_with(make).ok_or(CmError::NoResources)?;
        let id = self.qps.get(slot).ok_or(CmError::NoResources)?.id;
        if id.slot() >= self.slots.len() {
            self.slots.resize(id.slot() + 1, NO_SLOT);
        }
        self.slots[id.slot()] = slot;
        Ok(id)
    }

    /// Destroys a queue pair; completions not reported yet are dropped. Visits no other.
    pub(crate) fn destroy<M, C>(&mut self, verbs: &mut Verbs<M, C>, qp: QpId) {
        let Some(index) = self.slot(qp) else { return };
        self.slots[qp.slot()] = NO_SLOT;
        verbs.flushes.remove(index);
        let usage = self.qps.remove(index).and_then(|qp| qp.srq);
        if let Some(srq) = usage.map(|usage| usage.index())
            && let Some(queue) = verbs.srqs.get_mut(srq)
        {
            queue.detach(qp);
        }
    }

    /// Returns the slot index of a queue pair, unless it was destroyed.
    #[inline]
    pub(crate) fn slot(&self, qp: QpId) -> Option<u32> {
        let slot = *self.slots.get(qp.slot())?;
        self.qps.get(slot).is_some_and(|found| found.id == qp).then_some(slot)
    }

    /// Has the port load the state of the queue pair in this slot, unless there is none.
    pub(crate) fn prefetch<D: Device>(&self, index: u32) {
        if let Some(slot) = self.qps.slot(index) {
            D::prefetch(slot);
        }
    }

    pub(crate) fn get(&self, index: u32) -> Option<&Qp> {
        self.qps.get(index)
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Qp> {
        self.qps.get_mut(index)
    }

    /// Returns a queue pair by its handle.
    pub(crate) fn by_id(&self, qp: QpId) -> Option<&Qp> {
        let slot = *self.slots.get(qp.slot())?;
        self.qps.get(slot).filter(|found| found.id == qp)
    }

    /// Returns a queue pair by its handle.
    pub(crate) fn by_id_mut(&mut self, qp: QpId) -> Option<&mut Qp> {
        let slot = *self.slots.get(qp.slot())?;
        self.qps.get_mut(slot).filter(|found| found.id == qp)
    }

    /// Returns the slot index of a queue pair without connection.
    ///
    /// # Errors
    /// [`CmError::Gone`], [`CmError::WrongState`].
    pub(crate) fn idle(&self, qp: QpId) -> Result<u32, CmError> {
        let found = self.by_id(qp).ok_or(CmError::Gone)?;
        if found.state() == QpState::Idle { Ok(found.slot) } else { Err(CmError::WrongState) }
    }

    /// Returns the number of slots ever used: all are below it.
    pub(crate) fn slot_count(&self) -> usize {
        self.qps.slot_count()
    }

    /// Reports flushed requests as far as the completion queues have free slots, a bounded number
    /// of them: queue pairs take turns, and completion queues. True if there was anything to do.
    #[inline(always)]
    pub(crate) fn flush<M: Memory, C: Completions>(&mut self, verbs: &mut Verbs<M, C>) -> bool {
        !verbs.flushes.is_empty() && self.flush_in_turn(verbs)
    }

    #[inline(never)]
    fn flush_in_turn<M: Memory, C: Completions>(&mut self, verbs: &mut Verbs<M, C>) -> bool {
        let Verbs { flushes, completions, .. } = verbs;
        flushes.look_at_full(FULL_CQS_PER_PASS, |cq| completions.is_full(cq));
        flushes.is_due() && self.flush_due(verbs)
    }

    #[inline(never)]
    fn flush_due<M: Memory, C: Completions>(&mut self, verbs: &mut Verbs<M, C>) -> bool {
        let mut budget = FLUSHES_PER_PASS;
        while budget > FLUSHES_PER_PASS / 2
            && let Some(slot) = verbs.flushes.first_new()
        {
            let mut left = FLUSHES_PER_TURN.min(budget - FLUSHES_PER_PASS / 2);
            budget -= left;
            self.flush_one(verbs, slot, &mut left);
            budget += left;
        }
        while budget > 0
            && let Some(cq) = verbs.flushes.next_turn()
        {
            let mut left = FLUSHES_PER_TURN.min(budget);
            budget -= left;
            let mut is_full = false;
            while left > 0
                && !is_full
                && let Some(slot) = verbs.flushes.first_of(cq)
            {
                is_full = self.flush_one(verbs, slot, &mut left) == FlushResult::CqFull(cq);
            }
            budget += left;
            verbs.flushes.end_turn(cq, is_full);
        }
        budget < FLUSHES_PER_PASS
    }

    /// Flushes one queue pair, the first of its list; the visit is charged as a request.
    fn flush_one<M: Memory, C: Completions>(
        &mut self,
        verbs: &mut Verbs<M, C>,
        slot: u32,
        budget: &mut usize,
    ) -> FlushResult {
        let Some(qp) = self.qps.get_mut(slot) else {
            debug_assert!(false, "a queue pair leaves its list when it is destroyed");
            verbs.flushes.remove(slot);
            return FlushResult::Done;
        };
        let result = qp.flush(verbs, budget);
        *budget = budget.saturating_sub(1);
        match result {
            FlushResult::Done => verbs.flushes.remove(slot),
            // It stays the first, unless it waited for another queue so far.
            FlushResult::CqFull(cq) => verbs.flushes.wait_for(slot, cq),
            FlushResult::Again => verbs.flushes.move_last(slot),
        }
        result
    }

    /// Attaches a queue pair that is not connected to a shared receive queue for good; buffers
    /// posted to its own queue are dropped.
    ///
    /// # Errors
    /// `NoSuchSrq`, `NoSuchQp`; `NotIdle`; `OtherDomain` if their protection domains differ.
    pub(crate) fn attach_srq<M, C>(
        &mut self,
        verbs: &mut Verbs<M, C>,
        qp: QpId,
        srq: SrqId,
    ) -> Result<(), SrqError> {
        let queue = verbs.srq(srq)?;
        let qp = self.by_id_mut(qp).ok_or(SrqError::NoSuchQp)?;
        if qp.state() != QpState::Idle || qp.srq.is_some() {
            return Err(SrqError::NotIdle);
        }
        if qp.stream.access_scope().pd != queue.pd {
            return Err(SrqError::OtherDomain);
        }
        // For the buffer of the message that is arriving.
        qp.stream.recv_queue = BufferQueue::new(queue.cap_of_one());
        qp.srq = Some(SrqUsage::new(srq.index));
        queue.qp_count += 1;
        Ok(())
    }

    /// Posts a buffer to a shared receive queue.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub(crate) fn post_srq_recv<M, C>(
        &self,
        verbs: &mut Verbs<M, C>,
        srq: SrqId,
        wr: RecvWr,
    ) -> Result<(), PostError> {
        let queue = verbs.srq(srq).map_err(|_| PostError::NoSuchSrq)?;
        queue.post(&wr)
    }

    /// At the end of a pass, or of a call that has processed received data: accounts for the shared
    /// receive buffers used, lets the application post as many, and credits queue pairs with those
    /// posted.
    #[inline]
    pub(crate) fn end_srq_pass<M, C>(&mut self, verbs: &mut Verbs<M, C>) {
        if verbs.has_used_srqs() {
            self.end_pass_of_srqs(verbs);
        }
    }

    #[cold]
    fn end_pass_of_srqs<M, C>(&mut self, verbs: &mut Verbs<M, C>) {
        let mut searched = TOP_TAKERS_PER_PASS;
        while let Some(srq) = verbs.last_used_srq() {
            if let Some(queue) = verbs.srqs.get_mut(srq)
                && queue.has_lost_top_taker()
            {
                let usage = |slot| {
                    let qp = self.qps.get(u32::try_from(slot).ok()?)?;
                    Some((qp.id, qp.srq.filter(|usage| usage.index() == srq)?))
                };
                queue.search_top_taker(self.qps.slot_count(), &mut searched, usage);
            }
            let Some(queue) = verbs.end_pass_of_srq() else { continue };
            queue.take_credits(|holder, count| {
                if let Some(usage) = self.by_id_mut(holder).and_then(|qp| qp.srq.as_mut()) {
                    usage.outstanding -= count;
                }
            });
        }
    }

    /// Returns the number of buffers of its shared receive queue that a queue pair holds.
    pub(crate) fn srq_outstanding<M, C>(&self, verbs: &Verbs<M, C>, qp: QpId) -> usize {
        let Some(usage) = self.by_id(qp).and_then(|qp| qp.srq) else { return 0 };
        verbs.srqs.get(usage.index()).map_or(0, |srq| srq.outstanding(qp, usage))
    }

    /// Returns the number of buffers that a queue pair has taken from its shared receive queue
    /// since the limit was armed.
    pub(crate) fn srq_taken<M, C>(&self, verbs: &Verbs<M, C>, qp: QpId) -> u64 {
        let Some(usage) = self.by_id(qp).and_then(|qp| qp.srq) else { return 0 };
        verbs.srqs.get(usage.index()).map_or(0, |srq| usage.taken_since_arm(srq))
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;

    use super::*;
    use crate::ddp::memory::{Access, MemoryFault};
    use crate::ddp::recv_queue::RqCap;
    use crate::ddp::recv_queue::recv_queue;
    use crate::ddp::sgl::SgList;
    use crate::ddp::vec_memory::VecMemory;
    use crate::rdmap::send_queue::SqCap;
    use crate::verbs::cm::ConnEvent;
    use crate::verbs::qp::QpCap;
    use crate::verbs::srq::SrqBuffers;
    use crate::verbs::wc::{CqId, Wc};

    struct NullCq;

    impl Completions for NullCq {
        fn push(&mut self, _: CqId, _: Wc) -> bool {
            true
        }
    }

    /// The queue pair that took most buffers was destroyed: the next one is looked for over several
    /// passes.
    #[test]
    fn next_top_taker_is_found_in_steps() {
        const COUNT: u32 = 3000;
        let arena = Rc::new(VecMemory::new(64));
        let cq = CqId(0);
        let init = QpInit { pd: 1, send_cq: cq, recv_cq: cq, cap: QpCap::new(1, 1) };
        let mut verbs = Verbs::new(Rc::clone(&arena), NullCq, 4);
        let mut engine = QueuePairs::new(COUNT as usize);
        let (producer, rq, _) = recv_queue(RqCap::new(64));
        let buffers = Arc::new(SrqBuffers::with_producer(rq, Some(producer), 1));
        let srq = verbs.create_srq(1, buffers, 0).unwrap();
        let qps: Vec<_> = (0..COUNT)
            .map(|_| {
                let stream = arena.regions().new_stream_id();
                let (requester, recv_queue) =
                    (Requester::new(SqCap::new(1)), BufferQueue::new(RqCap::new(1)));
                let qp = engine.create(None, stream, init, requester, recv_queue).unwrap();
                engine.attach_srq(&mut verbs, qp, srq).unwrap();
                qp
            })
            .collect();
        for wr_id in 0..64 {
            let wr = RecvWr { wr_id, sg_list: SgList::default() };
            engine.post_srq_recv(&mut verbs, srq, wr).unwrap();
        }
        let take = |engine: &mut QueuePairs, verbs: &mut Verbs<_, _>, qp, count| {
            for _ in 0..count {
                let usage = engine.by_id_mut(qp).and_then(|qp| qp.srq.as_mut()).unwrap();
                let queue = verbs.srq(srq).unwrap();
                assert!(queue.pop_to(&mut BufferQueue::new(queue.cap_of_one())));
                queue.commit(qp, usage);
                verbs.on_srq_used(srq.index);
            }
            engine.end_srq_pass(verbs);
            verbs.srq(srq).unwrap().has_lost_top_taker()
        };
        // Without a limit nothing is looked for.
        take(&mut engine, &mut verbs, qps[1], 3);
        engine.destroy(&mut verbs, qps[1]);
        assert!(!verbs.srq(srq).unwrap().has_lost_top_taker());
        verbs.arm_srq(srq, 49).unwrap();
        take(&mut engine, &mut verbs, qps[0], 6);
        take(&mut engine, &mut verbs, qps[2500], 4);
        engine.destroy(&mut verbs, qps[0]);
        let is_left = [(); 3].map(|()| take(&mut engine, &mut verbs, qps[2], 1));
        assert_eq!(is_left, [true, true, false]);
        let most = Some((qps[2500], 4));
        assert_eq!(verbs.events.pop_front(), Some(ConnEvent::SrqLimit { srq, left: 48, most }));
    }

    // req-test: RDMAP-277
    #[test]
    fn qp_bound_stag_is_refused_to_another_engines_qp() {
        let arena = Rc::new(VecMemory::new(64));
        let cq = CqId(0);
        let init = QpInit { pd: 1, send_cq: cq, recv_cq: cq, cap: QpCap::new(1, 1) };
        let mut engines = [(); 2].map(|()| QueuePairs::new(4));
        let create = |qps: &mut QueuePairs| {
            let stream = arena.regions().new_stream_id();
            qps.create(
                None,
                stream,
                init,
                Requester::new(init.cap.sends),
                BufferQueue::new(init.cap.recvs),
            )
            .unwrap()
        };
        let qps = [0, 1].map(|at: usize| create(&mut engines[at]));
        assert_eq!(qps[0], qps[1], "each engine numbers its own");
        let scope = |qps: &QueuePairs, qp| qps.by_id(qp).map(|qp| qp.stream.access_scope());
        let scopes = [0, 1].map(|at: usize| scope(&engines[at], qps[at]).unwrap());
        let stag = arena.register_for(0, 64, Access::ALL, 1, scopes[0].stream);
        let write = |scope| arena.regions().resolve(stag, scope, Access::REMOTE_WRITE, 0, 1).err();
        assert_eq!(scopes.map(write), [None, Some(MemoryFault::NotAssociated)]);
        // Nor does the next queue pair in the slot have access.
        let mut verbs = Verbs::new(Rc::clone(&arena), NullCq, 4);
        engines[0].destroy(&mut verbs, qps[0]);
        let next = create(&mut engines[0]);
        assert_eq!(next.index, qps[0].index);
        assert_eq!(scope(&engines[0], qps[0]), None);
        let next = scope(&engines[0], next).unwrap();
        assert_eq!(write(next), Some(MemoryFault::NotAssociated));
    }
}
