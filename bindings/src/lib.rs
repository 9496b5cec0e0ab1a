//! Bindings to DPDK 22.11 to 25.11 for EAL and its ports.
//!
//! bindgen generates [`sys`] from the installed headers. The other modules are safe types over it.
//! DPDK's rules become types:
//!
//! | Type | Rule |
//! |---|---|
//! | [`Eal`] | Proves that EAL runs |
//! | [`RxQueue`], [`TxQueue`] | One owner each. It may move between threads but is not shared |
//! | [`TxMbuf`] | A frame under construction: you write it only while it has one reference |
//! | [`RetainedMbuf`], [`Mbuf`] | A sent or a received frame: nobody writes it |
//! | [`Mempool`] | Outlives its mbufs |
//! | [`Port`] | Closes after its last queue |
//!
//! A host program upholds the last two for the objects that it made ([`HostPort`],
//! [`Mempool::of_host`]).
//!
//! By default you link DPDK's shared libraries and EAL loads their plug-in directory. The feature
//! `static` links the archives instead. Then you have only the drivers that `build.rs` lists:
//! `net_ring`, `net_memif`, `net_tap`, `net_af_packet`, `net_vhost`, `net_virtio_user`, and the
//! drivers of Intel's cards and of virtual machines.
//!
//! A polling thread should register itself first ([`Eal::register_thread`] or
//! [`Eal::register_current_thread`]). Otherwise it has no mempool caches.

mod abi;
mod attached;
#[cfg(test)]
mod build_script_tests;
mod burst_lock;
pub mod eal;
mod eal_needs;
mod eal_plugins;
pub mod error;
pub mod fd;
pub mod fork;
pub mod host_port;
mod intr_sources;
pub mod link;
mod lock_order;
pub mod mbuf;
mod mbuf_field;
mod memif_disconnect;
mod memif_ring;
pub mod mempool;
mod net_admin;
pub mod net_ring;
pub mod netif;
pub mod offload;
pub mod port;
mod prefetch;
pub mod queue;
mod removal;
pub mod rss;
pub mod rx_intr;
pub mod sys;
pub mod thread;
mod version;
mod vhost_state;

pub use abi::ABI;
pub use eal::{Eal, EalConfig, Hugepages, LogLevel, Memory};
pub use eal_needs::check_writable;
pub use error::{Errno, Error};
pub use fork::is_child;
pub use host_port::{HostPort, HostPortSetup, HostRxPool};
pub use link::PortLink;
pub use mbuf::{Mbuf, RetainedMbuf, RxChecksum, TxMbuf};
pub use memif_disconnect::ring_refusal_count;
pub use mempool::{HEADROOM, Mempool, MempoolConfig};
pub use net_ring::ring_pair;
pub use offload::{Offload, Offloads};
pub use port::{Bus, Port, PortConfig, PortInfo};
pub use prefetch::prefetch_read;
pub use queue::{BURST, PortLosses, RxQueue, TxQueue};
pub use rss::RssConfig;
pub use rx_intr::RxInterrupt;
pub use thread::{ThreadRegistration, is_registered};
pub use version::version;
