//! Ends of a stream and of its connection: failed setup, loss, FIN, abort, local errors, TIME-WAIT.

use core::hash::BuildHasher;

use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::engine::connection::{NEVER, Phase};
use crate::rdmap::terminate::Fault;
use crate::time::Instant;
use crate::verbs::cm::{Abort, CmError, ConnectError, EndReason, Event, ReadDepths};
use crate::verbs::qp::QpState;
use crate::verbs::wc::{Completions, QpId};
use crate::wire::mpa::{Enhanced, Startup};

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Reports to the application that its attempt to connect failed, if this was one, with the
    /// contents of the peer's reply, if there is one.
    pub(super) fn fail_connect(
        &mut self,
        index: u32,
        error: ConnectError,
        reply: Option<&Startup>,
    ) {
        let Some(conn) = self.connections.get_mut(index) else { return };
        let (Phase::AwaitReply(_) | Phase::Streaming { .. }) = conn.phase else { return };
        conn.phase = Phase::Closed;
        let Some(qp_index) = conn.qp else { return };
        let qp = self.verbs.id(qp_index);
        self.verbs.enter_error(qp_index, EndReason::Local);
        let private_data = reply.map(|reply| reply.private_data.iter().copied().collect());
        let enhanced = reply.and_then(|reply| reply.enhanced);
        self.verbs.events.push_back(Event::ConnectFailed {
            qp,
            error,
            private_data: Box::new(private_data.unwrap_or_default()),
            reads: enhanced.map(|Enhanced { ird, ord, .. }| ReadDepths { ird, ord }),
        });
    }

    /// Handles the loss of the TCP connection: reset, or timed out.
    pub(super) fn on_tcp_lost(&mut self, index: u32, reason: EndReason) {
        let Some(conn) = self.connections.get_mut(index) else { return };
        let error = match reason {
            EndReason::Reset if !conn.tcp_established => ConnectError::Refused,
            EndReason::Reset => ConnectError::Reset,
            _ if conn.unreachable => ConnectError::Unreachable,
            _ => ConnectError::TimedOut,
        };
        self.fail_connect(index, error, None);
        self.leave_backlog(index);
        let Some(conn) = self.connections.get_mut(index) else { return };
        conn.end_stream(&mut self.fpdu_pool);
        if let Some(qp_index) = conn.qp
            && let Some(qp) = self.verbs.get_mut(qp_index)
        {
            qp.stream.stop();
            // A peer that has closed both directions answers data with RST.
            let was_closed = qp.state == QpState::Closing && !qp.closed_locally;
            let reason = match reason {
                EndReason::Reset if was_closed => EndReason::PeerClosed,
                _ => reason,
            };
            // req: DDP-021, DDP-134, DDP-136, RDMAP-244
            self.verbs.enter_error(qp_index, reason);
        }
    }

    /// Handles the peer's FIN; everything before it was processed.
    pub(super) fn on_fin(&mut self, now: Instant, index: u32) {
        self.fail_connect(index, ConnectError::Protocol, None);
        if self.continue_after_fin(now, index) {
            return;
        }
        let Some(conn) = self.connections.get_mut(index) else { return };
        if let Some(qp) = conn.qp {
            if let Some(qp) = self.verbs.get_mut(qp)
                && !qp.stream.is_terminate_pending()
            {
                qp.stream.stop();
            }
            self.verbs.enter_error(qp, EndReason::PeerClosed);
        }
        self.begin_close(now, index);
    }

    /// Handles data behind the peer's FIN: the stream did not close gracefully then.
    // req: DDP-128
    pub(super) fn on_data_after_fin(&mut self, index: u32) {
        let conn = self.connections.get(index);
        if conn.is_some_and(|conn| matches!(conn.phase, Phase::Rdma { .. })) {
            self.on_tcp_lost(index, EndReason::DataBehindFin);
            self.abort(index);
        }
    }

    /// Handles an expired deadline: startup or linger timeout, or a siw wake-up. Lingering
    /// continues while the peer acknowledges or sends data faster than the minimum.
    pub(super) fn on_deadline(&mut self, now: Instant, index: u32) {
        if self.on_siw_wakeup_deadline(now, index) || self.on_reject_deadline(now, index) {
            return;
        }
        let is_too_slow = self.is_too_slow(now, index);
        let closing = self.connections.get_mut(index).filter(|conn| conn.closing && !is_too_slow);
        if let Some(conn) = closing {
            let more = conn.tcb.progress_at(now) + self.config.linger_ns;
            if more > now {
                conn.deadline = more;
                return;
            }
            if self.extend_if_receiving(now, index) {
                return;
            }
        }
        let is_unreachable = self
            .connections
            .get(index)
            .is_some_and(|conn| conn.unreachable && !conn.tcp_established);
        let error = if is_unreachable { ConnectError::Unreachable } else { ConnectError::TimedOut };
        self.fail_connect(index, error, None);
        self.on_close_timeout(index);
        self.abort(index);
    }

    /// Closes the connection: received data is discarded except for a Terminate, FIN follows the
    /// last byte, and the connection is reset if the peer has not closed too within the linger
    /// time.
    pub(super) fn begin_close(&mut self, now: Instant, index: u32) {
        self.leave_backlog(index);
        self.begin_terminate_drain(index);
        let Some(conn) = self.connections.get_mut(index) else { return };
        // Buffered bytes are discarded, and so is everything behind them.
        conn.tcb.consume(std::mem::take(&mut conn.buffered_len));
        // A half-close has no deadline.
        if !conn.closing || conn.deadline == NEVER {
            // req: DDP-032, RDMAP-248, RDMAP-249, RDMAP-254
            conn.closing = true;
            conn.deadline = now + self.config.linger_ns;
        }
        self.arm_timer(index);
        self.make_ready(index);
    }

    /// Resets the connection.
    pub(super) fn abort(&mut self, index: u32) {
        self.leave_backlog(index);
        let Some(conn) = self.connections.get_mut(index) else { return };
        conn.end_stream(&mut self.fpdu_pool);
        conn.startup_tx = None;
        conn.tcb.abort();
        self.make_ready(index);
    }

    /// Ends the queue pairs of completion queues that overran.
    pub(super) fn end_overrun_qps(&mut self, now: Instant) {
        while let Some(cq) = self.overrun_cqs.pop() {
            let mut broken = Vec::new();
            self.verbs.on_cq_overrun(cq, &mut broken);
            for index in broken {
                self.fail_locally(now, index);
            }
        }
    }

    /// Ends the connection of a queue pair that cannot continue for lack of a local resource.
    #[cold]
    pub(super) fn fail_locally(&mut self, now: Instant, qp: u32) {
        self.fail_with(now, qp, Fault::LocalCatastrophic, EndReason::LocalError);
    }

    /// Ends a queue pair's connection over a fault that no segment of the peer caused. The peer is
    /// notified by a Terminate, or by a reset where nothing may be sent yet (RFC 5044 section
    /// 7.1.2).
    // req: RDMAP-240, RDMAP-243
    fn fail_with(&mut self, now: Instant, qp_index: u32, fault: Fault, reason: EndReason) {
        let Some(qp) = self.verbs.get_mut(qp_index) else { return };
        let Some(index) = qp.conn else { return };
        let tx_allowed = self.connections.get(index).is_some_and(|conn| conn.tx_allowed);
        let may_send = tx_allowed && !qp.tx_closed;
        if may_send && qp.stream.fail(fault, &[]).is_some() {
            self.verbs.counters.terminates_out += 1;
        } else {
            qp.stream.fail_without_terminate(fault);
        }
        self.verbs.enter_error(qp_index, reason);
        self.end_failed_stream(now, index, may_send);
    }

    /// Closes the connection of a failed stream behind the Terminate. If no Terminate could be sent
    /// it is reset, so that the peer does not take it for a graceful close.
    #[cold]
    pub(super) fn end_failed_stream(&mut self, now: Instant, index: u32, terminate_queued: bool) {
        if terminate_queued {
            // req: RDMAP-251
            self.begin_close(now, index);
        } else {
            self.abort(index);
        }
    }

    /// Ends a queue pair's connection abortively: queued data is not sent, a Terminate reports the
    /// cause to the peer, and outstanding requests are flushed (RFC 5040 section 6.2.1). A
    /// responder that may not send yet resets the connection instead.
    ///
    /// # Errors
    /// [`CmError::Gone`] if there is no such queue pair or it has no connection.
    pub fn terminate(&mut self, now: Instant, qp: QpId, cause: Abort) -> Result<(), CmError> {
        let index = self.verbs.index(qp).ok_or(CmError::Gone)?;
        let state = self.verbs.get(index).map(|qp| qp.state);
        if state.is_some_and(QpState::is_connected) {
            self.fail_with(now, index, Fault::UlpAbort(cause), EndReason::Local);
            return Ok(());
        }
        // Without a stream there is nothing to terminate.
        self.disconnect(now, qp)
    }

    /// Handles a connection that entered TIME-WAIT, or restarted it. Beyond the limit the oldest is
    /// removed.
    pub(super) fn on_time_wait(&mut self, index: u32) {
        let generation = self.connections.generation(index);
        let Some(conn) = self.connections.get_mut(index) else { return };
        if std::mem::replace(&mut conn.in_time_wait, true) {
            return;
        }
        self.time_waits.push_back((index, generation));
        if self.time_waits.len() > self.config.time_wait_max {
            self.recycle_oldest_time_wait();
        }
    }

    /// Removes the connection that has been in TIME-WAIT for the longest time. False if it is gone
    /// already.
    pub(super) fn recycle_oldest_time_wait(&mut self) -> bool {
        let Some((index, generation)) = self.time_waits.pop_front() else { return false };
        if self.connections.live_index(index, generation).is_none() {
            return false;
        }
        self.verbs.counters.time_waits_recycled += 1;
        self.remove_connection(index);
        true
    }

    /// Removes a connection from all tables.
    pub(super) fn remove_connection(&mut self, index: u32) {
        self.leave_backlog(index);
        let Some(conn) = self.connections.get(index) else { return };
        let hash = self.hash.hash_one(conn.tcb.tuple());
        if let Ok(entry) = self.by_tuple.find_entry(hash, |&entry| entry == index) {
            entry.remove();
        }
        let Some(mut conn) = self.connections.remove(index) else { return };
        conn.end_stream(&mut self.fpdu_pool);
        conn.tcb.release_all_ooo(&mut self.ooo_pool);
        self.window_growth -= u64::from(conn.window_growth);
        if let Some(qp) = conn.qp.and_then(|qp| self.verbs.get_mut(qp)) {
            qp.conn = None;
        }
    }
}
