//! What a context is opened with.

use std::net::IpAddr;
use std::time::Duration;

use ferrowarp_proto::device::ChecksumMode;
use ferrowarp_proto::net::routing::{InterfaceAddress, Route};

use crate::device::{DeviceSpec, Hugepages, OpenConfig, PoolNeeds};
use crate::limits::Limits;
use crate::tcp::TcpSettings;

/// Who advances a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriveMode {
    /// The application's polling calls. Without them nothing moves, not even acknowledgements.
    #[default]
    Inline,
    /// A thread of its own, pinned to a core that it keeps busy.
    Dedicated {
        /// Index of the core, as the operating system counts.
        core: usize,
    },
    /// The application's polling calls. When there have been none for 20 us, or at once when a call
    /// sleeps, a thread takes over. As a port has no interrupt it looks for what has arrived once
    /// in 50 us, and less and less often, down to once in 1 ms, when there has been no traffic for
    /// 20 ms, or for 2 s while somebody sleeps on the context, has a completion queue armed or has
    /// asked for the event channel's descriptor. Each call that sleeps, arms a queue or asks for
    /// that descriptor makes it look once in 50 us again, for 100 ms.
    Helper,
}

/// Settings of a context. Start from [`Config::new`] and change what differs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The port to run on.
    pub device: DeviceSpec,
    /// Our addresses, of both families as need be; listeners answer on all of them. They are what
    /// they are given as: IPv6 addresses are not tested for duplicates on the link (RFC 4862
    /// section 5.4; somebody else's claim to one of them is counted, `address_conflicts`), none is
    /// made from a router's advertisement, and such advertisements and redirects are ignored.
    pub addresses: Vec<InterfaceAddress>,
    /// Where packets for other links go: the longest prefix that covers the destination counts.
    /// See [`Route::default_via`].
    pub routes: Vec<Route>,
    /// The VLAN (802.1Q) that all frames belong to, 1 to 4094; `None`: frames have no tag.
    pub vlan: Option<u16>,
    /// Largest IP packet in bytes, [`MTU_MIN`] at least, with an IPv6 address 1280; the device may
    /// allow less than [`MTU_MAX`].
    ///
    /// [`MTU_MIN`]: crate::device::MTU_MIN
    /// [`MTU_MAX`]: crate::device::MTU_MAX
    pub mtu: u16,
    /// Who computes and checks TCP and IPv4 checksums. `None`: nobody on `ring`, whose peer is in
    /// the same memory, and the stack elsewhere. `Offload` leaves it to a card, and is refused
    /// where the port cannot do it.
    pub checksum: Option<ChecksumMode>,
    /// Huge pages for frames or not. The first device of the process decides; an EAL that the
    /// program started has decided already.
    pub hugepages: Hugepages,
    /// Frames each direction of `ring` holds, a power of two (less one). Those of the left end
    /// count.
    pub ring_slots: u32,
    /// How TCP behaves.
    pub tcp: TcpSettings,
    /// What the device's pools must suffice for.
    pub pools: PoolNeeds,
    /// Who advances the shard.
    pub drive: DriveMode,
    /// Memory regions and windows that can exist at a time (rounded up to a power of two).
    pub regions_max: usize,
    /// Queue pairs that can exist at a time.
    pub qps_max: usize,
    /// Speak atomic operations and immediate data (RFC 7306). On by default: nothing of it shows
    /// until it is used. A peer without them, such as `siw`, ends a connection on which it is sent
    /// one, and so does this end, if off.
    pub extensions: bool,
    /// What else it may take of the machine.
    pub limits: Limits,
    /// How long closing waits for the peers to acknowledge completed work ([`Context::close`]); and
    /// how long an ended connection waits for a peer that acknowledges nothing more, before it is
    /// reset.
    ///
    /// [`Context::close`]: crate::Context::close
    pub linger: Duration,
    /// How long dropping the last handle of a context waits for the same, if that is less: 1 s. A
    /// program that ends by dropping its handles, and has nothing else to do, takes more.
    pub drop_linger: Duration,
    /// Seed for STags, ports and sequence numbers; `None` takes one from the operating system,
    /// which is what anything but a test wants: STags must be hard to guess.
    pub seed: Option<u64>,
}

impl Config {
    /// Settings for `address`/`prefix_len` on `device`: MTU 1500, pools as the device needs them,
    /// driven inline.
    #[must_use]
    pub fn new(device: DeviceSpec, address: IpAddr, prefix_len: u8) -> Self {
        let pools = PoolNeeds::of(&device);
        let OpenConfig { mtu, checksum, hugepages, ring_slots, .. } = OpenConfig::default();
        Self {
            device,
            addresses: vec![InterfaceAddress { ip: address, prefix_len }],
            routes: Vec::new(),
            vlan: None,
            mtu,
            checksum,
            hugepages,
            ring_slots,
            tcp: TcpSettings::default(),
            pools,
            drive: DriveMode::Inline,
            regions_max: 1 << 14,
            qps_max: 1 << 12,
            extensions: true,
            limits: Limits::default(),
            linger: Duration::from_secs(5),
            drop_linger: Duration::from_secs(1),
            seed: None,
        }
    }
}

impl Config {
    /// How the device is opened.
    pub(crate) fn open_config(&self) -> OpenConfig {
        OpenConfig {
            mtu: self.mtu,
            checksum: self.checksum,
            pools: self.pools,
            ring_slots: self.ring_slots,
            hugepages: self.hugepages,
            ..OpenConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_settings_reach_open_config() {
        let mut config = Config::new(DeviceSpec::Ring, [198, 18, 0, 1].into(), 24);
        let defaults = format!("{:?}", OpenConfig::default());
        assert_eq!(format!("{:?}", config.open_config()), defaults);
        config.mtu = 9000;
        config.checksum = Some(ChecksumMode::Offload);
        config.hugepages = Hugepages::Never;
        config.ring_slots = 64;
        config.pools.windows = 7;
        let opening = config.open_config();
        assert_eq!((opening.mtu, opening.checksum), (9000, Some(ChecksumMode::Offload)));
        assert_eq!((opening.hugepages, opening.ring_slots), (Hugepages::Never, 64));
        assert_eq!(opening.pools.windows, 7);
    }
}
