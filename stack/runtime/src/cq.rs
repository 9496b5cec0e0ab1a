//! Completion queues: a ring from the shard to the application.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use ferrowarp_proto::verbs::notify::Notify;
use ferrowarp_proto::verbs::wc::{Completions, CqId, QpId, Wc};

use crate::arm::CompEvent;
use crate::comp_channel::{CompChannel, CqNotify};
use crate::context::ContextInner;
use crate::error::{CreateError, ReqNotifyError};
use crate::limits::{Permit, Resource};
use crate::spin_lock::SpinLock;
use crate::spsc::{Consumer, Peek, Producer};

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

impl Cq {
    /// Fails if `channel` is of another context, if the capacity exceeds a limit, or after closing.
    pub(crate) fn new(
        context: &Arc<ContextInner>,
        capacity: usize,
        channel: Option<&CompChannel>,
    ) -> Result<Self, CreateError> {
        if channel.is_some_and(|channel| !channel.belongs_to(context)) {
            return Err(CreateError::Gone);
        }
        let grant = context.limits.acquire(Resource::CqEntries, capacity)?;
        let (mut feed, consumer) = CqProducer::new(capacity);
        let notify = channel.map(|channel| Arc::new(CqNotify::new(channel)));
        feed.notify = notify.clone().map(ProducerNotify::new);
        if let Some(notify) = &notify {
            let watcher: Weak<CqNotify> = Arc::downgrade(notify);
            context.shard.observe_end(watcher);
        }
        let overrun = Arc::clone(&feed.overrun);
        let id = context.shard.control(|machine, _| machine.add_cq(feed));
        let shared = CqInner {
            id: id.ok_or(CreateError::Gone)?,
            peek: consumer.peek(),
            ring: SpinLock::new(consumer),
            overrun,
            notify,
            context: Arc::clone(context),
            _permit: grant,
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
    #[inline]
    fn pop_into(&self, out: &mut Vec<Wc>, max: usize) -> usize {
        if self.inner.peek.is_empty() { 0 } else { self.inner.ring.lock().pop_into(out, max) }
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
        let alarm = self.inner.notify.as_ref().ok_or(ReqNotifyError::NoChannel)?;
        alarm.req_notify(notify);
        if self.inner.context.shard.has_ended() { Err(ReqNotifyError::Gone) } else { Ok(()) }
    }

    pub(crate) fn belongs_to(&self, context: &Arc<ContextInner>) -> bool {
        Arc::ptr_eq(&self.inner.context, context)
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        let (id, notify) = (self.id, &self.notify);
        self.context.shard.control(|machine, _| {
            machine.remove_cq(id);
            // Before the index and the ID of this queue can be reused.
            if let Some(notify) = notify {
                notify.on_cq_destroyed();
            }
        });
    }
}

/// Shard's side of a completion queue.
pub(crate) struct CqProducer {
    ring: Producer<Wc>,
    overrun: Arc<AtomicBool>,
    /// Listed in [`CqRings::staged`].
    staged: bool,
    /// For queues that can be armed.
    notify: Option<ProducerNotify>,
}

/// Producer's state for notifying a queue created on a channel.
struct ProducerNotify {
    target: Arc<CqNotify>,
    /// Event for the completions staged since the last publication.
    staged: Option<CompEvent>,
}

impl ProducerNotify {
    const fn new(notify: Arc<CqNotify>) -> Self {
        Self { target: notify, staged: None }
    }
}

impl CqProducer {
    fn new(capacity: usize) -> (Self, Consumer<Wc>) {
        let (ring, consumer) = crate::spsc::ring(capacity);
        let overrun = Arc::new(AtomicBool::new(false));
        (Self { ring, overrun, staged: false, notify: None }, consumer)
    }
}

/// All completion queues of a shard, as the engine sees them.
///
/// Completions are published to the application at the end of a poll, all at once, after the slots
/// that they free in the work queues: an application that polls a completion can post in its place.
#[derive(Default)]
pub(crate) struct CqRings {
    producers: Vec<Option<CqProducer>>,
    /// Queues with completions not yet published.
    staged: Vec<CqId>,
    /// Queue pairs with completions since the last [`CqRings::pop_dirty`], once each.
    dirty_qps: Vec<QpId>,
    /// Indexed by queue pair: true if it is in `dirty_qps`.
    is_dirty: Vec<bool>,
}

impl CqRings {
    /// Returns rings for queue pairs with indices below `qps_max`.
    pub(crate) fn new(qps_max: usize) -> Self {
        Self {
            dirty_qps: Vec::with_capacity(qps_max),
            is_dirty: vec![false; qps_max],
            ..Self::default()
        }
    }

    pub(crate) fn add(&mut self, feed: CqProducer) -> CqId {
        let index = self.producers.iter().position(Option::is_none).unwrap_or(self.producers.len());
        if index == self.producers.len() {
            self.producers.push(None);
            self.staged.reserve(self.producers.len());
        }
        let id = CqId(u32::try_from(index).expect("bounded by memory, each queue has a ring"));
        if let Some(alarm) = &feed.notify {
            alarm.target.set_id(id);
        }
        self.producers[index] = Some(feed);
        id
    }

    pub(crate) fn remove(&mut self, cq: CqId) {
        self.staged.retain(|&staged| staged != cq);
        if let Some(feed) = self.producers.get_mut(cq.0 as usize) {
            *feed = None;
        }
    }

    /// Records that slots were freed in this queue pair's work queues.
    #[inline]
    pub(crate) fn mark_dirty(&mut self, qp: QpId) {
        if let Some(mark) = self.is_dirty.get_mut(qp.index as usize)
            && !*mark
        {
            *mark = true;
            self.dirty_qps.push(qp);
        }
    }

    /// Removes and returns a queue pair with new completions.
    #[inline]
    pub(crate) fn pop_dirty(&mut self) -> Option<QpId> {
        let qp = self.dirty_qps.pop()?;
        self.is_dirty[qp.index as usize] = false;
        Some(qp)
    }

    /// Publishes staged completions.
    #[inline]
    pub(crate) fn publish(&mut self) {
        while let Some(cq) = self.staged.pop() {
            if let Some(Some(feed)) = self.producers.get_mut(cq.0 as usize) {
                feed.staged = false;
                feed.ring.publish();
                if let Some(alarm) = &mut feed.notify
                    && let Some(covers) = alarm.staged.take()
                {
                    alarm.target.on_published(covers);
                }
            }
        }
    }

    /// Marks a queue as overrun, and notifies any pending request: its queue pairs have failed, and
    /// further completions may never come.
    pub(crate) fn mark_overrun(&self, cq: CqId) {
        if let Some(Some(feed)) = self.producers.get(cq.0 as usize) {
            feed.overrun.store(true, Ordering::Release);
            if let Some(alarm) = &feed.notify {
                alarm.target.on_published(CompEvent::ANY);
            }
        }
    }
}

impl Completions for CqRings {
    #[inline]
    fn push(&mut self, cq: CqId, wc: Wc) -> bool {
        let Some(Some(feed)) = self.producers.get_mut(cq.0 as usize) else {
            return false;
        };
        if feed.ring.stage(wc).is_err() {
            return false;
        }
        if let Some(alarm) = &mut feed.notify {
            let covers = CompEvent::completion(wc.is_solicited());
            alarm.staged = Some(alarm.staged.map_or(covers, |staged| staged.min(covers)));
        }
        if !feed.staged {
            feed.staged = true;
            self.staged.push(cq);
        }
        self.mark_dirty(wc.qp);
        true
    }
}

#[cfg(test)]
pub(crate) fn test_producer(capacity: usize) -> (CqProducer, Consumer<Wc>) {
    CqProducer::new(capacity)
}

#[cfg(test)]
mod tests {
    use ferrowarp_proto::verbs::wc::{WcOpcode, WcStatus};

    use super::*;

    const fn wc(wr_id: u64) -> Wc {
        Wc {
            wr_id,
            qp: QpId { index: 3, generation: 0 },
            status: WcStatus::Success,
            opcode: WcOpcode::Send,
            byte_len: 0,
            solicited: false,
            invalidated: None,
            immediate: None,
        }
    }

    #[test]
    fn completions_appear_at_publish_and_mark_their_qp_once() {
        let mut rings = CqRings::new(4);
        let (feed, mut consumer) = CqProducer::new(2);
        let cq = rings.add(feed);
        assert!(rings.push(cq, wc(1)) && rings.push(cq, wc(2)));
        assert!(!rings.push(cq, wc(3)), "full");
        assert!(consumer.pop().is_none());
        assert_eq!(rings.pop_dirty(), Some(wc(1).qp));
        assert_eq!(rings.pop_dirty(), None);
        rings.publish();
        assert_eq!(consumer.pop().map(|wc| wc.wr_id), Some(1));
        assert!(rings.push(cq, wc(3)), "the room is found again");
    }

    #[test]
    fn removed_cq_refuses_completions_and_its_index_is_reused() {
        let mut rings = CqRings::new(4);
        let first = rings.add(CqProducer::new(2).0);
        assert!(rings.push(first, wc(1)));
        rings.remove(first);
        assert!(!rings.push(first, wc(2)));
        rings.publish();
        assert_eq!(rings.add(CqProducer::new(2).0), first);
        assert!(!rings.push(CqId(7), wc(1)));
    }
}
