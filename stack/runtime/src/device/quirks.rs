//! Peculiarities of DPDK's drivers, in one table: as 22.11, 24.11 and 25.11 have them.
//!
//! The key is the driver's name as `rte_eth_dev_info` gives it, so a port has the same treatment
//! however it was named (`tap:x`, or `eal:--vdev=net_tap0,iface=x`). Each line says where its
//! entries were observed. What has to be known before there is a driver, as arguments and
//! permissions, is with [`DeviceSpec`] in `attach.rs`; that net_memif unmaps its rings is in the
//! bindings, whose soundness depends on it.

use std::sync::atomic::{AtomicU32, Ordering};

use dpdk_sys::{Eal, HEADROOM, Memory};

use crate::device::device_error::DeviceError;
use crate::device::link::LinkKind;
use crate::device::spec::DeviceSpec;

/// Deviations of a driver from the stack's assumptions about a port.
#[derive(Debug)]
pub(super) struct DriverQuirks {
    /// Receive and transmit descriptors that hold mbufs; (0, 0): the driver keeps none.
    descriptors: (u16, u16),
    /// Receive descriptors, if a frame may arrive in several buffers.
    rx_descriptors_segmented: u16,
    /// Bytes of frame that the driver requires in a receive buffer, for an MTU, whatever its
    /// frames.
    rx_buf_size_min: fn(u16) -> u16,
    /// Sizes of receive buffers that the port counts, rounded down to one of them: a frame longer
    /// than the rounded size arrives in several segments.
    rx_buf_sizes: BufSizes,
    /// Largest MTU.
    pub(super) mtu_max: u16,
    /// Largest IP packet, in bytes, that can be sent.
    pub(super) send_mtu_max: u16,
    /// Place where the MTU has to be configured.
    pub(super) mtu_by: MtuBy,
    /// Source of the stack's MAC address.
    pub(super) mac: MacFrom,
    /// The checksum offload that the port offers is computed in software, after a copy: not used.
    pub(super) checksum_in_software: bool,
    /// Checksums are left to the port, as far as it computes them, if nothing else is requested.
    pub(super) offload_by_default: bool,
    /// The link is memory, so checksums may be omitted.
    pub(super) checksum_optional: bool,
    /// Without hugepages the port opens, but carries no frames.
    needs_hugepages: bool,
    /// The peer's mbufs arrive themselves: no receive pool, and received frames are never written.
    pub(super) rx_shares_sender_mbufs: bool,
    /// Rule by which received frames are spread over several queues.
    pub(super) steering: SteeringBy,
    /// Largest number of queue pairs, if the port's information does not contain it.
    queues_max: u16,
    /// Bandwidth-delay product to provide buffers for, in bytes; 0 if the peer shares memory.
    pub(super) path_bytes: u32,
    /// Free transmit descriptors below which sent frames are freed; `None`: the driver's default.
    pub(super) tx_free_thresh: Option<u16>,
    /// Most files of memory that the link partner maps, if it does; with more the port opens, and
    /// carries no frames.
    memory_files_max: Option<u32>,
    /// Transmit errors count attempts to send a frame that stays queued, not lost frames.
    pub(super) tx_errors_are_retries: bool,
    /// Kind of the link.
    pub(super) link: LinkKind,
    /// Receive interrupts.
    pub(super) rx_interrupts: RxInterrupts,
}

/// Sizes of receive buffers that a port counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BufSizes {
    /// Multiples of a number of bytes.
    MultiplesOf(u16),
    /// Powers of two.
    PowersOfTwo,
}

impl BufSizes {
    /// Returns the least of them that is not below `size`; `None` if it does not fit 16 bits.
    const fn round_up(self, size: u16) -> Option<u16> {
        match self {
            Self::MultiplesOf(step) => size.checked_next_multiple_of(step),
            Self::PowersOfTwo => size.checked_next_power_of_two(),
        }
    }
}

/// Receive interrupts of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RxInterrupts {
    /// None, or they need not be configured.
    None,
    /// They cost nothing while nobody waits for them.
    Free,
    /// They are configured if they are requested: a card may write back received descriptors later
    /// with them.
    OnRequest,
}

/// Place where the MTU has to be configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MtuBy {
    /// Only the buffers: the driver passes frames of every size up to theirs.
    Buffers,
    /// The port, in its configuration.
    Ethdev,
    /// The kernel's network interface behind the port, once it is started.
    KernelNetdev,
}

/// Source of the stack's MAC address. A port without an address gets a local one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MacFrom {
    /// The port.
    Port,
    /// The port, with the last bit flipped: the kernel's interface has the port's own, and ARP
    /// never resolves between two hosts with the same address.
    PortFlipped,
    /// This process: locally administered and unique in it.
    Local,
}

impl MacFrom {
    /// Returns the stack's MAC address on a port with the address `port`, all zero if it has none.
    pub(super) fn stack_mac(self, port: [u8; 6]) -> [u8; 6] {
        self.mac_by_port(port).unwrap_or_else(next_local_mac)
    }

    /// Returns the stack's MAC address if the port's determines it.
    pub(super) fn mac_by_port(self, port: [u8; 6]) -> Option<[u8; 6]> {
        let [first, b, c, d, e, last] = port;
        match self {
            _ if port == [0; 6] => None,
            Self::Port => Some(port),
            // Locally administered, unicast.
            Self::PortFlipped => Some([(first | 0x02) & 0xfe, b, c, d, e, last ^ 0x01]),
            Self::Local => None,
        }
    }
}

/// Returns a locally administered MAC address that is unique in this process.
fn next_local_mac() -> [u8; 6] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let [_, _, high, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let [.., a, b] = std::process::id().to_be_bytes();
    [0x02, 0xfe, a, b, high, low]
}

/// Rule by which a driver spreads received frames over several queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SteeringBy {
    /// RSS in the port, if it has that.
    Port,
    /// The link partner: a queue receives what its queue of the same number sends.
    Peer,
    /// The kernel, by the queue on which it saw the flow last.
    Kernel,
    /// A rule that the driver does not report.
    Other,
}

/// Descriptors of a vring of `net_virtio_user`: its default.
pub(super) const VRING_LEN: u16 = 256;

/// In flight on a path of unknown length: 1 Gb/s over 64 ms, or 10 Gb/s over 6 ms.
const PATH_BYTES: u32 = 8 << 20;

/// A driver without a line of its own in [`TABLE`]: taken for a NIC's. What it offers is asked of
/// the port. Descriptors are enough for 10 Gb/s; igb, ixgbe and their relatives count receive
/// buffers in KiB (SRRCTL.BSIZEPACKET of their data sheets).
const NIC: DriverQuirks = DriverQuirks {
    descriptors: (512, 512),
    rx_descriptors_segmented: 512,
    rx_buf_size_min: |_| 0,
    rx_buf_sizes: BufSizes::MultiplesOf(1024),
    mtu_max: u16::MAX,
    send_mtu_max: u16::MAX,
    mtu_by: MtuBy::Ethdev,
    mac: MacFrom::Port,
    checksum_in_software: false,
    offload_by_default: true,
    checksum_optional: false,
    needs_hugepages: false,
    rx_shares_sender_mbufs: false,
    steering: SteeringBy::Port,
    queues_max: u16::MAX,
    path_bytes: PATH_BYTES,
    tx_free_thresh: None,
    memory_files_max: None,
    tx_errors_are_retries: false,
    link: LinkKind::Line,
    rx_interrupts: RxInterrupts::OnRequest,
};

/// Virtual devices: their drivers configure no hardware, and need no MTU. Nobody fills in the
/// checksums of frames left to the link partner, unless it offers that for its own peers.
const VIRTUAL: DriverQuirks = DriverQuirks {
    mtu_by: MtuBy::Buffers,
    rx_buf_sizes: BufSizes::MultiplesOf(1),
    offload_by_default: false,
    link: LinkKind::Constant,
    rx_interrupts: RxInterrupts::None,
    ..NIC
};

/// See the module's text.
static TABLE: [(&str, DriverQuirks); 10] = [
    // Rings of mbuf pointers within the process. The port has no MAC address; received mbufs are
    // the sender's. A build of DPDK has at most 16 rings per port (RTE_PMD_RING_MAX_RX_RINGS;
    // drivers/net/ring/rte_eth_ring.c, and `ring_carries_frames_both_ways_in_order`).
    (
        "net_ring",
        DriverQuirks {
            descriptors: (0, 0),
            rx_descriptors_segmented: 0,
            mac: MacFrom::Local,
            checksum_optional: true,
            rx_shares_sender_mbufs: true,
            steering: SteeringBy::Peer,
            queues_max: 16,
            path_bytes: 0,
            ..VIRTUAL
        },
    ),
    // Shared memory between processes. Frames are copied to and from buffers of the link, whose
    // size is an argument (drivers/net/memif/rte_eth_memif.c, and
    // `memif_carries_jumbo_frames_whole_or_in_segments`).
    (
        "net_memif",
        DriverQuirks {
            descriptors: (0, 0),
            rx_descriptors_segmented: 0,
            checksum_optional: true,
            steering: SteeringBy::Peer,
            path_bytes: 0,
            link: LinkKind::Connection,
            ..VIRTUAL
        },
    ),
    // Back end of vhost-user. Frames are copied to and from buffers in the peer's memory. All ports
    // have nearly the same MAC address, in each process again: it ends with the port's number. A
    // frame is received with whatever checksum it has, and checked here; with offload it has none,
    // and is marked as correct, or its driver fills it in towards an end that computes checksums
    // itself. Queues that the peer has not enabled are reported by events, and the library's end of
    // a connection needs the bursts to be locked: both are in the bindings. A second virtio driver
    // that connects takes the port from the first, so it looks for the first one before it does
    // (`device/socket.rs`). Its sockets would be inherited by programs that are executed, and are
    // marked in the bindings. The library allocates when the peer's memory grows: if that is of the
    // same process, both wait for each other, so that is refused (drivers/net/vhost/rte_eth_vhost.c
    // and lib/vhost/vhost_user.c, `vhost_user_set_mem_table`;
    // `vhost_queue_reaches_the_peers_queue_of_the_same_number`,
    // `vhost_frame_arrives_with_its_checksum`,
    // `vhost_frames_with_offload_arrive_marked_or_with_a_checksum`,
    // `vhost_ends_that_are_killed_are_replaced`,
    // `both_ends_in_a_process_with_hugepages_are_refused`, and, of the whole stack,
    // `second_virtio_driver_is_refused_until_the_first_is_gone`).
    (
        "net_vhost",
        DriverQuirks {
            descriptors: (0, 0),
            rx_descriptors_segmented: 0,
            mac: MacFrom::Local,
            checksum_optional: true,
            steering: SteeringBy::Peer,
            queues_max: 128,
            path_bytes: 0,
            link: LinkKind::Connection,
            ..VIRTUAL
        },
    ),
    // Virtio driver in a process. The back end maps all of EAL's memory, of which it accepts 8
    // files: with more the driver fails to start the device, reports success and an open link, and
    // no frame crosses (drivers/net/virtio/virtio_user/vhost_user.c, `update_memory_region`;
    // `virtio_user_needs_memory_in_few_files`). Received frames lie in mbufs of the ring. Sent ones
    // stay there until it is almost full, 224 of 256, and with this threshold only until five are
    // used (drivers/net/virtio/virtio_rxtx.c, `virtio_xmit_pkts_inorder`, and
    // `virtio_user_returns_what_is_sent`). It does not connect again when the back end is gone
    // (`virtio_user_drops_frames_without_its_back_end`). At most 8 queues
    // (VIRTIO_MAX_VIRTQUEUE_PAIRS), and the back end does not report how many it polls
    // (`virtio_user_uses_queues_that_are_polled`). The largest frame has 9728 bytes
    // (VIRTIO_MAX_RX_PKTLEN). It offers checksums of TCP, and not of IPv4.
    (
        "net_virtio_user",
        DriverQuirks {
            descriptors: (VRING_LEN, VRING_LEN),
            rx_descriptors_segmented: VRING_LEN,
            mtu_by: MtuBy::Ethdev,
            checksum_optional: true,
            steering: SteeringBy::Peer,
            queues_max: 8,
            path_bytes: 0,
            tx_free_thresh: Some(VRING_LEN - 4),
            memory_files_max: Some(8),
            link: LinkKind::OnlyConnection,
            rx_interrupts: RxInterrupts::OnRequest,
            ..VIRTUAL
        },
    ),
    // One packet per system call, so descriptors only hold the segments of one frame. The kernel's
    // interface gets the port's MAC address and keeps its own MTU. A frame above the MTU that the
    // port was started with, 1500, is never sent and blocks the queue; each attempt counts as an
    // error (drivers/net/tap/rte_eth_tap.c, `pmd_tx_burst`, and
    // `frame_above_send_mtu_is_dropped_and_counted`). The RSS that the driver offers is that of
    // flow rules; without them the kernel returns a flow to the queue that sent it last
    // (linux drivers/net/tun.c, `tun_automq_select_queue`). It reports 16 queues, but starting the
    // port writes the descriptors of all receive and transmit queues to an array of 8 on the stack
    // (`tap_mp_req_on_rxtx`, RTE_MP_MAX_FD_NUM; `tap_queues_share_one_interface`).
    (
        "net_tap",
        DriverQuirks {
            descriptors: (8, 8),
            rx_descriptors_segmented: 64,
            send_mtu_max: 1500,
            mtu_by: MtuBy::KernelNetdev,
            mac: MacFrom::PortFlipped,
            checksum_in_software: true,
            steering: SteeringBy::Kernel,
            queues_max: 4,
            tx_errors_are_retries: true,
            link: LinkKind::Interface,
            rx_interrupts: RxInterrupts::Free,
            ..VIRTUAL
        },
    ),
    // Packet sockets with rings in shared memory, one for each queue, over which the kernel spreads
    // frames (PACKET_FANOUT_HASH, and the next one if a ring is full). A whole slot must fit a
    // receive buffer, and the slot size, a power of two, has to fit 16 bits here
    // (drivers/net/af_packet/rte_eth_af_packet.c, `eth_rx_queue_setup`, and
    // `af_packet_exchanges_frames_with_the_kernel`).
    (
        "net_af_packet",
        DriverQuirks {
            descriptors: (0, 0),
            rx_descriptors_segmented: 0,
            rx_buf_size_min: af_packet_slot,
            mtu_max: 32_000,
            steering: SteeringBy::Other,
            link: LinkKind::Interface,
            ..VIRTUAL
        },
    ),
    // AF_XDP sockets. A whole fill ring is posted at once; the kernel accepts no buffers below
    // 2048 bytes, and the driver's unaligned ones in hugepages only
    // (drivers/net/af_xdp/rte_eth_af_xdp.c, and `af_xdp_exchanges_frames_with_the_kernel`).
    (
        "net_af_xdp",
        DriverQuirks {
            descriptors: (2048, 2048),
            rx_descriptors_segmented: 2048,
            rx_buf_size_min: |_| 2048,
            mtu_by: MtuBy::Ethdev,
            needs_hugepages: true,
            steering: SteeringBy::Other,
            link: LinkKind::Interface,
            ..VIRTUAL
        },
    ),
    // Computes checksums of TCP, not of IPv4 headers, and reports no wrong ones of received frames,
    // so unmarked ones are checked here. It takes the length of a frame to be cut from its chain of
    // mbufs, so that is complete before the driver prepares it (drivers/net/virtio/virtio_rxtx.c,
    // `virtio_tso_fix_cksum`; the interop cases `cards/virtio/checksums`, and for several queues
    // `cards/virtio-2-queues/shards`).
    ("net_virtio", NIC),
    // Computes checksums of TCP, and refuses frames that ask for that of the IPv4 header
    // (drivers/net/vmxnet3/vmxnet3_rxtx.c, `vmxnet3_prep_pkts`; the interop cases
    // `cards/vmxnet3/checksums`).
    ("net_vmxnet3", NIC),
    // Intel's 8254x to 82583 (e1000, e1000e). Buffers have 256 bytes to 16 KiB, in powers of two
    // (RCTL.BSIZE and BSEX of their data sheets), so that a frame of 9,018 bytes would arrive in
    // two of 8 KiB. The driver gives the largest 16-bit number as largest MTU; the cards take
    // frames of 9,234 bytes, of which the VLAN tag and the frame check sequence are part, or more.
    // Link changes are reported only with legacy interrupts, so the link is polled. No RSS to speak
    // of: two queues, and everything arrives on the first (drivers/net/e1000/em_ethdev.c and
    // em_rxtx.c; the interop cases `cards/e1000e`, `link-for-2s` and MTU 9000 among them, and
    // `cards/two-cards/host-program` for frames in several buffers).
    (
        "net_e1000_em",
        DriverQuirks {
            rx_buf_sizes: BufSizes::PowersOfTwo,
            mtu_max: 9_212,
            // The driver accepts them, but the emulated card raised none (QEMU 7.2).
            rx_interrupts: RxInterrupts::None,
            ..NIC
        },
    ),
];

/// Slot size of `net_af_packet`'s rings, in bytes: a power of two that holds a frame and its header
/// there.
pub(super) fn af_packet_slot(mtu: u16) -> u16 {
    /// Bytes of a frame's header in the kernel's ring (`TPACKET2_HDRLEN`), rounded up.
    const RING_HEADER: u16 = 128;
    let slot = mtu.saturating_add(32 + RING_HEADER).checked_next_power_of_two();
    slot.unwrap_or(u16::MAX).max(2048)
}

impl DriverQuirks {
    /// Line of a driver, by its name; of a NIC's driver if there is none.
    pub(super) fn of(driver: &str) -> &'static Self {
        static OTHER: DriverQuirks = NIC;
        let line = TABLE.iter().find(|(name, _)| *name == driver);
        line.map_or(&OTHER, |(_, quirks)| quirks)
    }

    /// Receive and transmit descriptors that hold mbufs.
    pub(super) fn descriptors(&self, is_segmented: bool) -> (u16, u16) {
        let (rx, tx) = self.descriptors;
        (if is_segmented { self.rx_descriptors_segmented } else { rx }, tx)
    }

    /// Bytes of frame per receive buffer, if the largest frame has `frame_capacity` bytes and
    /// `wanted` is requested.
    pub(super) fn rx_buf_size(&self, mtu: u16, frame_capacity: u16, wanted: Option<u16>) -> u16 {
        if self.rx_shares_sender_mbufs {
            return frame_capacity;
        }
        let size = match wanted {
            Some(size) => size.min(frame_capacity),
            None => self
                .rx_buf_sizes
                .round_up(frame_capacity)
                .filter(|size| size.checked_add(HEADROOM).is_some())
                .unwrap_or(frame_capacity),
        };
        size.max((self.rx_buf_size_min)(mtu))
    }

    /// Fails if the driver cannot carry packets of this size.
    pub(super) fn check_mtu(&self, spec: &DeviceSpec, mtu: u16) -> Result<(), DeviceError> {
        if mtu <= self.mtu_max {
            return Ok(());
        }
        let max = u32::from(self.mtu_max);
        Err(DeviceError::MtuTooLarge { device: spec.to_string(), mtu, max })
    }

    /// Fails if the driver has fewer queue pairs; `port_max` is the number that the port reports,
    /// once there is one.
    pub(super) fn check_queues(
        &self,
        spec: &DeviceSpec,
        queues: u16,
        port_max: Option<u16>,
    ) -> Result<(), DeviceError> {
        let max = self.queues_max.min(port_max.unwrap_or(u16::MAX));
        if queues <= max {
            return Ok(());
        }
        Err(DeviceError::TooManyQueues { device: spec.to_string(), queues, max })
    }

    /// Fails if the driver does not work with this memory.
    pub(super) fn check_memory(
        &self,
        spec: &DeviceSpec,
        memory: Memory,
    ) -> Result<(), DeviceError> {
        if self.needs_hugepages && memory == Memory::Ordinary {
            return Err(DeviceError::NeedsHugepages { device: spec.to_string() });
        }
        Ok(())
    }

    /// Fails if the link partner cannot map EAL's memory.
    pub(super) fn check_memory_files(
        &self,
        spec: &DeviceSpec,
        eal: Eal,
    ) -> Result<(), DeviceError> {
        let Some(max) = self.memory_files_max else { return Ok(()) };
        if eal.memory_files(max + 1).is_some_and(|count| count <= max) {
            return Ok(());
        }
        Err(DeviceError::MemoryNotShareable { device: spec.to_string() })
    }
}

#[cfg(test)]
mod tests;
