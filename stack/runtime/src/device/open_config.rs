//! Device configuration.

use dpdk_sys::{Hugepages, LogLevel};
use ferrowarp_proto::device::ChecksumMode;
use ferrowarp_proto::setters;

use crate::device::pools::PoolNeeds;

/// Device configuration. The defaults suit tests and one or two busy connections. Start from
/// [`OpenConfig::new`] and set what differs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenConfig {
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Largest IP packet that the port returns to itself, bytes: of connections of a context to its
    /// own addresses, and to other contexts on the port of a host program. All buffers for frames
    /// to be sent get as long. `None`: `mtu`.
    pub hairpin_mtu: Option<u16>,
    /// Checksum mode. `None`: no checksums on `ring`; on NICs by the port, as far as it computes
    /// them; in software elsewhere. `Offload` leaves to the port what it offers, of TCP at least,
    /// or else is an error.
    pub checksum: Option<ChecksumMode>,
    /// TCP segmentation offload (TSO), where checksums are left to the port and it cuts frames: a
    /// train of segments is passed to it as one frame.
    pub tso: bool,
    /// Queue pairs to open, each as a device of its own; at least 1. They spread the frames that
    /// the port receives as [`DpdkDevice::steering`] says. Over memif and vhost the peer
    /// may have fewer ([`DpdkDevice::has_wire`]).
    ///
    /// [`DpdkDevice::steering`]: crate::device::DpdkDevice::steering
    /// [`DpdkDevice::has_wire`]: crate::device::DpdkDevice::has_wire
    pub queues: u16,
    /// Demands from which the mempool sizes are computed, of each queue pair.
    pub pools: PoolNeeds,
    /// Slots per direction and queue of `ring`, a power of two; it holds one frame less.
    pub ring_slots: u32,
    /// Bytes of frame per receive buffer, if less than a whole frame: long frames then arrive
    /// in several segments. Raised to 128, because all headers lie in the first segment
    /// ([`RxFrame::head`]). `None`: every frame fits one buffer.
    ///
    /// [`RxFrame::head`]: ferrowarp_proto::device::RxFrame::head
    pub rx_buf_size: Option<u16>,
    /// Receive interrupts of a card, if it has them ([`DpdkDevice::rx_interrupt`]); they may cost
    /// some latency also while they are masked. Those of `tap` cost nothing and are always there.
    ///
    /// [`DpdkDevice::rx_interrupt`]: crate::device::DpdkDevice::rx_interrupt
    pub rx_interrupts: bool,
    /// Use of hugepages. Fixed by the first device that is opened.
    pub hugepages: Hugepages,
    /// DPDK's own log level. Fixed by the first device that is opened.
    pub log_level: LogLevel,
}

impl OpenConfig {
    /// Configuration for tests and one or two busy connections.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            mtu: 1500,
            hairpin_mtu: None,
            checksum: None,
            tso: true,
            queues: 1,
            pools: PoolNeeds::new(),
            ring_slots: 512,
            rx_buf_size: None,
            rx_interrupts: false,
            hugepages: Hugepages::Auto,
            log_level: LogLevel::Critical,
        }
    }

    setters! {
        mtu: u16,
        hairpin_mtu: Option<u16>,
        checksum: Option<ChecksumMode>,
        tso: bool,
        queues: u16,
        pools: PoolNeeds,
        ring_slots: u32,
        rx_buf_size: Option<u16>,
        rx_interrupts: bool,
        hugepages: Hugepages,
        log_level: LogLevel,
    }

    /// Returns the MTU of frames that the port returns to itself.
    pub(super) fn effective_hairpin_mtu(&self) -> u16 {
        self.hairpin_mtu.unwrap_or(self.mtu)
    }

    /// Returns the MTU for which buffers of frames to be sent have room.
    pub(super) fn tx_mtu(&self) -> u16 {
        self.mtu.max(self.effective_hairpin_mtu())
    }
}

impl Default for OpenConfig {
    fn default() -> Self {
        Self::new()
    }
}
