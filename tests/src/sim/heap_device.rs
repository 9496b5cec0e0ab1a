//! A port with frames and pools on the heap, under the same rules as mbufs and mempools.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use ferrowarp_proto::device::{
    Capabilities, ChecksumMode, ChecksumRequest, Device, MTU_MIN, Retained, SegmentationRequest,
    TxClass, TxFrame, frame_capacity,
};

use crate::frame::Frame;
use crate::ip;

/// Number of buffers of one pool in use.
type InUse = Rc<Cell<usize>>;

/// A buffer; counted as in use until it is dropped.
struct Buffer {
    bytes: Vec<u8>,
    in_use: InUse,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.in_use.set(self.in_use.get() - 1);
    }
}

/// A frame retained for retransmission.
#[derive(Clone)]
pub struct HeapRetained(Rc<Buffer>);

impl Retained for HeapRetained {
    fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }
}

/// A frame to be sent.
pub struct HeapTx {
    buffer: Rc<Buffer>,
    /// Checksums to be filled in.
    requested: Option<ChecksumRequest>,
    /// Bytes of payload in each of the segments into which the frame is to be cut.
    cut_to: Option<usize>,
    /// Frames that continue this one.
    appended: Vec<HeapTx>,
    mode: ChecksumMode,
}

impl TxFrame for HeapTx {
    type Retained = HeapRetained;

    fn buf_mut(&mut self) -> &mut [u8] {
        &mut Rc::get_mut(&mut self.buffer).expect("a retained frame never changes").bytes
    }

    fn set_len(&mut self, len: usize) {
        Rc::get_mut(&mut self.buffer).expect("a retained frame never changes").bytes.truncate(len);
    }

    fn retain(&mut self) -> HeapRetained {
        HeapRetained(Rc::clone(&self.buffer))
    }

    fn request_checksum(&mut self, request: &ChecksumRequest) {
        assert!(self.mode.is_offloaded(), "the port offers no offload");
        assert_eq!(request.ipv4, self.mode == ChecksumMode::Offload, "what the port offers");
        assert_eq!(Rc::strong_count(&self.buffer), 1, "a retained frame never changes");
        self.requested = Some(*request);
    }

    fn append(&mut self, payloads: impl Iterator<Item = Self>) {
        self.appended.extend(payloads);
    }
}

/// Segments into which [`PortOffload::Segmentation`] cuts a frame, at most.
const TSO_SEGMENTS_MAX: u16 = 7;

/// Work of a port on the frames that it sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortOffload {
    /// Nothing.
    #[default]
    None,
    /// It fills in TCP checksums.
    Tcp,
    /// It fills in TCP and IPv4 checksums.
    TcpIpv4,
    /// It fills in TCP checksums, and cuts frames into TCP segments, up to seven.
    Segmentation,
}

impl PortOffload {
    /// Returns one of them, by the number of a seed.
    #[must_use]
    pub const fn of_seed(seed: u64) -> Self {
        match seed % 4 {
            0 => Self::None,
            1 => Self::Tcp,
            2 => Self::TcpIpv4,
            _ => Self::Segmentation,
        }
    }
}

/// Frames that the transmit queue of a port holds.
pub const TX_QUEUE_LEN: usize = 64;

/// Number of buffers in each pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolSizes {
    /// For new segments; retransmissions may use `reserve` more.
    pub data: usize,
    /// See `data`.
    pub reserve: usize,
    /// For control segments.
    pub control: usize,
}

/// Frames received by a port, or sent by it.
pub type FrameQueue = Rc<RefCell<VecDeque<Vec<u8>>>>;

/// A port of the simulation.
pub struct HeapDevice {
    capabilities: Capabilities,
    sizes: PoolSizes,
    data_in_use: InUse,
    control_in_use: InUse,
    /// The data pool and the control pool are exhausted at present.
    exhausted: Cell<[bool; 2]>,
    /// Its free frames cannot be counted.
    is_uncounted: Cell<bool>,
    /// Length of the contiguous head of received frames.
    head_len: usize,
    /// Frames that were cut into segments.
    pub frames_cut: usize,
    /// The driver refuses frames that are to be cut.
    refuses_to_cut: bool,
    /// Frames to its own hardware address come back.
    hairpins: bool,
    /// Frames that it has returned and holds.
    hairpinned: VecDeque<Vec<u8>>,
    /// Number of them, at most.
    hairpin_len: usize,
    /// Frames that it has dropped because there were more.
    pub hairpin_drops: usize,
    /// Frames from the link.
    pub inbound: FrameQueue,
    /// Frames to the link.
    pub outbound: FrameQueue,
}

impl HeapDevice {
    /// A port with software checksums, so that corruption is detected.
    #[must_use]
    pub fn new(mac: [u8; 6], mtu: u16, sizes: PoolSizes, head_len: usize) -> Self {
        Self {
            capabilities: Capabilities {
                mac,
                mtu,
                send_mtu: mtu,
                checksum: ChecksumMode::Software,
                tso_segments_max: 0,
                hairpin_mtu: mtu,
            },
            sizes,
            data_in_use: InUse::default(),
            control_in_use: InUse::default(),
            exhausted: Cell::default(),
            is_uncounted: Cell::default(),
            head_len,
            frames_cut: 0,
            refuses_to_cut: false,
            hairpins: false,
            hairpinned: VecDeque::new(),
            hairpin_len: HAIRPIN_LEN,
            hairpin_drops: 0,
            inbound: FrameQueue::default(),
            outbound: FrameQueue::default(),
        }
    }

    /// Limits the packets sent to `bytes`; the limit for received packets is unchanged.
    pub fn set_send_mtu(&mut self, bytes: u16) {
        self.capabilities.send_mtu = self.capabilities.mtu.min(bytes);
    }

    /// Disables checksums: neither computed nor verified.
    pub const fn skip_checksums(&mut self) {
        self.capabilities.checksum = ChecksumMode::NotNeeded;
    }

    /// Enables offloads: the port does only what is requested for a frame.
    pub const fn set_offload(&mut self, offload: PortOffload) {
        self.capabilities.checksum = match offload {
            PortOffload::None => ChecksumMode::Software,
            PortOffload::Tcp | PortOffload::Segmentation => ChecksumMode::OffloadTcp,
            PortOffload::TcpIpv4 => ChecksumMode::Offload,
        };
        let cuts = matches!(offload, PortOffload::Segmentation);
        self.capabilities.tso_segments_max = if cuts { TSO_SEGMENTS_MAX } else { 0 };
    }

    /// Has packets of up to `bytes` returned that are sent to the port itself; 0: none are.
    pub const fn set_hairpin_mtu(&mut self, bytes: u16) {
        self.capabilities.hairpin_mtu = bytes;
    }

    /// Limits the frames that it has returned and holds.
    pub const fn set_hairpin_len(&mut self, frames: usize) {
        self.hairpin_len = frames;
    }

    /// True if it returns frames to its own hardware address.
    #[must_use]
    pub const fn hairpins(&self) -> bool {
        self.hairpins
    }

    /// Behaves like a driver that refuses what it offered.
    pub const fn refuse_to_cut(&mut self) {
        self.refuses_to_cut = true;
    }

    /// Makes allocation from the data pool and the control pool fail, as if all buffers were in
    /// use.
    pub fn set_exhausted(&self, pools: [bool; 2]) {
        self.exhausted.set(pools);
    }

    /// Behaves like a port that cannot count its free frames.
    pub fn set_uncounted(&self) {
        self.is_uncounted.set(true);
    }

    /// Buffers in use, over all pools.
    #[must_use]
    pub fn frames_in_use(&self) -> usize {
        self.data_in_use.get() + self.control_in_use.get()
    }
}

/// Frames that a port has returned and holds, at most, unless set.
const HAIRPIN_LEN: usize = 256;

impl HeapDevice {
    /// Returns a frame to the receive queue, or drops it if there are too many. Checksums requested
    /// of the port are filled in: this device reports none as verified.
    fn hairpin(&mut self, frame: &HeapTx) {
        assert_eq!((frame.cut_to, frame.appended.len()), (None, 0), "no frame to be cut");
        let mut bytes = frame.buffer.bytes.clone();
        assert!(bytes.len() <= usize::from(self.capabilities.hairpin_mtu) + 18, "it fits");
        if let Some(request) = &frame.requested {
            fill_in_checksums(&mut bytes, request);
        }
        if self.hairpinned.len() < self.hairpin_len {
            self.hairpinned.push_back(bytes);
        } else {
            self.hairpin_drops += 1;
        }
    }
}

/// Computes checksums as a NIC does: of the IPv4 header, if requested, and of the segment. The
/// segment's checksum field holds the sum of the pseudo-header.
fn fill_in_checksums(frame: &mut [u8], request: &ChecksumRequest) {
    let &ChecksumRequest { l2_len: l2, l3_len: l3, l4_len: l4, ipv4 } = request;
    let is_v4 = frame[l2] >> 4 == 4;
    assert_eq!(l3, if is_v4 { usize::from(frame[l2] & 15) * 4 } else { 40 });
    assert_eq!(l4, usize::from(frame[l2 + l3 + 12] >> 4) * 4, "the length of the TCP header");
    let ip_len = usize::from(u16::from_be_bytes([frame[l2 + 2], frame[l2 + 3]]));
    let end = l2
        + if is_v4 {
            ip_len
        } else {
            l3 + usize::from(u16::from_be_bytes([frame[l2 + 4], frame[l2 + 5]]))
        };
    if is_v4 && ipv4 {
        ip::set_checksum(&mut frame[l2..l2 + l3], 10);
    }
    let tcp = l2 + l3;
    let sum = ip::checksum(&frame[tcp..end]);
    frame[tcp + 16..tcp + 18].copy_from_slice(&sum);
}

/// Cuts a frame into segments as a NIC does.
fn cut(frame: &HeapTx, request: &ChecksumRequest, payload_len: usize) -> Vec<Vec<u8>> {
    let &ChecksumRequest { l2_len: l2, l3_len: l3, l4_len: l4, .. } = request;
    let (headers, first) = frame.buffer.bytes.split_at(l2 + l3 + l4);
    let payloads: Vec<&[u8]> = core::iter::once(first)
        .chain(frame.appended.iter().map(|next| {
            assert_eq!((next.requested, next.cut_to), (None, None), "payload alone");
            &next.buffer.bytes[..]
        }))
        .collect();
    assert!(payloads.len() <= usize::from(TSO_SEGMENTS_MAX), "as many as the port cuts");
    assert!(payloads.iter().all(|payload| payload.len() == payload_len), "equal payloads");
    let is_v4 = headers[l2] >> 4 == 4;
    let read = |at: usize| u16::from_be_bytes([headers[at], headers[at + 1]]);
    let l4_total = l4 + payloads.len() * payload_len;
    let counted = if is_v4 { l3 + l4_total } else { l4_total };
    let len_at = l2 + if is_v4 { 2 } else { 4 };
    assert_eq!(usize::from(read(len_at)), counted, "the length of the whole packet");
    let seq_at = l2 + l3 + 4;
    let seq = u32::from_be_bytes(headers[seq_at..seq_at + 4].try_into().expect("four bytes"));
    let cut_one = |(index, payload): (usize, &&[u8])| {
        let mut bytes = [headers, payload].concat();
        let number = u16::try_from(index).expect("few segments");
        let len = counted - (payloads.len() - 1) * payload_len;
        let len = u16::try_from(len).expect("a packet");
        bytes[len_at..len_at + 2].copy_from_slice(&len.to_be_bytes());
        if is_v4 {
            let id = read(l2 + 4).wrapping_add(number);
            bytes[l2 + 4..l2 + 6].copy_from_slice(&id.to_be_bytes());
            bytes[l2 + 10..l2 + 12].fill(0);
        }
        let offset = u32::from(number) * u32::try_from(payload_len).expect("a payload");
        bytes[seq_at..seq_at + 4].copy_from_slice(&seq.wrapping_add(offset).to_be_bytes());
        if index + 1 < payloads.len() {
            const FIN_PSH: u8 = 0x09;
            bytes[l2 + l3 + 13] &= !FIN_PSH;
        }
        // The sum of the pseudo-header lacks the length.
        let sum_at = l2 + l3 + 16;
        let sum = u32::from(read(sum_at)) + u32::try_from(l4 + payload_len).expect("a segment");
        let sum = u16::try_from((sum & 0xffff) + (sum >> 16)).expect("one carry");
        bytes[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
        fill_in_checksums(&mut bytes, &ChecksumRequest { ipv4: true, ..*request });
        bytes
    };
    payloads.iter().enumerate().map(cut_one).collect()
}

thread_local! {
    static PREFETCHED_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// Returns the bytes that engines on this thread have loaded ahead so far.
#[must_use]
pub fn prefetched_bytes() -> usize {
    PREFETCHED_BYTES.get()
}

impl Device for HeapDevice {
    type Rx = Frame<Vec<u8>>;
    type Tx = HeapTx;
    type Retained = HeapRetained;

    fn prefetch<T: ?Sized>(value: &T) {
        PREFETCHED_BYTES.set(PREFETCHED_BYTES.get() + size_of_val(value));
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn receive(&mut self, burst: &mut Vec<Frame<Vec<u8>>>, max: usize) -> usize {
        let returned = self.hairpinned.len().min(max);
        let frame = |bytes| Frame::new(bytes).split_at(self.head_len);
        burst.extend(self.hairpinned.drain(..returned).map(|bytes| frame(bytes).hairpinned()));
        let mut inbound = self.inbound.borrow_mut();
        let received = inbound.len().min(max - returned);
        burst.extend(inbound.drain(..received).map(frame));
        returned + received
    }

    fn allocate(&mut self, pool: TxClass) -> Option<HeapTx> {
        let (in_use, limit) = match pool {
            TxClass::Data => (&self.data_in_use, self.sizes.data),
            TxClass::Retransmit => (&self.data_in_use, self.sizes.data + self.sizes.reserve),
            TxClass::Control => (&self.control_in_use, self.sizes.control),
        };
        let [data, control] = self.exhausted.get();
        let is_drained = if pool == TxClass::Control { control } else { data };
        if is_drained || in_use.get() >= limit {
            return None;
        }
        in_use.set(in_use.get() + 1);
        let bytes =
            vec![0xa5; frame_capacity(self.capabilities.mtu.max(self.capabilities.hairpin_mtu))];
        let buffer = Rc::new(Buffer { bytes, in_use: Rc::clone(in_use) });
        Some(HeapTx {
            buffer,
            requested: None,
            cut_to: None,
            appended: Vec::new(),
            mode: self.capabilities.checksum,
        })
    }

    fn data_avail_count(&self) -> usize {
        if self.is_uncounted.get() {
            return usize::MAX;
        }
        let [data, _] = self.exhausted.get();
        if data { 0 } else { self.sizes.data.saturating_sub(self.data_in_use.get()) }
    }

    fn tx_free_count(&self) -> usize {
        TX_QUEUE_LEN.saturating_sub(self.outbound.borrow().len())
    }

    fn enable_hairpin(&mut self) -> bool {
        self.hairpins = self.capabilities.hairpin_mtu > 0;
        self.hairpins
    }

    fn has_hairpinned(&self) -> bool {
        !self.hairpinned.is_empty()
    }

    fn transmit(&mut self, frame: HeapTx) {
        if self.hairpins && frame.buffer.bytes.first_chunk() == Some(&self.capabilities.mac) {
            return self.hairpin(&frame);
        }
        // Ethernet header and VLAN tag. A `send_mtu` below `MTU_MIN` may be exceeded by headers
        // alone.
        let frame_max = usize::from(self.capabilities.send_mtu.max(MTU_MIN)) + 18;
        assert!(frame.buffer.bytes.len() <= frame_max, "a port is given what it sends");
        let mut outbound = self.outbound.borrow_mut();
        if let (Some(request), Some(payload_len)) = (&frame.requested, frame.cut_to) {
            self.frames_cut += 1;
            outbound.extend(cut(&frame, request, payload_len));
            return;
        }
        assert!(frame.appended.is_empty(), "only frames to be cut are continued");
        let mut bytes = frame.buffer.bytes.clone();
        if let Some(request) = &frame.requested {
            fill_in_checksums(&mut bytes, request);
        }
        outbound.push_back(bytes);
    }

    fn request_segmentation(&mut self, frame: &mut HeapTx, request: &SegmentationRequest) -> bool {
        assert!(self.capabilities.tso_segments_max > 1, "the port cuts no frames");
        frame.request_checksum(&request.checksum);
        assert!(!frame.appended.is_empty(), "the frame is complete");
        frame.cut_to = Some(request.payload_len);
        !self.refuses_to_cut
    }

    fn flush(&mut self) {}
}
