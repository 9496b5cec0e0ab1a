//! Events of a queue pair, from its shard to the application.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use crossbeam::atomic::AtomicCell;
use ferrowarp_proto::verbs::cm::ConnEvent;
use ferrowarp_proto::verbs::wc::QpId;

/// Maximum number of pending events of a queue pair: set-up, end, and an overrun of each completion
/// queue.
const EVENT_COUNT_MAX: u8 = 8;

/// Number of a queue pair's events, those in both places: [`QpEvents`] and [`TakenEvents`].
#[derive(Default)]
pub(super) struct EventCount(AtomicU8);

impl EventCount {
    /// True if there are events. One load.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

/// Queue of events. They are rare, and there are many queues: it has memory only while it holds
/// any. The shard never waits for a thread of the application, which may be preempted at any point.
#[derive(Default)]
pub(super) struct QpEvents {
    /// Events that the shard has pushed since they were taken last.
    pushed: AtomicCell<Option<Box<Pushed>>>,
}

/// Events of a context's queue pairs that were taken from [`QpEvents`], oldest first, while there
/// were several of one. Its lock orders the threads that take them.
#[derive(Default)]
pub(crate) struct TakenEvents(Mutex<HashMap<QpId, VecDeque<ConnEvent>>>);

impl TakenEvents {
    /// Drops those of a queue pair that is destroyed.
    pub(crate) fn remove(&self, qp: QpId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&qp);
    }
}

/// List of events, newest first.
struct Pushed {
    event: ConnEvent,
    older: Option<Box<Self>>,
}

impl QpEvents {
    /// Appends an event; dropped if eight are pending. Called by the holder of the shard's lock
    /// alone, and wait-free.
    pub(super) fn push(&self, count: &EventCount, event: ConnEvent) {
        if count.0.load(Ordering::Relaxed) < EVENT_COUNT_MAX {
            // Until the list is put back a thread of the application finds none: it is woken after
            // this call.
            let older = self.pushed.take();
            self.pushed.store(Some(Box::new(Pushed { event, older })));
            count.0.fetch_add(1, Ordering::Release);
        }
    }

    /// Removes and returns the oldest event of the queue pair, which is `qp`.
    pub(super) fn pop(
        &self,
        count: &EventCount,
        qp: QpId,
        taken: &TakenEvents,
    ) -> Option<ConnEvent> {
        let mut taken = taken.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut events = taken.remove(&qp).unwrap_or_default();
        if events.is_empty() {
            let mut next = self.pushed.take();
            while let Some(pushed) = next {
                events.push_front(pushed.event);
                next = pushed.older;
            }
        }
        let event = events.pop_front()?;
        count.0.fetch_sub(1, Ordering::Relaxed);
        if !events.is_empty() {
            taken.insert(qp, events);
        }
        Some(event)
    }
}

// A lock would be held by a preempted thread of the application.
const _: () = assert!(AtomicCell::<Option<Box<Pushed>>>::is_lock_free());

#[cfg(test)]
mod tests {
    use ferrowarp_proto::verbs::wc::CqId;

    use super::*;

    const QP: QpId = QpId { index: 3, generation: 1 };

    /// A queue pair's events with all that they need.
    #[derive(Default)]
    struct OneQp {
        count: EventCount,
        events: QpEvents,
        taken: TakenEvents,
    }

    impl OneQp {
        fn push(&self, number: u32) {
            self.events.push(&self.count, ConnEvent::CqOverrun { cq: CqId(number) });
        }

        fn pop(&self) -> Option<u32> {
            self.events.pop(&self.count, QP, &self.taken).map(|event| match event {
                ConnEvent::CqOverrun { cq } => cq.0,
                event => panic!("{event:?}"),
            })
        }
    }

    #[test]
    fn events_are_taken_in_order_also_those_pushed_meanwhile() {
        let qp = OneQp::default();
        assert!(!qp.count.any() && qp.pop().is_none());
        (0..3).for_each(|number| qp.push(number));
        assert_eq!(qp.pop(), Some(0));
        qp.push(3);
        for expected in 1..4 {
            assert!(qp.count.any());
            assert_eq!(qp.pop(), Some(expected));
        }
        assert!(!qp.count.any() && qp.pop().is_none());
        assert!(qp.taken.0.lock().unwrap().is_empty(), "no memory while there are none");
    }

    #[test]
    fn queue_pairs_of_a_context_keep_their_events_apart() {
        let (qp, other) = (OneQp::default(), OneQp::default());
        let other_id = QpId { index: QP.index, generation: QP.generation + 1 };
        (0..2).for_each(|number| qp.push(number));
        assert_eq!(qp.pop(), Some(0));
        assert!(other.events.pop(&other.count, other_id, &qp.taken).is_none());
        qp.taken.remove(other_id);
        assert_eq!(qp.pop(), Some(1));
        (2..4).for_each(|number| qp.push(number));
        assert_eq!(qp.pop(), Some(2));
        qp.taken.remove(QP);
        assert_eq!(qp.pop(), None, "destroyed");
    }

    #[test]
    fn more_than_eight_are_dropped() {
        let qp = OneQp::default();
        (0..10).for_each(|number| qp.push(number));
        let taken: Vec<u32> = core::iter::from_fn(|| qp.pop()).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4, 5, 6, 7]);
        qp.push(8);
        assert_eq!(qp.pop(), Some(8));
    }

    #[test]
    fn threads_take_each_event_once_in_order() {
        const COUNT: u32 = 20_000;
        let qp = OneQp::default();
        std::thread::scope(|scope| {
            let taking = || {
                let mut taken = Vec::new();
                while taken.last() != Some(&u32::MAX) {
                    match qp.pop() {
                        Some(number) => taken.push(number),
                        None => std::thread::yield_now(),
                    }
                }
                taken
            };
            let threads = [scope.spawn(taking), scope.spawn(taking)];
            let push = |number| {
                while qp.count.0.load(Ordering::Relaxed) == EVENT_COUNT_MAX {
                    std::thread::yield_now();
                }
                qp.push(number);
            };
            (0..COUNT).for_each(push);
            // One for each thread.
            (0..2).for_each(|_| push(u32::MAX));
            let mut all = Vec::new();
            for thread in threads {
                let taken = thread.join().unwrap();
                assert!(taken.is_sorted());
                all.extend(taken);
            }
            all.sort_unstable();
            assert!(all.into_iter().take(COUNT as usize).eq(0..COUNT));
        });
    }
}
