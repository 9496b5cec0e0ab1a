//! Shared receive queues: receive buffers that several queue pairs take as messages arrive.
//!
//! A queue pair dequeues a buffer when the first segment of a message arrives. So messages of one
//! stream get buffers in the order of their MSNs, and an idle stream holds none. A buffer that a
//! message has begun to fill belongs to its queue pair from then on, and is flushed there.
//!
//! A dequeued buffer counts as held by the queue pair until another is posted in its place; posts
//! replace the oldest dequeued buffer first. So a cap on what each queue pair may hold
//! ([`Engine::cap_srq`]) acts like a receive queue of its own of that length, and its peer cannot
//! empty the queue for others.

use std::collections::VecDeque;

use crate::ddp::memory::Memory;
use crate::ddp::untagged::{BufferQueue, UntaggedBuffer};
use crate::device::Device;
use crate::engine::Engine;
use crate::engine::queue_pairs::QueuePairs;
use crate::verbs::cm::Event;
use crate::verbs::qp::{QpState, SrqError, SrqId};
use crate::verbs::wc::{Completions, QpId};
use crate::verbs::wr::{PostError, RecvWr};

/// Shared receive queue.
#[derive(Debug)]
pub(super) struct Srq {
    pd: u32,
    buffers: VecDeque<UntaggedBuffer>,
    count_max: usize,
    /// Limit: an event is raised when fewer buffers than this are left; 0: not armed.
    limit: usize,
    /// Number of queue pairs attached.
    qp_count: usize,
    /// Maximum number of buffers that each of them may hold; 0: no cap.
    per_qp_max: usize,
    /// Queue pairs that took the buffers not replaced yet, oldest first. Together with the buffers
    /// left they are at most `count_max`.
    holders: VecDeque<QpId>,
}

/// Use of a shared receive queue by a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct SrqUsage {
    index: u32,
    /// Buffers taken since the limit was armed.
    taken: u64,
    /// Buffers taken and not replaced.
    outstanding: usize,
}

impl<M: Memory, C: Completions> QueuePairs<M, C> {
    fn srq(&mut self, srq: SrqId) -> Option<&mut Srq> {
        let index = self.srqs.live_index(srq.index, srq.generation)?;
        self.srqs.get_mut(index)
    }

    /// Dequeues a buffer for the message that begins to arrive. False if there is none, the queue
    /// pair is at its cap, or it has a buffer of its own.
    // req: RDMAP-297
    pub(super) fn take_srq_buffer(&mut self, index: u32) -> bool {
        let Some(qp) = self.get_mut(index) else { return false };
        let Some(SrqUsage { index: srq, outstanding: held, .. }) = qp.srq else { return false };
        if qp.stream.recv_queue.front().is_some() {
            return false;
        }
        let Some(queue) = self.srqs.get_mut(srq) else { return false };
        if queue.per_qp_max > 0 && held >= queue.per_qp_max {
            self.counters.srq_caps_reached += 1;
            return false;
        }
        let Some(buffer) = queue.buffers.pop_front() else { return false };
        let Some(qp) = self.get_mut(index) else { return false };
        qp.stream.recv_queue.post(buffer)
    }

    /// Returns the buffer of a message that was refused, unless the buffer completed in error.
    pub(super) fn return_srq_buffer(&mut self, index: u32) {
        let Some(qp) = self.get_mut(index) else { return };
        let Some(SrqUsage { index: srq, .. }) = qp.srq else { return };
        match qp.stream.recv_queue.pop_front() {
            Some(buffer) => {
                if let Some(srq) = self.srqs.get_mut(srq) {
                    srq.buffers.push_front(buffer);
                }
            }
            None => self.commit_srq_buffer(index),
        }
    }

    /// Accounts for a buffer that a message has begun to fill, or has used up.
    pub(super) fn commit_srq_buffer(&mut self, index: u32) {
        let id = self.id(index);
        let Some(qp) = self.get_mut(index) else { return };
        let Some(share) = &mut qp.srq else { return };
        share.taken += 1;
        share.outstanding += 1;
        let srq = share.index;
        if let Some(srq) = self.srqs.get_mut(srq) {
            srq.holders.push_back(id);
        }
        self.check_srq_limit(srq);
    }

    /// Accounts for a posted buffer: it replaces the oldest one taken, if its queue pair still
    /// exists.
    fn release_oldest_holder(&mut self, srq: SrqId) {
        let Some(taker) = self.srq(srq).and_then(|queue| queue.holders.pop_front()) else { return };
        if let Some(index) = self.index(taker)
            && let Some(share) = self.get_mut(index).and_then(|qp| qp.srq.as_mut())
        {
            share.outstanding -= 1;
        }
    }

    /// Raises the limit event, once, if fewer buffers are left than the limit, with the queue pair
    /// that took most.
    fn check_srq_limit(&mut self, index: u32) {
        let Some(srq) = self.srqs.get_mut(index) else { return };
        let left = srq.buffers.len();
        if left >= srq.limit {
            return;
        }
        srq.limit = 0;
        let most = self.srq_usages(index).max_by_key(|&(_, taken)| taken);
        let most = most.filter(|&(_, taken)| taken > 0);
        let generation = self.srqs.generation(index);
        let srq = SrqId { index, generation };
        self.events.push_back(Event::SrqLimit { srq, left, most });
    }

    /// Returns the number of buffers that each queue pair took since the limit was armed.
    fn srq_usages(&self, srq: u32) -> impl Iterator<Item = (QpId, u64)> {
        self.indices().filter_map(move |index| {
            let share = self.get(index)?.srq.filter(|share| share.index == srq)?;
            Some((self.id(index), share.taken))
        })
    }

    /// Detaches a queue pair that is destroyed.
    pub(super) fn detach_srq(&mut self, share: Option<SrqUsage>) {
        if let Some(srq) = share.and_then(|share| self.srqs.get_mut(share.index)) {
            srq.qp_count -= 1;
        }
    }
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Creates a shared receive queue for at most `count_max` buffers in the protection domain
    /// `pd`.
    ///
    /// # Errors
    /// [`SrqError::TooMany`].
    pub fn create_srq(&mut self, pd: u32, count_max: usize) -> Result<SrqId, SrqError> {
        let buffers = VecDeque::with_capacity(count_max);
        let takers = VecDeque::with_capacity(count_max);
        let (limit, users, cap) = (0, 0, 0);
        let srq = Srq {
            pd,
            buffers,
            count_max,
            limit,
            qp_count: users,
            per_qp_max: cap,
            holders: takers,
        };
        let (index, generation) = self.verbs.srqs.insert(srq).ok_or(SrqError::TooMany)?;
        Ok(SrqId { index, generation })
    }

    /// Destroys a shared receive queue and drops the buffers in it.
    ///
    /// # Errors
    /// `InUse` while queue pairs are attached; `NoSuchSrq`.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), SrqError> {
        let queue = self.verbs.srq(srq).ok_or(SrqError::NoSuchSrq)?;
        if queue.qp_count > 0 {
            return Err(SrqError::InUse);
        }
        self.verbs.srqs.remove(srq.index);
        Ok(())
    }

    /// Attaches a queue pair that is not connected to a shared receive queue for good; buffers
    /// posted to its own queue are dropped.
    ///
    /// # Errors
    /// `NoSuchSrq`, `NoSuchQp`; `NotIdle`; `OtherDomain` if their protection domains differ.
    pub fn attach_srq(&mut self, qp: QpId, srq: SrqId) -> Result<(), SrqError> {
        let pd = self.verbs.srq(srq).ok_or(SrqError::NoSuchSrq)?.pd;
        let index = self.verbs.index(qp).ok_or(SrqError::NoSuchQp)?;
        let qp = self.verbs.get_mut(index).ok_or(SrqError::NoSuchQp)?;
        if qp.state != QpState::Idle || qp.srq.is_some() {
            return Err(SrqError::NotIdle);
        }
        if qp.init.pd != pd {
            return Err(SrqError::OtherDomain);
        }
        // For the buffer of the message that is arriving.
        qp.stream.recv_queue = BufferQueue::new(1);
        qp.srq = Some(SrqUsage { index: srq.index, taken: 0, outstanding: 0 });
        if let Some(queue) = self.verbs.srq(srq) {
            queue.qp_count += 1;
        }
        Ok(())
    }

    /// Posts a buffer to a shared receive queue.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_srq_recv(&mut self, srq: SrqId, wr: RecvWr) -> Result<(), PostError> {
        let queue = self.verbs.srq(srq).ok_or(PostError::NoSuchSrq)?;
        if queue.buffers.len() >= queue.count_max {
            return Err(PostError::QueueFull);
        }
        queue.buffers.push_back(UntaggedBuffer { wr_id: wr.wr_id, sg_list: wr.sg_list });
        self.verbs.release_oldest_holder(srq);
        Ok(())
    }

    /// Limits each queue pair to `cap` buffers of a shared receive queue at a time: those taken by
    /// it and not replaced. A message beyond that ends its connection, as with an empty queue. 0,
    /// the default: no cap.
    ///
    /// # Errors
    /// `NoSuchSrq`.
    pub fn cap_srq(&mut self, srq: SrqId, cap: usize) -> Result<(), SrqError> {
        self.verbs.srq(srq).ok_or(SrqError::NoSuchSrq)?.per_qp_max = cap;
        Ok(())
    }

    /// Returns the number of free slots in a shared receive queue.
    #[must_use]
    pub fn free_srq_slots(&self, srq: SrqId) -> usize {
        self.verbs
            .srqs
            .live_index(srq.index, srq.generation)
            .and_then(|index| self.verbs.srqs.get(index))
            .map_or(0, |queue| queue.count_max - queue.buffers.len())
    }

    /// Arms the limit: raises [`Event::SrqLimit`] once when fewer than `limit` buffers are left, at
    /// once if fewer are now. Resets the count of buffers that each queue pair took. 0 disarms it.
    ///
    /// # Errors
    /// `NoSuchSrq`.
    pub fn arm_srq(&mut self, srq: SrqId, limit: usize) -> Result<(), SrqError> {
        self.verbs.srq(srq).ok_or(SrqError::NoSuchSrq)?.limit = limit;
        let users: Vec<u32> = self.verbs.indices().collect();
        for index in users {
            if let Some(share) = self.verbs.get_mut(index).and_then(|qp| qp.srq.as_mut())
                && share.index == srq.index
            {
                share.taken = 0;
            }
        }
        self.verbs.check_srq_limit(srq.index);
        Ok(())
    }

    /// Returns the number of buffers of its shared receive queue that a queue pair holds.
    #[must_use]
    pub fn srq_outstanding(&self, qp: QpId) -> usize {
        self.verbs
            .index(qp)
            .and_then(|index| self.verbs.get(index)?.srq)
            .map_or(0, |share| share.outstanding)
    }

    /// Returns the number of buffers that a queue pair has taken from its shared receive queue
    /// since the limit was armed. It shows a peer that takes more than its fair share, so that its
    /// connection can be ended.
    // req: DDP-218, RDMAP-297
    #[must_use]
    pub fn srq_taken(&self, qp: QpId) -> u64 {
        self.verbs
            .index(qp)
            .and_then(|index| self.verbs.get(index)?.srq)
            .map_or(0, |share| share.taken)
    }
}
