//! Calls of the application: queue pairs and posting; [`lifecycle`]: listeners and connections.

mod lifecycle;

use std::sync::Arc;

use crate::ddp::memory::Memory;
use crate::ddp::recv_queue::{RqCap, recv_queue};
use crate::ddp::regions::{AccessScope, StreamId};
use crate::ddp::untagged::BufferQueue;
use crate::device::Device;
use crate::engine::Engine;
use crate::rdmap::requester::Requester;
use crate::time::Instant;
use crate::verbs::cm::{CmError, ConnEvent, ConnectError, EndReason};
use crate::verbs::qp::{QpInit, QpState};
use crate::verbs::qp_attrs::QpAttrs;
use crate::verbs::srq::SrqBuffers;
use crate::verbs::srq::{SrqError, SrqId};
use crate::verbs::wc::{Completions, CqId, QpId};
use crate::verbs::wr::{PostError, RecvWr, SendRights, SendWr};

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Creates a queue pair.
    ///
    /// # Errors
    /// [`CmError::NoResources`] when the limit is reached.
    pub fn create_qp(&mut self, init: QpInit) -> Result<QpId, CmError> {
        let requester = Requester::new(init.cap.sends);
        self.create_qp_with(init, requester, BufferQueue::new(init.cap.recvs))
    }

    /// Creates a queue pair with work queues made before, of `init.cap`. If they belong to
    /// [`WorkQueues`](crate::verbs::work_queues::WorkQueues), the producers post to them instead of
    /// [`Engine::post_send`] and [`Engine::post_recv`], and call [`Engine::take_sends`] and
    /// [`Engine::on_recvs_posted`]. It takes a while to zero the memory of a long queue: make the
    /// queues before you lock the engine.
    ///
    /// # Errors
    /// As [`Engine::create_qp`].
    pub fn create_qp_with(
        &mut self,
        init: QpInit,
        requester: Requester,
        recv_queue: BufferQueue,
    ) -> Result<QpId, CmError> {
        self.sweep_events();
        // Slot indices are not unique among engines: the stream gets an ID of its own.
        let stream = self.cx.verbs.memory.regions().new_stream_id();
        self.cx.qps.create(None, stream, init, requester, recv_queue)
    }

    /// Creates a queue pair with a handle chosen by the caller, who has the queue pairs of several
    /// engines: its index must not be in use in this one. The memory of an engine grows
    /// with the largest index, by four bytes each. `stream`: a new ID of the region table.
    ///
    /// # Errors
    /// As [`Engine::create_qp`]; also if the index is in use.
    pub fn create_qp_as(
        &mut self,
        id: QpId,
        stream: StreamId,
        init: QpInit,
        requester: Requester,
        recv_queue: BufferQueue,
    ) -> Result<(), CmError> {
        self.sweep_events();
        self.cx.qps.create(Some(id), stream, init, requester, recv_queue).map(|_| ())
    }

    /// Destroys a queue pair. Its connection, if any, ends as by [`Engine::disconnect`];
    /// completions and events not reported yet are dropped.
    pub fn destroy_qp(&mut self, now: Instant, qp: QpId) {
        let _ = self.disconnect(now, qp);
        if let Ok((conn, _)) = self.connection_of(qp) {
            conn.on_qp_destroyed();
        }
        self.cx.qps.destroy(&mut self.cx.verbs, qp);
    }

    /// Ends the queue pairs of a completion queue that overran in another engine, in the next pass.
    /// [`ConnEvent::CqOverrun`] reports it here as well.
    ///
    /// [`ConnEvent::CqOverrun`]: crate::verbs::cm::ConnEvent::CqOverrun
    pub fn on_cq_overrun(&mut self, cq: CqId) {
        self.cx.verbs.on_cq_overrun(cq);
    }

    /// Moves a queue pair without a connection to the error state, because a completion queue that
    /// it uses overran before the engine had it. Its requests are flushed; no event reports it.
    pub fn end_idle_qp(&mut self, qp: QpId) {
        if let Some(qp) = self.cx.qps.by_id_mut(qp)
            && qp.conn.is_none()
        {
            qp.enter_error(&mut self.cx.verbs, EndReason::LocalError);
        }
    }

    /// Ends a queue pair of an engine that will not be driven again, for example after a panic.
    /// Nothing is sent; outstanding requests are reported as flushed, as far as the completion
    /// queues have free slots.
    pub fn abandon_qp(&mut self, qp: QpId) {
        if let Some(qp) = self.cx.qps.by_id_mut(qp) {
            qp.abandon(&mut self.cx.verbs);
        }
    }

    /// Leaves the buffers of shared receive queues that an engine has taken, and will not be driven
    /// again, to the others that have the queues: after [`Engine::abandon_qp`], for all queue
    /// pairs.
    pub fn abandon_srqs(&mut self) {
        self.cx.verbs.abandon_srqs();
    }

    /// Returns the state of a queue pair; `Error` if there is none.
    #[must_use]
    pub fn qp_state(&self, qp: QpId) -> QpState {
        self.qp_status(qp).0
    }

    /// Returns the state of a queue pair, and the rights to post that its connection gives;
    /// `Error` and no rights if there is none.
    #[must_use]
    pub fn qp_status(&self, qp: QpId) -> (QpState, SendRights) {
        let found = self.cx.qps.by_id(qp);
        found.map_or((QpState::Error, SendRights::NONE), |qp| (qp.state(), qp.send_rights()))
    }

    /// Returns the attributes of a queue pair and of its connection; `None` if there is none.
    #[must_use]
    pub fn qp_attrs(&self, qp: QpId) -> Option<QpAttrs> {
        let qp = self.cx.qps.by_id(qp)?;
        let conn = qp.conn.and_then(|conn| self.connections.get(conn));
        Some(qp.attrs(conn.map(|conn| conn.tcb.tuple())))
    }

    /// Replaces the reason why the connection of a queue pair could not be set up, by one that only
    /// the caller knows.
    pub fn set_connect_error(&mut self, qp: QpId, error: ConnectError) {
        if let Some(qp) = self.cx.qps.by_id_mut(qp) {
            qp.set_connect_error(error);
        }
    }

    /// True if the peer of a queue pair's connection, or of its last one, has an own address, or is
    /// another user of the port.
    #[must_use]
    pub fn has_local_peer(&self, qp: QpId) -> bool {
        let peer = self.qp_attrs(qp).and_then(|attrs| attrs.peer);
        peer.is_some_and(|peer| self.cx.hairpins_to(peer.ip()))
    }

    /// Forgets a completion queue that is destroyed: events that are not taken yet do not name it,
    /// so that its ID can be used for another.
    pub fn forget_cq(&mut self, cq: CqId) {
        self.cx.verbs.forget_cq(cq);
        self.event_sweep.retain(|event| *event != ConnEvent::CqOverrun { cq });
    }

    /// Returns the access scope of a queue pair: its protection domain and the ID of its stream,
    /// which is unique among all engines that share the [`Memory`]. `None` if there is no such
    /// queue pair.
    #[must_use]
    pub fn qp_access_scope(&self, qp: QpId) -> Option<AccessScope> {
        self.cx.qps.by_id(qp).map(|qp| qp.stream.access_scope())
    }

    /// Posts a work request to the send queue. It waits there until the queue pair is connected,
    /// and is flushed after the end of the connection.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted. `QueueFull` also if the application posts to
    /// the queue itself: see [`Engine::create_qp_with`].
    pub fn post_send(&mut self, qp: QpId, wr: SendWr) -> Result<(), PostError> {
        let found = self.cx.qps.by_id_mut(qp).ok_or(PostError::NoSuchQp)?;
        found.post_send(&wr)?;
        self.take_sends(qp, usize::MAX);
        Ok(())
    }

    /// Takes the requests that were posted to a send queue, at most `max`; returns their number,
    /// and whether there are more. They are executed, or rejected if the connection has changed
    /// since they were posted. Before the connection none is taken: call again once it is
    /// established.
    pub fn take_sends(&mut self, qp: QpId, max: usize) -> (usize, bool) {
        let Self { connections, cx, .. } = self;
        let Some(qp) = cx.qps.by_id_mut(qp) else { return (0, false) };
        let count = qp.take_sends(&mut cx.verbs, max);
        let requester = &mut qp.stream.requester;
        let is_left = count == max && requester.has_posted();
        if count == 0 {
            return (0, false);
        }
        if requester.has_local_ops() {
            qp.execute_local_ops(&mut cx.verbs);
        }
        if let Some(conn) = qp.conn.and_then(|conn| connections.get_mut(conn)) {
            conn.make_ready(&mut cx.schedule);
        }
        (count, is_left)
    }

    /// Lets the application post as many requests to the queues of a queue pair as have completed.
    #[inline]
    pub fn publish_retired(&mut self, qp: QpId) {
        if let Some(qp) = self.cx.qps.by_id_mut(qp) {
            qp.stream.requester.publish_retired();
            qp.stream.recv_queue.publish_retired();
        }
    }

    /// To be called after the application has posted receives itself: in the error state they are
    /// flushed. Messages that arrive find them without it.
    #[inline]
    pub fn on_recvs_posted(&mut self, qp: QpId) {
        if let Some(qp) = self.cx.qps.by_id_mut(qp) {
            qp.on_recvs_posted(&mut self.cx.verbs);
        }
    }

    /// Posts a buffer to the receive queue.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted. `QueueFull` also if the application posts to
    /// the queue itself: see [`Engine::create_qp_with`].
    pub fn post_recv(&mut self, qp: QpId, wr: RecvWr) -> Result<(), PostError> {
        let qp = self.cx.qps.by_id_mut(qp).ok_or(PostError::NoSuchQp)?;
        qp.post_recv(&mut self.cx.verbs, wr)
    }

    /// Creates a shared receive queue in the protection domain `pd`.
    ///
    /// # Errors
    /// [`SrqError::TooMany`].
    pub fn create_srq(&mut self, pd: u32, cap: RqCap) -> Result<SrqId, SrqError> {
        let (producer, rq, _) = recv_queue(cap);
        let buffers = Arc::new(SrqBuffers::with_producer(rq, Some(producer), 1));
        self.cx.verbs.create_srq(pd, buffers, 0)
    }

    /// Creates a shared receive queue with buffers to whose producer the application posts, instead
    /// of [`Engine::post_srq_recv`]: the engine finds them there. Several engines may share them:
    /// `number` is the number of this one among them.
    ///
    /// # Errors
    /// [`SrqError::TooMany`].
    pub fn create_srq_with(
        &mut self,
        pd: u32,
        buffers: Arc<SrqBuffers>,
        number: usize,
    ) -> Result<SrqId, SrqError> {
        self.cx.verbs.create_srq(pd, buffers, number)
    }

    /// Destroys a shared receive queue and drops the buffers in it.
    ///
    /// # Errors
    /// `InUse` while queue pairs are attached; `NoSuchSrq`.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), SrqError> {
        self.cx.verbs.destroy_srq(srq)
    }

    /// Attaches a queue pair that is not connected to a shared receive queue for good; buffers
    /// posted to its own queue are dropped.
    ///
    /// # Errors
    /// `NoSuchSrq`, `NoSuchQp`; `NotIdle`; `OtherDomain` if their protection domains differ.
    pub fn attach_srq(&mut self, qp: QpId, srq: SrqId) -> Result<(), SrqError> {
        self.cx.qps.attach_srq(&mut self.cx.verbs, qp, srq)
    }

    /// Lets the application post as many buffers to its shared receive queues as messages have
    /// used: at the end of a pass, or of a call in which received data was processed. A pass does
    /// it itself, but after it has transmitted.
    #[inline]
    pub fn publish_retired_srqs(&mut self) {
        self.cx.qps.end_srq_pass(&mut self.cx.verbs);
    }

    /// True if [`Engine::publish_retired_srqs`] has anything to publish.
    #[inline]
    pub const fn has_retired_srqs(&self) -> bool {
        self.cx.verbs.has_used_srqs()
    }

    /// Posts a buffer to a shared receive queue.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted. `QueueFull` also if the application posts to the queue
    /// itself.
    pub fn post_srq_recv(&mut self, srq: SrqId, wr: RecvWr) -> Result<(), PostError> {
        self.cx.qps.post_srq_recv(&mut self.cx.verbs, srq, wr)
    }

    /// Limits each queue pair to `cap` buffers of a shared receive queue at a time: those taken by
    /// it and not replaced. A message beyond that ends its connection, as with an empty queue. 0,
    /// the default: no cap.
    ///
    /// # Errors
    /// `NoSuchSrq`.
    pub fn cap_srq(&mut self, srq: SrqId, cap: usize) -> Result<(), SrqError> {
        self.cx.verbs.cap_srq(srq, cap)
    }

    /// Returns the number of buffers that fit into a shared receive queue now.
    #[must_use]
    pub fn free_srq_slots(&self, srq: SrqId) -> usize {
        self.cx.verbs.free_srq_slots(srq)
    }

    /// Arms the limit: raises [`ConnEvent::SrqLimit`] once when fewer than `limit` buffers are
    /// left, at once if fewer are now. Resets the count of buffers that each queue pair took. 0
    /// disarms it.
    ///
    /// # Errors
    /// `NoSuchSrq`.
    ///
    /// [`ConnEvent::SrqLimit`]: crate::verbs::cm::ConnEvent::SrqLimit
    pub fn arm_srq(&mut self, srq: SrqId, limit: usize) -> Result<(), SrqError> {
        self.publish_retired_srqs();
        self.cx.verbs.arm_srq(srq, limit)
    }

    /// Returns the number of buffers of its shared receive queue that a queue pair holds.
    #[must_use]
    pub fn srq_outstanding(&self, qp: QpId) -> usize {
        self.cx.qps.srq_outstanding(&self.cx.verbs, qp)
    }

    /// Returns the number of buffers that a queue pair has taken from its shared receive queue
    /// since the limit was armed. It shows a peer that takes more than its fair share, so that its
    /// connection can be ended.
    // req: DDP-218, RDMAP-297
    #[must_use]
    pub fn srq_taken(&self, qp: QpId) -> u64 {
        self.cx.qps.srq_taken(&self.cx.verbs, qp)
    }
}
