//! Shared receive queues.

use std::sync::Arc;

use ferrowarp_proto::ddp::recv_queue::{RqProducer, recv_queue};
use ferrowarp_proto::verbs::qp::{SrqError, SrqId};
use ferrowarp_proto::verbs::wr::{PostError, RecvWr};

use crate::context::ContextInner;
use crate::error::CreateError;
use crate::limits::{Permit, Resource};
use crate::pd::Pd;
use crate::shard::{Shard, SrqLimit, SrqShared};
use crate::spin_lock::SpinLock;

/// Shared receive queue: buffers for the Sends that arrive on any of its queue pairs, one for each
/// message, taken when the message begins. Clones refer to the same queue; it is destroyed with the
/// last of them and of its queue pairs.
///
/// A message that finds the queue empty ends its connection, as with a receive queue of a single
/// queue pair. [`Srq::arm`] reports a low level in advance, with the queue pair of the largest
/// consumption; [`Srq::cap`] limits how many each queue pair may hold.
#[derive(Clone)]
pub struct Srq {
    inner: Arc<SrqInner>,
}

struct SrqInner {
    id: SrqId,
    /// Its handle in the engine of its shard.
    in_engine: SrqId,
    shard: usize,
    pd: u32,
    producer: SpinLock<RqProducer>,
    shared: Arc<SrqShared>,
    context: Arc<ContextInner>,
    _permit: Permit,
}

impl Pd {
    /// Creates a shared receive queue for at most `max_wr` buffers, for queue pairs of this domain.
    /// In a context with several shards it belongs to the first, and so do the queue pairs that use
    /// it; see [`Pd::create_srq_on`].
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create_srq(&self, max_wr: usize) -> Result<Srq, CreateError> {
        self.create_srq_on(0, max_wr)
    }

    /// As [`Pd::create_srq`], for the queue pairs of another shard.
    ///
    /// # Errors
    /// [`CreateError`]; `NoShard`.
    pub fn create_srq_on(&self, shard: usize, max_wr: usize) -> Result<Srq, CreateError> {
        let context = Arc::clone(self.context());
        let count = context.shards.len();
        if shard >= count {
            return Err(CreateError::NoShard { shard, count });
        }
        let max_wr = max_wr.max(1);
        let permit = context.limits.acquire(Resource::QueueEntries, max_wr)?;
        // The memory of the queue is zeroed before the shard is locked.
        let (producer, rq) = recv_queue(max_wr);
        let shared = Arc::new(SrqShared::new());
        let (pd, tail, of_shard) = (self.id(), producer.tail(), Arc::clone(&shared));
        let (index, generation) = context.srq_numbers.allocate().ok_or(SrqError::TooMany)?;
        let id = SrqId { index, generation };
        let created = context
            .shards
            .get(shard)
            .control(|engine, _| engine.create_srq(id, pd, rq, tail, of_shard));
        let created = created.map_or(Err(CreateError::Gone), |created| created.map_err(Into::into));
        let in_engine = created.inspect_err(|_| context.srq_numbers.release(index))?;
        let producer = SpinLock::new(producer);
        let inner =
            SrqInner { id, in_engine, shard, pd, producer, shared, context, _permit: permit };
        Ok(Srq { inner: Arc::new(inner) })
    }
}

impl Srq {
    /// Posts a buffer for one incoming Send. Never waits.
    ///
    /// # Errors
    /// `QueueFull`; nothing was posted. Post again after messages have arrived and the shard was
    /// polled. `WrongState` after the context was closed or has failed.
    #[inline]
    pub fn post_recv(&self, wr: RecvWr) -> Result<(), PostError> {
        if self.inner.shard().has_ended() {
            return Err(PostError::WrongState);
        }
        let mut producer = self.inner.producer.lock();
        if !producer.post(wr.wr_id, &wr.sg_list) {
            return Err(PostError::QueueFull);
        }
        producer.publish();
        Ok(())
    }

    /// Arms the limit (`IBV_SRQ_LIMIT`): one limit event when fewer than `limit` buffers are left,
    /// immediately if fewer are left now. Restarts the count of buffers that each queue pair takes.
    /// 0 disarms. Buffers posted before the call are taken into account.
    ///
    /// # Errors
    /// `NoSuchSrq` after the context was closed.
    pub fn arm(&self, limit: usize) -> Result<(), SrqError> {
        let id = self.inner.in_engine;
        let armed = self.inner.shard().control(|engine, _| engine.arm_srq(id, limit));
        armed.unwrap_or(Err(SrqError::NoSuchSrq))
    }

    /// Limits each queue pair to `cap` buffers at a time, so that a peer that sends more than its
    /// fair share cannot empty the queue for the others. A queue pair holds a buffer from when a
    /// message takes it until another is posted in its place; a posted buffer is credited to the
    /// holder that took its buffer first. A message beyond the limit ends its connection, as one
    /// that finds the queue empty does: for its queue pair the limit has the effect of the length
    /// of a receive queue. 0, the initial value: no limit.
    ///
    /// # Errors
    /// `NoSuchSrq` after the context was closed.
    pub fn cap(&self, cap: usize) -> Result<(), SrqError> {
        let id = self.inner.in_engine;
        let capped = self.inner.shard().control(|engine, _| engine.cap_srq(id, cap));
        capped.unwrap_or(Err(SrqError::NoSuchSrq))
    }

    /// Removes and returns the oldest limit event. Does not poll the shard.
    #[must_use]
    pub fn next_limit(&self) -> Option<SrqLimit> {
        self.inner.shared.pop_limit_event()
    }

    /// ID of the queue in events of the context ([`AsyncEvent::SrqLimit`]).
    ///
    /// [`AsyncEvent::SrqLimit`]: crate::AsyncEvent::SrqLimit
    #[must_use]
    pub fn id(&self) -> SrqId {
        self.inner.id
    }

    /// Shard of the queue and of the queue pairs that use it.
    #[must_use]
    pub fn shard(&self) -> Option<usize> {
        Some(self.inner.shard)
    }

    /// Its handle in the engine of its shard.
    pub(crate) fn in_engine(&self) -> SrqId {
        self.inner.in_engine
    }

    /// True if it belongs to this context and domain.
    pub(crate) fn belongs_to(&self, context: &Arc<ContextInner>, pd: u32) -> bool {
        Arc::ptr_eq(&self.inner.context, context) && self.inner.pd == pd
    }
}

impl SrqInner {
    fn shard(&self) -> &Arc<Shard> {
        self.context.shards.get(self.shard)
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let in_engine = self.in_engine;
        // Its queue pairs keep it alive, so none is left.
        self.shard().control(|engine, _| engine.destroy_srq(in_engine));
        self.context.events.remove(self.shared.source());
        self.context.srq_numbers.release(self.id.index);
    }
}
