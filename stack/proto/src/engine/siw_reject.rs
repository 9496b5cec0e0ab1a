//! Reject of a connection request, with a workaround for Linux siw: FIN is held back.
//!
//! Siw as the initiator is notified of data and of FIN by its TCP, looks for the MPA Reply Frame
//! only later, and gets no data notifications once the connection is half closed. If the reply and
//! FIN are handed over together, as segments that find the socket in use are, it processes FIN
//! first: the application learns that it was rejected, but not why. Without private data, siw
//! reports a protocol error if FIN is there by the time it looks.
//!
//! Remedy: FIN waits until the peer has acknowledged the reply and closed its direction, which it
//! does as soon as it has seen the reply, or until a delay after the acknowledgment. RFC 5044 sets
//! no time for the end of a rejected connection.

use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::engine::connect::check_private_data;
use crate::engine::connection::{Phase, StartupTx};
use crate::mpa::startup;
use crate::time::Instant;
use crate::verbs::cm::{CmError, ReadDepths, RequestId};
use crate::verbs::wc::Completions;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Rejects a connection request. The initiator receives `private_data`, and with revision 2 the
    /// read depths of this end: 0 if they are not the reason.
    ///
    /// # Errors
    /// [`CmError::Gone`], [`CmError::PrivateDataTooLong`].
    pub fn reject(
        &mut self,
        now: Instant,
        request: RequestId,
        reads: ReadDepths,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let index =
            self.connections.live_index(request.index, request.generation).ok_or(CmError::Gone)?;
        let hold_ns = self.config.siw_reject_fin_delay_ns;
        let conn = self.connections.get_mut(index).ok_or(CmError::Gone)?;
        let Phase::AwaitDecision(awaits) = &conn.phase else {
            return Err(CmError::Gone);
        };
        let request = awaits.request.as_ref();
        let is_enhanced = request.is_some_and(|request| request.enhanced.is_some());
        check_private_data(private_data, request.is_some(), is_enhanced)?;
        // Without startup frames only the end of the connection reports the reject.
        let reply =
            request.map(|request| StartupTx::new(&startup::reject(request, reads, private_data)));
        let is_held = reply.is_some() && hold_ns > 0 && !conn.tcb.peer_finished();
        conn.startup_tx = reply;
        self.leave_backlog(index);
        if is_held {
            self.delay_fin(now, index);
        } else {
            self.begin_close(now, index);
        }
        Ok(())
    }

    fn delay_fin(&mut self, now: Instant, index: u32) {
        let until = now + self.config.linger_ns;
        let Some(conn) = self.connections.get_mut(index) else { return };
        conn.tcb.consume(std::mem::take(&mut conn.buffered_len));
        conn.phase = Phase::Rejected { deadline: until };
        conn.deadline = until.min(now + self.config.siw_reject_fin_delay_ns);
        self.arm_timer(index);
        self.make_ready(index);
    }

    /// Handles the deadline of a rejected connection that the peer has not closed: FIN follows now,
    /// or a delay after the peer has acknowledged the reply. False if the connection is not in this
    /// phase, or the linger timeout passed without an acknowledgment.
    pub(super) fn on_reject_deadline(&mut self, now: Instant, index: u32) -> bool {
        let hold_ns = self.config.siw_reject_fin_delay_ns;
        let Some(conn) = self.connections.get_mut(index) else { return false };
        let Phase::Rejected { deadline: until } = conn.phase else { return false };
        let is_seen = conn.startup_tx.is_none() && !conn.tcb.unsent_or_unacked();
        if !is_seen && now >= until {
            return false;
        }
        let more = if is_seen { conn.tcb.progress_at(now) } else { now } + hold_ns;
        if more > now && now < until {
            conn.deadline = until.min(more);
        } else {
            self.begin_close(now, index);
        }
        true
    }
}
