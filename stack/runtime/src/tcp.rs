//! User settings of TCP connections.

use std::time::Duration;

use ferrowarp_proto::engine::EngineConfig;
use ferrowarp_proto::setters;
use ferrowarp_proto::time::nanos;

pub use ferrowarp_proto::tcp::{
    Algorithm as CongestionControl, EcnMode, Keepalive, Stats as TcpStats,
};

/// TCP settings of a context. The defaults suit any path; the peer's may differ. Sizes in bytes.
/// Start from [`TcpSettings::new`] and set what differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpSettings {
    /// Congestion control: CUBIC by default.
    pub congestion: CongestionControl,
    /// Explicit congestion notification (RFC 3168): by default accepted if the peer requests it.
    /// DCTCP needs [`EcnMode::Request`] at one of the peers at least.
    pub ecn: EcnMode,
    /// Pacing of segments where the round-trip time is 2 ms or more: on by default.
    pub pacing: bool,
    /// Initial receive window: 256 KiB, at most 1 GiB. Values below 16 KiB, the window during MPA
    /// startup, count as 16 KiB.
    pub recv_window: u32,
    /// Upper limit of receive-window autotuning, at most 1 GiB: 6 MiB, which is 1 Gb/s over 48 ms.
    pub recv_window_max: u32,
    /// Budget of receive-window autotuning: bytes by which the windows of all connections together
    /// may have grown, 1 GiB. It is not allocated memory: received data beyond
    /// [`Limits::ooo_bytes_max`] and the port's frames is dropped.
    ///
    /// [`Limits::ooo_bytes_max`]: crate::Limits::ooo_bytes_max
    pub window_growth_max: u64,
    /// Keepalive; `None`, the default: none (RFC 9293 section 3.8.4, which requires at least two
    /// hours if on by default). Servers need it: with nothing outstanding TCP alone never notices
    /// that a peer is gone. [`ConnParam::keepalive`] sets it for one connection.
    ///
    /// [`ConnParam::keepalive`]: crate::ConnParam::keepalive
    pub keepalive: Option<Keepalive>,
    /// User timeout: time without an acknowledgment of outstanding data before a connection fails,
    /// 120 s, at least 1 ms (RFC 9293 section 3.8.3 requires at least 100 s).
    /// [`ConnParam::user_timeout`] sets it for one connection.
    ///
    /// [`ConnParam::user_timeout`]: crate::ConnParam::user_timeout
    pub user_timeout: Duration,
    /// Time for which a peer may take nothing while data waits for it, before the connection fails:
    /// its window is closed, or it acknowledges less than a segment, although it answers probes; at
    /// least 1 ms.
    /// `None`, the default: for ever (RFC 9293 section 3.8.6.1, RFC 6429). Set it in a server of
    /// peers that you do not trust: such a peer holds a queue pair and buffers.
    pub stall_timeout: Option<Duration>,
}

impl TcpSettings {
    /// CUBIC, receive windows that grow by need, and no keepalives.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            congestion: CongestionControl::Cubic,
            ecn: EcnMode::Accept,
            pacing: true,
            recv_window: 256 << 10,
            recv_window_max: 6 << 20,
            window_growth_max: 1 << 30,
            keepalive: None,
            user_timeout: Duration::from_secs(120),
            stall_timeout: None,
        }
    }

    setters! {
        congestion: CongestionControl,
        ecn: EcnMode,
        pacing: bool,
        recv_window: u32,
        recv_window_max: u32,
        window_growth_max: u64,
        keepalive: Option<Keepalive>,
        user_timeout: Duration,
        stall_timeout: Option<Duration>,
    }

    pub(crate) fn apply(&self, config: &mut EngineConfig) {
        config.window_growth_max = self.window_growth_max;
        let tcp = &mut config.tcp;
        tcp.congestion = self.congestion;
        tcp.ecn = self.ecn;
        tcp.pacing = self.pacing;
        tcp.recv_window = self.recv_window;
        tcp.recv_window_max = self.recv_window_max;
        if let Some(keepalive) = self.keepalive {
            tcp.set_keepalive(keepalive);
        }
        tcp.user_timeout_ns = nanos(self.user_timeout);
        tcp.stall_timeout_ns = self.stall_timeout.map(nanos);
    }
}

impl Default for TcpSettings {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn defaults_equal_those_of_engine_config() {
        let fresh = || EngineConfig::new(Ipv4Addr::new(198, 18, 0, 1).into(), 24, 0);
        let mut config = fresh();
        TcpSettings::new().apply(&mut config);
        assert_eq!(format!("{config:?}"), format!("{:?}", fresh()));
    }

    #[test]
    fn each_setting_reaches_engine_config() {
        let settings = TcpSettings::new()
            .congestion(CongestionControl::Dctcp)
            .ecn(EcnMode::Request)
            .pacing(false)
            .recv_window(1)
            .recv_window_max(2)
            .window_growth_max(3)
            .keepalive(Keepalive::new(Duration::from_nanos(5), Duration::from_nanos(6), 8))
            .user_timeout(Duration::MAX)
            .stall_timeout(Duration::from_nanos(7));
        let mut config = EngineConfig::new(Ipv4Addr::new(198, 18, 0, 1).into(), 24, 0);
        settings.apply(&mut config);
        assert_eq!(config.window_growth_max, 3);
        let tcp = &config.tcp;
        assert_eq!((tcp.congestion, tcp.ecn), (settings.congestion, settings.ecn));
        assert!(!tcp.pacing);
        assert_eq!((tcp.recv_window, tcp.recv_window_max), (1, 2));
        assert_eq!((tcp.keepalive_ns, tcp.keepalive_interval_ns), (Some(5), 6));
        assert_eq!(tcp.keepalive_count, 8);
        assert_eq!((tcp.user_timeout_ns, tcp.stall_timeout_ns), (u64::MAX, Some(7)));
    }
}
