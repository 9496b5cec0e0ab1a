//! Devices over queues of a port that the host program owns.
//!
//! The host program has started EAL, created a mempool, attached, configured and started a port,
//! and lends some of its queue pairs. The port is used as it is: nothing is configured, started,
//! stopped or closed. So what other devices are given as the stack needs it is checked here, or
//! read from the port: number of queues, checksum offload, RSS, MTU, and the size of the mempool.

use std::sync::Arc;

use dpdk_sys::{BURST, Eal, HostPortSetup, Mempool, MempoolConfig, RxQueue, TxQueue};
use ferrowarp_proto::device::{Capabilities, ChecksumMode};

use crate::device::device_error::DeviceError;
use crate::device::exchange::{Membership, Seat};
use crate::device::facts::PortFacts;
use crate::device::host_spec::HostPort;
use crate::device::mbuf_cache::TxPools;
use crate::device::offload::{self, Refused};
use crate::device::open_config::OpenConfig;
use crate::device::pools::{FIRST_SEGMENT_LEN_MIN, OnePool};
use crate::device::port::DpdkDevice;
use crate::device::quirks::{DriverQuirks, MtuBy};
use crate::device::spec::DeviceSpec;
use crate::device::steering::Steering;

/// Opens a device for each of the queue pairs. EAL has to run.
pub(super) fn open(
    host: &HostPort,
    spec: &DeviceSpec,
    config: &OpenConfig,
) -> Result<Vec<DpdkDevice>, DeviceError> {
    let device = || spec.to_string();
    let error = |source| DeviceError::Port { device: device(), source };
    let count = u16::try_from(host.queues.len()).unwrap_or(u16::MAX);
    if count != config.queues {
        let queues = config.queues;
        return Err(DeviceError::QueuesDiffer { device: device(), queues, count });
    }
    let eal = Eal::attach().map_err(DeviceError::Environment)?;
    let eal = eal.ok_or_else(|| DeviceError::NoHostEal { device: device() })?;
    let port =
        eal.borrow_queues(&host.port, host.queues.clone()).map_err(|source| match source {
            dpdk_sys::Error::NoPort => DeviceError::NoHostPort { device: device() },
            source => error(source),
        })?;
    let info = port.info().map_err(error)?;
    let setup = port.setup().map_err(error)?;
    let quirks = DriverQuirks::of(&info.driver);
    if !port.is_supported() {
        return Err(DeviceError::HostDriver { device: device(), driver: info.driver });
    }
    check_setup(spec, &setup)?;
    quirks.check_mtu(spec, config.mtu)?;
    if quirks.mtu_by == MtuBy::Ethdev && config.mtu > setup.mtu {
        let max = u32::from(setup.mtu);
        return Err(DeviceError::MtuTooLarge { device: device(), mtu: config.mtu, max });
    }
    let checksum = checksum_mode(spec, config, quirks, &setup)?;
    let tso_segments_max = offload::tso_segments_max(config, checksum, setup.offloads, &info);
    let pool = Mempool::of_host(eal, &host.mempool).map_err(|source| DeviceError::HostPool {
        device: device(),
        mempool: host.mempool.clone(),
        source,
    })?;
    let needs = needs_of(config, quirks, &setup, &pool);
    check_pool(spec, host, config, &pool, &needs)?;
    for rx_pool in &setup.rx_pools {
        let shared = if rx_pool.is(&pool) { needs.count } else { 0 };
        let posted = rx_pool_len(config, rx_pool.queue_count, rx_pool.descriptors);
        check_rx_pool(spec, &rx_pool.config, posted.saturating_add(shared))?;
    }

    let queues = port.into_queues(&pool).map_err(error)?;
    let Some((rx, _)) = queues.first() else {
        return Err(DeviceError::NoHostPort { device: device() });
    };
    let steering = Arc::new(Steering::of_borrowed(quirks, rx, &host.queues));
    let exchange =
        Membership::join(rx.port_id(), host.queues.clone(), || quirks.mac.stack_mac(info.mac));
    if quirks.mac.mac_by_port(info.mac).is_some_and(|mac| mac != exchange.mac()) {
        tracing::warn!(
            "{}: the port's hardware address has changed, and its contexts keep the one that it \
             had: close all of them, then open them again",
            device()
        );
    }
    let send_mtu = config.mtu.min(quirks.send_mtu_max);
    let capabilities = Capabilities {
        mac: exchange.mac(),
        mtu: config.mtu,
        send_mtu,
        checksum,
        hairpin_mtu: config.effective_hairpin_mtu(),
        tso_segments_max,
    };
    let facts = PortFacts {
        capabilities,
        quirks,
        steering,
        name: device(),
        interface: None,
        joins_process: false,
    };
    let tx_queue = config.pools.tx_queue as usize;
    let device = |(number, queue): (u16, (RxQueue, TxQueue))| {
        let seat = Seat::new(Arc::clone(&exchange), queue.0.index());
        let pools = TxPools::of_one(&pool, &needs);
        DpdkDevice::new((number, queue), pools, tx_queue, facts.clone()).with_seat(seat)
    };
    Ok((0..).zip(queues).map(device).collect())
}

/// Checks for offloads with which the stack does not work.
fn check_setup(spec: &DeviceSpec, setup: &HostPortSetup) -> Result<(), DeviceError> {
    let unusable = [
        // Sent frames are retained until they are acknowledged: the driver would free them first.
        (setup.tx_fast_free, "RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE"),
        // A merged segment is longer than what the buffers of the stack are sized for.
        (setup.rx_lro, "RTE_ETH_RX_OFFLOAD_TCP_LRO"),
        // All headers have to lie in the first segment.
        (setup.rx_split, "RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT"),
    ];
    match unusable.into_iter().find(|(is_on, _)| *is_on) {
        Some((_, offload)) => Err(DeviceError::HostOffload { device: spec.to_string(), offload }),
        None => Ok(()),
    }
}

/// Returns the checksum mode: offload if the host program has configured that, unless the driver
/// computes it in software.
fn checksum_mode(
    spec: &DeviceSpec,
    config: &OpenConfig,
    quirks: &DriverQuirks,
    setup: &HostPortSetup,
) -> Result<ChecksumMode, DeviceError> {
    let device = || spec.to_string();
    // What the port has not verified on receipt, the stack does.
    let offered = offload::best_checksum_offload(quirks, setup.offloads);
    match config.checksum {
        None => Ok(offered.unwrap_or(ChecksumMode::Software)),
        Some(mode) => {
            offload::requested_checksum_mode(mode, quirks, offered).map_err(|refused| match refused
            {
                Refused::NoOffload => DeviceError::HostChecksum { device: device() },
                Refused::Needed => DeviceError::ChecksumNeeded { device: device() },
            })
        }
    }
}

/// Returns what the stack needs of the mempool.
fn needs_of(
    config: &OpenConfig,
    quirks: &DriverQuirks,
    setup: &HostPortSetup,
    pool: &Mempool,
) -> OnePool {
    let (_, tx_descriptors) = quirks.descriptors(false);
    let tx_descriptors = setup.tx_descriptors.unwrap_or(tx_descriptors);
    let (queues, cache) = (config.queues, pool.config().cache);
    let needs = config.pools.one_pool(config.mtu, tx_descriptors, queues, cache);
    needs.with_room_for(config.tx_mtu())
}

/// Checks that the mempool has mbufs that are large enough, and enough of them.
fn check_pool(
    spec: &DeviceSpec,
    host: &HostPort,
    config: &OpenConfig,
    pool: &Mempool,
    needs: &OnePool,
) -> Result<(), DeviceError> {
    let (device, mempool) = (spec.to_string(), host.mempool.clone());
    let room = pool.config().frame_capacity;
    if room < needs.frame_capacity {
        let (mtu, needed) = (config.tx_mtu(), needs.frame_capacity);
        return Err(DeviceError::HostPoolRoom { device, mempool, room, needed, mtu });
    }
    let count = pool.config().count;
    if count < needs.count {
        let needed = needs.count;
        return Err(DeviceError::HostPoolCount { device, mempool, count, needed });
    }
    Ok(())
}

/// Returns how many mbufs a mempool of receive queues has to have: those posted to the port, and
/// what the stack holds. If all were held out of order, the missing segment could not be received.
fn rx_pool_len(config: &OpenConfig, queues: u32, descriptors: u32) -> u32 {
    let of_queue = config.pools.in_flight(config.mtu).saturating_add(u32::from(BURST));
    queues.saturating_mul(of_queue).saturating_add(descriptors)
}

/// Checks that a mempool of receive queues has mbufs in which all headers fit, and `needed` of
/// them.
fn check_rx_pool(spec: &DeviceSpec, pool: &MempoolConfig, needed: u32) -> Result<(), DeviceError> {
    let device = || spec.to_string();
    let MempoolConfig { count, frame_capacity: size, .. } = *pool;
    if size < FIRST_SEGMENT_LEN_MIN {
        let min = FIRST_SEGMENT_LEN_MIN;
        return Err(DeviceError::HostRxBuffer { device: device(), size, min });
    }
    if count < needed {
        return Err(DeviceError::HostRxPool { device: device(), count, needed });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use dpdk_sys::{Offload, Offloads};

    use super::*;

    /// A port of four queues, with these changes.
    fn setup(change: impl FnOnce(&mut HostPortSetup)) -> HostPortSetup {
        let mut setup = HostPortSetup::default();
        setup.queue_count = 4;
        setup.mtu = 1500;
        setup.tx_descriptors = Some(512);
        change(&mut setup);
        setup
    }

    fn spec() -> DeviceSpec {
        "port:0000:01:00.0,queues=2-3,mempool=tx".parse().unwrap()
    }

    /// Returns the message, which is one line and begins with the device.
    fn text<T: core::fmt::Debug>(refused: Result<T, DeviceError>) -> String {
        let text = refused.unwrap_err().to_string();
        assert!(text.starts_with("port:0000:01:00.0,") && !text.contains('\n'), "{text}");
        text
    }

    #[test]
    fn offloads_that_break_the_stack_are_refused() {
        assert!(check_setup(&spec(), &setup(|_| ())).is_ok());
        let table = [
            (setup(|it| it.tx_fast_free = true), "RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE"),
            (setup(|it| it.rx_lro = true), "RTE_ETH_RX_OFFLOAD_TCP_LRO"),
            (setup(|it| it.rx_split = true), "RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT"),
        ];
        for (setup, offload) in table {
            let text = text(check_setup(&spec(), &setup));
            assert!(
                text.contains(offload) && text.contains("configure the port without"),
                "{text}"
            );
        }
    }

    #[test]
    fn checksums_are_computed_where_the_program_has_configured_it() {
        let both = [Offload::TxTcpChecksum, Offload::TxIpv4Checksum];
        let offloads = both.into_iter().fold(Offloads::NONE, Offloads::with);
        let mode = |driver: &str, is_on, wanted| {
            let offloads = if is_on { offloads } else { Offloads::NONE };
            let setup = setup(|it| it.offloads = offloads);
            let config = OpenConfig { checksum: wanted, ..OpenConfig::new() };
            checksum_mode(&spec(), &config, DriverQuirks::of(driver), &setup)
        };
        let (offload, software) = (ChecksumMode::Offload, ChecksumMode::Software);
        assert_eq!(mode("net_ixgbe", true, None).unwrap(), offload);
        assert_eq!(mode("net_ixgbe", false, None).unwrap(), software);
        assert_eq!(mode("net_ixgbe", true, Some(software)).unwrap(), software);
        assert_eq!(mode("net_tap", true, None).unwrap(), software, "computed after a copy");
        let absent = text(mode("net_ixgbe", false, Some(offload)));
        assert!(absent.contains("configure it with RTE_ETH_TX_OFFLOAD_TCP_CKSUM"), "{absent}");
        let none = Some(ChecksumMode::NotNeeded);
        assert!(mode("net_memif", false, none).is_ok());
        assert!(text(mode("net_ixgbe", true, none)).contains("can be left out on ring"));
    }

    #[test]
    fn receive_pool_holds_what_is_posted_and_what_the_stack_holds() {
        let config = OpenConfig::new();
        let of_queue = config.pools.in_flight(1500) + 32;
        assert_eq!(rx_pool_len(&config, 2, 1024), 2 * of_queue + 1024);
        let pool = MempoolConfig { count: 100, cache: 0, frame_capacity: 128 };
        assert!(check_rx_pool(&spec(), &pool, 100).is_ok());
        let few = text(check_rx_pool(&spec(), &pool, 101));
        assert!(few.contains("receive queues has 100 mbufs, 101 are needed"), "{few}");
        let pool = MempoolConfig { frame_capacity: 127, ..pool };
        let small = text(check_rx_pool(&spec(), &pool, 100));
        assert!(small.contains("127 bytes do not hold all headers"), "{small}");
    }
}
