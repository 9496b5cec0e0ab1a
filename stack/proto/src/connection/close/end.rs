//! All ends of a connection but the graceful one: failed setup, loss, FIN, abort, local errors,
//! timeouts.

use crate::connection::Connection;
use crate::connection::close::Closing;
use crate::connection::context::{Context, Deferred, Env};
use crate::connection::phase::{Phase, PhaseEvent};
use crate::rdmap::fault::Fault;
use crate::tcp::State;
use crate::time::{Instant, NEVER};
use crate::verbs::cm::{Abort, ConnEvent, ConnectError, EndReason, ReadDepths};
use crate::verbs::qp::QpState;
use crate::wire::mpa::{Enhanced, Startup};

/// Connection that only waits for its peer; the first kind is removed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lingering {
    /// The peer has all data.
    Acknowledged,
    /// The application has rejected it: nothing but that may be unknown to the peer.
    Rejected,
}

impl<E: Env> Connection<E> {
    /// Reports to the application that its attempt to connect failed, if this was one, with the
    /// contents of the peer's reply, if there is one.
    pub(crate) fn fail_connect(
        &mut self,
        cx: &mut Context<E>,
        error: ConnectError,
        reply: Option<&Startup>,
    ) {
        let (Phase::AwaitReply(_) | Phase::Streaming { .. }) = self.phase else { return };
        self.phase.enter(PhaseEvent::End, Phase::Closed);
        let Some(qp) = self.qp.and_then(|qp| cx.qps.get_mut(qp)) else { return };
        qp.fail_connect(&mut cx.verbs, error);
        let private_data = reply.map(|reply| reply.private_data.clone());
        let enhanced = reply.and_then(|reply| reply.enhanced);
        cx.verbs.events.push_back(ConnEvent::ConnectFailed {
            qp: qp.id,
            error,
            private_data: Box::new(private_data.unwrap_or_default()),
            reads: enhanced.map(|Enhanced { ird, ord, .. }| ReadDepths { ird, ord }),
        });
    }

    /// Handles the loss of the TCP connection: reset, or timed out.
    pub(crate) fn on_tcp_lost(&mut self, cx: &mut Context<E>, reason: EndReason) {
        let error = match reason {
            EndReason::Reset if !self.tcp_established => ConnectError::Refused,
            EndReason::Reset => ConnectError::Reset,
            EndReason::LinkDown => ConnectError::LinkDown,
            _ if self.unreachable => ConnectError::Unreachable,
            _ => ConnectError::TimedOut,
        };
        self.fail_connect(cx, error, None);
        self.leave_backlog(cx);
        self.end_stream(&mut cx.pools.fpdu);
        if let Some(qp) = self.qp.and_then(|qp| cx.qps.get_mut(qp)) {
            qp.stream.stop();
            // A peer that has closed both directions answers data with RST.
            let is_local = self.closing.as_ref().is_some_and(|closing| closing.is_local);
            let reason = match reason {
                EndReason::Reset if qp.state() == QpState::Closing && !is_local => {
                    EndReason::PeerClosed
                }
                _ => reason,
            };
            // req: DDP-021, DDP-134, DDP-136, RDMAP-244
            qp.enter_error(&mut cx.verbs, reason);
        }
    }

    /// Ends the connection, because the link to its peer has ended. Nothing is sent.
    pub(crate) fn on_link_lost(&mut self, cx: &mut Context<E>) {
        self.on_tcp_lost(cx, EndReason::LinkDown);
        self.tcb.forget();
    }

    /// Handles the peer's FIN; everything before it was processed.
    pub(crate) fn on_fin(&mut self, cx: &mut Context<E>, now: Instant) {
        self.fail_connect(cx, ConnectError::Protocol, None);
        if self.continue_after_fin(cx, now) {
            return;
        }
        if let Some(qp) = self.qp.and_then(|qp| cx.qps.get_mut(qp)) {
            if !qp.stream.is_terminate_pending() {
                qp.stream.stop();
            }
            qp.enter_error(&mut cx.verbs, EndReason::PeerClosed);
        }
        self.begin_close(cx, now);
    }

    /// Handles data after the peer's FIN: the stream did not close gracefully then.
    pub(crate) fn on_data_after_fin(&mut self, cx: &mut Context<E>) {
        if matches!(self.phase, Phase::Rdma { .. }) {
            // req: DDP-128
            self.on_tcp_lost(cx, EndReason::DataAfterFin);
            self.abort(cx);
        }
    }

    /// Handles the expired deadline of the connection: the startup timeout, the linger timeout, or
    /// the timeout of a workaround for the peer. Lingering continues while the peer acknowledges or
    /// sends data faster than the minimum.
    pub(crate) fn on_deadline(&mut self, cx: &mut Context<E>, now: Instant) {
        if self.on_quirk_deadline(cx, now) {
            return;
        }
        if self.closing.is_some() && !self.is_too_slow(cx, now) {
            let extended = self.tcb.progress_at(now) + cx.config.linger_ns;
            if extended > now {
                self.deadline = extended;
                return;
            }
            if self.extend_if_receiving(cx, now) {
                return;
            }
        }
        let is_unreachable = self.unreachable && !self.tcp_established;
        let error = if is_unreachable { ConnectError::Unreachable } else { ConnectError::TimedOut };
        self.fail_connect(cx, error, None);
        self.on_close_timeout(cx);
        if self.is_forgotten() {
            self.tcb.forget();
        }
        self.abort(cx);
    }

    /// Its queue pair is destroyed.
    pub(crate) fn on_qp_destroyed(&mut self) {
        self.qp = None;
        if let Some(closing) = &mut self.closing {
            closing.unread_from = Some(self.tcb.rcv_nxt());
        }
    }

    /// True if nobody waits for it here, and the peer has everything, the FIN as well. A peer that
    /// half-closes (verbs: an unmodified program, which does not notice the end of the other) need
    /// not hear of it again, unless it has sent something that nobody has read.
    fn is_forgotten(&self) -> bool {
        let unread_from = self.closing.as_ref().and_then(|closing| closing.unread_from);
        self.tcb.state() == State::FinWait2 && unread_from == Some(self.tcb.rcv_nxt())
    }

    /// Closes the connection: received data is discarded except for a Terminate, FIN follows the
    /// last byte, and the connection is reset, or forgotten, if the peer has not closed too within
    /// the linger time.
    pub(crate) fn begin_close(&mut self, cx: &mut Context<E>, now: Instant) {
        self.leave_backlog(cx);
        let is_rejected = self.is_undecided();
        self.begin_terminate_drain(cx);
        // Buffered bytes are discarded, and so is everything after them.
        self.tcb.consume(std::mem::take(&mut self.buffered_len));
        // A half-close has no deadline.
        if self.closing.is_none() || self.deadline == NEVER {
            // req: DDP-032, RDMAP-248, RDMAP-249, RDMAP-254
            self.closing.get_or_insert_with(Closing::new).is_rejected = is_rejected;
            self.deadline = now + cx.config.linger_ns;
        }
        self.arm_timer(&mut cx.schedule);
        self.make_ready(&mut cx.schedule);
    }

    /// True if the responder's application has not accepted the connection.
    const fn is_undecided(&self) -> bool {
        matches!(
            self.phase,
            Phase::AwaitRequest { .. } | Phase::AwaitDecision(_) | Phase::Rejected { .. }
        )
    }

    /// Returns the reason for which the connection may be removed in favor of another, if there is
    /// one: it was rejected, or it has ended, the peer has all data, and only its FIN is missing.
    pub(crate) fn lingering(&self, cx: &Context<E>) -> Option<Lingering> {
        let has_ended = match self.qp.and_then(|qp| cx.qps.get(qp)) {
            // The listener of a request that the application has taken may be gone.
            None => self.listener.is_none() && !matches!(self.phase, Phase::AwaitDecision(_)),
            Some(qp) => qp.state() == QpState::Error,
        };
        if !has_ended {
            return None;
        }
        // Everything is acknowledged, the FIN after the last byte as well.
        if self.tcb.state() == State::FinWait2 {
            return Some(Lingering::Acknowledged);
        }
        let closing = self.closing.as_ref();
        let is_rejected = self.is_undecided() || closing.is_some_and(|closing| closing.is_rejected);
        is_rejected.then_some(Lingering::Rejected)
    }

    /// Resets the connection.
    pub(crate) fn abort(&mut self, cx: &mut Context<E>) {
        self.leave_backlog(cx);
        self.end_stream(&mut cx.pools.fpdu);
        self.startup_tx = None;
        self.tcb.abort();
        self.make_ready(&mut cx.schedule);
    }

    /// Ends the connection now, on behalf of the application: data of completed requests is still
    /// delivered, outstanding requests are flushed, and FIN follows.
    pub(crate) fn disconnect(&mut self, cx: &mut Context<E>, now: Instant) {
        let Some(qp) = self.qp.and_then(|qp| cx.qps.get_mut(qp)) else { return };
        match qp.state() {
            QpState::Connecting => self.cancel_setup(cx, ConnectError::Local, EndReason::Local),
            QpState::Rts | QpState::Closing => {
                qp.stream.stop();
                // req: DDP-142
                qp.enter_error(&mut cx.verbs, EndReason::Local);
                self.begin_close(cx, now);
            }
            QpState::Idle | QpState::Error => {}
        }
    }

    /// Resets the connection, which is being set up: `error` is the reason if this end connects,
    /// and `reason` if it has accepted.
    fn cancel_setup(&mut self, cx: &mut Context<E>, error: ConnectError, reason: EndReason) {
        self.fail_connect(cx, error, None);
        if let Some(qp) = self.qp.and_then(|qp| cx.qps.get_mut(qp)) {
            qp.enter_error(&mut cx.verbs, reason);
        }
        self.abort(cx);
    }

    /// Ends the connection abortively on behalf of the application: a Terminate reports the cause.
    pub(crate) fn terminate(&mut self, cx: &mut Context<E>, now: Instant, cause: Abort) {
        self.fail_with(cx, now, Fault::UlpAbort(cause), EndReason::Local);
    }

    /// Ends the connection, which cannot continue for lack of a local resource.
    #[cold]
    pub(crate) fn fail_locally(&mut self, cx: &mut Context<E>, now: Instant) {
        self.fail_with(cx, now, Fault::LocalCatastrophic, EndReason::LocalError);
    }

    /// Ends the connection, or the attempt to set it up, because a completion queue of its queue
    /// pair has overrun.
    pub(crate) fn end_with_cq(&mut self, cx: &mut Context<E>, now: Instant) {
        let qp = self.qp.and_then(|qp| cx.qps.get(qp));
        if qp.is_some_and(|qp| qp.state() == QpState::Connecting) {
            self.cancel_setup(cx, ConnectError::CqOverrun, EndReason::LocalError);
        } else {
            self.fail_locally(cx, now);
        }
    }

    /// Ends the connection over a fault that no segment of the peer caused. The peer is notified by
    /// a Terminate, or by a reset where nothing may be sent yet (RFC 5044 section 7.1.2).
    // req: RDMAP-240, RDMAP-243
    fn fail_with(&mut self, cx: &mut Context<E>, now: Instant, fault: Fault, reason: EndReason) {
        let Some(qp) = self.qp.and_then(|qp| cx.qps.get_mut(qp)) else { return };
        let may_send = self.startup.may_send() && !qp.tx_closed;
        if may_send && qp.stream.fail(fault, &[]).is_some() {
            cx.verbs.counters.terminates_out += 1;
        } else {
            qp.stream.fail_without_terminate(fault);
        }
        qp.enter_error(&mut cx.verbs, reason);
        self.end_failed_stream(cx, now, may_send);
    }

    /// Closes the connection of a failed stream after the Terminate. If no Terminate could be sent
    /// it is reset, so that the peer does not take it for a graceful close.
    #[cold]
    pub(crate) fn end_failed_stream(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        terminate_queued: bool,
    ) {
        if terminate_queued {
            // req: RDMAP-251
            self.begin_close(cx, now);
        } else {
            self.abort(cx);
        }
    }

    /// Handles that the connection entered TIME-WAIT, or restarted it. Beyond the limit the oldest
    /// one in that state is removed.
    pub(crate) fn on_time_wait(&mut self, cx: &mut Context<E>) {
        if std::mem::replace(&mut self.in_time_wait, true) {
            return;
        }
        cx.schedule.time_wait_count += 1;
        cx.schedule.time_waits.push_back(self.id);
        if cx.schedule.time_waits.len() > cx.config.time_wait_max {
            cx.deferred.push(Deferred::RecycleTimeWait);
        }
    }

    /// Releases what a connection that was removed from the table holds.
    pub(crate) fn release(mut self, cx: &mut Context<E>) {
        self.leave_backlog(cx);
        self.end_stream(&mut cx.pools.fpdu);
        self.tcb.release_all_ooo(&mut cx.pools.ooo);
        cx.pools.window_growth -= u64::from(self.window_growth);
        cx.schedule.time_wait_count -= usize::from(self.in_time_wait);
        if let Some(qp) = self.qp.and_then(|qp| cx.qps.get_mut(qp)) {
            qp.on_connection_removed(self.tcb.tuple());
        }
    }
}
