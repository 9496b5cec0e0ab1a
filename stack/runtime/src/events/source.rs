//! Event sources, and the threads that sleep until one of them has an event.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::events::async_event::AsyncEvent;
use crate::events::queue::{AsyncEventQueue, time_left};

/// Source of events: a queue pair, a listener or a shared receive queue. It is known by the event
/// that names it; the threads that sleep on it are in the [`AsyncEventQueue`]. Of many sources most
/// have neither events nor sleeping threads: each is a byte.
#[derive(Debug, Default)]
pub(crate) struct EventSource {
    /// No further event occurs.
    ended: AtomicBool,
}

impl AsyncEventQueue {
    /// Sleeps until `ready` returns a value, the source named by `event` ends, the queue is closed,
    /// or `timeout` has passed.
    ///
    /// No wake-up is lost: an event is stored where `ready` finds it before the publisher takes the
    /// lock. If that was before this thread was listed, `ready` is called after that; otherwise the
    /// thread is found in the list and unparked, and its next park returns immediately. The same
    /// holds for the end of the queue, which wakes all threads in the list.
    pub(crate) fn wait_for<T>(
        &self,
        event: AsyncEvent,
        source: &EventSource,
        timeout: Duration,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let end = Instant::now().checked_add(timeout);
        let _listed = SleeperGuard::new(self, event);
        loop {
            let ended = source.ended.load(Ordering::Acquire) || self.lock().is_closed();
            if let Some(value) = ready() {
                return Some(value);
            }
            if ended {
                return None;
            }
            match time_left(end) {
                None => std::thread::park(),
                Some(Duration::ZERO) => return None,
                Some(left) => std::thread::park_timeout(left),
            }
        }
    }

    /// Ends the source named by `event`: there are no events after those stored so far.
    pub(crate) fn end_source(&self, event: AsyncEvent, source: &EventSource) {
        source.ended.store(true, Ordering::Release);
        self.lock().wake(event);
    }
}

/// Entry of a sleeping thread in the list.
struct SleeperGuard<'a> {
    queue: &'a AsyncEventQueue,
    event: AsyncEvent,
}

impl<'a> SleeperGuard<'a> {
    fn new(queue: &'a AsyncEventQueue, event: AsyncEvent) -> Self {
        queue.lock().sleepers.push((event, std::thread::current()));
        Self { queue, event }
    }
}

impl Drop for SleeperGuard<'_> {
    fn drop(&mut self) {
        let own = std::thread::current().id();
        let sleepers = &mut self.queue.lock().sleepers;
        let is_own = |(event, thread): &(AsyncEvent, std::thread::Thread)| {
            *event == self.event && thread.id() == own
        };
        if let Some(at) = sleepers.iter().position(is_own) {
            sleepers.swap_remove(at);
        }
    }
}
