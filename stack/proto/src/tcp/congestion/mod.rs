//! Congestion control: how many octets may be in the network. The window and the slow-start
//! threshold are common to all algorithms; what differs is dispatched statically.

mod new_reno;

use super::config::Algorithm;
use crate::time::Instant;
use crate::wire::seq::Seq;
use new_reno::NewReno;

/// What a congestion controller learns from an ACK of something new.
#[allow(dead_code, reason = "not every algorithm looks at everything")]
#[derive(Clone, Copy, Debug)]
pub(super) struct AckInfo {
    /// When it was taken.
    pub(super) now: Instant,
    /// Octets it acknowledges.
    pub(super) octets: u32,
    /// Payload of a full segment.
    pub(super) mss: u32,
    /// Smoothed round-trip time, this ACK's measurement included; 0 before the first.
    pub(super) srtt_ns: u64,
    /// The round-trip time this ACK measured.
    pub(super) rtt_ns: Option<u64>,
    /// Oldest octet still outstanding.
    pub(super) snd_una: Seq,
    /// Next octet to be sent.
    pub(super) snd_nxt: Seq,
}

/// A congestion controller. Copying it takes the snapshot that undoing a spurious loss restores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Congestion {
    cwnd: u32,
    ssthresh: u32,
    law: Law,
}

/// What differs between the algorithms.
#[derive(Clone, Copy, Debug)]
enum Law {
    NewReno(NewReno),
}

impl Congestion {
    /// For segments of `mss` octets.
    pub(super) fn new(algorithm: Algorithm, mss: u32) -> Self {
        let law = match algorithm {
            Algorithm::NewReno => Law::NewReno(NewReno::default()),
        };
        Self { cwnd: initial_window(mss), ssthresh: u32::MAX, law }
    }

    /// The congestion window in octets.
    #[inline]
    pub(super) const fn window(&self) -> u32 {
        self.cwnd
    }

    /// The window from which on it grows slowly, in octets. Recovery ends with a window of this.
    #[allow(dead_code, reason = "for proportional rate reduction")]
    #[inline]
    pub(super) const fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    /// True while the window doubles each round trip.
    #[inline]
    pub(super) const fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// An ACK of new octets outside fast recovery, while the window was in use (RFC 7661: an
    /// unused window does not grow).
    #[inline]
    pub(super) fn on_ack(&mut self, ack: &AckInfo) {
        if self.in_slow_start() {
            // Appropriate octet counting (RFC 3465) without its limit per ACK: peers that answer
            // once per burst acknowledge many segments at a time, and the limit would starve it.
            self.cwnd = self.cwnd.saturating_add(ack.octets);
            return;
        }
        match &mut self.law {
            Law::NewReno(reno) => self.cwnd = reno.on_ack(self.cwnd, ack),
        }
    }

    /// An episode of loss began with `flight` octets outstanding. Window and threshold are reduced
    /// at once; whoever repairs the loss may steer the window by [`Congestion::set_window`]
    /// until the episode ends.
    pub(super) fn on_loss(&mut self, flight: u32, mss: u32) {
        match &mut self.law {
            Law::NewReno(reno) => self.ssthresh = reno.reduce(flight, mss),
        }
        self.cwnd = self.ssthresh;
    }

    /// The retransmission timer fired; `first` unless it is the same episode once more.
    pub(super) fn on_timeout(&mut self, flight: u32, mss: u32, first: bool) {
        if first {
            match &mut self.law {
                Law::NewReno(reno) => self.ssthresh = reno.reduce(flight, mss),
            }
        }
        self.cwnd = mss;
    }

    /// Sets the window to `octets` during an episode of loss, threshold and epoch untouched
    /// (RFC 6937).
    #[allow(dead_code, reason = "for proportional rate reduction")]
    #[inline]
    pub(super) const fn set_window(&mut self, octets: u32) {
        self.cwnd = octets;
    }

    /// Nothing was sent for a retransmission timeout (RFC 5681 section 4.1).
    pub(super) fn on_idle(&mut self, mss: u32) {
        self.cwnd = self.cwnd.min(initial_window(mss));
    }

    /// Returns to `prior`, from before a loss that was none.
    pub(super) fn restore(&mut self, prior: Self) {
        self.cwnd = self.cwnd.max(prior.cwnd);
        self.ssthresh = self.ssthresh.max(prior.ssthresh);
    }
}

/// RFC 6928 section 2.
fn initial_window(mss: u32) -> u32 {
    (10 * mss).min(14_600.max(2 * mss))
}

#[cfg(test)]
mod tests;
