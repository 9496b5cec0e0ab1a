//! NewReno (RFC 5681): one segment more per round trip, half of the flight after a loss.

use super::ack_sample::AckSample;

/// NewReno state besides the window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NewReno {
    /// Bytes acknowledged in congestion avoidance since the window last grew.
    acked: u32,
}

impl NewReno {
    /// Returns the window after an ACK in congestion avoidance, by counting bytes (RFC 5681
    /// section 3.1).
    #[inline]
    pub(super) fn on_ack(&mut self, cwnd: u32, ack: &AckSample) -> u32 {
        self.acked += ack.bytes;
        if self.acked < cwnd {
            return cwnd;
        }
        self.acked -= cwnd;
        cwnd.saturating_add(ack.mss)
    }

    /// Returns the slow-start threshold after a loss (RFC 5681, equation 4).
    pub(super) fn reduce(flight: u32, mss: u32) -> u32 {
        (flight / 2).max(2 * mss)
    }

    /// Restarts congestion avoidance.
    pub(super) const fn restart(&mut self) {
        self.acked = 0;
    }
}
