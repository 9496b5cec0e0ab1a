//! Completion queues: one ring from the shard to whoever polls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ferrowarp_proto::verbs::arm::{Arm, Notify};
use ferrowarp_proto::verbs::wc::{Completions, CqId, QpId, Wc};

use crate::channel::{Bell, Channel};
use crate::context::Inner;
use crate::error::{ArmError, LimitError};
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
    context: Arc<Inner>,
    /// Its entries, or why there are none for it.
    grant: Result<Grant, LimitError>,
}

impl Cq {
    pub(crate) fn new(context: &Arc<Inner>, capacity: usize, channel: Option<&Channel>) -> Self {
        let grant = context.ledger.take(Resource::CqEntries, capacity);
        let capacity = if grant.is_ok() { capacity } else { 0 };
        let (mut feed, consumer) = Feed::new(capacity);
        feed.alarm = channel
            .filter(|channel| channel.belongs_to(context))
            .map(|channel| Box::new(Alarm::on(channel.bell())));
        let overrun = Arc::clone(&feed.overrun);
        // After closing there is no shard to fill it: the queue stays empty.
        let id = context.shard.control(|machine, _| machine.add_cq(feed));
        let shared = Shared {
            id: id.unwrap_or(CqId(u32::MAX)),
            peek: consumer.peek(),
            ring: Gate::new(consumer),
            overrun,
            context: Arc::clone(context),
            grant,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Appends completions to `out`, oldest first, and returns how many: at most the spare
    /// capacity of `out`, or 32 if it has none. Never waits.
    ///
    /// If there are none and the application drives the shard ([`crate::DriveMode`]), makes one
    /// pass first. Several threads may poll; each completion goes to one of them. Some 10 ns
    /// beyond the pass.
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
    /// what it holds stays to be polled.
    #[must_use]
    pub fn overrun(&self) -> bool {
        self.shared.overrun.load(Ordering::Relaxed)
    }

    /// Why no queue pair can be made with it: its entries were over a limit.
    #[must_use]
    pub fn refusal(&self) -> Option<LimitError> {
        self.shared.grant.as_ref().err().copied()
    }

    /// The name that events of its channel carry.
    #[must_use]
    pub fn id(&self) -> CqId {
        self.shared.id
    }

    /// Asks to be told, once, on the queue's channel, of the next completion from now on, or of
    /// the next that the peer asked for with a solicited event or that failed. What is in the
    /// queue already is not told of: poll once more afterwards, before you wait. Of two wishes
    /// that stand the wider one counts.
    ///
    /// Waits for one pass of another thread at most.
    ///
    /// # Errors
    /// [`ArmError`].
    pub fn arm(&self, notify: Notify) -> Result<(), ArmError> {
        let id = self.shared.id;
        let armed = self.shared.context.shard.control(|machine, _| machine.arm_cq(id, notify));
        if armed.ok_or(ArmError::Gone)? { Ok(()) } else { Err(ArmError::NoChannel) }
    }

    pub(crate) fn belongs_to(&self, context: &Arc<Inner>) -> bool {
        Arc::ptr_eq(&self.shared.context, context)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let id = self.id;
        self.context.shard.control(|machine, _| machine.remove_cq(id));
    }
}

/// The shard's end of a queue.
pub(crate) struct Feed {
    ring: Producer<Wc>,
    overrun: Arc<AtomicBool>,
    /// Listed in [`CqRings::staged`].
    staged: bool,
    /// For those that can be armed.
    alarm: Option<Box<Alarm>>,
}

/// What a queue with a channel was asked to tell of.
struct Alarm {
    arm: Arm,
    bell: Arc<Bell>,
    /// To be rung when the completions are shown.
    due: bool,
}

impl Alarm {
    fn on(bell: &Arc<Bell>) -> Self {
        Self { arm: Arm::default(), bell: Arc::clone(bell), due: false }
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
        self.feeds[index] = Some(feed);
        CqId(u32::try_from(index).expect("bounded by memory, each queue has a ring"))
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
                    && std::mem::take(&mut alarm.due)
                {
                    alarm.bell.ring(cq);
                }
            }
        }
    }

    /// Arms a queue; false if it has no channel.
    pub(crate) fn arm(&mut self, cq: CqId, notify: Notify) -> bool {
        let Some(Some(feed)) = self.feeds.get_mut(cq.0 as usize) else { return false };
        let Some(alarm) = &mut feed.alarm else { return false };
        alarm.arm.arm(notify);
        true
    }

    /// Marks a queue as overrun.
    pub(crate) fn mark_overrun(&self, cq: CqId) {
        if let Some(Some(feed)) = self.feeds.get(cq.0 as usize) {
            feed.overrun.store(true, Ordering::Relaxed);
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
            alarm.due |= alarm.arm.tells_of(&wc);
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
