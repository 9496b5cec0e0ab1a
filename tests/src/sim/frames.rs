//! A port with frames and pools on the heap, under the same rules as mbufs and mempools.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use ferrowarp_proto::device::{
    Capabilities, ChecksumMode, Device, MTU_MIN, Retained, TxClass, TxFrame, frame_capacity,
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
    /// Lengths of the link, network and transport headers, if checksums are to be filled in.
    requested: Option<(usize, usize, usize)>,
    can_offload: bool,
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

    fn request_checksum(&mut self, l2_len: usize, l3_len: usize, l4_len: usize) {
        assert!(self.can_offload, "the port offers no offload");
        assert_eq!(Rc::strong_count(&self.buffer), 1, "a retained frame never changes");
        self.requested = Some((l2_len, l3_len, l4_len));
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
            },
            sizes,
            data_in_use: InUse::default(),
            control_in_use: InUse::default(),
            exhausted: Cell::default(),
            is_uncounted: Cell::default(),
            head_len,
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

    /// Enables TX checksum offload: the port computes checksums only on request.
    pub const fn offload_checksums(&mut self) {
        self.capabilities.checksum = ChecksumMode::Offload;
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

/// Computes checksums as a NIC does: that of the IPv4 header, and that of the segment, whose
/// checksum field holds the sum of the pseudo-header.
fn fill_in_checksums(frame: &mut [u8], (l2, l3, l4): (usize, usize, usize)) {
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
    if is_v4 {
        ip::set_checksum(&mut frame[l2..l2 + l3], 10);
    }
    let tcp = l2 + l3;
    let sum = ip::checksum(&frame[tcp..end]);
    frame[tcp + 16..tcp + 18].copy_from_slice(&sum);
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
        let mut inbound = self.inbound.borrow_mut();
        let count = inbound.len().min(max);
        burst.extend(inbound.drain(..count).map(|bytes| Frame::new(bytes).split_at(self.head_len)));
        count
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
        let bytes = vec![0xa5; frame_capacity(self.capabilities.mtu)];
        let can_offload = self.capabilities.checksum == ChecksumMode::Offload;
        let buffer = Rc::new(Buffer { bytes, in_use: Rc::clone(in_use) });
        Some(HeapTx { buffer, requested: None, can_offload })
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

    fn transmit(&mut self, frame: HeapTx) {
        // Ethernet header and VLAN tag. A `send_mtu` below `MTU_MIN` may be exceeded by headers
        // alone.
        let frame_max = usize::from(self.capabilities.send_mtu.max(MTU_MIN)) + 18;
        assert!(frame.buffer.bytes.len() <= frame_max, "a port is given what it sends");
        let mut bytes = frame.buffer.bytes.clone();
        if let Some(lens) = frame.requested {
            fill_in_checksums(&mut bytes, lens);
        }
        self.outbound.borrow_mut().push_back(bytes);
    }

    fn flush(&mut self) {}
}
