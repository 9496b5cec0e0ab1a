//! Workaround for Linux siw: wake-up of a responder that does not process the first FPDUs.
//!
//! Siw as the responder sends its MPA Reply Frame and only then processes data on the socket. FPDUs
//! that arrive in between stay there, acknowledged by its TCP, until a later segment arrives: an
//! initiator that waits for a response would wait forever.
//!
//! Remedy: an initiator that sent FPDUs right after the reply and has been silent since sends a
//! zero-length RDMA Write. It changes nothing (RFC 5041 section 5.2; RFC 6581 section 9 uses it as
//! RTR), takes no buffer, and is the later segment. A guest just booted took more than 10 ms to
//! process the socket; so, until the peer sends something, more wake-ups follow with growing gaps.

use crate::connection::context::{Context, Env};
use crate::connection::phase::Phase;
use crate::connection::setup::mpa_start::build_rtr_fpdu;
use crate::connection::{Connection, StartupTx};
use crate::time::{Instant, NEVER};
use crate::wire::mpa::Rtr;
use crate::wire::seq::Seq;

/// Wake-ups per connection, at most. Each gap is twice the one before.
const WAKEUPS_MAX: u8 = 5;

/// State of the wake-ups of a siw responder.
#[derive(Debug, Default)]
pub(super) struct Wakeups {
    /// RCV.NXT at establishment.
    established_rcv_nxt: Seq,
    /// Number of wake-ups sent since.
    sent: u8,
}

impl Wakeups {
    /// True if the peer has shown no sign of having processed the socket. `rcv_nxt`: RCV.NXT now.
    fn is_unanswered(&self, rcv_nxt: Seq) -> bool {
        // Some responders send at once, without processing the socket: that alone is no answer.
        self.sent == 0 || rcv_nxt == self.established_rcv_nxt
    }

    /// Counts a wake-up that is sent.
    const fn on_sent(&mut self) {
        self.sent += 1;
    }

    /// True if another wake-up may follow.
    const fn may_repeat(&self) -> bool {
        self.sent < WAKEUPS_MAX
    }
}

impl<E: Env> Connection<E> {
    /// Schedules the first wake-up of an initiator just established by the peer's reply.
    pub(in crate::connection) fn arm_wakeup(&mut self, cx: &Context<E>, now: Instant) {
        // FPDUs behind the reply may have ended the stream already.
        let Phase::Rdma { .. } = self.phase else { return };
        let after = cx.config.siw_wakeup_after_ns;
        // A peer that requests markers is not siw, which does not support them.
        if after > 0 && !self.framing.has_markers() {
            self.deadline = now + after;
            self.quirks.wakeups.established_rcv_nxt = self.tcb.rcv_nxt();
        }
    }

    /// Handles the deadline of a connection in full operation before its close: sends the wake-up
    /// if the last bytes sent were among the first. False if the deadline is another one.
    pub(super) fn on_wakeup_deadline(&mut self, cx: &mut Context<E>, now: Instant) -> bool {
        let Phase::Rdma { .. } = self.phase else { return false };
        let close_deadline = self.closing.as_ref().map_or(NEVER, |closing| closing.deadline);
        let qp = self.qp.and_then(|qp| cx.qps.get_mut(qp));
        let Some(qp) = qp.filter(|_| now < close_deadline) else { return false };
        let wakeups = &mut self.quirks.wakeups;
        // Data sent less than half of the gap ago is late enough for the peer to process it, with
        // everything before it.
        let gap = cx.config.siw_wakeup_after_ns << wakeups.sent;
        let sent_at_start = self.tcb.since_last_tx(now) >= gap / 2;
        let is_unanswered = sent_at_start && wakeups.is_unanswered(self.tcb.rcv_nxt());
        // req: DDP-109
        let has_more = qp.stream.can_build();
        if is_unanswered && (has_more || self.startup_tx.is_some() || self.tcb.unsent_or_unacked())
        {
            // Checked again later: data still to be sent wakes the peer as well, and nothing may
            // come between the segments of a message. The peer's TCP may delay the acknowledgment,
            // which does not show that siw has processed the bytes.
            self.deadline = close_deadline.min(now + gap);
            return true;
        }
        self.deadline = close_deadline;
        if is_unanswered && !qp.tx_closed && qp.stream.has_sent() {
            let fpdu = build_rtr_fpdu(&mut qp.stream, Rtr::Write, self.framing);
            self.startup_tx = Some(StartupTx::from_bytes(&fpdu));
            wakeups.on_sent();
            if wakeups.may_repeat() {
                self.deadline = close_deadline.min(now + 2 * gap);
            }
            cx.verbs.counters.fpdus_out += 1;
        }
        true
    }
}
