//! Settings and counters of a connection.

use core::time::Duration;

use crate::device::ChecksumMode;
use crate::time::{self, MICROSECOND, MILLISECOND, SECOND};
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
    /// DCTCP (RFC 8257), for networks under one administration whose switches mark CE early. Needs
    /// ECN, and DCTCP at the peer; without ECN it behaves as NewReno.
    Dctcp,
}

/// Use of Explicit Congestion Notification (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EcnMode {
    /// Neither requested nor accepted.
    Off,
    /// Accepted if the peer requests it.
    #[default]
    Accept,
    /// Requested in our SYN, and accepted. A retransmitted SYN does not request it.
    Request,
}

/// Mode of path MTU probing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Probing {
    /// No probes and no black hole detection: only PTB messages change the size, and only lower it.
    Off,
    /// The link's size is used from the start. Black holes are detected, and larger sizes probed
    /// once the size was lowered.
    #[default]
    Auto,
    /// Starts at 1,280 bytes and probes upward, so that no segment but a probe is lost to its size.
    Always,
}

/// Settings of path MTU discovery. Sizes in bytes of IP packet.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PathMtuConfig {
    /// Accept ICMP Packet Too Big about outstanding segments. If false, only black hole detection
    /// and probes change the size.
    pub icmp: bool,
    /// Mode of probing.
    pub probe: Probing,
    /// Lower bound of the PLPMTU over IPv4; values below 68 count as 68. With a small bound a
    /// forged PTB message could slow the connection to a crawl.
    pub floor_v4: u16,
    /// The same over IPv6; values below 1280 count as 1280.
    pub floor_v6: u16,
    /// Time from the end of a search, or from a PTB message, to the next search (RFC 8899
    /// section 5.1.1, `PMTU_RAISE_TIMER`).
    pub raise_ns: u64,
}

impl Default for PathMtuConfig {
    fn default() -> Self {
        Self {
            icmp: true,
            probe: Probing::Auto,
            floor_v4: 576,
            floor_v6: 1280,
            raise_ns: 600 * SECOND,
        }
    }
}

/// Keepalive (RFC 9293 section 3.8.4): probes of a connection over which nothing was received for a
/// while. A peer that was killed, or whose host lost power, is noticed after
/// [`idle + probes * interval`](Self::notices_after).
#[doc(alias = "SO_KEEPALIVE")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Time without a segment from the peer before the first probe, at least 1 ms.
    #[doc(alias = "TCP_KEEPIDLE")]
    pub idle: Duration,
    /// Interval of the probes, at least 1 ms.
    #[doc(alias = "TCP_KEEPINTVL")]
    pub interval: Duration,
    /// Unanswered probes after which the connection times out, at least 1.
    #[doc(alias = "TCP_KEEPCNT")]
    pub probes: u8,
}

impl Keepalive {
    /// No probes: the idle time never ends.
    pub const OFF: Self = Self { idle: Duration::MAX, interval: Duration::MAX, probes: u8::MAX };

    /// Probes at this interval after this idle time, until so many were not answered.
    #[must_use]
    pub const fn new(idle: Duration, interval: Duration, probes: u8) -> Self {
        Self { idle, interval, probes }
    }

    /// Time from the last sign of the peer until the connection ends.
    #[must_use]
    pub const fn notices_after(&self) -> Duration {
        self.idle.saturating_add(self.interval.saturating_mul(self.probes as u32))
    }
}

/// Settings of one connection, fixed when it is created. Times in nanoseconds, sizes in bytes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Largest TCP payload that the link carries in a segment without TCP options: link MTU less 40
    /// (IPv4) or 60 (IPv6). Sent in the MSS option.
    pub mss: u16,
    /// The same limit for segments sent, if the port sends smaller packets than it receives. The
    /// smaller of this and `mss` applies.
    pub send_mss: u16,
    /// Unit that computes and verifies checksums.
    pub checksum: ChecksumMode,
    /// Receive window of an accepted connection, before autotuning.
    pub recv_window: u32,
    /// Most the receive window may grow to by autotuning. The window scale is chosen for it.
    pub recv_window_max: u32,
    /// Receive window until [`super::Tcb::open_window`].
    pub startup_window: u32,
    /// Offer the timestamps option (RFC 7323).
    pub timestamps: bool,
    /// Offer selective acknowledgments (RFC 2018).
    pub sack: bool,
    /// Lowest retransmission timeout. RFC 6298 section 2.4 recommends 1 s, which suits peers that
    /// may delay ACKs for long without having shown it; set `rto_initial_ns` to the same value
    /// then.
    pub rto_min_ns: u64,
    /// Retransmission timeout before the first RTT sample, and its floor until enough samples have
    /// shown how long the peer delays ACKs (Linux: up to 40 ms).
    pub rto_initial_ns: u64,
    /// Highest retransmission timeout and zero-window probe interval.
    pub rto_max_ns: u64,
    /// Retransmissions of our SYN before the attempt fails. RFC 9293 section 3.8.3 requires at
    /// least three minutes; a caller with an earlier deadline aborts earlier.
    pub syn_retries: u8,
    /// Retransmissions of a SYN-ACK before a passively opened connection is dropped.
    pub syn_ack_retries: u8,
    /// Consecutive retransmission timeouts, or unanswered probes, before the connection fails.
    pub data_retries: u8,
    /// Time from the first SYN for which a refusal (RST) is taken for "not yet", and the SYN is
    /// sent again.
    pub refusal_retry_ns: u64,
    /// Time without any acknowledgment of outstanding bytes, or any answer to a zero-window probe,
    /// before the connection fails (RFC 5482, and R2 of RFC 9293 section 3.8.3, which recommends at
    /// least 100 seconds).
    pub user_timeout_ns: u64,
    /// Time for which the peer may take nothing while data waits for it, unsent or unacknowledged,
    /// before the connection fails, even if it answers each probe (RFC 6429). Less than a full
    /// segment is nothing, unless no more waits. `None`: for ever, as RFC 9293 section 3.8.6.1
    /// permits.
    pub stall_timeout_ns: Option<u64>,
    /// Longest delay of an ACK for less than two full segments.
    pub delayed_ack_ns: u64,
    /// Duration of TIME-WAIT. The 4 minutes of RFC 9293 guard against old segments of the Internet
    /// at large; timestamps and random ports do most of that work here.
    pub time_wait_ns: u64,
    /// Time without a segment from the peer in FIN-WAIT-2 before the connection is reset: a peer
    /// that crashed after our FIN would otherwise hold it forever. Well above `rto_max_ns`: a peer
    /// that faces our closed window sends probes no more often than that, and one may be lost.
    pub fin_wait_ns: u64,
    /// Idle time before a keepalive probe is sent; `None`: never. RFC 9293 section 3.8.4 requires
    /// keepalives to be off by default, and a default interval of at least two hours.
    pub keepalive_ns: Option<u64>,
    /// Interval of keepalive probes.
    pub keepalive_interval_ns: u64,
    /// Unanswered keepalive probes before the connection fails.
    pub keepalive_count: u8,
    /// Challenge ACKs sent per 100 ms (RFC 5961).
    pub challenge_acks: u8,
    /// Overrun from which an expired timer is re-armed once instead of firing: the process was
    /// suspended, or the clock jumped, and the peer's ACK may wait unread.
    pub timer_overrun_ns: u64,
    /// Most segments accepted out of order; others are dropped unacknowledged. Memory is bounded by
    /// the [`super::OooPool`].
    pub max_ooo_segments: u16,
    /// Most records sent and not acknowledged, or written and not sent. The default is twice what 1
    /// Gb/s over 20 ms needs in segments of 1,460 bytes. Memory is allocated as needed.
    pub max_records: u16,
    /// Return to the initial window after sending nothing for a retransmission timeout, at least
    /// `rto_initial_ns` (RFC 5681 section 4.1).
    pub idle_restart: bool,
    /// Send a tail loss probe before the retransmission timeout (RFC 8985 section 7).
    pub tail_loss_probe: bool,
    /// Congestion control algorithm.
    pub congestion: Algorithm,
    /// Explicit congestion notification.
    pub ecn: EcnMode,
    /// Pace the congestion window over the round trip, if that is 2 ms or more.
    pub pacing: bool,
    /// Path MTU discovery.
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
            refusal_retry_ns: 0,
            user_timeout_ns: 120 * SECOND,
            stall_timeout_ns: None,
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
    /// Sets the keepalive.
    pub fn set_keepalive(&mut self, keepalive: Keepalive) {
        self.keepalive_ns = (keepalive.idle != Duration::MAX).then(|| time::nanos(keepalive.idle));
        self.keepalive_interval_ns = time::nanos(keepalive.interval);
        self.keepalive_count = keepalive.probes;
    }

    /// True if both have the same MSS, and give up an unresponsive or refusing peer at the same
    /// time: nothing else differs between connections of an engine.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let differing = |cfg: &Self| {
            let keepalive = (cfg.keepalive_ns, cfg.keepalive_interval_ns, cfg.keepalive_count);
            (cfg.mss, cfg.send_mss, keepalive, cfg.user_timeout_ns, cfg.refusal_retry_ns)
        };
        differing(self) == differing(other)
    }

    /// True if ECN is accepted when the peer requests it.
    pub(crate) fn accepts_ecn(&self) -> bool {
        self.ecn != EcnMode::Off
    }

    /// Smallest shift with which a 16-bit field covers the receive window.
    pub(crate) fn wscale(&self) -> u8 {
        let window = self.recv_window_max.max(self.recv_window).max(self.startup_window);
        (0..MAX_WSCALE).find(|shift| window >> shift <= 0xffff).unwrap_or(MAX_WSCALE)
    }
}

/// Event counts of one connection since it was created. Those of 32 bits wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Segments received.
    pub segments_in: u32,
    /// Received segments that header prediction does not process: those of the handshake and the
    /// end, and while losses are repaired.
    pub slow_path_in: u32,
    /// Segments sent: data, retransmissions and control.
    pub segments_out: u32,
    /// Payload bytes delivered in order.
    pub bytes_in: u64,
    /// Payload bytes sent for the first time.
    pub bytes_out: u64,
    /// Segments retransmitted as lost; tail loss probes are counted in `tlp_probes`.
    pub retransmits: u32,
    /// Fast recoveries entered.
    pub fast_recoveries: u32,
    /// Retransmission timeouts.
    pub timeouts: u32,
    /// Recoveries that have ended, also those after a retransmission timeout: all that was
    /// outstanding when they began is acknowledged, or they were undone.
    pub recoveries_ended: u32,
    /// Recoveries found spurious and undone.
    pub spurious_recoveries: u32,
    /// Tail loss probes sent.
    pub tlp_probes: u32,
    /// Tail loss probes that repaired a loss not detected otherwise.
    pub tlp_repairs: u32,
    /// Tail loss probes sent too early: nothing was lost.
    pub tlp_spurious: u32,
    /// Retransmissions detected as lost before a retransmission timeout.
    pub lost_retransmits: u32,
    /// Zero-window and keepalive probes sent.
    pub probes: u32,
    /// Duplicate ACKs received.
    pub duplicate_acks_in: u32,
    /// Out-of-order segments buffered.
    pub ooo_buffered: u32,
    /// Out-of-order segments dropped because a limit or the pool's memory was exhausted.
    pub ooo_overflow: u32,
    /// Out-of-order segments that the upper layer consumed on arrival, and those that it rejected.
    pub ooo_consumed: u32,
    /// See `ooo_consumed`.
    pub ooo_rejected: u32,
    /// Segments without new data.
    pub duplicates_in: u32,
    /// Segments outside the window.
    pub out_of_window: u32,
    /// Segments dropped by PAWS, for an old or a missing timestamp (RFC 7323).
    pub paws_drops: u32,
    /// Segments dropped for an acknowledgment above SND.NXT, or too far below SND.UNA (RFC 5961).
    pub bad_acks: u32,
    /// ACKs due for unacceptable segments, challenge ACKs (RFC 5961) among them, and those
    /// suppressed by the rate limit.
    pub challenges: u32,
    /// See `challenges`.
    pub challenges_limited: u32,
    /// Records split because the window or the segment size did not admit them whole.
    pub resegments: u32,
    /// Segments with payload received with CE.
    pub ce_in: u32,
    /// ACKs received with ECE.
    pub ece_in: u32,
    /// Window reductions in response to ECE.
    pub ece_reductions: u32,
    /// Times a segment that the window admitted was delayed by pacing.
    pub paced: u32,
    /// Path MTU probes sent (RFC 8899), and those of them lost.
    pub pmtu_probes: u32,
    /// See `pmtu_probes`.
    pub pmtu_probes_lost: u32,
    /// Black holes detected: times the segment size was lowered as full-sized segments were never
    /// acknowledged (RFC 4821 section 7.7).
    pub black_holes: u32,
}
