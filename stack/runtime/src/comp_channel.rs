//! Completion channels: completion events for applications that sleep.
//!
//! A queue is armed by its arm word ([`crate::arm`]), without the shard's lock. A queue without a
//! channel pays one test per completion, one with a channel a fence per poll that completes
//! something.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use ferrowarp_proto::verbs::notify::Notify;
use ferrowarp_proto::verbs::wc::CqId;

use crate::arm::{ArmWord, CompEvent};
use crate::config::DriveMode;
use crate::context::ContextInner;
use crate::helper_wakeup::HelperWakeup;
use crate::notify_fd::NotifyFd;
use crate::shard::EndObserver;

/// Completion channel: receives the completion events of queues created with
/// [`Context::create_cq_on`]. Clones refer to the same channel.
///
/// To lose no event: poll a queue until it is empty, arm it ([`Cq::req_notify`]), poll it once
/// more, and only then wait. One wait returns one event; several queues may use one channel, and
/// each event names its queue.
///
/// The file descriptor ([`AsFd`]) is readable while events are pending. It is for `poll` and the
/// like only: [`CompChannel::next_event`] takes the events. Where only the application polls
/// ([`DriveMode::Inline`]) the shard makes no progress while it sleeps on the descriptor, which
/// then never becomes readable: [`CompChannel::wait`] polls the shard while it waits.
///
/// [`Context::create_cq_on`]: crate::Context::create_cq_on
/// [`Cq::req_notify`]: crate::Cq::req_notify
#[derive(Clone)]
pub struct CompChannel {
    events: Arc<CompEventQueue>,
    context: Arc<ContextInner>,
}

/// Queue of the completion events of a channel, filled by the shard.
pub(crate) struct CompEventQueue {
    pending: Mutex<PendingEvents>,
    wake: Condvar,
    /// Readable while events are pending, once the descriptor was requested.
    fd: NotifyFd,
}

/// Pending events.
#[derive(Default)]
struct PendingEvents {
    /// Queues with an event, each once, oldest first.
    cqs: VecDeque<CqId>,
    /// The application has the descriptor, and may sleep on it. Otherwise two system calls per
    /// event are saved.
    fd_exported: bool,
}

impl CompEventQueue {
    fn lock(&self) -> MutexGuard<'_, PendingEvents> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an event of a completion queue. One lock and at most one byte written, only for
    /// queues that were armed.
    #[cold]
    pub(crate) fn push(&self, cq: CqId) {
        let mut rang = self.lock();
        if rang.cqs.contains(&cq) {
            return;
        }
        rang.cqs.push_back(cq);
        if rang.cqs.len() == 1 && rang.fd_exported {
            self.fd.set();
        }
        // The woken thread takes the lock immediately.
        drop(rang);
        self.wake.notify_one();
    }

    fn pop(&self, rang: &mut PendingEvents) -> Option<CqId> {
        let cq = rang.cqs.pop_front()?;
        self.clear_fd_if_empty(rang);
        Some(cq)
    }

    /// Clears the descriptor if the event just removed was the last.
    fn clear_fd_if_empty(&self, rang: &PendingEvents) {
        if rang.cqs.is_empty() && rang.fd_exported {
            self.fd.clear();
        }
    }

    /// Enables the descriptor: from now on it is readable while events are pending.
    fn export_fd(&self) {
        let mut rang = self.lock();
        if !rang.fd_exported {
            rang.fd_exported = true;
            if !rang.cqs.is_empty() {
                self.fd.set();
            }
        }
    }

    /// Wakes all waiting threads, event or not.
    fn wake_all(&self) {
        // A thread that has checked the queue under the lock is waiting by the time it is free.
        drop(self.lock());
        self.wake.notify_all();
    }

    /// Removes the event of a completion queue that is destroyed.
    fn remove(&self, cq: CqId) {
        let mut rang = self.lock();
        if let Some(at) = rang.cqs.iter().position(|&rang| rang == cq) {
            rang.cqs.remove(at);
            self.clear_fd_if_empty(&rang);
        }
    }
}

/// Wakes waiting threads, so that none waits forever on a shard that has ended.
impl EndObserver for CompEventQueue {
    fn on_shard_end(&self) {
        self.wake_all();
    }
}

/// Notification state of a completion queue with a channel, shared by the queue and its producers.
pub(crate) struct CqNotify {
    word: ArmWord,
    /// An application that arms the queue may sleep next: the helper polls often for a while.
    helper_wakeup: Arc<HelperWakeup>,
    events: Arc<CompEventQueue>,
    /// Set before any completion is published.
    id: OnceLock<CqId>,
}

impl CqNotify {
    pub(crate) fn new(channel: &CompChannel) -> Self {
        Self {
            word: ArmWord::default(),
            helper_wakeup: Arc::clone(channel.context.shard.helper_wakeup()),
            events: Arc::clone(&channel.events),
            id: OnceLock::new(),
        }
    }

    /// Sets the ID of the queue.
    pub(crate) fn set_id(&self, id: CqId) {
        // Set once, when the shard adds the queue.
        let _ = self.id.set(id);
    }

    /// See [`ArmWord::arm`].
    pub(crate) fn req_notify(&self, notify: Notify) {
        if self.word.arm(notify) {
            self.helper_wakeup.add_waiter();
        }
    }

    /// A shard has published completions: raises an event if one was requested. See
    /// [`ArmWord::claim`].
    #[inline]
    pub(crate) fn on_published(&self, covers: CompEvent) {
        if self.word.claim(covers) {
            self.raise_event();
        }
    }

    #[cold]
    fn raise_event(&self) {
        self.helper_wakeup.remove_waiter();
        if let Some(&id) = self.id.get() {
            self.events.push(id);
        }
    }

    /// The queue is destroyed, and no shard produces to it any more.
    pub(crate) fn on_cq_destroyed(&self) {
        if self.word.claim(CompEvent::ANY) {
            self.helper_wakeup.remove_waiter();
        }
        if let Some(&id) = self.id.get() {
            self.events.remove(id);
        }
    }
}

/// Last event: an application that has armed the queue finds the flushed completions.
impl EndObserver for CqNotify {
    fn on_shard_end(&self) {
        self.on_published(CompEvent::ANY);
    }
}

impl CompChannel {
    pub(crate) fn new(context: &Arc<ContextInner>) -> std::io::Result<Self> {
        let (rang, wake, fd) = (Mutex::default(), Condvar::new(), NotifyFd::new()?);
        let bell = Arc::new(CompEventQueue { pending: rang, wake, fd });
        let watcher: Weak<CompEventQueue> = Arc::downgrade(&bell);
        context.shard.observe_end(watcher);
        Ok(Self { events: bell, context: Arc::clone(context) })
    }

    pub(crate) fn belongs_to(&self, context: &Arc<ContextInner>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// Removes the oldest event and returns its queue. Does not wait and does not poll the shard.
    #[must_use]
    pub fn next_event(&self) -> Option<CqId> {
        self.events.pop(&mut self.events.lock())
    }

    /// Waits for an event, for `timeout` at most ([`Duration::MAX`]: forever), and removes it.
    /// Sleeps, unless only the application polls the shard ([`DriveMode::Inline`]): then it polls
    /// while it waits. Does not wait once the context is closed or has failed
    /// ([`Context::has_failed`](crate::Context::has_failed)).
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<CqId> {
        if self.context.drive_mode() == DriveMode::Inline {
            return self.context.wait(timeout, || self.next_event());
        }
        // `None`: the deadline is beyond the range of the clock.
        let end = Instant::now().checked_add(timeout);
        if let Some(cq) = self.next_event() {
            return Some(cq);
        }
        if timeout.is_zero() {
            return None;
        }
        // The thread that polls instead of this one polls often for a while.
        let _awaiting = self.context.shard.add_waiter();
        let mut rang = self.events.lock();
        loop {
            let left =
                end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if let Some(cq) = self.events.pop(&mut rang) {
                return Some(cq);
            }
            if left.is_zero() || self.context.shard.has_ended() {
                return None;
            }
            let woken = self.events.wake.wait_timeout(rang, left);
            rang = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Readable while events are pending. In mode [`DriveMode::Inline`] only the application's own
/// calls produce events: without them the descriptor never becomes readable.
impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.export_fd();
        self.events.fd.as_fd()
    }
}
