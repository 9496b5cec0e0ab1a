//! Events of a queue pair, from its shard to the application.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crossbeam::atomic::AtomicCell;
use ferrowarp_proto::verbs::cm::Event;

/// Maximum number of pending events of a queue pair: set-up, end, and an overrun of each completion
/// queue.
const EVENT_COUNT_MAX: usize = 8;

/// Queue of events. They are rare, and there are many queues: it has memory only while it holds
/// any. The shard never waits for a thread of the application, which may be preempted at any point.
#[derive(Default)]
pub(super) struct QpEvents {
    /// Number of events, those in both places.
    count: AtomicUsize,
    /// Those that the shard has pushed since they were taken last.
    pushed: AtomicCell<Option<Box<Pushed>>>,
    /// Those taken from there, oldest first.
    taken: Mutex<VecDeque<Event>>,
}

/// List of events, newest first.
struct Pushed {
    event: Event,
    older: Option<Box<Self>>,
}

impl QpEvents {
    /// Appends an event; dropped if eight are pending. Called by the holder of the shard's lock
    /// alone, and wait-free.
    pub(super) fn push(&self, event: Event) {
        if self.count.load(Ordering::Relaxed) < EVENT_COUNT_MAX {
            // Until the list is put back a thread of the application finds none: it is woken after
            // this call.
            let older = self.pushed.take();
            self.pushed.store(Some(Box::new(Pushed { event, older })));
            self.count.fetch_add(1, Ordering::Release);
        }
    }

    /// True if there are events. One load.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Removes and returns the oldest event.
    pub(super) fn pop(&self) -> Option<Event> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.is_empty() {
            let mut next = self.pushed.take();
            while let Some(pushed) = next {
                taken.push_front(pushed.event);
                next = pushed.older;
            }
        }
        let event = taken.pop_front();
        if event.is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        if taken.is_empty() {
            *taken = VecDeque::new();
        }
        event
    }
}

// A lock would be held by a preempted thread of the application.
const _: () = assert!(AtomicCell::<Option<Box<Pushed>>>::is_lock_free());

#[cfg(test)]
mod tests {
    use ferrowarp_proto::verbs::wc::CqId;

    use super::*;

    fn event(number: u32) -> Event {
        Event::CqOverrun { cq: CqId(number) }
    }

    fn number(event: &Event) -> u32 {
        match event {
            Event::CqOverrun { cq } => cq.0,
            event => panic!("{event:?}"),
        }
    }

    #[test]
    fn events_are_taken_in_order_also_those_pushed_meanwhile() {
        let events = QpEvents::default();
        assert!(!events.any() && events.pop().is_none());
        (0..3).for_each(|number| events.push(event(number)));
        assert_eq!(events.pop().as_ref().map(number), Some(0));
        events.push(event(3));
        for expected in 1..4 {
            assert!(events.any());
            assert_eq!(events.pop().as_ref().map(number), Some(expected));
        }
        assert!(!events.any() && events.pop().is_none());
        assert_eq!(events.taken.lock().unwrap().capacity(), 0, "no memory while there are none");
    }

    #[test]
    fn more_than_eight_are_dropped() {
        let events = QpEvents::default();
        (0..10).for_each(|number| events.push(event(number)));
        let taken: Vec<u32> = core::iter::from_fn(|| events.pop().as_ref().map(number)).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4, 5, 6, 7]);
        events.push(event(8));
        assert_eq!(events.pop().as_ref().map(number), Some(8));
    }

    #[test]
    fn threads_take_each_event_once_in_order() {
        const COUNT: u32 = 20_000;
        let events = QpEvents::default();
        std::thread::scope(|scope| {
            let taking = || {
                let mut taken = Vec::new();
                while taken.last() != Some(&u32::MAX) {
                    match events.pop() {
                        Some(event) => taken.push(number(&event)),
                        None => std::thread::yield_now(),
                    }
                }
                taken
            };
            let threads = [scope.spawn(taking), scope.spawn(taking)];
            let push = |number| {
                while events.count.load(Ordering::Relaxed) == EVENT_COUNT_MAX {
                    std::thread::yield_now();
                }
                events.push(event(number));
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
