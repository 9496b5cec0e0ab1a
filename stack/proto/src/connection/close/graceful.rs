//! Graceful close of a stream (RFC 5041 section 6.2.1): posted requests complete, then FIN is sent.
//! The stream ends when both ends have sent FIN, or at the linger timeout.
//!
//! | QP state  | event                                   | QP state afterwards                 |
//! |-----------|-----------------------------------------|-------------------------------------|
//! | `Rts`     | `close`, `half_close`                   | `Closing`                           |
//! | `Rts`     | FIN, nothing left to send               | `Error`: `PeerClosed`               |
//! | `Rts`     | FIN, data left to send                  | `Closing`, as closed by the peer    |
//! | `Rts`     | FIN, half-close set, no Read pending    | `Rts`: event `PeerFinished`         |
//! | `Closing` | all requests completed                  | `Closing`: FIN is sent              |
//! | `Closing` | the same, peer's FIN was received       | `Error`: `Local` or `PeerClosed`    |
//! | `Closing` | FIN, a Read is pending                  | other requests are sent, then as in |
//! |           |                                         | the row above                       |
//! | `Closing` | no progress within the linger time      | `Error`, and RST: `Local` if all    |
//! |           |                                         | was acknowledged, else `TimedOut`   |
//! | either    | `disconnect`, `terminate`, faults, RST  | `Error` at once                     |
//!
//! FIN in the middle of an FPDU is not a graceful close: the stream ends at once.

use crate::connection::Connection;
use crate::connection::close::Closing;
use crate::connection::context::{Context, Env};
use crate::connection::phase::Phase;
use crate::tcp::{self, TxDemand};
use crate::time::Instant;
use crate::verbs::cm::{ConnEvent, EndReason};
use crate::verbs::qp::{QpEvent, QpState};

impl<E: Env> Connection<E> {
    /// Closes the connection gracefully on behalf of the application; without progress it ends at
    /// `deadline`.
    pub(crate) fn close_gracefully(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        deadline: Instant,
    ) {
        let Some(qp) = self.qp.and_then(|qp| cx.qps.get(qp)) else { return };
        self.closing.get_or_insert_with(Closing::new).is_local |= qp.state() == QpState::Rts;
        self.begin_graceful_close(cx, now, deadline);
    }

    fn begin_graceful_close(&mut self, cx: &mut Context<E>, now: Instant, deadline: Instant) {
        let linger = now + cx.config.linger_ns;
        let Some(qp) = self.qp.and_then(|qp| cx.qps.get_mut(qp)) else { return };
        let is_connected = qp.transition(QpEvent::Close);
        debug_assert!(is_connected, "{:?}", qp.state());
        let closing = self.closing.get_or_insert_with(Closing::new);
        // A peer that has sent FIN only has to acknowledge.
        let deadline = if self.tcb.peer_finished() { linger } else { deadline };
        closing.deadline = closing.deadline.min(deadline);
        closing.last_rcv_nxt = self.tcb.rcv_nxt();
        self.deadline = self.deadline.min(deadline);
        if self.tx_demand(Some(qp)) == TxDemand::Nothing {
            self.finish_close(cx);
        }
        self.arm_timer(&mut cx.schedule);
        self.make_ready(&mut cx.schedule);
    }

    /// Processes the peer's FIN in full operation: true if the connection continues for now.
    // req: DDP-129, DDP-130
    #[cold]
    pub(super) fn continue_after_fin(&mut self, cx: &mut Context<E>, now: Instant) -> bool {
        let Phase::Rdma { deframer } = &self.phase else { return false };
        if deframer.has_partial() {
            return false;
        }
        let qp = self.qp.and_then(|qp| cx.qps.get_mut(qp));
        let Some(qp) = qp.filter(|qp| qp.state().is_connected()) else { return false };
        let has_unanswered = qp.stream.on_rx_closed();
        if qp.state() == QpState::Rts && self.half_close && !has_unanswered {
            cx.verbs.events.push_back(ConnEvent::PeerFinished { qp: qp.id });
        } else {
            let deadline = now + cx.config.linger_ns;
            self.begin_graceful_close(cx, now, deadline);
        }
        true
    }

    /// Checks the progress of a closing connection at its deadline: true if it was too slow too
    /// often for the deadline to be extended.
    pub(super) fn is_too_slow(&mut self, cx: &Context<E>, now: Instant) -> bool {
        let (una, rcv_nxt) = (self.tcb.snd_una(), self.tcb.rcv_nxt());
        self.closing
            .as_mut()
            .is_some_and(|closing| closing.is_too_slow(now, cx.config.linger_ns, una, rcv_nxt))
    }

    /// Extends the deadline of a gracefully closing connection if data was received since the last
    /// deadline; true if so.
    pub(super) fn extend_if_receiving(&mut self, cx: &Context<E>, now: Instant) -> bool {
        let (Phase::Rdma { .. }, Some(_)) = (&self.phase, self.qp) else { return false };
        let Some(closing) = &mut self.closing else { return false };
        let rcv_nxt = self.tcb.rcv_nxt();
        let has_moved = std::mem::replace(&mut closing.last_rcv_nxt, rcv_nxt) != rcv_nxt;
        if has_moved {
            self.deadline = now + cx.config.linger_ns;
        }
        has_moved
    }

    /// Ends the queue pair of a gracefully closing connection without progress for the linger time.
    pub(super) fn on_close_timeout(&mut self, cx: &mut Context<E>) {
        let Phase::Rdma { .. } = self.phase else { return };
        let Some(qp) = self.qp.and_then(|qp| cx.qps.get_mut(qp)) else { return };
        let is_acknowledged = self.tcb.state() == tcp::State::FinWait2;
        qp.stream.stop();
        let reason = if is_acknowledged { EndReason::Local } else { EndReason::TimedOut };
        qp.enter_error(&mut cx.verbs, reason);
    }

    /// Continues the close of a connection with nothing ready to be sent: sends FIN, unless
    /// requests wait for a response, and ends the stream if the peer has sent FIN.
    // req: DDP-131
    #[cold]
    pub(crate) fn finish_close(&mut self, cx: &mut Context<E>) {
        if let Phase::Rdma { .. } = self.phase
            && let Some(qp) = self.qp.and_then(|qp| cx.qps.get_mut(qp))
        {
            let peer_finished = self.tcb.peer_finished();
            if !peer_finished && !qp.stream.is_idle() {
                return;
            }
            qp.tx_closed = true;
            qp.stream.on_tx_closed();
            if peer_finished {
                qp.stream.stop();
                let is_local = self.closing.as_ref().is_some_and(|closing| closing.is_local);
                let reason = if is_local { EndReason::Local } else { EndReason::PeerClosed };
                // req: DDP-029, DDP-030
                qp.enter_error(&mut cx.verbs, reason);
                self.end_stream(&mut cx.pools.fpdu);
            }
        }
        // req: MPA-146, DDP-132
        self.tcb.close();
    }
}
