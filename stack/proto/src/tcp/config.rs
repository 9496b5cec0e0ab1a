//! What a connection is configured with, and what it counts.

use super::pmtu::PathMtuConfig;
use crate::device::ChecksumMode;
use crate::time::{MICROSECOND, MILLISECOND, SECOND};
use crate::wire::tcp::MAX_WSCALE;

/// Congestion control algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// NewReno (RFC 5681).
    NewReno,
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// DCTCP (RFC 8257), for networks under one administration whose switches mark early. Wants
    /// ECN, and the same algorithm at the peer; without ECN it is NewReno.
    Dctcp,
}

/// Explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EcnMode {
    /// Neither asked for nor agreed to.
    Off,
    /// Agreed to if the peer asks.
    #[default]
    Accept,
    /// Asked for in our SYN, and agreed to. A SYN that is sent again no longer asks.
    Request,
}

/// Settings of one connection, fixed when it is made. Times in nanoseconds, sizes in bytes.
#[derive(Clone, Debug)]
pub struct Config {
    /// Largest TCP payload the link carries in a segment without TCP options: link MTU less 40
    /// (IPv4) or 60 (IPv6). Goes out in the MSS option.
    pub mss: u16,
    /// The same for what is sent, if the port sends smaller packets than it receives; at most
    /// `mss` counts.
    pub send_mss: u16,
    /// Checksum arrangement of the port.
    pub checksum: ChecksumMode,
    /// Receive window of an accepted connection, before it grows.
    pub recv_window: u32,
    /// What the receive window may grow to by need; the window scale is chosen for it.
    pub recv_window_max: u32,
    /// Receive window until [`super::Tcb::open_window`].
    pub startup_window: u32,
    /// Offer the timestamps option (RFC 7323).
    pub timestamps: bool,
    /// Offer selective acknowledgments (RFC 2018).
    pub sack: bool,
    /// Lowest retransmission timeout. RFC 6298 section 2.4 asks for 1 s, which suits peers that
    /// may delay ACKs for long without having shown it; set `rto_initial_ns` to as much then.
    pub rto_min_ns: u64,
    /// Retransmission timeout before the first measurement, and its floor until some samples
    /// have shown how long the peer delays ACKs (Linux: up to 40 ms).
    pub rto_initial_ns: u64,
    /// Highest retransmission timeout and zero-window probe interval.
    pub rto_max_ns: u64,
    /// Retransmissions of our SYN before the attempt fails. RFC 9293 section 3.8.3 asks for three
    /// minutes at least; who wants to know earlier gives up earlier.
    pub syn_retries: u8,
    /// Retransmissions of a SYN-ACK before a connection that a peer began is forgotten.
    pub syn_ack_retries: u8,
    /// Consecutive retransmission timeouts, or unanswered probes, before the connection fails.
    pub data_retries: u8,
    /// Time without any acknowledgment of outstanding bytes, or any answer to a probe of a closed
    /// window, before the connection fails (RFC 5482, and R2 of RFC 9293 section 3.8.3, which asks
    /// for 100 seconds at least).
    pub user_timeout_ns: u64,
    /// How long an ACK for less than two full segments waits.
    pub delayed_ack_ns: u64,
    /// Length of TIME-WAIT. The RFC's 4 minutes guard against old segments of the Internet at
    /// large; timestamps and random ports do most of that work here.
    pub time_wait_ns: u64,
    /// Time without a sign of the peer in FIN-WAIT-2 before the connection is reset: a peer that
    /// vanished after our FIN would hold it forever. Well above `rto_max_ns`: a peer whose bytes
    /// our application does not take sends probes no more often than that, and one may be lost.
    pub fin_wait_ns: u64,
    /// Idle time after which the peer is probed; `None`: never. RFC 9293 section 3.8.4 has it off
    /// unless asked for, and then two hours at least by default.
    pub keepalive_ns: Option<u64>,
    /// Time between such probes.
    pub keepalive_interval_ns: u64,
    /// Such probes without an answer before the connection fails.
    pub keepalive_count: u8,
    /// Answers to segments that may be forged, per 100 ms (RFC 5961).
    pub challenge_acks: u8,
    /// Lateness from which a timer counts as found after a time jump: the peer's answer may wait
    /// unread, so it is armed once more instead of firing.
    pub timer_overrun_ns: u64,
    /// Most pieces accepted out of order; beyond it they are dropped unacknowledged. Memory is
    /// bounded by the [`super::OooPool`].
    pub max_ooo_segments: u16,
    /// Most records sent and not acknowledged, or written and not sent. The default is enough for 1
    /// Gb/s over 20 ms in segments of 1,460 bytes, twice over. Memory is taken as needed.
    pub max_records: u16,
    /// Fall back to the initial window when nothing was sent for a retransmission timeout, and for
    /// `rto_initial_ns` (RFC 5681 section 4.1).
    pub idle_restart: bool,
    /// Send a tail-loss probe before the retransmission timeout.
    pub tail_loss_probe: bool,
    /// Congestion control.
    pub congestion: Algorithm,
    /// Explicit congestion notification.
    pub ecn: EcnMode,
    /// Spread the window over the round trip, where that is 2 ms or more.
    pub pacing: bool,
    /// How the size of packets is fitted to the path.
    pub path_mtu: PathMtuConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mss: 1460,
            send_mss: u16::MAX,
            checksum: ChecksumMode::Software,
            recv_window: 256 * 1024,
            recv_window_max: 6 * 1024 * 1024,
            startup_window: 16 * 1024,
            timestamps: true,
            sack: true,
            rto_min_ns: 5 * MILLISECOND,
            rto_initial_ns: 200 * MILLISECOND,
            rto_max_ns: 60 * SECOND,
            syn_retries: 10,
            syn_ack_retries: 6,
            data_retries: 15,
            user_timeout_ns: 120 * SECOND,
            delayed_ack_ns: 50 * MICROSECOND,
            time_wait_ns: SECOND,
            fin_wait_ns: 150 * SECOND,
            keepalive_ns: None,
            keepalive_interval_ns: 75 * SECOND,
            keepalive_count: 9,
            challenge_acks: 8,
            timer_overrun_ns: MILLISECOND,
            max_ooo_segments: 8192,
            max_records: 4096,
            idle_restart: true,
            tail_loss_probe: true,
            congestion: Algorithm::default(),
            ecn: EcnMode::default(),
            pacing: true,
            path_mtu: PathMtuConfig::default(),
        }
    }
}

impl Config {
    /// Whether ECN is agreed to when the peer asks for it.
    pub(crate) fn accepts_ecn(&self) -> bool {
        self.ecn != EcnMode::Off
    }

    /// The smallest shift with which a 16-bit field covers the receive window.
    pub(crate) fn wscale(&self) -> u8 {
        let window = self.recv_window_max.max(self.recv_window).max(self.startup_window);
        (0..MAX_WSCALE).find(|shift| window >> shift <= 0xffff).unwrap_or(MAX_WSCALE)
    }
}

/// Event counts of one connection since it was made; those of 32 bits wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Segments handed in.
    pub segments_in: u32,
    /// Frames written: data, retransmissions and control.
    pub segments_out: u32,
    /// Payload bytes handed up in order.
    pub bytes_in: u64,
    /// Payload bytes sent for the first time.
    pub bytes_out: u64,
    /// Segments retransmitted.
    pub retransmits: u32,
    /// Times fast retransmission began.
    pub fast_recoveries: u32,
    /// Retransmission timeouts.
    pub timeouts: u32,
    /// Loss episodes found to be none, and undone.
    pub spurious_recoveries: u32,
    /// Tail-loss probes sent.
    pub tlp_probes: u32,
    /// Those that repaired a loss which nothing else had told of.
    pub tlp_repairs: u32,
    /// Those that turned out to be too early.
    pub tlp_early: u32,
    /// Retransmissions found lost, and made again without waiting for the timeout.
    pub lost_retransmits: u32,
    /// Zero-window and keepalive probes sent.
    pub probes: u32,
    /// Duplicate ACKs received.
    pub duplicate_acks_in: u32,
    /// Segments held out of order.
    pub ooo_buffered: u32,
    /// Segments that came out of order and were dropped for want of room.
    pub ooo_overflow: u32,
    /// Segments out of order that the upper layer took at once, and that it rejected.
    pub ooo_consumed: u32,
    /// See `ooo_consumed`.
    pub ooo_rejected: u32,
    /// Segments that brought nothing new.
    pub duplicates_in: u32,
    /// Segments outside the window.
    pub out_of_window: u32,
    /// Segments dropped for an old or a missing timestamp.
    pub paws_drops: u32,
    /// Segments dropped for an acknowledgment of what was never sent, or of long ago.
    pub bad_acks: u32,
    /// Challenge ACKs due (RFC 5961), and those of them held back by the rate limit.
    pub challenges: u32,
    /// See `ack_rate_limit`.
    pub challenges_limited: u32,
    /// Records cut because window or segment size did not admit them whole.
    pub resegments: u32,
    /// Segments with bytes that the network marked as having met congestion.
    pub ce_in: u32,
    /// ACKs with which the peer echoed such marks.
    pub ece_in: u32,
    /// Times the window was reduced for that.
    pub ece_reductions: u32,
    /// Times a segment that the window admitted had to wait for its turn on the path.
    pub paced: u32,
    /// Segments sent to find out whether the path takes their size, and those of them lost.
    pub pmtu_probes: u32,
    /// See `pmtu_probes`.
    pub pmtu_probes_lost: u32,
    /// Times the segment size was lowered because nothing of that size came through.
    pub black_holes: u32,
}
