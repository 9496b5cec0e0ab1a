//! Ports: attached, configured, started, and closed after their last queue is dropped.

use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::sync::Arc;

use crate::attached::{Attached, Driver, driver_name, own};
use crate::eal::{Eal, control_lock};
use crate::error::{Errno, Error, check};
use crate::memif_disconnect;
use crate::mempool::{Mempool, RxPool};
use crate::offload::Offloads;
use crate::queue::{self, RxQueue, TxQueue};
use crate::rx_intr::PacketSockets;
use crate::{fd, rss, sys, vhost_state};

/// Bus of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bus {
    /// Virtual devices, implemented in software.
    Virtual,
    /// PCI devices.
    Pci,
}

impl Bus {
    pub(crate) fn name(self) -> &'static CStr {
        match self {
            Self::Virtual => c"vdev",
            Self::Pci => c"pci",
        }
    }
}

/// Properties of a port.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PortInfo {
    /// Name of its driver.
    pub driver: String,
    /// MAC address.
    pub mac: [u8; 6],
    /// Largest settable MTU, in bytes of IP packet.
    pub max_mtu: u16,
    /// Offloads that it offers.
    pub offloads: Offloads,
    /// Largest number of queue pairs.
    pub max_queues: u16,
    /// Most mbufs in the chain of a frame that it sends.
    pub tx_segments_max: u16,
    /// RSS over TCP's four-tuple, of IPv4 at least, with a redirection table.
    pub rss: bool,
    /// Index of the kernel's network interface behind the port; 0 if there is none.
    pub if_index: u32,
}

/// Configuration of a port.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Receive descriptors per queue; the port may round.
    pub rx_descriptors: u16,
    /// Transmit descriptors per queue; the port may round.
    pub tx_descriptors: u16,
    /// Descriptors of a transmit queue that must be free, or else sent frames are freed; `None`:
    /// the driver's default.
    pub tx_free_thresh: Option<u16>,
    /// Mempool of each receive queue; their number is the number of queue pairs.
    pub pools: Vec<Mempool>,
    /// Number of queue pairs to configure, if fewer: the last ones then have no wire
    /// ([`RxQueue::has_wire`]).
    pub wired: u16,
    /// MTU to set, in bytes; `None` for ports whose MTU cannot be set.
    pub mtu: Option<u16>,
    /// Promiscuous mode: receive frames for any MAC address.
    pub promiscuous: bool,
    /// Offloads, all of which the port offers, or [`Error::PortConfigure`].
    pub offloads: Offloads,
    /// Socket that the port serves: not inherited by programs that the process executes, nor are
    /// its connections.
    pub socket: Option<PathBuf>,
    /// RSS over IP addresses and TCP ports, as far as the port has it ([`PortInfo::rss`]); the key
    /// and the redirection table are the driver's ([`RxQueue::rss_config`]).
    pub rss: bool,
    /// Receive interrupts ([`RxQueue::interrupt`]), if the driver accepts them.
    pub rx_interrupts: bool,
}

impl PortConfig {
    /// Returns the number of queue pairs to configure.
    fn wired(&self) -> u16 {
        self.wired.min(u16::try_from(self.pools.len()).unwrap_or(u16::MAX))
    }
}

/// A port that is attached but not configured. Dropping it detaches it.
#[derive(Debug)]
pub struct Port(pub(crate) Attached);

impl Eal {
    /// Hotplugs a device and returns its port. PCI devices need not be named when EAL is started.
    /// In an EAL that the program started, a device that is attached already is used as it is.
    ///
    /// `name` is the driver's name with a suffix for [`Bus::Virtual`] (`net_tap_x`) and an address
    /// for [`Bus::Pci`]; `arguments` are the driver's `key=value,...`.
    ///
    /// # Errors
    /// [`Error::NoDriver`] if no driver claims the name; [`Error::Hotplug`] with the driver's
    /// error; [`Error::NoPort`] if the device has no port or the port has an owner.
    pub fn hotplug_add(self, bus: Bus, name: &str, arguments: &str) -> Result<Port, Error> {
        let name = CString::new(name).map_err(|_| Error::BadName)?;
        let arguments = CString::new(arguments).map_err(|_| Error::BadName)?;
        let _control = control_lock();
        if bus == Bus::Virtual && !driver_exists(&name) {
            return Err(Error::NoDriver);
        }
        if self.is_external()
            && let Some(id) = port_id_by_name(&name)
        {
            // Attached by the program, so it stays attached when the port is closed.
            let port = own(id).then(|| Port(Attached::new(id, None)));
            return port.ok_or(Error::NoPort);
        }
        let (name_c, arguments) = (name.as_ptr(), arguments.as_ptr());
        let sockets = name.to_bytes().starts_with(b"net_af_packet").then(PacketSockets::now);
        // EAL puts its arguments in a message to secondary processes, even if there can be none,
        // and 24.11 refuses more than 127 bytes: too few for the path of a socket.
        let status = match bus {
            // SAFETY: EAL runs (`self`), two strings that live through the call, and no other
            // control call is in progress.
            Bus::Virtual => unsafe { sys::rte_vdev_init(name_c, arguments) },
            // SAFETY: as above, and the name of a bus.
            Bus::Pci => unsafe { sys::rte_eal_hotplug_add(bus.name().as_ptr(), name_c, arguments) },
        };
        if status != 0 {
            return Err(Error::Hotplug(Errno::from_return(status)));
        }
        match port_id_by_name(&name) {
            Some(id) if own(id) => {
                let mut port = Attached::new(id, Some((bus.name(), name)));
                if let (Some(before), Ok(info)) = (sockets, port.raw_info()) {
                    let queues = usize::from(info.max_rx_queues);
                    port.packet_sockets = before.opened_since(info.if_index, queues);
                }
                Ok(Port(port))
            }
            // It was attached before and has an owner.
            Some(_) => Err(Error::NoPort),
            None => {
                // SAFETY: as for `rte_eal_hotplug_add`.
                unsafe { sys::rte_eal_hotplug_remove(bus.name().as_ptr(), name.as_ptr()) };
                Err(Error::NoPort)
            }
        }
    }

    /// Takes ownership of the port of this name, which EAL's arguments or the program that started
    /// EAL have attached. The port is closed when its last queue is dropped; the device stays
    /// attached.
    ///
    /// # Errors
    /// [`Error::NoPort`] if there is none of that name, or it has an owner.
    pub fn own_port(self, name: &str) -> Result<Port, Error> {
        let name = CString::new(name).map_err(|_| Error::BadName)?;
        let _control = control_lock();
        let id = port_id_by_name(&name).filter(|&id| own(id)).ok_or(Error::NoPort)?;
        Ok(Port(Attached::new(id, None)))
    }

    /// Takes ownership of the first port without an owner, attached by EAL's arguments.
    ///
    /// # Errors
    /// [`Error::NoPort`] if there is none.
    pub fn next_port(self) -> Result<Port, Error> {
        let _control = control_lock();
        let mut id = 0;
        loop {
            // SAFETY: accepts any number.
            let found = unsafe { sys::rte_eth_find_next(id) };
            if u32::from(found) >= sys::RTE_MAX_ETHPORTS {
                return Err(Error::NoPort);
            }
            if own(found) {
                return Ok(Port(Attached::new(found, None)));
            }
            id = found + 1;
        }
    }
}

/// Returns the ID of the port of this name.
pub(crate) fn port_id_by_name(name: &CStr) -> Option<u16> {
    let mut id = 0;
    // SAFETY: a string and a number to write.
    let status = unsafe { sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &raw mut id) };
    (status == 0).then_some(id)
}

/// True if any bus has a driver for this device name.
fn driver_exists(name: &CStr) -> bool {
    let mut parsed = sys::rte_devargs::default();
    // SAFETY: EAL runs; an empty structure to fill and a string that lives through the call.
    let status = unsafe { sys::rte_devargs_parse(&raw mut parsed, name.as_ptr()) };
    // SAFETY: frees what the parser allocated, also after failure.
    unsafe { sys::rte_devargs_reset(&raw mut parsed) };
    status == 0
}

impl Port {
    /// Returns the port's properties.
    ///
    /// # Errors
    /// [`Error::PortInfo`].
    pub fn info(&self) -> Result<PortInfo, Error> {
        let _control = control_lock();
        let raw = self.0.raw_info()?;
        let mut mac = sys::rte_ether_addr::default();
        // SAFETY: a structure to fill.
        let status = unsafe { sys::rte_eth_macaddr_get(self.0.id, &raw mut mac) };
        if status != 0 {
            return Err(Error::PortInfo(Errno::from_return(status)));
        }
        Ok(PortInfo {
            driver: driver_name(&raw).to_string_lossy().into_owned(),
            mac: mac.addr_bytes,
            max_mtu: raw.max_mtu,
            offloads: Offloads::offered(&raw),
            tx_segments_max: match raw.tx_desc_lim.nb_seg_max {
                0 => u16::MAX,
                max => max,
            },
            max_queues: raw.max_rx_queues.min(raw.max_tx_queues),
            rss: raw.flow_type_rss_offloads & sys::FW_RSS_TCP_IPV4 != 0 && raw.reta_size != 0,
            if_index: raw.if_index,
        })
    }

    /// Configures and starts the port and returns its queues in order.
    ///
    /// The port runs until the last queue is dropped. It is then stopped, closed and, if it was
    /// hotplugged here, detached.
    ///
    /// # Errors
    /// The call that failed. The port is closed, and detached if it was hotplugged here.
    pub fn start(self, config: &PortConfig) -> Result<Vec<(RxQueue, TxQueue)>, Error> {
        let Self(mut port) = self;
        for pool in &config.pools {
            port.keep(Arc::new(pool.clone()));
        }
        {
            let _control = control_lock();
            if port.driver == Driver::Vhost {
                // Peers can connect from when it is configured.
                vhost_state::watch(port.id, config.wired(), config.socket.clone())?;
            }
            let has_interrupts = configure(&port, config)?;
            if let Some(socket) = &config.socket {
                // An executed program would keep it alive after its server.
                fd::close_sockets_on_exec(socket);
            }
            if port.driver == Driver::Memif {
                memif_disconnect::hook_log()?;
            }
            // SAFETY: the port is configured and all its queues are set up.
            let start = || check(unsafe { sys::rte_eth_dev_start(port.id) }, Error::PortStart);
            let mut started = start();
            if started.is_err() && has_interrupts {
                // Some drivers find only here that the card or the host has too few vectors.
                configure(&port, &PortConfig { rx_interrupts: false, ..config.clone() })?;
                started = start();
            }
            started?;
            port.started = true;
            if config.promiscuous {
                // Some ports are always promiscuous and reject the call, so its result is ignored.
                // SAFETY: a started port.
                unsafe { sys::rte_eth_promiscuous_enable(port.id) };
            }
        }
        let port = Arc::new(port);
        let queues = (0..).zip(&config.pools).map(|(number, pool)| {
            if number < config.wired {
                queue::rx_tx_queues(&port, number, RxPool::Own(pool))
            } else {
                queue::without_wire(&port, number)
            }
        });
        let queues = queues.collect();
        if port.driver == Driver::Memif {
            memif_disconnect::note_rings()?;
        }
        Ok(queues)
    }
}

/// Configures an attached port and sets up its queues. True if it has receive interrupts.
fn configure(port: &Attached, config: &PortConfig) -> Result<bool, Error> {
    let info = port.raw_info()?;
    let mut wanted = sys::rte_eth_conf::default();
    if let Some(mtu) = config.mtu {
        if mtu > info.max_mtu {
            return Err(Error::MtuTooLarge { max: info.max_mtu });
        }
        wanted.rxmode.mtu = u32::from(mtu);
    }
    (wanted.rxmode.offloads, wanted.txmode.offloads) = config.offloads.bits();
    if config.rss {
        wanted.rxmode.mq_mode = sys::RTE_ETH_MQ_RX_RSS;
        wanted.rx_adv_conf.rss_conf.rss_hf = rss::HASHED & info.flow_type_rss_offloads;
    }
    let queues = config.wired();
    let configure = |wanted: &sys::rte_eth_conf| {
        // SAFETY: an attached, stopped port and a complete configuration, which is copied.
        let status = unsafe { sys::rte_eth_dev_configure(port.id, queues, queues, wanted) };
        check(status, Error::PortConfigure)
    };
    let with_interrupts = config.rx_interrupts.then(|| {
        let mut wanted = wanted;
        wanted.intr_conf.set_rxq(1);
        wanted
    });
    let rx_interrupts = with_interrupts.is_some_and(|wanted| configure(&wanted).is_ok());
    if !rx_interrupts {
        configure(&wanted)?;
    }
    let (mut rx, mut tx) = (config.rx_descriptors, config.tx_descriptors);
    // SAFETY: a configured port and two numbers to adjust.
    let status =
        unsafe { sys::rte_eth_dev_adjust_nb_rx_tx_desc(port.id, &raw mut rx, &raw mut tx) };
    check(status, Error::PortConfigure)?;
    // SAFETY: an attached port.
    let socket = unsafe { sys::rte_eth_dev_socket_id(port.id) };
    // Virtual devices return -1, SOCKET_ID_ANY; queue set-up takes it as an unsigned number.
    let socket = socket.cast_unsigned();
    for (queue, pool) in (0..queues).zip(&config.pools) {
        let none = core::ptr::null();
        // SAFETY: a configured port, a queue below its number of queues, and a pool that
        // the port keeps and that is never freed.
        let status =
            unsafe { sys::rte_eth_rx_queue_setup(port.id, queue, rx, socket, none, pool.raw()) };
        check(status, Error::RxQueue)?;
        let set_up = config
            .tx_free_thresh
            .map(|tx_free_thresh| sys::rte_eth_txconf { tx_free_thresh, ..info.default_txconf });
        let set_up = set_up.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        // SAFETY: as above.
        let status = unsafe { sys::rte_eth_tx_queue_setup(port.id, queue, tx, socket, set_up) };
        check(status, Error::TxQueue)?;
    }
    Ok(rx_interrupts)
}
