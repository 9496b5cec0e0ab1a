//! Errors of opening a device. Each message is one line, for the user who named the device.

use std::path::PathBuf;

use dpdk_sys::ABI;

use crate::device::pci::PciError;

/// Opening a device failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The text is no valid device name.
    #[error(
        "`{text}` is not a device: {reason} (devices: ring, memif:SOCKET[,server|client], \
         vhost:SOCKET, virtio-user:SOCKET, tap:NAME, af_packet:IFACE, af_xdp:IFACE, pci:BDF, \
         eal:ARGS)"
    )]
    BadSpec {
        /// The text as given.
        text: String,
        /// The syntax error.
        reason: &'static str,
    },
    /// The MTU is outside the range that frame buffers support.
    #[error("an MTU of {mtu} is out of range ({min} to {max})")]
    BadMtu {
        /// Requested MTU, bytes.
        mtu: u16,
        /// Smallest MTU, bytes.
        min: u16,
        /// Largest MTU, bytes.
        max: u16,
    },
    /// A number of the configuration is outside the range that works.
    #[error("{setting} of {value} is not possible: give {min} to {max}")]
    OutOfRange {
        /// The setting.
        setting: &'static str,
        /// The value given.
        value: u64,
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
    },
    /// The number of slots of `ring` is no power of two.
    #[error("ring_slots of {slots} is not possible: give a power of two, 2 to {max}")]
    RingSlots {
        /// The number given.
        slots: u32,
        /// Largest number.
        max: u32,
    },
    /// The pools are to hold more frames than a pool can.
    #[error(
        "pools for {frames} frames in flight are too large: lower window_bytes, windows or \
         path_bytes of the pools to {max} frames"
    )]
    PoolsTooLarge {
        /// Frames in flight of one queue pair.
        frames: u32,
        /// Largest number.
        max: u32,
    },
    /// The device cannot carry packets of the MTU.
    #[error("{device}: an MTU of {mtu} was requested, the device supports at most {max}")]
    MtuTooLarge {
        /// The device as named.
        device: String,
        /// Requested MTU, bytes.
        mtu: u16,
        /// Largest MTU of the device, bytes.
        max: u32,
    },
    /// The device has fewer queues.
    #[error(
        "{device}: {queues} queues were requested, the device has at most {max} (request fewer, or \
         give the device more)"
    )]
    TooManyQueues {
        /// The device as named.
        device: String,
        /// Requested number of queue pairs.
        queues: u16,
        /// Largest number of queue pairs of the device.
        max: u16,
    },
    /// EAL did not start, or runs with other arguments.
    #[error("{0}")]
    Environment(#[source] dpdk_sys::Error),
    /// The driver is not loaded.
    #[error(
        "{device}: DPDK's driver {driver} is not loaded (a shared build loads its plug-in, \
         Debian's package librte-{package}{ABI}; a static build lacks af_xdp)"
    )]
    NoDriver {
        /// The device as named.
        device: String,
        /// The driver's name.
        driver: &'static str,
        /// The driver's name as distribution packages spell it.
        package: String,
    },
    /// The process lacks a capability that the driver needs.
    #[error("{device}: no permission: it needs {capability} (run as root or grant it)")]
    NoPermission {
        /// The device as named.
        device: String,
        /// The missing capability.
        capability: &'static str,
    },
    /// There is no network interface of that name.
    #[error(
        "{device}: there is no network interface `{name}` in this network namespace (`ip link` \
         lists them)"
    )]
    NoInterface {
        /// The device as named.
        device: String,
        /// The interface.
        name: String,
    },
    /// A network interface of that name exists already.
    #[error(
        "{device}: a network interface `{name}` exists already (choose another name, or \
         `ip link delete {name}`)"
    )]
    InterfaceExists {
        /// The device as named.
        device: String,
        /// The interface.
        name: String,
    },
    /// /dev/net/tun cannot be opened.
    #[error(
        "{device}: /dev/net/tun cannot be opened: {source} (run as root; `modprobe tun`, or let \
         the container have it)"
    )]
    NoTun {
        /// The device as named.
        device: String,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// The kernel refused to set the interface's MTU.
    #[error("{device}: the kernel did not set the MTU to {mtu}: {source} (choose a smaller one)")]
    KernelMtu {
        /// The device as named.
        device: String,
        /// Requested MTU, bytes.
        mtu: u16,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// The PCI device cannot be used.
    #[error("{device}: {source}")]
    Pci {
        /// The device as named.
        device: String,
        /// The step that is missing.
        source: PciError,
    },
    /// The directory of the socket does not exist.
    #[error("{device}: there is no folder {} (make it, or choose another)", folder.display())]
    NoFolder {
        /// The device as named.
        device: String,
        /// The directory.
        folder: PathBuf,
    },
    /// The socket cannot be used.
    #[error("{device}: the socket is not usable: {source}")]
    Socket {
        /// The device as named.
        device: String,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// Another server listens on the socket.
    #[error(
        "{device}: another process serves this socket already (be its client, or choose another)"
    )]
    SocketInUse {
        /// The device as named.
        device: String,
    },
    /// No server listens on the socket.
    #[error("{device}: no process serves this socket yet: start the server first")]
    NoServer {
        /// The device as named.
        device: String,
    },
    /// Another process is connected to the socket, whose server has one client at a time.
    #[error(
        "{device}: another process is connected to this socket already (end it, or choose another)"
    )]
    ClientPresent {
        /// The device as named.
        device: String,
    },
    /// This process serves the socket itself, which needs memory that does not grow.
    #[error(
        "{device}: this process serves the socket itself, which works without hugepages only (use \
         ring, or another process)"
    )]
    ServedHere {
        /// The device as named.
        device: String,
    },
    /// The link partner cannot map the memory of EAL.
    #[error(
        "{device}: DPDK's memory lies in no files, or in too many, for the back end to map (start \
         EAL with --single-file-segments, and without --huge-unlink or --legacy-mem)"
    )]
    MemoryNotShareable {
        /// The device as named.
        device: String,
    },
    /// The driver requires hugepages, and EAL runs without.
    #[error("{device}: it needs hugepages (set /proc/sys/vm/nr_hugepages, 128 or more)")]
    NeedsHugepages {
        /// The device as named.
        device: String,
    },
    /// Checksum offload was requested, but the port has none.
    #[error("{device}: the port does not compute TCP checksums (leave that to the stack)")]
    NoChecksumOffload {
        /// The device as named.
        device: String,
    },
    /// Omitting checksums was requested for a link whose peer verifies them.
    #[error("{device}: checksums can be left out on ring, memif, vhost and virtio-user only")]
    ChecksumNeeded {
        /// The device as named.
        device: String,
    },
    /// The program has attached no port of this name, or the port is in use.
    #[error("{device}: the program has attached no port of this name, or it is open already")]
    NoHostPort {
        /// The device as named.
        device: String,
    },
    /// The program has lent queues of its port, and another number of them is to be opened.
    #[error(
        "{device}: {count} queues are lent, and {queues} are to be opened (have as many shards as \
         queues)"
    )]
    QueuesDiffer {
        /// The device as named.
        device: String,
        /// Requested number of queue pairs.
        queues: u16,
        /// Number of queue pairs that are lent.
        count: u16,
    },
    /// The program has not started EAL.
    #[error(
        "{device}: the program has not started DPDK's environment (call rte_eal_init before, or \
         name another device)"
    )]
    NoHostEal {
        /// The device as named.
        device: String,
    },
    /// The driver's ports have to be opened by the stack.
    #[error("{device}: ports of {driver} have to be opened by the stack (name vhost:SOCKET)")]
    HostDriver {
        /// The device as named.
        device: String,
        /// The driver's name.
        driver: String,
    },
    /// The program has configured its port with an offload with which the stack does not work.
    #[error("{device}: the stack does not work with {offload} (configure the port without it)")]
    HostOffload {
        /// The device as named.
        device: String,
        /// Name of the offload.
        offload: &'static str,
    },
    /// Checksum offload was requested, and the program has not configured it.
    #[error(
        "{device}: the port is not set up to compute checksums (configure it with \
         RTE_ETH_TX_OFFLOAD_TCP_CKSUM, or leave that to the stack)"
    )]
    HostChecksum {
        /// The device as named.
        device: String,
    },
    /// The receive buffers of the program's port are too small for headers.
    #[error(
        "{device}: receive buffers of {size} bytes do not hold all headers (set the queues up \
         with a mempool whose mbufs hold {min} or more)"
    )]
    HostRxBuffer {
        /// The device as named.
        device: String,
        /// Bytes of frame that a receive buffer holds.
        size: u16,
        /// Least number of them.
        min: u16,
    },
    /// The mempool of the program's receive queues has too few mbufs.
    #[error(
        "{device}: the mempool of its receive queues has {count} mbufs, {needed} are needed (set \
         the queues up with a larger one, or expect less in flight: PoolNeeds)"
    )]
    HostRxPool {
        /// The device as named.
        device: String,
        /// Number of mbufs.
        count: u32,
        /// Number needed.
        needed: u32,
    },
    /// The program's mempool cannot be used.
    #[error("{device}: mempool {mempool}: {source}")]
    HostPool {
        /// The device as named.
        device: String,
        /// Name of the mempool.
        mempool: String,
        /// Fault of the mempool.
        source: dpdk_sys::Error,
    },
    /// The mbufs of the program's mempool are too small for the MTU.
    #[error(
        "{device}: an mbuf of mempool {mempool} holds {room} bytes of frame, an MTU of {mtu} needs \
         {needed} (create it with a data room of {needed} + RTE_PKTMBUF_HEADROOM or more, or \
         choose a smaller MTU)"
    )]
    HostPoolRoom {
        /// The device as named.
        device: String,
        /// Name of the mempool.
        mempool: String,
        /// Bytes of frame that an mbuf holds.
        room: u16,
        /// Bytes needed.
        needed: u16,
        /// Requested MTU, bytes.
        mtu: u16,
    },
    /// The program's mempool has too few mbufs.
    #[error(
        "{device}: mempool {mempool} has {count} mbufs, {needed} are needed (create it with as \
         many, or with a smaller cache, or expect less in flight: PoolNeeds)"
    )]
    HostPoolCount {
        /// The device as named.
        device: String,
        /// Name of the mempool.
        mempool: String,
        /// Number of its mbufs.
        count: u32,
        /// Number needed.
        needed: u32,
    },
    /// The EAL arguments created no port.
    #[error(
        "{device}: no unused port was found: the arguments name no device, or its driver is \
         missing (name one with --vdev=DRIVER,.. or -a ADDRESS; load a plug-in with -d FILE)"
    )]
    NoPort {
        /// The device as named.
        device: String,
    },
    /// The bus or the driver rejected the device or its configuration.
    #[error("{device}: {source}")]
    Port {
        /// The device as named.
        device: String,
        /// Error of the failed call.
        source: dpdk_sys::Error,
    },
}

impl DeviceError {
    /// The driver of `device` is not loaded.
    pub(super) fn no_driver(device: String, driver: &'static str) -> Self {
        // Distributions' package names have no underscore. One plug-in has both drivers of virtio.
        let package = driver.strip_suffix("_user").unwrap_or(driver).replace('_', "-");
        Self::NoDriver { device, driver, package }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_driver_is_reported_with_the_package_that_has_it() {
        for (driver, package) in [
            ("net_af_packet", "librte-net-af-packet"),
            ("net_vhost", "librte-net-vhost"),
            ("net_virtio_user", "librte-net-virtio"),
        ] {
            let text = DeviceError::no_driver("a device".into(), driver).to_string();
            let package = format!("{package}{ABI};");
            assert!(text.contains(driver) && text.contains(&package), "{text}");
        }
    }
}
