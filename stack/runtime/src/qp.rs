//! Queue pairs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam::queue::ArrayQueue;
use crossbeam::utils::CachePadded;
use ferrowarp_proto::rdmap::operation::MESSAGE_LEN_MAX;
use ferrowarp_proto::verbs::cm::{Abort, Agreed, CmError, ConnParam, ConnectError, Event};
use ferrowarp_proto::verbs::qp::{QpInit, QpState};
use ferrowarp_proto::verbs::wc::QpId;
use ferrowarp_proto::verbs::wr::{Operation, Payload, PostError, RecvWr, SendWr};

use crate::context::{Context, Inner};
use crate::cq::Cq;
use crate::error::{CreateError, LimitError};
use crate::gate::Gate;
use crate::lane::Link;
use crate::limits::{Grant, Resource};
use crate::pd::Pd;
use crate::ring::Producer;
use crate::srq::Srq;

/// Events a queue pair keeps: set-up, end, and an overrun of each completion queue.
const EVENT_COUNT_MAX: usize = 8;

/// What a queue pair is created with.
#[derive(Clone, Copy)]
pub struct QpOptions<'a> {
    /// Takes the completions of the send queue.
    pub send_cq: &'a Cq,
    /// Takes the completions of the receive queue; may be the same.
    pub recv_cq: &'a Cq,
    /// Send requests that may be outstanding, at least 1.
    pub max_send_wr: usize,
    /// Receive requests that may be outstanding, at least 1.
    pub max_recv_wr: usize,
}

/// A queue pair: one end of a connection, and its two work queues.
///
/// Serves one connection in its life. Dropping it ends the connection as
/// [`Qp::disconnect`] does, and discards completions not yet in a queue.
pub struct Qp {
    shared: Arc<Shared>,
    id: QpId,
    context: Arc<Inner>,
    send_cq: Cq,
    recv_cq: Cq,
    pd: Pd,
    srq: Option<Srq>,
    _grant: Grant,
}

/// What the application's and the shard's sides of a queue pair share.
pub(crate) struct Shared {
    state: AtomicU8,
    /// RDMA Reads and atomic operations the connection may have under way.
    ord: AtomicU16,
    /// The connection has the operations of RFC 7306.
    extensions: AtomicBool,
    closed: AtomicBool,
    sends: Side<SendWr>,
    recvs: Side<RecvWr>,
    events: ArrayQueue<Event>,
}

/// The application's side of one work queue.
struct Side<T> {
    poster: Gate<Poster<T>>,
    /// Requests that left the queue; written by the shard.
    retired: CachePadded<AtomicU64>,
}

struct Poster<T> {
    ring: Producer<T>,
    posted: u64,
    retired_seen: u64,
    max: u64,
}

impl<T> Side<T> {
    fn new(ring: Producer<T>, max: usize) -> Self {
        let poster = Poster { ring, posted: 0, retired_seen: 0, max: max as u64 };
        Self { poster: Gate::new(poster), retired: CachePadded::new(AtomicU64::new(0)) }
    }

    /// Puts requests in the ring until one is refused; returns how many, and that error.
    ///
    /// Requests go from the iterator to their slot in one move: they are checked by reference.
    #[inline]
    fn post(
        &self,
        wrs: impl IntoIterator<Item = T>,
        check: impl Fn(&T) -> Result<(), PostError>,
    ) -> (usize, Option<PostError>) {
        let mut poster = self.poster.enter();
        let mut count = 0;
        let mut error = None;
        for wr in wrs {
            if let Err(refused) = check(&wr).and_then(|()| poster.find_room(&self.retired)) {
                error = Some(refused);
                break;
            }
            if poster.ring.stage(wr).is_err() {
                error = Some(PostError::QueueFull);
                break;
            }
            poster.posted += 1;
            count += 1;
        }
        poster.ring.publish();
        (count, error)
    }
}

impl<T> Poster<T> {
    #[inline]
    fn find_room(&mut self, retired: &AtomicU64) -> Result<(), PostError> {
        if self.posted - self.retired_seen >= self.max {
            self.retired_seen = retired.load(Ordering::Acquire);
            if self.posted - self.retired_seen >= self.max {
                return Err(PostError::QueueFull);
            }
        }
        // The shard takes a request out of the ring before it retires it: the ring has room too.
        Ok(())
    }
}

impl Shared {
    pub(crate) fn new(
        sends: Producer<SendWr>,
        max_send_wr: usize,
        recvs: Producer<RecvWr>,
        max_recv_wr: usize,
    ) -> Self {
        Self {
            state: AtomicU8::new(encode(QpState::Idle)),
            ord: AtomicU16::new(0),
            extensions: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            sends: Side::new(sends, max_send_wr),
            recvs: Side::new(recvs, max_recv_wr),
            events: ArrayQueue::new(EVENT_COUNT_MAX),
        }
    }

    pub(crate) fn set_state(&self, state: QpState) {
        if !self.closed.load(Ordering::Relaxed) {
            self.state.store(encode(state), Ordering::Release);
        }
    }

    /// What the connection was set up with.
    pub(crate) fn agree(&self, ord: u16, extensions: bool) {
        self.extensions.store(extensions, Ordering::Release);
        self.ord.store(ord, Ordering::Release);
    }

    /// The peer answers no more.
    pub(crate) fn refuse_reads(&self) {
        self.ord.store(0, Ordering::Release);
    }

    /// The context closes: nothing more is accepted.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.state.store(encode(QpState::Error), Ordering::Release);
    }

    /// Queues an event; a ninth unread one is dropped.
    pub(crate) fn inform(&self, event: Event) {
        let _ = self.events.push(event);
    }

    #[inline]
    pub(crate) fn retire(&self, sends: u64, recvs: u64) {
        // Stored only when changed: the application's core keeps the line otherwise.
        for (cell, value) in [(&self.sends.retired, sends), (&self.recvs.retired, recvs)] {
            if cell.load(Ordering::Relaxed) != value {
                cell.store(value, Ordering::Release);
            }
        }
    }

    #[inline]
    fn state(&self) -> QpState {
        match self.state.load(Ordering::Acquire) {
            0 => QpState::Idle,
            1 => QpState::Connecting,
            2 => QpState::Rts,
            3 => QpState::Closing,
            _ => QpState::Error,
        }
    }

    /// The checks of a send request that need no engine.
    #[inline]
    fn check_send(&self, wr: &SendWr) -> Result<(), PostError> {
        if wr.operation.is_extension() && !self.extensions.load(Ordering::Relaxed) {
            return Err(PostError::Unsupported);
        }
        match &wr.operation {
            Operation::Send { payload, .. }
            | Operation::Write { payload, .. }
            | Operation::WriteImmediate { payload, .. } => check_len(payload),
            Operation::Immediate { .. } => Ok(()),
            operation if operation.is_misfit() => Err(PostError::Misfit),
            Operation::Read { .. } | Operation::Atomic { .. } => {
                if self.ord.load(Ordering::Relaxed) == 0 {
                    return Err(PostError::NoReads);
                }
                Ok(())
            }
            Operation::Bind(_) | Operation::Invalidate { .. } => Ok(()),
        }
    }
}

#[inline]
fn check_len(payload: &Payload) -> Result<(), PostError> {
    if payload.len() > u64::from(MESSAGE_LEN_MAX) { Err(PostError::TooLong) } else { Ok(()) }
}

const fn encode(state: QpState) -> u8 {
    match state {
        QpState::Idle => 0,
        QpState::Connecting => 1,
        QpState::Rts => 2,
        QpState::Closing => 3,
        QpState::Error => 4,
    }
}

impl Qp {
    pub(crate) fn create(
        pd: &Pd,
        context: &Context,
        options: &QpOptions<'_>,
        srq: Option<&Srq>,
    ) -> Result<Self, CreateError> {
        let inner = context.inner();
        let (send_cq, recv_cq) = (options.send_cq.clone(), options.recv_cq.clone());
        // req: DDP-213, DDP-215, RDMAP-285, RDMAP-292
        if !pd.belongs_to(inner) || !send_cq.belongs_to(inner) || !recv_cq.belongs_to(inner) {
            return Err(CreateError::Gone);
        }
        if let Some(refusal) = send_cq.refusal().or(recv_cq.refusal()) {
            return Err(refusal.into());
        }
        if srq.is_some_and(|srq| !srq.belongs_to(inner, pd.id())) {
            return Err(CreateError::Gone);
        }
        let max_send_wr = options.max_send_wr.max(1);
        let max_recv_wr = if srq.is_some() { 1 } else { options.max_recv_wr.max(1) };
        let entries = max_send_wr.saturating_add(max_recv_wr);
        let grant = inner.ledger.take(Resource::QueueEntries, entries)?;
        let (sends, sends_taken) = crate::ring::ring(max_send_wr);
        let (recvs, recvs_taken) = crate::ring::ring(max_recv_wr);
        let shared = Arc::new(Shared::new(sends, max_send_wr, recvs, max_recv_wr));
        let init = QpInit {
            pd: pd.id(),
            send_cq: send_cq.id(),
            recv_cq: recv_cq.id(),
            max_send_wr,
            max_recv_wr,
        };
        let qps_max = inner.shard.qps_max();
        let too_many = LimitError {
            what: "queue pairs",
            setting: "qps_max",
            limit: qps_max as u64,
            used: qps_max as u64,
            wanted: 1,
        };
        let created = inner.shard.control(|machine, now| {
            let id = machine.create_qp(init).map_err(|_| too_many)?;
            if id.index as usize >= qps_max {
                machine.destroy_qp(now, id);
                return Err(CreateError::Limit(too_many));
            }
            if let Some(srq) = srq
                && let Err(error) = machine.attach_srq(id, srq.id())
            {
                machine.destroy_qp(now, id);
                return Err(error.into());
            }
            machine.attach(Link::new(
                id,
                Arc::clone(&shared),
                (sends_taken, init.send_cq, max_send_wr),
                (recvs_taken, init.recv_cq, max_recv_wr),
            ));
            Ok(id)
        });
        let id = created.unwrap_or(Err(CreateError::Gone))?;
        Ok(Self {
            shared,
            id,
            context: Arc::clone(inner),
            send_cq,
            recv_cq,
            pd: pd.clone(),
            srq: srq.cloned(),
            _grant: grant,
        })
    }

    /// The name that its completions carry.
    #[must_use]
    pub const fn id(&self) -> QpId {
        self.id
    }

    /// The queue that takes the completions of its send queue.
    #[must_use]
    pub const fn send_cq(&self) -> &Cq {
        &self.send_cq
    }

    /// The queue that takes the completions of its receive queue.
    #[must_use]
    pub const fn recv_cq(&self) -> &Cq {
        &self.recv_cq
    }

    /// Its protection domain.
    #[must_use]
    pub const fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The shared queue that its receive buffers come from, if they do.
    #[must_use]
    pub const fn srq(&self) -> Option<&Srq> {
        self.srq.as_ref()
    }

    /// The state that the shard last reported. One load.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.shared.state()
    }

    /// Posts a send request: puts it in a ring and rings the bell. Never waits; it is carried out
    /// when the shard is next driven. The memory it names must stay registered and unchanged
    /// until the request completes. Some 30 ns.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted. `QueueFull` goes away when completions are polled, or
    /// after a further pass where requests were posted unsignaled.
    #[inline]
    pub fn post_send(&self, wr: SendWr) -> Result<(), PostError> {
        self.post_sends(std::iter::once(wr)).1.map_or(Ok(()), Err)
    }

    /// Posts send requests in order until one is refused; returns how many were posted and why it
    /// stopped short. One bell for all.
    ///
    /// Other posters of this queue wait until `wrs` has ended: it must not post to the same queue
    /// itself, which would wait for ever.
    #[inline]
    pub fn post_sends(&self, wrs: impl IntoIterator<Item = SendWr>) -> (usize, Option<PostError>) {
        if self.state() != QpState::Rts {
            return (0, Some(PostError::WrongState));
        }
        let result = self.shared.sends.post(wrs, |wr| self.shared.check_send(wr));
        self.ring();
        result
    }

    /// Posts a buffer for one incoming Send or Immediate Data; allowed from creation on until the
    /// connection ends. Never waits. Some 30 ns.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    #[inline]
    pub fn post_recv(&self, wr: RecvWr) -> Result<(), PostError> {
        self.post_recvs(std::iter::once(wr)).1.map_or(Ok(()), Err)
    }

    /// Posts receive requests in order until one is refused; returns how many were posted and why
    /// it stopped short. One bell for all; about `wrs` see [`Qp::post_sends`].
    #[inline]
    pub fn post_recvs(&self, wrs: impl IntoIterator<Item = RecvWr>) -> (usize, Option<PostError>) {
        if self.srq.is_some() {
            return (0, Some(PostError::SharedReceives));
        }
        if self.state() == QpState::Error {
            return (0, Some(PostError::WrongState));
        }
        let result = self.shared.recvs.post(wrs, |_| Ok(()));
        self.ring();
        result
    }

    /// Also after a refusal: answering the bell refreshes the room.
    #[inline]
    fn ring(&self) {
        self.context.shard.ring(self.id.index);
    }

    /// Starts to connect to a listener. The outcome is an event: see [`Qp::wait_established`] and
    /// [`Qp::next_event`].
    ///
    /// # Errors
    /// [`CmError`]; nothing was sent.
    pub fn connect(&self, remote: SocketAddr, param: ConnParam) -> Result<(), CmError> {
        self.manage(|machine, now, qp| machine.connect(now, qp, remote, &param))
    }

    /// Ends the connection in good order: what was posted before is carried out and completes,
    /// nothing more can be posted but receives, and when both ends have closed
    /// [`Event::Disconnected`] says so with [`EndReason::Local`]. Waits for nothing itself:
    /// dropping the queue pair or the context before the event flushes what is not done.
    ///
    /// A peer that neither acknowledges nor sends anything for [`Config::linger`] is not waited
    /// for any longer; the reason is then `TimedOut`, if it has not acknowledged everything.
    ///
    /// # Errors
    /// `Gone` if it has no connection, or after the context was closed.
    ///
    /// [`EndReason::Local`]: crate::EndReason::Local
    /// [`Config::linger`]: crate::Config::linger
    pub fn close(&self) -> Result<(), CmError> {
        self.manage(|machine, now, qp| machine.close(now, qp, false))
    }

    /// As [`Qp::close`] for this end's half alone: what the peer sends is received until it closes
    /// in turn. Its RDMA Reads are not answered any more. Silent for two minutes and a half it is
    /// given up.
    ///
    /// # Errors
    /// `WrongState` if it is not connected; `Gone`.
    pub fn half_close(&self) -> Result<(), CmError> {
        self.manage(|machine, now, qp| machine.close(now, qp, true))
    }

    /// Ends the connection now: what completed successfully still arrives, outstanding requests
    /// complete as flushed.
    ///
    /// # Errors
    /// `Gone` if it has no connection, or after the context was closed.
    pub fn disconnect(&self) -> Result<(), CmError> {
        self.manage(|machine, now, qp| machine.disconnect(now, qp))
    }

    /// Ends the connection by force: what waits is not sent any more, the peer is told why with a
    /// Terminate, and outstanding requests complete as flushed.
    ///
    /// # Errors
    /// `Gone` if it has no connection, or after the context was closed.
    pub fn terminate(&self, cause: Abort) -> Result<(), CmError> {
        self.manage(|machine, now, qp| machine.terminate(now, qp, cause))
    }

    /// Sends octets of the application's own on a connection that does not carry FPDUs yet
    /// ([`Event::Streaming`]). Returns how many were taken: 64 KiB wait at a time.
    ///
    /// # Errors
    /// `WrongState` if the connection is not in that phase, `Gone` if there is none.
    pub fn stream_send(&self, octets: &[u8]) -> Result<usize, CmError> {
        self.stream(|machine, qp| machine.stream_send(qp, octets))
    }

    /// Takes octets of the peer's application from such a connection; returns how many. Those not
    /// taken when [`Qp::start_fpdus`] is called are of FPDUs.
    ///
    /// # Errors
    /// As [`Qp::stream_send`].
    pub fn stream_receive(&self, out: &mut [u8]) -> Result<usize, CmError> {
        self.stream(|machine, qp| machine.stream_receive(qp, out))
    }

    /// FPDUs follow in both directions, as the two applications have agreed. See
    /// [`Qp::wait_established`].
    ///
    /// # Errors
    /// As [`Qp::stream_send`].
    pub fn start_fpdus(&self, param: ConnParam) -> Result<(), CmError> {
        self.manage(|machine, now, qp| machine.start_fpdus(now, qp, &param))
    }

    /// A call about a stream of octets, and a pass before and after it.
    fn stream(
        &self,
        act: impl FnOnce(&mut dyn crate::machine::Machine, QpId) -> Result<usize, CmError>,
    ) -> Result<usize, CmError> {
        let id = self.id;
        self.context.shard.drive();
        let done = self.context.shard.control(|machine, _| act(machine, id));
        self.context.shard.drive();
        done.unwrap_or(Err(CmError::Gone))
    }

    pub(crate) fn belongs_to(&self, context: &Arc<Inner>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// A control call about this queue pair, and a pass to carry it out.
    pub(crate) fn manage(
        &self,
        act: impl FnOnce(
            &mut dyn crate::machine::Machine,
            ferrowarp_proto::time::Instant,
            QpId,
        ) -> Result<(), CmError>,
    ) -> Result<(), CmError> {
        let id = self.id;
        let done = self.context.shard.control(|machine, now| act(machine, now, id));
        self.context.shard.drive();
        done.unwrap_or(Err(CmError::Gone))
    }

    /// The oldest event not yet taken. Does not drive.
    #[must_use]
    pub fn next_event(&self) -> Option<Event> {
        self.shared.events.pop()
    }

    /// Waits until the connection is up, driving the shard as its mode asks (and that of the
    /// other end of a pair made by [`Context::ring_pair`]). Takes the event.
    ///
    /// # Errors
    /// Why it could not be set up; `TimedOut` if that is not known after `timeout`.
    pub fn wait_established(&self, timeout: Duration) -> Result<Agreed, ConnectError> {
        self.context
            .wait(timeout, || match self.next_event()? {
                Event::Established { agreed, .. } => Some(Ok(*agreed)),
                Event::ConnectFailed { error, .. } => Some(Err(error)),
                Event::Disconnected { .. } => Some(Err(ConnectError::Reset)),
                _ => None,
            })
            .unwrap_or(Err(ConnectError::TimedOut))
    }

    /// Waits for the next event, driving as [`Qp::wait_established`] does.
    #[must_use]
    pub fn wait_event(&self, timeout: Duration) -> Option<Event> {
        self.context.wait(timeout, || self.next_event())
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        let id = self.id;
        self.context.shard.control(|machine, now| machine.destroy_qp(now, id));
        self.context.shard.drive();
    }
}
