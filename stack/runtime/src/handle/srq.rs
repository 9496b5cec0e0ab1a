//! Shared receive queues.

use std::sync::Arc;

use crossbeam::utils::CachePadded;
use ferrowarp_lockfree::spin_lock::SpinLock;
use ferrowarp_proto::ddp::recv_queue::{RqCap, RqProducer, recv_queue};
use ferrowarp_proto::ended::Ended;
use ferrowarp_proto::rdmap::operation::SGE_COUNT_MAX;
use ferrowarp_proto::setters;
use ferrowarp_proto::verbs::srq::SrqBuffers;
use ferrowarp_proto::verbs::srq::{SrqError, SrqId};
use ferrowarp_proto::verbs::wr::{PostError, Sge};

use crate::context::ContextInner;
use crate::error::CreateError;
use crate::fork::{ForkArc, is_child};
use crate::handle::pd::Pd;
use crate::handle::qp::{PostRefused, post_recvs};
use crate::limits::{Permit, Resource, check_queue_len, check_request};
use crate::shard::{Shard, ShardControl, SrqLimit, SrqShared, all_ended};
use crate::threads::thread_number;

/// Options of a shared receive queue (`ibv_srq_init_attr`). Start from [`SrqOptions::new`] and set
/// what differs.
#[doc(alias = "ibv_srq_init_attr")]
#[doc(alias = "ibv_srq_attr")]
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SrqOptions {
    /// Maximum number of outstanding receive requests, at least 1.
    pub max_wr: usize,
    /// Scatter/gather elements of a receive request, at most [`SGE_COUNT_MAX`].
    pub max_sge: usize,
    /// Shard whose queue pairs use it: these belong to that one, and the shards share nothing.
    /// `None`: those of all shards.
    pub shard: Option<usize>,
}

impl SrqOptions {
    /// A queue for the queue pairs of all shards, with requests of at most 6 elements: such a
    /// request takes 128 bytes of memory.
    #[must_use]
    pub const fn new(max_wr: usize) -> Self {
        let RqCap { max_recv_wr, max_recv_sge } = RqCap::new(max_wr);
        Self { max_wr: max_recv_wr, max_sge: max_recv_sge, shard: None }
    }

    setters! {
        max_sge: usize,
        shard: Option<usize>,
    }
}

/// Shared receive queue: buffers for the Sends that arrive on any of its queue pairs, one for each
/// message, taken when the message begins. Clones refer to the same queue; it is destroyed with the
/// last of them and of its queue pairs.
///
/// A message that finds the queue empty ends its connection, as with a receive queue of a single
/// queue pair. [`Srq::arm`] reports a low level in advance, with the queue pair of the largest
/// consumption; [`Srq::cap`] limits how many each queue pair may hold.
#[doc(alias = "ibv_srq")]
#[doc(alias = "ibv_destroy_srq")]
#[derive(Clone)]
pub struct Srq {
    inner: ForkArc<SrqInner>,
}

struct SrqInner {
    id: SrqId,
    /// Handles of the queue in the engines, by shard: in the only one that has it, or in all that
    /// ran when it was created.
    in_engines: Box<[Option<SrqId>]>,
    /// The only shard that has it.
    shard: Option<usize>,
    pd: Pd,
    producer: CachePadded<SpinLock<RqProducer>>,
    shared: Arc<SrqShared>,
    context: ForkArc<ContextInner>,
    _permit: Permit,
}

impl Pd {
    /// Creates a shared receive queue for at most `max_wr` buffers, for queue pairs of this domain,
    /// of any shard.
    ///
    /// # Errors
    /// [`CreateError`].
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(&self, max_wr: usize) -> Result<Srq, CreateError> {
        self.create_srq_with(&SrqOptions::new(max_wr))
    }

    /// As [`Pd::create_srq`], with options.
    ///
    /// # Errors
    /// As [`Pd::create_srq`]; `NoShard`; `RequestTooLong`.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq_with(&self, options: &SrqOptions) -> Result<Srq, CreateError> {
        let &SrqOptions { max_wr, max_sge, shard } = options;
        let context = self.context().clone();
        context.check_open()?;
        let count = context.shards.len();
        if let Some(shard) = shard.filter(|&shard| shard >= count) {
            return Err(CreateError::NoShard { shard, count });
        }
        let shard = if count == 1 { Some(0) } else { shard };
        let max_wr = max_wr.max(1);
        check_queue_len(max_wr)?;
        check_request("max_sge", max_sge, SGE_COUNT_MAX)?;
        let permit = context.limits.acquire(Resource::QueueEntries, max_wr)?;
        // The memory of the queue is zeroed before a shard is locked.
        let (producer, rq, _) = recv_queue(RqCap { max_recv_wr: max_wr, max_recv_sge: max_sge });
        let (index, generation) = context.srq_ids.allocate().ok_or(SrqError::TooMany)?;
        let id = SrqId { index, generation };
        let shared = Arc::new(SrqShared::new(id));
        let mut inner = SrqInner {
            id,
            in_engines: vec![None; count].into(),
            shard,
            pd: self.clone(),
            producer: CachePadded::new(SpinLock::new(producer)),
            shared,
            context,
            _permit: permit,
        };
        let engines = if shard.is_some() { 1 } else { count };
        inner.create_in_engines(&Arc::new(SrqBuffers::new(rq, engines)))?;
        Ok(Srq { inner: ForkArc::new(inner) })
    }
}

impl Srq {
    /// Posts a buffer for one incoming Send (`ibv_post_srq_recv`). Never waits.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted. After `QueueFull`, post again when messages have arrived
    /// and the shard was polled.
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub fn post_recv(&self, wr_id: u64, buffer: impl AsRef<[Sge]>) -> Result<(), PostError> {
        self.post_recvs([(wr_id, buffer)]).map_err(|refused| refused.error)
    }

    /// Posts buffers in order until one is refused, each with its work request ID. `requests` must
    /// not post to the same queue itself.
    ///
    /// # Errors
    /// [`PostRefused`], with the number that were posted.
    #[inline]
    pub fn post_recvs<B: AsRef<[Sge]>>(
        &self,
        requests: impl IntoIterator<Item = (u64, B)>,
    ) -> Result<(), PostRefused> {
        let none = |error| PostRefused { error, posted: 0 };
        if let Some(cause) = self.inner.ended() {
            return Err(none(cause.into()));
        }
        let producer = self.inner.producer.lock_once(thread_number());
        let mut producer = producer.ok_or(none(PostError::Reentered))?;
        post_recvs(&mut producer, requests)
    }

    /// Arms the limit (`IBV_SRQ_LIMIT`): one limit event when fewer than `limit` buffers are left,
    /// immediately if fewer are left now. Restarts the count of buffers that each queue pair takes.
    /// 0 disarms. Buffers posted before the call are taken into account.
    ///
    /// # Errors
    /// [`SrqError::Ended`].
    #[doc(alias = "ibv_modify_srq")]
    #[doc(alias = "IBV_SRQ_LIMIT")]
    pub fn arm(&self, limit: usize) -> Result<(), SrqError> {
        // The limit is that of all shards; one of them raises it.
        self.inner.control(|engine, id| engine.arm_srq(id, limit))
    }

    /// Limits each queue pair to `cap` buffers at a time, so that a peer that sends more than its
    /// fair share cannot empty the queue for the others. A queue pair holds a buffer from when a
    /// message takes it until another is posted in its place; a posted buffer is credited to the
    /// holder that took its buffer first. A message beyond the limit ends its connection, as one
    /// that finds the queue empty does: for its queue pair the limit has the effect of the length
    /// of a receive queue. 0, the initial value: no limit.
    ///
    /// # Errors
    /// [`SrqError::Ended`].
    pub fn cap(&self, cap: usize) -> Result<(), SrqError> {
        self.inner.control(|engine, id| engine.cap_srq(id, cap))
    }

    /// Removes and returns the oldest limit event. Does not poll the shard.
    #[doc(alias = "IBV_EVENT_SRQ_LIMIT_REACHED")]
    #[must_use]
    pub fn next_limit(&self) -> Option<SrqLimit> {
        // In a child of `fork` another thread may have been adding one, which this would wait for.
        if is_child() { None } else { self.inner.shared.pop_limit_event() }
    }

    /// ID of the queue in events of the context ([`AsyncEvent::SrqLimit`]).
    ///
    /// [`AsyncEvent::SrqLimit`]: crate::AsyncEvent::SrqLimit
    #[must_use]
    pub fn id(&self) -> SrqId {
        self.inner.id
    }

    /// The only shard whose queue pairs use it; `None` if those of all shards may.
    #[must_use]
    pub fn shard(&self) -> Option<usize> {
        self.inner.shard
    }

    /// Handle of the queue in the engine of a shard.
    pub(crate) fn in_engine(&self, shard: usize) -> Option<SrqId> {
        self.inner.in_engines[shard]
    }

    /// Fails unless it belongs to this domain.
    pub(crate) fn check_domain(&self, pd: &Pd) -> Result<(), CreateError> {
        if !pd.belongs_to(&self.inner.context) {
            return Err(CreateError::OtherContext);
        }
        if self.inner.pd.id() != pd.id() {
            return Err(CreateError::OtherDomain);
        }
        Ok(())
    }
}

impl SrqInner {
    /// Creates the queue in the engine of each shard that is to have it.
    fn create_in_engines(&mut self, buffers: &Arc<SrqBuffers>) -> Result<(), CreateError> {
        let shards = self.shard.map_or(0..self.in_engines.len(), |shard| shard..shard + 1);
        for (number, shard) in shards.enumerate() {
            let (buffers, shared) = (Arc::clone(buffers), Arc::clone(&self.shared));
            let pd = self.pd.id();
            let created = self
                .context
                .shards
                .get(shard)
                .control(|engine, _| engine.create_srq(pd, buffers, number, shared));
            // A shard that has failed gets none.
            self.in_engines[shard] = created.ok().transpose()?;
        }
        let is_created = self.in_engines.iter().any(Option::is_some);
        if is_created { Ok(()) } else { Err(self.context.why_no_shard().into()) }
    }

    /// The shards that have the queue, with their handles of it.
    fn engines(&self) -> impl Iterator<Item = (&Arc<Shard>, SrqId)> {
        let shards = self.context.shards.iter().zip(&self.in_engines);
        shards.filter_map(|(shard, id)| Some((shard, (*id)?)))
    }

    /// Calls `act` with the engine of the first shard that runs.
    fn control(
        &self,
        act: impl Fn(&mut dyn ShardControl, SrqId) -> Result<(), SrqError>,
    ) -> Result<(), SrqError> {
        let done =
            self.engines().find_map(|(shard, id)| shard.control(|engine, _| act(engine, id)).ok());
        done.unwrap_or_else(|| Err(self.context.why_no_shard().into()))
    }

    /// Why no shard that has the queue runs any more; `None` while one does.
    #[inline]
    fn ended(&self) -> Option<Ended> {
        all_ended(self.engines().map(|(shard, _)| shard))
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        // Its queue pairs keep it alive, so none is left.
        for (shard, id) in self.engines() {
            let _ = shard.control(|engine, _| engine.destroy_srq(id));
        }
        self.context.events.remove(self.shared.event());
        self.context.srq_ids.release(self.id.index);
    }
}
