//! Devices: DPDK ports, opened by name, that implement the protocol core's `Device` trait.
//!
//! [`DeviceSpec`] names a device, in the same syntax in every program; [`open`] makes
//! [`DpdkDevice`]s of it, one for each queue pair of one port, or of two connected ports. Each has
//! mempools of its own. It is `Send`, but has one owner. [`Steering`] says on which queue pair a
//! frame arrives. The thread that polls it calls [`register_current_thread`]
//! first, so that it allocates and frees through mempool caches of its own. Dropping the last
//! device of a port closes the port and removes whatever opening it created; frames may outlive it.
//! Over queues that the host program lends ([`HostPort`]) it removes nothing, and no frame may
//! outlive the program's mempools.
//!
//! [`open`]: open()

mod attach;
mod bring_up;
mod capability;
mod context_port;
mod device_error;
mod exchange;
mod facts;
mod flow_table;
mod frame;
mod hairpin;
mod host_port;
mod host_spec;
mod lcore;
mod link;
mod link_state;
mod mbuf_cache;
mod memif;
mod offload;
mod open_config;
mod pci;
mod pools;
mod port;
mod quirks;
mod raw;
mod rss_check;
mod socket;
mod spec;
mod steering;
mod vhost;

pub use bring_up::{Opened, open, open_raw};
pub use context_port::{FramesFree, Port, PortLink, RxInterrupt};
pub use device_error::DeviceError;
pub use dpdk_sys::version as dpdk_version;
pub use dpdk_sys::{Hugepages, LogLevel};
pub use ferrowarp_proto::device::{
    Capabilities, ChecksumMode, ChecksumRequest, ChecksumState, Device, Retained, RxFrame,
    SegmentationRequest, TxClass, TxFrame,
};
pub use frame::{DpdkRetained, DpdkRx, DpdkTx};
pub use host_spec::HostPort;
pub(crate) use lcore::register_application_thread;
pub use lcore::register_current_thread;
pub use link::DpdkLink;
pub(crate) use link_state::LinkState;
pub use open_config::OpenConfig;
pub use pci::PciError;
pub use pools::{MTU_MAX, MTU_MIN, PoolNeeds, PoolSizes};
pub use port::{DeviceCounters, DpdkDevice};
pub use raw::{PortLosses, RawCounters, RawFrame, RawPort};
pub use spec::{DeviceSpec, MemifRole};
pub use steering::{RssConfig, Steering};

#[cfg(test)]
mod tests;
