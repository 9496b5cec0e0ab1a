//! Shared receive queues: receive buffers that several queue pairs take as messages arrive.
//!
//! A queue pair dequeues a buffer when the first segment of a message arrives. So messages of one
//! stream get buffers in the order of their MSNs, and an idle stream holds none. A buffer that a
//! message has begun to fill belongs to its queue pair from then on, and is flushed there.
//!
//! A dequeued buffer counts as held by the queue pair until another is posted in its place; posts
//! replace the oldest dequeued buffer first. So a cap on what each queue pair may hold acts like a
//! receive queue of its own of that length, and its peer cannot empty the queue for others.
//! Queue pairs are credited with the buffers posted when one is at its cap, and at the end of a
//! pass that took buffers: a queue without traffic costs a pass nothing.
//!
//! The queue pairs may be those of several engines (shards). The buffers are then common to them
//! (`buffers`, behind a lock); an engine takes a batch of them when a message needs one, and at the
//! end of the pass accounts for those that it used and returns the others. iWARP has no way to ask
//! a peer to wait: a buffer that an idle engine kept could end the stream of another. While few are
//! left they are taken singly for the same reason.

mod buffers;

use core::num::NonZeroU32;
use std::sync::Arc;

pub(super) use buffers::LimitEvent;
pub use buffers::SrqBuffers;

use crate::ddp::recv_queue::{RecvWqe, RecvWqeCopies, RqCap};
use crate::ddp::untagged::BufferQueue;
use crate::ended::Ended;
use crate::verbs::wc::QpId;
use crate::verbs::wr::{PostError, RecvWr};

/// Handle of a shared receive queue (verbs: `ibv_srq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqId {
    /// Slot index.
    pub index: u32,
    /// Generation of the slot.
    pub generation: u32,
}

/// Error of a call on a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SrqError {
    /// No such queue.
    #[error("no such shared receive queue")]
    NoSuchSrq,
    /// No such queue pair.
    #[error("no such queue pair")]
    NoSuchQp,
    /// Queue pairs are attached to it.
    #[error("queue pairs still use the shared receive queue: destroy them first")]
    InUse,
    /// The queue pair is connected, or is attached to a shared receive queue already.
    #[error("the queue pair is in use already, or uses a shared receive queue")]
    NotIdle,
    /// The two belong to different protection domains.
    #[error("the shared receive queue belongs to another protection domain")]
    OtherDomain,
    /// The maximum number of shared receive queues is reached.
    #[error("the limit of shared receive queues is reached: destroy some")]
    TooMany,
    /// The context of the queue, or its shards, do nothing any more.
    #[error(transparent)]
    Ended(#[from] Ended),
}

/// Buffers that an engine takes at a time.
const BATCH_LEN: usize = 16;

/// Shared receive queue, as one engine has it.
#[derive(Debug)]
pub(super) struct Srq {
    pub(super) pd: u32,
    buffers: Arc<SrqBuffers>,
    /// Number of this engine among those that have the queue.
    shard: usize,
    /// Buffers taken for this pass and not used yet; in the order of posting.
    stash: RecvWqeCopies,
    /// Queue pairs that used one in this pass.
    used: Vec<QpId>,
    /// Queue pair of this engine that took most buffers since the limit was armed, and their
    /// number; and how often the limit had been armed then.
    top_taker: Option<(QpId, u64)>,
    top_arm_count: u64,
    /// Slot from which the search for the next one continues at the end of a pass that took
    /// buffers. Set if that queue pair was destroyed while the limit was armed. Visiting all at
    /// each destruction would make the end of many quadratic.
    search_from: Option<usize>,
    /// Number of queue pairs attached.
    pub(super) qp_count: usize,
}

/// Use of a shared receive queue by a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct SrqUsage {
    /// Slot index of the queue, plus one: so `Option` of this takes no more memory.
    number: NonZeroU32,
    /// Buffers taken and not replaced.
    pub(super) outstanding: u32,
    /// Buffers taken since the limit was armed for the `arm_count`-th time.
    taken: u64,
    arm_count: u64,
}

const _: () = assert!(size_of::<Option<SrqUsage>>() == 24, "each queue pair has one");

impl SrqUsage {
    pub(super) const fn new(index: u32) -> Self {
        let number = NonZeroU32::MIN.saturating_add(index);
        Self { number, taken: 0, arm_count: 0, outstanding: 0 }
    }

    /// Slot index of the queue.
    #[inline]
    pub(super) const fn index(&self) -> u32 {
        self.number.get() - 1
    }

    /// Returns the number of buffers taken since the limit was armed.
    pub(super) fn taken_since_arm(&self, srq: &Srq) -> u64 {
        if self.arm_count == srq.buffers.arm_count() { self.taken } else { 0 }
    }
}

impl Srq {
    pub(super) fn new(pd: u32, buffers: Arc<SrqBuffers>, shard: usize) -> Self {
        Self {
            pd,
            stash: buffers.new_copies(),
            buffers,
            shard,
            used: Vec::new(),
            top_taker: None,
            search_from: None,
            top_arm_count: 0,
            qp_count: 0,
        }
    }

    /// Capacity of a receive queue for one of its buffers.
    pub(super) fn cap_of_one(&self) -> RqCap {
        self.buffers.lock().cap_of_one()
    }

    pub(super) fn free_slots(&self) -> usize {
        self.buffers.lock().free_slots()
    }

    /// Adds a buffer.
    ///
    /// # Errors
    /// `QueueFull`, also if the application posts itself; `TooManySges`.
    pub(super) fn post(&self, wr: &RecvWr) -> Result<(), PostError> {
        self.buffers.lock().post(wr)
    }

    /// Passes the queue pairs of this engine whose buffers were replaced since the call before to
    /// `credit`, with the number of buffers.
    pub(super) fn take_credits(&self, credit: impl FnMut(QpId, u32)) {
        self.buffers.lock().take_credits(self.shard, credit);
    }

    /// Returns the number of buffers that a queue pair has taken and that were not replaced.
    pub(super) fn outstanding(&self, qp: QpId, usage: SrqUsage) -> usize {
        (usage.outstanding - self.buffers.lock().credits_of(self.shard, qp)) as usize
    }

    /// Limits each queue pair to `cap` buffers at a time; 0: no cap.
    pub(super) fn set_cap(&self, cap: usize) {
        self.buffers.set_cap(cap);
    }

    /// True if a queue pair holds as many buffers as it may.
    pub(super) fn is_capped(&self, qp: QpId, usage: &mut SrqUsage) -> bool {
        let cap = self.buffers.cap();
        if cap == 0 || (usage.outstanding as usize) < cap {
            return false;
        }
        // Another engine may have seen the buffers that were posted in their place.
        let excess = u32::try_from(usage.outstanding as usize - cap).unwrap_or(u32::MAX);
        let wanted = excess.saturating_add(1);
        usage.outstanding -= self.buffers.lock().take_credits_of(self.shard, qp, wanted);
        usage.outstanding as usize >= cap
    }

    /// Moves the oldest buffer to the receive queue of a queue pair; `false` if there is none.
    pub(super) fn pop_to(&mut self, recv_queue: &mut BufferQueue) -> bool {
        if self.stash.is_empty() {
            self.account_used();
            self.buffers.lock().take_batch(self.shard, BATCH_LEN, &mut self.stash);
        }
        recv_queue.post_copy(&mut self.stash)
    }

    /// Returns a buffer whose message was refused.
    pub(super) fn put_back(&mut self, buffer: &RecvWqe<'_>) {
        self.stash.push_front(buffer);
    }

    /// Accounts for a buffer that a message to `qp` has begun to fill, or has used up.
    pub(super) fn commit(&mut self, qp: QpId, usage: &mut SrqUsage) {
        let arm_count = self.buffers.arm_count();
        usage.taken = usage.taken_since_arm(self) + 1;
        usage.arm_count = arm_count;
        usage.outstanding += 1;
        if std::mem::replace(&mut self.top_arm_count, arm_count) != arm_count {
            self.top_taker = None;
        }
        if self.top_taker.is_none_or(|(_, most)| usage.taken >= most) {
            self.top_taker = Some((qp, usage.taken));
        }
        self.used.push(qp);
    }

    /// At the end of a pass that took buffers, or found none: accounts for those used, lets the
    /// application post as many, and returns the others to the queue. Returns the limit event, if
    /// one is due.
    pub(super) fn end_pass(&mut self) -> Option<LimitEvent> {
        let mut buffers = self.buffers.lock();
        let used = self.used.drain(..);
        buffers.account(self.shard, used, self.top_arm_count, self.top_taker);
        buffers.give_back(self.shard, &mut self.stash);
        buffers.publish_retired();
        buffers.take_limit_event()
    }

    /// As [`Srq::end_pass`], for an engine that ended in the middle of a pass: a buffer may have
    /// been taken for a message that was neither accepted nor refused. It is that of its queue
    /// pair, and its slot is free.
    pub(super) fn abandon(&mut self) -> Option<LimitEvent> {
        let before = self.end_pass();
        let mut buffers = self.buffers.lock();
        buffers.write_off(self.shard);
        buffers.publish_retired();
        before.or_else(|| buffers.take_limit_event())
    }

    fn account_used(&mut self) {
        if !self.used.is_empty() {
            let used = self.used.drain(..);
            let mut buffers = self.buffers.lock();
            buffers.account(self.shard, used, self.top_arm_count, self.top_taker);
        }
    }

    /// Arms the limit, and resets the count of buffers that each queue pair took. 0 disarms it.
    /// Returns the event if it is due at once. Not within a pass that has taken buffers.
    pub(super) fn arm(&self, limit: usize) -> Option<LimitEvent> {
        debug_assert!(self.stash.is_empty() && self.used.is_empty(), "the pass has ended");
        let mut buffers = self.buffers.lock();
        self.buffers.arm(&mut buffers, limit);
        buffers.take_limit_event()
    }

    /// Detaches a queue pair that was destroyed.
    pub(super) fn detach(&mut self, qp: QpId) {
        self.qp_count -= 1;
        if self.top_taker.is_some_and(|(taker, _)| taker == qp) {
            self.top_taker = None;
            let mut buffers = self.buffers.lock();
            self.search_from = buffers.is_armed().then_some(0);
            buffers.account(self.shard, [].into_iter(), self.top_arm_count, None);
        }
    }

    /// True if [`Srq::search_top_taker`] is to be called before the end of the pass.
    pub(super) const fn has_lost_top_taker(&self) -> bool {
        self.search_from.is_some()
    }

    /// Continues the search for the queue pair that took most buffers, among `slots` slots, each
    /// with its `usage`. Visits at most `budget` slots, and takes them off it.
    pub(super) fn search_top_taker(
        &mut self,
        slots: usize,
        budget: &mut usize,
        usage: impl Fn(usize) -> Option<(QpId, SrqUsage)>,
    ) {
        let Some(from) = self.search_from else { return };
        let end = slots.min(from + *budget);
        for (qp, usage) in (from..end).filter_map(usage) {
            let taken = usage.taken_since_arm(self);
            if taken > self.top_taker.map_or(0, |(_, most)| most) {
                self.top_taker = Some((qp, taken));
            }
        }
        *budget -= end.saturating_sub(from);
        self.search_from = (end < slots).then_some(end);
    }
}

/// The buffers of an engine that ends in the middle of a pass are left to the others.
impl Drop for Srq {
    fn drop(&mut self) {
        let _ = self.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ddp::recv_queue::{RqCap, recv_queue};
    use crate::ddp::sgl::SgList;

    const QP: QpId = QpId { index: 1, generation: 0 };

    /// An engine ends between taking a buffer for a message and accounting for it.
    #[test]
    fn buffer_in_hand_at_the_end_of_an_engine_frees_its_slot() {
        const COUNT: usize = 64;
        let (producer, rq, _) = recv_queue(RqCap::new(COUNT));
        let buffers = Arc::new(SrqBuffers::with_producer(rq, Some(producer), 2));
        let [mut ended, mut other] = [0, 1].map(|shard| Srq::new(0, Arc::clone(&buffers), shard));
        let post =
            |srq: &Srq, wr_id| srq.post(&RecvWr { wr_id, sg_list: SgList::default() }).is_ok();
        // The receive queue of a queue pair holds the one that a message fills.
        let pop = |srq: &mut Srq| {
            let mut recv_queue = BufferQueue::new(RqCap::new(1));
            srq.pop_to(&mut recv_queue).then_some(recv_queue)
        };
        assert!((0..COUNT as u64).all(|wr_id| post(&other, wr_id)) && !post(&other, 64));
        let mut usage = SrqUsage::new(0);
        let taken = [(); 3].map(|()| pop(&mut ended).unwrap().pop_front());
        ended.commit(QP, &mut usage);
        ended.commit(QP, &mut usage);
        let mut of_other = pop(&mut other).unwrap();
        assert_eq!(taken, [0, 1, 2].map(Some));
        assert_eq!(of_other.front().unwrap().wr_id(), 16);
        ended.abandon();
        assert_eq!(other.free_slots(), 3, "one that was not accounted for among them");
        assert!((64..67).all(|wr_id| post(&other, wr_id)) && !post(&other, 67));
        // Nothing is written off of what the others have, nor twice.
        drop(ended);
        other.put_back(&of_other.front().unwrap());
        other.end_pass();
        let mut left: Vec<_> = std::iter::from_fn(|| pop(&mut other)?.pop_front()).collect();
        left.sort_unstable();
        assert_eq!(left, (3..67).collect::<Vec<_>>());
    }
}
