//! State of a port's link.

use std::sync::Arc;

use crate::attached::Attached;
use crate::burst_lock::InFlight;
use crate::eal::control_lock;
use crate::{removal, sys};

/// Link of a port, for a thread that has none of its queues. The port is not closed before this is
/// dropped.
#[derive(Debug)]
#[non_exhaustive]
pub struct PortLink {
    port: Arc<Attached>,
    /// Of a receive queue, if the driver's events show whether the peer is connected.
    rings: Option<Arc<InFlight>>,
}

impl PortLink {
    /// `None` if the host program owns the port.
    pub(crate) fn of(port: &Arc<Attached>, rings: Option<Arc<InFlight>>) -> Option<Self> {
        (!port.is_borrowed()).then(|| Self { port: Arc::clone(port), rings })
    }

    /// Returns the number of connections to a peer that have ended, over memif and vhost; otherwise
    /// 0.
    #[must_use]
    pub fn down_count(&self) -> u64 {
        self.rings.as_ref().map_or(0, |rings| rings.down_count().into())
    }

    /// True if the link is up; does not wait for it to settle. The driver reads the hardware, or
    /// asks the kernel: some microseconds, over PCI up to a millisecond. A control-path call: waits
    /// for others of the process, which may take 0.1 s.
    #[must_use]
    pub fn is_up(&self) -> bool {
        is_up(&self.port)
    }

    /// Reports that the port's device is gone, if no kernel does: the observers of
    /// [`RxQueue::observe_removal`] are called, in this thread.
    ///
    /// [`RxQueue::observe_removal`]: crate::RxQueue::observe_removal
    pub fn report_removal(&self) {
        removal::report(self.port.id);
    }
}

/// See [`PortLink::is_up`].
pub(crate) fn is_up(port: &Attached) -> bool {
    // Drivers change link state and statistics while ports are configured and closed.
    let _control = control_lock();
    // SAFETY: a started port.
    unsafe { sys::fw_link_is_up(port.id) != 0 }
}
