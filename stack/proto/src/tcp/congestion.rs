//! Congestion control: how many octets may be in the network. Static dispatch over the
//! algorithms; so far NewReno (RFC 5681, 6582) with the initial window of RFC 6928.

/// A congestion controller. Copying it takes the snapshot that undoing a spurious loss restores.
#[derive(Clone, Copy, Debug)]
pub(super) enum Congestion {
    /// RFC 5681.
    NewReno(NewReno),
}

impl Congestion {
    /// For segments of `mss` octets.
    pub(super) fn new(mss: u32) -> Self {
        Self::NewReno(NewReno::new(mss))
    }

    /// The congestion window in octets.
    #[inline]
    pub(super) const fn window(&self) -> u32 {
        match self {
            Self::NewReno(reno) => reno.cwnd,
        }
    }

    /// True while the window doubles each round trip.
    #[inline]
    pub(super) const fn in_slow_start(&self) -> bool {
        match self {
            Self::NewReno(reno) => reno.cwnd < reno.ssthresh,
        }
    }

    /// `octets` were acknowledged outside fast recovery, and the window was in use (RFC 7661: an
    /// unused window does not grow).
    #[inline]
    pub(super) fn on_ack(&mut self, octets: u32, mss: u32) {
        match self {
            Self::NewReno(reno) => reno.on_ack(octets, mss),
        }
    }

    /// A loss was found with `flight` octets outstanding.
    pub(super) fn on_loss(&mut self, flight: u32, mss: u32) {
        match self {
            Self::NewReno(reno) => {
                reno.ssthresh = (flight / 2).max(2 * mss);
                reno.cwnd = reno.ssthresh;
                reno.acked = 0;
            }
        }
    }

    /// The retransmission timer fired; `first` unless it is the same episode once more.
    pub(super) fn on_timeout(&mut self, flight: u32, mss: u32, first: bool) {
        match self {
            Self::NewReno(reno) => {
                if first {
                    reno.ssthresh = (flight / 2).max(2 * mss);
                }
                reno.cwnd = mss;
                reno.acked = 0;
            }
        }
    }

    /// Nothing was sent for a retransmission timeout (RFC 5681 section 4.1).
    pub(super) fn on_idle(&mut self, mss: u32) {
        match self {
            Self::NewReno(reno) => reno.cwnd = reno.cwnd.min(initial_window(mss)),
        }
    }

    /// Returns to `prior`, from before a loss that was none.
    pub(super) fn restore(&mut self, prior: Self) {
        match (self, prior) {
            (Self::NewReno(reno), Self::NewReno(prior)) => {
                reno.cwnd = reno.cwnd.max(prior.cwnd);
                reno.ssthresh = reno.ssthresh.max(prior.ssthresh);
            }
        }
    }
}

/// RFC 6928 section 2.
fn initial_window(mss: u32) -> u32 {
    (10 * mss).min(14_600.max(2 * mss))
}

/// NewReno's variables, octets.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewReno {
    cwnd: u32,
    ssthresh: u32,
    /// Octets acknowledged since the window last grew in congestion avoidance.
    acked: u32,
}

impl NewReno {
    fn new(mss: u32) -> Self {
        Self { cwnd: initial_window(mss), ssthresh: u32::MAX, acked: 0 }
    }

    /// Appropriate octet counting (RFC 3465) without its limit per ACK: peers that answer once
    /// per burst acknowledge many segments at a time, and the limit would starve slow start.
    fn on_ack(&mut self, octets: u32, mss: u32) {
        if self.cwnd < self.ssthresh {
            self.cwnd = self.cwnd.saturating_add(octets);
            return;
        }
        self.acked += octets;
        if self.acked >= self.cwnd {
            self.acked -= self.cwnd;
            self.cwnd = self.cwnd.saturating_add(mss);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Congestion;

    const MSS: u32 = 1460;

    #[test]
    fn slow_start_then_one_segment_per_round_trip() {
        let mut cc = Congestion::new(MSS);
        assert_eq!(cc.window(), 14_600);
        cc.on_ack(14_600, MSS);
        assert_eq!(cc.window(), 29_200);
        cc.on_loss(29_200, MSS);
        assert_eq!(cc.window(), 14_600);
        for _ in 0..10 {
            assert_eq!(cc.window(), 14_600);
            cc.on_ack(MSS, MSS);
        }
        assert_eq!(cc.window(), 14_600 + MSS);
    }

    #[test]
    fn a_timeout_starts_over_and_can_be_undone() {
        let mut cc = Congestion::new(MSS);
        let prior = cc;
        cc.on_timeout(14_600, MSS, true);
        cc.on_timeout(MSS, MSS, false);
        assert_eq!(cc.window(), MSS);
        cc.on_ack(7300, MSS);
        assert!(!cc.in_slow_start(), "ssthresh is half of the first flight");
        cc.restore(prior);
        assert_eq!(cc.window(), 14_600);
        assert!(cc.in_slow_start());
    }
}
