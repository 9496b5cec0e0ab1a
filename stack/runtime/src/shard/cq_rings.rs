//! Shard's side of the completion queues: rings, overrun flags and notification.
//!
//! A queue is armed by its arm word ([`ferrowarp_lockfree::arm`]), without the shard's lock. A
//! queue without a channel pays one test per completion, one with a channel a fence per poll that
//! completes something.

use std::collections::VecDeque;
use std::sync::Arc;

use ferrowarp_lockfree::arm::{ArmWord, CompEvent};
use ferrowarp_lockfree::helper_wakeup::HelperWakeup;
use ferrowarp_lockfree::spsc::{self, Consumer, Producer, Slots};
use ferrowarp_proto::verbs::wc::Notify;
use ferrowarp_proto::verbs::wc::{Completed, Completions, CqId, QpId, Wc};

use crate::clock::Clock;
use crate::shard::comp_events::CompEventQueue;
use crate::shard::cq_overrun::CqOverrun;
use crate::shard::end_observer::EndObserver;

/// Notification state of a completion queue with a channel, shared by the queue and its producers.
pub(crate) struct CqNotify {
    word: ArmWord,
    /// An application that arms the queue may sleep next: the helpers of the shards that feed it
    /// poll often for a while.
    helper_wakeups: Box<[Arc<HelperWakeup>]>,
    events: Arc<CompEventQueue>,
    id: CqId,
}

impl CqNotify {
    pub(crate) fn new(
        id: CqId,
        events: Arc<CompEventQueue>,
        helper_wakeups: Box<[Arc<HelperWakeup>]>,
    ) -> Self {
        Self { word: ArmWord::default(), helper_wakeups, events, id }
    }

    /// See [`ArmWord::arm`].
    pub(crate) fn req_notify(&self, notify: Notify) {
        if self.word.arm(notify) {
            self.helper_wakeups.iter().for_each(|helper| helper.add_waiter());
        }
    }

    /// A shard has published completions: raises an event if one was requested. See
    /// [`ArmWord::claim`]. False if the event has to be raised later ([`CqNotify::try_raise`]):
    /// another thread holds the lock of the channel.
    #[inline]
    pub(crate) fn on_published(&self, covers: CompEvent) -> bool {
        !self.word.claim(covers) || self.raise_event()
    }

    #[cold]
    fn raise_event(&self) -> bool {
        self.remove_waiters();
        self.try_raise()
    }

    /// Raises an event that was requested. False as for [`CqNotify::on_published`].
    fn try_raise(&self) -> bool {
        self.events.try_push(self.id)
    }

    fn remove_waiters(&self) {
        self.helper_wakeups.iter().for_each(|helper| helper.remove_waiter());
    }

    /// The queue is destroyed, and no shard produces to it any more.
    pub(crate) fn on_cq_destroyed(&self) {
        if self.word.claim(CompEvent::ANY) {
            self.remove_waiters();
        }
        self.events.remove(self.id);
    }
}

/// Last event: an application that has armed the queue finds the flushed completions.
impl EndObserver for CqNotify {
    fn on_shard_end(&self, _: bool) {
        if !self.on_published(CompEvent::ANY) {
            self.events.push(self.id);
        }
    }
}

/// Shard's side of a completion queue.
pub(crate) struct CqProducer {
    ring: Producer<Wc>,
    overrun: Arc<CqOverrun>,
    /// The same, while no completion is accepted once it is set: until this shard has ended its
    /// queue pairs. `None` as long as only this shard can set it.
    refuses_after: Option<Arc<CqOverrun>>,
    /// This shard ends its queue pairs, or has done so.
    is_overrun_known: bool,
    /// This shard was the first to find the overrun, and reports it once they are ended.
    is_overrun_unreported: bool,
    /// Listed in [`CqRings::unpublished`].
    is_listed: bool,
    /// For queues that can be armed.
    notify: Option<ProducerNotify>,
    /// Clock of the time stamps, if completions have them.
    stamps: Option<Clock>,
}

/// Producer's state for notifying a queue created on a channel.
struct ProducerNotify {
    target: Arc<CqNotify>,
    /// Event for the completions not yet published.
    covers: Option<CompEvent>,
}

impl ProducerNotify {
    const fn new(notify: Arc<CqNotify>) -> Self {
        Self { target: notify, covers: None }
    }
}

impl CqProducer {
    /// Returns one shard's side of a new queue and the ring of its completions. `notify`: for a
    /// queue created on a channel.
    pub(crate) fn new(
        capacity: usize,
        overrun: Arc<CqOverrun>,
        notify: Option<Arc<CqNotify>>,
    ) -> (Self, Consumer<Wc>) {
        let (ring, consumer) = ferrowarp_lockfree::spsc::ring(capacity);
        let notify = notify.map(ProducerNotify::new);
        let producer = Self {
            ring,
            refuses_after: overrun.is_shared().then(|| Arc::clone(&overrun)),
            overrun,
            is_overrun_known: false,
            is_overrun_unreported: false,
            is_listed: false,
            notify,
            stamps: None,
        };
        (producer, consumer)
    }

    /// Gives completions time stamps of this clock from now on.
    pub(crate) fn stamp_with(&mut self, clock: Clock) {
        self.stamps = Some(clock);
    }

    /// Stamps the completions that are about to be published.
    #[cold]
    fn stamp(&mut self) {
        if let Some(clock) = &self.stamps {
            let now_ns = clock.now().as_nanos();
            self.ring.update_unpublished(|wc| wc.timestamp_ns = now_ns);
        }
    }

    /// True if the queue has overrun, here or in another shard, and this one has not ended its
    /// queue pairs yet.
    #[inline(always)]
    fn refuses_all(&self) -> bool {
        self.refuses_after.as_ref().is_some_and(|overrun| overrun.has_overrun())
    }
}

/// Events that could not be raised, of which the next try is made in a poll.
const RAISED_PER_POLL: usize = 64;

/// Completion queue that has overrun, and of which the engine has no queue pairs to end any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedCq {
    pub(crate) cq: CqId,
    /// This shard ends the queue pairs that belong to none: the number at which it goes on, if it
    /// has not finished.
    pub(crate) next_unbound: Option<u32>,
    /// This shard reports the overrun to the application.
    pub(crate) is_reporter: bool,
}

/// All completion queues of a shard, as the engine sees them.
///
/// Completions are published to the application after the received frames of a poll are processed,
/// and at its end, those of each part at once, after the slots that they free in the work queues:
/// an application that polls a completion can post in its place.
#[derive(Default)]
pub(crate) struct CqRings {
    producers: Vec<Option<CqProducer>>,
    /// Queues with completions not yet published.
    unpublished: Vec<CqId>,
    /// Queue pairs with completions since the last [`CqRings::clear_dirty`], once each.
    dirty_qps: Vec<QpId>,
    /// Indexed by queue pair: true if it is in `dirty_qps`.
    is_dirty: Vec<bool>,
    /// Queues whose event is to be raised: another thread held the lock of their channel.
    deferred_events: VecDeque<Arc<CqNotify>>,
    /// Queue pairs of queues that have overrun, as the engine ends them.
    ended_qps: Vec<(QpId, CqId)>,
    /// Queues that have overrun, to be reported to the application.
    ended_cqs: VecDeque<EndedCq>,
    /// One of these three is not empty.
    has_deferred: bool,
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

    /// Adds a queue with this ID, which no other has.
    pub(crate) fn add(&mut self, id: CqId, producer: CqProducer) {
        if id.index() >= self.producers.len() {
            self.producers.resize_with(id.index() + 1, || None);
            self.unpublished.reserve(self.producers.len());
        }
        self.producers[id.index()] = Some(producer);
    }

    pub(crate) fn remove(&mut self, cq: CqId) {
        self.unpublished.retain(|&listed| listed != cq);
        self.deferred_events.retain(|notify| notify.id != cq);
        self.ended_cqs.retain(|ended| ended.cq != cq);
        if let Some(producer) = self.producers.get_mut(cq.index()) {
            *producer = None;
        }
    }

    /// Replaces the slots of a queue; `slots` are the old ones then.
    ///
    /// # Errors
    /// The number of completions in the queue, if that is more than the slots.
    pub(crate) fn resize(
        &mut self,
        cq: CqId,
        consumer: &mut Consumer<Wc>,
        slots: &mut Slots<Wc>,
    ) -> Result<(), usize> {
        let Some(Some(producer)) = self.producers.get_mut(cq.index()) else {
            debug_assert!(false, "{cq:?} was removed while its consumer exists");
            return Ok(());
        };
        let held = spsc::held(&producer.ring, consumer);
        if held > slots.count() {
            return Err(held);
        }
        spsc::replace_slots(&mut producer.ring, consumer, slots);
        Ok(())
    }

    /// Records that slots were freed in this queue pair's work queues.
    #[inline]
    pub(crate) fn mark_dirty(&mut self, qp: QpId) {
        if let Some(mark) = self.is_dirty.get_mut(qp.slot())
            && !*mark
        {
            *mark = true;
            self.dirty_qps.push(qp);
        }
    }

    /// Returns the queue pair at this index of those whose slots were freed.
    #[inline]
    pub(crate) fn dirty(&self, index: usize) -> Option<QpId> {
        self.dirty_qps.get(index).copied()
    }

    /// Forgets which queue pairs had slots freed.
    #[inline]
    pub(crate) fn clear_dirty(&mut self) {
        for qp in self.dirty_qps.drain(..) {
            self.is_dirty[qp.slot()] = false;
        }
    }

    /// True if completions wait to be published.
    #[inline]
    pub(crate) const fn has_completions(&self) -> bool {
        !self.unpublished.is_empty()
    }

    /// True if completions, free slots or events wait to be published.
    #[inline]
    pub(crate) const fn has_unpublished(&self) -> bool {
        !self.dirty_qps.is_empty() || !self.unpublished.is_empty() || self.has_deferred
    }

    /// True if events could not be raised, or an overrun is to be reported: the next poll goes on.
    #[inline]
    pub(crate) const fn has_deferred(&self) -> bool {
        self.has_deferred
    }

    fn note_deferred(&mut self) {
        let Self { deferred_events, ended_qps, ended_cqs, .. } = self;
        self.has_deferred =
            !(deferred_events.is_empty() && ended_qps.is_empty() && ended_cqs.is_empty());
    }

    /// Raises events that could not be raised before, in turn.
    #[cold]
    fn raise_deferred(&mut self) {
        for _ in 0..self.deferred_events.len().min(RAISED_PER_POLL) {
            let Some(notify) = self.deferred_events.pop_front() else { break };
            if !notify.try_raise() {
                self.deferred_events.push_back(notify);
            }
        }
        self.note_deferred();
    }

    #[cold]
    fn defer_event(&mut self, notify: Arc<CqNotify>) {
        self.deferred_events.push_back(notify);
        self.has_deferred = true;
    }

    /// Takes the queue pairs that the engine has ended over an overrun, each with the queue.
    pub(crate) fn take_ended_qps(&mut self) -> Vec<(QpId, CqId)> {
        let ended = std::mem::take(&mut self.ended_qps);
        self.note_deferred();
        ended
    }

    /// Takes a queue that is to be reported to the application. From now on it accepts what its
    /// queue pairs flush: their states are published.
    pub(crate) fn take_ended_cq(&mut self) -> Option<EndedCq> {
        let ended = self.ended_cqs.pop_front()?;
        if let Some(Some(producer)) = self.producers.get_mut(ended.cq.index()) {
            producer.refuses_after = None;
        }
        self.note_deferred();
        Some(ended)
    }

    /// Leaves the rest of a queue's end to the next poll.
    pub(crate) fn go_on_with(&mut self, ended: EndedCq) {
        self.ended_cqs.push_front(ended);
        self.has_deferred = true;
    }

    /// Publishes the completions.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.has_deferred {
            self.raise_deferred();
        }
        while let Some(cq) = self.unpublished.pop() {
            if let Some(Some(producer)) = self.producers.get_mut(cq.index()) {
                producer.is_listed = false;
                if producer.stamps.is_some() {
                    producer.stamp();
                }
                producer.ring.publish();
                if let Some(notify) = &mut producer.notify
                    && let Some(covers) = notify.covers.take()
                    && !notify.target.on_published(covers)
                {
                    let target = Arc::clone(&notify.target);
                    self.defer_event(target);
                }
            }
        }
    }

    /// As [`CqRings::publish`], after the last poll: waits for the lock of a channel.
    pub(crate) fn publish_last(&mut self) {
        self.publish();
        for notify in self.deferred_events.drain(..) {
            notify.events.push(notify.id);
        }
    }

    /// Notifies any pending request of a queue that has overrun: its queue pairs have failed, and
    /// further completions may never come.
    pub(crate) fn notify_of_overrun(&mut self, cq: CqId) {
        if let Some(Some(producer)) = self.producers.get(cq.index())
            && let Some(notify) = &producer.notify
            && !notify.target.on_published(CompEvent::ANY)
        {
            let target = Arc::clone(&notify.target);
            self.defer_event(target);
        }
    }

    /// The shard has failed: its queue pairs are ended, whatever overran, and then flushed.
    pub(crate) fn accept_flushed(&mut self) {
        self.producers.iter_mut().flatten().for_each(|producer| producer.refuses_after = None);
    }

    /// True if this shard still has to end the queue pairs of a queue that overran in another one:
    /// it has the queue, and not a later one with the same ID, and has not found out itself.
    pub(crate) fn has_to_end_qps(&self, cq: CqId, overrun: &Arc<CqOverrun>) -> bool {
        let producer = self.producers.get(cq.index()).and_then(Option::as_ref);
        producer.is_some_and(|producer| {
            Arc::ptr_eq(&producer.overrun, overrun) && !producer.is_overrun_known
        })
    }
}

impl Completions for CqRings {
    #[inline]
    fn push(&mut self, cq: CqId, wc: Wc) -> bool {
        self.push_all(cq, Single(wc))
    }

    // Inlined, so that each completion is written where it stays.
    #[inline(always)]
    fn push_all(&mut self, cq: CqId, completed: impl Completed) -> bool {
        let Some(Some(producer)) = self.producers.get_mut(cq.index()) else {
            return completed.drain(|_| false);
        };
        if producer.refuses_all() {
            return completed.drain(|_| false);
        }
        let (mut last_qp, mut is_solicited) = (None, false);
        let mut batch = producer.ring.batch();
        let all_fit = completed.drain(|wc| {
            let (qp, solicited) = (wc.qp, wc.is_solicited());
            let is_pushed = batch.push(wc).is_ok();
            if is_pushed {
                last_qp = Some(qp);
                is_solicited |= solicited;
            }
            is_pushed
        });
        drop(batch);
        let Some(qp) = last_qp else { return all_fit };
        if let Some(notify) = &mut producer.notify {
            let covers = CompEvent::completion(is_solicited);
            notify.covers = Some(notify.covers.map_or(covers, |others| others.min(covers)));
        }
        if !producer.is_listed {
            producer.is_listed = true;
            self.unpublished.push(cq);
        }
        self.mark_dirty(qp);
        all_fit
    }

    fn is_full(&self, cq: CqId) -> bool {
        let producer = self.producers.get(cq.index()).and_then(Option::as_ref);
        producer.is_none_or(|producer| producer.refuses_all() || producer.ring.is_full())
    }

    #[cold]
    fn claim_overrun(&mut self, cq: CqId) -> bool {
        let Some(Some(producer)) = self.producers.get_mut(cq.index()) else { return false };
        producer.is_overrun_known = true;
        producer.refuses_after = Some(Arc::clone(&producer.overrun));
        let is_first = CqOverrun::set(&producer.overrun, cq);
        producer.is_overrun_unreported |= is_first;
        is_first
    }

    #[cold]
    fn on_qp_overrun(&mut self, cq: CqId, qp: QpId) {
        self.ended_qps.push((qp, cq));
        self.has_deferred = true;
    }

    #[cold]
    fn on_qps_ended(&mut self, cq: CqId) {
        let Some(Some(producer)) = self.producers.get_mut(cq.index()) else { return };
        let is_reporter = std::mem::take(&mut producer.is_overrun_unreported);
        self.ended_cqs.push_back(EndedCq {
            cq,
            next_unbound: is_reporter.then_some(0),
            is_reporter,
        });
        self.has_deferred = true;
    }
}

/// A single completion.
struct Single(Wc);

impl Completed for Single {
    #[inline(always)]
    fn drain(self, mut accept: impl FnMut(Wc) -> bool) -> bool {
        accept(self.0)
    }
}

#[cfg(test)]
mod tests;
