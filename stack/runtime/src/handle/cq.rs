//! Completion queues: a ring from each shard to the application.

mod resize;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use crossbeam::utils::CachePadded;
use ferrowarp_lockfree::spin_lock::SpinLock;
use ferrowarp_lockfree::spsc::{Consumer, Peek};
use ferrowarp_proto::ended::Ended;
use ferrowarp_proto::setters;
use ferrowarp_proto::verbs::wc::Notify;
use ferrowarp_proto::verbs::wc::{CqId, QpId, Wc};

use crate::context::{Context, ContextInner};
use crate::error::{CreateError, ReqNotifyError};
use crate::events::AsyncEvent;
use crate::fork::{ForkArc, is_child};
use crate::handle::comp_channel::CompChannel;
use crate::limits::{Permit, Resource, check_queue_len};
use crate::shard::{CqNotify, CqOverrun, CqProducer, InterruptSleep, OverrunSink, Shard};
use crate::threads::{PollBackoff, Spinner, thread_number};

/// Completions that [`Cq::poll_with`] takes at a time: few, and memory for them is not initialized.
type Batch = ArrayVec<Wc, 16>;

/// Options of a completion queue. Start from [`CqOptions::new`] and set what differs.
#[doc(alias = "ibv_cq_init_attr_ex")]
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CqOptions<'a> {
    /// Completions that it holds at least, of each shard that feeds it: at most 2^26.
    /// [`Cq::resize`] changes it. The memory is for the next power of two, so for up to twice as
    /// many; [`Limits::cq_entries_max`](crate::Limits::cq_entries_max) counts those asked for.
    pub capacity: usize,
    /// Channel on which it reports completions when it was armed ([`Cq::req_notify`]).
    pub channel: Option<&'a CompChannel>,
    /// Shard whose queue pairs use it: these belong to that one. `None`: those of all shards.
    pub shard: Option<usize>,
    /// Completions have a time stamp ([`Wc::timestamp_ns`]): a reading of the clock for those that
    /// become visible together (`IBV_WC_EX_WITH_COMPLETION_TIMESTAMP`).
    pub timestamps: bool,
}

impl<'a> CqOptions<'a> {
    /// A queue without a channel, for the queue pairs of all shards.
    #[must_use]
    pub const fn new(capacity: usize) -> Self {
        Self { capacity, channel: None, shard: None, timestamps: false }
    }

    setters! {
        channel: Option<&'a CompChannel>,
        shard: Option<usize>,
        timestamps: bool,
    }
}

/// Completion queue. Clones refer to the same queue; it is destroyed with the last of them and of
/// the queue pairs that use it.
///
/// Completions of one queue pair are in order. In a context with several shards a queue has a ring
/// for each shard, or for the one of its options, and polling takes from them in turn.
#[doc(alias = "ibv_cq")]
#[doc(alias = "ibv_destroy_cq")]
#[derive(Clone)]
pub struct Cq {
    inner: ForkArc<CqInner>,
}

struct CqInner {
    id: CqId,
    first: CqRing,
    /// Rings of the other shards.
    others: Box<[CqRing]>,
    /// Ring that is polled first next time.
    next: AtomicUsize,
    overrun: Arc<CqOverrun>,
    /// For a queue created on a channel.
    notify: Option<Arc<CqNotify>>,
    /// The only shard that feeds it, with its number.
    shard: Option<(usize, Arc<Shard>)>,
    /// Capacity, as asked for last, in completions of each shard.
    capacity: AtomicUsize,
    accounted: Mutex<Accounted>,
    context: ForkArc<ContextInner>,
}

/// Accounting of a completion queue; locked by a thread that resizes it.
struct Accounted {
    /// Capacity of each ring: that of a shard that has ended keeps what it had.
    of_rings: Box<[usize]>,
    /// For those of all rings.
    permit: Permit,
}

/// Ring of the completions of one shard.
struct CqRing {
    ring: CachePadded<SpinLock<Consumer<Wc>>>,
    peek: Peek,
}

impl CqRing {
    fn new(consumer: Consumer<Wc>) -> Self {
        Self { peek: consumer.peek(), ring: CachePadded::new(SpinLock::new(consumer)) }
    }

    // Not inlined: the caller keeps no registers for it while the ring is empty.
    #[inline(never)]
    fn pop_into(&self, out: &mut [Wc]) -> usize {
        // In a child of `fork` another thread may have held the lock. This thread has it in the
        // handler of a signal.
        let ring = if is_child() { None } else { self.ring.lock_once(thread_number()) };
        ring.map_or(0, |mut ring| ring.pop_into(out))
    }

    /// As [`CqRing::pop_into`], for `max` completions at most.
    #[inline(never)]
    fn pop_batch(&self, max: usize, batch: &mut Batch) {
        let ring = if is_child() { None } else { self.ring.lock_once(thread_number()) };
        if let Some(mut ring) = ring {
            ring.pop_each(max, |wc| batch.push(wc));
        }
    }

    /// Removes the completions of a queue pair that is destroyed.
    fn forget(&self, qp: QpId) {
        // In the handler of a signal the thread may have the lock.
        if !self.peek.is_empty()
            && let Some(mut ring) = self.ring.lock_once(thread_number())
        {
            ring.retain(|wc| wc.qp != qp);
        }
    }
}

impl Context {
    /// Creates a completion queue for at least `capacity` completions. Choose the number of
    /// requests that can be outstanding on all its queue pairs: if it overruns, those enter the
    /// error state.
    ///
    /// # Errors
    /// `Limit` if the capacities of all queues together exceed the configured limit; `Ended`.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, capacity: usize) -> Result<Cq, CreateError> {
        self.create_cq_with(&CqOptions::new(capacity))
    }

    /// As [`Context::create_cq`], for a queue that can be armed ([`Cq::req_notify`]) to report
    /// completions on `channel`, a channel of this context.
    ///
    /// # Errors
    /// As [`Context::create_cq`]; `OtherContext` if the channel is of another context.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq_on(&self, channel: &CompChannel, capacity: usize) -> Result<Cq, CreateError> {
        self.create_cq_with(&CqOptions::new(capacity).channel(channel))
    }

    /// As [`Context::create_cq`], with options.
    ///
    /// # Errors
    /// As [`Context::create_cq_on`]; `NoShard`; `QueueTooLong`.
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn create_cq_with(&self, options: &CqOptions<'_>) -> Result<Cq, CreateError> {
        Cq::new(self.inner(), options)
    }
}

impl Cq {
    fn new(context: &ForkArc<ContextInner>, options: &CqOptions<'_>) -> Result<Self, CreateError> {
        let &CqOptions { capacity, channel, shard, timestamps } = options;
        if channel.is_some_and(|channel| !channel.belongs_to(context)) {
            return Err(CreateError::OtherContext);
        }
        context.check_open()?;
        let count = context.shards.len();
        if let Some(shard) = shard.filter(|&shard| shard >= count) {
            return Err(CreateError::NoShard { shard, count });
        }
        let shard = if count == 1 { Some(0) } else { shard };
        let shards: Vec<&Arc<Shard>> = match shard {
            Some(shard) => vec![context.shards.get(shard)],
            None => context.shards.iter().collect(),
        };
        check_queue_len(capacity)?;
        let entries = capacity.saturating_mul(shards.len());
        let permit = context.limits.acquire(Resource::CqEntries, entries)?;
        let number = context.cq_ids.allocate();
        let (index, generation) = number.ok_or(CreateError::TooManyCqs(CqId::COUNT_MAX))?;
        let id = CqId::new(index, generation);
        let notify = channel.map(|channel| Arc::new(channel.notify(id, shards.iter().copied())));
        let sinks = shards.iter().map(|shard| {
            let shard: Weak<Shard> = Arc::downgrade(shard);
            shard as Weak<dyn OverrunSink>
        });
        let overrun = Arc::new(CqOverrun::new(sinks.collect()));
        let of_rings = vec![capacity; shards.len()].into();
        let mut rings = Vec::new();
        let mut is_added = false;
        for shard in shards {
            let (mut producer, consumer) =
                CqProducer::new(capacity, Arc::clone(&overrun), notify.clone());
            if timestamps {
                producer.stamp_with(shard.clock().clone());
            }
            rings.push(CqRing::new(consumer));
            if let Some(notify) = &notify {
                let observer: Weak<CqNotify> = Arc::downgrade(notify);
                shard.observe_end(observer);
            }
            // A shard that has failed feeds nothing.
            is_added |= shard.control(|engine, _| engine.add_cq(id, producer)).is_ok();
        }
        let first = rings.remove(0);
        let inner = CqInner {
            id,
            first,
            others: rings.into(),
            next: AtomicUsize::new(0),
            overrun,
            notify,
            shard: shard.map(|shard| (shard, Arc::clone(context.shards.get(shard)))),
            capacity: AtomicUsize::new(capacity),
            accounted: Mutex::new(Accounted { of_rings, permit }),
            context: context.clone(),
        };
        if !is_added {
            return Err(context.why_no_shard().into());
        }
        Ok(Self { inner: ForkArc::new(inner) })
    }

    /// Moves completions to `out`, oldest first, and returns those (`ibv_poll_cq`). Never waits.
    ///
    /// If there are none and the application polls the shard ([`crate::DriveMode`]), polls it once
    /// first. After a failure of the context ([`crate::Context::has_failed`]) it returns the
    /// flushed completions, and then none. Several threads may poll; each completion goes to one of
    /// them. Costs some 10 ns beyond the poll of the shard.
    ///
    /// ```no_run
    /// # use ferrowarp::*;
    /// # fn example(cq: &Cq) {
    /// let mut wcs = [Wc::default(); 32];
    /// for wc in cq.poll(&mut wcs) {
    ///     println!("request {}: {}", wc.wr_id, wc.status);
    /// }
    /// # }
    /// ```
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll<'w>(&self, out: &'w mut [Wc]) -> &'w [Wc] {
        let mut found = self.inner.pop_into(out);
        if found == 0 && self.inner.drive() {
            found = self.inner.pop_into(out);
        }
        &out[..found]
    }

    /// As [`Cq::poll`], for at most `max` completions: passes each to `accept` and returns their
    /// number. They have left the queue by then, some at a time, and nothing is locked: `accept`
    /// may post and poll.
    #[inline]
    pub fn poll_with(&self, max: usize, mut accept: impl FnMut(Wc)) -> usize {
        let mut batch = Batch::new();
        let mut count = 0;
        while count < max {
            let room = batch.capacity().min(max - count);
            batch.clear();
            self.inner.pop_batch(room, &mut batch);
            if batch.is_empty() && count == 0 && self.inner.drive() {
                self.inner.pop_batch(room, &mut batch);
            }
            batch.iter().copied().for_each(&mut accept);
            count += batch.len();
            if batch.len() < room {
                break;
            }
        }
        count
    }

    /// As [`Cq::poll`], for a thread that spins on a core which it may share: leaves the core to
    /// others after many polls that found neither completions nor anything to do for the shard. Of
    /// two queues that it polls in turn, one polls the shard: an empty poll of the other costs a
    /// load.
    #[inline]
    pub fn poll_spinning<'w>(&self, out: &'w mut [Wc], spinner: &mut Spinner) -> &'w [Wc] {
        let mut found = self.inner.pop_into(out);
        if found > 0 {
            spinner.on_poll(true);
        } else if let Some(is_busy) = self.inner.drive_in_turn() {
            spinner.on_poll(is_busy);
            if is_busy {
                found = self.inner.pop_into(out);
            }
        }
        &out[..found]
    }

    /// Polls until there are completions, for `timeout` at most; returns them, as [`Cq::poll`].
    /// None also once the context is closed or has failed and nothing is left.
    ///
    /// For a thread that has nothing else to do and must not take a core from others: it spins for
    /// 2 ms without work and leaves its core to others meanwhile ([`Spinner`]), then it sleeps
    /// 50 us between polls, and 1 ms after 20 ms without work. A [`CompChannel`] wakes its thread
    /// without such a delay, where other threads poll the shard. If the application polls it
    /// ([`DriveMode::Inline`]), also the other context of a pair made by [`Context::ring_pair`] is
    /// polled, and the sleeps delay what the stack answers. On `tap` and `af_packet` such a thread
    /// sleeps until a frame arrives instead, or another thread polls or posts.
    ///
    /// [`DriveMode::Inline`]: crate::DriveMode::Inline
    pub fn wait<'w>(&self, out: &'w mut [Wc], timeout: Duration) -> &'w [Wc] {
        let deadline = Instant::now().checked_add(timeout);
        let mut backoff = PollBackoff::new();
        let context = &self.inner.context;
        loop {
            let has_ended = context.shards.have_ended();
            let found = self.poll(out).len();
            let now = Instant::now();
            let is_over = has_ended || deadline.is_some_and(|deadline| now >= deadline);
            if found > 0 || out.is_empty() || is_over {
                return &out[..found];
            }
            if self.inner.drive() | context.drive_paired() {
                backoff.on_busy();
            } else if context.has_virtual_time() {
                backoff.on_idle_awake();
            } else {
                let mut found = 0;
                backoff.on_idle(now, deadline, |limit| {
                    self.inner.sleep_on_port(limit, || {
                        found = self.inner.pop_into(out);
                        found > 0
                    })
                });
                if found > 0 {
                    return &out[..found];
                }
            }
        }
    }

    /// The only shard whose queue pairs use it; `None` if those of all shards may.
    #[must_use]
    pub fn shard(&self) -> Option<usize> {
        self.inner.shard.as_ref().map(|&(shard, _)| shard)
    }

    /// True once a completion found the queue full. The queue pairs that use it are then in error,
    /// connected or not, and so are those created later with it; the completions that it holds can
    /// still be polled. An armed queue is notified of an overrun, whatever it was armed for.
    #[must_use]
    pub fn overrun(&self) -> bool {
        self.inner.overrun.has_overrun()
    }

    /// ID of the queue in the events of its channel. Once the queue is destroyed, none of the next
    /// four million that are created has it.
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
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify(&self, notify: Notify) -> Result<(), ReqNotifyError> {
        let target = self.inner.notify.as_ref().ok_or(ReqNotifyError::NoChannel)?;
        target.req_notify(notify);
        Ok(self.inner.check_fed()?)
    }

    /// Removes the completions of a queue pair of this shard, which has destroyed it.
    pub(crate) fn forget(&self, shard: usize, qp: QpId) {
        let first = self.shard().unwrap_or(0);
        let mut rings = std::iter::once(&self.inner.first).chain(&self.inner.others);
        // Otherwise no queue pair of the shard uses it.
        if let Some(ring) = shard.checked_sub(first).and_then(|at| rings.nth(at)) {
            ring.forget(qp);
        }
    }

    pub(crate) fn belongs_to(&self, context: &ForkArc<ContextInner>) -> bool {
        self.inner.context.ptr_eq(context)
    }
}

impl CqInner {
    /// Polls the shards that feed the queue, as far as that is left to the application.
    #[inline]
    fn drive(&self) -> bool {
        match &self.shard {
            Some((_, shard)) => shard.drive(),
            None => self.context.shards.drive(),
        }
    }

    /// Sleeps on the port of the shard that is polled for it, if there is one.
    fn sleep_on_port(&self, limit: Duration, has_result: impl FnOnce() -> bool) -> InterruptSleep {
        match &self.shard {
            Some((_, shard)) if !self.context.is_paired() => shard.sleep_on_port(limit, has_result),
            _ => self.context.sleep_on_port(limit, has_result),
        }
    }

    /// As [`CqInner::drive`]; `None` if a poll of another queue of the only shard just did so.
    #[inline]
    fn drive_in_turn(&self) -> Option<bool> {
        match &self.shard {
            Some((_, shard)) => shard.drive_for(self.id),
            None => Some(self.context.shards.drive()),
        }
    }

    /// Fails once none of them runs any more.
    fn check_fed(&self) -> Result<(), Ended> {
        let ended = match &self.shard {
            Some((_, shard)) => shard.ended(),
            None => self.context.shards.ended(),
        };
        ended.map_or(Ok(()), Err)
    }

    /// Removes completions. Locks only rings that are not empty: a thread that spins here finds
    /// them empty most times.
    #[inline(always)]
    fn pop_into(&self, out: &mut [Wc]) -> usize {
        if !self.others.is_empty() {
            let mut found = 0;
            self.in_turn(|ring| {
                if found < out.len() {
                    found += ring.pop_into(&mut out[found..]);
                }
            });
            return found;
        }
        if self.first.peek.is_empty() { 0 } else { self.first.pop_into(out) }
    }

    /// As [`CqInner::pop_into`], for `max` completions at most.
    #[inline(always)]
    fn pop_batch(&self, max: usize, batch: &mut Batch) {
        if !self.others.is_empty() {
            self.in_turn(|ring| ring.pop_batch(max - batch.len(), batch));
        } else if !self.first.peek.is_empty() {
            self.first.pop_batch(max, batch);
        }
    }

    /// Calls `pop` with each ring that is not empty. The first one changes from call to call, so
    /// that none is neglected.
    fn in_turn(&self, mut pop: impl FnMut(&CqRing)) {
        let count = self.others.len() + 1;
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        for step in 0..count {
            let at = start.wrapping_add(step) % count;
            let ring = if at == 0 { &self.first } else { &self.others[at - 1] };
            if !ring.peek.is_empty() {
                pop(ring);
            }
        }
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        let id = self.id;
        // Only where it was added.
        match &self.shard {
            Some((_, shard)) => drop(shard.control(|engine, _| engine.remove_cq(id))),
            None => drop(self.context.shards.control(|engine, _| engine.remove_cq(id))),
        }
        // Before the ID of this queue can be reused.
        self.context.events.remove(AsyncEvent::CqOverrun { cq: id });
        if let Some(notify) = &self.notify {
            notify.on_cq_destroyed();
        }
        self.context.cq_ids.release(u32::try_from(id.index()).expect("20 bits"));
    }
}
