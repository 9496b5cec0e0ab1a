//! Completion channels: completion events for applications that sleep.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ferrowarp_proto::verbs::wc::CqId;

use crate::context::{Context, ContextInner};
use crate::fork::{ForkArc, check_process, is_child};
use crate::shard::{CompEventQueue, CqNotify, Shard};

/// Completion channel: receives the completion events of queues created with
/// [`Context::create_cq_on`]. Clones refer to the same channel.
///
/// To lose no event: poll a queue until it is empty, arm it ([`Cq::req_notify`]), poll it once
/// more, and only then wait. One wait returns one event; several queues may use one channel, and
/// each event names its queue.
///
/// The file descriptor ([`AsFd`]) is readable while events are pending, and at its end (`POLLHUP`)
/// for ever once the context is closed or has failed. It is for `poll` and the like only, blocking
/// or not as the application sets it: [`CompChannel::next_event`] takes the events. Where only the
/// application polls ([`DriveMode::Inline`]) the shard makes no progress while it sleeps on the
/// descriptor, which then never becomes readable: [`CompChannel::wait`] polls the shard while it
/// waits.
///
/// [`Context::create_cq_on`]: crate::Context::create_cq_on
/// [`DriveMode::Inline`]: crate::DriveMode::Inline
/// [`Cq::req_notify`]: crate::Cq::req_notify
#[doc(alias = "ibv_comp_channel")]
#[doc(alias = "ibv_destroy_comp_channel")]
#[derive(Clone)]
pub struct CompChannel {
    events: ForkArc<CompEventQueue>,
    context: ForkArc<ContextInner>,
}

impl Context {
    /// Creates a channel for the completion events of completion queues.
    ///
    /// # Errors
    /// If the operating system has no file descriptor left, and in a child made by `fork`.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_comp_channel(&self) -> std::io::Result<CompChannel> {
        check_process().map_err(std::io::Error::other)?;
        let context = self.inner().clone();
        let events = ForkArc::new(CompEventQueue::new()?);
        let observer: Weak<CompEventQueue> = Arc::downgrade(events.as_arc());
        for shard in context.shards.iter() {
            shard.observe_end(observer.clone());
        }
        Ok(CompChannel { events, context })
    }
}

impl CompChannel {
    /// Returns the notification state of a new queue on this channel, fed by these shards.
    pub(crate) fn notify<'a>(
        &self,
        id: CqId,
        shards: impl Iterator<Item = &'a Arc<Shard>>,
    ) -> CqNotify {
        let helpers = shards.map(|shard| Arc::clone(shard.helper_wakeup())).collect();
        CqNotify::new(id, Arc::clone(self.events.as_arc()), helpers)
    }

    pub(crate) fn belongs_to(&self, context: &ForkArc<ContextInner>) -> bool {
        self.context.ptr_eq(context)
    }

    /// Removes the oldest event and returns its queue. Does not wait and does not poll the shard.
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    #[must_use]
    pub fn next_event(&self) -> Option<CqId> {
        // In a child of `fork` another thread may have held the lock.
        if is_child() { None } else { self.events.pop() }
    }

    /// Waits for an event, for `timeout` at most ([`Duration::MAX`]: forever), and removes it.
    /// Sleeps, unless only the application polls the shard ([`DriveMode::Inline`]): then it polls
    /// while it waits. Does not wait once the context is closed or has failed
    /// ([`Context::has_failed`](crate::Context::has_failed)).
    ///
    /// [`DriveMode::Inline`]: crate::DriveMode::Inline
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<CqId> {
        if !self.context.poller.has_thread() || is_child() {
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
        let _awaiting = self.context.shards.add_waiters();
        self.events.wait(end, || self.context.shards.have_ended())
    }
}

/// Readable while events are pending. In mode [`DriveMode::Inline`] only the application's own
/// calls produce events: without them the descriptor never becomes readable.
///
/// [`DriveMode::Inline`]: crate::DriveMode::Inline
impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.export_fd()
    }
}

/// As [`AsFd`].
impl AsRawFd for CompChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
