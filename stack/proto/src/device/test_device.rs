//! Device for unit tests: frames on the heap, and as many of them as a test allows.

use std::rc::Rc;

use super::{
    Capabilities, ChecksumMode, ChecksumRequest, ChecksumState, Device, Retained, RxFrame, TxClass,
    TxFrame, frame_capacity,
};

/// Hardware address of the device.
pub(crate) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const MTU: u16 = 1500;

/// A frame on the heap; its first contiguous segment ends at `head`.
#[derive(Clone, Debug)]
pub(crate) struct HeapFrame {
    pub(crate) bytes: Rc<[u8]>,
    head: usize,
    is_hairpinned: bool,
}

impl RxFrame for HeapFrame {
    fn head(&self) -> &[u8] {
        &self.bytes[..self.head]
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn copy_out(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.bytes[offset..offset + out.len()]);
    }

    fn checksum(&self) -> ChecksumState {
        ChecksumState::Unknown
    }

    fn is_hairpinned(&self) -> bool {
        self.is_hairpinned
    }
}

impl Retained for HeapFrame {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl HeapFrame {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        // Frames of odd length are chains: the first segment has at most 100 bytes.
        let head = if bytes.len().is_multiple_of(2) { bytes.len() } else { bytes.len().min(100) };
        Self { bytes: bytes.into(), head, is_hairpinned: false }
    }

    /// Marks it as one that the device has returned.
    pub(crate) fn hairpinned(self) -> Self {
        Self { is_hairpinned: true, ..self }
    }
}

/// See the [module's documentation](self). Receives nothing by itself.
pub(crate) struct TestDevice {
    /// Frames that can still be allocated.
    pub(crate) free_frames: usize,
    /// Free slots of the transmit queue.
    pub(crate) tx_free: usize,
    /// Frames transmitted.
    pub(crate) sent: Vec<Vec<u8>>,
    /// Returned frames that were passed to other users of the port.
    pub(crate) passed: Vec<HeapFrame>,
}

impl TestDevice {
    /// Creates a device without limits.
    pub(crate) const fn new() -> Self {
        Self { free_frames: usize::MAX, tx_free: usize::MAX, sent: Vec::new(), passed: Vec::new() }
    }
}

impl Device for TestDevice {
    type Rx = HeapFrame;
    type Tx = TestTx;
    type Retained = HeapFrame;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            mac: MAC,
            mtu: MTU,
            send_mtu: MTU,
            checksum: ChecksumMode::Software,
            tso_segments_max: 0,
            hairpin_mtu: 0,
        }
    }

    fn receive(&mut self, _: &mut Vec<HeapFrame>, _: usize) -> usize {
        0
    }

    fn allocate(&mut self, _: TxClass) -> Option<TestTx> {
        self.free_frames = self.free_frames.checked_sub(1)?;
        Some(TestTx(vec![0xee; frame_capacity(MTU)]))
    }

    fn tx_free_count(&self) -> usize {
        self.tx_free
    }

    fn transmit(&mut self, frame: TestTx) {
        self.tx_free = self.tx_free.checked_sub(1).expect("the transmit queue has a free slot");
        self.sent.push(frame.0);
    }

    fn pass_hairpinned(&mut self, frame: HeapFrame) -> Option<HeapFrame> {
        self.passed.push(frame);
        None
    }

    fn flush(&mut self) {}
}

/// Frame of a [`TestDevice`].
pub(crate) struct TestTx(Vec<u8>);

impl TestTx {
    /// Creates a frame with these bytes.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl TxFrame for TestTx {
    type Retained = HeapFrame;

    fn buf_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn set_len(&mut self, len: usize) {
        self.0.truncate(len);
    }

    fn retain(&mut self) -> HeapFrame {
        HeapFrame::new(&self.0)
    }

    fn request_checksum(&mut self, _: &ChecksumRequest) {}
}
