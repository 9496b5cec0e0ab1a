//! Tasks of tokio that wait for completions, connection requests and connection events (feature
//! `tokio`).
//!
//! Each waits on the descriptor of a channel, in the reactor of the runtime: the shards wake no
//! task themselves, so that a poll never runs code of an executor. While tasks sleep somebody else
//! has to poll the shards: any [`DriveMode`](crate::DriveMode) but `Inline`.
//!
//! All futures can be dropped at any time, and nothing is lost.
//!
//! ```
//! # use std::time::Duration;
//! use ferrowarp::asynchronous::{AsyncCq, AsyncEvents};
//! use ferrowarp::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = |host: &str| -> Result<Config, Box<dyn std::error::Error>> {
//!     Ok(Config::new("ring".parse()?, host.parse()?, 24).drive(DriveMode::Helper))
//! };
//! let (left, right) = Context::ring_pair(config("198.18.0.1")?, config("198.18.0.2")?)?;
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
//! runtime.block_on(async {
//!     let (events_l, events_r) = (AsyncEvents::new(&left)?, AsyncEvents::new(&right)?);
//!     let (mut cq_l, mut cq_r) = (AsyncCq::new(&left, 64)?, AsyncCq::new(&right, 64)?);
//!     let qp_l = left.alloc_pd().create_qp(&QpOptions::new(cq_l.cq()))?;
//!     let qp_r = right.alloc_pd().create_qp(&QpOptions::new(cq_r.cq()))?;
//!     qp_r.post_recv(9, [])?;
//!
//!     let listener = right.listen(4791, 1)?;
//!     qp_l.connect("198.18.0.2:4791".parse()?, ConnParam::new())?;
//!     let request = events_r.accept(&listener).await.ok_or("the context has ended")?;
//!     request.accept(&qp_r, ConnParam::new())?;
//!     events_l.established(&qp_l).await?;
//!
//!     qp_l.post().send_inline(b"").wr_id(1).signaled().ring()?;
//!     let mut wcs = [Wc::default(); 16];
//!     assert_eq!(cq_l.wait(&mut wcs).await[0].wr_id, 1);
//!     assert_eq!(cq_r.wait(&mut wcs).await[0].wr_id, 9);
//!     Ok(())
//! })
//! # }
//! ```

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::task::Poll;

use ferrowarp_proto::verbs::cm::{ConnEvent, ConnInfo, ConnectError};
use ferrowarp_proto::verbs::wc::Notify;
use ferrowarp_proto::verbs::wc::Wc;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Notify as Woken;

use crate::context::Context;
use crate::error::CreateError;
use crate::events::AsyncEvent;
use crate::fork::ForkArc;
use crate::handle::comp_channel::CompChannel;
use crate::handle::cq::Cq;
use crate::handle::event_channel::EventChannel;
use crate::handle::listener::{ConnRequest, Listener};
use crate::handle::qp::Qp;

/// Error of creating an [`AsyncCq`] or [`AsyncEvents`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AsyncError {
    /// Nobody would poll the shards while tasks sleep.
    #[error("only the application polls this context: open it with DriveMode::Auto, or another")]
    Inline,
    /// The operating system has no descriptor left, or the runtime has no reactor.
    #[error("a channel cannot be watched: {0}")]
    Io(#[from] io::Error),
    /// Error of the completion queue.
    #[error(transparent)]
    Create(#[from] CreateError),
}

fn check_mode(context: &Context) -> Result<(), AsyncError> {
    if context.inner().poller.has_thread() { Ok(()) } else { Err(AsyncError::Inline) }
}

/// Descriptor of a channel in the reactor of the runtime. A child made by `fork` shares the
/// reactor's `epoll` instance with its parent, and must not remove the descriptor from it.
struct Watched(ForkArc<UnixStream>);

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (*self.0).fmt(f)
    }
}

/// Registers the descriptor of a channel with the reactor of the runtime.
fn watch(channel: &impl AsFd) -> io::Result<Watched> {
    let socket = channel.as_fd().try_clone_to_owned()?;
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket).map(|socket| Watched(ForkArc::new(socket)))
}

/// Calls `take`, which takes all events of a channel that was readable. Later ones make it readable
/// once more.
fn take_all(watched: &Watched, take: impl FnOnce()) {
    let _ = watched.0.try_io(Interest::READABLE, || {
        take();
        Err::<(), _>(io::ErrorKind::WouldBlock.into())
    });
}

/// Completion queue with a channel of its own, for one task.
#[derive(Debug)]
pub struct AsyncCq {
    cq: Cq,
    channel: CompChannel,
    watched: Watched,
}

impl AsyncCq {
    /// Creates a completion queue for at least `capacity` completions
    /// ([`Context::create_cq`](crate::Context::create_cq)).
    ///
    /// # Errors
    /// [`AsyncError`].
    ///
    /// # Panics
    /// Outside of a runtime of tokio with I/O enabled.
    pub fn new(context: &Context, capacity: usize) -> Result<Self, AsyncError> {
        check_mode(context)?;
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq_on(&channel, capacity)?;
        let watched = watch(&channel)?;
        Ok(Self { cq, channel, watched })
    }

    /// The queue, for queue pairs ([`QpOptions`](crate::QpOptions)).
    #[must_use]
    pub const fn cq(&self) -> &Cq {
        &self.cq
    }

    /// Waits until there are completions, moves them to `out`, and returns those, as [`Cq::poll`].
    /// None once the context is closed or has failed and nothing is left.
    pub async fn wait<'w>(&mut self, out: &'w mut [Wc]) -> &'w [Wc] {
        loop {
            let found = self.cq.poll(out).len();
            if found > 0 || out.is_empty() {
                return &out[..found];
            }
            // What was published before is found by the next poll, what comes later by the event.
            let is_armed = self.cq.req_notify(Notify::Next).is_ok();
            let found = self.cq.poll(out).len();
            if found > 0 || !is_armed || self.watched.0.readable().await.is_err() {
                return &out[..found];
            }
            take_all(&self.watched, || while self.channel.next_event().is_some() {});
        }
    }
}

/// Events of a context, for any number of tasks. It takes all events of the context's own
/// [`EventChannel`]: a context has one of either. Queue pairs and listeners that name another
/// channel wake no task.
#[derive(Debug)]
pub struct AsyncEvents {
    channel: EventChannel,
    watched: Watched,
    /// Events were taken from the channel: the tasks look at their sources.
    taken: Woken,
}

impl AsyncEvents {
    /// Watches the events of a context.
    ///
    /// # Errors
    /// [`AsyncError`].
    ///
    /// # Panics
    /// Outside of a runtime of tokio with I/O enabled.
    pub fn new(context: &Context) -> Result<Self, AsyncError> {
        check_mode(context)?;
        let channel = context.event_channel()?;
        let watched = watch(&channel)?;
        Ok(Self { channel, watched, taken: Woken::new() })
    }

    /// Waits for a connection request of a listener. `None` once the context is closed or has
    /// failed.
    pub async fn accept(&self, listener: &Listener) -> Option<ConnRequest> {
        self.when(|| listener.next_request()).await
    }

    /// Waits until the connection is established, as
    /// [`Qp::wait_established`](crate::Qp::wait_established).
    ///
    /// # Errors
    /// Reason of the failure; `TimedOut` once the context is closed.
    pub async fn established(&self, qp: &Qp) -> Result<ConnInfo, ConnectError> {
        self.when(|| qp.next_outcome()).await.unwrap_or(Err(ConnectError::TimedOut))
    }

    /// Waits for the next event of a queue pair. `None` once the context is closed or has failed
    /// and none is left.
    pub async fn next_of(&self, qp: &Qp) -> Option<ConnEvent> {
        self.when(|| qp.next_event()).await
    }

    /// Waits for the next event that names neither a queue pair nor a listener. `None` once the
    /// context is closed or has failed and none is left.
    pub async fn next_other(&self) -> Option<AsyncEvent> {
        self.when(|| self.channel.next_kept()).await
    }

    /// Waits until `ready` returns a value, which it may after any event.
    async fn when<T>(&self, ready: impl Fn() -> Option<T>) -> Option<T> {
        loop {
            // Before `ready`: events that another task takes after this wake this one.
            let mut taken = pin!(self.taken.notified());
            taken.as_mut().enable();
            let has_ended = self.channel.has_ended();
            if has_ended {
                // The last ones, which nobody else may have taken.
                self.take_events();
            }
            if let Some(value) = ready() {
                return Some(value);
            }
            if has_ended {
                return None;
            }
            let mut readable = pin!(self.watched.0.readable());
            let is_readable = poll_fn(|cx| match taken.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => readable.as_mut().poll(cx).map(Some),
            });
            match is_readable.await {
                None => {}
                Some(Err(_)) => return None,
                Some(Ok(())) => take_all(&self.watched, || self.take_events()),
            }
        }
    }

    /// Takes the events from the channel, and has all tasks look at their sources.
    fn take_events(&self) {
        while self.channel.keep_next() {}
        self.taken.notify_waiters();
    }
}
