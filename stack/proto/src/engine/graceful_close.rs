//! The end of a stream in good order (RFC 5041 section 6.2.1): what was posted is carried out and
//! FIN follows it; when both ends have finished, or the peer's patience is over, the stream ends.
//!
//! | queue pair | what happens                            | queue pair then                     |
//! |------------|-----------------------------------------|-------------------------------------|
//! | `Rts`      | `close`, `half_close`                   | `Closing`                           |
//! | `Rts`      | FIN, nothing left to send               | `Error`: `PeerClosed`               |
//! | `Rts`      | FIN, work left                          | `Closing`, ended by the peer        |
//! | `Rts`      | FIN, to be outlived, and no Read waits  | `Rts`: `PeerFinished` is told       |
//! | `Closing`  | all is done                             | `Closing`: our FIN goes             |
//! | `Closing`  | all is done, the peer's FIN was here    | `Error`: `Local` or `PeerClosed`    |
//! | `Closing`  | FIN, and a Read waits                   | the rest is sent, then the same     |
//! | `Closing`  | nothing moves within the linger time    | `Error`, and a reset: `Local` if    |
//! |            |                                         | all was acknowledged, or `TimedOut` |
//! | either     | `disconnect`, `terminate`, faults, RST  | `Error` at once, as always          |
//!
//! A FIN within an FPDU is no good order: the stream ends at once.

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

/// Bytes, both ways together, below which a connection that ends counts as slow over half of the
/// linger time or more; and how often it may.
const PROGRESS_MIN: u32 = 4096;
const SLOW_MAX: u8 = 12;

/// How a connection moves that ends: a peer that sends or acknowledges a byte now and then must
/// not keep it for ever.
#[derive(Clone, Copy, Debug)]
pub(super) struct CloseProgress {
    /// When it was looked at.
    at: Instant,
    /// What was acknowledged and received by then.
    una: Seq,
    rcv: Seq,
    /// How often it was slow.
    slow_count: u8,
}

impl CloseProgress {
    /// Not looked at yet.
    pub(super) const NEW: Self =
        Self { at: Instant::ZERO, una: Seq(0), rcv: Seq(0), slow_count: 0 };
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Ends a queue pair's connection in good order: no more requests are taken, those posted are
    /// carried out and complete, what the peer has asked for is answered, then FIN follows. What
    /// the peer sends is received until it has closed, too: [`Event::Disconnected`] with
    /// [`EndReason::Local`] says that both have. If nothing was acknowledged or received for the
    /// linger time the connection is reset; the reason is then `Local` too if all of this end had
    /// been acknowledged, else `TimedOut`.
    ///
    /// A connection that is still being set up is given up.
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

    /// As [`Engine::close`], but what the peer sends is received until it closes in turn, or the
    /// application ends the connection by another call. TCP gives up a peer that shows no sign of
    /// itself meanwhile (`tcp::Config::fin_wait_ns`).
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
        // A peer that has finished has only to acknowledge.
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

    /// The peer's FIN on a connection of FPDUs: true if there is more to be done than to end it.
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

    /// Patience with a connection that ends is over: true if it has moved too slowly too often for
    /// that to begin anew.
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

    /// Patience is over on a connection that ends in good order: if something was received since
    /// it last was, it begins anew.
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

    /// Nothing has moved for the linger time on a connection that ends in good order.
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

/// Nothing is ready to be sent on a connection that ends: FIN follows, unless requests wait for the
/// peer; and if the peer has finished, the stream is over.
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
