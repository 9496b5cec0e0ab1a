//! Shared receive queues.

use std::sync::Arc;

use ferrowarp_proto::ddp::recv_queue::{RqProducer, recv_queue};
use ferrowarp_proto::verbs::qp::{SrqError, SrqId};
use ferrowarp_proto::verbs::wr::{PostError, RecvWr};

use crate::context::ContextInner;
use crate::error::CreateError;
use crate::limits::{Permit, Resource};
use crate::pd::Pd;
use crate::shard::{SrqLimit, SrqShared};
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
    pd: u32,
    producer: SpinLock<RqProducer>,
    shared: Arc<SrqShared>,
    context: Arc<ContextInner>,
    _permit: Permit,
}

impl Pd {
    /// Creates a shared receive queue for at most `max_wr` buffers, for queue pairs of this domain.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create_srq(&self, max_wr: usize) -> Result<Srq, CreateError> {
        let context = Arc::clone(self.context());
        let max_wr = max_wr.max(1);
        let permit = context.limits.acquire(Resource::QueueEntries, max_wr)?;
        // The memory of the queue is zeroed before the shard is locked.
        let (producer, rq) = recv_queue(max_wr);
        let shared = Arc::new(SrqShared::new());
        let (pd, tail, of_shard) = (self.id(), producer.tail(), Arc::clone(&shared));
        let id = context.shard.control(|engine, _| engine.create_srq(pd, rq, tail, of_shard));
        let id = id.ok_or(CreateError::Gone)??;
        let producer = SpinLock::new(producer);
        let inner = SrqInner { id, pd, producer, shared, context, _permit: permit };
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
        if self.inner.context.shard.has_ended() {
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
        let id = self.inner.id;
        let armed = self.inner.context.shard.control(|engine, _| engine.arm_srq(id, limit));
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
        let id = self.inner.id;
        let capped = self.inner.context.shard.control(|engine, _| engine.cap_srq(id, cap));
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

    /// True if it belongs to this context and domain.
    pub(crate) fn belongs_to(&self, context: &Arc<ContextInner>, pd: u32) -> bool {
        Arc::ptr_eq(&self.inner.context, context) && self.inner.pd == pd
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let id = self.id;
        // Its queue pairs keep it alive, so none is left.
        self.context.shard.control(|engine, _| engine.destroy_srq(id));
        self.context.events.remove(self.shared.source());
    }
}
