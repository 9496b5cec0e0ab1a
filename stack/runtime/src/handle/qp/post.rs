//! Posting of send requests (verbs: `ibv_post_send`, `ibv_wr_start` to `ibv_wr_complete`).

use std::fmt;

use ferrowarp_lockfree::spin_lock::LockGuard;
use ferrowarp_proto::ddp::regions::Stag;
use ferrowarp_proto::rdmap::operation::{AtomicOp, Bind, ImmediateData, Sge};
use ferrowarp_proto::rdmap::send_queue::wqe::{SendFlags, WqeOpcode};
use ferrowarp_proto::rdmap::send_queue::{SqProducer, WqeHead, WqePayload};
use ferrowarp_proto::verbs::wr::{PostError, SendRights};

use super::Qp;
use crate::handle::mr::RemoteAddr;

/// Send requests on their way to the send queue of a queue pair ([`Qp::post`]).
///
/// Each call encodes a request into the queue, at the end of its statement. [`Post::ring`] passes
/// all of them to the stack, with one store and one doorbell; so does the drop, which reports no
/// error. After an error nothing more is posted.
///
/// The send queue is locked meanwhile, for other threads too: a second one in the same thread would
/// wait for ever. `Context::close` waits for it, for a second at most; then nothing was posted.
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
#[must_use = "requests are posted by its methods"]
pub struct Post<'q> {
    qp: &'q Qp,
    queue: Option<LockGuard<'q, SqProducer>>,
    rights: SendRights,
    count: usize,
    error: Option<PostError>,
}

/// Some requests were refused: that after the first `posted`, and all after it.
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

/// A send request that is posted when it is dropped: at the end of its statement
/// (verbs: `ibv_send_wr`). Unless it is [`SendRequest::signaled`] only its failure is reported.
pub struct SendRequest<'p, 'q, 'a> {
    post: &'p mut Post<'q>,
    head: WqeHead,
    operation: Operation<'a>,
}

/// What a request does.
#[derive(Debug)]
enum Operation<'a> {
    /// Send, RDMA Write or RDMA Read.
    Message(WqeOpcode, WqePayload<'a>),
    WriteImmediate(ImmediateData, WqePayload<'a>),
    Immediate(ImmediateData),
    Atomic(AtomicOp, Sge),
    Bind(Bind),
    Invalidate,
}

impl Qp {
    /// Begins to post send requests. Costs some 15 ns with [`Post::ring`], and 5 ns for each
    /// request; never waits, except for another thread that posts to the same queue.
    ///
    /// The memory that a request names must stay registered and unchanged until it completes.
    #[inline]
    pub fn post(&self) -> Post<'_> {
        match self.shared.lock_sends() {
            Ok((queue, rights)) => {
                Post { qp: self, queue: Some(queue), rights, count: 0, error: None }
            }
            Err(error) => {
                let (queue, rights) = (None, SendRights::NONE);
                Post { qp: self, queue, rights, count: 0, error: Some(error) }
            }
        }
    }
}

impl<'q> Post<'q> {
    /// A Send (`IBV_WR_SEND`): the message goes to a buffer that the peer has posted.
    #[doc(alias = "ibv_wr_send")]
    #[inline(always)]
    pub fn send<'a>(&mut self, message: impl Into<WqePayload<'a>>) -> SendRequest<'_, 'q, 'a> {
        self.message(WqeOpcode::Send, message.into(), RemoteAddr::default())
    }

    /// A Send of bytes that are copied into the request (`IBV_SEND_INLINE`): at most
    /// [`QpOptions::max_inline_data`](crate::QpOptions::max_inline_data).
    #[inline(always)]
    pub fn send_inline<'a>(&mut self, message: &'a [u8]) -> SendRequest<'_, 'q, 'a> {
        self.send(WqePayload::Inline(message))
    }

    /// An RDMA Write to the peer's memory (`IBV_WR_RDMA_WRITE`).
    #[doc(alias = "ibv_wr_rdma_write")]
    #[inline(always)]
    pub fn write<'a>(
        &mut self,
        source: impl Into<WqePayload<'a>>,
        remote: impl Into<RemoteAddr>,
    ) -> SendRequest<'_, 'q, 'a> {
        self.message(WqeOpcode::Write, source.into(), remote.into())
    }

    /// An RDMA Write of bytes that are copied into the request; as [`Post::send_inline`].
    #[inline(always)]
    pub fn write_inline<'a>(
        &mut self,
        source: &'a [u8],
        remote: impl Into<RemoteAddr>,
    ) -> SendRequest<'_, 'q, 'a> {
        self.write(WqePayload::Inline(source), remote)
    }

    /// An RDMA Write followed by Immediate Data, which notifies the peer of the Write
    /// (`IBV_WR_RDMA_WRITE_WITH_IMM`). RFC 7306: the peer need not support it.
    #[doc(alias = "ibv_wr_rdma_write_imm")]
    #[inline(always)]
    pub fn write_immediate<'a>(
        &mut self,
        source: impl Into<WqePayload<'a>>,
        remote: impl Into<RemoteAddr>,
        data: ImmediateData,
    ) -> SendRequest<'_, 'q, 'a> {
        self.begin(Operation::WriteImmediate(data, source.into()), remote.into())
    }

    /// Immediate Data: consumes a receive of the peer and writes nothing to it. RFC 7306.
    #[inline(always)]
    pub fn immediate(&mut self, data: ImmediateData) -> SendRequest<'_, 'q, 'static> {
        self.begin(Operation::Immediate(data), RemoteAddr::default())
    }

    /// An RDMA Read of the peer's memory to `sink` (`IBV_WR_RDMA_READ`).
    #[doc(alias = "ibv_wr_rdma_read")]
    #[inline(always)]
    pub fn read<'a>(
        &mut self,
        sink: impl Into<WqePayload<'a>>,
        remote: impl Into<RemoteAddr>,
    ) -> SendRequest<'_, 'q, 'a> {
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
    ) -> SendRequest<'_, 'q, 'static> {
        self.begin(Operation::Atomic(op, sink), remote.into())
    }

    /// Binds a memory window for the peer of this queue pair (`IBV_WR_BIND_MW`). Requests posted
    /// after it may advertise its STag.
    #[doc(alias = "ibv_wr_bind_mw")]
    #[inline(always)]
    pub fn bind(&mut self, bind: Bind) -> SendRequest<'_, 'q, 'static> {
        self.begin(Operation::Bind(bind), RemoteAddr::default())
    }

    /// Invalidates an STag that is valid for this queue pair only, of a window bound through it or
    /// a region registered for it (`IBV_WR_LOCAL_INV`). It does not wait for Reads whose sink has
    /// that STag, unless it is fenced.
    #[doc(alias = "ibv_wr_local_inv")]
    #[inline(always)]
    pub fn invalidate(&mut self, stag: Stag) -> SendRequest<'_, 'q, 'static> {
        self.begin(Operation::Invalidate, RemoteAddr { addr: 0, rkey: stag })
    }

    /// Passes the requests to the stack; returns their number.
    ///
    /// # Errors
    /// [`PostRefused`], with the number of requests that were posted all the same.
    #[inline]
    pub fn ring(mut self) -> Result<usize, PostRefused> {
        self.publish();
        match self.error {
            None => Ok(self.count),
            Some(error) => Err(PostRefused { error, posted: self.count }),
        }
    }

    #[inline(always)]
    fn message<'a>(
        &mut self,
        opcode: WqeOpcode,
        payload: WqePayload<'a>,
        remote: RemoteAddr,
    ) -> SendRequest<'_, 'q, 'a> {
        self.begin(Operation::Message(opcode, payload), remote)
    }

    #[inline(always)]
    fn begin<'a>(
        &mut self,
        operation: Operation<'a>,
        remote: RemoteAddr,
    ) -> SendRequest<'_, 'q, 'a> {
        let RemoteAddr { addr, rkey } = remote;
        let head = WqeHead { wr_id: 0, flags: SendFlags::default(), stag: rkey, remote: addr };
        SendRequest { post: self, head, operation }
    }

    /// Encodes a request.
    #[inline(always)]
    fn encode(&mut self, head: &WqeHead, operation: &Operation<'_>) -> Result<(), PostError> {
        let Some(queue) = &mut self.queue else { return Ok(()) };
        match *operation {
            Operation::Message(opcode, payload) => {
                self.rights.check(opcode)?;
                queue.post(opcode, head, payload)
            }
            Operation::WriteImmediate(data, payload) => {
                self.rights.check(WqeOpcode::WriteImmediate)?;
                queue.post_write_immediate(head, data, payload)
            }
            Operation::Immediate(data) => {
                self.rights.check(WqeOpcode::Immediate)?;
                queue.post_immediate(head, data)
            }
            Operation::Atomic(op, ref sink) => {
                self.rights.check(WqeOpcode::FetchAdd)?;
                queue.post_atomic(head, op, sink)
            }
            Operation::Bind(ref bind) => queue.post_bind(head.wr_id, head.flags, bind),
            Operation::Invalidate => queue.post_invalidate(head.wr_id, head.flags, head.stag),
        }
    }

    /// Publishes what was posted, unlocks the queue and rings the doorbell.
    #[inline]
    fn publish(&mut self) {
        let Some(mut queue) = self.queue.take() else { return };
        queue.publish();
        if let Err(error) = self.qp.shared.check_abandoned() {
            (self.count, self.error) = (0, Some(error));
        }
        drop(queue);
        self.qp.announce(self.error.is_some());
    }
}

impl Drop for Post<'_> {
    #[inline]
    fn drop(&mut self) {
        self.publish();
    }
}

impl SendRequest<'_, '_, '_> {
    /// Sets the work request ID, which its completion has; 0 unless it is set.
    #[inline(always)]
    pub fn wr_id(mut self, wr_id: u64) -> Self {
        self.head.wr_id = wr_id;
        self
    }

    /// Its success is reported too (`IBV_SEND_SIGNALED`); errors always are.
    #[inline(always)]
    pub fn signaled(self) -> Self {
        self.with(SendFlags::SIGNALED)
    }

    /// It starts only when all earlier RDMA Reads and atomic operations have completed
    /// (`IBV_SEND_FENCE`).
    #[inline(always)]
    pub fn fence(self) -> Self {
        self.with(SendFlags::FENCE)
    }

    /// Requests a solicited event at the peer (`IBV_SEND_SOLICITED`): of a Send or Immediate Data.
    #[inline(always)]
    pub fn solicited(self) -> Self {
        self.with(SendFlags::SOLICITED)
    }

    /// Makes a Send one with Invalidate (`IBV_WR_SEND_WITH_INV`): this STag of the peer is
    /// invalidated before delivery. Of other operations it changes nothing.
    #[inline(always)]
    pub fn with_invalidate(mut self, stag: Stag) -> Self {
        if let Operation::Message(WqeOpcode::Send, _) = self.operation {
            self.head.stag = stag;
            self.head.flags = self.head.flags.and(SendFlags::INVALIDATE);
        }
        self
    }

    /// Sets flags.
    #[inline(always)]
    pub fn with(mut self, flags: SendFlags) -> Self {
        self.head.flags = self.head.flags.and(flags);
        self
    }
}

impl Drop for SendRequest<'_, '_, '_> {
    #[inline(always)]
    fn drop(&mut self) {
        let Self { post, head, operation } = self;
        if post.error.is_some() {
            return;
        }
        match post.encode(head, operation) {
            Ok(()) => post.count += 1,
            Err(error) => post.error = Some(error),
        }
    }
}

impl fmt::Debug for Post<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { qp, queue: _, rights: _, count, error } = self;
        f.debug_struct("Post")
            .field("qp", &qp.id())
            .field("count", count)
            .field("error", error)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SendRequest<'_, '_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { post: _, head, operation } = self;
        f.debug_struct("SendRequest")
            .field("head", head)
            .field("operation", operation)
            .finish_non_exhaustive()
    }
}
