//! Congestion control of a connection: slow start, and the dispatch to the algorithm.

use super::cubic::Cubic;
use super::dctcp::Dctcp;
use super::hystart::{HyStart, SlowStartAction};
use crate::tcp::settings::Algorithm;
use crate::time::Instant;
use crate::wire::seq::Seq;

/// Most segments that an ACK adds to the window while losses are repaired (RFC 9406 section 4.3 has
/// this limit for senders that do not pace).
const RECOVERY_GROWTH: u32 = 8;
/// Initial ssthresh: the first slow start has not ended.
const SSTHRESH_UNSET: u32 = u32::MAX;

/// Congestion control state. A copy of it is the snapshot from which spurious loss is undone.
///
/// `repr(C)`: the first fields lie in a connection's hot cache lines.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(in crate::tcp) struct Congestion {
    pub(in crate::tcp) window: CongestionWindow,
    /// The window delayed data since it last grew.
    pub(in crate::tcp) cwnd_limited: bool,
    hystart: HyStart,
    pub(super) algorithm: AlgorithmState,
}

/// State specific to the algorithm.
#[derive(Clone, Copy, Debug)]
pub(super) enum AlgorithmState {
    NewReno(NewReno),
    Cubic(Cubic),
    Dctcp(Dctcp),
}

const _: () = assert!(size_of::<AlgorithmState>() == 40, "that of the largest");

impl Congestion {
    /// Creates the state for segments of `mss` bytes.
    pub(in crate::tcp) fn new(algorithm: Algorithm, mss: u32) -> Self {
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

    /// Congestion window, bytes.
    #[inline]
    pub(in crate::tcp) const fn cwnd(&self) -> u32 {
        self.window.cwnd
    }

    /// Slow-start threshold, bytes. At the end of recovery the window is set to it.
    #[inline]
    pub(in crate::tcp) const fn ssthresh(&self) -> u32 {
        self.window.ssthresh
    }

    /// True in slow start: the window doubles each round trip.
    #[inline]
    pub(in crate::tcp) const fn in_slow_start(&self) -> bool {
        self.window.in_slow_start()
    }

    /// Processes an ACK of new data outside fast recovery, while the window was in use (RFC 7661:
    /// an unused window does not grow).
    #[inline]
    pub(in crate::tcp) fn on_ack(&mut self, ack: &AckSample) {
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

    /// Slow start: appropriate byte counting (RFC 3465) without its limit per ACK. Peers that send
    /// one ACK per burst acknowledge many segments at a time, and the limit would starve slow
    /// start. No ACK takes the window beyond ssthresh. While losses are repaired the limit is
    /// needed: an ACK that fills a hole would otherwise release a whole window at once.
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

    /// Begins an episode of loss; `flight` bytes were outstanding along with the lost ones. Window
    /// and ssthresh are reduced at once; loss recovery may then set the window by
    /// [`Congestion::set_cwnd`] until the episode ends.
    pub(in crate::tcp) fn on_loss(&mut self, flight: u32, mss: u32) {
        self.window.ssthresh = self.reduce_ssthresh(flight, mss);
        self.window.cwnd = self.window.ssthresh;
    }

    /// As [`Congestion::on_loss`], for a loss detected late: the window was `window` when it
    /// happened, and may have been reset since.
    pub(in crate::tcp) fn on_late_loss(&mut self, window: u32, flight: u32, mss: u32) {
        let cwnd = core::mem::replace(&mut self.window.cwnd, window);
        self.on_loss(flight, mss);
        self.window.cwnd = cwnd.min(self.window.ssthresh);
    }

    /// Processes a retransmission timeout; `first` unless the window was reduced for the same
    /// losses before.
    pub(in crate::tcp) fn on_timeout(&mut self, flight: u32, mss: u32, first: bool) {
        if first {
            self.window.ssthresh = self.reduce_ssthresh(flight, mss);
        }
        self.restart_avoidance();
        match &mut self.algorithm {
            AlgorithmState::Cubic(cubic) => cubic.reset_w_max(),
            AlgorithmState::NewReno(_) | AlgorithmState::Dctcp(_) => {}
        }
        self.window.cwnd = mss;
    }

    /// Restarts congestion avoidance: bytes acknowledged before the window was reduced or reset do
    /// not count for growth after it.
    fn restart_avoidance(&mut self) {
        self.window.acked_pending = 0;
        match &mut self.algorithm {
            AlgorithmState::NewReno(reno) => reno.restart(),
            AlgorithmState::Cubic(cubic) => cubic.restart(),
            AlgorithmState::Dctcp(dctcp) => dctcp.reno.restart(),
        }
    }

    /// Returns the slow-start threshold after a loss.
    fn reduce_ssthresh(&mut self, flight: u32, mss: u32) -> u32 {
        self.restart_avoidance();
        match &mut self.algorithm {
            AlgorithmState::Cubic(cubic) => cubic.reduce(self.window.cwnd, mss),
            // DCTCP reacts to loss like NewReno (RFC 8257 section 3.5).
            AlgorithmState::NewReno(_) | AlgorithmState::Dctcp(_) => NewReno::reduce(flight, mss),
        }
    }

    /// Reduces the window for ECE, the first in a window (RFC 3168 section 6.1.2).
    pub(in crate::tcp) fn on_ece(&mut self, flight: u32, mss: u32) {
        match &self.algorithm {
            AlgorithmState::Dctcp(dctcp) => {
                self.window.ssthresh = dctcp.reduce(self.window.cwnd).max(2 * mss);
                self.restart_avoidance();
            }
            AlgorithmState::NewReno(_) | AlgorithmState::Cubic(_) => {
                self.window.ssthresh = self.reduce_ssthresh(flight, mss);
            }
        }
        self.window.cwnd = self.window.cwnd.min(self.window.ssthresh);
    }

    /// Updates DCTCP's estimate from an ACK of `una..ack`, `echoes` with ECE; the flight before it
    /// was `una..nxt`. To be called for each ACK with ECE, and for one ACK without ECE per round
    /// trip.
    pub(in crate::tcp) fn observe(&mut self, una: Seq, ack: Seq, nxt: Seq, echoes: bool) {
        match &mut self.algorithm {
            AlgorithmState::Dctcp(dctcp) => dctcp.observe(una, ack, nxt, echoes),
            AlgorithmState::NewReno(_) | AlgorithmState::Cubic(_) => {}
        }
    }

    /// Sets the window to `bytes` during an episode of loss; ssthresh and epoch stay (RFC 6937).
    #[inline]
    pub(in crate::tcp) const fn set_cwnd(&mut self, bytes: u32) {
        self.window.cwnd = bytes;
    }

    /// Restarts from the initial window after nothing was sent for a retransmission timeout
    /// (RFC 5681 section 4.1). ssthresh keeps what is known of the path, as in RFC 7661
    /// section 4.4.3.
    pub(in crate::tcp) fn on_idle(&mut self, mss: u32) {
        let restart = initial_window(mss);
        let window = &mut self.window;
        if window.cwnd <= restart {
            return;
        }
        window.ssthresh = window.ssthresh.max(window.cwnd - window.cwnd / 4);
        window.cwnd = restart;
        self.restart_avoidance();
    }

    /// Restores `prior`, the state before a spurious loss (RFC 9438 section 4.9).
    pub(in crate::tcp) fn restore(&mut self, prior: Self) {
        self.window.cwnd = self.window.cwnd.max(prior.window.cwnd);
        self.window.ssthresh = self.window.ssthresh.max(prior.window.ssthresh);
        self.window.acked_pending = prior.window.acked_pending;
        match prior.algorithm {
            AlgorithmState::NewReno(_) | AlgorithmState::Cubic(_) => {
                self.algorithm = prior.algorithm;
            }
            // The estimate of marked bytes continues, whatever was lost.
            AlgorithmState::Dctcp(prior) => {
                if let AlgorithmState::Dctcp(dctcp) = &mut self.algorithm {
                    dctcp.reno = prior.reno;
                }
            }
        }
    }
}

/// Returns the initial window (RFC 6928 section 2).
fn initial_window(mss: u32) -> u32 {
    (10 * mss).min(14_600.max(2 * mss))
}

/// Input of congestion control from an ACK of new data.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct AckSample {
    /// Time of the ACK.
    pub(in crate::tcp) now: Instant,
    /// Bytes acknowledged.
    pub(in crate::tcp) bytes: u32,
    /// EMSS: payload of a full segment.
    pub(in crate::tcp) mss: u32,
    /// SRTT, including this ACK's sample; 0 before the first.
    pub(in crate::tcp) srtt_ns: u64,
    /// RTT sample of this ACK.
    pub(in crate::tcp) rtt_ns: Option<u64>,
    /// SND.UNA after this ACK.
    pub(in crate::tcp) snd_una: Seq,
    /// SND.NXT.
    pub(in crate::tcp) snd_nxt: Seq,
    /// A loss is being repaired: some of the bytes may have been received long ago.
    pub(in crate::tcp) recovering: bool,
}

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
