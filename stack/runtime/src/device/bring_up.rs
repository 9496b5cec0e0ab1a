//! Opens devices: starts EAL, attaches the port that a [`DeviceSpec`] names, configures it as its
//! driver requires, and starts it.

use std::sync::{Arc, Once};

use dpdk_sys::{Eal, EalConfig, Memory, Port, PortConfig, netif, ring_pair};
use ferrowarp_proto::device::Capabilities;

use crate::device::attach::{Attachment, PeerQueues, attach};
use crate::device::device_error::DeviceError;
use crate::device::facts::PortFacts;
use crate::device::host_port;
use crate::device::link::interface_of;
use crate::device::mbuf_cache::create_pools;
use crate::device::memif;
use crate::device::offload::PortOffloads;
use crate::device::open_config::OpenConfig;
use crate::device::pci;
use crate::device::pools::{FIRST_SEGMENT_LEN_MIN, MTU_MAX, MTU_MIN};
use crate::device::port::DpdkDevice;
use crate::device::quirks::{DriverQuirks, MtuBy, RxInterrupts, SteeringBy};
use crate::device::raw::RawPort;
use crate::device::spec::DeviceSpec;
use crate::device::steering::Steering;
use crate::device::vhost;

/// Slots of `ring`, at most: 8 MiB for each direction.
const RING_SLOTS_MAX: u32 = 1 << 20;

/// Result of [`open`]: the queue pairs of each port, in order.
#[derive(Debug)]
pub enum Opened {
    /// One port, whose link partner is not opened here.
    One(Vec<DpdkDevice>),
    /// Two ports connected to each other (`ring`).
    Pair(Vec<DpdkDevice>, Vec<DpdkDevice>),
}

impl Opened {
    /// Returns the device, if it is a single one: one port with one queue pair.
    #[must_use]
    pub fn into_single(self) -> Option<DpdkDevice> {
        match self {
            Self::One(devices) => only(devices),
            Self::Pair(..) => None,
        }
    }

    /// Returns two connected devices, if they are two ports with one queue pair each.
    #[must_use]
    pub fn into_pair(self) -> Option<(DpdkDevice, DpdkDevice)> {
        match self {
            Self::One(_) => None,
            Self::Pair(first, second) => only(first).zip(only(second)),
        }
    }
}

/// Returns the element of a vector of one.
fn only(devices: Vec<DpdkDevice>) -> Option<DpdkDevice> {
    <[DpdkDevice; 1]>::try_from(devices).ok().map(|[device]| device)
}

/// Opens the device that `spec` names, with [`OpenConfig::queues`] queue pairs; initializes EAL if
/// it does not run.
///
/// A client of memif waits for its server, at most 1 s, if it has several queues: a server with
/// fewer disconnects it, so it then offers one less, until the server accepts; the last devices
/// are without a wire ([`DpdkDevice::has_wire`]). So are those of `virtio-user` whose queues the
/// back end does not poll; with several it takes up to 3 s to find out.
///
/// Takes up to 0.3 s the first time. Interfaces are looked up in the network namespace of the
/// calling thread. Everything created here is removed when the last device of its port is
/// dropped.
///
/// # Errors
/// See [`DeviceError`]: each message is one line and names a remedy.
pub fn open(spec: &DeviceSpec, config: &OpenConfig) -> Result<Opened, DeviceError> {
    for mtu in [config.mtu, config.effective_hairpin_mtu()] {
        if !(MTU_MIN..=MTU_MAX).contains(&mtu) {
            return Err(DeviceError::BadMtu { mtu, min: MTU_MIN, max: MTU_MAX });
        }
    }
    config.pools.check(config.mtu)?;
    let config = &OpenConfig {
        queues: config.queues.max(1),
        pools: config.pools.of_queue(config.queues, spec.is_pair()),
        ..config.clone()
    };
    if let DeviceSpec::HostPort(host) = spec {
        return host_port::open(host, spec, config).map(Opened::One);
    }
    let DeviceSpec::Pci { address } = spec else { return open_port(spec, config) };
    let probe = pci::Probe::begin(spec, address, config.hugepages)?;
    open_port(spec, config).map_err(|error| probe.explain(error))
}

/// Starts EAL, and opens a port in it.
fn open_port(spec: &DeviceSpec, config: &OpenConfig) -> Result<Opened, DeviceError> {
    let eal = start_eal(spec, config)?;
    let start =
        |port, name, (wired, joins)| start_port(eal, port, spec, config, name, (wired, joins));
    if spec.is_pair() {
        let driver = spec.driver().unwrap_or_default();
        DriverQuirks::of(driver).check_queues(spec, config.queues, None)?;
        let slots = config.ring_slots;
        if !(slots.is_power_of_two() && (2..=RING_SLOTS_MAX).contains(&slots)) {
            return Err(DeviceError::RingSlots { slots, max: RING_SLOTS_MAX });
        }
        let (first, second) = ring_pair(eal, config.queues, config.ring_slots)
            .map_err(|source| DeviceError::Port { device: spec.to_string(), source })?;
        let first = start(first, "ring:0", (config.queues, false))?;
        return Ok(Opened::Pair(first, start(second, "ring:1", (config.queues, false))?));
    }
    let name = spec.to_string();
    DriverQuirks::of(spec.driver().unwrap_or_default()).check_queues(spec, config.queues, None)?;
    let may_be_refused = matches!(spec, DeviceSpec::Memif { .. });
    let mut wired = config.queues;
    loop {
        let attempt = (may_be_refused && wired > 1).then(memif::Attempt::begin);
        let Attachment { port, queues } =
            attach(eal, spec, &OpenConfig { queues: wired, ..config.clone() })?;
        let mut devices = start(port, &name, (wired, queues != PeerQueues::NotAsked))?;
        let accepted = match queues {
            PeerQueues::Refused => {
                let is_refused = attempt
                    .zip(devices.first())
                    .is_some_and(|(attempt, first)| attempt.is_refused(first));
                wired - u16::from(is_refused)
            }
            PeerQueues::Polled if wired > 1 => {
                vhost::polled_queues(&mut devices[..usize::from(wired)])
            }
            PeerQueues::Polled | PeerQueues::NotAsked => wired,
        };
        if accepted == wired {
            return Ok(Opened::One(devices));
        }
        tracing::info!("{spec}: the link partner has fewer than {wired} queues");
        wired = accepted;
    }
}

/// Opens one queue pair of the device that `spec` names as a port without a stack. Frames can be
/// kept up to the size of the receive pool, which follows from [`OpenConfig::pools`].
///
/// # Errors
/// As [`open`]; `ring` is an error, because it connects two devices of one process.
pub fn open_raw(spec: &DeviceSpec, config: &OpenConfig) -> Result<RawPort, DeviceError> {
    if spec.is_pair() {
        let reason = "it connects two devices of one process: name another port";
        return Err(DeviceError::BadSpec { text: spec.to_string(), reason });
    }
    let device = open(spec, &OpenConfig { queues: 1, ..config.clone() })?.into_single();
    device.map(DpdkDevice::into_raw).ok_or_else(|| DeviceError::NoPort { device: spec.to_string() })
}

fn start_eal(spec: &DeviceSpec, config: &OpenConfig) -> Result<Eal, DeviceError> {
    static LOGGED: Once = Once::new();
    let mut eal = EalConfig::default();
    eal.hugepages = config.hugepages;
    eal.log_level = config.log_level;
    match spec {
        DeviceSpec::Pci { address } => eal.pci.push(address.clone()),
        DeviceSpec::Eal { arguments } => {
            eal.extra = arguments.split_whitespace().map(str::to_owned).collect();
        }
        _ => {}
    }
    let started = match Eal::init(&eal) {
        // EAL already runs with other arguments: the device can still be hotplugged.
        Err(dpdk_sys::Error::EalArgumentsDiffer) if spec.hotplug_device().is_some() => {
            Eal::init(&EalConfig::default())
        }
        started => started,
    };
    let eal = started.map_err(DeviceError::Environment)?;
    LOGGED.call_once(|| {
        if eal.memory() == Memory::Ordinary {
            tracing::info!("no hugepages: frames lie in ordinary memory");
        }
    });
    Ok(eal)
}

/// Configures an attached port as its driver requires, starts it, and returns its queue pairs in
/// order. Those from the number `wired` on are not configured. `joins_process`: a process at the
/// other end was there before.
fn start_port(
    eal: Eal,
    port: Port,
    spec: &DeviceSpec,
    config: &OpenConfig,
    name: &str,
    (wired, joins_process): (u16, bool),
) -> Result<Vec<DpdkDevice>, DeviceError> {
    let error = |source| match source {
        dpdk_sys::Error::MtuTooLarge { max } => {
            let (device, mtu) = (spec.to_string(), config.mtu);
            DeviceError::MtuTooLarge { device, mtu, max: u32::from(max) }
        }
        source => DeviceError::Port { device: spec.to_string(), source },
    };
    let info = port.info().map_err(error)?;
    let quirks = DriverQuirks::of(&info.driver);
    quirks.check_memory(spec, eal.memory())?;
    quirks.check_mtu(spec, config.mtu)?;
    quirks.check_queues(spec, wired, Some(info.max_queues))?;
    let (rx_descriptors, tx_descriptors) = quirks.descriptors(config.rx_buf_size.is_some());
    let sizes = if quirks.rx_shares_sender_mbufs {
        config.pools.ring_sizes(config.mtu)
    } else {
        config.pools.sizes(config.mtu, rx_descriptors, tx_descriptors)
    };
    let rx_buf_size = quirks
        .rx_buf_size(config.mtu, sizes.frame_capacity, config.rx_buf_size)
        .max(FIRST_SEGMENT_LEN_MIN);
    let is_scattered = rx_buf_size < sizes.frame_capacity;
    let sizes = sizes.with_room_for(config.tx_mtu());
    let pools = (0..config.queues).map(|_| create_pools(eal, &sizes, rx_buf_size));
    let (pools, receive): (Vec<_>, Vec<_>) =
        pools.collect::<Result<Vec<_>, _>>().map_err(error)?.into_iter().unzip();
    quirks.check_memory_files(spec, eal)?;
    let has_rss = config.queues > 1 && info.rss && quirks.steering == SteeringBy::Port;
    let offloads = PortOffloads::select(spec, config, quirks, &info, (is_scattered, has_rss))?;
    let port_config = PortConfig {
        tx_free_thresh: quirks.tx_free_thresh,
        socket: match spec {
            DeviceSpec::Vhost { socket } => Some(socket.into()),
            _ => None,
        },
        rx_descriptors: rx_descriptors.max(8),
        tx_descriptors: tx_descriptors.max(8),
        pools: receive,
        wired,
        mtu: (quirks.mtu_by == MtuBy::Ethdev).then_some(config.mtu),
        promiscuous: true,
        offloads: offloads.wanted,
        rss: has_rss,
        rx_interrupts: match quirks.rx_interrupts {
            RxInterrupts::None => false,
            RxInterrupts::Free => true,
            RxInterrupts::OnRequest => config.rx_interrupts,
        },
    };
    let queues = port.start(&port_config).map_err(error)?;
    let Some((rx, _)) = queues.first() else {
        return Err(DeviceError::NoPort { device: spec.to_string() });
    };
    let steering = Arc::new(Steering::of(quirks, rx, config.queues));
    if quirks.mtu_by == MtuBy::KernelNetdev && config.mtu != 1500 {
        netif::name(info.if_index).and_then(|netdev| netif::set_mtu(&netdev, config.mtu)).map_err(
            |source| DeviceError::KernelMtu { device: spec.to_string(), mtu: config.mtu, source },
        )?;
    }
    let mac = quirks.mac.stack_mac(info.mac);
    let send_mtu = config.mtu.min(quirks.send_mtu_max);
    if send_mtu < config.mtu {
        tracing::info!(
            "{spec} receives packets of {} bytes and sends {send_mtu} at most",
            config.mtu
        );
    }
    let capabilities = Capabilities {
        mac,
        mtu: config.mtu,
        send_mtu,
        checksum: offloads.checksum,
        hairpin_mtu: config.effective_hairpin_mtu(),
        tso_segments_max: offloads.tso_segments_max,
    };
    let tx_queue = config.pools.tx_queue as usize;
    let interface = interface_of(quirks.link, info.if_index, name);
    let port = PortFacts {
        capabilities,
        quirks,
        steering,
        name: name.to_owned(),
        interface,
        joins_process,
    };
    let devices = (0..).zip(queues).zip(pools);
    Ok(devices
        .map(|(queue, pools)| DpdkDevice::new(queue, pools, tx_queue, port.clone()))
        .collect())
}
