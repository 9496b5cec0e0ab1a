//! Queue pairs.

mod attrs;
mod bind;
mod connection;
mod options;
mod post;
mod reset;
mod streaming;
mod wait;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ferrowarp_lockfree::spin_lock::LockGuard;
use ferrowarp_proto::ddp::recv_queue::{RqCap, RqProducer};
use ferrowarp_proto::ddp::regions::{AccessScope, StreamId};
use ferrowarp_proto::ended::Ended;
use ferrowarp_proto::rdmap::send_queue::SqCap;
use ferrowarp_proto::time::Instant;
use ferrowarp_proto::verbs::cm::CmError;
use ferrowarp_proto::verbs::qp::{QpCap, QpInit, QpState};
use ferrowarp_proto::verbs::wc::QpId;
use ferrowarp_proto::verbs::work_queues::WorkQueues;
use ferrowarp_proto::verbs::wr::{PostError, Sge};

use crate::context::ContextInner;
use crate::error::{CreateError, LimitError, MemoryError};
use crate::events::AsyncEvent;
use crate::fork::{ForkArc, is_child};
use crate::handle::cq::Cq;
use crate::handle::pd::Pd;
use crate::handle::srq::Srq;
use crate::limits::{Resource, check_queue_len};
use crate::shard::{QpShared, Shard, ShardControl, UnboundQueues};
use crate::tcp::TcpStats;

pub use options::QpOptions;
pub use post::{Post, PostRefused, SendRequest};

/// Queue pair: one side of a connection, and its two work queues.
///
/// It serves one connection, and another after [`Qp::reset`]. Dropping it ends the connection as
/// [`Qp::disconnect`] does, and removes its completions that were not polled. If it has buffers of
/// a shared receive queue, poll those first: [`ConnEvent::Disconnected`](crate::ConnEvent) comes
/// before the completions that the end has flushed.
///
/// In a context with several shards its connection belongs to one of them: that of its options, its
/// completion queues or its shared receive queue, if one of these is of a single shard; otherwise
/// that of the request it accepts, or one that [`Qp::connect`] chooses.
#[doc(alias = "ibv_qp")]
#[doc(alias = "ibv_destroy_qp")]
#[doc(alias = "rdma_cm_id")]
pub struct Qp {
    shared: Arc<QpShared>,
    pd: Pd,
    id: QpId,
    srq: Option<Srq>,
    send_cq: Cq,
    recv_cq: Cq,
    stream: StreamId,
    /// Requests that its queues may have.
    entries: u32,
    /// [`QpOptions::shard`].
    shard: Option<u16>,
    user_data: AtomicU64,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Qp>() == 72, "the application has one for each queue pair");

impl Pd {
    /// Creates a queue pair that can access the regions of this domain.
    ///
    /// # Errors
    /// [`CreateError`].
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "rdma_create_qp")]
    pub fn create_qp(&self, options: &QpOptions<'_>) -> Result<Qp, CreateError> {
        Qp::create(self, options)
    }
}

impl Qp {
    fn create(pd: &Pd, options: &QpOptions<'_>) -> Result<Self, CreateError> {
        let context = pd.context();
        let (send_cq, recv_cq) = (options.send_cq.clone(), options.recv_cq.clone());
        // req: DDP-213, DDP-215, RDMAP-285, RDMAP-292
        if !send_cq.belongs_to(context) || !recv_cq.belongs_to(context) {
            return Err(CreateError::OtherContext);
        }
        if options.event_channel.is_some_and(|channel| !channel.belongs_to(context)) {
            return Err(CreateError::OtherContext);
        }
        let srq = options.srq;
        srq.map_or(Ok(()), |srq| srq.check_domain(pd))?;
        context.check_open()?;
        let shard = options.shard_of(context.shards.len())?;
        let max_send_wr = options.max_send_wr.max(1);
        let max_recv_wr = if srq.is_some() { 1 } else { options.max_recv_wr.max(1) };
        let entries = max_send_wr.saturating_add(max_recv_wr);
        check_queue_len(max_send_wr)?;
        check_queue_len(max_recv_wr)?;
        options.check_requests()?;
        let permit = context.limits.acquire(Resource::QueueEntries, entries)?;
        let cap = QpCap {
            sends: SqCap {
                max_send_wr,
                max_send_sge: options.max_send_sge,
                max_inline_data: options.max_inline_data,
            },
            recvs: RqCap { max_recv_wr, max_recv_sge: options.max_recv_sge },
        };
        let qps_max = context.qp_ids.count_max() as u64;
        let (index, generation) = context.qp_ids.allocate().ok_or(LimitError {
            what: "queue pairs",
            setting: "qps_max",
            limit: qps_max,
            used: qps_max,
            wanted: 1,
        })?;
        let id = QpId { index, generation };
        if let Some(channel) = options.event_channel {
            context.events.route(AsyncEvent::Connection { qp: id }, channel.id());
        }
        let (shared, stream, added) = Self::add_queues(pd, [&send_cq, &recv_cq], cap, id);
        let qp = Self {
            shared,
            id,
            stream,
            send_cq,
            recv_cq,
            pd: pd.clone(),
            srq: srq.cloned(),
            entries: u32::try_from(permit.into_count()).expect("two queues of at most 2^26"),
            shard: options.shard.map(|shard| u16::try_from(shard).expect("64 at most")),
            user_data: AtomicU64::new(options.user_data),
        };
        added?;
        qp.begin(shard)?;
        Ok(qp)
    }

    /// Makes the queues of a queue pair that belongs to no shard yet, and its stream ID. An error
    /// with them: the context has ended, and so have they. `cqs`: of sends, of receives.
    fn add_queues(
        pd: &Pd,
        cqs: [&Cq; 2],
        cap: QpCap,
        id: QpId,
    ) -> (Arc<QpShared>, StreamId, Result<(), Ended>) {
        let context = pd.context();
        // The memory of the queues is zeroed before a shard is locked.
        let WorkQueues { requester, recv_queue, sends, recvs, tails } = WorkQueues::new(cap);
        let [send_cq, recv_cq] = cqs.map(Cq::id);
        let init = QpInit { pd: pd.id(), send_cq, recv_cq, cap };
        let shared = Arc::new(QpShared::new(sends, recvs));
        let stream = context.regions.new_stream_id();
        let queues = UnboundQueues { init, stream, requester, recv_queue, tails };
        let added = context.unbound.add(id, &shared, queues);
        (shared, stream, added)
    }

    /// Gives the queue pair to its shard, if that is known, or to any if it begins in the error
    /// state.
    fn begin(&self, shard: Option<usize>) -> Result<(), CreateError> {
        // Only a shard can flush what is posted to a queue pair that begins in the error state.
        let ends = || self.overrun_cq().and_then(|_| self.context().shards.select());
        if let Some(shard) = shard.or_else(ends) {
            match self.bind(shard) {
                Ok(()) | Err(CmError::CqOverrun) => {}
                Err(error) => return Err(Self::cause_of(error).into()),
            }
        }
        Ok(())
    }

    #[inline]
    fn context(&self) -> &ForkArc<ContextInner> {
        self.pd.context()
    }

    /// Shard of the queue pair, if it belongs to one.
    #[inline]
    fn bound_shard(&self) -> Option<&Arc<Shard>> {
        self.shared.binding().get().map(|shard| self.context().shards.get(shard))
    }

    /// Returns its access scope, if it belongs to this domain and its context is open.
    pub(crate) fn access_scope_in(&self, pd: &Pd) -> Result<AccessScope, MemoryError> {
        // req: DDP-213, DDP-215
        if !pd.belongs_to(self.context()) || pd.id() != self.pd.id() {
            return Err(MemoryError::Foreign);
        }
        self.context().check_open()?;
        Ok(AccessScope { pd: pd.id(), stream: self.stream })
    }

    /// Number of its shard ([`Context::shard`](crate::Context::shard)); `None` while it belongs to
    /// none.
    #[must_use]
    pub fn shard(&self) -> Option<usize> {
        self.shared.binding().get()
    }

    /// ID of the queue pair in its completions.
    #[must_use]
    pub const fn id(&self) -> QpId {
        self.id
    }

    /// Completion queue of the send queue.
    #[must_use]
    pub const fn send_cq(&self) -> &Cq {
        &self.send_cq
    }

    /// Completion queue of the receive queue.
    #[must_use]
    pub const fn recv_cq(&self) -> &Cq {
        &self.recv_cq
    }

    /// Protection domain.
    #[must_use]
    pub const fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Shared receive queue, if it uses one.
    #[must_use]
    pub const fn srq(&self) -> Option<&Srq> {
        self.srq.as_ref()
    }

    /// Returns the state that the shard last published. One load.
    #[doc(alias = "ibv_query_qp")]
    #[must_use]
    pub fn state(&self) -> QpState {
        self.shared.state()
    }

    /// Returns the counters of the TCP connection; `None` if there is none, or no more. The shard
    /// is locked meanwhile: for reports, not for a loop.
    #[must_use]
    pub fn tcp_stats(&self) -> Option<TcpStats> {
        self.bound_shard()?.control(|engine, _| engine.tcp_stats(self.id)).ok()?
    }

    /// Posts a buffer for one incoming Send or Immediate Data (`ibv_post_recv`): at any time after
    /// creation. Never waits. Costs some 30 ns.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post_recv(&self, wr_id: u64, buffer: impl AsRef<[Sge]>) -> Result<(), PostError> {
        self.post_recvs([(wr_id, buffer)]).map_err(|refused| refused.error)
    }

    /// Posts buffers in order until one is refused, each with its work request ID; rings the
    /// doorbell at most once for all.
    ///
    /// The receive queue is locked until `requests` ends: it must not post to the same queue
    /// itself.
    ///
    /// # Errors
    /// [`PostRefused`], with the number that were posted.
    #[inline]
    pub fn post_recvs<B: AsRef<[Sge]>>(
        &self,
        requests: impl IntoIterator<Item = (u64, B)>,
    ) -> Result<(), PostRefused> {
        // Dropped after the lock.
        let _announcing = AnnounceOnPanic(self);
        let mut queue = self.lock_recvs().map_err(|error| PostRefused { error, posted: 0 })?;
        let mut posted = post_recvs(&mut queue, requests);
        if self.shared.is_abandoned() {
            posted = Err(PostRefused { error: Ended::Closed.into(), posted: 0 });
        }
        drop(queue);
        self.announce(posted.is_err());
        posted
    }

    /// Locks the receive queue for posting.
    #[inline]
    fn lock_recvs(&self) -> Result<LockGuard<'_, RqProducer>, PostError> {
        if self.srq.is_some() { Err(PostError::SharedReceives) } else { self.shared.lock_recvs() }
    }

    /// Rings the doorbell after posting, unless the shard polls the tails. Always after an error:
    /// the poll then updates the count of free slots.
    #[inline]
    fn announce(&self, has_failed: bool) {
        if (!self.shared.hot().is_hot() || has_failed)
            && let Some(shard) = self.shared.binding().after_post()
        {
            self.context().shards.get(shard).ring_doorbell(self.id);
        }
    }

    pub(crate) fn belongs_to(&self, context: &ForkArc<ContextInner>) -> bool {
        self.context().ptr_eq(context)
    }

    /// Executes a control call for this queue pair, then polls the shard.
    pub(crate) fn control(
        &self,
        act: impl FnOnce(&mut dyn ShardControl, Instant, QpId) -> Result<(), CmError>,
    ) -> Result<(), CmError> {
        let shard = self.shard_of_connection()?;
        let done = shard.control(|engine, now| act(engine, now, self.id));
        shard.drive();
        done?
    }

    /// Event that names the queue pair.
    const fn event(&self) -> AsyncEvent {
        AsyncEvent::Connection { qp: self.id }
    }
}

/// Announces receive requests that were published before a panic of the caller's iterator.
struct AnnounceOnPanic<'a>(&'a Qp);

impl Drop for AnnounceOnPanic<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.announce(true);
        }
    }
}

/// Publishes receive requests when it is dropped, also by a panic of the caller's iterator.
struct Publishing<'a>(&'a mut RqProducer);

impl Drop for Publishing<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.publish();
    }
}

/// Posts receive requests until one is refused.
#[inline(always)]
pub(crate) fn post_recvs<B: AsRef<[Sge]>>(
    queue: &mut RqProducer,
    requests: impl IntoIterator<Item = (u64, B)>,
) -> Result<(), PostRefused> {
    let queue = Publishing(queue);
    for (posted, (wr_id, buffer)) in requests.into_iter().enumerate() {
        queue.0.post(wr_id, buffer.as_ref()).map_err(|error| PostRefused { error, posted })?;
    }
    Ok(())
}

impl Qp {
    /// Ends the connection and forgets what the queue pair has: in its shard, in completion queues,
    /// and of events.
    fn leave(&self) {
        let id = self.id;
        if self.shared.binding().get().is_none() {
            self.context().unbound.remove(id);
        }
        // A shard may have taken it meanwhile, to end it.
        let shard = self.bound_shard();
        if let Some(shard) = shard {
            let _ = shard.control(|engine, now| engine.destroy_qp(now, id));
        }
        if let Some(shard) = self.shared.binding().get() {
            // All that it will ever complete is published.
            self.send_cq.forget(shard, id);
            self.recv_cq.forget(shard, id);
        }
        self.context().events.remove(self.event());
        self.context().taken_events.remove(id);
        if let Some(shard) = shard {
            shard.drive();
        }
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if is_child() {
            // The connection is the parent's.
            return;
        }
        self.leave();
        // After the shard has forgotten it.
        self.context().qp_ids.release(self.id.index);
        self.context().limits.release(Resource::QueueEntries, self.entries.into());
    }
}
