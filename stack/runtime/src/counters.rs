//! What a context counts.

use ferrowarp_proto::device::Device;
use ferrowarp_proto::engine;

use crate::device::{DeviceCounters, DpdkDevice};

/// A device as a context uses it.
pub trait Port: Device {
    /// What it has done so far; zeros if it does not count.
    fn port_counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }
}

impl Port for DpdkDevice {
    fn port_counters(&self) -> DeviceCounters {
        self.counters()
    }
}

/// What was counted since a context was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// By the protocols.
    pub engine: engine::Counters,
    /// At the port.
    pub device: DeviceCounters,
}
