//! Event channels of a context: all events but completions, with a file descriptor each.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use crate::context::{Context, ContextInner};
use crate::events::{AsyncEvent, ChannelId, NotifyFd};
use crate::fork::{ForkArc, check_process, is_child};

/// Event channel: reports the events of a context that are not completions. Each context has one
/// ([`Context::event_channel`]); clones refer to it.
///
/// An application may create more ([`Context::create_event_channel`]), for example one for each of
/// its threads or libraries. A queue pair names its channel at its creation
/// ([`QpOptions::event_channel`]) or later ([`Qp::set_event_channel`]), a listener after its own
/// ([`Listener::set_event_channel`]). Connection requests come to the channel of the listener, and
/// the events of an accepted connection to that of its queue pair. Everything else comes to the
/// context's own: events of sources that name no channel, of completion queues and shared receive
/// queues, of the link and of the context. Once the last clone of a created channel is dropped, the
/// sources that name it report to the context's own again, with the events that nobody has taken
/// from the channel. An event that was taken is not reported again: who takes one takes the details
/// from its source as well. Calls that wait for one source, such as [`Qp::wait_event`], need no
/// channel.
///
/// [`QpOptions::event_channel`]: crate::QpOptions::event_channel
/// [`Qp::set_event_channel`]: crate::Qp::set_event_channel
/// [`Listener::set_event_channel`]: crate::Listener::set_event_channel
///
/// An event names its source; the details are taken from the source, until it has no more. Events
/// of one source that are not yet taken are reported once. If the source was emptied in another way
/// in the meantime (for example by [`Qp::wait_event`]), no detail is left there. Opening the
/// channel late loses nothing: earlier events are reported as well, but for those of queue pairs
/// that have none left.
///
/// The file descriptor ([`AsFd`]) is readable while events are pending, and at its end (`POLLHUP`)
/// for ever once the context is closed or has failed. It is for `poll` and the like only, blocking
/// or not as the application sets it: [`EventChannel::next_event`] takes the events. In mode
/// [`DriveMode::Helper`], the application counts as waiting from the time it requests the
/// descriptor. In mode [`DriveMode::Inline`] the shard makes no progress while the application
/// sleeps on it.
///
/// [`Qp::wait_event`]: crate::Qp::wait_event
/// [`DriveMode::Helper`]: crate::DriveMode::Helper
/// [`DriveMode::Inline`]: crate::DriveMode::Inline
#[doc(alias = "rdma_event_channel")]
#[doc(alias = "rdma_destroy_event_channel")]
#[derive(Clone)]
pub struct EventChannel {
    context: ForkArc<ContextInner>,
    fd: Arc<NotifyFd>,
    /// `None`: the context's own.
    created: Option<Arc<CreatedChannel>>,
}

/// Channel that ends with its last handle.
struct CreatedChannel {
    context: ForkArc<ContextInner>,
    id: ChannelId,
}

impl Drop for CreatedChannel {
    fn drop(&mut self) {
        if !is_child() {
            self.context.events.close_channel(self.id);
        }
    }
}

impl Context {
    /// Returns the context's own channel, for all events but completions: connection events,
    /// connection requests, limit events of shared receive queues, changes of the link and
    /// asynchronous errors.
    ///
    /// # Errors
    /// If the operating system has no file descriptor left, and in a child made by `fork`.
    pub fn event_channel(&self) -> std::io::Result<EventChannel> {
        check_process().map_err(std::io::Error::other)?;
        let context = self.inner().clone();
        let fd = context.events.fd(ChannelId::DEFAULT)?;
        Ok(EventChannel { context, fd, created: None })
    }

    /// Creates a channel for the events of queue pairs and listeners that name it.
    ///
    /// # Errors
    /// As [`Context::event_channel`].
    #[doc(alias = "rdma_create_event_channel")]
    pub fn create_event_channel(&self) -> std::io::Result<EventChannel> {
        check_process().map_err(std::io::Error::other)?;
        let context = self.inner().clone();
        let id = context.events.open_channel();
        let created = CreatedChannel { context: context.clone(), id };
        let fd = context.events.fd(id)?;
        Ok(EventChannel { context, fd, created: Some(Arc::new(created)) })
    }
}

impl EventChannel {
    pub(crate) fn belongs_to(&self, context: &ForkArc<ContextInner>) -> bool {
        self.context.ptr_eq(context)
    }

    /// Number of the channel in its context.
    pub(crate) fn id(&self) -> ChannelId {
        self.created.as_ref().map_or(ChannelId::DEFAULT, |created| created.id)
    }

    /// True if no further event occurs.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_ended(&self) -> bool {
        is_child() || self.context.events.lock().is_closed()
    }

    /// Removes the oldest event, and keeps it for [`EventChannel::next_kept`] unless it names a
    /// queue pair or a listener. False if there is none.
    #[cfg(feature = "tokio")]
    pub(crate) fn keep_next(&self) -> bool {
        !is_child() && self.context.events.lock().keep_next()
    }

    /// Removes and returns the oldest event that was kept.
    #[cfg(feature = "tokio")]
    pub(crate) fn next_kept(&self) -> Option<AsyncEvent> {
        if is_child() { None } else { self.context.events.lock().next_kept() }
    }

    /// Removes and returns the oldest event. Does not wait and does not poll the shard.
    #[doc(alias = "ibv_get_async_event")]
    #[doc(alias = "ibv_ack_async_event")]
    #[doc(alias = "rdma_get_cm_event")]
    #[doc(alias = "rdma_ack_cm_event")]
    #[must_use]
    pub fn next_event(&self) -> Option<AsyncEvent> {
        // In a child of `fork` another thread may have held the lock.
        if is_child() { None } else { self.context.events.lock().pop(self.id()) }
    }

    /// Waits for an event, for `timeout` at most, and removes it. Sleeps, unless only the
    /// application polls the shard ([`DriveMode::Inline`]): then it polls while it waits. `None`
    /// immediately if the context is closed or has failed.
    ///
    /// [`DriveMode::Inline`]: crate::DriveMode::Inline
    #[doc(alias = "ibv_get_async_event")]
    #[doc(alias = "ibv_ack_async_event")]
    #[doc(alias = "rdma_get_cm_event")]
    #[doc(alias = "rdma_ack_cm_event")]
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<AsyncEvent> {
        if !self.context.can_sleep() || is_child() {
            return self.context.wait(timeout, || self.next_event());
        }
        if let Some(event) = self.next_event() {
            return Some(event);
        }
        if timeout.is_zero() {
            return None;
        }
        // The thread that polls instead of this one polls often for a while.
        let _awaiting = self.context.shards.add_waiters();
        self.context.events.wait(self.id(), timeout)
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        for shard in self.context.shards.iter() {
            shard.helper_wakeup().on_fd_exported();
        }
        self.fd.as_fd()
    }
}

/// As [`AsFd`].
impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
