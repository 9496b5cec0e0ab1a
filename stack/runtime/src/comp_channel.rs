//! Channels on which completion queues tell that there is something: for applications that sleep.
//!
//! A queue is armed by its arm word ([`crate::arm`]), past the gate of the shard. A queue without a
//! channel pays one test per completion, one with a channel a fence per pass that completes
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

/// Takes the events of completion queues made with [`Context::create_cq_on`]. Clones name the same
/// one.
///
/// The order that loses nothing is: poll a queue until it is empty, arm it ([`Cq::arm`]), poll it
/// once more, and only then wait. One wait, one event; several queues may use one channel, and each
/// event names its queue.
///
/// The file descriptor ([`AsFd`]) is readable while events wait. It is for `poll` and its kin
/// alone: events are taken by [`CompChannel::next_event`]. Where the application alone drives
/// ([`DriveMode::Inline`]) nothing happens while it sleeps on the descriptor, which never becomes
/// readable by itself: [`CompChannel::wait`] drives meanwhile.
///
/// [`Context::create_cq_on`]: crate::Context::create_cq_on
/// [`Cq::arm`]: crate::Cq::req_notify
#[derive(Clone)]
pub struct CompChannel {
    events: Arc<CompEventQueue>,
    context: Arc<ContextInner>,
}

/// What the shard rings.
pub(crate) struct CompEventQueue {
    pending: Mutex<PendingEvents>,
    wake: Condvar,
    /// Readable while events wait, once somebody asked for it.
    fd: NotifyFd,
}

/// The events that wait.
#[derive(Default)]
struct PendingEvents {
    /// Queues with something to tell, each once, oldest first.
    cqs: VecDeque<CqId>,
    /// Somebody asked for the descriptor: threads may sleep on it. Two system calls for each event
    /// are saved otherwise.
    fd_exported: bool,
}

impl CompEventQueue {
    fn lock(&self) -> MutexGuard<'_, PendingEvents> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A queue has something to tell. One lock and at most one byte written, only for queues that
    /// were armed.
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
        // The thread that is woken takes the lock at once.
        drop(rang);
        self.wake.notify_one();
    }

    fn pop(&self, rang: &mut PendingEvents) -> Option<CqId> {
        let cq = rang.cqs.pop_front()?;
        self.clear_fd_if_empty(rang);
        Some(cq)
    }

    /// An event was taken out.
    fn clear_fd_if_empty(&self, rang: &PendingEvents) {
        if rang.cqs.is_empty() && rang.fd_exported {
            self.fd.clear();
        }
    }

    /// From now on the descriptor shows whether events wait.
    fn export_fd(&self) {
        let mut rang = self.lock();
        if !rang.fd_exported {
            rang.fd_exported = true;
            if !rang.cqs.is_empty() {
                self.fd.set();
            }
        }
    }

    /// Wakes whoever sleeps, event or not.
    fn wake_all(&self) {
        // Whoever has looked already sleeps by the time the lock is had.
        drop(self.lock());
        self.wake.notify_all();
    }

    /// The queue goes: so does its event.
    fn remove(&self, cq: CqId) {
        let mut rang = self.lock();
        if let Some(at) = rang.cqs.iter().position(|&rang| rang == cq) {
            rang.cqs.remove(at);
            self.clear_fd_if_empty(&rang);
        }
    }
}

/// Nobody sleeps for ever on what has ended.
impl EndObserver for CompEventQueue {
    fn on_shard_end(&self) {
        self.wake_all();
    }
}

/// How a completion queue notifies its channel. Shared by the queue and the shards that feed it.
pub(crate) struct CqNotify {
    word: ArmWord,
    /// Whoever arms may sleep then: the helper is to look often for a while.
    helper_wakeup: Arc<HelperWakeup>,
    events: Arc<CompEventQueue>,
    /// Set before anything is published.
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

    /// Names the queue.
    pub(crate) fn set_id(&self, id: CqId) {
        // Named once, when the shard takes it on.
        let _ = self.id.set(id);
    }

    /// See [`ArmWord::arm`].
    pub(crate) fn req_notify(&self, notify: Notify) {
        if self.word.arm(notify) {
            self.helper_wakeup.add_waiter();
        }
    }

    /// A shard has published something: notifies if it was asked to. See [`ArmWord::claim`].
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

    /// The queue goes, and no shard feeds it any more.
    pub(crate) fn on_cq_destroyed(&self) {
        if self.word.claim(CompEvent::ANY) {
            self.helper_wakeup.remove_waiter();
        }
        if let Some(&id) = self.id.get() {
            self.events.remove(id);
        }
    }
}

/// The last that is published: whoever has armed the queue finds what was flushed.
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

    /// The queue of the oldest event not yet taken. Does not wait and does not drive.
    #[must_use]
    pub fn next_event(&self) -> Option<CqId> {
        self.events.pop(&mut self.events.lock())
    }

    /// Waits for an event, for `timeout` at most ([`Duration::MAX`]: for ever), and takes it.
    /// Sleeps, unless the shard is driven by the application alone ([`DriveMode::Inline`]): then
    /// it drives meanwhile. Does not wait once the context is closed or has failed
    /// ([`Context::has_failed`](crate::Context::has_failed)).
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<CqId> {
        if self.context.drive_mode() == DriveMode::Inline {
            return self.context.wait(timeout, || self.next_event());
        }
        // `None`: no clock shows that time.
        let end = Instant::now().checked_add(timeout);
        if let Some(cq) = self.next_event() {
            return Some(cq);
        }
        if timeout.is_zero() {
            return None;
        }
        // Whoever drives in this thread's place looks often for a while.
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

/// Readable while events wait. In mode [`DriveMode::Inline`] only the application's own calls make
/// events: without them the descriptor never becomes readable.
impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.export_fd();
        self.events.fd.as_fd()
    }
}
