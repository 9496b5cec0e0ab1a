//! Shared receive queues: receive buffers that several queue pairs take as messages arrive.
//!
//! A queue pair dequeues a buffer when the first segment of a message arrives. So messages of one
//! stream get buffers in the order of their MSNs, and an idle stream holds none. A buffer that a
//! message has begun to fill belongs to its queue pair from then on, and is flushed there.
//!
//! A dequeued buffer counts as held by the queue pair until another is posted in its place; posts
//! replace the oldest dequeued buffer first. So a cap on what each queue pair may hold acts like a
//! receive queue of its own of that length, and its peer cannot empty the queue for others.

use std::collections::VecDeque;

use crate::ddp::recv_queue::{RqConsumer, RqProducer};
use crate::ddp::untagged::UntaggedBuffer;
use crate::verbs::wc::QpId;
use crate::verbs::wr::RecvWr;

/// Shared receive queue.
#[derive(Debug)]
pub(super) struct Srq {
    pub(super) pd: u32,
    /// Buffers, read where the application has posted them; a queue pair takes a copy.
    rq: RqConsumer,
    /// For [`Srq::post`], unless the application posts itself.
    producer: Option<RqProducer>,
    /// Buffers posted since creation that were credited to the queue pairs. No others are taken: a
    /// buffer would replace itself.
    posted: u64,
    /// Buffers given back, older than those in `rq`; in the order of posting.
    returned: VecDeque<UntaggedBuffer>,
    /// Limit: an event is raised when fewer buffers than this are left; 0: not armed.
    limit: usize,
    /// Number of times that the limit was armed.
    arm_count: u64,
    /// Queue pair that took most buffers since the limit was armed, and their number.
    top_taker: Option<(QpId, u64)>,
    /// Number of queue pairs attached.
    pub(super) qp_count: usize,
    /// Maximum number of buffers that each of them may hold; 0: no cap.
    pub(super) per_qp_max: usize,
    /// Queue pairs that took the buffers not replaced yet, oldest first. Together with the buffers
    /// left they are at most its capacity.
    pub(super) holders: VecDeque<QpId>,
}

/// Use of a shared receive queue by a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct SrqUsage {
    /// Slot index of the queue.
    pub(super) index: u32,
    /// Buffers taken since the limit was armed for the `arm_count`-th time.
    taken: u64,
    arm_count: u64,
    /// Buffers taken and not replaced.
    pub(super) outstanding: usize,
}

impl SrqUsage {
    pub(super) const fn new(index: u32) -> Self {
        Self { index, taken: 0, arm_count: 0, outstanding: 0 }
    }

    /// Returns the number of buffers taken since the limit was armed.
    pub(super) const fn taken_since_arm(&self, srq: &Srq) -> u64 {
        if self.arm_count == srq.arm_count { self.taken } else { 0 }
    }
}

impl Srq {
    pub(super) fn new(pd: u32, rq: RqConsumer, producer: Option<RqProducer>) -> Self {
        let holders = VecDeque::with_capacity(rq.count_max());
        Self {
            pd,
            rq,
            producer,
            posted: 0,
            returned: VecDeque::new(),
            limit: 0,
            arm_count: 0,
            top_taker: None,
            qp_count: 0,
            per_qp_max: 0,
            holders,
        }
    }

    /// Returns the number of buffers left.
    fn len(&self) -> usize {
        self.returned.len() + self.credited_len()
    }

    /// Returns the number of buffers in the ring that may be taken.
    fn credited_len(&self) -> usize {
        usize::try_from(self.posted - self.rq.taken()).unwrap_or(usize::MAX)
    }

    pub(super) fn free_slots(&self) -> usize {
        self.rq.count_max() - self.len()
    }

    /// Adds a buffer; `false` if the queue is full, or the application posts itself.
    pub(super) fn post(&mut self, wr: &RecvWr) -> bool {
        self.publish_retired();
        let Some(producer) = &mut self.producer else { return false };
        let is_posted = producer.post(wr.wr_id, &wr.sg_list);
        producer.publish();
        is_posted
    }

    /// Returns the number of buffers posted since the call before.
    pub(super) fn take_posted(&mut self) -> u64 {
        let posted = self.rq.taken() + self.rq.len() as u64;
        posted - core::mem::replace(&mut self.posted, posted)
    }

    /// Lets the application post as many buffers as have left the queue.
    pub(super) fn publish_retired(&mut self) {
        self.rq.publish_retired(self.returned.len());
    }

    /// True if a queue pair holds as many buffers as it may.
    pub(super) const fn is_capped(&self, usage: &SrqUsage) -> bool {
        self.per_qp_max > 0 && usage.outstanding >= self.per_qp_max
    }

    pub(super) fn pop(&mut self) -> Option<UntaggedBuffer> {
        if !self.returned.is_empty() {
            return self.returned.pop_front();
        }
        if self.credited_len() == 0 {
            return None;
        }
        let buffer = self.rq.front()?.into();
        self.rq.pop_front();
        Some(buffer)
    }

    /// Returns a buffer whose message was refused.
    pub(super) fn put_back(&mut self, buffer: UntaggedBuffer) {
        self.returned.push_front(buffer);
    }

    /// Accounts for a buffer that a message to `qp` has begun to fill, or has used up.
    pub(super) fn commit(&mut self, qp: QpId, usage: &mut SrqUsage) {
        usage.taken = usage.taken_since_arm(self) + 1;
        usage.arm_count = self.arm_count;
        usage.outstanding += 1;
        if self.top_taker.is_none_or(|(_, most)| usage.taken >= most) {
            self.top_taker = Some((qp, usage.taken));
        }
        self.holders.push_back(qp);
    }

    /// Arms the limit, and resets the count of buffers that each queue pair took. 0 disarms it.
    pub(super) const fn arm(&mut self, limit: usize) {
        self.limit = limit;
        self.arm_count += 1;
        self.top_taker = None;
    }

    /// Disarms the limit if fewer buffers are left: returns their number, and the queue pair that
    /// took most, with their number.
    pub(super) fn take_limit_event(&mut self) -> Option<(usize, Option<(QpId, u64)>)> {
        let left = self.len();
        if left >= self.limit {
            return None;
        }
        self.limit = 0;
        Some((left, self.top_taker))
    }

    /// Detaches a queue pair that was destroyed. If it took most buffers, the one of `others` that
    /// did is recorded.
    pub(super) fn detach(&mut self, qp: QpId, others: impl Iterator<Item = (QpId, SrqUsage)>) {
        self.qp_count -= 1;
        if self.top_taker.is_some_and(|(taker, _)| taker == qp) {
            self.top_taker = others
                .map(|(qp, usage)| (qp, usage.taken_since_arm(self)))
                .filter(|&(_, taken)| taken > 0)
                .max_by_key(|&(_, taken)| taken);
        }
    }
}
