//! Shared receive queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::queue::ArrayQueue;
use crossbeam::utils::CachePadded;
use ferrowarp_proto::verbs::qp::{SrqError, SrqId};
use ferrowarp_proto::verbs::wc::QpId;
use ferrowarp_proto::verbs::wr::{PostError, RecvWr};

use crate::context::ContextInner;
use crate::error::CreateError;
use crate::events::EventSource;
use crate::limits::{Permit, Resource};
use crate::spin_lock::SpinLock;
use crate::spsc::{Consumer, Producer};

/// Limit events kept; more arming without looking finds the oldest there.
const LIMIT_EVENT_COUNT_MAX: usize = 8;

/// A shared receive queue: buffers for the Sends that arrive on any of its queue pairs, which take
/// one each when a message begins. Clones name the same queue; it goes when the last of them and
/// of its queue pairs are gone.
///
/// It may run empty: a message that finds none then ends its connection, as with a queue of its
/// own. [`Srq::arm`] tells before it comes to that, and who took most; [`Srq::cap`] bounds what
/// each may take.
#[derive(Clone)]
pub struct Srq {
    inner: Arc<SrqInner>,
}

struct SrqInner {
    id: SrqId,
    pd: u32,
    producer: SpinLock<SrqProducer>,
    shared: Arc<SrqShared>,
    context: Arc<ContextInner>,
    _permit: Permit,
}

struct SrqProducer {
    ring: Producer<RecvWr>,
    posted: u64,
    max: u64,
}

/// What the application's and the shard's sides share.
pub(crate) struct SrqShared {
    /// Buffers that left the queue; written by the shard.
    retired: CachePadded<AtomicU64>,
    limit_events: ArrayQueue<SrqLimit>,
    source: Arc<EventSource>,
}

/// Fewer buffers are left than [`Srq::arm`] said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqLimit {
    /// Buffers that were left.
    pub left: usize,
    /// The queue pair that took most since the limit was armed, and how many: if that is more than
    /// its fair share, its connection can be ended.
    pub most: Option<(QpId, u64)>,
}

impl Srq {
    pub(crate) fn create(
        context: &Arc<ContextInner>,
        pd: u32,
        max_wr: usize,
    ) -> Result<Self, CreateError> {
        let max_wr = max_wr.max(1);
        let grant = context.limits.acquire(Resource::QueueEntries, max_wr)?;
        let (ring, taken) = crate::spsc::ring(max_wr);
        let link = Arc::new(SrqShared {
            retired: CachePadded::new(AtomicU64::new(0)),
            limit_events: ArrayQueue::new(LIMIT_EVENT_COUNT_MAX),
            source: EventSource::new(),
        });
        let end = SrqConsumer { ring: taken, shared: Arc::clone(&link), taken: 0, max: max_wr };
        let id = context.shard.control(|machine, _| machine.create_srq(pd, end));
        let id = id.ok_or(CreateError::Gone)??;
        let poster = SpinLock::new(SrqProducer { ring, posted: 0, max: max_wr as u64 });
        let context = Arc::clone(context);
        Ok(Self {
            inner: Arc::new(SrqInner {
                id,
                pd,
                producer: poster,
                shared: link,
                context,
                _permit: grant,
            }),
        })
    }

    /// Posts a buffer for one incoming Send. Never waits.
    ///
    /// # Errors
    /// `QueueFull`; nothing was posted. It goes away when messages have arrived and a pass was
    /// made. `WrongState` after the context was closed or has failed.
    #[inline]
    pub fn post_recv(&self, wr: RecvWr) -> Result<(), PostError> {
        if self.inner.context.shard.has_ended() {
            return Err(PostError::WrongState);
        }
        let mut poster = self.inner.producer.lock();
        let retired = self.inner.shared.retired.load(Ordering::Acquire);
        if poster.posted - retired >= poster.max || poster.ring.stage(wr).is_err() {
            return Err(PostError::QueueFull);
        }
        poster.posted += 1;
        poster.ring.publish();
        Ok(())
    }

    /// Asks to be told once when fewer than `limit` buffers are left, at once if fewer are now;
    /// counts anew what each queue pair takes. 0 takes it back. What was posted before counts.
    ///
    /// # Errors
    /// `NoSuchSrq` after the context was closed.
    pub fn arm(&self, limit: usize) -> Result<(), SrqError> {
        let id = self.inner.id;
        let armed = self.inner.context.shard.control(|machine, _| machine.arm_srq(id, limit));
        armed.unwrap_or(Err(SrqError::NoSuchSrq))
    }

    /// Lets each queue pair hold at most `cap` buffers at a time, so that a peer that sends more
    /// than its fair share cannot empty the queue for the others. A buffer is held from when a
    /// message takes it until another is posted in its place; of several holders who took first is
    /// relieved first. A message beyond the cap ends its connection, as one that finds the queue
    /// empty does: to its queue pair the cap is what the length of a receive queue of its own would
    /// be. 0, as at first: each may hold all.
    ///
    /// # Errors
    /// `NoSuchSrq` after the context was closed.
    pub fn cap(&self, cap: usize) -> Result<(), SrqError> {
        let id = self.inner.id;
        let capped = self.inner.context.shard.control(|machine, _| machine.cap_srq(id, cap));
        capped.unwrap_or(Err(SrqError::NoSuchSrq))
    }

    /// The oldest limit event not yet taken. Does not drive.
    #[must_use]
    pub fn next_limit(&self) -> Option<SrqLimit> {
        self.inner.shared.limit_events.pop()
    }

    /// The name that events of the context carry ([`AsyncEvent::SrqLimit`]).
    ///
    /// [`AsyncEvent::SrqLimit`]: crate::AsyncEvent::SrqLimit
    #[must_use]
    pub fn id(&self) -> SrqId {
        self.inner.id
    }

    /// It is of this context and domain.
    pub(crate) fn belongs_to(&self, context: &Arc<ContextInner>, pd: u32) -> bool {
        Arc::ptr_eq(&self.inner.context, context) && self.inner.pd == pd
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let id = self.id;
        // Its queue pairs hold it: none is left.
        self.context.shard.control(|machine, _| machine.destroy_srq(id));
        self.context.events.remove(&self.shared.source);
    }
}

/// The shard's end of a queue.
pub(crate) struct SrqConsumer {
    ring: Consumer<RecvWr>,
    shared: Arc<SrqShared>,
    taken: u64,
    max: usize,
}

impl SrqConsumer {
    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    /// Moves posted buffers to the engine, which has this much room. True if there were any.
    #[inline]
    pub(crate) fn drain(&mut self, room: usize, mut post: impl FnMut(RecvWr)) -> bool {
        let mut any = false;
        for _ in 0..room {
            let Some(wr) = self.ring.pop() else { break };
            post(wr);
            self.taken += 1;
            any = true;
        }
        any
    }

    /// Shows the application how many buffers have left the queue, by the engine's room.
    #[inline]
    pub(crate) fn publish_retired(&self, room: usize) {
        let retired = self.taken - self.max.saturating_sub(room) as u64;
        // Stored only when changed: the application's core keeps the line otherwise.
        if self.shared.retired.load(Ordering::Relaxed) != retired {
            self.shared.retired.store(retired, Ordering::Release);
        }
    }

    pub(crate) fn source(&self) -> &Arc<EventSource> {
        &self.shared.source
    }

    pub(crate) fn push_limit_event(&self, limit: SrqLimit) {
        let _ = self.shared.limit_events.push(limit);
    }
}
