//! The congestion window.

/// Outside slow start the window is updated once 2^-6 of it was acknowledged.
const STEP_BITS: u32 = 6;

/// Congestion window: the state that every segment and every ACK touches.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct CongestionWindow {
    pub(super) cwnd: u32,
    pub(super) ssthresh: u32,
    /// Bytes acknowledged outside slow start that were not yet given to the algorithm.
    pub(super) acked_pending: u32,
}

impl CongestionWindow {
    /// Congestion window, bytes.
    #[inline]
    pub(in crate::tcp) const fn cwnd(&self) -> u32 {
        self.cwnd
    }

    /// True in slow start: the window doubles each round trip.
    #[inline]
    pub(in crate::tcp) const fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Accumulates `bytes` acknowledged while the window was in use. Returns false, and does
    /// nothing, if [`super::Congestion::on_ack`] has to be called for them now.
    #[inline]
    pub(in crate::tcp) const fn absorb_acked(&mut self, bytes: u32) -> bool {
        let pending = self.acked_pending.saturating_add(bytes);
        if self.in_slow_start() || pending >= self.cwnd >> STEP_BITS {
            return false;
        }
        self.acked_pending = pending;
        true
    }
}
