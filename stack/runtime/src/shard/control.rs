//! Operations on a shard's engine and queues, for the holder of its lock.

use std::net::SocketAddr;
use std::sync::Arc;

use ferrowarp_lockfree::doorbell::Doorbells;
use ferrowarp_lockfree::spsc::{Consumer, Slots};
use ferrowarp_proto::ddp::regions::StreamId;
use ferrowarp_proto::ddp::untagged::BufferQueue;
use ferrowarp_proto::engine::ConnectionStatus;
use ferrowarp_proto::rdmap::requester::Requester;
use ferrowarp_proto::time::Instant;
use ferrowarp_proto::verbs::cm::{
    Abort, CmError, ConnParam, ConnectError, EndReason, ListenAddr, ReadDepths, RequestId,
};
use ferrowarp_proto::verbs::qp::QpInit;
use ferrowarp_proto::verbs::qp_attrs::QpAttrs;
use ferrowarp_proto::verbs::srq::SrqBuffers;
use ferrowarp_proto::verbs::srq::{SrqError, SrqId};
use ferrowarp_proto::verbs::wc::{CqId, QpId, Wc};

use crate::shard::backlog::Backlog;
use crate::shard::cq_rings::CqProducer;
use crate::shard::mailbox::ShardRequest;
use crate::shard::shard_qps::ShardQp;
use crate::shard::srq::SrqShared;
use crate::stats::{Counters, Usage};
use crate::tcp::TcpStats;

/// Time after which a port that accepted no more frames is tried again, in nanoseconds.
pub(crate) const RESEND_NS: u64 = 50_000;

/// End of the queue pairs of an engine that is not polled any more.
pub(crate) trait ShardEnd {
    /// Takes the queue pairs that belong to no shard, because the context closes.
    fn adopt_unbound(&mut self);
    /// Called once after the last poll: flushes what was posted since, and waits a second at most
    /// for threads that are posting. Nothing can be posted after it.
    fn close_queues(&mut self);

    /// Called once after a panic, or for a device to be removed, before the engine is dropped: ends
    /// every queue pair with an event, for `reason`, and flushes its requests, without sending
    /// anything. `is_last`: no other shard of the context runs.
    fn abandon(&mut self, is_last: bool, reason: EndReason);
    /// After [`ShardEnd::abandon`], even if that has panicked: publishes the failure. If it is
    /// the last shard, the listeners of the context end, and its event channel.
    fn publish_failure(&mut self, is_last: bool);
    /// After [`ShardEnd::abandon`]: flushes what was posted to a queue pair meanwhile.
    fn flush_posted(&mut self, qp: QpId);
}

/// Engine and queues of a shard, independent of the device type. One virtual call per poll.
pub(crate) trait ShardControl: ShardEnd + Send {
    /// One poll: takes posted work, runs the engine, publishes events and completions. True if
    /// there was anything to do.
    fn poll(&mut self, now: Instant, doorbells: &Doorbells) -> bool;
    /// Demotes all hot queue pairs: the caller stops polling.
    fn demote_all(&mut self, doorbells: &Doorbells);
    /// Publishes free queue slots and completions that result from an action outside a poll.
    fn publish(&mut self);

    /// Executes a request of another shard.
    fn execute(&mut self, request: ShardRequest);
    /// True if the queue of the port has a link: over memif and vhost, if the peer has one as well.
    fn has_wire(&self) -> bool;
    /// Time at which the next poll is due, at the latest, if nothing arrives or is posted before;
    /// `None` if no timer runs.
    fn deadline(&mut self, now: Instant) -> Option<Instant>;
    /// See [`Port::observe_removal`](crate::device::Port::observe_removal).
    fn observe_removal(&self, observer: Box<dyn FnOnce() + Send>);
    /// See [`Port::wake_by`](crate::device::Port::wake_by).
    fn wake_by(&self, wake: Box<dyn Fn() + Send + Sync>);
    /// See [`Port::leave`](crate::device::Port::leave).
    fn leave(&self);

    fn add_cq(&mut self, id: CqId, producer: CqProducer);
    fn remove_cq(&mut self, cq: CqId);
    /// See [`CqRings::resize`](crate::shard::CqRings::resize).
    fn resize_cq(
        &mut self,
        cq: CqId,
        consumer: &mut Consumer<Wc>,
        slots: &mut Slots<Wc>,
    ) -> Result<(), usize>;

    /// Creates a queue pair with a number and a stream ID of the context.
    fn create_qp(
        &mut self,
        id: QpId,
        stream: StreamId,
        init: QpInit,
        requester: Requester,
        recv_queue: BufferQueue,
    ) -> Result<(), CmError>;
    /// Connects the work queues to a queue pair just created.
    fn attach(&mut self, shard_qp: ShardQp);
    fn destroy_qp(&mut self, now: Instant, qp: QpId);
    /// Ends a queue pair just attached, because a completion queue that it uses has overrun before.
    fn end_idle_qp(&mut self, qp: QpId, cq: CqId);
    fn tcp_stats(&self, qp: QpId) -> Option<TcpStats>;
    fn qp_attrs(&self, qp: QpId) -> Option<QpAttrs>;
    /// Names the link as the cause if it is down and a peer beyond it does not answer.
    fn with_link(&self, qp: QpId, error: ConnectError) -> ConnectError;

    /// Creates a shared receive queue; `shared` is of its application's side, and `number` is that
    /// of this shard among those that share the buffers. Returns the handle in the engine.
    fn create_srq(
        &mut self,
        pd: u32,
        buffers: Arc<SrqBuffers>,
        number: usize,
        shared: Arc<SrqShared>,
    ) -> Result<SrqId, SrqError>;
    fn attach_srq(&mut self, qp: QpId, srq: SrqId) -> Result<(), SrqError>;
    fn arm_srq(&mut self, srq: SrqId, limit: usize) -> Result<(), SrqError>;
    fn cap_srq(&mut self, srq: SrqId, cap: usize) -> Result<(), SrqError>;
    fn destroy_srq(&mut self, srq: SrqId);

    /// `unframed`: the connections have no MPA startup frames.
    fn listen(&mut self, backlog: Arc<Backlog>, unframed: bool) -> Result<(), CmError>;
    fn unlisten(&mut self, addr: ListenAddr);
    fn connect(
        &mut self,
        now: Instant,
        qp: QpId,
        remote: SocketAddr,
        param: &ConnParam,
    ) -> Result<(), CmError>;
    /// See [`Engine::shard_of_replies`](ferrowarp_proto::engine::Engine::shard_of_replies).
    fn shard_of_replies(&self, remote: SocketAddr, param: &ConnParam) -> Option<usize>;
    fn accept(
        &mut self,
        now: Instant,
        request: RequestId,
        qp: QpId,
        param: &ConnParam,
    ) -> Result<(), CmError>;
    /// True while a request waits to be accepted or rejected.
    fn is_request_pending(&self, request: RequestId) -> bool;
    fn reject(
        &mut self,
        now: Instant,
        request: RequestId,
        reads: ReadDepths,
        data: &[u8],
    ) -> Result<(), CmError>;
    fn disconnect(&mut self, now: Instant, qp: QpId) -> Result<(), CmError>;
    /// Moves a queue pair to the error state, whether it has a connection or not.
    fn to_error(&mut self, now: Instant, qp: QpId);
    /// Takes posted requests of a queue pair, a few hundred at most; the next poll takes the rest.
    /// True if there were any. To be called before a graceful close.
    fn take_posted(&mut self, qp: QpId) -> bool;
    /// Closes gracefully, after all posted requests have been taken. `half`: closes only the local
    /// direction; the peer may send for as long as it wants.
    fn close(&mut self, now: Instant, qp: QpId, half: bool) -> Result<(), CmError>;
    fn terminate(&mut self, now: Instant, qp: QpId, cause: Abort) -> Result<(), CmError>;
    fn stream_send(&mut self, qp: QpId, bytes: &[u8]) -> Result<usize, CmError>;
    fn stream_receive(&mut self, qp: QpId, out: &mut [u8]) -> Result<usize, CmError>;
    fn start_fpdus(&mut self, now: Instant, qp: QpId, param: &ConnParam) -> Result<(), CmError>;
    /// Ends every connection: the process at the other end of the link is gone.
    fn on_link_lost(&mut self, now: Instant);
    /// Disconnects every queue pair and ends every listener.
    fn disconnect_all(&mut self, now: Instant);

    fn connections(&mut self, now: Instant) -> Vec<ConnectionStatus>;
    fn connection_count(&self) -> usize;
    /// Connections not closed in both directions: all but those in TIME-WAIT.
    fn unfinished_count(&self) -> usize;
    fn counters(&self) -> Counters;
    fn usage(&self) -> Usage;
}
