//! Attaches the port that a [`DeviceSpec`] names: the checks before it has a driver, and the
//! driver's arguments.

use std::sync::atomic::{AtomicU32, Ordering};

use dpdk_sys::{Bus, Eal, Port, netif};

use crate::device::capability::{Capability, NET_ADMIN, NET_RAW};
use crate::device::device_error::DeviceError;
use crate::device::memif;
use crate::device::open_config::OpenConfig;
use crate::device::quirks::{DriverQuirks, af_packet_slot};
use crate::device::spec::{DeviceSpec, MemifRole};
use crate::device::vhost;

/// Returns a unique name for a virtual device: driver name and serial number.
fn device_name(driver: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{driver}_fw{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A port that is attached, but not configured.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) port: Port,
    pub(super) queues: PeerQueues,
}

/// Way to find the number of the link partner's queues, which may be fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerQueues {
    /// Not needed, or reported by events.
    NotAsked,
    /// A memif server disconnects a client with more.
    Refused,
    /// A vhost back end does not poll the others.
    Polled,
}

/// Attaches the port of a device that is no pair.
pub(super) fn attach(
    eal: Eal,
    spec: &DeviceSpec,
    config: &OpenConfig,
) -> Result<Attachment, DeviceError> {
    let device = || spec.to_string();
    let driver = spec.driver().unwrap_or_default();
    let quirks = DriverQuirks::of(driver);
    quirks.check_queues(spec, config.queues, None)?;
    let plug = |arguments: &str, capability: Option<&'static Capability>| {
        eal.hotplug_add(Bus::Virtual, &device_name(driver), arguments)
            .map_err(|error| map_plug_error(spec, driver, capability, error))
    };
    let port = match spec {
        // Not opened by attaching a port.
        DeviceSpec::Ring | DeviceSpec::HostPort(_) => Err(DeviceError::NoPort { device: device() }),
        DeviceSpec::Memif { socket, role } => {
            let frame_capacity = config.pools.sizes(config.mtu, 0, 0).frame_capacity;
            let plug =
                |arguments: &str| eal.hotplug_add(Bus::Virtual, &device_name(driver), arguments);
            return memif::attach(spec, socket, *role, frame_capacity, driver, plug).map(
                |(port, role)| {
                    let is_client = role == MemifRole::Client;
                    let queues = if is_client { PeerQueues::Refused } else { PeerQueues::NotAsked };
                    Attachment { port, queues }
                },
            );
        }
        DeviceSpec::Vhost { socket } => {
            vhost::attach_back_end(spec, socket, config.queues, |rest| plug(rest, None))
        }
        DeviceSpec::VirtioUser { socket } => {
            let plug = |rest: &str| plug(rest, None);
            return vhost::attach_virtio(eal, spec, socket, config.queues, plug)
                .map(|port| Attachment { port, queues: PeerQueues::Polled });
        }
        DeviceSpec::Tap { name } => {
            check_tap(spec, name)?;
            plug(&format!("iface={name}"), Some(&NET_ADMIN))
        }
        DeviceSpec::AfPacket { interface } => {
            check_interface(spec, interface, config.mtu.min(quirks.mtu_max))?;
            quirks.check_mtu(spec, config.mtu)?;
            plug(&af_packet_arguments(interface, config), Some(&NET_RAW))
        }
        DeviceSpec::AfXdp { interface } => {
            check_interface(spec, interface, config.mtu)?;
            quirks.check_memory(spec, eal.memory())?;
            // The driver counts an interface without this information as one with a single queue.
            let max = netif::max_queue_pairs(interface).unwrap_or(1);
            quirks.check_queues(spec, config.queues, u16::try_from(max).ok())?;
            plug(&format!("iface={interface},queue_count={}", config.queues), Some(&NET_RAW))
        }
        // What can be known before is checked before EAL starts (`pci.rs`).
        DeviceSpec::Pci { address } => eal
            .hotplug_add(Bus::Pci, address, "")
            .map_err(|source| DeviceError::Port { device: device(), source }),
        DeviceSpec::Port { name } => {
            eal.own_port(name).map_err(|_| DeviceError::NoHostPort { device: device() })
        }
        DeviceSpec::Eal { arguments } => match spec.hotplug_device() {
            Some((bus, name, rest)) if !eal.was_started_with(arguments.split_whitespace()) => eal
                .hotplug_add(bus, name, rest)
                .map_err(|source| DeviceError::Port { device: device(), source }),
            _ => eal.next_port().map_err(|_| DeviceError::NoPort { device: device() }),
        },
    };
    port.map(|port| Attachment { port, queues: PeerQueues::NotAsked })
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
    if NET_ADMIN.is_effective() { Ok(()) } else { Err(NET_ADMIN.missing(device())) }
}

fn check_interface(spec: &DeviceSpec, name: &str, mtu: u16) -> Result<(), DeviceError> {
    let device = || spec.to_string();
    if !netif::exists(name) {
        return Err(DeviceError::NoInterface { device: device(), name: name.to_owned() });
    }
    if !NET_RAW.is_effective() {
        return Err(NET_RAW.missing(device()));
    }
    let max = netif::mtu(name).unwrap_or(0);
    if u32::from(mtu) > max {
        return Err(DeviceError::MtuTooLarge { device: device(), mtu, max });
    }
    Ok(())
}

/// Returns `net_af_packet`'s arguments. Blocks are whole pages.
fn af_packet_arguments(interface: &str, config: &OpenConfig) -> String {
    /// Bytes of the ring per direction and queue.
    const RING_BYTES: u32 = 2 << 20;
    let slot = af_packet_slot(config.mtu);
    let queues = config.queues;
    let block = slot.max(4096);
    let count = (RING_BYTES / u32::from(slot)).max(64);
    format!("iface={interface},qpairs={queues},blocksz={block},framesz={slot},framecnt={count}")
}

/// Maps a driver's failure to its most likely cause: drivers return a bare -1 for all of them.
fn map_plug_error(
    spec: &DeviceSpec,
    driver: &'static str,
    capability: Option<&Capability>,
    error: dpdk_sys::Error,
) -> DeviceError {
    let device = spec.to_string();
    match (error, capability) {
        (dpdk_sys::Error::NoDriver, _) => DeviceError::no_driver(device, driver),
        (_, Some(capability)) if !capability.is_effective() => capability.missing(device),
        (source, _) => DeviceError::Port { device, source },
    }
}
