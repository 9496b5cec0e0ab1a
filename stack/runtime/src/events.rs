//! Event channel of a context: all events but completions, with one file descriptor.
//!
//! A source (a queue pair, a listener, a shared receive queue) keeps its own events; the channel
//! only queues the sources that have some. Each source is queued at most once, so the length of the
//! queue is bounded by the number of sources. A CQ overrun and the failure of the context are
//! queued without a source, at most once each.
//!
//! The shard never blocks here: it takes a lock only if that is free, and otherwise retries in its
//! next poll ([`EventPublisher`]).

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferrowarp_proto::verbs::qp::SrqId;
use ferrowarp_proto::verbs::wc::{CqId, QpId};

use crate::context::ContextInner;
use crate::notify_fd::NotifyFd;
use source::{NOT_QUEUED, REMOVED};

mod source;

pub(crate) use source::{EventPublisher, EventSource};

/// Event notification: names the source. The details are taken from the source itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A queue pair has events: take them with [`Qp::next_event`] until there are none.
    ///
    /// [`Qp::next_event`]: crate::Qp::next_event
    Connection {
        /// The queue pair ([`Qp::id`](crate::Qp::id)).
        qp: QpId,
    },
    /// A listener has connection requests: take them with [`Listener::poll`] until there are none.
    ///
    /// [`Listener::poll`]: crate::Listener::poll
    ConnectRequest {
        /// The listener's port ([`Listener::port`](crate::Listener::port)).
        port: u16,
    },
    /// A shared receive queue fell below its limit: see [`Srq::next_limit`].
    ///
    /// [`Srq::next_limit`]: crate::Srq::next_limit
    SrqLimit {
        /// The queue ([`Srq::id`](crate::Srq::id)).
        srq: SrqId,
    },
    /// A completion queue overran: its queue pairs are in error.
    CqOverrun {
        /// The queue ([`Cq::id`](crate::Cq::id)).
        cq: CqId,
    },
    /// The context has failed ([`Context::has_failed`](crate::Context::has_failed)). No further
    /// event occurs.
    Failed,
}

/// Event channel: reports the events of a context that are not completions. Each context has one;
/// clones refer to it.
///
/// An event names its source; the details are taken from the source, until it has no more. Events
/// of one source that are not yet taken are reported once. If the source was emptied in another way
/// in the meantime (for example by [`Qp::wait_event`]), no detail is left there. Opening the
/// channel late loses nothing: earlier events are reported as well.
///
/// The file descriptor ([`AsFd`]) is readable while events are pending. It is for `poll` and the
/// like only: [`EventChannel::next_event`] takes the events. In mode [`DriveMode::Helper`], the
/// application counts as waiting from the time it requests the descriptor. In mode
/// [`DriveMode::Inline`] the shard makes no progress while the application sleeps on it.
///
/// [`Qp::wait_event`]: crate::Qp::wait_event
/// [`DriveMode::Helper`]: crate::DriveMode::Helper
/// [`DriveMode::Inline`]: crate::DriveMode::Inline
#[derive(Clone)]
pub struct EventChannel {
    context: Arc<ContextInner>,
    fd: Arc<NotifyFd>,
}

impl EventChannel {
    pub(crate) fn open(context: &Arc<ContextInner>) -> std::io::Result<Self> {
        let fd = context.events.fd()?;
        Ok(Self { context: Arc::clone(context), fd })
    }

    /// Removes and returns the oldest event. Does not wait and does not poll the shard.
    #[must_use]
    pub fn next_event(&self) -> Option<AsyncEvent> {
        self.context.events.lock().pop()
    }

    /// Waits for an event, for `timeout` at most, and removes it. Sleeps, unless only the
    /// application polls the shard ([`DriveMode::Inline`]): then it polls while it waits. `None`
    /// immediately if the context is closed or has failed.
    ///
    /// [`DriveMode::Inline`]: crate::DriveMode::Inline
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<AsyncEvent> {
        if !self.context.can_sleep() || dpdk_sys::is_child() {
            return self.context.wait(timeout, || self.next_event());
        }
        if let Some(event) = self.next_event() {
            return Some(event);
        }
        if timeout.is_zero() {
            return None;
        }
        // The thread that polls instead of this one polls often for a while.
        let _awaiting = self.context.shard.add_waiter();
        self.context.events.wait(timeout)
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.context.shard.helper_wakeup().on_fd_exported();
        self.fd.as_fd()
    }
}

/// Queue of the sources of a context that have events.
pub(crate) struct AsyncEventQueue {
    state: Mutex<QueueState>,
    wake: Condvar,
}

#[derive(Default)]
struct QueueState {
    /// By ticket, and so in the order of their events.
    pending: BTreeMap<u64, (AsyncEvent, Option<Arc<EventSource>>)>,
    last_ticket: u64,
    fd: Option<Arc<NotifyFd>>,
    closed: bool,
}

impl QueueState {
    /// Queues a source, unless it is queued or removed.
    fn push_source(&mut self, event: AsyncEvent, source: &Arc<EventSource>) -> bool {
        if source.ticket.load(Ordering::Relaxed) != NOT_QUEUED {
            return false;
        }
        let ticket = self.push(event, Some(Arc::clone(source)));
        source.ticket.store(ticket, Ordering::Relaxed);
        true
    }

    /// Queues an event without a source, unless it is queued.
    fn push_error(&mut self, event: AsyncEvent) -> bool {
        let is_new = self.pending.values().all(|(waiting, _)| *waiting != event);
        if is_new {
            self.push(event, None);
        }
        is_new
    }

    fn push(&mut self, event: AsyncEvent, source: Option<Arc<EventSource>>) -> u64 {
        if self.pending.is_empty()
            && let Some(fd) = &self.fd
        {
            fd.set();
        }
        self.last_ticket += 1;
        self.pending.insert(self.last_ticket, (event, source));
        self.last_ticket
    }

    fn pop(&mut self) -> Option<AsyncEvent> {
        let (_, (event, source)) = self.pending.pop_first()?;
        // Before the application reads the source: a later event is reported again.
        if let Some(source) = source {
            source.ticket.store(NOT_QUEUED, Ordering::Relaxed);
        }
        self.clear_fd_if_empty();
        Some(event)
    }

    fn clear_fd_if_empty(&self) {
        if self.pending.is_empty()
            && let Some(fd) = &self.fd
        {
            fd.clear();
        }
    }
}

impl AsyncEventQueue {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), wake: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the descriptor, created at the first call.
    fn fd(&self) -> std::io::Result<Arc<NotifyFd>> {
        let mut ready = self.lock();
        if let Some(fd) = &ready.fd {
            return Ok(Arc::clone(fd));
        }
        let fd = Arc::new(NotifyFd::new()?);
        if !ready.pending.is_empty() {
            fd.set();
        }
        ready.fd = Some(Arc::clone(&fd));
        Ok(fd)
    }

    fn wait(&self, timeout: Duration) -> Option<AsyncEvent> {
        let end = Instant::now().checked_add(timeout);
        let mut ready = self.lock();
        loop {
            if let Some(event) = ready.pop() {
                return Some(event);
            }
            if ready.closed {
                return None;
            }
            ready = match time_left(end) {
                None => self.wake.wait(ready).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return None,
                Some(left) => {
                    self.wake.wait_timeout(ready, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// No further event occurs: waiting threads return.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_all();
    }

    /// Removes a source that is destroyed, with its pending event.
    pub(crate) fn remove(&self, source: &EventSource) {
        if dpdk_sys::is_child() {
            // No event occurs in the child, and the lock may have been held at the fork.
            return;
        }
        let mut ready = self.lock();
        let ticket = source.ticket.swap(REMOVED, Ordering::Relaxed);
        if ready.pending.remove(&ticket).is_some() {
            ready.clear_fd_if_empty();
        }
    }
}

/// Time left until `end`; `None`: there is no end.
fn time_left(end: Option<Instant>) -> Option<Duration> {
    end.map(|end| end.saturating_duration_since(Instant::now()))
}

#[cfg(test)]
mod tests;
