//! Queue pair: posting, in-order completion, and the flush at the end of a stream.

use std::collections::VecDeque;

use crate::ddp::memory::Memory;
use crate::ddp::regions::AccessScope;
use crate::ddp::untagged::{BufferQueue, DeliveredMessage};
use crate::rdmap::operation::ImmediateData;
use crate::rdmap::requester::{Admission, Rejection, RequestOutcome, Requester};
use crate::rdmap::send_queue::wqe::OpcodeSet;
use crate::rdmap::stream::Stream;
use crate::verbs::cm::{ConnEvent, ConnectError, EndReason};
use crate::verbs::completed::{SucceededRequests, is_failure, recv_wc, send_wc};
use crate::verbs::qp::{QpEvent, QpInit, QpState};
use crate::verbs::qp_attrs::QpAttrs;
use crate::verbs::resources::Verbs;
use crate::verbs::srq::SrqUsage;
use crate::verbs::wc::{Completions, CqId, QpId, Wc, WcData, WcOpcode, WcStatus};
use crate::verbs::wr::{PostError, RecvWr, SendRights, SendWr};
use crate::wire::tcp::FourTuple;

/// Requests from one that did not succeed on which are reported at once, at most: the rest is
/// flushed in turn with other queue pairs.
const COMPLETED_MAX: usize = 64;

/// Requests that are taken at once when the connection begins or fails.
const EARLY_MAX: usize = 256;

/// Result of [`Qp::flush`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlushResult {
    /// Nothing is left to report.
    Done,
    /// The rest waits for free slots of this completion queue.
    CqFull(CqId),
    /// The budget was used up.
    Again,
}

/// State that few queue pairs have before their end.
#[derive(Debug, Default)]
struct Rare {
    /// Receive completions that found the completion queue full, and those after them; oldest
    /// first.
    pending_wc: VecDeque<Wc>,
    /// Number of the request that the peer's Terminate refers to, and its completion status.
    terminated_request: Option<(u64, WcStatus)>,
    /// [`Wc::vendor_err`] of what is flushed.
    vendor_err: u32,
    /// Reason for the end of the connection.
    end: Option<EndReason>,
    /// Why the connection could not be set up.
    connect_error: Option<ConnectError>,
    /// Addresses of a connection that is gone.
    addresses: Option<FourTuple>,
}

/// A queue pair. Of many each cache line is a miss, and counts in their memory.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Qp {
    pub(crate) stream: Stream,
    pub(crate) id: QpId,
    /// Index in the table of queue pairs.
    pub(super) slot: u32,
    state: QpState,
    /// Completion queue of sends.
    pub(crate) send_cq: CqId,
    /// Completion queue of receives.
    pub(crate) recv_cq: CqId,
    /// Connection of the queue pair.
    pub(crate) conn: Option<u32>,
    /// State that few queue pairs have before their end.
    rare: Option<Box<Rare>>,
    /// A request completed in error, or after an overrun was reported: those after it are flushed,
    /// even if they succeeded.
    flush_following: bool,
    /// RDMA Writes are placed out of order.
    pub(crate) ooo_placement: bool,
    /// FIN is due or was sent: nothing more can be sent to the peer.
    pub(crate) tx_closed: bool,
    /// Use of a shared receive queue, if attached to one.
    pub(super) srq: Option<SrqUsage>,
}

const _: () = assert!(size_of::<Option<Qp>>() == 384, "six cache lines");

impl Qp {
    pub(super) fn new(
        id: QpId,
        slot: u32,
        init: &QpInit,
        scope: AccessScope,
        requester: Requester,
        recv_queue: BufferQueue,
    ) -> Self {
        Self {
            stream: Stream::new(scope, requester, recv_queue),
            id,
            slot,
            state: QpState::Idle,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            conn: None,
            rare: None,
            flush_following: false,
            ooo_placement: false,
            tx_closed: false,
            srq: None,
        }
    }

    #[cold]
    fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Returns the state.
    #[inline]
    pub(crate) const fn state(&self) -> QpState {
        self.state
    }

    /// Changes the state by the transition table. Returns false if the table has no entry for
    /// `event`.
    #[must_use]
    pub(crate) fn transition(&mut self, event: QpEvent) -> bool {
        let Some(next) = self.state.after(event) else { return false };
        self.state = next;
        true
    }

    /// Posts a request to the send queue.
    pub(crate) fn post_send(&mut self, wr: &SendWr) -> Result<(), PostError> {
        self.send_rights().check(wr.operation.opcode())?;
        self.stream.requester.post(wr)
    }

    /// True if it reports completions to `cq`.
    pub(crate) fn uses_cq(&self, cq: CqId) -> bool {
        self.send_cq == cq || self.recv_cq == cq
    }

    /// Rights of the connection; all while there is none, and requests wait, or are flushed.
    pub(crate) const fn send_rights(&self) -> SendRights {
        if self.state.is_connected() { self.granted_rights() } else { SendRights::ALL }
    }

    const fn granted_rights(&self) -> SendRights {
        SendRights {
            reads: self.stream.requester.ord() > 0,
            extensions: self.stream.has_extensions(),
        }
    }

    /// Takes posted requests from the send queue, at most `max`; returns their number. Before the
    /// connection they stay there, in the error state they are flushed.
    #[inline(always)]
    pub(crate) fn take_sends<M, C>(&mut self, verbs: &mut Verbs<M, C>, max: usize) -> usize {
        let admission = match self.state {
            QpState::Idle | QpState::Connecting => return 0,
            // req: DDP-127
            QpState::Closing => {
                Admission { rejected: OpcodeSet::ALL, reason: Rejection::WrongState }
            }
            QpState::Rts => {
                let SendRights { reads, extensions } = self.granted_rights();
                let answered = if reads { OpcodeSet::NONE } else { OpcodeSet::ANSWERED };
                let extensions = if extensions { OpcodeSet::NONE } else { OpcodeSet::EXTENSIONS };
                let rejected = answered.union(extensions);
                Admission { rejected, reason: Rejection::Unsupported }
            }
            QpState::Error => Admission::ALL,
        };
        let count = self.stream.requester.take_posted(admission, max);
        if count > 0 && self.state == QpState::Error {
            self.start_flush(verbs);
        }
        count
    }

    /// Takes what was posted before the connection began or failed: true if there was anything. Of
    /// what the application posted itself only the beginning: the rest is taken when
    /// [`Qp::take_sends`] is called next.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_early_sends<M, C>(&mut self, verbs: &mut Verbs<M, C>) -> bool {
        let is_own = self.stream.requester.has_producer();
        self.take_sends(verbs, if is_own { usize::MAX } else { EARLY_MAX }) > 0
    }

    /// Executes requests without network traffic and reports them; in the error state they are
    /// flushed instead.
    #[cold]
    pub(crate) fn execute_local_ops<M: Memory, C: Completions>(&mut self, verbs: &mut Verbs<M, C>) {
        if self.state != QpState::Error {
            self.stream.execute_local_ops(&verbs.memory);
            self.complete_sends(verbs);
        }
    }

    /// Posts a receive buffer. In the error state it is accepted, and flushed.
    pub(crate) fn post_recv<M, C>(
        &mut self,
        verbs: &mut Verbs<M, C>,
        wr: RecvWr,
    ) -> Result<(), PostError> {
        if self.srq.is_some() {
            return Err(PostError::SharedReceives);
        }
        self.stream.recv_queue.post(wr.wr_id, &wr.sg_list)?;
        self.on_recvs_posted(verbs);
        Ok(())
    }

    /// Has receives flushed that were posted in the error state.
    #[inline]
    pub(crate) fn on_recvs_posted<M, C>(&mut self, verbs: &mut Verbs<M, C>) {
        if self.state == QpState::Error {
            self.start_flush(verbs);
        }
    }

    /// Reports completed requests in posting order, as far as the completion queue has free slots.
    /// If it has none, a rejected request waits, as a flushed one does: the application may have
    /// posted it unsignaled, without a place for its completion. Any other overruns the queue.
    #[inline]
    pub(crate) fn complete_sends<M, C: Completions>(&mut self, verbs: &mut Verbs<M, C>) {
        let (cq, mut count) = (self.send_cq, 0);
        let requester = &mut self.stream.requester;
        let succeeded = SucceededRequests { qp: self.id, requester, count: &mut count };
        // req: RDMAP-031, RDMAP-035
        let all_fit = verbs.completions.push_all(cq, succeeded);
        verbs.counters.completions += count;
        if !all_fit {
            self.flush_following |= verbs.on_cq_overrun(cq);
        } else if self.stream.requester.completed().is_some() {
            self.complete_rest(verbs);
        }
    }

    /// [`Qp::complete_sends`] from a request on that did not succeed.
    #[cold]
    fn complete_rest<M, C: Completions>(&mut self, verbs: &mut Verbs<M, C>) {
        let mut budget = COMPLETED_MAX;
        if self.complete_others(verbs, &mut budget) != FlushResult::Done {
            self.start_flush(verbs);
        }
    }

    /// Reports completed requests of any outcome, at most `budget`.
    #[cold]
    fn complete_others<M, C: Completions>(
        &mut self,
        verbs: &mut Verbs<M, C>,
        budget: &mut usize,
    ) -> FlushResult {
        while let Some((request, outcome)) = self.stream.requester.completed() {
            if *budget == 0 {
                return FlushResult::Again;
            }
            *budget -= 1;
            // req: RDMAP-031, RDMAP-035
            if request.signaled || outcome != RequestOutcome::Success {
                let wc = send_wc(self.id, &request, outcome, None);
                if !verbs.completions.push(self.send_cq, wc) {
                    if let RequestOutcome::Rejected(_) = outcome {
                        return FlushResult::CqFull(self.send_cq);
                    }
                    self.flush_following |= verbs.on_cq_overrun(self.send_cq);
                    break;
                }
                verbs.counters.completions += 1;
                self.flush_following |= is_failure(outcome);
            }
            self.stream.requester.pop();
        }
        FlushResult::Done
    }

    /// Reports a delivered Send. If the completion queue overran the completion is kept.
    pub(super) fn complete_recv<M, C: Completions>(
        &mut self,
        verbs: &mut Verbs<M, C>,
        message: DeliveredMessage,
        solicited: bool,
        invalidated: Option<u32>,
    ) {
        self.stream.take_write_len();
        let wc = Wc {
            // req: DDP-117, RDMAP-023, RDMAP-171
            byte_len: message.len,
            // req: RDMAP-032
            solicited,
            data: invalidated.map_or(WcData::None, WcData::Invalidated),
            ..recv_wc(self.id, message.wr_id, WcStatus::Success)
        };
        self.push_recv_wc(verbs, wc);
    }

    /// Reports Immediate Data; as [`Qp::complete_recv`].
    pub(super) fn complete_recv_immediate<M, C: Completions>(
        &mut self,
        verbs: &mut Verbs<M, C>,
        message: DeliveredMessage,
        data: ImmediateData,
        solicited: bool,
    ) {
        let wc = Wc {
            opcode: WcOpcode::RecvImmediate,
            solicited,
            byte_len: self.stream.take_write_len(),
            data: WcData::Immediate(data),
            ..recv_wc(self.id, message.wr_id, WcStatus::Success)
        };
        self.push_recv_wc(verbs, wc);
    }

    #[inline]
    fn push_recv_wc<M, C: Completions>(&mut self, verbs: &mut Verbs<M, C>, wc: Wc) {
        // The completion queue may get free slots during the pass; pending completions go first.
        let are_pending = self.rare.as_ref().is_some_and(|rare| !rare.pending_wc.is_empty());
        if !are_pending && verbs.completions.push(self.recv_cq, wc) {
            verbs.counters.completions += 1;
        } else {
            self.keep_recv_wc(verbs, wc);
        }
    }

    #[cold]
    fn keep_recv_wc<M, C>(&mut self, verbs: &mut Verbs<M, C>, mut wc: Wc) {
        if verbs.on_cq_overrun(self.recv_cq) {
            wc = recv_wc(self.id, wc.wr_id, WcStatus::Flushed);
        }
        self.rare_mut().pending_wc.push_back(wc);
    }

    /// Moves the queue pair to the error state: reports `reason` once and starts the flush.
    pub(crate) fn enter_error<M, C>(&mut self, verbs: &mut Verbs<M, C>, reason: EndReason) {
        // req: RDMAP-256
        let was_connected = self.state.is_connected();
        // req: DDP-027, DDP-123, RDMAP-252
        if !self.transition(QpEvent::End) {
            return;
        }
        if let EndReason::TerminateReceived(terminate) = reason {
            let status = match (terminate.layer, terminate.error_type) {
                (0 | 1, 1) => WcStatus::RemoteAccess,
                _ => WcStatus::RemoteOperation,
            };
            let request = self.stream.terminated_request(&terminate);
            self.rare_mut().terminated_request = request.map(|number| (number, status));
        }
        if let Some((layer, error_type, code)) = reason.error() {
            self.rare_mut().vendor_err = u32::from_be_bytes([0, 0, layer << 4 | error_type, code]);
        }
        if was_connected {
            self.rare_mut().end = Some(reason);
            if reason != EndReason::Local && reason != EndReason::PeerClosed {
                verbs.counters.connections_failed += 1;
            }
            verbs.events.push_back(ConnEvent::Disconnected { qp: self.id, reason });
        }
        self.take_early_sends(verbs);
        // req: DDP-139, RDMAP-194, RDMAP-247
        self.start_flush(verbs);
    }

    /// Moves the queue pair to the error state: its connection could not be set up.
    pub(crate) fn fail_connect<M, C>(&mut self, verbs: &mut Verbs<M, C>, error: ConnectError) {
        self.enter_error(verbs, EndReason::Local);
        self.rare_mut().connect_error = Some(error);
    }

    /// Replaces the reason why its connection could not be set up.
    pub(crate) fn set_connect_error(&mut self, error: ConnectError) {
        self.rare_mut().connect_error = Some(error);
    }

    /// The connection is gone.
    pub(crate) fn on_connection_removed(&mut self, tuple: FourTuple) {
        self.conn = None;
        self.rare_mut().addresses = Some(tuple);
    }

    /// Returns its attributes; `tuple`: the addresses of its connection.
    pub(crate) fn attrs(&self, tuple: Option<FourTuple>) -> QpAttrs {
        let Stream { requester, recv_queue, .. } = &self.stream;
        let of_queues = QpAttrs::of_queues(requester, recv_queue);
        let of_queues =
            if self.srq.is_some() { of_queues.with_shared_receives() } else { of_queues };
        let rare = self.rare.as_deref();
        let tuple = tuple.or_else(|| rare?.addresses);
        QpAttrs {
            state: self.state,
            ird: self.stream.ird(),
            ord: requester.ord(),
            local: tuple.map(|tuple| tuple.local),
            peer: tuple.map(|tuple| tuple.remote),
            end: rare.and_then(|rare| rare.end),
            connect_error: rare.and_then(|rare| rare.connect_error),
            ..of_queues
        }
    }

    /// Completes the receive buffer concerned by a fault in error.
    pub(super) fn fail_recv(&mut self, wr_id: u64, status: WcStatus) {
        if self.stream.recv_queue.front().is_some_and(|buffer| buffer.wr_id() == wr_id) {
            self.stream.recv_queue.pop_front();
            let wc = recv_wc(self.id, wr_id, status);
            self.rare_mut().pending_wc.push_back(wc);
        }
    }

    /// Ends the queue pair of an engine that will not be driven again. Outstanding requests are
    /// reported as flushed, as far as the completion queues have free slots.
    pub(crate) fn abandon<M, C: Completions>(&mut self, verbs: &mut Verbs<M, C>) {
        self.stream.stop();
        self.enter_error(verbs, EndReason::LocalError);
        let mut budget = usize::MAX;
        self.flush(verbs, &mut budget);
    }

    fn start_flush<M, C>(&mut self, verbs: &mut Verbs<M, C>) {
        verbs.flushes.add(self.slot);
    }

    /// Reports flushed requests as far as the completion queues have free slots: each once, in
    /// posting order, those completed before the end with success. But after a request that ended
    /// in error nothing is reported with success: an application that relies on the order of
    /// requests must not take a Write for completed whose preceding Read was not. At most `budget`
    /// requests, which is reduced by their number.
    ///
    /// Before the error state there are rejected requests alone, and those completed after them.
    pub(super) fn flush<M, C: Completions>(
        &mut self,
        verbs: &mut Verbs<M, C>,
        budget: &mut usize,
    ) -> FlushResult {
        // Before the error state: only rejected requests wait.
        if self.state != QpState::Error {
            return self.complete_others(verbs, budget);
        }
        let vendor_err = self.rare.as_ref().map_or(0, |rare| rare.vendor_err);
        // Receives that completed before the end, and found the completion queue full.
        if let Some(rare) = &mut self.rare {
            while let Some(&wc) = rare.pending_wc.front() {
                if *budget == 0 {
                    return FlushResult::Again;
                }
                *budget -= 1;
                let vendor_err = if wc.status == WcStatus::Success { 0 } else { vendor_err };
                if !verbs.completions.push(self.recv_cq, Wc { vendor_err, ..wc }) {
                    return FlushResult::CqFull(self.recv_cq);
                }
                rare.pending_wc.pop_front();
            }
        }
        // The send queue, in posting order.
        while let Some((request, mut outcome)) = self.stream.requester.flushed() {
            if *budget == 0 {
                return FlushResult::Again;
            }
            *budget -= 1;
            if self.flush_following && outcome == RequestOutcome::Success {
                outcome = RequestOutcome::Flushed;
            }
            if request.signaled || outcome != RequestOutcome::Success {
                // The request that the peer's Terminate refers to has a status of its own.
                let oldest = self.stream.requester.oldest_number();
                let refused = self.rare.as_ref().and_then(|rare| rare.terminated_request);
                let refused = refused.filter(|(number, _)| *number == oldest);
                let refused = refused.map(|(_, status)| status);
                let wc = send_wc(self.id, &request, outcome, refused);
                let vendor_err = if wc.status == WcStatus::Success { 0 } else { vendor_err };
                let wc = Wc { vendor_err, ..wc };
                if !verbs.completions.push(self.send_cq, wc) {
                    return FlushResult::CqFull(self.send_cq);
                }
                self.flush_following |= is_failure(outcome);
            }
            self.stream.requester.pop();
        }
        // The receive queue.
        while let Some(buffer) = self.stream.recv_queue.front() {
            if *budget == 0 {
                return FlushResult::Again;
            }
            *budget -= 1;
            let wc = Wc { vendor_err, ..recv_wc(self.id, buffer.wr_id(), WcStatus::Flushed) };
            if !verbs.completions.push(self.recv_cq, wc) {
                return FlushResult::CqFull(self.recv_cq);
            }
            self.stream.recv_queue.pop_front();
        }
        FlushResult::Done
    }
}
