//! The `ring` device: two `net_ring` ports of one process, connected to each other.

use std::sync::atomic::{AtomicU32, Ordering};

use dpdk_sys::{Eal, Mempool, MempoolConfig, Port, PortConfig, ring_pair};
use ferrowarp_proto::device::{Capabilities, ChecksumMode};

use crate::device::error::DeviceError;
use crate::device::open::OpenConfig;
use crate::device::pools::{MEMPOOL_CACHE_SIZE, PoolSizes};
use crate::device::port::{DpdkDevice, TxPools};

/// Serial number of the next local MAC address.
static NEXT_MAC: AtomicU32 = AtomicU32::new(0);

/// Returns a locally administered MAC address that is unique in this process. Ring ports have none
/// of their own.
pub(super) fn next_local_mac() -> [u8; 6] {
    let [_, _, high, low] = NEXT_MAC.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let [.., a, b] = std::process::id().to_be_bytes();
    [0x02, 0xfe, a, b, high, low]
}

/// Creates the mempools of one device: data, control and reserve for transmission, and one for
/// reception.
pub(super) fn pools(
    eal: Eal,
    sizes: &PoolSizes,
    rx_buf_size: u16,
) -> Result<(TxPools, Mempool), dpdk_sys::Error> {
    let pool = |count: u32, room, cache| {
        Mempool::new(eal, &MempoolConfig { count, cache, frame_capacity: room })
    };
    let data = pool(sizes.data, sizes.frame_capacity, MEMPOOL_CACHE_SIZE)?;
    let control = pool(sizes.control, sizes.frame_capacity, MEMPOOL_CACHE_SIZE)?;
    // No caches: every mbuf of the reserve must be available to any thread.
    let reserve = pool(sizes.reserve, sizes.frame_capacity, 0)?;
    let receive = match sizes.receive {
        0 => data.clone(),
        count => pool(count, rx_buf_size, MEMPOOL_CACHE_SIZE)?,
    };
    Ok((TxPools::new(data, control, reserve), receive))
}

/// Opens two devices connected by rings of mbuf pointers.
pub(super) fn open_pair(
    eal: Eal,
    config: &OpenConfig,
) -> Result<(DpdkDevice, DpdkDevice), DeviceError> {
    let error = |source| DeviceError::Port { device: "ring".to_owned(), source };
    let checksum = match config.checksum {
        None => ChecksumMode::NotNeeded,
        Some(ChecksumMode::Offload) => {
            return Err(DeviceError::NoChecksumOffload { device: "ring".to_owned() });
        }
        Some(mode) => mode,
    };
    let sizes = config.pools.ring_sizes(config.mtu);
    let end = |port: Port, name: &str| {
        let (pools, receive) = pools(eal, &sizes, sizes.frame_capacity)?;
        let mut queues = port.start(&PortConfig {
            rx_descriptors: 64,
            tx_descriptors: 64,
            pools: vec![receive],
            mtu: None,
            scatter: false,
            promiscuous: false,
            checksum: false,
        })?;
        let (mac, mtu) = (next_local_mac(), config.mtu);
        let capabilities = Capabilities { mac, mtu, send_mtu: mtu, checksum };
        let queue = queues.pop().ok_or(dpdk_sys::Error::NoPort)?;
        Ok(DpdkDevice::new(queue, pools, config.tx_queue(), capabilities, name.to_owned()))
    };
    let (first, second) = ring_pair(eal, 1, config.ring_slots).map_err(error)?;
    Ok((end(first, "ring:0").map_err(error)?, end(second, "ring:1").map_err(error)?))
}
