//! Channels on which completion queues tell that there is something: for applications that sleep.
//!
//! Arming goes through the gate of the shard, as all control does: no pass is under way when a
//! queue is armed, so a completion was either shown before, and a poll finds it, or comes after
//! and is told of. A queue that is never armed pays one test per completion.

use std::collections::VecDeque;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferrowarp_proto::verbs::wc::CqId;

use crate::config::DriveMode;
use crate::context::Inner;

/// Takes the events of completion queues made with [`Context::create_cq_on`]. Clones name the same
/// one.
///
/// The order that loses nothing is: poll a queue until it is empty, arm it ([`Cq::arm`]), poll it
/// once more, and only then wait. One wait, one event; several queues may use one channel, and each
/// event names its queue.
///
/// The file descriptor ([`AsFd`]) is readable while events wait. It is for `poll` and its kin
/// alone: events are taken by [`Channel::next_event`].
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
    /// Queues with something to tell, each once, oldest first.
    rang: Mutex<VecDeque<CqId>>,
    wake: Condvar,
    /// Holds one octet while `rang` is not empty.
    reader: PipeReader,
    writer: PipeWriter,
}

impl Bell {
    /// A queue has something to tell. One lock and at most one octet written, only for queues that
    /// were armed.
    #[cold]
    pub(crate) fn ring(&self, cq: CqId) {
        let mut rang = self.rang.lock().unwrap_or_else(PoisonError::into_inner);
        if rang.contains(&cq) {
            return;
        }
        if rang.is_empty() {
            // There is room for one octet, so this neither waits nor fails.
            let _ = (&self.writer).write_all(&[0]);
        }
        rang.push_back(cq);
        self.wake.notify_one();
    }

    fn take(&self, rang: &mut VecDeque<CqId>) -> Option<CqId> {
        let cq = rang.pop_front()?;
        if rang.is_empty() {
            // Written when the first came.
            let _ = (&self.reader).read_exact(&mut [0]);
        }
        Some(cq)
    }
}

impl Channel {
    pub(crate) fn new(context: &Arc<Inner>) -> std::io::Result<Self> {
        let (reader, writer) = std::io::pipe()?;
        let (rang, wake) = (Mutex::default(), Condvar::new());
        let bell = Arc::new(Bell { rang, wake, reader, writer });
        Ok(Self { bell, context: Arc::clone(context) })
    }

    pub(crate) const fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    pub(crate) fn belongs_to(&self, context: &Arc<Inner>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// The queue of the oldest event not yet taken. Does not wait and does not drive.
    #[must_use]
    pub fn next_event(&self) -> Option<CqId> {
        self.bell.take(&mut self.bell.rang.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for an event, for `timeout` at most, and takes it. Sleeps, unless the shard is driven
    /// by the application alone ([`DriveMode::Inline`]): then it drives meanwhile.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<CqId> {
        if self.context.drive_mode() == DriveMode::Inline {
            return self.context.wait(timeout, || self.next_event());
        }
        let end = Instant::now() + timeout;
        let mut rang = self.bell.rang.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if let Some(cq) = self.bell.take(&mut rang) {
                return Some(cq);
            }
            if left.is_zero() {
                return None;
            }
            let woken = self.bell.wake.wait_timeout(rang, left);
            rang = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.reader.as_fd()
    }
}
