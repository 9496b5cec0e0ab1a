//! Completion queues: one ring from the shard to whoever polls.

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

/// Completions that one poll takes when the vector offered has no spare capacity.
const POLL_BATCH: usize = 32;

/// A completion queue. Clones name the same queue; it goes when the last of them and of the
/// queue pairs that use it are gone.
#[derive(Clone)]
pub struct Cq {
    inner: Arc<CqInner>,
}

struct CqInner {
    id: CqId,
    ring: SpinLock<Consumer<Wc>>,
    peek: Peek<Wc>,
    overrun: Arc<AtomicBool>,
    /// If it was made on a channel.
    notify: Option<Arc<CqNotify>>,
    context: Arc<ContextInner>,
    _permit: Permit,
}

impl Cq {
    /// Fails if `channel` is of another context, if its entries are over a limit, or after closing.
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

    /// Appends completions to `out`, oldest first, and returns how many: at most the spare
    /// capacity of `out`, or 32 if it has none. Never waits.
    ///
    /// If there are none and the application drives the shard ([`crate::DriveMode`]), makes one
    /// pass first. After a failure of the context ([`crate::Context::has_failed`]) there are those
    /// that were flushed, and then none. Several threads may poll; each completion goes to one of
    /// them. Some 10 ns beyond the pass.
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

    /// What is there. Enters only if something is: whoever spins here finds nothing most times.
    #[inline]
    fn pop_into(&self, out: &mut Vec<Wc>, max: usize) -> usize {
        if self.inner.peek.is_empty() { 0 } else { self.inner.ring.lock().pop_into(out, max) }
    }

    /// True once a completion found the queue full: the queue pairs that use it are in error,
    /// what it holds stays to be polled. An armed queue is notified of it, whatever it was armed
    /// for.
    #[must_use]
    pub fn overrun(&self) -> bool {
        self.inner.overrun.load(Ordering::Acquire)
    }

    /// The name that events of its channel carry. It may be given to another queue once this one
    /// is gone, and so are its events that nobody took.
    #[must_use]
    pub fn id(&self) -> CqId {
        self.inner.id
    }

    /// Asks to be told, once, on the queue's channel, of the next completion from now on, or of
    /// the next that the peer asked for with a solicited event or that failed; or that the queue
    /// has overrun. What is in the queue already is not told of: poll once more afterwards, before
    /// you wait. Of two wishes that stand the wider one counts.
    ///
    /// Waits for nobody: one atomic operation and a fence.
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
            // Before another queue can be given its place, and its name.
            if let Some(notify) = notify {
                notify.on_cq_destroyed();
            }
        });
    }
}

/// The shard's end of a queue.
pub(crate) struct CqProducer {
    ring: Producer<Wc>,
    overrun: Arc<AtomicBool>,
    /// Listed in [`CqRings::staged`].
    staged: bool,
    /// For those that can be armed.
    notify: Option<ProducerNotify>,
}

/// A shard's way to notify of completions in a queue that was made on a channel.
struct ProducerNotify {
    target: Arc<CqNotify>,
    /// What has been staged since completions were last shown.
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
/// Completions are shown to the application at the end of a pass, all at once, after the room
/// they make in the work queues was: who polls a completion can post in its place.
#[derive(Default)]
pub(crate) struct CqRings {
    producers: Vec<Option<CqProducer>>,
    /// Queues with completions not yet shown.
    staged: Vec<CqId>,
    /// Queue pairs that completed something since they were last asked for, once each.
    dirty_qps: Vec<QpId>,
    /// By index of the queue pair: it is in `dirty_qps`.
    is_dirty: Vec<bool>,
}

impl CqRings {
    /// For queue pairs with indices below `qps_max`.
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

    /// Notes that room was made in this queue pair's queues.
    #[inline]
    pub(crate) fn mark_dirty(&mut self, qp: QpId) {
        if let Some(mark) = self.is_dirty.get_mut(qp.index as usize)
            && !*mark
        {
            *mark = true;
            self.dirty_qps.push(qp);
        }
    }

    /// The next queue pair that completed something.
    #[inline]
    pub(crate) fn pop_dirty(&mut self) -> Option<QpId> {
        let qp = self.dirty_qps.pop()?;
        self.is_dirty[qp.index as usize] = false;
        Some(qp)
    }

    /// Shows what was pushed.
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

    /// Marks a queue as overrun, and notifies whoever waits for a completion of any kind: its
    /// queue pairs have failed, and more may never come.
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
