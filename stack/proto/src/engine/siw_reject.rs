//! A reject, and the FIN behind it, which must not come on its heels.
//!
//! Linux's siw, as the initiator, is told of bytes and of FIN by its TCP, looks for the reply only
//! later, and is told of no bytes any more once the connection is half closed. Where the reply and
//! FIN are handed over in one piece, as those that found the socket in use are, it hears of FIN
//! first: the application learns that it was rejected, and not why. Without private data it takes a
//! FIN that has come by the time it looks for a broken protocol. So FIN waits until the peer has
//! acknowledged the reply and closed its direction, as it does at once when it has seen it, or a
//! while has passed since it acknowledged. RFC 5044 has no time for the end of a connection that
//! was rejected.

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
    /// Rejects a request; the initiator learns of it with `private_data`, and by revision 2 what
    /// this end would serve and issue: 0 where that is not the reason.
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
        // Where there are no frames the end of the connection has to say it.
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

    /// Patience is over with a peer that was rejected and has not closed: FIN follows now, or once
    /// the peer has had the reply for a while. False if there is nothing of the kind to wait for.
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
