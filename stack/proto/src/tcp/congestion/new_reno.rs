//! NewReno (RFC 5681): a segment more per round trip, half the window at a loss.

use super::AckSample;

/// What NewReno keeps beside the window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NewReno {
    /// Bytes acknowledged since the window last grew in congestion avoidance.
    acked: u32,
}

impl NewReno {
    /// The window after an ACK in congestion avoidance, counting bytes (RFC 5681 section 3.1).
    #[inline]
    pub(super) fn on_ack(&mut self, cwnd: u32, ack: &AckSample) -> u32 {
        self.acked += ack.bytes;
        if self.acked < cwnd {
            return cwnd;
        }
        self.acked -= cwnd;
        cwnd.saturating_add(ack.mss)
    }

    /// The slow-start threshold after a loss (RFC 5681, equation 4).
    pub(super) fn reduce(flight: u32, mss: u32) -> u32 {
        (flight / 2).max(2 * mss)
    }

    /// Congestion avoidance begins anew.
    pub(super) const fn restart(&mut self) {
        self.acked = 0;
    }
}
