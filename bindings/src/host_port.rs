//! Queues of a port that the host program owns: it started EAL, attached, configured and started
//! the port, and will stop and close it. Nothing of this is done here.
//!
//! The program's part, on which the soundness of the queues rests: while they are in use here, no
//! other code receives or sends on them; the port stays started; and its mempools stay until their
//! mbufs have returned, as they have once the queues and all frames are dropped. If its driver is
//! net_memif, the program also leaves DPDK's log stream and the driver's log level as they are
//! after the queues were opened: see `memif_disconnect`.

use core::ops::Range;
use std::ffi::CString;
use std::sync::Arc;

use crate::attached::{Attached, BorrowedQueues, Driver};
use crate::eal::{Eal, control_lock};
use crate::error::{Error, check};
use crate::memif_disconnect;
use crate::mempool::{Mempool, MempoolConfig, RxPool};
use crate::offload::Offloads;
use crate::port::{Port, PortInfo, port_id_by_name};
use crate::queue::{self, RxQueue, TxQueue};
use crate::sys;

/// Queue pairs of a started port that the host program owns. Dropping the value, and the queues
/// made of it, gives them back and leaves the port as it is.
#[derive(Debug)]
pub struct HostPort {
    port: Port,
    queues: Range<u16>,
}

/// Setup of the host program's port, and of the queue pairs of a [`HostPort`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostPortSetup {
    /// Number of queue pairs.
    pub queue_count: u16,
    /// MTU in bytes, as far as the driver knows of one.
    pub mtu: u16,
    /// Offloads that are on for all these queues.
    pub offloads: Offloads,
    /// The port frees sent mbufs as if nobody else referred to them
    /// (`RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE`), on at least one of these queues.
    pub tx_fast_free: bool,
    /// The port merges received segments (`RTE_ETH_RX_OFFLOAD_TCP_LRO`) on one of these queues.
    pub rx_lro: bool,
    /// The port splits received frames behind a header (`RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT`) on one
    /// of these queues.
    pub rx_split: bool,
    /// Descriptors of the longest transmit queue, if the driver tells.
    pub tx_descriptors: Option<u16>,
    /// Mempools of the receive queues, each once, if the driver tells.
    pub rx_pools: Vec<HostRxPool>,
}

/// Mempool of receive queues of a [`HostPort`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostRxPool {
    address: *const sys::rte_mempool,
    /// Number of its mbufs, and bytes of frame in each.
    pub config: MempoolConfig,
    /// Number of the queues.
    pub queue_count: u32,
    /// Sum of their receive descriptors, each of which holds an mbuf.
    pub descriptors: u32,
}

impl HostRxPool {
    /// True if this is the same mempool.
    #[must_use]
    pub fn is(&self, pool: &Mempool) -> bool {
        core::ptr::eq(self.address, pool.raw())
    }

    /// Counts the queue's receive descriptors for its mempool.
    fn note(pools: &mut Vec<Self>, queue: &sys::fw_queue_setup) {
        let descriptors = u32::from(queue.rx_descriptors);
        if let Some(known) = pools.iter_mut().find(|pool| pool.address == queue.rx_pool) {
            known.queue_count += 1;
            known.descriptors += descriptors;
        } else if let Some(config) = Mempool::shape(queue.rx_pool.cast_mut()) {
            pools.push(Self { address: queue.rx_pool, config, queue_count: 1, descriptors });
        }
    }
}

impl Eal {
    /// Returns the EAL that runs, also if the program has started it and nothing here was opened
    /// before; `None` if none runs.
    ///
    /// # Errors
    /// As [`Eal::init`].
    pub fn attach() -> Result<Option<Self>, Error> {
        // The lcore count is 0 until EAL is initialized.
        // SAFETY: reads a number.
        let runs = Self::running().is_some() || unsafe { sys::rte_lcore_count() } != 0;
        if runs { Self::init(&crate::EalConfig::default()).map(Some) } else { Ok(None) }
    }

    /// Borrows the queue pairs `queues` of a started port that the program owns, named as
    /// `rte_eth_dev_get_name_by_port` does, or by its number.
    ///
    /// # Errors
    /// [`Error::NoPort`] if there is none of that name or number; [`Error::PortInUse`] if it is
    /// owned here; [`Error::PortNotStarted`], [`Error::NoQueue`] and [`Error::QueueInUse`].
    pub fn borrow_queues(self, port: &str, queues: Range<u16>) -> Result<HostPort, Error> {
        let name = CString::new(port).map_err(|_| Error::BadName)?;
        let _control = control_lock();
        let id = port_id_by_name(&name).or_else(|| port.parse().ok()).ok_or(Error::NoPort)?;
        // SAFETY: accepts any number.
        if unsafe { sys::rte_eth_dev_is_valid_port(id) } == 0 {
            return Err(Error::NoPort);
        }
        let borrowed = Attached::borrowed(BorrowedQueues::new(id, queues.clone())?);
        // SAFETY: an attached port.
        if unsafe { sys::fw_port_is_started(id) } == 0 {
            return Err(Error::PortNotStarted);
        }
        let info = borrowed.raw_info()?;
        let count = info.nb_rx_queues.min(info.nb_tx_queues);
        for queue in queues.clone() {
            // `NULL` for a queue that was not set up; only of those below the number is there one.
            if queue >= count || queue_setup(id, queue).is_none() {
                return Err(Error::NoQueue { queue, count });
            }
        }
        Ok(HostPort { port: Port(borrowed), queues })
    }
}

/// Returns how a queue pair below the port's number was set up; `None` if it was not.
fn queue_setup(port: u16, queue: u16) -> Option<sys::fw_queue_setup> {
    let mut setup = sys::fw_queue_setup::default();
    // SAFETY: an attached port, a queue below its number of queues, and a structure to fill.
    let status = unsafe { sys::fw_queue_setup(port, queue, &raw mut setup) };
    (status == 0).then_some(setup)
}

impl HostPort {
    /// Returns the port's properties.
    ///
    /// # Errors
    /// [`Error::PortInfo`].
    pub fn info(&self) -> Result<PortInfo, Error> {
        self.port.info()
    }

    /// Returns the port's configuration.
    ///
    /// # Errors
    /// [`Error::PortInfo`] if it cannot be read.
    pub fn setup(&self) -> Result<HostPortSetup, Error> {
        let _control = control_lock();
        let id = self.port.0.id;
        let info = self.port.0.raw_info()?;
        let mut conf = sys::rte_eth_conf::default();
        // SAFETY: an attached port and a structure to fill.
        check(unsafe { sys::rte_eth_dev_conf_get(id, &raw mut conf) }, Error::PortInfo)?;
        let mut mtu = 0;
        // SAFETY: as above.
        check(unsafe { sys::rte_eth_dev_get_mtu(id, &raw mut mtu) }, Error::PortInfo)?;
        // A queue has the offloads of its port, and others of its own.
        let queues: Vec<_> =
            self.queues.clone().filter_map(|queue| queue_setup(id, queue)).collect();
        let (rx, tx) = (conf.rxmode.offloads, conf.txmode.offloads);
        let any_rx = |flag| queues.iter().any(|queue| (queue.rx_offloads | rx) & flag != 0);
        let fast_free = sys::FW_TX_OFFLOAD_MBUF_FAST_FREE;
        let known = |descriptors: u16| (descriptors != 0).then_some(descriptors);
        let mut rx_pools = Vec::new();
        queues.iter().for_each(|queue| HostRxPool::note(&mut rx_pools, queue));
        Ok(HostPortSetup {
            queue_count: info.nb_rx_queues.min(info.nb_tx_queues),
            mtu,
            offloads: Offloads::common(
                queues.iter().map(|queue| (queue.rx_offloads | rx, queue.tx_offloads | tx)),
            ),
            tx_fast_free: queues.iter().any(|queue| (queue.tx_offloads | tx) & fast_free != 0),
            rx_lro: any_rx(sys::FW_RX_OFFLOAD_TCP_LRO),
            rx_split: any_rx(sys::FW_RX_OFFLOAD_BUFFER_SPLIT),
            tx_descriptors: queues.iter().filter_map(|queue| known(queue.tx_descriptors)).max(),
            rx_pools,
        })
    }

    /// True if queues of the port can be used here. Not those of `net_vhost`: which queues a peer
    /// has enabled, and when their memory is unmapped, has to be watched from before the port is
    /// started.
    #[must_use]
    pub fn is_supported(&self) -> bool {
        self.port.0.driver != Driver::Vhost
    }

    /// Returns the queues in order; `pool`, of which their frames are to be sent, is kept as long.
    ///
    /// # Errors
    /// [`Error::Log`]; [`Error::NoPort`] if the port is not supported ([`HostPort::is_supported`]).
    pub fn into_queues(self, pool: &Mempool) -> Result<Vec<(RxQueue, TxQueue)>, Error> {
        if !self.is_supported() {
            return Err(Error::NoPort);
        }
        let Self { port: Port(mut port), queues } = self;
        port.keep(Arc::new(pool.clone()));
        let is_memif = port.driver == Driver::Memif;
        if is_memif {
            let _control = control_lock();
            memif_disconnect::hook_log()?;
        }
        let port = Arc::new(port);
        // The receive queues' mempools are the program's affair, and memif does not tell them.
        let pairs = queues.map(|queue| queue::rx_tx_queues(&port, queue, RxPool::OfHost));
        let pairs = pairs.collect();
        if is_memif {
            memif_disconnect::note_rings()?;
        }
        Ok(pairs)
    }
}

#[cfg(test)]
#[path = "host_port_tests.rs"]
mod tests;
