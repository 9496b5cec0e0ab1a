//! Interface to the port: frames, and the port queue that receives and transmits them in bursts.
//!
//! Production implements these traits over mbufs and a DPDK port queue, tests over heap buffers and
//! a simulated link. A frame is one Ethernet frame without its frame check sequence.

use core::net::IpAddr;

/// Place at which TCP and IPv4 header checksums are computed and verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumMode {
    /// Nowhere: the medium is memory. The fields are sent as zero and not verified.
    NotNeeded,
    /// In the stack.
    Software,
    /// TCP's in the port, which fills it in on transmit (see [`TxFrame::request_checksum`]);
    /// that of the IPv4 header in the stack. For received frames the port may report either
    /// ([`RxFrame::checksum`]), and the stack verifies what it does not.
    OffloadTcp,
    /// Both in the port: TCP's as with `OffloadTcp`, and the IPv4 header's.
    Offload,
}

impl ChecksumMode {
    /// True if the port computes the TCP checksum.
    #[must_use]
    pub const fn is_offloaded(self) -> bool {
        matches!(self, Self::OffloadTcp | Self::Offload)
    }
}

/// Request that the port fills in the checksums of a frame. Lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumRequest {
    /// Length of the link header.
    pub l2_len: usize,
    /// Length of the network header.
    pub l3_len: usize,
    /// Length of the TCP header.
    pub l4_len: usize,
    /// The checksum of the IPv4 header too, if the packet is one of IPv4.
    pub ipv4: bool,
}

/// Request that the port cuts a frame into TCP segments with payloads of equal length, and fills in
/// their checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentationRequest {
    /// Header lengths, and whether the port fills in the checksum of the IPv4 header.
    pub checksum: ChecksumRequest,
    /// Bytes of payload in each segment.
    pub payload_len: usize,
}

/// Result of the port's checksum verification of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumState {
    /// Not verified.
    Unknown,
    /// The transport header's is correct; the IPv4 header's was not verified.
    TransportGood,
    /// All checksums are correct.
    Good,
    /// At least one checksum is wrong.
    Bad,
}

/// Capabilities of a port. Fixed while the engine runs.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// Hardware address of the port.
    pub mac: [u8; 6],
    /// Largest IP packet in bytes, IP header included; at least [`MTU_MIN`].
    pub mtu: u16,
    /// The same for transmission: `mtu`, unless the port receives larger packets than it sends.
    pub send_mtu: u16,
    /// Place at which checksums are computed and verified.
    pub checksum: ChecksumMode,
    /// Largest IP packet in bytes that the port returns to its own receive queue, if it is sent to
    /// the port's hardware address ([`Device::enable_hairpin`]): frames have as much room. 0 if it
    /// does not return frames; then no address of this host can be connected to.
    pub hairpin_mtu: u16,
    /// Most segments into which the port cuts a frame (TCP segmentation offload, see
    /// [`Device::request_segmentation`]); 0 if it does not. Requires that it computes the TCP
    /// checksum.
    pub tso_segments_max: u16,
}

/// Least MTU of a port, in bytes of IP packet. Smaller ones work if frames have [`frame_capacity`]
/// bytes, but hardly carry more than headers.
pub const MTU_MIN: u16 = 256;

const _: () = assert!(MTU_MIN >= PACKET_CAPACITY_MIN);

/// Largest MTU of any port: the buffer length of DPDK's mbufs, headroom included, has 16 bits.
pub const MTU_MAX: u16 = 65_280;

/// Frame pool of the shard from which a frame is allocated.
///
/// Exhaustion of one pool must not stop progress in the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxClass {
    /// Segments that carry FPDUs for the first time.
    Data,
    /// Retransmissions: may use the reserve that `Data` does not touch.
    Retransmit,
    /// ACK, SYN, RST, ARP, ICMP: frames without stream bytes.
    Control,
}

/// Received frame. Read-only: over a `ring` port the sender still refers to it.
pub trait RxFrame {
    /// First contiguous segment of the frame. It has to contain the link, network and transport
    /// headers; otherwise the frame is dropped. So it contains at least the first 118 bytes of any
    /// longer frame ([`MAX_HEADER_LEN`]: Ethernet, VLAN tag, IPv6, TCP with all options); with
    /// less, segments with many options would be lost on every retransmission. IPv6 extension
    /// headers are not included in this length.
    ///
    /// [`MAX_HEADER_LEN`]: crate::wire::tcp::MAX_HEADER_LEN
    fn head(&self) -> &[u8];

    /// Length of the frame in bytes, over all its segments.
    fn len(&self) -> usize;

    /// True if the frame is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes `offset..offset + out.len()` of the frame, across its segments, to `out`.
    ///
    /// # Panics
    /// If the range ends beyond [`RxFrame::len`].
    fn copy_out(&self, offset: usize, out: &mut [u8]);

    /// Result of the port's checksum verification.
    fn checksum(&self) -> ChecksumState;

    /// True if the port has returned the frame ([`Device::enable_hairpin`]): this host sent it.
    /// Frames from the wire that have an address of this host as their source are forged.
    fn is_hairpinned(&self) -> bool {
        false
    }
}

/// Second reference to a sent frame, held until its bytes are acknowledged.
///
/// The bytes are immutable: the port may still be transmitting them, or the peer refer to them.
pub trait Retained: Clone + 'static {
    /// The bytes of the frame, with the headers of the first transmission if it has any
    /// ([`TxFrame::append`]).
    fn bytes(&self) -> &[u8];
}

/// Bytes of the longest packet that is built whole whatever the MTU: the smallest FPDU that
/// messages are segmented to (128 bytes of ULPDU, length, CRC and a marker), with headers of IPv6
/// and of TCP with all options. If it exceeds the MTU, TCP segments it.
pub const PACKET_CAPACITY_MIN: u16 = 140 + 40 + 60;

/// Bytes of the longest link header: Ethernet with a VLAN tag.
pub const LINK_HEADER_LEN_MAX: usize = 18;

/// Least capacity in bytes of a frame to be sent, at a port of this MTU: the IP packet and an
/// Ethernet header with a VLAN tag.
#[must_use]
pub const fn frame_capacity(mtu: u16) -> usize {
    let packet = if mtu < PACKET_CAPACITY_MIN { PACKET_CAPACITY_MIN } else { mtu };
    packet as usize + LINK_HEADER_LEN_MAX
}

/// Frame under construction, contiguous.
pub trait TxFrame: Sized {
    /// The reference that outlives transmission.
    type Retained: Retained;

    /// The writable buffer, at least [`frame_capacity`] bytes. The frame starts at index 0.
    ///
    /// # Panics
    /// After [`TxFrame::retain`]: a retained frame never changes.
    fn buf_mut(&mut self) -> &mut [u8];

    /// Sets the length of the frame to the first `len` bytes of the buffer. Call it before
    /// `retain`.
    fn set_len(&mut self, len: usize);

    /// Takes a second reference for retransmission; the frame is immutable from then on.
    fn retain(&mut self) -> Self::Retained;

    /// Requests that the port fills in checksums (modes `OffloadTcp` and `Offload` only). Called
    /// for every TCP frame, after [`TxFrame::set_len`] and before [`TxFrame::retain`]: no other
    /// code computes them. The headers may be written later. When the frame is sent, its TCP
    /// checksum field holds the folded pseudo-header sum.
    fn request_checksum(&mut self, request: &ChecksumRequest);

    /// Continues the frame with the bytes of others, which have payload alone, in order. The port
    /// is to cut it ([`Device::request_segmentation`] follows). References to any of them that were
    /// retained before remain valid, and refer to the bytes of that one.
    ///
    /// # Panics
    /// If the port does not cut frames.
    fn append(&mut self, _payloads: impl Iterator<Item = Self>) {
        unreachable!("the port cuts no frames");
    }
}

/// Port queue that receives and transmits bursts. It has one owner and is never shared.
pub trait Device {
    /// Received frame; dropping it frees its memory.
    type Rx: RxFrame;
    /// Frame to be sent; dropping it unsent frees its memory.
    type Tx: TxFrame<Retained = Self::Retained>;
    /// Sent frame kept for retransmission; dropping it releases the reference.
    type Retained: Retained;

    /// Loads the cache lines of a value while the engine goes on: a hint, for the state that it
    /// uses soon. Nothing by default.
    #[inline(always)]
    fn prefetch<T: ?Sized>(_value: &T) {}

    /// Returns the capabilities of the port.
    fn capabilities(&self) -> Capabilities;

    /// Appends at most `max` received frames to `burst`, in order of arrival; returns their number.
    /// Never waits.
    fn receive(&mut self, burst: &mut Vec<Self::Rx>, max: usize) -> usize;

    /// Allocates an empty frame from `pool`; `None` while the pool is exhausted (a normal result:
    /// the caller retries in a later pass).
    fn allocate(&mut self, pool: TxClass) -> Option<Self::Tx>;

    /// Estimate of the free frames of [`TxClass::Data`], rather too low than too high; read once
    /// per pass. A device that cannot count them returns the largest value: connections are then
    /// not kept from using all of them.
    fn data_avail_count(&self) -> usize {
        usize::MAX
    }

    /// Number of frames that [`Device::transmit`] accepts before the next [`Device::flush`].
    fn tx_free_count(&self) -> usize;

    /// Requests that the port cuts a frame (TCP segmentation offload): called if
    /// [`Capabilities::tso_segments_max`] is not 0, after [`TxFrame::append`] and before
    /// [`TxFrame::retain`], instead of [`TxFrame::request_checksum`]. The frame has the headers and
    /// the payload of the first segment, and those appended to it the payloads of the others. The
    /// headers are those of one packet of the whole length, with the sum of a pseudo-header without
    /// length in the TCP checksum field; the port counts sequence numbers and identifications on,
    /// and leaves FIN and PSH to the last segment.
    ///
    /// False if the driver refuses the frame: it must not be transmitted, and no other is to be
    /// cut.
    ///
    /// # Panics
    /// If the port does not cut frames.
    fn request_segmentation(
        &mut self,
        _frame: &mut Self::Tx,
        _request: &SegmentationRequest,
    ) -> bool {
        unreachable!("the port cuts no frames");
    }

    /// Has the port return what is sent to its own hardware address from now on, instead of sending
    /// it: called if [`Capabilities::hairpin_mtu`] is not 0, before the first such frame, and again
    /// any number of times. So a port without local connections need not look at destinations.
    ///
    /// The frames arrive at this queue, in order, or at the queue of another user of the port
    /// ([`Device::hairpins_to`]). The port keeps a bounded number of them, and drops more as on a
    /// wire. [`RxFrame::is_hairpinned`] marks them. Checksums that it was to compute count as
    /// correct.
    ///
    /// False if it returns none.
    fn enable_hairpin(&mut self) -> bool {
        false
    }

    /// True if frames that the port has returned wait to be received.
    fn has_hairpinned(&self) -> bool {
        false
    }

    /// Tells the port the addresses of this host, and its VLAN. Called once, before any frame is
    /// sent. Other users of the port in this process reach them through it.
    fn set_addresses(&mut self, _vlan: Option<u16>, _addresses: impl Iterator<Item = IpAddr>) {}

    /// True if another user of the port has this address, in the same VLAN: frames to it go to the
    /// port's own hardware address. Called for each segment of the link that is of no connection,
    /// so it takes a lock only after users have come or gone.
    fn hairpins_to(&self, _remote: IpAddr) -> bool {
        false
    }

    /// Passes a frame that the port has returned, and that neither a connection nor a listener here
    /// has taken, to the next user of the port that has its destination address. Gives it back if
    /// there is none.
    fn pass_hairpinned(&mut self, frame: Self::Rx) -> Option<Self::Rx> {
        Some(frame)
    }

    /// Number of connections to a process at the other end of the link that have ended, if each new
    /// one has a peer that knows nothing of those before. 0 if none has, or if they are not
    /// counted. Counted before the first frame of the next one is received.
    fn link_down_count(&self) -> u32 {
        0
    }

    /// Queues a frame for the next flush. Frames are sent in the order queued. If the queue is full
    /// the frame is dropped and counted, as on a wire.
    fn transmit(&mut self, frame: Self::Tx);

    /// Passes queued frames to the port in bursts; frames that the port does not accept stay
    /// queued.
    fn flush(&mut self);
}

#[cfg(test)]
pub(crate) mod test_device;
