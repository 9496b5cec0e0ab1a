//! Devices: DPDK ports by name, as the protocol core sees them.
//!
//! [`DeviceSpec`] is a device's name, the same for every program; [`open`] turns it into one or
//! two [`DpdkDevice`]s. A device is one queue of one port with its own pools. It may move to the
//! thread that polls it, but has one owner; that thread calls [`adopt_thread`] first, so that
//! allocation and freeing use caches of its own. Dropping a device closes the port and removes
//! what opening it made; frames may outlive it.
//!
//! [`open`]: open()

mod error;
mod frame;
mod memif;
mod net_ring;
mod open;
mod pools;
mod port;
mod raw;
mod spec;

pub use dpdk_sys::{Hugepages, LogLevel};
pub use error::DeviceError;
pub use ferrowarp_proto::device::{
    Capabilities, ChecksumMode, ChecksumState, Device, Retained, RxFrame, TxClass, TxFrame,
};
pub use frame::{DpdkRetained, DpdkRx, DpdkTx};
pub use open::{OpenConfig, Opened, open};
pub use pools::{MTU_MAX, MTU_MIN, PoolNeeds, PoolSizes};
pub use port::{DeviceCounters, DpdkDevice, adopt_thread};
pub use raw::{PortLosses, RawCounters, RawFrame, RawPort, open_raw};
pub use spec::{DeviceSpec, MemifRole};

#[cfg(test)]
mod tests;

#[cfg(test)]
mod kernel_tests;
