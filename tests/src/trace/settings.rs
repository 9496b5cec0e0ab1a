//! Settings of a trace, from its `config:` lines.

use ferrowarp_proto::engine::EngineConfig;
use ferrowarp_proto::tcp::{Algorithm, Config, EcnMode};

use super::script::{duration, number};

/// Tolerance for an engine's timers: a tick of its timer wheel, and a little more.
const ENGINE_TIMER_SLACK_NS: u64 = 20_000;

/// Settings of a trace.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Tests a whole engine instead of a TCB alone.
    pub engine: bool,
    /// TCP configuration.
    pub tcp: Config,
    /// Our initial sequence number, where a TCB is tested.
    pub iss: u32,
    /// The peer's initial sequence number.
    pub irs: u32,
    /// Our TSval at the start.
    pub tsval: u32,
    /// The peer's TSval at the start.
    pub peer_tsval: u32,
    /// IPv6 instead of IPv4.
    pub ipv6: bool,
    /// The application passes whole records, up to EMSS, even if less capacity is offered.
    pub whole_records: bool,
    /// Startup and linger timeouts of the engine.
    pub engine_timeout_ns: u64,
    /// Maximum number of half-open connections of an engine, in total and of a listener.
    pub half_open: Option<usize>,
    /// Tolerance for the time of an event.
    pub timer_slack_ns: u64,
}

impl Default for Settings {
    /// Receive windows of 65,535 bytes (so that window fields count bytes); NewReno without pacing,
    /// which is easily predicted; the stack's defaults for all else.
    fn default() -> Self {
        let mut tcp = Config::default();
        tcp.recv_window = 65_535;
        tcp.recv_window_max = 65_535;
        tcp.startup_window = 65_535;
        tcp.congestion = Algorithm::NewReno;
        tcp.pacing = false;
        Self {
            engine: false,
            tcp,
            iss: 0x1000_0000,
            irs: 0x2000_0000,
            tsval: 0x7000_0000,
            peer_tsval: 1_000_000,
            ipv6: false,
            whole_records: false,
            half_open: None,
            engine_timeout_ns: 3_600_000_000_000,
            timer_slack_ns: 1_000,
        }
    }
}

impl Settings {
    /// Applies the settings of the engine besides TCP.
    pub fn set_engine(&self, config: &mut EngineConfig) {
        config.startup_timeout_ns = self.engine_timeout_ns;
        config.linger_ns = self.engine_timeout_ns;
        if let Some(half_open) = self.half_open {
            config.half_open_max = half_open;
            config.half_open_per_listener_max = half_open;
        }
    }

    /// Changes one setting.
    ///
    /// # Errors
    /// If the setting does not exist, or the value is invalid.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let tcp = &mut self.tcp;
        match name {
            "engine" => {
                self.engine = parse_on_off(value)?;
                self.timer_slack_ns = ENGINE_TIMER_SLACK_NS;
            }
            "iss" => self.iss = parse_int(value)?,
            "irs" => self.irs = parse_int(value)?,
            "tsval" => self.tsval = parse_int(value)?,
            "peer-tsval" => self.peer_tsval = parse_int(value)?,
            "ipv6" => self.ipv6 = parse_on_off(value)?,
            "whole-records" => self.whole_records = parse_on_off(value)?,
            "engine-timeout" => self.engine_timeout_ns = duration(value)?,
            "half-open" => self.half_open = Some(parse_int(value)?),
            "late" => self.timer_slack_ns = duration(value)?,
            "mss" => tcp.mss = parse_int(value)?,
            "window" => {
                tcp.recv_window = parse_int(value)?;
                tcp.startup_window = tcp.recv_window;
                tcp.recv_window_max = tcp.recv_window;
            }
            "window-max" => tcp.recv_window_max = parse_int(value)?,
            "startup-window" => tcp.startup_window = parse_int(value)?,
            "timestamps" => tcp.timestamps = parse_on_off(value)?,
            "sack" => tcp.sack = parse_on_off(value)?,
            "rto-min" => tcp.rto_min_ns = duration(value)?,
            "rto-initial" => tcp.rto_initial_ns = duration(value)?,
            "rto-max" => tcp.rto_max_ns = duration(value)?,
            "syn-ack-retries" => tcp.syn_ack_retries = parse_int(value)?,
            "syn-retries" => tcp.syn_retries = parse_int(value)?,
            "data-retries" => tcp.data_retries = parse_int(value)?,
            "user-timeout" => tcp.user_timeout_ns = duration(value)?,
            "stall-timeout" => tcp.stall_timeout_ns = Some(duration(value)?),
            "delayed-ack" => tcp.delayed_ack_ns = duration(value)?,
            "time-wait" => tcp.time_wait_ns = duration(value)?,
            "fin-wait" => tcp.fin_wait_ns = duration(value)?,
            "keepalive-interval" => tcp.keepalive_interval_ns = duration(value)?,
            "keepalive-count" => tcp.keepalive_count = parse_int(value)?,
            "challenge-acks" => tcp.challenge_acks = parse_int(value)?,
            "keepalive" => tcp.keepalive_ns = Some(duration(value)?),
            "timer-overrun" => tcp.timer_overrun_ns = duration(value)?,
            "ooo-segments" => tcp.max_ooo_segments = parse_int(value)?,
            "records" => tcp.max_records = parse_int(value)?,
            "idle-restart" => tcp.idle_restart = parse_on_off(value)?,
            "ecn" => {
                tcp.ecn = match value {
                    "off" => EcnMode::Off,
                    "accept" => EcnMode::Accept,
                    "request" => EcnMode::Request,
                    _ => return Err(format!("`{value}` is none of off, accept, request")),
                }
            }
            "congestion" => {
                tcp.congestion = match value {
                    "new-reno" => Algorithm::NewReno,
                    "cubic" => Algorithm::Cubic,
                    "dctcp" => Algorithm::Dctcp,
                    _ => return Err(format!("there is no algorithm `{value}`")),
                }
            }
            "pacing" => tcp.pacing = parse_on_off(value)?,
            "tail-loss-probe" => tcp.tail_loss_probe = parse_on_off(value)?,
            _ => return Err(format!("there is no setting `{name}`")),
        }
        Ok(())
    }
}

fn parse_on_off(value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("`{value}` is neither on nor off")),
    }
}

fn parse_int<T: TryFrom<i64>>(value: &str) -> Result<T, String> {
    T::try_from(number(value)?).map_err(|_| format!("`{value}` does not fit"))
}
