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

    /// Frames of its transmit pools that nothing holds, if it can tell. For reports: it may take
    /// microseconds.
    fn frames_free(&self) -> Option<FramesFree> {
        None
    }
}

/// Frames of a device's transmit pools that are free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FramesFree {
    /// For segments with FPDUs; each keeps its frame until it is acknowledged.
    pub data: u32,
    /// For segments without payload, ARP, NDP and ICMP.
    pub control: u32,
    /// For retransmissions once `data` is drained.
    pub reserve: u32,
}

/// What a context has in use at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// By the protocols: connections, what they hold and what they retain.
    pub engine: engine::Usage,
    /// Of the transmit pools; `None` if the device does not tell, or is closed.
    pub frames_free: Option<FramesFree>,
}

impl Port for DpdkDevice {
    fn port_counters(&self) -> DeviceCounters {
        self.counters()
    }

    fn frames_free(&self) -> Option<FramesFree> {
        let [data, control, reserve] = self.available();
        Some(FramesFree { data, control, reserve })
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
