//! Opens devices: attaches, configures and starts the port that a [`DeviceSpec`] names.

use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use dpdk_sys::{
    Bus, Eal, EalConfig, HEADROOM, Hugepages, LogLevel, Memory, Port, PortConfig, netif,
};
use ferrowarp_proto::device::{Capabilities, ChecksumMode};

use crate::device::error::DeviceError;
use crate::device::memif;
use crate::device::net_ring;
use crate::device::pools::{MTU_MAX, MTU_MIN, PoolNeeds};
use crate::device::port::DpdkDevice;
use crate::device::spec::{DeviceSpec, single_device};

/// Minimum length of a frame's first segment, in bytes: all headers lie in it.
const FIRST_SEGMENT_LEN_MIN: u16 = 128;

const _: () = assert!(FIRST_SEGMENT_LEN_MIN as usize >= ferrowarp_proto::wire::tcp::MAX_HEADER_LEN);

/// Device configuration. The defaults suit tests and one or two busy connections.
#[derive(Clone, Debug)]
pub struct OpenConfig {
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Checksum mode. `None`: no checksums on `ring`, software elsewhere. `Offload` is for NICs
    /// and is an error if the port does not support it.
    pub checksum: Option<ChecksumMode>,
    /// Demands from which the mempool sizes are computed.
    pub pools: PoolNeeds,
    /// Slots per direction of `ring`, a power of two; it holds one frame less.
    pub ring_slots: u32,
    /// Bytes of frame per receive buffer, if less than a whole frame: long frames then arrive
    /// in several segments. Raised to 128, because all headers lie in the first segment
    /// ([`RxFrame::head`]). `None`: every frame fits one buffer.
    ///
    /// [`RxFrame::head`]: ferrowarp_proto::device::RxFrame::head
    pub rx_buf_size: Option<u16>,
    /// Use of huge pages. Fixed by the first device that is opened.
    pub hugepages: Hugepages,
    /// DPDK's own log level. Fixed by the first device that is opened.
    pub log_level: LogLevel,
}

impl Default for OpenConfig {
    fn default() -> Self {
        Self {
            mtu: 1500,
            checksum: None,
            pools: PoolNeeds::default(),
            ring_slots: 512,
            rx_buf_size: None,
            hugepages: Hugepages::Auto,
            log_level: LogLevel::Critical,
        }
    }
}

impl OpenConfig {
    pub(super) fn tx_queue(&self) -> usize {
        self.pools.tx_queue as usize
    }
}

/// Result of [`open`].
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "taken apart at once, never stored")]
pub enum Opened {
    /// One device, whose link partner is not opened here.
    One(DpdkDevice),
    /// Two devices connected to each other (`ring`).
    Pair(DpdkDevice, DpdkDevice),
}

/// Opens the device that `spec` names; initialises EAL if it does not run.
///
/// Takes up to 0.3 s the first time. Interfaces are looked up in the network namespace of the
/// calling thread. Everything created here is removed when the device is dropped.
///
/// # Errors
/// See [`DeviceError`]: each message is one line and names a remedy.
pub fn open(spec: &DeviceSpec, config: &OpenConfig) -> Result<Opened, DeviceError> {
    if !(MTU_MIN..=MTU_MAX).contains(&config.mtu) {
        return Err(DeviceError::BadMtu { mtu: config.mtu, min: MTU_MIN, max: MTU_MAX });
    }
    let eal = start(spec, config)?;
    if spec.is_pair() {
        let (first, second) = net_ring::open_pair(eal, config)?;
        return Ok(Opened::Pair(first, second));
    }
    open_one(eal, spec, config).map(Opened::One)
}

fn start(spec: &DeviceSpec, config: &OpenConfig) -> Result<Eal, DeviceError> {
    static LOGGED: Once = Once::new();
    let mut eal = EalConfig {
        hugepages: config.hugepages,
        log_level: config.log_level,
        ..EalConfig::default()
    };
    match spec {
        DeviceSpec::Pci { address } => eal.pci.push(address.clone()),
        DeviceSpec::Eal { arguments } => {
            eal.extra = arguments.split_whitespace().map(str::to_owned).collect();
        }
        _ => {}
    }
    let started = match Eal::init(&eal) {
        // EAL already runs with other arguments: the device can still be hotplugged.
        Err(dpdk_sys::Error::EalArgumentsDiffer) if hotplug_device(spec).is_some() => {
            Eal::init(&EalConfig::default())
        }
        started => started,
    };
    let eal = started.map_err(DeviceError::Environment)?;
    LOGGED.call_once(|| {
        if eal.memory() == Memory::Ordinary {
            tracing::info!("no huge pages: frames lie in ordinary memory");
        }
    });
    Ok(eal)
}

/// Bus, name and driver arguments of the device to hotplug if EAL was started without it.
fn hotplug_device(spec: &DeviceSpec) -> Option<(Bus, &str, &str)> {
    match spec {
        DeviceSpec::Eal { arguments } => single_device(arguments),
        _ => None,
    }
}

/// An attached port and the properties of its driver that its configuration depends on.
struct PortProfile {
    port: Port,
    /// Receive and transmit descriptors that hold mbufs.
    descriptors: (u16, u16),
    /// Bytes of frame the driver requires in a receive buffer, whatever the MTU.
    rx_buf_size_min: u16,
    /// The port may be a NIC, which counts the receive buffer size in units of
    /// [`NIC_BUF_STEP`].
    is_nic: bool,
    /// The port has a settable MTU.
    sets_mtu: bool,
    /// The link is shared memory, so checksums may be omitted.
    is_shared_memory: bool,
    /// Kernel interface behind the port, whose MTU is set here.
    kernel_netdev: Option<String>,
}

/// Returns a unique name for a virtual device: driver name and serial number.
fn device_name(driver: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{driver}_fw{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn attach(eal: Eal, spec: &DeviceSpec, config: &OpenConfig) -> Result<PortProfile, DeviceError> {
    let device = || spec.to_string();
    let plug = |driver: &'static str, arguments: &str, capability: &'static Capability| {
        eal.hotplug_add(Bus::Virtual, &device_name(driver), arguments)
            .map_err(|error| map_plug_error(spec, driver, capability, error))
    };
    let plain = |port, descriptors| PortProfile {
        port,
        descriptors,
        rx_buf_size_min: 0,
        is_nic: false,
        sets_mtu: false,
        is_shared_memory: false,
        kernel_netdev: None,
    };
    match spec {
        DeviceSpec::Ring => Err(DeviceError::NoPort { device: device() }),
        DeviceSpec::Memif { socket, role } => {
            let room = config.pools.sizes(config.mtu, 0, 0).frame_capacity;
            let (port, _role) = memif::attach(spec, socket, *role, room, |arguments| {
                eal.hotplug_add(Bus::Virtual, &device_name(memif::DRIVER), arguments)
            })?;
            Ok(PortProfile { is_shared_memory: true, ..plain(port, (0, 0)) })
        }
        DeviceSpec::Tap { name } => {
            check_tap(spec, name)?;
            let port = plug("net_tap", &format!("iface={name}"), &NET_ADMIN)?;
            // One packet per system call: descriptors only hold the segments of one frame.
            let pieces = if config.rx_buf_size.is_some() { 64 } else { 8 };
            Ok(PortProfile { kernel_netdev: Some(name.clone()), ..plain(port, (pieces, 8)) })
        }
        DeviceSpec::AfPacket { interface } => {
            check_interface(spec, interface, config.mtu.min(AF_PACKET_MTU_MAX))?;
            if config.mtu > AF_PACKET_MTU_MAX {
                let max = u32::from(AF_PACKET_MTU_MAX);
                return Err(DeviceError::MtuTooLarge { device: device(), mtu: config.mtu, max });
            }
            let (arguments, slot) = af_packet_arguments(interface, config.mtu);
            let port = plug("net_af_packet", &arguments, &NET_RAW)?;
            // The driver requires that a whole slot of its ring fits a buffer.
            Ok(PortProfile { rx_buf_size_min: slot, ..plain(port, (0, 0)) })
        }
        DeviceSpec::AfXdp { interface } => {
            check_interface(spec, interface, config.mtu)?;
            if eal.memory() == Memory::Ordinary {
                // The kernel accepts the driver's unaligned buffers in huge pages only: without
                // them the port opens but carries no frames.
                return Err(DeviceError::NeedsHugepages { device: device() });
            }
            let port = plug("net_af_xdp", &format!("iface={interface}"), &NET_RAW)?;
            // The driver posts a whole fill ring at once. The kernel accepts no smaller buffers.
            let rx_buf_size_min = 2048;
            Ok(PortProfile { sets_mtu: true, rx_buf_size_min, ..plain(port, (2048, 2048)) })
        }
        DeviceSpec::Pci { address } => {
            let card = Path::new("/sys/bus/pci/devices").join(address);
            if !card.exists() {
                return Err(DeviceError::NoCard { device: device() });
            }
            if !card.join("driver").exists() {
                return Err(DeviceError::UnboundCard { device: device() });
            }
            let port = eal
                .hotplug_add(Bus::Pci, address, "")
                .map_err(|source| DeviceError::Port { device: device(), source })?;
            Ok(PortProfile { sets_mtu: true, is_nic: true, ..plain(port, (512, 512)) })
        }
        DeviceSpec::Port { name } => {
            let port =
                eal.own_port(name).map_err(|_| DeviceError::NoHostPort { device: device() })?;
            Ok(PortProfile { is_nic: true, ..plain(port, (512, 512)) })
        }
        DeviceSpec::Eal { arguments } => {
            let port = match hotplug_device(spec) {
                Some((bus, name, rest)) if !eal.was_started_with(arguments.split_whitespace()) => {
                    eal.hotplug_add(bus, name, rest)
                        .map_err(|source| DeviceError::Port { device: device(), source })?
                }
                _ => eal.next_port().map_err(|_| DeviceError::NoPort { device: device() })?,
            };
            Ok(PortProfile { is_nic: true, ..plain(port, (512, 512)) })
        }
    }
}

fn open_one(eal: Eal, spec: &DeviceSpec, config: &OpenConfig) -> Result<DpdkDevice, DeviceError> {
    let device = || spec.to_string();
    let kind = attach(eal, spec, config)?;
    let error = |source| match source {
        dpdk_sys::Error::MtuTooLarge { max } => {
            DeviceError::MtuTooLarge { device: device(), mtu: config.mtu, max: u32::from(max) }
        }
        source => DeviceError::Port { device: device(), source },
    };
    let info = kind.port.info().map_err(error)?;
    let checksum = match config.checksum {
        None => ChecksumMode::Software,
        Some(ChecksumMode::NotNeeded) if !kind.is_shared_memory => {
            return Err(DeviceError::ChecksumNeeded { device: device() });
        }
        // `net_tap` claims the offload too, but computes checksums in software after a copy.
        Some(ChecksumMode::Offload)
            if !(info.tx_checksum && info.rx_checksum) || info.driver == "net_tap" =>
        {
            return Err(DeviceError::NoChecksumOffload { device: device() });
        }
        Some(mode) => mode,
    };
    let (rx_descriptors, tx_descriptors) = kind.descriptors;
    let sizes = config.pools.sizes(config.mtu, rx_descriptors, tx_descriptors);
    let whole = if kind.is_nic { nic_buf_size(sizes.frame_capacity) } else { sizes.frame_capacity };
    let rx_buf_size = config.rx_buf_size.map_or(whole, |room| room.min(sizes.frame_capacity));
    let rx_buf_size = rx_buf_size.max(kind.rx_buf_size_min).max(FIRST_SEGMENT_LEN_MIN);
    let (pools, receive) = net_ring::pools(eal, &sizes, rx_buf_size).map_err(error)?;
    let port = PortConfig {
        rx_descriptors: rx_descriptors.max(8),
        tx_descriptors: tx_descriptors.max(8),
        pools: vec![receive],
        mtu: kind.sets_mtu.then_some(config.mtu),
        scatter: rx_buf_size < sizes.frame_capacity,
        promiscuous: true,
        checksum: checksum == ChecksumMode::Offload,
    };
    let mut queues = kind.port.start(&port).map_err(error)?;
    let queue = queues.pop().ok_or_else(|| DeviceError::NoPort { device: device() })?;
    if let Some(name) = &kind.kernel_netdev
        && config.mtu != 1500
    {
        netif::set_mtu(name, config.mtu).map_err(|source| DeviceError::KernelMtu {
            device: device(),
            mtu: config.mtu,
            source,
        })?;
    }
    let mac = stack_mac(info.mac, &info.driver);
    let send_mtu = config.mtu.min(send_mtu_max(&info.driver));
    if send_mtu < config.mtu {
        tracing::info!(
            "{spec} receives packets of {} octets and sends {send_mtu} at most",
            config.mtu
        );
    }
    let capabilities = Capabilities { mac, mtu: config.mtu, send_mtu, checksum };
    Ok(DpdkDevice::new(queue, pools, config.tx_queue(), capabilities, device()))
}

/// Unit, in bytes, in which many NICs (igb, ixgbe and relatives) count the receive buffer size.
/// They round down; a frame longer than the rounded size arrives in several segments.
const NIC_BUF_STEP: u16 = 1024;

/// Returns the receive buffer size with which a NIC receives frames of `room` bytes in one segment.
fn nic_buf_size(room: u16) -> u16 {
    let whole = room.checked_next_multiple_of(NIC_BUF_STEP);
    whole.filter(|whole| whole.checked_add(HEADROOM).is_some()).unwrap_or(room)
}

/// Returns the stack's MAC address.
///
/// `net_tap` gives the kernel's interface the port's own address. ARP never resolves between two
/// hosts with the same address, so the stack takes one that differs in the last bit.
fn stack_mac(port: [u8; 6], driver: &str) -> [u8; 6] {
    if port == [0; 6] {
        return net_ring::next_local_mac();
    }
    let [first, b, c, d, e, last] = port;
    if driver == "net_tap" {
        // Locally administered, unicast.
        [(first | 0x02) & 0xfe, b, c, d, e, last ^ 0x01]
    } else {
        port
    }
}

/// Returns the size, in bytes, of the largest IP packet a driver sends.
///
/// `net_tap` receives whatever its interface carries, but stops sending at a frame above the MTU
/// it was started with, and that MTU cannot be raised.
fn send_mtu_max(driver: &str) -> u16 {
    if driver == "net_tap" { 1500 } else { u16::MAX }
}

fn check_tap(spec: &DeviceSpec, name: &str) -> Result<(), DeviceError> {
    let device = || spec.to_string();
    let tun = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun");
    if let Err(source) = tun {
        return Err(DeviceError::NoTun { device: device(), source });
    }
    if netif::exists(name) {
        return Err(DeviceError::InterfaceExists { device: device(), name: name.to_owned() });
    }
    NET_ADMIN.check(&device())
}

fn check_interface(spec: &DeviceSpec, name: &str, mtu: u16) -> Result<(), DeviceError> {
    let device = || spec.to_string();
    if !netif::exists(name) {
        return Err(DeviceError::NoInterface { device: device(), name: name.to_owned() });
    }
    NET_RAW.check(&device())?;
    let max = netif::mtu(name).unwrap_or(0);
    if u32::from(mtu) > max {
        return Err(DeviceError::MtuTooLarge { device: device(), mtu, max });
    }
    Ok(())
}

/// Largest MTU whose slot size in the kernel's ring, a power of two, fits in 16 bits.
const AF_PACKET_MTU_MAX: u16 = 32_000;

/// Returns `net_af_packet`'s arguments and the slot size in bytes. Slot sizes are powers of two,
/// and blocks are whole pages.
fn af_packet_arguments(interface: &str, mtu: u16) -> (String, u16) {
    /// Bytes of a frame's header in the kernel's ring (`TPACKET2_HDRLEN`), rounded up.
    const RING_HEADER: u16 = 128;
    /// Bytes of the ring per direction.
    const RING_BYTES: u32 = 2 << 20;
    let slot = (mtu + 32 + RING_HEADER).next_power_of_two().max(2048);
    let block = slot.max(4096);
    let count = (RING_BYTES / u32::from(slot)).max(64);
    (format!("iface={interface},blocksz={block},framesz={slot},framecnt={count}"), slot)
}

/// A Linux capability and its bit in the sets of /proc.
struct Capability {
    name: &'static str,
    bit: u32,
}

const NET_ADMIN: Capability = Capability { name: "CAP_NET_ADMIN", bit: 12 };
const NET_RAW: Capability = Capability { name: "CAP_NET_RAW", bit: 13 };

impl Capability {
    /// True if the capability is effective in the calling thread, or if /proc cannot be read: the
    /// driver then reports the failure.
    fn is_effective(&self) -> bool {
        let Ok(status) = std::fs::read_to_string("/proc/thread-self/status") else { return true };
        let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        set.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
            .is_none_or(|set| set & (1 << self.bit) != 0)
    }

    fn check(&self, device: &str) -> Result<(), DeviceError> {
        if self.is_effective() {
            return Ok(());
        }
        Err(DeviceError::NoPermission { device: device.to_owned(), capability: self.name })
    }
}

/// Maps a driver's failure to its most likely cause: drivers return a bare -1 for all of them.
fn map_plug_error(
    spec: &DeviceSpec,
    driver: &'static str,
    capability: &Capability,
    error: dpdk_sys::Error,
) -> DeviceError {
    let device = spec.to_string();
    match error {
        dpdk_sys::Error::NoDriver => no_driver(device, driver),
        _ if !capability.is_effective() => {
            DeviceError::NoPermission { device, capability: capability.name }
        }
        source => DeviceError::Port { device, source },
    }
}

pub(super) fn no_driver(device: String, driver: &'static str) -> DeviceError {
    DeviceError::NoDriver { device, driver, package: driver.replace('_', "-") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nic_buffer_in_steps_of_1024_holds_a_full_frame() {
        for mtu in (MTU_MIN..=MTU_MAX).step_by(61).chain([1500, 9000]) {
            let room = PoolNeeds::default().sizes(mtu, 512, 512).frame_capacity;
            let card = nic_buf_size(room);
            assert!(card >= room && card.checked_add(HEADROOM).is_some(), "MTU {mtu}");
            let counted = card / NIC_BUF_STEP * NIC_BUF_STEP;
            assert!(counted >= mtu + 18 || mtu > 64_000, "MTU {mtu}: {counted}");
        }
        assert_eq!(nic_buf_size(PoolNeeds::default().sizes(1500, 512, 512).frame_capacity), 2048);
    }
}
