//! Counters and resource usage of a context, for reports.

use std::ops::AddAssign;

pub use crate::clock::ClockInfo;
use crate::device::{DeviceCounters, FramesFree};
pub use crate::tcp::TcpStats;
pub use ferrowarp_proto::engine::{Counters as EngineCounters, Usage as EngineUsage};

/// Resources of a context in use now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Usage of the engine: connections, and the memory that they use and retain.
    pub engine: EngineUsage,
    /// Free frames of the transmit pools; `None` if the device does not report it, or is closed.
    pub frames_free: Option<FramesFree>,
}

/// Adds the usage of another shard.
impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.engine += other.engine;
        if let Some(free) = other.frames_free {
            *self.frames_free.get_or_insert_default() += free;
        }
    }
}

/// Counters of a context since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Counters of the engine.
    pub engine: EngineCounters,
    /// Counters of the port.
    pub device: DeviceCounters,
}

/// Adds the counters of another shard.
impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.engine += other.engine;
        self.device += other.device;
    }
}
