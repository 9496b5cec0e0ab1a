//! Completion queues: a ring from the shard to the application.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use ferrowarp_proto::verbs::notify::Notify;
use ferrowarp_proto::verbs::wc::{CqId, Wc};

use crate::comp_channel::CompChannel;
use crate::context::{Context, ContextInner};
use crate::error::{CreateError, ReqNotifyError};
use crate::limits::{Permit, Resource};
use crate::shard::{CqNotify, CqProducer};
use crate::spin_lock::SpinLock;
use crate::spsc::{Consumer, Peek};

/// Maximum completions per poll when `out` has no spare capacity.
const POLL_BATCH: usize = 32;

/// Completion queue. Clones refer to the same queue; it is destroyed with the last of them and of
/// the queue pairs that use it.
#[derive(Clone)]
pub struct Cq {
    inner: Arc<CqInner>,
}

struct CqInner {
    id: CqId,
    ring: SpinLock<Consumer<Wc>>,
    peek: Peek<Wc>,
    overrun: Arc<AtomicBool>,
    /// For a queue created on a channel.
    notify: Option<Arc<CqNotify>>,
    context: Arc<ContextInner>,
    _permit: Permit,
}

impl Context {
    /// Creates a completion queue for at least `capacity` completions. Choose the number of
    /// requests that can be outstanding on all its queue pairs: if it overruns, those enter the
    /// error state.
    ///
    /// # Errors
    /// `Limit` if the capacities of all queues together exceed the configured limit; `Gone` after
    /// closing.
    pub fn create_cq(&self, capacity: usize) -> Result<Cq, CreateError> {
        Cq::new(self.inner(), capacity, None)
    }

    /// As [`Context::create_cq`], for a queue that can be armed ([`Cq::req_notify`]) to report
    /// completions on `channel`, a channel of this context.
    ///
    /// # Errors
    /// As [`Context::create_cq`]; `Gone` also if the channel is of another context.
    pub fn create_cq_on(&self, channel: &CompChannel, capacity: usize) -> Result<Cq, CreateError> {
        Cq::new(self.inner(), capacity, Some(channel))
    }
}

impl Cq {
    /// Fails if `channel` is of another context, if the capacity exceeds a limit, or after closing.
    fn new(
        context: &Arc<ContextInner>,
        capacity: usize,
        channel: Option<&CompChannel>,
    ) -> Result<Self, CreateError> {
        if channel.is_some_and(|channel| !channel.belongs_to(context)) {
            return Err(CreateError::Gone);
        }
        let permit = context.limits.acquire(Resource::CqEntries, capacity)?;
        let notify = channel.map(|channel| Arc::new(channel.notify()));
        let (producer, consumer) = CqProducer::new(capacity, notify.clone());
        if let Some(notify) = &notify {
            let observer: Weak<CqNotify> = Arc::downgrade(notify);
            context.shard.observe_end(observer);
        }
        let overrun = Arc::clone(producer.overrun());
        let id = context.shard.control(|engine, _| engine.add_cq(producer));
        let shared = CqInner {
            id: id.ok_or(CreateError::Gone)?,
            peek: consumer.peek(),
            ring: SpinLock::new(consumer),
            overrun,
            notify,
            context: Arc::clone(context),
            _permit: permit,
        };
        Ok(Self { inner: Arc::new(shared) })
    }

    /// Appends completions to `out`, oldest first, and returns their number: at most the spare
    /// capacity of `out`, or 32 if it has none. Never waits.
    ///
    /// If there are none and the application polls the shard ([`crate::DriveMode`]), polls it once
    /// first. After a failure of the context ([`crate::Context::has_failed`]) it returns the
    /// flushed completions, and then none. Several threads may poll; each completion goes to one of
    /// them. Costs some 10 ns beyond the poll of the shard.
    #[inline]
    pub fn poll(&self, out: &mut Vec<Wc>) -> usize {
        let spare = out.capacity() - out.len();
        let max = if spare == 0 { POLL_BATCH } else { spare };
        let found = self.pop_into(out, max);
        if found == 0 && self.inner.context.shard.drive() {
            return self.pop_into(out, max);
        }
        found
    }

    /// Removes completions. Locks only if the ring is not empty: a thread that spins here finds it
    /// empty most times.
    #[inline(always)]
    fn pop_into(&self, out: &mut Vec<Wc>, max: usize) -> usize {
        if self.inner.peek.is_empty() { 0 } else { self.inner.pop_into(out, max) }
    }

    /// True once a completion found the queue full. The queue pairs that use it are then in error;
    /// the completions that it holds can still be polled. An armed queue is notified of an overrun,
    /// whatever it was armed for.
    #[must_use]
    pub fn overrun(&self) -> bool {
        self.inner.overrun.load(Ordering::Acquire)
    }

    /// ID of the queue in the events of its channel. It may be reused once this queue and its
    /// pending events are gone.
    #[must_use]
    pub fn id(&self) -> CqId {
        self.inner.id
    }

    /// Arms the queue (`ibv_req_notify_cq`): requests one event on its channel for the next
    /// completion from now on, or for the next that is solicited or in error; an overrun also
    /// raises it. Completions already in the queue raise no event: poll once more afterwards,
    /// before waiting, or one that was published in between goes unnoticed. A pending request for
    /// solicited completions is raised to the next completion, never lowered.
    ///
    /// Never blocks: one atomic operation and a fence.
    ///
    /// # Errors
    /// [`ReqNotifyError`].
    pub fn req_notify(&self, notify: Notify) -> Result<(), ReqNotifyError> {
        let target = self.inner.notify.as_ref().ok_or(ReqNotifyError::NoChannel)?;
        target.req_notify(notify);
        if self.inner.context.shard.has_ended() { Err(ReqNotifyError::Gone) } else { Ok(()) }
    }

    pub(crate) fn belongs_to(&self, context: &Arc<ContextInner>) -> bool {
        Arc::ptr_eq(&self.inner.context, context)
    }
}

impl CqInner {
    // Not inlined: the caller keeps no registers for it while the ring is empty.
    #[inline(never)]
    fn pop_into(&self, out: &mut Vec<Wc>, max: usize) -> usize {
        self.ring.lock().pop_into(out, max)
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        let (id, notify) = (self.id, &self.notify);
        self.context.shard.control(|engine, _| {
            engine.remove_cq(id);
            // Before the index and the ID of this queue can be reused.
            if let Some(notify) = notify {
                notify.on_cq_destroyed();
            }
        });
    }
}
