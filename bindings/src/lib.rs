//! Bindings to DPDK 22.11: EAL, mempools, mbufs, ports and queues.
//!
//! [`sys`] is what bindgen generates from the installed headers; the other modules are safe types
//! over it. DPDK's rules become types: an [`Eal`] proves that the environment runs; a queue has
//! one owner and moves between threads but is not shared; a frame under construction
//! ([`TxMbuf`]) is written only while nobody else refers to it, and a sent or received one
//! ([`RetainedMbuf`], [`Mbuf`]) not at all; a pool outlives its mbufs, and a port closes itself
//! after its last queue.
//!
//! Linking: DPDK's shared libraries by default, whose plug-in folder EAL loads by itself; the
//! feature `static` takes the archives instead, with the drivers for rings, memif, tap, packet
//! sockets and nothing else.
//!
//! A thread that polls should register itself first ([`Eal::register_thread`] or
//! [`Eal::adopt_thread`]): otherwise it has no caches in the pools.

pub mod eal;
pub mod error;
pub mod fork;
pub mod mbuf;
mod memif_disconnect;
pub mod mempool;
pub mod net_ring;
pub mod netif;
pub mod port;
pub mod queue;
pub mod sys;
pub mod thread;

pub use eal::{Eal, EalConfig, Hugepages, LogLevel, Memory};
pub use error::{Errno, Error};
pub use fork::is_child;
pub use mbuf::{Mbuf, RetainedMbuf, RxChecksum, TxMbuf};
pub use mempool::{HEADROOM, Mempool, MempoolConfig};
pub use net_ring::ring_pair;
pub use port::{Bus, Port, PortConfig, PortInfo};
pub use queue::{BURST, PortLosses, RxQueue, TxQueue};
pub use thread::{ThreadRegistration, is_registered};
