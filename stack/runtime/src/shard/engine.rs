//! State under a shard's lock: the engine, and the shard's side of all queues.

mod abandon;
mod care;
mod ended_cqs;
mod events;
mod requests;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use ferrowarp_lockfree::doorbell::Doorbells;
use ferrowarp_lockfree::spsc::{Consumer, Slots};
use ferrowarp_proto::ddp::regions::StreamId;
use ferrowarp_proto::ddp::untagged::BufferQueue;
use ferrowarp_proto::device::Device;
use ferrowarp_proto::ended::Ended;
use ferrowarp_proto::engine::{ConnectionStatus, Engine};
use ferrowarp_proto::rdmap::requester::Requester;
use ferrowarp_proto::time::Instant;
use ferrowarp_proto::verbs::cm::{
    Abort, CmError, ConnParam, ConnectError, ListenAddr, ReadDepths, RequestId,
};
use ferrowarp_proto::verbs::qp::QpInit;
use ferrowarp_proto::verbs::qp_attrs::QpAttrs;
use ferrowarp_proto::verbs::srq::SrqBuffers;
use ferrowarp_proto::verbs::srq::{SrqError, SrqId};
use ferrowarp_proto::verbs::wc::{CqId, QpId, Wc};

use crate::device::{LinkState, Port};
use crate::events::{AsyncEvent, AsyncEventQueue, EventPublisher};
use crate::memory::HostMemory;
use crate::shard::backlog::{Backlog, PendingRequest};
use crate::shard::control::{RESEND_NS, ShardControl};
use crate::shard::cq_rings::{CqProducer, CqRings};
use crate::shard::mailbox::ShardRequest;
use crate::shard::shard_qps::{NEVER, ShardQp, ShardQps, TAKE_COUNT_MAX};
use crate::shard::srq::SrqShared;
use crate::shard::unbound_qp::UnboundQpTable;
use crate::stats::{Counters, Usage};
use crate::tcp::TcpStats;

/// Engine events routed per poll.
const EVENT_COUNT_MAX: usize = 64;

/// [`ShardControl`] over one kind of device.
pub(crate) struct ShardEngine<D: Device> {
    /// Number of the shard.
    index: usize,
    engine: Engine<D, HostMemory, CqRings>,
    shard_qps: ShardQps,
    srqs: HashMap<SrqId, Arc<SrqShared>>,
    listeners: HashMap<ListenAddr, Arc<Backlog>>,
    /// Connection requests for which the lock of the backlog was held.
    deferred_requests: VecDeque<(ListenAddr, PendingRequest)>,
    publisher: EventPublisher,
    /// Queue pairs of the context that belong to no shard yet.
    unbound: Arc<dyn UnboundQpTable>,
    link: LinkState,
    /// Latest time passed to the engine.
    now: Instant,
    /// The context closes: nothing new begins, because nobody would end it.
    is_closing: bool,
    /// When the handlers of page faults are to be checked next.
    keep_catching_at: Instant,
}

impl<D: Device> ShardEngine<D> {
    pub(crate) fn new(
        index: usize,
        engine: Engine<D, HostMemory, CqRings>,
        events: Arc<AsyncEventQueue>,
        unbound: Arc<dyn UnboundQpTable>,
        link: LinkState,
    ) -> Self {
        Self {
            index,
            engine,
            shard_qps: ShardQps::new(),
            srqs: HashMap::new(),
            listeners: HashMap::new(),
            deferred_requests: VecDeque::new(),
            publisher: EventPublisher::new(events),
            unbound,
            link,
            now: Instant::ZERO,
            is_closing: false,
            keep_catching_at: NEVER,
        }
    }

    /// Makes time monotonic, although threads on several cores read the clock.
    #[inline]
    fn advance(&mut self, now: Instant) -> Instant {
        self.now = self.now.max(now);
        self.now
    }

    /// Fails once the context closes.
    const fn check_open(&self) -> Result<(), Ended> {
        if self.is_closing { Err(Ended::Closed) } else { Ok(()) }
    }

    /// Publishes the engine's state of the queue pair to the application.
    fn publish_state(&mut self, qp: QpId) {
        let shard_qp = self.shard_qps.get(qp);
        if shard_qp.is_some_and(|shard_qp| shard_qp.publish_state(&self.engine)) {
            self.shard_qps.restart(qp);
        }
    }

    /// True if the last poll, or a control call since, has left work to the next poll.
    fn has_leftovers(&mut self) -> bool {
        self.shard_qps.has_restarted()
            || self.engine.event_count() > 0
            || !self.deferred_requests.is_empty()
            || !self.publisher.is_drained()
            || self.engine.completions_mut().has_deferred()
    }

    // A function of its own: what the compiler inlines into `Engine::drive` does not depend on
    // the caller then.
    #[inline(never)]
    fn drive(&mut self, now: Instant) -> bool {
        self.engine.drive_with(now, |engine| {
            // An application on another core sees them before a connection transmits. But states
            // and events come before the completions that a failure has flushed.
            if engine.completions_mut().has_completions() && engine.event_count() == 0 {
                publish_queues(engine, false);
            }
        })
    }
}

impl<D: Port + Send> ShardControl for ShardEngine<D>
where
    Engine<D, HostMemory, CqRings>: Send,
{
    #[inline]
    fn poll(&mut self, now: Instant, doorbells: &Doorbells) -> bool {
        let now = self.advance(now);
        // Before the doorbells: what a thread posts before the peer is triggered to send is taken
        // in time.
        self.engine.rx_burst();
        let mut busy = self.shard_qps.serve_hot(&mut self.engine);
        if self.shard_qps.is_care_due(now) {
            self.care(now, doorbells);
        }
        if doorbells.is_pending() {
            busy |= self.shard_qps.serve_rung(&mut self.engine, now, doorbells);
        }
        busy |= self.drive(now);
        if self.engine.event_count() > 0 {
            busy |= self.route_events(now);
        }
        if !self.deferred_requests.is_empty() {
            self.retry_deferred_requests(now);
            busy = true;
        }
        if !self.publisher.is_drained() {
            self.publisher.retry_deferred();
            busy = true;
        }
        self.publish();
        busy || self.engine.completions_mut().has_deferred()
    }

    fn demote_all(&mut self, doorbells: &Doorbells) {
        self.shard_qps.demote_all(doorbells);
    }

    #[inline]
    fn publish(&mut self) {
        if self.engine.completions_mut().has_unpublished() || self.engine.has_retired_srqs() {
            if self.engine.completions_mut().has_deferred() {
                self.report_overruns();
            }
            publish_queues(&mut self.engine, true);
        }
    }

    fn execute(&mut self, request: ShardRequest) {
        match request {
            ShardRequest::EndCq { cq, overrun } => {
                if self.engine.completions_mut().has_to_end_qps(cq, &overrun) {
                    self.engine.on_cq_overrun(cq);
                }
            }
        }
    }

    fn has_wire(&self) -> bool {
        self.engine.device().has_wire()
    }

    fn deadline(&mut self, now: Instant) -> Option<Instant> {
        if self.has_leftovers() {
            return Some(now);
        }
        let resend = (self.engine.device().transmit_backlog() > 0).then(|| now + RESEND_NS);
        self.engine.deadline().into_iter().chain(resend).min()
    }

    fn observe_removal(&self, observer: Box<dyn FnOnce() + Send>) {
        self.engine.device().observe_removal(observer);
    }

    fn wake_by(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.engine.device().wake_by(wake);
    }

    fn leave(&self) {
        self.engine.device().leave();
    }

    fn add_cq(&mut self, id: CqId, producer: CqProducer) {
        self.engine.completions_mut().add(id, producer);
    }

    fn remove_cq(&mut self, cq: CqId) {
        self.engine.completions_mut().remove(cq);
        self.engine.forget_cq(cq);
        self.publisher.forget(AsyncEvent::CqOverrun { cq });
    }

    fn resize_cq(
        &mut self,
        cq: CqId,
        consumer: &mut Consumer<Wc>,
        slots: &mut Slots<Wc>,
    ) -> Result<(), usize> {
        self.engine.completions_mut().resize(cq, consumer, slots)
    }

    fn create_qp(
        &mut self,
        id: QpId,
        stream: StreamId,
        init: QpInit,
        requester: Requester,
        recv_queue: BufferQueue,
    ) -> Result<(), CmError> {
        self.check_open()?;
        self.engine.create_qp_as(id, stream, init, requester, recv_queue)
    }

    fn attach(&mut self, shard_qp: ShardQp) {
        self.shard_qps.insert(shard_qp);
    }

    fn destroy_qp(&mut self, now: Instant, qp: QpId) {
        let now = self.advance(now);
        self.shard_qps.remove(qp);
        self.publisher.forget(AsyncEvent::Connection { qp });
        self.engine.destroy_qp(now, qp);
    }

    fn end_idle_qp(&mut self, qp: QpId, cq: CqId) {
        self.end_idle(qp, cq);
    }

    fn tcp_stats(&self, qp: QpId) -> Option<TcpStats> {
        self.engine.tcp_stats(qp)
    }

    fn qp_attrs(&self, qp: QpId) -> Option<QpAttrs> {
        self.engine.qp_attrs(qp)
    }

    fn with_link(&self, qp: QpId, error: ConnectError) -> ConnectError {
        self.name_link(qp, error)
    }

    fn create_srq(
        &mut self,
        pd: u32,
        buffers: Arc<SrqBuffers>,
        number: usize,
        shared: Arc<SrqShared>,
    ) -> Result<SrqId, SrqError> {
        let id = self.engine.create_srq_with(pd, buffers, number)?;
        self.srqs.insert(id, shared);
        Ok(id)
    }

    fn attach_srq(&mut self, qp: QpId, srq: SrqId) -> Result<(), SrqError> {
        self.engine.attach_srq(qp, srq)
    }

    fn arm_srq(&mut self, srq: SrqId, limit: usize) -> Result<(), SrqError> {
        let armed = self.engine.arm_srq(srq, limit);
        self.route_events(self.now);
        armed
    }

    fn cap_srq(&mut self, srq: SrqId, cap: usize) -> Result<(), SrqError> {
        self.engine.cap_srq(srq, cap)
    }

    fn destroy_srq(&mut self, srq: SrqId) {
        // Fails while a queue pair uses it; those keep the handle.
        if self.engine.destroy_srq(srq).is_ok()
            && let Some(shared) = self.srqs.remove(&srq)
        {
            self.publisher.forget(shared.event());
        }
    }

    fn listen(&mut self, backlog: Arc<Backlog>, unframed: bool) -> Result<(), CmError> {
        self.check_open()?;
        let addr = backlog.addr();
        if unframed {
            self.engine.listen_unframed(addr, backlog.capacity())?;
        } else {
            self.engine.listen(addr, backlog.capacity())?;
        }
        self.listeners.insert(addr, backlog);
        Ok(())
    }

    fn unlisten(&mut self, addr: ListenAddr) {
        self.listeners.remove(&addr);
        self.publisher.forget(AsyncEvent::ConnectRequest { listener: addr });
        self.engine.unlisten(addr);
        self.reject_deferred_requests(addr);
    }

    fn connect(
        &mut self,
        now: Instant,
        qp: QpId,
        remote: SocketAddr,
        param: &ConnParam,
    ) -> Result<(), CmError> {
        self.check_open()?;
        let now = self.advance(now);
        let result = self.engine.connect(now, qp, remote, param);
        self.publish_state(qp);
        result
    }

    fn shard_of_replies(&self, remote: SocketAddr, param: &ConnParam) -> Option<usize> {
        self.engine.shard_of_replies(remote, param)
    }

    fn accept(
        &mut self,
        now: Instant,
        request: RequestId,
        qp: QpId,
        param: &ConnParam,
    ) -> Result<(), CmError> {
        let now = self.advance(now);
        let result = self.engine.accept(now, request, qp, param);
        self.publish_state(qp);
        result
    }

    fn is_request_pending(&self, request: RequestId) -> bool {
        self.engine.is_request_pending(request)
    }

    fn reject(
        &mut self,
        now: Instant,
        request: RequestId,
        reads: ReadDepths,
        data: &[u8],
    ) -> Result<(), CmError> {
        let now = self.advance(now);
        self.engine.reject(now, request, reads, data)
    }

    fn stream_send(&mut self, qp: QpId, bytes: &[u8]) -> Result<usize, CmError> {
        self.engine.stream_send(qp, bytes)
    }

    fn stream_receive(&mut self, qp: QpId, out: &mut [u8]) -> Result<usize, CmError> {
        self.engine.stream_receive(qp, out)
    }

    fn start_fpdus(&mut self, now: Instant, qp: QpId, param: &ConnParam) -> Result<(), CmError> {
        let now = self.advance(now);
        let result = self.engine.start_fpdus(now, qp, param);
        self.publish_state(qp);
        result
    }

    fn disconnect(&mut self, now: Instant, qp: QpId) -> Result<(), CmError> {
        let now = self.advance(now);
        let result = self.engine.disconnect(now, qp);
        self.publish_state(qp);
        result
    }

    fn to_error(&mut self, now: Instant, qp: QpId) {
        let now = self.advance(now);
        if self.engine.disconnect(now, qp).is_err() {
            self.engine.end_idle_qp(qp);
        }
        self.publish_state(qp);
    }

    fn take_posted(&mut self, qp: QpId) -> bool {
        let shard_qp = self.shard_qps.get_mut(qp);
        shard_qp.is_some_and(|shard_qp| shard_qp.serve(&mut self.engine, TAKE_COUNT_MAX).any)
    }

    fn close(&mut self, now: Instant, qp: QpId, half: bool) -> Result<(), CmError> {
        let now = self.advance(now);
        let result =
            if half { self.engine.half_close(now, qp) } else { self.engine.close(now, qp) };
        self.publish_state(qp);
        result
    }

    fn terminate(&mut self, now: Instant, qp: QpId, cause: Abort) -> Result<(), CmError> {
        let now = self.advance(now);
        let result = self.engine.terminate(now, qp, cause);
        self.publish_state(qp);
        result
    }

    fn on_link_lost(&mut self, now: Instant) {
        let now = self.advance(now);
        self.engine.on_link_lost(now);
        while self.route_events(now) {}
    }

    fn disconnect_all(&mut self, now: Instant) {
        self.is_closing = true;
        let now = self.advance(now);
        for (addr, backlog) in std::mem::take(&mut self.listeners) {
            self.engine.unlisten(addr);
            self.publisher.queue().end_source(backlog.event(), backlog.source());
        }
        // Those in the application's hands as well.
        self.engine.abort_requests();
        for shard_qp in self.shard_qps.iter() {
            let is_connected = self.engine.disconnect(now, shard_qp.id).is_ok();
            shard_qp.shared.close(Ended::Closed);
            if !is_connected {
                // No event follows.
                let event = AsyncEvent::Connection { qp: shard_qp.id };
                self.publisher.queue().end_source(event, shard_qp.shared.source());
            }
        }
    }

    fn connections(&mut self, now: Instant) -> Vec<ConnectionStatus> {
        let now = self.advance(now);
        self.engine.connections(now)
    }

    fn connection_count(&self) -> usize {
        self.engine.connection_count()
    }

    fn unfinished_count(&self) -> usize {
        self.engine.unfinished_count()
    }

    fn counters(&self) -> Counters {
        let device = self.engine.device().port_counters();
        Counters { engine: *self.engine.counters(), device }
    }

    fn usage(&self) -> Usage {
        Usage { engine: self.engine.usage(), frames_free: self.engine.device().frames_free() }
    }
}

/// Publishes the free slots of queues, then completions. Before the end of a poll (`is_last`) the
/// queue pairs stay listed: requests that are taken and complete without a signal free more slots.
#[inline(never)]
fn publish_queues<D: Device>(engine: &mut Engine<D, HostMemory, CqRings>, is_last: bool) {
    engine.publish_retired_srqs();
    let mut index = 0;
    while let Some(qp) = engine.completions_mut().dirty(index) {
        engine.publish_retired(qp);
        index += 1;
    }
    if is_last {
        engine.completions_mut().clear_dirty();
    }
    engine.completions_mut().publish();
}

impl<D: Device> Drop for ShardEngine<D> {
    fn drop(&mut self) {
        // Nobody takes what is posted any more. Threads that wait are woken when the event queue is
        // closed, after this.
        self.shard_qps.iter().for_each(|shard_qp| shard_qp.shared.close(Ended::Closed));
    }
}
