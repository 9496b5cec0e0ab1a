//! Queue pairs: posting, in-order completion, and the flush at the end of a stream.

use std::collections::VecDeque;

use crate::ddp::memory::Memory;
use crate::ddp::regions::AccessScope;
use crate::ddp::untagged::{DeliveredMessage, UntaggedBuffer};
use crate::engine::connection::NEVER;
use crate::engine::counters::Counters;
use crate::engine::graceful_close::CloseProgress;
use crate::engine::slab::Slab;
use crate::engine::srq::{Srq, SrqUsage};
use crate::rdmap::operation::{ImmediateData, MESSAGE_LEN_MAX};
use crate::rdmap::requester::{Request, RequestOutcome};
use crate::rdmap::stream::Stream;
use crate::time::Instant;
use crate::verbs::cm::{CmError, EndReason, Event};
use crate::verbs::qp::{QpInit, QpState};
use crate::verbs::wc::{Completions, CqId, QpId, Wc, WcOpcode, WcStatus};
use crate::verbs::wr::{PostError, RecvWr, SendWr};
use crate::wire::seq::Seq;

/// A queue pair.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) stream: Stream,
    pub(super) state: QpState,
    pub(super) init: QpInit,
    /// Connection of the queue pair.
    pub(super) conn: Option<u32>,
    /// Receive completions that found the completion queue full, and those behind them; oldest
    /// first.
    pending_wc: VecDeque<Wc>,
    /// Number of the request that the peer's Terminate refers to, and its completion status.
    terminated_request: Option<(u64, WcStatus)>,
    flushing: bool,
    /// RDMA Writes are placed out of order.
    pub(super) ooo_placement: bool,
    /// Use of a shared receive queue, if attached to one.
    pub(super) srq: Option<SrqUsage>,
    /// A request completed in error: those behind it are flushed, even if they succeeded.
    flush_following: bool,
    /// The connection continues after the peer's FIN.
    pub(super) half_close: bool,
    /// The application has closed the connection, not the peer.
    pub(super) closed_locally: bool,
    /// FIN is due or was sent: nothing more can be sent to the peer.
    pub(super) tx_closed: bool,
    /// Deadline of the graceful close.
    pub(super) close_deadline: Instant,
    /// RCV.NXT when the close began or its deadline last passed; before that, at establishment.
    pub(super) last_rcv_nxt: Seq,
    /// Progress of the connection during its close.
    pub(super) close_progress: CloseProgress,
    /// Number of siw wake-ups sent.
    pub(super) siw_wakeups: u8,
}

/// Verbs half of an engine: everything that does not involve TCP.
pub(super) struct QueuePairs<M, C> {
    pub(super) memory: M,
    pub(super) completions: C,
    pub(super) events: VecDeque<Event>,
    pub(super) counters: Counters,
    qps: Slab<Qp>,
    pub(super) srqs: Slab<Srq>,
    /// Queue pairs with work to flush.
    flushing: Vec<u32>,
}

impl<M: Memory, C: Completions> QueuePairs<M, C> {
    pub(super) fn new(memory: M, completions: C, count_max: usize) -> Self {
        Self {
            memory,
            completions,
            events: VecDeque::new(),
            counters: Counters::default(),
            qps: Slab::new(count_max),
            srqs: Slab::new(count_max),
            flushing: Vec::new(),
        }
    }

    pub(super) fn create(&mut self, init: QpInit) -> Result<QpId, CmError> {
        // Slot indices are not unique among engines: the stream gets an ID of its own.
        let reach = AccessScope { pd: init.pd, stream: self.memory.regions().new_stream_id() };
        let qp = Qp {
            stream: Stream::new(reach, init.max_send_wr, init.max_recv_wr),
            state: QpState::Idle,
            init,
            conn: None,
            pending_wc: VecDeque::new(),
            terminated_request: None,
            flushing: false,
            ooo_placement: false,
            srq: None,
            flush_following: false,
            half_close: false,
            closed_locally: false,
            tx_closed: false,
            close_deadline: NEVER,
            last_rcv_nxt: Seq(0),
            close_progress: CloseProgress::NEW,
            siw_wakeups: 0,
        };
        let (index, generation) = self.qps.insert(qp).ok_or(CmError::NoResources)?;
        Ok(QpId { index, generation })
    }

    /// Destroys a queue pair; completions not reported yet are dropped.
    pub(super) fn destroy(&mut self, qp: QpId) {
        if let Some(index) = self.index(qp) {
            let share = self.qps.remove(index).and_then(|qp| qp.srq);
            self.detach_srq(share);
            self.flushing.retain(|&flushing| flushing != index);
        }
    }

    /// Returns the access scope of a queue pair.
    pub(super) fn access_scope(&self, qp: QpId) -> Option<AccessScope> {
        self.index(qp).and_then(|index| self.get(index)).map(|qp| qp.stream.access_scope())
    }

    pub(super) fn index(&self, qp: QpId) -> Option<u32> {
        self.qps.live_index(qp.index, qp.generation)
    }

    pub(super) fn id(&self, index: u32) -> QpId {
        QpId { index, generation: self.qps.generation(index) }
    }

    pub(super) fn indices(&self) -> impl Iterator<Item = u32> {
        self.qps.indices()
    }

    pub(super) fn get(&self, index: u32) -> Option<&Qp> {
        self.qps.get(index)
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Qp> {
        self.qps.get_mut(index)
    }

    /// True if RDMA Writes may be placed out of order.
    pub(super) fn allows_ooo_placement(&self, index: u32) -> bool {
        self.qps.get(index).is_some_and(|qp| qp.ooo_placement)
    }

    /// Returns a queue pair, and the memory its stream uses.
    pub(super) fn qp_and_memory(&mut self, index: u32) -> (Option<&mut Qp>, &M) {
        (self.qps.get_mut(index), &self.memory)
    }

    /// Posts a request to the send queue. In the error state it is accepted, and flushed.
    pub(super) fn post_send(&mut self, qp: QpId, wr: SendWr) -> Result<u32, PostError> {
        let index = self.index(qp).ok_or(PostError::NoSuchQp)?;
        let qp = self.qps.get_mut(index).ok_or(PostError::NoSuchQp)?;
        let len = wr.operation.len();
        // req: DDP-095, RDMAP-002
        if len > u64::from(MESSAGE_LEN_MAX) {
            return Err(PostError::TooLong);
        }
        if wr.operation.is_misaligned() {
            return Err(PostError::Misaligned);
        }
        match qp.state {
            // req: DDP-127
            QpState::Idle | QpState::Connecting | QpState::Closing => {
                return Err(PostError::WrongState);
            }
            QpState::Rts => {
                if wr.operation.is_extension() && !qp.stream.has_extensions() {
                    return Err(PostError::Unsupported);
                }
                if wr.operation.is_answered() && qp.stream.requester.ord() == 0 {
                    return Err(PostError::NoReads);
                }
            }
            QpState::Error => {}
        }
        let SendWr { wr_id, operation, signaled, fence } = wr;
        let request = Request { wr_id, operation, len, signaled, fence };
        if !qp.stream.requester.post(request) {
            return Err(PostError::QueueFull);
        }
        if qp.state == QpState::Error {
            self.start_flush(index);
        }
        Ok(index)
    }

    /// Executes requests without network traffic and reports them. Returns the completion queue if
    /// it overran.
    #[cold]
    pub(super) fn execute_local_ops(&mut self, index: u32) -> Option<CqId> {
        let qp = self.qps.get_mut(index).filter(|qp| qp.state.is_connected())?;
        qp.stream.execute_local_ops(&self.memory);
        let cq = qp.init.send_cq;
        (!self.complete_sends(index)).then_some(cq)
    }

    /// Posts a receive buffer. In the error state it is accepted, and flushed.
    pub(super) fn post_recv(&mut self, qp: QpId, wr: RecvWr) -> Result<(), PostError> {
        let index = self.index(qp).ok_or(PostError::NoSuchQp)?;
        let qp = self.qps.get_mut(index).ok_or(PostError::NoSuchQp)?;
        if qp.srq.is_some() {
            return Err(PostError::SharedReceives);
        }
        if !qp.stream.recv_queue.post(UntaggedBuffer { wr_id: wr.wr_id, sg_list: wr.sg_list }) {
            return Err(PostError::QueueFull);
        }
        if qp.state == QpState::Error {
            self.start_flush(index);
        }
        Ok(())
    }

    /// Reports completed requests in posting order. False if the completion queue overran.
    pub(super) fn complete_sends(&mut self, index: u32) -> bool {
        let Some(qp) = self.qps.get(index) else { return true };
        if qp.stream.requester.completed().is_none() {
            // The usual case.
            return true;
        }
        let id = self.id(index);
        let Some(qp) = self.qps.get_mut(index) else { return true };
        while let Some((request, outcome)) = qp.stream.requester.completed() {
            // req: RDMAP-031, RDMAP-035
            if request.signaled || outcome != RequestOutcome::Success {
                let wc = send_wc(id, request, outcome, None);
                if !self.completions.push(qp.init.send_cq, wc) {
                    return false;
                }
                self.counters.completions += 1;
                qp.flush_following |= outcome != RequestOutcome::Success;
            }
            qp.stream.requester.pop();
        }
        true
    }

    /// Reports a delivered Send. False if the completion queue overran; the completion is kept.
    pub(super) fn complete_recv(
        &mut self,
        index: u32,
        filled: DeliveredMessage,
        solicited: bool,
        invalidated: Option<u32>,
    ) -> bool {
        let status = WcStatus::Success;
        let wc = Wc {
            // req: DDP-117, RDMAP-023, RDMAP-171
            byte_len: filled.len,
            // req: RDMAP-032
            solicited,
            invalidated,
            ..recv_wc(self.id(index), filled.wr_id, status)
        };
        self.push_recv_wc(index, wc)
    }

    /// Reports Immediate Data; as [`QueuePairs::complete_recv`].
    pub(super) fn complete_recv_immediate(
        &mut self,
        index: u32,
        filled: DeliveredMessage,
        data: ImmediateData,
        solicited: bool,
    ) -> bool {
        let status = WcStatus::Success;
        let wc = Wc {
            opcode: WcOpcode::RecvImmediate,
            solicited,
            immediate: Some(data),
            ..recv_wc(self.id(index), filled.wr_id, status)
        };
        self.push_recv_wc(index, wc)
    }

    fn push_recv_wc(&mut self, index: u32, wc: Wc) -> bool {
        let Some(qp) = self.qps.get_mut(index) else { return true };
        // The completion queue may get free slots during the pass; pending completions go first.
        let pushed = qp.pending_wc.is_empty() && self.completions.push(qp.init.recv_cq, wc);
        if pushed {
            self.counters.completions += 1;
        } else {
            qp.pending_wc.push_back(wc);
        }
        pushed
    }

    /// Moves a queue pair to the error state: reports `reason` once and starts the flush.
    pub(super) fn enter_error(&mut self, index: u32, reason: EndReason) {
        let id = self.id(index);
        let Some(qp) = self.qps.get_mut(index) else { return };
        if qp.state == QpState::Error {
            return;
        }
        // req: RDMAP-256
        let was_connected = qp.state.is_connected();
        // req: DDP-027, DDP-123, RDMAP-252
        qp.state = QpState::Error;
        if let EndReason::TerminateReceived(terminate) = reason {
            let status = match (terminate.layer, terminate.error_type) {
                (0 | 1, 1) => WcStatus::RemoteAccess,
                _ => WcStatus::RemoteOperation,
            };
            qp.terminated_request =
                qp.stream.terminated_request(&terminate).map(|number| (number, status));
        }
        if was_connected {
            if reason != EndReason::Local && reason != EndReason::PeerClosed {
                self.counters.connections_failed += 1;
            }
            self.events.push_back(Event::Disconnected { qp: id, reason });
        }
        // req: DDP-139, RDMAP-194, RDMAP-247
        self.start_flush(index);
    }

    /// Completes the receive buffer concerned by a fault in error.
    pub(super) fn fail_recv(&mut self, index: u32, wr_id: u64, status: WcStatus) {
        let id = self.id(index);
        let Some(qp) = self.qps.get_mut(index) else { return };
        if qp.stream.recv_queue.front().is_some_and(|buffer| buffer.wr_id == wr_id) {
            qp.stream.recv_queue.pop_front();
            qp.pending_wc.push_back(recv_wc(id, wr_id, status));
        }
    }

    /// Handles the overrun of a completion queue: appends its connected queue pairs, which are to
    /// be ended, to `broken`; others are not affected.
    pub(super) fn on_cq_overrun(&mut self, cq: CqId, broken: &mut Vec<u32>) {
        self.counters.cq_overruns += 1;
        let event = Event::CqOverrun { cq };
        if !self.events.contains(&event) {
            self.events.push_back(event);
        }
        // req: RDMAP-286
        broken.extend(self.qps.indices().filter(|&index| {
            self.qps.get(index).is_some_and(|qp| {
                qp.state.is_connected() && (qp.init.send_cq == cq || qp.init.recv_cq == cq)
            })
        }));
    }

    /// Ends a queue pair whose engine will not be driven again. Outstanding requests are reported
    /// as flushed, as far as the completion queues have free slots.
    pub(super) fn abandon(&mut self, index: u32) {
        if let Some(qp) = self.qps.get_mut(index) {
            qp.stream.stop();
        }
        self.enter_error(index, EndReason::LocalError);
        self.flush_qp(index, &mut false);
    }

    fn start_flush(&mut self, index: u32) {
        if let Some(qp) = self.qps.get_mut(index)
            && !qp.flushing
        {
            qp.flushing = true;
            self.flushing.push(index);
        }
    }

    /// Reports flushed requests as far as the completion queues have free slots: each once, in
    /// posting order, those completed before the end with success. But behind a request that ended
    /// in error nothing is reported with success: an application that relies on the order of
    /// requests must not take a Write for completed whose preceding Read was not. True if anything
    /// was reported.
    pub(super) fn flush(&mut self) -> bool {
        let mut reported = false;
        let mut at = 0;
        while let Some(&index) = self.flushing.get(at) {
            if self.flush_qp(index, &mut reported) {
                self.flushing.swap_remove(at);
                if let Some(qp) = self.qps.get_mut(index) {
                    qp.flushing = false;
                }
            } else {
                at += 1;
            }
        }
        reported
    }

    /// True if nothing is left to report.
    fn flush_qp(&mut self, index: u32, reported: &mut bool) -> bool {
        let id = self.id(index);
        let Some(qp) = self.qps.get_mut(index) else { return true };
        while let Some(&wc) = qp.pending_wc.front() {
            if !self.completions.push(qp.init.recv_cq, wc) {
                return false;
            }
            qp.pending_wc.pop_front();
            *reported = true;
        }
        while let Some((request, mut outcome)) = qp.stream.requester.flushed() {
            if qp.flush_following && outcome == RequestOutcome::Success {
                outcome = RequestOutcome::Flushed;
            }
            if request.signaled || outcome != RequestOutcome::Success {
                let oldest = qp.stream.requester.oldest_number();
                let refused = qp.terminated_request.filter(|(number, _)| *number == oldest);
                let wc = send_wc(id, request, outcome, refused.map(|(_, status)| status));
                if !self.completions.push(qp.init.send_cq, wc) {
                    return false;
                }
                *reported = true;
                qp.flush_following |= outcome != RequestOutcome::Success;
            }
            qp.stream.requester.pop();
        }
        while let Some(buffer) = qp.stream.recv_queue.front() {
            let wc = recv_wc(id, buffer.wr_id, WcStatus::Flushed);
            if !self.completions.push(qp.init.recv_cq, wc) {
                return false;
            }
            qp.stream.recv_queue.pop_front();
            *reported = true;
        }
        true
    }
}

fn send_wc(qp: QpId, request: &Request, outcome: RequestOutcome, refused: Option<WcStatus>) -> Wc {
    let opcode = WcOpcode::from(&request.operation);
    let status = match outcome {
        RequestOutcome::Success => WcStatus::Success,
        RequestOutcome::LocalProtection if opcode == WcOpcode::Bind => WcStatus::Bind,
        RequestOutcome::LocalProtection => WcStatus::LocalProtection,
        RequestOutcome::Flushed => refused.unwrap_or(WcStatus::Flushed),
    };
    let byte_len =
        if status == WcStatus::Success { u32::try_from(request.len).unwrap_or(0) } else { 0 };
    Wc { opcode, byte_len, ..recv_wc(qp, request.wr_id, status) }
}

const fn recv_wc(qp: QpId, wr_id: u64, status: WcStatus) -> Wc {
    Wc {
        wr_id,
        qp,
        status,
        opcode: WcOpcode::Recv,
        byte_len: 0,
        solicited: false,
        invalidated: None,
        immediate: None,
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::ddp::memory::{Access, MemoryFault};
    use crate::ddp::vec_memory::VecMemory;

    struct NullCq;

    impl Completions for NullCq {
        fn push(&mut self, _: CqId, _: Wc) -> bool {
            true
        }
    }

    // req-test: RDMAP-277
    #[test]
    fn qp_bound_stag_is_refused_to_another_engines_qp() {
        let arena = Rc::new(VecMemory::new(64));
        let cq = CqId(0);
        let init = QpInit { pd: 1, send_cq: cq, recv_cq: cq, max_send_wr: 1, max_recv_wr: 1 };
        let mut engines = [(); 2].map(|()| QueuePairs::new(Rc::clone(&arena), NullCq, 4));
        let qps = [0, 1].map(|at: usize| engines[at].create(init).unwrap());
        assert_eq!(qps[0], qps[1], "each engine counts its own");
        let reaches = [0, 1].map(|at: usize| engines[at].access_scope(qps[at]).unwrap());
        let stag = arena.register_for(0, 64, Access::ALL, 1, reaches[0].stream);
        let ask = |reach| arena.regions().resolve(stag, reach, Access::REMOTE_WRITE, 0, 1).err();
        assert_eq!(reaches.map(ask), [None, Some(MemoryFault::NotAssociated)]);
        // Nor does the next queue pair in the slot have access.
        engines[0].destroy(qps[0]);
        let next = engines[0].create(init).unwrap();
        assert_eq!(next.index, qps[0].index);
        assert_eq!(engines[0].access_scope(qps[0]), None);
        assert_eq!(ask(engines[0].access_scope(next).unwrap()), Some(MemoryFault::NotAssociated));
    }
}
