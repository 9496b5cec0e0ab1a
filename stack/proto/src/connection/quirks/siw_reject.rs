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

use crate::connection::Connection;
use crate::connection::context::{Context, Env};
use crate::connection::phase::{Phase, PhaseEvent};
use crate::time::Instant;

impl<E: Env> Connection<E> {
    /// Delays FIN until after the reply that rejects the peer's request. False if it is not to be
    /// held back: FIN follows at once.
    pub(in crate::connection) fn delay_fin(&mut self, cx: &mut Context<E>, now: Instant) -> bool {
        let delay_ns = cx.config.siw_reject_fin_delay_ns;
        // Without startup frames only FIN reports the reject.
        if self.startup_tx.is_none() || delay_ns == 0 || self.tcb.peer_finished() {
            return false;
        }
        let deadline = now + cx.config.linger_ns;
        self.tcb.consume(std::mem::take(&mut self.buffered_len));
        self.phase.enter(PhaseEvent::Reject, Phase::Rejected { deadline });
        self.deadline = deadline.min(now + delay_ns);
        self.arm_timer(&mut cx.schedule);
        self.make_ready(&mut cx.schedule);
        true
    }

    /// Handles the deadline of a rejected connection that the peer has not closed: FIN follows now,
    /// or a delay after the peer has acknowledged the reply. False if the connection is not in this
    /// phase, or the linger timeout passed without an acknowledgment.
    pub(super) fn on_reject_deadline(&mut self, cx: &mut Context<E>, now: Instant) -> bool {
        let delay_ns = cx.config.siw_reject_fin_delay_ns;
        let Phase::Rejected { deadline } = self.phase else { return false };
        let is_acked = self.startup_tx.is_none() && !self.tcb.unsent_or_unacked();
        if !is_acked && now >= deadline {
            return false;
        }
        let next = if is_acked { self.tcb.progress_at(now) } else { now } + delay_ns;
        if next > now && now < deadline {
            self.deadline = deadline.min(next);
        } else {
            self.begin_close(cx, now);
        }
        true
    }
}
