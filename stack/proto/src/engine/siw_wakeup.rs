//! Workaround for Linux siw: wake-up of a responder that does not process the first FPDUs.
//!
//! Siw as the responder sends its MPA Reply Frame and only then processes data on the socket. FPDUs
//! that arrive in between stay there, acknowledged by its TCP, until a later segment arrives: an
//! initiator that waits for a response would wait forever.
//!
//! Remedy: an initiator that sent FPDUs right after the reply and has been silent since sends an
//! RDMA Write of no bytes. It changes nothing (RFC 5041 section 5.2; RFC 6581 section 9 uses it as
//! RTR), takes no buffer, and is the later segment. A guest just booted took more than 10 ms to
//! process the socket; so, until the peer sends something, more wake-ups follow with growing gaps.

use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::engine::connection::{Phase, StartupTx};
use crate::engine::mpa_start::build_rtr_fpdu;
use crate::time::Instant;
use crate::verbs::wc::Completions;
use crate::wire::rtr::Rtr;

/// Wake-ups per connection, at most. Each gap is twice the one before.
const WAKEUPS_MAX: u8 = 5;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Schedules the first wake-up of an initiator just established by the peer's reply.
    pub(super) fn arm_siw_wakeup(&mut self, now: Instant, index: u32) {
        let after = self.config.siw_wakeup_after_ns;
        // A peer that wants markers is not siw, which refuses them.
        if let Some(conn) = self.connections.get_mut(index)
            && after > 0
            && !conn.framing.has_markers()
        {
            conn.deadline = now + after;
            if let Some(qp) = conn.qp.and_then(|qp| self.verbs.get_mut(qp)) {
                qp.last_rcv_nxt = conn.tcb.rcv_nxt();
            }
        }
    }

    /// Handles the deadline of a connection in full operation before its close: sends the wake-up
    /// if the last bytes sent were among the first. False if the deadline is another one.
    pub(super) fn on_siw_wakeup_deadline(&mut self, now: Instant, index: u32) -> bool {
        let Some(conn) = self.connections.get_mut(index) else { return false };
        let (Phase::Rdma { .. }, Some(qp)) = (&conn.phase, conn.qp) else { return false };
        let Some(qp) = self.verbs.get_mut(qp).filter(|qp| now < qp.close_deadline) else {
            return false;
        };
        // Data sent less than half of the gap ago is late enough for the peer to process it, with
        // everything before it.
        let gap = self.config.siw_wakeup_after_ns << qp.siw_wakeups;
        let spoke_early = conn.tcb.since_last_tx(now) >= gap / 2;
        // Some responders send at once, without processing the socket: that alone is no answer.
        let is_unheard =
            spoke_early && (qp.siw_wakeups == 0 || conn.tcb.rcv_nxt() == qp.last_rcv_nxt);
        // req: DDP-109
        let has_more = qp.stream.can_build();
        if is_unheard && (has_more || conn.startup_tx.is_some() || conn.tcb.unsent_or_unacked()) {
            // Checked again later: data still to be sent wakes the peer as well, and nothing may
            // come between the segments of a message. The peer's TCP may delay the acknowledgment,
            // which does not show that siw has processed the bytes.
            conn.deadline = qp.close_deadline.min(now + gap);
            return true;
        }
        conn.deadline = qp.close_deadline;
        if is_unheard && !qp.tx_closed && qp.stream.has_sent() {
            let fpdu = build_rtr_fpdu(&mut qp.stream, Rtr::Write, conn.framing);
            conn.startup_tx = Some(StartupTx::from_bytes(&fpdu));
            qp.siw_wakeups += 1;
            if qp.siw_wakeups < WAKEUPS_MAX {
                conn.deadline = qp.close_deadline.min(now + 2 * gap);
            }
            self.verbs.counters.fpdus_out += 1;
        }
        true
    }
}
