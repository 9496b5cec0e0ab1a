//! Events of a context: what happened where, on one channel with one descriptor.
//!
//! A source (a queue pair, a listener, a shared receive queue, a completion queue) keeps its own
//! events; the channel only names the sources that have some. A source stands in it at most once,
//! so its memory is bounded by the sources that exist.
//!
//! The shard never waits here: it takes a lock only if that is free, and where it is not it tells
//! in its next pass ([`EventPublisher`]).

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

/// Something happened, and where. What it was is asked of the source itself.
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
    /// The context has failed ([`Context::has_failed`](crate::Context::has_failed)). No event
    /// follows.
    Failed,
}

/// Tells of the events of a context that are not completions. Clones name the same one: there is
/// one channel for each context.
///
/// An event names its source; what happened is taken from the source, until it has no more. Events
/// of one source that were not yet taken are told of once. If the source was emptied by other
/// means meanwhile ([`Qp::wait_event`], say), the event finds nothing there. Nothing is lost by
/// asking for the channel late: what happened before is told of as well.
///
/// The file descriptor ([`AsFd`]) is readable while events wait. It is for `poll` and its kin
/// alone: events are taken by [`EventChannel::next_event`]. In mode [`DriveMode::Helper`], having
/// asked for it counts as sleeping on it, from then on. In mode [`DriveMode::Inline`] nothing
/// happens while the application sleeps on it.
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

    /// The oldest event not yet taken. Does not wait and does not drive.
    #[must_use]
    pub fn next_event(&self) -> Option<AsyncEvent> {
        self.context.events.lock().pop()
    }

    /// Waits for an event, for `timeout` at most, and takes it. Sleeps, unless the shard is driven
    /// by the application alone ([`DriveMode::Inline`]): then it drives meanwhile. `None` at once
    /// if the context is closed or has failed.
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
        // Whoever drives in this thread's place looks often for a while.
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

/// The sources of a context that have something to tell.
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
    /// Lines a source up, unless it is in line or gone.
    fn push_source(&mut self, event: AsyncEvent, source: &Arc<EventSource>) -> bool {
        if source.ticket.load(Ordering::Relaxed) != NOT_QUEUED {
            return false;
        }
        let ticket = self.push(event, Some(Arc::clone(source)));
        source.ticket.store(ticket, Ordering::Relaxed);
        true
    }

    /// Lines an event up that has no source of its own, unless it is in line.
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
        // Before the application looks at the source: what happens from here on is told of again.
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

    /// The descriptor, made when it is first asked for.
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

    /// Nothing happens any more: whoever waits returns.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_all();
    }

    /// A source goes: it is told of no more.
    pub(crate) fn remove(&self, source: &EventSource) {
        if dpdk_sys::is_child() {
            // Nobody tells here, and the lock may have been taken at the fork.
            return;
        }
        let mut ready = self.lock();
        let ticket = source.ticket.swap(REMOVED, Ordering::Relaxed);
        if ready.pending.remove(&ticket).is_some() {
            ready.clear_fd_if_empty();
        }
    }
}

/// What is left until `end`; `None`: there is no end.
fn time_left(end: Option<Instant>) -> Option<Duration> {
    end.map(|end| end.saturating_duration_since(Instant::now()))
}

#[cfg(test)]
mod tests;
