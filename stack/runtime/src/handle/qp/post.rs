//! Posting of send requests (verbs: `ibv_post_send`, `ibv_wr_start` to `ibv_wr_complete`).

use std::fmt;
use std::marker::PhantomData;

use ferrowarp_lockfree::spin_lock::LockGuard;
use ferrowarp_proto::ddp::regions::Stag;
use ferrowarp_proto::ended::Ended;
use ferrowarp_proto::rdmap::operation::{AtomicOp, Bind, ImmediateData, Sge};
use ferrowarp_proto::rdmap::send_queue::wqe::{SendFlags, WqeOpcode};
use ferrowarp_proto::rdmap::send_queue::{SqProducer, WqeHead, WqePayload, WqePlace};
use ferrowarp_proto::verbs::wr::{PostError, SendRights};

use super::Qp;
use crate::handle::mr::RemoteAddr;

/// Send requests on their way to the send queue of a queue pair ([`Qp::post`]).
///
/// Each call writes a request to the queue, where the [`SendRequest`] that it returns may still
/// change it. [`Post::ring`] passes all of them to the stack, with one store and one doorbell; so
/// does the drop, which reports no error. After an error nothing more is posted.
///
/// The send queue is locked meanwhile: other threads that post to it wait, and a second call of
/// [`Qp::post`] in the same thread is refused ([`PostError::Reentered`]), also in the handler of a
/// signal. Ring one before you begin to post to another queue pair, as with any two locks.
/// `Context::close` waits for it, for a second at most; then nothing was posted.
///
/// ```no_run
/// # use ferrowarp::*;
/// # fn example(qp: &Qp, mr: &Mr, remote: RemoteMr) -> Result<(), PostRefused> {
/// let mut post = qp.post();
/// post.write(mr.sge(0, 5), remote.at(0)).wr_id(1);
/// post.read(mr.sge(100, 5), remote.at(64)).fence().wr_id(2);
/// post.send_inline(b"done").wr_id(3).signaled();
/// post.ring()?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_qp_ex")]
#[must_use = "requests are posted by its methods"]
pub struct Post<'q> {
    qp: &'q Qp,
    queue: Option<LockGuard<'q, SqProducer>>,
    rights: SendRights,
    /// [`SqProducer::posted`] at the beginning.
    start: u64,
    error: Option<PostError>,
    /// The lock knows this thread as its owner.
    _not_send: PhantomData<*const ()>,
}

/// A request was refused, and all that followed it. The first `posted` of them were posted, counted
/// since the guard was made or rung.
#[doc(alias = "bad_wr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error} (after {posted} requests)")]
#[non_exhaustive]
pub struct PostRefused {
    /// The reason for the first refused request.
    #[source]
    pub error: PostError,
    /// Requests that were posted.
    pub posted: usize,
}

/// A send request that was posted, and can still be changed (verbs: `ibv_send_wr`). Unless it is
/// [`SendRequest::signaled`] only its failure is reported.
#[doc(alias = "ibv_send_wr")]
pub struct SendRequest<'p, 'q> {
    post: &'p mut Post<'q>,
    /// Its place in the queue; `None` if it was refused.
    place: Option<WqePlace>,
}

impl Qp {
    /// Begins to post send requests. Costs some 15 ns with [`Post::ring`], and 5 ns for each
    /// request; never waits, except for another thread that posts to the same queue.
    ///
    /// Requests may be posted at any time. Before the connection they wait for it, in order; after
    /// its end, or after [`Qp::close`], they complete as flushed. The memory that a request names
    /// must stay registered and unchanged until it completes.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_wr_start")]
    #[inline]
    pub fn post(&self) -> Post<'_> {
        let _not_send = PhantomData;
        match self.shared.lock_sends() {
            Ok((queue, rights)) => {
                let start = queue.posted();
                Post { qp: self, queue: Some(queue), rights, start, error: None, _not_send }
            }
            Err(error) => {
                let (queue, rights) = (None, SendRights::NONE);
                Post { qp: self, queue, rights, start: 0, error: Some(error), _not_send }
            }
        }
    }
}

impl<'q> Post<'q> {
    /// A Send (`IBV_WR_SEND`): the message goes to a buffer that the peer has posted.
    #[doc(alias = "ibv_wr_send")]
    #[inline(always)]
    pub fn send<'a>(&mut self, message: impl Into<WqePayload<'a>>) -> SendRequest<'_, 'q> {
        self.message(WqeOpcode::Send, message.into(), RemoteAddr::default())
    }

    /// A Send of bytes that are copied into the request (`IBV_SEND_INLINE`): at most
    /// [`QpOptions::max_inline_data`](crate::QpOptions::max_inline_data).
    #[doc(alias = "ibv_wr_set_inline_data")]
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline(always)]
    pub fn send_inline(&mut self, message: &[u8]) -> SendRequest<'_, 'q> {
        self.send(WqePayload::Inline(message))
    }

    /// An RDMA Write to the peer's memory (`IBV_WR_RDMA_WRITE`).
    #[doc(alias = "ibv_wr_rdma_write")]
    #[inline(always)]
    pub fn write<'a>(
        &mut self,
        source: impl Into<WqePayload<'a>>,
        remote: impl Into<RemoteAddr>,
    ) -> SendRequest<'_, 'q> {
        self.message(WqeOpcode::Write, source.into(), remote.into())
    }

    /// An RDMA Write of bytes that are copied into the request; as [`Post::send_inline`].
    #[doc(alias = "ibv_wr_set_inline_data")]
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline(always)]
    pub fn write_inline(
        &mut self,
        source: &[u8],
        remote: impl Into<RemoteAddr>,
    ) -> SendRequest<'_, 'q> {
        self.write(WqePayload::Inline(source), remote)
    }

    /// An RDMA Write followed by Immediate Data, which notifies the peer of the Write
    /// (`IBV_WR_RDMA_WRITE_WITH_IMM`). RFC 7306: the peer need not support it. Its eight bytes may
    /// have the four of verbs: [`immediate_u32`](crate::immediate_u32).
    #[doc(alias = "ibv_wr_rdma_write_imm")]
    #[inline(always)]
    pub fn write_immediate<'a>(
        &mut self,
        source: impl Into<WqePayload<'a>>,
        remote: impl Into<RemoteAddr>,
        data: ImmediateData,
    ) -> SendRequest<'_, 'q> {
        let mut place = None;
        if let Some(queue) = self.queue_for(WqeOpcode::WriteImmediate) {
            let posted = queue.post_write_immediate(&head_of(remote.into()), data, source.into());
            place = self.note(posted);
        }
        SendRequest { post: self, place }
    }

    /// Immediate Data: consumes a receive of the peer and writes nothing to it. RFC 7306.
    #[doc(alias = "ibv_wr_send_imm")]
    #[inline(always)]
    pub fn immediate(&mut self, data: ImmediateData) -> SendRequest<'_, 'q> {
        let mut place = None;
        if let Some(queue) = self.queue_for(WqeOpcode::Immediate) {
            let posted = queue.post_immediate(&WqeHead::default(), data);
            place = self.note(posted);
        }
        SendRequest { post: self, place }
    }

    /// An RDMA Read of the peer's memory to `sink` (`IBV_WR_RDMA_READ`). Each element of a list
    /// that is not empty takes a Read Request, and a credit of the ORD.
    #[doc(alias = "ibv_wr_rdma_read")]
    #[inline(always)]
    pub fn read<'a>(
        &mut self,
        sink: impl Into<WqePayload<'a>>,
        remote: impl Into<RemoteAddr>,
    ) -> SendRequest<'_, 'q> {
        self.message(WqeOpcode::Read, sink.into(), remote.into())
    }

    /// An atomic operation on a word of the peer's memory, at a multiple of eight
    /// (`IBV_WR_ATOMIC_FETCH_AND_ADD`, `IBV_WR_ATOMIC_CMP_AND_SWP`). Its previous value goes to
    /// `sink`, of eight bytes. RFC 7306.
    ///
    /// It is ordered with RDMA Reads and uses their ORD credits; requests posted after it may
    /// overtake it unless they are fenced.
    #[doc(alias = "ibv_wr_atomic_fetch_add")]
    #[doc(alias = "ibv_wr_atomic_cmp_swp")]
    #[inline(always)]
    pub fn atomic(
        &mut self,
        op: AtomicOp,
        sink: Sge,
        remote: impl Into<RemoteAddr>,
    ) -> SendRequest<'_, 'q> {
        let mut place = None;
        if let Some(queue) = self.queue_for(WqeOpcode::FetchAdd) {
            let posted = queue.post_atomic(&head_of(remote.into()), op, &sink);
            place = self.note(posted);
        }
        SendRequest { post: self, place }
    }

    /// Binds a memory window for the peer of this queue pair (`IBV_WR_BIND_MW`). Requests posted
    /// after it may advertise its STag.
    #[doc(alias = "ibv_wr_bind_mw")]
    #[inline(always)]
    pub fn bind(&mut self, bind: Bind) -> SendRequest<'_, 'q> {
        let mut place = None;
        if let Some(queue) = self.queue_for(WqeOpcode::Bind) {
            let posted = queue.post_bind(0, SendFlags::NONE, &bind);
            place = self.note(posted);
        }
        SendRequest { post: self, place }
    }

    /// Invalidates an STag that is valid for this queue pair only, of a window bound through it or
    /// a region registered for it (`IBV_WR_LOCAL_INV`). It does not wait for Reads whose sink has
    /// that STag, unless it is fenced.
    #[doc(alias = "ibv_wr_local_inv")]
    #[inline(always)]
    pub fn invalidate(&mut self, stag: Stag) -> SendRequest<'_, 'q> {
        let mut place = None;
        if let Some(queue) = self.queue_for(WqeOpcode::Invalidate) {
            let posted = queue.post_invalidate(0, SendFlags::NONE, stag);
            place = self.note(posted);
        }
        SendRequest { post: self, place }
    }

    /// Passes the requests to the stack.
    ///
    /// # Errors
    /// [`PostRefused`], with the number of requests that were posted all the same. After
    /// `QueueFull`, poll completions, or poll the shard once more if requests are unsignaled.
    #[doc(alias = "ibv_wr_complete")]
    #[inline]
    pub fn ring(mut self) -> Result<(), PostRefused> {
        self.publish()
    }

    #[inline(always)]
    fn message(
        &mut self,
        opcode: WqeOpcode,
        payload: WqePayload<'_>,
        remote: RemoteAddr,
    ) -> SendRequest<'_, 'q> {
        let mut place = None;
        if let Some(queue) = self.queue_for(opcode) {
            let posted = queue.post(opcode, &head_of(remote), payload);
            place = self.note(posted);
        }
        SendRequest { post: self, place }
    }

    /// Returns the queue to which a request may be posted, if the connection has the right to it.
    // No closures here: the compiler would not always inline them.
    #[inline(always)]
    fn queue_for(&mut self, opcode: WqeOpcode) -> Option<&mut SqProducer> {
        if self.error.is_some() {
            return None;
        }
        if self.queue.is_none() && !self.lock_again() {
            return None;
        }
        match self.rights.check(opcode) {
            Ok(()) => self.queue.as_deref_mut(),
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }

    /// Locks the queue again, after [`SendRequest::ring`]; true if it is locked.
    #[cold]
    fn lock_again(&mut self) -> bool {
        match self.qp.shared.lock_sends() {
            Ok((queue, rights)) => {
                (self.start, self.rights) = (queue.posted(), rights);
                self.queue = Some(queue);
            }
            Err(error) => self.error = Some(error),
        }
        self.queue.is_some()
    }

    /// Notes an error; returns the place of a request that was posted.
    #[inline(always)]
    fn note(&mut self, posted: Result<WqePlace, PostError>) -> Option<WqePlace> {
        match posted {
            Ok(place) => Some(place),
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }

    /// Publishes what was posted, unlocks the queue and rings the doorbell.
    #[inline(always)]
    fn publish(&mut self) -> Result<(), PostRefused> {
        let mut posted = 0;
        if let Some(mut queue) = self.queue.take() {
            posted = queue.posted().wrapping_sub(self.start);
            queue.publish();
            if self.qp.shared.is_abandoned() {
                (posted, self.error) = (0, Some(Ended::Closed.into()));
            }
            drop(queue);
            self.qp.announce(self.error.is_some());
        }
        match self.error {
            None => Ok(()),
            Some(error) => {
                Err(PostRefused { error, posted: usize::try_from(posted).unwrap_or(usize::MAX) })
            }
        }
    }

    /// Publishes what was not rung for.
    #[inline(never)]
    fn publish_last(&mut self) {
        let _ = self.publish();
    }
}

#[inline(always)]
const fn head_of(RemoteAddr { addr, rkey }: RemoteAddr) -> WqeHead {
    WqeHead { wr_id: 0, flags: SendFlags::NONE, stag: rkey, remote: addr }
}

impl Drop for Post<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.queue.is_some() {
            self.publish_last();
        }
    }
}

impl SendRequest<'_, '_> {
    /// Sets the work request ID, which its completion has; 0 unless it is set.
    #[inline(always)]
    pub fn wr_id(self, wr_id: u64) -> Self {
        self.change(|queue, place| queue.set_wr_id(place, wr_id))
    }

    /// Its success is reported too (`IBV_SEND_SIGNALED`); errors always are.
    #[doc(alias = "IBV_SEND_SIGNALED")]
    #[inline(always)]
    pub fn signaled(self) -> Self {
        self.with(SendFlags::SIGNALED)
    }

    /// It starts only when all earlier RDMA Reads and atomic operations have completed
    /// (`IBV_SEND_FENCE`).
    #[doc(alias = "IBV_SEND_FENCE")]
    #[inline(always)]
    pub fn fence(self) -> Self {
        self.with(SendFlags::FENCE)
    }

    /// Requests a solicited event at the peer (`IBV_SEND_SOLICITED`): of a Send or Immediate Data.
    #[doc(alias = "IBV_SEND_SOLICITED")]
    #[inline(always)]
    pub fn solicited(self) -> Self {
        self.with(SendFlags::SOLICITED)
    }

    /// Makes a Send one with Invalidate (`IBV_WR_SEND_WITH_INV`): this STag of the peer is
    /// invalidated before delivery. Of other operations it changes nothing.
    #[doc(alias = "ibv_wr_send_inv")]
    #[inline(always)]
    pub fn with_invalidate(self, stag: Stag) -> Self {
        self.change(|queue, place| queue.set_invalidate(place, stag))
    }

    /// Sets flags.
    #[inline(always)]
    pub fn with(self, flags: SendFlags) -> Self {
        self.change(|queue, place| queue.set_flags(place, flags))
    }

    #[inline(always)]
    fn change(mut self, change: impl FnOnce(&mut SqProducer, &mut WqePlace)) -> Self {
        if let (Some(queue), Some(place)) = (&mut self.post.queue, &mut self.place) {
            change(queue, place);
        }
        self
    }

    /// Passes all requests to the stack, as [`Post::ring`]: this is the last of them. For a single
    /// request:
    ///
    /// ```no_run
    /// # use ferrowarp::*;
    /// # fn example(qp: &Qp, mr: &Mr) -> Result<(), PostRefused> {
    /// qp.post().send(mr.sge(0, 5)).wr_id(1).signaled().ring()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Post::ring`].
    #[inline(always)]
    pub fn ring(self) -> Result<(), PostRefused> {
        self.post.publish()
    }
}

impl fmt::Debug for Post<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { qp, queue: _, rights: _, start: _, error, _not_send } = self;
        f.debug_struct("Post").field("qp", &qp.id()).field("error", error).finish_non_exhaustive()
    }
}

impl fmt::Debug for SendRequest<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { post, place } = self;
        f.debug_struct("SendRequest").field("post", post).field("place", place).finish()
    }
}
