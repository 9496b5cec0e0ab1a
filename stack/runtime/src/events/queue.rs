//! Queue of the sources of a context that have events, and the shard's publisher.
//!
//! A source (a queue pair, a listener, a shared receive queue) keeps its own events; the queue only
//! holds the events that name the sources which have some, each at most once. So the length of the
//! queue is bounded by the number of sources; an application that takes the events of its queue
//! pairs directly, and never looks at the queue, leaves hardly any of them in it. A CQ overrun, the
//! failure of the context and the states of the port have no source, and are queued at most once
//! each as well.
//!
//! An application may have several channels, and name one for a source: the queue keeps the events
//! of each apart. All others are those of the context's own channel.
//!
//! The shard never blocks here: it takes a lock only if that is free, and otherwise retries in its
//! next poll ([`EventPublisher`]).

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::events::async_event::AsyncEvent;
use crate::events::notify_fd::NotifyFd;
use crate::events::ticket_queue::TicketQueue;

/// Deferred events that a poll publishes, at most.
const RETRIED_PER_POLL: usize = 64;

/// Queue of the sources of a context that have events, and the threads that sleep on them.
pub(crate) struct AsyncEventQueue {
    state: Mutex<QueueState>,
}

/// Channel of a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ChannelId(u64);

impl ChannelId {
    /// The context's own: for all sources that name no other.
    pub(crate) const DEFAULT: Self = Self(0);
}

/// Events of one channel, and the threads that wait for any of them.
#[derive(Default)]
struct Channel {
    pending: TicketQueue<AsyncEvent>,
    fd: Option<Arc<NotifyFd>>,
    wake: Arc<Condvar>,
}

impl Channel {
    /// Queues an event, unless it is queued.
    fn push(&mut self, event: AsyncEvent) {
        if self.pending.is_empty()
            && let Some(fd) = &self.fd
        {
            fd.set();
        }
        if self.pending.push(event) {
            self.wake.notify_one();
        }
    }

    fn pop(&mut self) -> Option<AsyncEvent> {
        let event = self.pending.pop()?;
        self.clear_fd_if_empty();
        Some(event)
    }

    fn remove(&mut self, event: AsyncEvent) -> bool {
        let was_pending = self.pending.remove(event);
        if was_pending {
            self.clear_fd_if_empty();
        }
        was_pending
    }

    fn clear_fd_if_empty(&self) {
        if self.pending.is_empty()
            && let Some(fd) = &self.fd
        {
            fd.clear();
        }
    }

    fn close(&self) {
        self.fd.iter().for_each(|fd| fd.hang_up());
        self.wake.notify_all();
    }
}

#[derive(Default)]
pub(crate) struct QueueState {
    /// The context's own channel.
    default: Channel,
    others: HashMap<ChannelId, Channel>,
    last_id: u64,
    /// Channels other than the default, by the event that names the source.
    routes: HashMap<AsyncEvent, ChannelId>,
    /// Events that a task has taken for others, which may come later.
    #[cfg(feature = "tokio")]
    kept: TicketQueue<AsyncEvent>,
    /// Threads that sleep until a source has events, by the event that names it.
    pub(super) sleepers: Vec<(AsyncEvent, Thread)>,
    closed: bool,
}

impl QueueState {
    fn channel(&mut self, id: ChannelId) -> &mut Channel {
        self.others.get_mut(&id).unwrap_or(&mut self.default)
    }

    /// Returns the channel of a source.
    fn channel_of(&mut self, event: AsyncEvent) -> &mut Channel {
        let id = self.routes.get(&event).copied().unwrap_or_default();
        self.channel(id)
    }

    /// Queues an event, unless it is queued.
    fn push(&mut self, event: AsyncEvent) {
        self.channel_of(event).push(event);
    }

    /// Removes and returns the oldest event of a channel. Before the application reads the source:
    /// a later event is reported again.
    pub(crate) fn pop(&mut self, channel: ChannelId) -> Option<AsyncEvent> {
        self.channel(channel).pop()
    }

    /// Removes the oldest event of the context's own channel, and keeps it unless it names a queue
    /// pair or a listener: the tasks look at these themselves. False if there is none.
    #[cfg(feature = "tokio")]
    pub(crate) fn keep_next(&mut self) -> bool {
        let Some(event) = self.default.pop() else { return false };
        if !matches!(event, AsyncEvent::Connection { .. } | AsyncEvent::ConnectRequest { .. }) {
            self.kept.push(event);
        }
        true
    }

    /// Removes and returns the oldest event that was kept.
    #[cfg(feature = "tokio")]
    pub(crate) fn next_kept(&mut self) -> Option<AsyncEvent> {
        self.kept.pop()
    }

    fn remove(&mut self, event: AsyncEvent) {
        #[cfg(feature = "tokio")]
        self.kept.remove(event);
        self.channel_of(event).remove(event);
    }

    /// Has a source report to this channel from now on, what it has pending as well.
    fn route(&mut self, event: AsyncEvent, channel: ChannelId) {
        let was_pending = self.channel_of(event).remove(event);
        if channel == ChannelId::DEFAULT {
            self.routes.remove(&event);
        } else {
            self.routes.insert(event, channel);
        }
        if was_pending {
            self.push(event);
        }
    }

    /// No further event occurs: wakes the threads that sleep on a source, or on a channel.
    fn close(&mut self) {
        self.closed = true;
        self.default.close();
        self.others.values().for_each(Channel::close);
        self.sleepers.iter().for_each(|(_, thread)| thread.unpark());
    }

    /// True if no further event occurs.
    pub(crate) const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Queues an event, and wakes the threads that sleep on its source.
    fn publish(&mut self, event: AsyncEvent) {
        self.wake(event);
        self.push(event);
    }

    /// Wakes the threads that sleep on the source named by `event`.
    pub(super) fn wake(&self, event: AsyncEvent) {
        let its = self.sleepers.iter().filter(|(of, _)| *of == event);
        its.for_each(|(_, thread)| thread.unpark());
    }
}

impl AsyncEventQueue {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default() })
    }

    /// Creates a channel.
    pub(crate) fn open_channel(&self) -> ChannelId {
        let mut ready = self.lock();
        ready.last_id += 1;
        let id = ChannelId(ready.last_id);
        ready.others.insert(id, Channel::default());
        id
    }

    /// Removes a channel. Its sources report to the context's own again, what they have pending as
    /// well.
    pub(crate) fn close_channel(&self, id: ChannelId) {
        let mut ready = self.lock();
        let Some(mut channel) = ready.others.remove(&id) else { return };
        ready.routes.retain(|_, of| *of != id);
        while let Some(event) = channel.pop() {
            ready.push(event);
        }
    }

    /// Returns the channel of a source.
    pub(crate) fn channel_of(&self, event: AsyncEvent) -> ChannelId {
        self.lock().routes.get(&event).copied().unwrap_or_default()
    }

    /// Has a source report to this channel from now on, what it has pending as well.
    pub(crate) fn route(&self, event: AsyncEvent, channel: ChannelId) {
        self.lock().route(event, channel);
    }

    /// As [`AsyncEventQueue::route`], of a source in use: it is reported to the new channel if
    /// `has_events` returns true, even if the old one has reported it. Who took that may have left
    /// the source to the new channel.
    pub(crate) fn migrate(
        &self,
        event: AsyncEvent,
        channel: ChannelId,
        has_events: impl FnOnce() -> bool,
    ) {
        let mut ready = self.lock();
        ready.route(event, channel);
        if has_events() {
            ready.push(event);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the descriptor of a channel, created at the first call.
    pub(crate) fn fd(&self, channel: ChannelId) -> std::io::Result<Arc<NotifyFd>> {
        let mut ready = self.lock();
        let is_closed = ready.closed;
        let channel = ready.channel(channel);
        if let Some(fd) = &channel.fd {
            return Ok(Arc::clone(fd));
        }
        let fd = Arc::new(NotifyFd::new()?);
        if !channel.pending.is_empty() {
            fd.set();
        }
        if is_closed {
            fd.hang_up();
        }
        channel.fd = Some(Arc::clone(&fd));
        Ok(fd)
    }

    /// Waits for an event of a channel.
    pub(crate) fn wait(&self, channel: ChannelId, timeout: Duration) -> Option<AsyncEvent> {
        let end = Instant::now().checked_add(timeout);
        let mut ready = self.lock();
        let wake = Arc::clone(&ready.channel(channel).wake);
        loop {
            if let Some(event) = ready.pop(channel) {
                return Some(event);
            }
            if ready.closed {
                return None;
            }
            ready = match time_left(end) {
                None => wake.wait(ready).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return None,
                Some(left) => {
                    wake.wait_timeout(ready, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// No further event occurs: all waiting threads return, also those that begin to wait later.
    pub(crate) fn close(&self) {
        self.lock().close();
    }

    /// Publishes the state that something has entered, from a thread that may wait for the lock.
    /// Behind all other events, also if it is pending: the last one of its states that is pending
    /// is the present one. False if no further event occurs.
    pub(crate) fn publish_state(&self, event: AsyncEvent) -> bool {
        let mut ready = self.lock();
        if ready.closed {
            return false;
        }
        ready.remove(event);
        ready.push(event);
        true
    }

    /// Removes the pending event of a source that is destroyed, and its channel. The shards publish
    /// it no more.
    pub(crate) fn remove(&self, event: AsyncEvent) {
        let mut ready = self.lock();
        ready.remove(event);
        ready.routes.remove(&event);
    }

    /// Removes the pending event of a source, if nobody has ever looked at its channel, and if
    /// `is_empty` returns true: the source has no events. One that it gets later is published after
    /// it is stored, and so is queued again.
    pub(crate) fn remove_if_unseen(&self, event: AsyncEvent, is_empty: impl FnOnce() -> bool) {
        let mut ready = self.lock();
        let channel = ready.channel_of(event);
        if channel.fd.is_none() && is_empty() {
            channel.remove(event);
        }
    }
}

/// Shard's publisher of events; never blocks.
pub(crate) struct EventPublisher {
    events: Arc<AsyncEventQueue>,
    /// Events for which the lock was held.
    deferred: TicketQueue<AsyncEvent>,
}

impl EventPublisher {
    pub(crate) fn new(events: Arc<AsyncEventQueue>) -> Self {
        Self { events, deferred: TicketQueue::default() }
    }

    /// The queue that it publishes to.
    pub(crate) const fn queue(&self) -> &Arc<AsyncEventQueue> {
        &self.events
    }

    /// Publishes an event. If it names a source, after that has stored its own where the
    /// application finds it; the threads that sleep on the source are woken.
    #[cold]
    pub(crate) fn publish(&mut self, event: AsyncEvent) {
        match try_lock(&self.events.state) {
            Some(mut ready) => ready.publish(event),
            None => {
                self.deferred.push(event);
            }
        }
    }

    /// Forgets a source that is about to be destroyed.
    pub(crate) fn forget(&mut self, event: AsyncEvent) {
        self.deferred.remove(event);
    }

    /// True if nothing is deferred; [`EventPublisher::retry_deferred`] retries what is.
    #[inline]
    pub(crate) fn is_drained(&self) -> bool {
        self.deferred.is_empty()
    }

    /// Publishes deferred events, if the lock is free now.
    #[cold]
    pub(crate) fn retry_deferred(&mut self) {
        let Some(mut ready) = try_lock(&self.events.state) else { return };
        for _ in 0..RETRIED_PER_POLL {
            let Some(event) = self.deferred.pop() else { break };
            ready.publish(event);
        }
    }

    /// Publishes the deferred events and the failure of the shard. If it is the last one of the
    /// context, that has failed, and the queue is closed. Waits for the lock, because no further
    /// poll follows.
    #[cold]
    pub(crate) fn publish_failure(&mut self, shard: usize, is_last: bool) {
        while !self.is_drained() {
            self.retry_deferred();
            std::thread::yield_now();
        }
        let mut ready = self.events.lock();
        ready.push(if is_last { AsyncEvent::Failed } else { AsyncEvent::ShardFailed { shard } });
        if is_last {
            ready.close();
        }
    }
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Time left until `end`; `None`: there is no end.
pub(super) fn time_left(end: Option<Instant>) -> Option<Duration> {
    end.map(|end| end.saturating_duration_since(Instant::now()))
}
