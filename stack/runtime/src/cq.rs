//! Completion queues: one ring from the shard to whoever polls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use ferrowarp_proto::verbs::notify::Notify;
use ferrowarp_proto::verbs::wc::{Completions, CqId, QpId, Wc};

use crate::arm::Covers;
use crate::channel::{Channel, CqNotify};
use crate::context::Inner;
use crate::error::{ArmError, CreateError};
use crate::gate::Gate;
use crate::limits::{Grant, Resource};
use crate::ring::{Consumer, Peek, Producer};

/// Completions that one poll takes when the vector offered has no spare capacity.
const POLL_COUNT: usize = 32;

/// A completion queue. Clones name the same queue; it goes when the last of them and of the
/// queue pairs that use it are gone.
#[derive(Clone)]
pub struct Cq {
    shared: Arc<Shared>,
}

struct Shared {
    id: CqId,
    ring: Gate<Consumer<Wc>>,
    peek: Peek<Wc>,
    overrun: Arc<AtomicBool>,
    /// If it was made on a channel.
    notify: Option<Arc<CqNotify>>,
    context: Arc<Inner>,
    _grant: Grant,
}

impl Cq {
    /// Fails if `channel` is of another context, if its entries are over a limit, or after closing.
    pub(crate) fn new(
        context: &Arc<Inner>,
        capacity: usize,
        channel: Option<&Channel>,
    ) -> Result<Self, CreateError> {
        if channel.is_some_and(|channel| !channel.belongs_to(context)) {
            return Err(CreateError::Gone);
        }
        let grant = context.ledger.take(Resource::CqEntries, capacity)?;
        let (mut feed, consumer) = Feed::new(capacity);
        let notify = channel.map(|channel| Arc::new(CqNotify::on(channel)));
        feed.alarm = notify.clone().map(Alarm::new);
        if let Some(notify) = &notify {
            let watcher: Weak<CqNotify> = Arc::downgrade(notify);
            context.shard.watch(watcher);
        }
        let overrun = Arc::clone(&feed.overrun);
        let id = context.shard.control(|machine, _| machine.add_cq(feed));
        let shared = Shared {
            id: id.ok_or(CreateError::Gone)?,
            peek: consumer.peek(),
            ring: Gate::new(consumer),
            overrun,
            notify,
            context: Arc::clone(context),
            _grant: grant,
        };
        Ok(Self { shared: Arc::new(shared) })
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
        let max = if spare == 0 { POLL_COUNT } else { spare };
        let found = self.take(out, max);
        if found == 0 && self.shared.context.shard.drive() {
            return self.take(out, max);
        }
        found
    }

    /// What is there. Enters only if something is: whoever spins here finds nothing most times.
    #[inline]
    fn take(&self, out: &mut Vec<Wc>, max: usize) -> usize {
        if self.shared.peek.is_empty() { 0 } else { self.shared.ring.enter().pop_into(out, max) }
    }

    /// True once a completion found the queue full: the queue pairs that use it are in error,
    /// what it holds stays to be polled. An armed queue is notified of it, whatever it was armed
    /// for.
    #[must_use]
    pub fn overrun(&self) -> bool {
        self.shared.overrun.load(Ordering::Acquire)
    }

    /// The name that events of its channel carry. It may be given to another queue once this one
    /// is gone, and so are its events that nobody took.
    #[must_use]
    pub fn id(&self) -> CqId {
        self.shared.id
    }

    /// Asks to be told, once, on the queue's channel, of the next completion from now on, or of
    /// the next that the peer asked for with a solicited event or that failed; or that the queue
    /// has overrun. What is in the queue already is not told of: poll once more afterwards, before
    /// you wait. Of two wishes that stand the wider one counts.
    ///
    /// Waits for nobody: one atomic operation and a fence.
    ///
    /// # Errors
    /// [`ArmError`].
    pub fn arm(&self, notify: Notify) -> Result<(), ArmError> {
        let alarm = self.shared.notify.as_ref().ok_or(ArmError::NoChannel)?;
        alarm.arm(notify);
        if self.shared.context.shard.has_ended() { Err(ArmError::Gone) } else { Ok(()) }
    }

    pub(crate) fn belongs_to(&self, context: &Arc<Inner>) -> bool {
        Arc::ptr_eq(&self.shared.context, context)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let (id, notify) = (self.id, &self.notify);
        self.context.shard.control(|machine, _| {
            machine.remove_cq(id);
            // Before another queue can be given its place, and its name.
            if let Some(notify) = notify {
                notify.forget();
            }
        });
    }
}

/// The shard's end of a queue.
pub(crate) struct Feed {
    ring: Producer<Wc>,
    overrun: Arc<AtomicBool>,
    /// Listed in [`CqRings::staged`].
    staged: bool,
    /// For those that can be armed.
    alarm: Option<Alarm>,
}

/// A shard's way to notify of completions in a queue that was made on a channel.
struct Alarm {
    notify: Arc<CqNotify>,
    /// What has been staged since completions were last shown.
    staged: Option<Covers>,
}

impl Alarm {
    const fn new(notify: Arc<CqNotify>) -> Self {
        Self { notify, staged: None }
    }
}

impl Feed {
    fn new(capacity: usize) -> (Self, Consumer<Wc>) {
        let (ring, consumer) = crate::ring::ring(capacity);
        let overrun = Arc::new(AtomicBool::new(false));
        (Self { ring, overrun, staged: false, alarm: None }, consumer)
    }
}

/// All completion queues of a shard, as the engine sees them.
///
/// Completions are shown to the application at the end of a pass, all at once, after the room
/// they make in the work queues was: who polls a completion can post in its place.
#[derive(Default)]
pub(crate) struct CqRings {
    feeds: Vec<Option<Feed>>,
    /// Queues with completions not yet shown.
    staged: Vec<CqId>,
    /// Queue pairs that completed something since they were last asked for, once each.
    touched: Vec<QpId>,
    /// By index of the queue pair: it is in `touched`.
    marks: Vec<bool>,
}

impl CqRings {
    /// For queue pairs with indices below `qps_max`.
    pub(crate) fn new(qps_max: usize) -> Self {
        Self {
            touched: Vec::with_capacity(qps_max),
            marks: vec![false; qps_max],
            ..Self::default()
        }
    }

    pub(crate) fn add(&mut self, feed: Feed) -> CqId {
        let index = self.feeds.iter().position(Option::is_none).unwrap_or(self.feeds.len());
        if index == self.feeds.len() {
            self.feeds.push(None);
            self.staged.reserve(self.feeds.len());
        }
        let id = CqId(u32::try_from(index).expect("bounded by memory, each queue has a ring"));
        if let Some(alarm) = &feed.alarm {
            alarm.notify.name(id);
        }
        self.feeds[index] = Some(feed);
        id
    }

    pub(crate) fn remove(&mut self, cq: CqId) {
        self.staged.retain(|&staged| staged != cq);
        if let Some(feed) = self.feeds.get_mut(cq.0 as usize) {
            *feed = None;
        }
    }

    /// Notes that room was made in this queue pair's queues.
    #[inline]
    pub(crate) fn touch(&mut self, qp: QpId) {
        if let Some(mark) = self.marks.get_mut(qp.index as usize)
            && !*mark
        {
            *mark = true;
            self.touched.push(qp);
        }
    }

    /// The next queue pair that completed something.
    #[inline]
    pub(crate) fn next_touched(&mut self) -> Option<QpId> {
        let qp = self.touched.pop()?;
        self.marks[qp.index as usize] = false;
        Some(qp)
    }

    /// Shows what was pushed.
    #[inline]
    pub(crate) fn publish(&mut self) {
        while let Some(cq) = self.staged.pop() {
            if let Some(Some(feed)) = self.feeds.get_mut(cq.0 as usize) {
                feed.staged = false;
                feed.ring.publish();
                if let Some(alarm) = &mut feed.alarm
                    && let Some(covers) = alarm.staged.take()
                {
                    alarm.notify.published(covers);
                }
            }
        }
    }

    /// Marks a queue as overrun, and notifies whoever waits for a completion of any kind: its
    /// queue pairs have failed, and more may never come.
    pub(crate) fn mark_overrun(&self, cq: CqId) {
        if let Some(Some(feed)) = self.feeds.get(cq.0 as usize) {
            feed.overrun.store(true, Ordering::Release);
            if let Some(alarm) = &feed.alarm {
                alarm.notify.published(Covers::ANY);
            }
        }
    }
}

impl Completions for CqRings {
    #[inline]
    fn push(&mut self, cq: CqId, wc: Wc) -> bool {
        let Some(Some(feed)) = self.feeds.get_mut(cq.0 as usize) else {
            return false;
        };
        if feed.ring.stage(wc).is_err() {
            return false;
        }
        if let Some(alarm) = &mut feed.alarm {
            let covers = Covers::completion(wc.is_solicited());
            alarm.staged = Some(alarm.staged.map_or(covers, |staged| staged.min(covers)));
        }
        if !feed.staged {
            feed.staged = true;
            self.staged.push(cq);
        }
        self.touch(wc.qp);
        true
    }
}

#[cfg(test)]
pub(crate) fn test_feed(capacity: usize) -> (Feed, Consumer<Wc>) {
    Feed::new(capacity)
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
    fn completions_are_shown_together_and_their_queue_pair_is_named_once() {
        let mut rings = CqRings::new(4);
        let (feed, mut consumer) = Feed::new(2);
        let cq = rings.add(feed);
        assert!(rings.push(cq, wc(1)) && rings.push(cq, wc(2)));
        assert!(!rings.push(cq, wc(3)), "full");
        assert!(consumer.pop().is_none());
        assert_eq!(rings.next_touched(), Some(wc(1).qp));
        assert_eq!(rings.next_touched(), None);
        rings.publish();
        assert_eq!(consumer.pop().map(|wc| wc.wr_id), Some(1));
        assert!(rings.push(cq, wc(3)), "the room is found again");
    }

    #[test]
    fn a_removed_queue_takes_nothing_and_its_place_is_used_again() {
        let mut rings = CqRings::new(4);
        let first = rings.add(Feed::new(2).0);
        assert!(rings.push(first, wc(1)));
        rings.remove(first);
        assert!(!rings.push(first, wc(2)));
        rings.publish();
        assert_eq!(rings.add(Feed::new(2).0), first);
        assert!(!rings.push(CqId(7), wc(1)));
    }
}
