//! ACKs that a connection sends within the limit.

use super::DUP_ACK_BUDGET;
use crate::device::{Retained, RxFrame};
use crate::tcp::tcb::Tcb;
use crate::time::Instant;
use crate::wire::tcp::{Flags, Segment};

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Sends a challenge ACK for a segment that may be forged: a SYN or RST in the window, or an
    /// unacceptable acknowledgment.
    #[cold]
    pub(in crate::tcp) fn send_challenge_ack(&mut self, now: Instant, seg: &Segment) {
        let limit = self.cfg.challenge_acks;
        let counts = &mut self.ack_rate_limit;
        counts.new_period(now);
        // No ACK loop: a peer that answers the challenge ACK does so with a RST at RCV.NXT.
        let admits = counts.challenges < limit
            && (seg.flags.has(Flags::RST) || counts.admits_reply(now, seg));
        counts.challenges += u8::from(admits);
        self.send_ack_if(admits);
    }

    /// Sends an ACK for a segment outside the window that shows no sign of forgery.
    #[cold]
    pub(in crate::tcp) fn send_limited_ack(&mut self, now: Instant, seg: &Segment) {
        let counts = &mut self.ack_rate_limit;
        counts.new_period(now);
        let admits = counts.dup_acks < DUP_ACK_BUDGET && counts.admits_reply(now, seg);
        counts.dup_acks += u8::from(admits);
        self.send_ack_if(admits);
    }

    fn send_ack_if(&mut self, admits: bool) {
        self.stats.record().challenges += 1;
        self.stats.record().challenges_limited += u32::from(!admits);
        self.rcv.ack_now |= admits;
    }
}
