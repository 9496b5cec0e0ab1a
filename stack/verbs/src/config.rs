//! The configuration of the stack, from the settings.

use ferrowarp::device::{self, DeviceSpec};
use ferrowarp::{Config, DriveMode, TcpSettings};
use ferrowarp_settings::{Hugepages, Poller, Settings};

/// Returns the configuration, or the reason why there is none.
pub(crate) fn config(settings: &Settings) -> Result<Config, String> {
    let device = settings.device.parse().map_err(|error| format!("device: {error}"))?;
    let [first, others @ ..] = settings.addresses.as_slice() else {
        return Err("address: give one".to_owned());
    };
    let mut config = Config::new(device, first.ip, first.prefix_len);
    config.addresses.extend_from_slice(others);
    config.routes.clone_from(&settings.routes);
    config.neighbors.clone_from(&settings.neighbors);
    config.vlan = settings.vlan;
    config.mtu = settings.mtu;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    config.drive = match settings.poller {
        // The peer of such a device is on the same machine, with as many threads.
        Poller::Auto if is_peer_local(&config.device) && cores < 4 => DriveMode::Helper,
        Poller::Auto => DriveMode::Auto,
        Poller::Hot => DriveMode::Hot,
        Poller::Park => DriveMode::Helper,
        Poller::Off => DriveMode::Inline,
    };
    config.cores = settings.poller_cpu.into_iter().collect();
    config.hot_time = settings.hot_time;
    config.tcp = TcpSettings::new().keepalive(settings.keepalive);
    config.hugepages = match settings.hugepages {
        Hugepages::Auto => device::Hugepages::Auto,
        Hugepages::Never => device::Hugepages::Never,
        Hugepages::Always => device::Hugepages::Always,
    };
    config.linger = settings.linger;
    config.source_ports = settings.source_ports.clone();
    config.qps_max = settings.qps_max;
    config.regions_max = settings.regions_max;
    // Programs free memory that is still registered. A card has pinned its pages.
    config.catch_page_faults = true;
    Ok(config)
}

/// True if the other end of the link is a process on this machine.
pub(crate) fn is_peer_local(device: &DeviceSpec) -> bool {
    matches!(
        device,
        DeviceSpec::Memif { .. } | DeviceSpec::Vhost { .. } | DeviceSpec::VirtioUser { .. }
    )
}
