//! Replies that a connection sends within the limit.

use super::AckRateLimit;
use crate::device::{Retained, RxFrame};
use crate::tcp::tcb::Tcb;
use crate::time::Instant;
use crate::wire::tcp::{Flags, Segment};

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Sends a challenge ACK for a segment that may be forged: a SYN or RST in the window, an
    /// unacceptable acknowledgment, anything outside the window.
    #[cold]
    pub(in crate::tcp) fn send_challenge_ack(&mut self, now: Instant, seg: &Segment) {
        // No ACK loop: a peer that answers the challenge ACK to its RST does so with a RST at
        // RCV.NXT.
        let may_loop = seg.seq_len() == 0 && !seg.flags.has(Flags::RST);
        let limit = self.cfg.challenge_acks;
        let admits = self.ack_rate_limit.admits_challenge(now, limit, may_loop);
        self.rcv.ack_now |= self.count_challenge(admits);
    }

    /// Sends the RST for an acknowledgment of something that this connection has not sent, before
    /// it is established. The limit is that of challenge ACKs.
    #[cold]
    pub(in crate::tcp) fn send_stray_reset(&mut self, now: Instant, seg: &Segment) {
        let limit = self.cfg.challenge_acks;
        let admits = self.ack_rate_limit.admits_challenge(now, limit, false);
        if self.count_challenge(admits) {
            self.pending.stray_reset = Some(seg.ack);
        }
    }

    /// Sends an ACK for a zero-window or keepalive probe.
    #[cold]
    pub(in crate::tcp) fn send_probe_ack(&mut self, now: Instant) {
        let admits = self.ack_rate_limit.admits_repeat(now);
        self.rcv.ack_now |= self.count_challenge(admits);
    }

    /// Sends the SYN-ACK again, for a repeated SYN.
    #[cold]
    pub(in crate::tcp) fn repeat_syn_ack(&mut self, now: Instant) {
        let admits = self.ack_rate_limit.admits_repeat(now);
        self.pending.syn |= self.count_challenge(admits);
    }

    /// Returns the limit for the connection that replaces this one, half-open, at another SYN, if
    /// the SYN-ACK to that stays within it: a new limit for each SYN would be none.
    pub(crate) fn limit_of_replacement(&mut self, now: Instant) -> Option<AckRateLimit> {
        let admits = self.ack_rate_limit.admits_repeat(now);
        self.count_challenge(admits).then_some(self.ack_rate_limit)
    }

    /// Takes over the limit of the connection that this one replaces.
    pub(crate) const fn inherit_limit(&mut self, limit: AckRateLimit) {
        self.ack_rate_limit = limit;
    }

    fn count_challenge(&mut self, admits: bool) -> bool {
        self.stats.record().challenges += 1;
        self.stats.record().challenges_limited += u32::from(!admits);
        admits
    }
}
