//! TCP options of all programs.

use std::time::Duration;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use ferrowarp::{CongestionControl, EcnMode, Keepalive, TcpSettings};

use crate::option_values::{bytes, seconds};

/// Largest window that TCP can advertise (RFC 7323).
const WINDOW_MAX: u64 = 1 << 30;

/// Keepalive of a server: a killed client sends nothing, and an idle connection would stay.
const SERVER_KEEPALIVE: Keepalive =
    Keepalive::new(Duration::from_secs(10), Duration::from_secs(2), 3);
/// Longest interval of probes if none is given.
const PROBE_INTERVAL_MAX: Duration = Duration::from_secs(75);
/// Number of probes if none is given.
const PROBES: u8 = 9;

/// Settings of the local TCP.
#[derive(Clone, Debug, Default, Args)]
pub struct TcpArgs {
    /// Congestion control [default: cubic].
    #[arg(long, value_enum, help_heading = "TCP")]
    pub congestion: Option<Congestion>,
    /// Explicit Congestion Notification [default: accept; request with --congestion dctcp].
    #[arg(long, value_enum, help_heading = "TCP")]
    pub ecn: Option<Ecn>,
    /// Disables pacing: sends the window in bursts instead of spreading it over the round trip.
    #[arg(long, help_heading = "TCP")]
    pub no_pacing: bool,
    /// Initial receive window in bytes, suffix K or M [default: 256K, or --recv-window-max if
    /// smaller].
    #[arg(long, value_name = "BYTES", value_parser = window, help_heading = "TCP")]
    pub recv_window: Option<u32>,
    /// Limit of receive window auto-tuning in bytes [default: 6M, or --recv-window if larger].
    #[arg(long, value_name = "BYTES", value_parser = window, help_heading = "TCP")]
    pub recv_window_max: Option<u32>,
    /// Ends the connection to a peer that was killed or lost power: 10,2,3 are 10 idle seconds,
    /// then probes 2 seconds apart, of which 3 without an answer end it; or off. With the idle
    /// seconds alone 9 probes follow at that interval, at most 75 seconds [default: off; 10,2,3 at
    /// a server].
    #[arg(
        long,
        value_name = "IDLE[,INTERVAL,PROBES]",
        value_parser = keepalive,
        help_heading = "TCP"
    )]
    pub keepalive: Option<Keepalive>,
    /// Seconds without acknowledgment of outstanding data before the connection is aborted
    /// (RFC 5482) [default: 120].
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = "TCP")]
    pub user_timeout: Option<Duration>,
}

/// Congestion control by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Congestion {
    /// CUBIC (RFC 9438).
    Cubic,
    /// NewReno (RFC 5681).
    #[value(name = "newreno")]
    NewReno,
    /// DCTCP (RFC 8257), for networks with switches that mark at short queues.
    Dctcp,
}

/// ECN mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ecn {
    /// Neither requested nor accepted.
    Off,
    /// Accepted if the peer requests it.
    Accept,
    /// Requested, and accepted.
    Request,
}

fn keepalive(text: &str) -> Result<Keepalive, String> {
    let form = |error| format!("{error}, as in 10,2,3 (idle, interval, probes), or off");
    match text.split(',').collect::<Vec<_>>()[..] {
        ["off"] => Ok(Keepalive::OFF),
        [idle] => {
            let idle = seconds(idle).map_err(form)?;
            Ok(Keepalive::new(idle, idle.min(PROBE_INTERVAL_MAX), PROBES))
        }
        [idle, interval, probes] => {
            let (idle, interval) = (seconds(idle).map_err(form)?, seconds(interval).map_err(form)?);
            let probes = probes.parse().ok().filter(|&probes| probes > 0);
            let probes = probes.ok_or_else(|| form("give 1 to 255 probes".to_owned()))?;
            Ok(Keepalive::new(idle, interval, probes))
        }
        _ => Err(form("give one value or three".to_owned())),
    }
}

fn window(text: &str) -> Result<u32, String> {
    let bytes = bytes(text, WINDOW_MAX)?;
    u32::try_from(bytes).map_err(|_| format!("give 1 to {WINDOW_MAX} bytes"))
}

impl TcpArgs {
    /// Finds values that cannot work together.
    ///
    /// # Errors
    /// One line that names a remedy.
    pub fn check(&self) -> anyhow::Result<()> {
        if let (Some(initial), Some(limit)) = (self.recv_window, self.recv_window_max) {
            ensure!(
                initial <= limit,
                "--recv-window is above --recv-window-max: give at most as many bytes"
            );
        }
        Ok(())
    }

    /// Returns the TCP settings: the options given, and defaults.
    #[must_use]
    pub fn settings(&self) -> TcpSettings {
        let mut settings = TcpSettings::new();
        let congestion = self.congestion.unwrap_or(Congestion::Cubic);
        let usual = if congestion == Congestion::Dctcp { Ecn::Request } else { Ecn::Accept };
        let limit = self.recv_window_max.unwrap_or(settings.recv_window_max);
        let recv_window = self.recv_window.unwrap_or(settings.recv_window.min(limit));
        settings.congestion = match congestion {
            Congestion::Cubic => CongestionControl::Cubic,
            Congestion::NewReno => CongestionControl::NewReno,
            Congestion::Dctcp => CongestionControl::Dctcp,
        };
        settings.ecn = match self.ecn.unwrap_or(usual) {
            Ecn::Off => EcnMode::Off,
            Ecn::Accept => EcnMode::Accept,
            Ecn::Request => EcnMode::Request,
        };
        settings.pacing = !self.no_pacing;
        settings.recv_window = recv_window;
        settings.recv_window_max = limit.max(recv_window);
        settings.keepalive = self.keepalive;
        settings.user_timeout = self.user_timeout.unwrap_or(settings.user_timeout);
        settings
    }

    /// Returns the settings of a server whose clients have to make progress within `timeout`: it
    /// notices clients that were killed, and those that take nothing.
    #[must_use]
    pub fn server_settings(&self, timeout: Duration) -> TcpSettings {
        let mut settings = self.settings();
        settings.stall_timeout = Some(timeout);
        settings.keepalive = self.keepalive.or(Some(SERVER_KEEPALIVE));
        settings
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        tcp: TcpArgs,
    }

    fn settings(line: &str) -> Result<TcpSettings, clap::Error> {
        let words = ["x"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.tcp.settings())
    }

    #[test]
    fn no_options_give_default_settings() {
        assert_eq!(settings("").unwrap(), TcpSettings::new());
    }

    #[test]
    fn server_notices_dead_and_stalled_clients() {
        let of_server = |line: &str| {
            let words = ["x"].into_iter().chain(line.split_whitespace());
            Line::try_parse_from(words).unwrap().tcp.server_settings(Duration::from_secs(4))
        };
        let keepalive = |line: &str| of_server(line).keepalive.unwrap();
        let of = |idle, interval, probes| {
            Keepalive::new(Duration::from_secs(idle), Duration::from_secs(interval), probes)
        };
        assert_eq!(of_server("").stall_timeout, Some(Duration::from_secs(4)));
        assert_eq!(keepalive(""), of(10, 2, 3));
        assert_eq!(keepalive("").notices_after(), Duration::from_secs(16));
        assert_eq!(keepalive("--keepalive 20"), of(20, 20, 9));
        assert_eq!(keepalive("--keepalive 100"), of(100, 75, 9));
        assert_eq!(keepalive("--keepalive 5,1,255"), of(5, 1, 255));
        assert_eq!(keepalive("--keepalive off"), Keepalive::OFF);
        assert_eq!(settings("").unwrap().keepalive, None);
    }

    #[test]
    fn options_map_to_tcp_settings() {
        let line = "--congestion newreno --ecn off --no-pacing --recv-window 8M --keepalive 2.5 \
                    --user-timeout 5";
        let expected = TcpSettings::new()
            .congestion(CongestionControl::NewReno)
            .ecn(EcnMode::Off)
            .pacing(false)
            .recv_window(8 << 20)
            .recv_window_max(8 << 20)
            .keepalive(Keepalive::new(Duration::from_millis(2500), Duration::from_millis(2500), 9))
            .user_timeout(Duration::from_secs(5));
        assert_eq!(settings(line).unwrap(), expected);
        let dctcp = settings("--congestion dctcp --recv-window-max 1M").unwrap();
        assert_eq!((dctcp.congestion, dctcp.ecn), (CongestionControl::Dctcp, EcnMode::Request));
        assert_eq!((dctcp.recv_window, dctcp.recv_window_max), (256 << 10, 1 << 20));
        let small = settings("--recv-window-max 64K").unwrap();
        assert_eq!((small.recv_window, small.recv_window_max), (64 << 10, 64 << 10));
        let accepts = settings("--congestion dctcp --ecn accept").unwrap();
        assert_eq!(accepts.ecn, EcnMode::Accept);
        let check = |line: &str| {
            let words = ["x"].into_iter().chain(line.split_whitespace());
            Line::try_parse_from(words).unwrap().tcp.check()
        };
        assert!(check("--recv-window 1M --recv-window-max 1M").is_ok());
        let error = check("--recv-window 2M --recv-window-max 1M").unwrap_err();
        assert!(error.to_string().contains("above --recv-window-max"), "{error}");
        for wrong in [
            "--keepalive on",
            "--keepalive 10,2",
            "--keepalive 10,2,0",
            "--keepalive 10,2,256",
            "--keepalive 10,0,3",
            "--keepalive 10,2,3,4",
            "--congestion reno",
            "--ecn on",
            "--recv-window 0",
            "--recv-window 2000M",
        ] {
            assert!(settings(wrong).is_err(), "{wrong}");
        }
    }
}
