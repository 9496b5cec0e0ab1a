//! The seam towards the wire: frames, and the port that takes and gives them in bursts.
//!
//! Production implements these traits over mbufs and a DPDK queue, tests over heap buffers and a
//! simulated link. A frame is one Ethernet frame without its frame check sequence.

use crate::wire::ethernet::VLAN_ETHERNET_LEN;

/// Who computes and checks the TCP and IPv4 header checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumMode {
    /// The medium is memory and cannot corrupt: fields are sent as zero and not checked.
    NotNeeded,
    /// The stack computes and checks them.
    Software,
    /// The port fills them in on transmit (see [`TxFrame::request_checksum`]); received frames
    /// say what the port found ([`RxFrame::checksum`]).
    Offload,
}

/// What a received frame's port found out about the frame's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumState {
    /// Nobody looked.
    Unknown,
    /// All of them are right.
    Good,
    /// At least one is wrong.
    Bad,
}

/// What a port can do. Fixed while the engine runs.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// The port's hardware address.
    pub mac: [u8; 6],
    /// Largest IP packet in bytes, IP header included; [`MTU_MIN`] at least.
    pub mtu: u16,
    /// The same for what is sent: `mtu`, unless the port receives larger packets than it sends.
    pub send_mtu: u16,
    /// Checksum arrangement.
    pub checksum: ChecksumMode,
}

/// Least MTU of a port, in bytes of IP packet. Smaller ones work, as long as frames have the room
/// that [`frame_capacity`] says, but hardly carry more than headers.
pub const MTU_MIN: u16 = 256;

const _: () = assert!(MTU_MIN >= PACKET_CAPACITY_MIN);

/// Which of the shard's pools a frame to be sent comes from.
///
/// Draining one of them must not stop progress in the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxClass {
    /// Segments that carry FPDUs for the first time.
    Data,
    /// Retransmissions: may use the reserve that `Data` leaves untouched.
    Retransmit,
    /// ACK, SYN, RST, ARP, ICMP: never stream bytes.
    Control,
}

/// A received frame. Never edited: over `ring` the sender still holds it.
pub trait RxFrame {
    /// The first contiguous run of bytes. Link, network and transport headers lie in it whole;
    /// a frame for which they do not is dropped. So it has the first 118 bytes of any longer
    /// frame at least ([`MAX_HEADER_LEN`]: Ethernet, a tag, IPv6, TCP with all options); with less,
    /// segments with many options would be lost each time they are sent. IPv6 extension headers
    /// come on top.
    ///
    /// [`MAX_HEADER_LEN`]: crate::wire::tcp::MAX_HEADER_LEN
    fn head(&self) -> &[u8];

    /// Bytes of the whole frame, over all runs.
    fn len(&self) -> usize;

    /// True if the frame has no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes `offset..offset + out.len()` of the frame, across runs, to `out`.
    ///
    /// # Panics
    /// If the range ends beyond [`RxFrame::len`].
    fn copy_out(&self, offset: usize, out: &mut [u8]);

    /// What the port found about the checksums.
    fn checksum(&self) -> ChecksumState;
}

/// A second reference to a frame that was sent, kept until its bytes are acknowledged.
///
/// The bytes are immutable: the same memory may be under transmission, or at the peer.
pub trait Retained: Clone + 'static {
    /// The frame's bytes, headers as they were at first transmission.
    fn bytes(&self) -> &[u8];
}

/// Bytes of the longest packet that is built whole whatever the MTU: the smallest FPDU that
/// messages are cut to (128 bytes of ULPDU, length, CRC and a marker), with headers of IPv6 and
/// of TCP with all options. If it is longer than a packet of the link, TCP cuts it.
pub const PACKET_CAPACITY_MIN: u16 = 140 + 40 + 60;

/// Bytes of room that a frame to be sent has at least, at a port of this MTU: an Ethernet header
/// with a VLAN tag goes before the IP packet.
#[must_use]
pub const fn frame_capacity(mtu: u16) -> usize {
    let packet = if mtu < PACKET_CAPACITY_MIN { PACKET_CAPACITY_MIN } else { mtu };
    packet as usize + VLAN_ETHERNET_LEN
}

/// A frame under construction, contiguous.
pub trait TxFrame: Sized {
    /// The handle that outlives transmission.
    type Retained: Retained;

    /// The whole writable room: [`frame_capacity`] bytes at least. The frame starts at index 0.
    ///
    /// # Panics
    /// After [`TxFrame::retain`]: a retained frame never changes.
    fn buf_mut(&mut self) -> &mut [u8];

    /// Declares the frame to be the first `len` bytes of the room. Call before `retain`.
    fn set_len(&mut self, len: usize);

    /// Takes a second reference for retransmission; the frame is immutable from here on.
    fn retain(&mut self) -> Self::Retained;

    /// Asks the port to fill in the TCP checksum and, over IPv4, that of the IP header (mode
    /// `Offload` only). The TCP checksum field already holds the folded pseudo-header sum. Of every
    /// TCP frame after [`TxFrame::set_len`] and before [`TxFrame::retain`]: nobody else makes them.
    fn request_checksum(&mut self, l2_len: usize, l3_len: usize, l4_len: usize);
}

/// A port queue: bursts in, bursts out. One owner, never shared.
pub trait Device {
    /// A received frame; dropping it gives its memory back.
    type Rx: RxFrame;
    /// A frame to be sent; dropping it unsent gives its memory back.
    type Tx: TxFrame<Retained = Self::Retained>;
    /// A sent frame kept for retransmission; dropping it gives up the reference.
    type Retained: Retained;

    /// What the port can do.
    fn capabilities(&self) -> Capabilities;

    /// Appends at most `max` received frames to `burst`, in arrival order; returns how many.
    /// Takes what is there and never waits.
    fn receive(&mut self, burst: &mut Vec<Self::Rx>, max: usize) -> usize;

    /// An empty frame from `pool`, or `None` while the pool is drained (a normal result: the
    /// caller tries again in a later pass).
    fn allocate(&mut self, pool: TxClass) -> Option<Self::Tx>;

    /// About how many frames of [`TxClass::Data`] are left, rather too few than too many; asked for
    /// once in a pass. A device that cannot tell has plenty: then connections are not kept from
    /// taking all of them.
    fn data_avail_count(&self) -> usize {
        usize::MAX
    }

    /// How many frames [`Device::transmit`] takes before the next [`Device::flush`].
    fn tx_free_count(&self) -> usize;

    /// Queues a frame for the next flush. Frames leave in the order queued. With no room left the
    /// frame is dropped and counted, as a wire would.
    fn transmit(&mut self, frame: Self::Tx);

    /// Hands queued frames to the port in bursts; what the port does not take stays queued.
    fn flush(&mut self);
}
