//! Facts of a port, which its queue pairs share.

use std::sync::Arc;

use dpdk_sys::RxQueue;
use dpdk_sys::netif::Interface;
use ferrowarp_proto::device::Capabilities;

use crate::device::link::DpdkLink;
use crate::device::quirks::DriverQuirks;
use crate::device::steering::Steering;

/// Returns the longest frame, in bytes, with an IP packet of `mtu` bytes: Ethernet header and one
/// VLAN tag.
pub(super) fn frame_len_max(mtu: u16) -> usize {
    usize::from(mtu) + 14 + 4
}

/// Facts of a port, shared by the devices of its queue pairs.
#[derive(Clone, Debug)]
pub(super) struct PortFacts {
    pub(super) capabilities: Capabilities,
    pub(super) quirks: &'static DriverQuirks,
    pub(super) steering: Arc<Steering>,
    pub(super) name: String,
    /// Kernel interface below the port, if its link is one.
    pub(super) interface: Option<Arc<Interface>>,
    /// The port joined a process that was there before, as a client.
    pub(super) joins_process: bool,
}

impl PortFacts {
    /// True if the link is up.
    pub(super) fn link_is_up(&self, rx: &RxQueue) -> bool {
        if self.interface.is_none() {
            return rx.link_is_up();
        }
        self.link(rx).is_some_and(|mut link| link.is_up())
    }

    /// Returns the link, if its state may change.
    pub(super) fn link(&self, rx: &RxQueue) -> Option<DpdkLink> {
        let Self { quirks, interface, name, joins_process, .. } = self;
        DpdkLink::new(rx.port_link()?, quirks.link, interface.as_ref(), name)
            .map(|link| link.joining(*joins_process))
    }
}
