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

use crate::ddp::memory::Memory;
use crate::device::{Device, Retained, RxFrame};
use crate::engine::Engine;
use crate::engine::connection::{Connection, NEVER, Phase};
use crate::engine::queue_pairs::QueuePairs;
use crate::engine::tx::tx_demand;
use crate::mpa::fpdu_pool::FpduPool;
use crate::tcp::{self, TxDemand};
use crate::time::Instant;
use crate::verbs::cm::{CmError, EndReason, Event};
use crate::verbs::qp::QpState;
use crate::verbs::wc::{Completions, QpId};
use crate::wire::seq::Seq;

/// Bytes, both directions together, below which a closing connection counts as slow over half of
/// the linger time or more; and how many such checks it may have.
const PROGRESS_MIN: u32 = 4096;
const SLOW_MAX: u8 = 12;

/// Progress of a closing connection: a peer that sends or acknowledges a byte now and then must not
/// hold it forever.
#[derive(Clone, Copy, Debug)]
pub(super) struct CloseProgress {
    /// Time of the last check.
    at: Instant,
    /// SND.UNA and RCV.NXT at that time.
    una: Seq,
    rcv: Seq,
    /// Number of checks with too little progress.
    slow_count: u8,
}

impl CloseProgress {
    /// Not checked yet.
    pub(super) const NEW: Self =
        Self { at: Instant::ZERO, una: Seq(0), rcv: Seq(0), slow_count: 0 };
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Closes a queue pair's connection gracefully. No more requests are accepted; those posted
    /// complete, the peer's RDMA Reads are answered, then FIN is sent. Data from the peer is
    /// received until it closes, too: [`Event::Disconnected`] with [`EndReason::Local`] reports
    /// that both ends have. If nothing was acknowledged or received for the linger time the
    /// connection is reset. The reason is then `Local` too if everything sent was acknowledged,
    /// else `TimedOut`.
    ///
    /// A connection still being set up is aborted.
    ///
    /// # Errors
    /// [`CmError::Gone`] if there is no such queue pair or it has no connection.
    // req: DDP-126, RDMAP-239
    pub fn close(&mut self, now: Instant, qp: QpId) -> Result<(), CmError> {
        let index = self.verbs.index(qp).ok_or(CmError::Gone)?;
        if self.qp_state(qp).is_connected() {
            let deadline = now + self.config.linger_ns;
            return self.close_gracefully(now, index, deadline);
        }
        self.disconnect(now, qp)
    }

    /// Closes one direction (half-close): as [`Engine::close`], but data from the peer is received
    /// without a deadline, until the peer closes or the application ends the connection by another
    /// call. Meanwhile TCP resets the connection if the peer is silent for too long
    /// (`tcp::Config::fin_wait_ns`).
    ///
    /// # Errors
    /// [`CmError::Gone`]; [`CmError::WrongState`] if the connection does not carry FPDUs.
    // req: DDP-133
    pub fn half_close(&mut self, now: Instant, qp: QpId) -> Result<(), CmError> {
        let index = self.verbs.index(qp).ok_or(CmError::Gone)?;
        if !self.qp_state(qp).is_connected() {
            return Err(CmError::WrongState);
        }
        self.close_gracefully(now, index, NEVER)
    }

    fn close_gracefully(
        &mut self,
        now: Instant,
        qp_index: u32,
        deadline: Instant,
    ) -> Result<(), CmError> {
        let qp = self.verbs.get_mut(qp_index).ok_or(CmError::Gone)?;
        let index = qp.conn.ok_or(CmError::Gone)?;
        qp.closed_locally |= qp.state == QpState::Rts;
        self.begin_graceful_close(now, index, qp_index, deadline);
        Ok(())
    }

    fn begin_graceful_close(&mut self, now: Instant, index: u32, qp_index: u32, deadline: Instant) {
        let linger = now + self.config.linger_ns;
        let Self { connections, verbs, fpdu_pool: assembly, .. } = self;
        let Some(conn) = connections.get_mut(index) else { return };
        let Some(qp) = verbs.get_mut(qp_index) else { return };
        qp.state = QpState::Closing;
        conn.closing = true;
        // A peer that has sent FIN only has to acknowledge.
        let deadline = if conn.tcb.peer_finished() { linger } else { deadline };
        qp.close_deadline = qp.close_deadline.min(deadline);
        conn.deadline = conn.deadline.min(deadline);
        qp.last_rcv_nxt = conn.tcb.rcv_nxt();
        if tx_demand(conn, verbs) == TxDemand::Nothing {
            finish_close(conn, verbs, assembly);
        }
        self.arm_timer(index);
        self.make_ready(index);
    }

    /// Processes the peer's FIN in full operation: true if the connection continues for now.
    // req: DDP-129, DDP-130
    #[cold]
    pub(super) fn continue_after_fin(&mut self, now: Instant, index: u32) -> bool {
        let Some(conn) = self.connections.get(index) else { return false };
        let Phase::Rdma { deframer: receiver } = &conn.phase else { return false };
        let Some(qp_index) = conn.qp.filter(|_| !receiver.has_partial()) else { return false };
        let qp = self.verbs.get_mut(qp_index).filter(|qp| qp.state.is_connected());
        let Some(qp) = qp else { return false };
        let lacks_answers = qp.stream.on_rx_closed();
        if qp.state == QpState::Rts && qp.half_close && !lacks_answers {
            let qp = self.verbs.id(qp_index);
            self.verbs.events.push_back(Event::PeerFinished { qp });
        } else {
            let deadline = now + self.config.linger_ns;
            self.begin_graceful_close(now, index, qp_index, deadline);
        }
        true
    }

    /// Checks the progress of a closing connection at its deadline: true if it was too slow too
    /// often for the deadline to be extended.
    pub(super) fn is_too_slow(&mut self, now: Instant, index: u32) -> bool {
        let conn = self.connections.get(index).filter(|conn| conn.closing);
        let Some(conn) = conn else { return false };
        let Some(qp) = conn.qp.and_then(|qp| self.verbs.get_mut(qp)) else { return false };
        let (una, rcv) = (conn.tcb.snd_una(), conn.tcb.rcv_nxt());
        if now.since(qp.close_progress.at) >= self.config.linger_ns / 2 {
            let moved = (una - qp.close_progress.una).saturating_add(rcv - qp.close_progress.rcv);
            let slow = qp.close_progress.slow_count.saturating_add(u8::from(moved < PROGRESS_MIN));
            qp.close_progress = CloseProgress { at: now, una, rcv, slow_count: slow };
        }
        qp.close_progress.slow_count > SLOW_MAX
    }

    /// Extends the deadline of a gracefully closing connection if data was received since the last
    /// deadline; true if so.
    pub(super) fn extend_if_receiving(&mut self, now: Instant, index: u32) -> bool {
        let deadline = now + self.config.linger_ns;
        let Some(conn) = self.connections.get_mut(index) else { return false };
        let (Phase::Rdma { .. }, Some(qp)) = (&conn.phase, conn.qp) else { return false };
        let Some(qp) = self.verbs.get_mut(qp) else { return false };
        let reached = conn.tcb.rcv_nxt();
        let has_moved = std::mem::replace(&mut qp.last_rcv_nxt, reached) != reached;
        if has_moved {
            conn.deadline = deadline;
        }
        has_moved
    }

    /// Ends the queue pair of a gracefully closing connection without progress for the linger time.
    pub(super) fn on_close_timeout(&mut self, index: u32) {
        let Some(conn) = self.connections.get(index) else { return };
        let (Phase::Rdma { .. }, Some(qp_index)) = (&conn.phase, conn.qp) else { return };
        let is_acknowledged = conn.tcb.state() == tcp::State::FinWait2;
        let Some(qp) = self.verbs.get_mut(qp_index) else { return };
        qp.stream.stop();
        let reason = if is_acknowledged { EndReason::Local } else { EndReason::TimedOut };
        self.verbs.enter_error(qp_index, reason);
    }
}

/// Continues the close of a connection with nothing ready to be sent: sends FIN, unless requests
/// wait for a response, and ends the stream if the peer has sent FIN.
// req: DDP-131
#[cold]
pub(super) fn finish_close<R, T, M, C>(
    conn: &mut Connection<R, T>,
    verbs: &mut QueuePairs<M, C>,
    assembly: &mut FpduPool,
) where
    R: RxFrame,
    T: Retained,
    M: Memory,
    C: Completions,
{
    if let (Phase::Rdma { .. }, Some(index)) = (&conn.phase, conn.qp)
        && let Some(qp) = verbs.get_mut(index)
    {
        let peer_finished = conn.tcb.peer_finished();
        if !peer_finished && !qp.stream.is_idle() {
            return;
        }
        qp.tx_closed = true;
        qp.stream.on_tx_closed();
        if peer_finished {
            qp.stream.stop();
            let reason = if qp.closed_locally { EndReason::Local } else { EndReason::PeerClosed };
            // req: DDP-029, DDP-030
            verbs.enter_error(index, reason);
            conn.end_stream(assembly);
        }
    }
    // req: MPA-146, DDP-132
    conn.tcb.close();
}
