//! Devices: DPDK ports, opened by name, that implement the protocol core's `Device` trait.
//!
//! [`DeviceSpec`] names a device, in the same syntax in every program; [`open`] makes one or two
//! [`DpdkDevice`]s of it. A device is one queue pair of one port with its own mempools. It is
//! `Send`, but has one owner. The thread that polls it calls [`register_current_thread`]
//! first, so that it allocates and frees through mempool caches of its own. Dropping a device
//! closes the port and removes whatever opening it created; frames may outlive it.
//!
//! [`open`]: open()

mod attach;
mod config;
mod error;
mod frame;
mod mac;
mod mbuf_cache;
mod memif;
mod open;
mod pools;
mod port;
mod quirks;
mod raw;
mod spec;
mod thread;

pub use config::OpenConfig;
pub use dpdk_sys::{Hugepages, LogLevel};
pub use error::DeviceError;
pub use ferrowarp_proto::device::{
    Capabilities, ChecksumMode, ChecksumState, Device, Retained, RxFrame, TxClass, TxFrame,
};
pub use frame::{DpdkRetained, DpdkRx, DpdkTx};
pub use open::{Opened, open, open_raw};
pub use pools::{MTU_MAX, MTU_MIN, PoolNeeds, PoolSizes};
pub use port::{DeviceCounters, DpdkDevice};
pub use raw::{PortLosses, RawCounters, RawFrame, RawPort};
pub use spec::{DeviceSpec, MemifRole};
pub(crate) use thread::register_application_thread;
pub use thread::register_current_thread;

#[cfg(test)]
mod tests;
