//! The pair of ports inside the process.

use std::sync::atomic::{AtomicU32, Ordering};

use dpdk_sys::{Eal, Mempool, MempoolConfig, Port, PortConfig, ring_pair};
use ferrowarp_proto::device::{Capabilities, ChecksumMode};

use crate::device::error::DeviceError;
use crate::device::open::OpenConfig;
use crate::device::pools::{MEMPOOL_CACHE_SIZE, PoolSizes};
use crate::device::port::{DpdkDevice, TxPools};

/// Ends made so far, to tell their addresses apart.
static NEXT_MAC: AtomicU32 = AtomicU32::new(0);

/// A locally administered address that no other end in this process has. Ring ports have none of
/// their own.
pub(super) fn next_local_mac() -> [u8; 6] {
    let [_, _, high, low] = NEXT_MAC.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let [.., a, b] = std::process::id().to_be_bytes();
    [0x02, 0xfe, a, b, high, low]
}

/// Makes the pools of one device: data, control and reserve, and the one for reception.
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
    // The last resort must be there for whichever thread asks: no caches.
    let reserve = pool(sizes.reserve, sizes.frame_capacity, 0)?;
    let receive = match sizes.receive {
        0 => data.clone(),
        count => pool(count, rx_buf_size, MEMPOOL_CACHE_SIZE)?,
    };
    Ok((TxPools::new(data, control, reserve), receive))
}

/// Two devices joined by rings of mbuf pointers.
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
