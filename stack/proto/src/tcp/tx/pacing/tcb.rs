//! Pacing of a connection.

use super::{BURST_SEGMENTS, Burst, PacingCredit};
use crate::device::{Retained, RxFrame};
use crate::tcp::tcb::Tcb;
use crate::time::Instant;

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// True if data that the window admits has to wait for the next burst; the pacing timer then
    /// runs.
    ///
    /// Cost without pacing: a test, and a few more instructions for every tenth segment.
    #[inline]
    pub(in crate::tcp) fn is_paced(&mut self, now: Instant) -> bool {
        self.pacing_credit == PacingCredit::NONE && self.waits_for_burst(now)
    }

    #[inline(never)]
    fn waits_for_burst(&mut self, now: Instant) -> bool {
        let (window, srtt) = (self.cc.cwnd(), self.rtt.srtt());
        let burst = if self.cfg.pacing {
            Burst::of(window, srtt, u32::from(self.emss), self.cc.in_slow_start())
        } else {
            None
        };
        let Some(burst) = burst else {
            self.pacing_credit = PacingCredit(BURST_SEGMENTS * u32::from(self.emss));
            return false;
        };
        let flight = self.snd.flight();
        if self.rare.pacing + srtt < now
            && flight <= PacingCredit::IDLE_BURST.0 + u32::from(self.emss)
        {
            // The data with which this flight began counts as a burst of its own.
            let burst_ns = u64::from(flight) * burst.interval_ns;
            self.rare.pacing = now + burst_ns / u64::from(burst.bytes);
        }
        if now < self.rare.pacing {
            if !self.paced {
                self.stats.record().paced += 1;
            }
            self.paced = true;
            return true;
        }
        self.paced = false;
        self.pacing_credit = PacingCredit(burst.bytes);
        // Catches up after a timer that fired late, by at most one burst.
        self.rare.pacing = self.rare.pacing.max(now - burst.interval_ns) + burst.interval_ns;
        false
    }
}
