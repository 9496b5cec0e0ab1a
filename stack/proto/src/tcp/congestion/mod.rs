//! Congestion control: how many bytes may be in the network. The window, the slow-start
//! threshold and slow start are common to all algorithms; what differs is dispatched statically.

mod cubic;
mod dctcp;
mod hystart;
mod new_reno;

use super::config::Algorithm;
use crate::time::Instant;
use crate::wire::seq::Seq;
use cubic::Cubic;
use dctcp::Dctcp;
use hystart::{HyStart, SlowStartAction};
use new_reno::NewReno;

/// What a congestion controller learns from an ACK of something new.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckSample {
    /// When it was taken.
    pub(super) now: Instant,
    /// Bytes it acknowledges.
    pub(super) bytes: u32,
    /// Payload of a full segment.
    pub(super) mss: u32,
    /// Smoothed round-trip time, this ACK's measurement included; 0 before the first.
    pub(super) srtt_ns: u64,
    /// The round-trip time this ACK measured.
    pub(super) rtt_ns: Option<u64>,
    /// Oldest byte still outstanding.
    pub(super) snd_una: Seq,
    /// Next byte to be sent.
    pub(super) snd_nxt: Seq,
    /// A loss is being repaired: some of the bytes may have arrived long ago.
    pub(super) recovering: bool,
}

/// Segments that an ACK adds to the window at most while losses are repaired (RFC 9406 section
/// 4.3 has this limit for senders that do not pace).
const RECOVERY_GROWTH: u32 = 8;
/// A threshold that was never set: the first slow start.
const SSTHRESH_UNSET: u32 = u32::MAX;

/// Outside slow start the window is looked at once a part of it, 2^-6, was acknowledged.
const STEP_BITS: u32 = 6;

/// The window itself: what every segment and every ACK touches.
#[derive(Clone, Copy, Debug)]
pub(super) struct CongestionWindow {
    cwnd: u32,
    ssthresh: u32,
    /// Bytes acknowledged outside slow start since the algorithm last heard of any.
    acked_pending: u32,
}

impl CongestionWindow {
    /// Bytes.
    #[inline]
    pub(super) const fn cwnd(&self) -> u32 {
        self.cwnd
    }

    /// True while the window doubles each round trip.
    #[inline]
    pub(super) const fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Takes `bytes` that were acknowledged while the window was in use. False if the algorithm
    /// has to hear of them now, by [`Congestion::on_ack`]; then they were not taken.
    #[inline]
    pub(super) const fn absorb_acked(&mut self, bytes: u32) -> bool {
        let pending = self.acked_pending.saturating_add(bytes);
        if self.in_slow_start() || pending >= self.cwnd >> STEP_BITS {
            return false;
        }
        self.acked_pending = pending;
        true
    }
}

/// A congestion controller. Copying it takes the snapshot that undoing a spurious loss restores.
///
/// In this order in memory: what comes first lies in a connection's hot cache lines.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Congestion {
    pub(super) window: CongestionWindow,
    /// The window held something back since it last grew.
    pub(super) cwnd_limited: bool,
    hystart: HyStart,
    algorithm: AlgorithmState,
}

/// What differs between the algorithms.
#[derive(Clone, Copy, Debug)]
enum AlgorithmState {
    NewReno(NewReno),
    Cubic(Cubic),
    Dctcp(Dctcp),
}

impl Congestion {
    /// For segments of `mss` bytes.
    pub(super) fn new(algorithm: Algorithm, mss: u32) -> Self {
        let law = match algorithm {
            Algorithm::NewReno => AlgorithmState::NewReno(NewReno::default()),
            Algorithm::Cubic => AlgorithmState::Cubic(Cubic::new()),
            Algorithm::Dctcp => AlgorithmState::Dctcp(Dctcp::new()),
        };
        let window = CongestionWindow {
            cwnd: initial_window(mss),
            ssthresh: SSTHRESH_UNSET,
            acked_pending: 0,
        };
        Self { window, cwnd_limited: false, hystart: HyStart::new(), algorithm: law }
    }

    /// The congestion window in bytes.
    #[inline]
    pub(super) const fn cwnd(&self) -> u32 {
        self.window.cwnd
    }

    /// The window from which on it grows slowly, in bytes. Recovery ends with a window of this.
    #[inline]
    pub(super) const fn ssthresh(&self) -> u32 {
        self.window.ssthresh
    }

    /// True while the window doubles each round trip.
    #[inline]
    pub(super) const fn in_slow_start(&self) -> bool {
        self.window.in_slow_start()
    }

    /// An ACK of new bytes outside fast recovery, while the window was in use (RFC 7661: an
    /// unused window does not grow).
    #[inline]
    pub(super) fn on_ack(&mut self, ack: &AckSample) {
        if self.in_slow_start() {
            self.slow_start(ack);
        } else if !self.window.absorb_acked(ack.bytes) {
            let pending = core::mem::take(&mut self.window.acked_pending);
            let ack = AckSample { bytes: ack.bytes.saturating_add(pending), ..*ack };
            let cwnd = self.window.cwnd;
            self.window.cwnd = match &mut self.algorithm {
                AlgorithmState::NewReno(reno) => reno.on_ack(cwnd, &ack),
                AlgorithmState::Cubic(cubic) => cubic.on_ack(cwnd, &ack),
                AlgorithmState::Dctcp(dctcp) => dctcp.reno.on_ack(cwnd, &ack),
            };
        }
    }

    /// Appropriate byte counting (RFC 3465) without its limit per ACK: peers that answer once per
    /// burst acknowledge many segments at a time, and the limit would starve slow start. Past the
    /// threshold no single ACK leads. While losses are repaired the limit is needed: an ACK that
    /// fills a hole would let go a whole window at once.
    fn slow_start(&mut self, ack: &AckSample) {
        let mut growth = ack.bytes;
        if ack.recovering {
            growth = growth.min(RECOVERY_GROWTH * ack.mss);
        }
        if self.window.ssthresh == SSTHRESH_UNSET {
            match self.hystart.on_ack(ack) {
                SlowStartAction::Grow(bytes) => growth = bytes,
                SlowStartAction::Exit => {
                    self.window.ssthresh = self.window.cwnd;
                    return;
                }
            }
        }
        let window = &mut self.window;
        window.cwnd = window.cwnd.saturating_add(growth).min(window.ssthresh);
    }

    /// An episode of loss began; `flight` bytes were outstanding along with what was lost. Window
    /// and threshold are reduced at once; whoever repairs the loss may steer the window by
    /// [`Congestion::set_cwnd`] until the episode ends.
    pub(super) fn on_loss(&mut self, flight: u32, mss: u32) {
        self.window.ssthresh = self.reduce_ssthresh(flight, mss);
        self.window.cwnd = self.window.ssthresh;
    }

    /// As [`Congestion::on_loss`] for a loss that shows late: the window was `window` when it
    /// happened, and may have fallen back since.
    pub(super) fn on_late_loss(&mut self, window: u32, flight: u32, mss: u32) {
        let cwnd = core::mem::replace(&mut self.window.cwnd, window);
        self.on_loss(flight, mss);
        self.window.cwnd = cwnd.min(self.window.ssthresh);
    }

    /// The retransmission timer fired; `first` unless the window was reduced for the same losses
    /// before.
    pub(super) fn on_timeout(&mut self, flight: u32, mss: u32, first: bool) {
        if first {
            self.window.ssthresh = self.reduce_ssthresh(flight, mss);
        }
        self.restart_avoidance();
        if let AlgorithmState::Cubic(cubic) = &mut self.algorithm {
            cubic.reset_w_max();
        }
        self.window.cwnd = mss;
    }

    /// What was acknowledged before the window was reduced, or fell back, pays for no growth after
    /// it: congestion avoidance begins anew.
    fn restart_avoidance(&mut self) {
        self.window.acked_pending = 0;
        match &mut self.algorithm {
            AlgorithmState::NewReno(reno) => reno.restart(),
            AlgorithmState::Cubic(cubic) => cubic.restart(),
            AlgorithmState::Dctcp(dctcp) => dctcp.reno.restart(),
        }
    }

    /// The slow-start threshold after a loss.
    fn reduce_ssthresh(&mut self, flight: u32, mss: u32) -> u32 {
        self.restart_avoidance();
        match &mut self.algorithm {
            AlgorithmState::Cubic(cubic) => cubic.reduce(self.window.cwnd, mss),
            // For DCTCP losses count as ever (RFC 8257 section 3.5).
            AlgorithmState::NewReno(_) | AlgorithmState::Dctcp(_) => NewReno::reduce(flight, mss),
        }
    }

    /// The peer echoed congestion that the network marked, for the first time in a window
    /// (RFC 3168 section 6.1.2).
    pub(super) fn on_ece(&mut self, flight: u32, mss: u32) {
        match &self.algorithm {
            AlgorithmState::Dctcp(dctcp) => {
                self.window.ssthresh = dctcp.reduce(self.window.cwnd).max(2 * mss);
                self.restart_avoidance();
            }
            _ => self.window.ssthresh = self.reduce_ssthresh(flight, mss),
        }
        self.window.cwnd = self.window.cwnd.min(self.window.ssthresh);
    }

    /// Notes for DCTCP how much of what is acknowledged was marked: an ACK of `una..ack`, `echoes`
    /// with ECE, before which the flight was from `una` to `nxt`. Each ACK with ECE is to be noted,
    /// of those without one in a round trip.
    pub(super) fn observe(&mut self, una: Seq, ack: Seq, nxt: Seq, echoes: bool) {
        if let AlgorithmState::Dctcp(dctcp) = &mut self.algorithm {
            dctcp.observe(una, ack, nxt, echoes);
        }
    }

    /// Sets the window to `bytes` during an episode of loss; threshold and epoch stay
    /// (RFC 6937).
    #[inline]
    pub(super) const fn set_cwnd(&mut self, bytes: u32) {
        self.window.cwnd = bytes;
    }

    /// Nothing was sent for a retransmission timeout: starts over from the initial window
    /// (RFC 5681 section 4.1). What is known of the path is kept as RFC 7661 section 4.4.3 has it.
    pub(super) fn on_idle(&mut self, mss: u32) {
        let restart = initial_window(mss);
        let window = &mut self.window;
        if window.cwnd <= restart {
            return;
        }
        window.ssthresh = window.ssthresh.max(window.cwnd - window.cwnd / 4);
        window.cwnd = restart;
        self.restart_avoidance();
    }

    /// Returns to `cwnd_prior`, from before a loss that was none (RFC 9438 section 4.9).
    pub(super) fn restore(&mut self, prior: Self) {
        self.window.cwnd = self.window.cwnd.max(prior.window.cwnd);
        self.window.ssthresh = self.window.ssthresh.max(prior.window.ssthresh);
        self.window.acked_pending = prior.window.acked_pending;
        match (&mut self.algorithm, prior.algorithm) {
            (AlgorithmState::NewReno(reno), AlgorithmState::NewReno(prior)) => *reno = prior,
            (AlgorithmState::Cubic(cubic), AlgorithmState::Cubic(prior)) => *cubic = prior,
            // Its observations go on whatever was lost.
            (AlgorithmState::Dctcp(dctcp), AlgorithmState::Dctcp(prior)) => dctcp.reno = prior.reno,
            _ => unreachable!("a connection keeps its algorithm"),
        }
    }
}

/// RFC 6928 section 2.
fn initial_window(mss: u32) -> u32 {
    (10 * mss).min(14_600.max(2 * mss))
}

#[cfg(test)]
mod tests;
