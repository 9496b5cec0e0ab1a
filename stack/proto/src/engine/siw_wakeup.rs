//! A word more for peers that overlook our first one.
//!
//! Linux's siw, as the responder, sends its reply and only then turns to what arrives on the
//! socket: FPDUs that come between the two lie there, acknowledged by its TCP, until some later
//! segment wakes it. An initiator that asks and waits for the answer would wait for ever. So one
//! that spoke right after the reply and has been silent since sends an RDMA Write of no bytes: it
//! changes nothing (RFC 5041 section 5.2; RFC 6581 section 9 has it as the sign of being ready),
//! takes no buffer, and is the later segment. A guest that has just been booted took more than 10
//! ms to look; so, until something of the peer's has come, more follow with growing gaps.

use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::engine::connection::{Phase, StartupTx};
use crate::engine::mpa_start::build_rtr_fpdu;
use crate::mpa::startup::Rtr;
use crate::time::Instant;
use crate::verbs::wc::Completions;

/// Nudges of a connection, at most. Each gap is twice the one before.
const WAKEUPS_MAX: u8 = 5;

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// An initiator has just been established by its peer's reply.
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

    /// If patience ended with a connection in full operation it is time for the nudge: sent if the
    /// last bytes of this end were among its first. False: patience ended with something else.
    pub(super) fn on_siw_wakeup_deadline(&mut self, now: Instant, index: u32) -> bool {
        let Some(conn) = self.connections.get_mut(index) else { return false };
        let (Phase::Rdma { .. }, Some(qp)) = (&conn.phase, conn.qp) else { return false };
        let Some(qp) = self.verbs.get_mut(qp).filter(|qp| now < qp.close_deadline) else {
            return false;
        };
        // What was said later than half of the time ago came late enough to be looked at, and
        // everything before it with it.
        let gap = self.config.siw_wakeup_after_ns << qp.siw_wakeups;
        let spoke_early = conn.tcb.since_last_tx(now) >= gap / 2;
        // Some responders speak at once, whether they listen or not: that alone is no answer.
        let is_unheard =
            spoke_early && (qp.siw_wakeups == 0 || conn.tcb.rcv_nxt() == qp.last_rcv_nxt);
        // req: DDP-109
        let has_more = qp.stream.can_build();
        if is_unheard && (has_more || conn.startup_tx.is_some() || conn.tcb.unsent_or_unacked()) {
            // Looked at again later: what is still to be sent wakes the peer as well, and nothing
            // may come between the segments of a message; and its TCP may take its time with the
            // acknowledgement, which says nothing of who has looked at the bytes.
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
