//! The values of all settings.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use ferrowarp_proto::net::neighbor::StaticNeighbor;
use ferrowarp_proto::net::routing::{InterfaceAddress, Route};
use ferrowarp_proto::tcp::Keepalive;

use crate::builder::SettingsBuilder;
use crate::error::SettingsError;

/// Settings of a process. The names are those of the runtime's `Config` where it has them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Device, as the runtime's `DeviceSpec` parses it: `memif:/run/iwarp.sock,server`. Its kind is
    /// one of those that a verbs program can open; the rest is not checked here.
    pub device: String,
    /// Local addresses: at least one.
    pub addresses: Vec<InterfaceAddress>,
    /// Routes to other links.
    pub routes: Vec<Route>,
    /// Neighbors with a known hardware address.
    pub neighbors: Vec<StaticNeighbor>,
    /// VLAN ID of all frames.
    pub vlan: Option<u16>,
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// Thread that polls the device while the application does not.
    pub poller: Poller,
    /// Core to which that thread is pinned.
    pub poller_cpu: Option<usize>,
    /// Time for which a hot poller spins after traffic.
    pub hot_time: Duration,
    /// `vendor_id` of `ibv_query_device`.
    pub vendor_id: u32,
    /// `vendor_part_id` of `ibv_query_device`.
    pub vendor_part_id: u32,
    /// Keepalive of all connections. With [`Duration::MAX`] as idle time there is none.
    pub keepalive: Keepalive,
    /// Time for which the end of the process waits for the peers to acknowledge its data.
    pub linger: Duration,
    /// Use of hugepages for frames.
    pub hugepages: Hugepages,
    /// Ports from which connections are opened, and that a listener on port 0 gets.
    pub source_ports: RangeInclusive<u16>,
    /// Queue pairs at a time.
    pub qps_max: usize,
    /// Memory regions and windows at a time.
    pub regions_max: usize,
    /// MPA's peer-to-peer mode (RFC 6581), in which either end may send first.
    pub peer_to_peer: bool,
    /// CRC of each FPDU (RFC 5044): it is used unless both ends can do without.
    pub crc: bool,
    /// Log of the stack, on standard error.
    pub log: LogLevel,
}

impl Settings {
    /// Default of `vendor_id`: a locally administered OUI, so no vendor's. Some programs take 0 and
    /// 0xffffff for Soft-RoCE.
    pub const VENDOR_ID: u32 = 0x02_66_77;

    /// Defaults, with neither device nor address.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            device: String::new(),
            addresses: Vec::new(),
            routes: Vec::new(),
            neighbors: Vec::new(),
            vlan: None,
            mtu: 1500,
            poller: Poller::Auto,
            poller_cpu: None,
            hot_time: Duration::from_millis(50),
            vendor_id: Self::VENDOR_ID,
            vendor_part_id: 1,
            keepalive: Keepalive::new(Duration::from_secs(10), Duration::from_secs(2), 3),
            linger: Duration::from_secs(5),
            hugepages: Hugepages::Auto,
            source_ports: 49_152..=65_534,
            qps_max: 1 << 12,
            regions_max: 1 << 14,
            peer_to_peer: true,
            crc: true,
            log: LogLevel::Warn,
        }
    }

    /// Reads the settings of this process: the file that `FERROWARP_CONFIG` names, if it does, then
    /// the variables of the environment, which override it. Unknown variables are ignored.
    ///
    /// # Errors
    /// [`SettingsError`], in one line.
    pub fn from_environment() -> Result<Self, SettingsError> {
        let mut builder = SettingsBuilder::new();
        if let Some(path) = SettingsBuilder::config_variable() {
            builder.read_file(&path)?;
        }
        builder.read_variables()?;
        builder.build()
    }

    /// The same from the path and text of a file, and from the names and values of variables.
    ///
    /// # Errors
    /// As [`Settings::from_environment`].
    pub fn from_parts(
        file: Option<(&Path, &str)>,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, SettingsError> {
        let mut builder = SettingsBuilder::new();
        if let Some((path, text)) = file {
            builder.file(path, text)?;
        }
        for (name, value) in variables {
            builder.variable(&name, &value)?;
        }
        builder.build()
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}

/// Thread that polls the device while the application does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Poller {
    /// `Hot` if the process may use more cores than it needs, otherwise `Park`.
    #[default]
    Auto,
    /// A thread of the stack, which spins for [`Settings::hot_time`] after traffic.
    Hot,
    /// A thread of the stack, which sleeps while there is nothing to do.
    Park,
    /// None: only calls of the application poll. Acknowledgments and one-sided operations of the
    /// peers wait for them.
    Off,
}

/// Use of hugepages for frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hugepages {
    /// Hugepages if enough are free, else ordinary memory.
    #[default]
    Auto,
    /// Ordinary memory.
    Never,
    /// Hugepages, or an error.
    Always,
}

/// Least severity of the messages that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// None.
    Off,
    /// Errors.
    Error,
    /// Warnings too.
    #[default]
    Warn,
    /// Choices of the stack too.
    Info,
    /// Events of connections too.
    Debug,
    /// All.
    Trace,
}
