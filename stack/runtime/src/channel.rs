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

use crate::arm::{ArmWord, Covers};
use crate::config::DriveMode;
use crate::context::Inner;
use crate::handover::Handover;
use crate::notify_fd::NotifyFd;
use crate::shard::Watcher;

/// Takes the events of completion queues made with [`Context::create_cq_on`]. Clones name the same
/// one.
///
/// The order that loses nothing is: poll a queue until it is empty, arm it ([`Cq::arm`]), poll it
/// once more, and only then wait. One wait, one event; several queues may use one channel, and each
/// event names its queue.
///
/// The file descriptor ([`AsFd`]) is readable while events wait. It is for `poll` and its kin
/// alone: events are taken by [`Channel::next_event`]. Where the application alone drives
/// ([`DriveMode::Inline`]) nothing happens while it sleeps on the descriptor, which never becomes
/// readable by itself: [`Channel::wait`] drives meanwhile.
///
/// [`Context::create_cq_on`]: crate::Context::create_cq_on
/// [`Cq::arm`]: crate::Cq::arm
#[derive(Clone)]
pub struct Channel {
    bell: Arc<Bell>,
    context: Arc<Inner>,
}

/// What the shard rings.
pub(crate) struct Bell {
    rang: Mutex<Rang>,
    wake: Condvar,
    /// Readable while events wait, once somebody asked for it.
    fd: NotifyFd,
}

/// The events that wait.
#[derive(Default)]
struct Rang {
    /// Queues with something to tell, each once, oldest first.
    cqs: VecDeque<CqId>,
    /// Somebody asked for the descriptor: threads may sleep on it. Two system calls for each event
    /// are saved otherwise.
    watched: bool,
}

impl Bell {
    fn rang(&self) -> MutexGuard<'_, Rang> {
        self.rang.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A queue has something to tell. One lock and at most one byte written, only for queues that
    /// were armed.
    #[cold]
    pub(crate) fn ring(&self, cq: CqId) {
        let mut rang = self.rang();
        if rang.cqs.contains(&cq) {
            return;
        }
        rang.cqs.push_back(cq);
        if rang.cqs.len() == 1 && rang.watched {
            self.fd.set();
        }
        // The thread that is woken takes the lock at once.
        drop(rang);
        self.wake.notify_one();
    }

    fn take(&self, rang: &mut Rang) -> Option<CqId> {
        let cq = rang.cqs.pop_front()?;
        self.took(rang);
        Some(cq)
    }

    /// An event was taken out.
    fn took(&self, rang: &Rang) {
        if rang.cqs.is_empty() && rang.watched {
            self.fd.clear();
        }
    }

    /// From now on the descriptor shows whether events wait.
    fn watch(&self) {
        let mut rang = self.rang();
        if !rang.watched {
            rang.watched = true;
            if !rang.cqs.is_empty() {
                self.fd.set();
            }
        }
    }

    /// Wakes whoever sleeps, event or not.
    fn rouse(&self) {
        // Whoever has looked already sleeps by the time the lock is had.
        drop(self.rang());
        self.wake.notify_all();
    }

    /// The queue goes: so does its event.
    fn forget(&self, cq: CqId) {
        let mut rang = self.rang();
        if let Some(at) = rang.cqs.iter().position(|&rang| rang == cq) {
            rang.cqs.remove(at);
            self.took(&rang);
        }
    }
}

/// Nobody sleeps for ever on what has ended.
impl Watcher for Bell {
    fn shard_ended(&self) {
        self.rouse();
    }
}

/// How a completion queue notifies its channel. Shared by the queue and the shards that feed it.
pub(crate) struct CqNotify {
    word: ArmWord,
    /// Whoever arms may sleep then: the helper is to look often for a while.
    handover: Arc<Handover>,
    bell: Arc<Bell>,
    /// Set before anything is published.
    id: OnceLock<CqId>,
}

impl CqNotify {
    pub(crate) fn on(channel: &Channel) -> Self {
        Self {
            word: ArmWord::default(),
            handover: Arc::clone(channel.context.shard.handover()),
            bell: Arc::clone(&channel.bell),
            id: OnceLock::new(),
        }
    }

    /// Names the queue.
    pub(crate) fn name(&self, id: CqId) {
        // Named once, when the shard takes it on.
        let _ = self.id.set(id);
    }

    /// See [`ArmWord::arm`].
    pub(crate) fn arm(&self, notify: Notify) {
        if self.word.arm(notify) {
            self.handover.expect();
        }
    }

    /// A shard has published something: notifies if it was asked to. See [`ArmWord::claim`].
    #[inline]
    pub(crate) fn published(&self, covers: Covers) {
        if self.word.claim(covers) {
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        self.handover.forget();
        if let Some(&id) = self.id.get() {
            self.bell.ring(id);
        }
    }

    /// The queue goes, and no shard feeds it any more.
    pub(crate) fn forget(&self) {
        if self.word.claim(Covers::ANY) {
            self.handover.forget();
        }
        if let Some(&id) = self.id.get() {
            self.bell.forget(id);
        }
    }
}

/// The last that is published: whoever has armed the queue finds what was flushed.
impl Watcher for CqNotify {
    fn shard_ended(&self) {
        self.published(Covers::ANY);
    }
}

impl Channel {
    pub(crate) fn new(context: &Arc<Inner>) -> std::io::Result<Self> {
        let (rang, wake, fd) = (Mutex::default(), Condvar::new(), NotifyFd::new()?);
        let bell = Arc::new(Bell { rang, wake, fd });
        let watcher: Weak<Bell> = Arc::downgrade(&bell);
        context.shard.watch(watcher);
        Ok(Self { bell, context: Arc::clone(context) })
    }

    pub(crate) fn belongs_to(&self, context: &Arc<Inner>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// The queue of the oldest event not yet taken. Does not wait and does not drive.
    #[must_use]
    pub fn next_event(&self) -> Option<CqId> {
        self.bell.take(&mut self.bell.rang())
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
        let _awaiting = self.context.shard.await_news();
        let mut rang = self.bell.rang();
        loop {
            let left =
                end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if let Some(cq) = self.bell.take(&mut rang) {
                return Some(cq);
            }
            if left.is_zero() || self.context.shard.has_ended() {
                return None;
            }
            let woken = self.bell.wake.wait_timeout(rang, left);
            rang = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Readable while events wait. In mode [`DriveMode::Inline`] only the application's own calls make
/// events: without them the descriptor never becomes readable.
impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.watch();
        self.bell.fd.as_fd()
    }
}
