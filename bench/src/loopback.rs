//! Two ports back to back on one thread, with zero-copy transfer of pooled heap frames.
//!
//! A frame is one reference-counted buffer. Sender and receiver hold references to it; dropping the
//! last one returns the buffer to its pool. No allocation after the pair is created.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use ferrowarp_proto::device::{
    Capabilities, ChecksumMode, ChecksumState, Device, Retained, RxFrame, TxClass, TxFrame,
    frame_capacity,
};

/// Frames for segments with payload, in each direction.
const DATA_COUNT: usize = 512;
/// Data frames reserved for retransmissions.
const RESERVE_COUNT: usize = 16;
/// Frames for all other packets.
const CONTROL_COUNT: usize = 128;
/// Frames in flight in one direction.
const QUEUE_LEN: usize = 256;

/// Free buffers, last in first out.
type FreeList = RefCell<Vec<Rc<Buffer>>>;

struct Buffer {
    bytes: Box<[u8]>,
    len: Cell<usize>,
    pool: Weak<FreeList>,
}

/// A reference to a buffer; dropping the last one returns it to its pool.
#[derive(Clone)]
struct FrameRef(Option<Rc<Buffer>>);

impl FrameRef {
    fn buffer(&self) -> &Rc<Buffer> {
        self.0.as_ref().expect("taken only when dropped")
    }

    fn bytes(&self) -> &[u8] {
        let buffer = self.buffer();
        &buffer.bytes[..buffer.len.get()]
    }
}

impl Drop for FrameRef {
    #[inline]
    fn drop(&mut self) {
        if let Some(buffer) = self.0.take()
            && Rc::strong_count(&buffer) == 1
            && let Some(pool) = buffer.pool.upgrade()
        {
            pool.borrow_mut().push(buffer);
        }
    }
}

/// A received frame.
pub struct LoopRx(FrameRef);

impl RxFrame for LoopRx {
    #[inline]
    fn head(&self) -> &[u8] {
        self.0.bytes()
    }

    #[inline]
    fn len(&self) -> usize {
        self.0.buffer().len.get()
    }

    fn copy_out(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.0.bytes()[offset..offset + out.len()]);
    }

    #[inline]
    fn checksum(&self) -> ChecksumState {
        ChecksumState::Good
    }
}

/// A retained sent frame.
#[derive(Clone)]
pub struct LoopRetained(FrameRef);

impl Retained for LoopRetained {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// A frame to send.
pub struct LoopTx(FrameRef);

impl TxFrame for LoopTx {
    type Retained = LoopRetained;

    #[inline]
    fn buf_mut(&mut self) -> &mut [u8] {
        let buffer = self.0.0.as_mut().and_then(Rc::get_mut);
        &mut buffer.expect("a retained frame never changes").bytes
    }

    #[inline]
    fn set_len(&mut self, len: usize) {
        let buffer = self.0.buffer();
        assert!(len <= buffer.bytes.len(), "longer than the buffer");
        buffer.len.set(len);
    }

    #[inline]
    fn retain(&mut self) -> LoopRetained {
        LoopRetained(self.0.clone())
    }

    fn request_checksum(&mut self, _l2_len: usize, _l3_len: usize, _l4_len: usize) {
        unreachable!("the port offers no offload");
    }
}

/// Frames in flight in one direction.
type FrameQueue = Rc<RefCell<VecDeque<FrameRef>>>;

/// One port of a pair. Needs no checksums: frames stay in memory.
pub struct LoopDevice {
    capabilities: Capabilities,
    data: Rc<FreeList>,
    control: Rc<FreeList>,
    rx_queue: FrameQueue,
    tx_queue: FrameQueue,
    /// Drops every `lose_every`th queued frame; 0: none.
    lose_every: usize,
    queued: usize,
}

/// Two ports connected to each other, with a pool each.
#[must_use]
pub fn pair(mtu: u16) -> [LoopDevice; 2] {
    let queue = || Rc::new(RefCell::new(VecDeque::with_capacity(QUEUE_LEN)));
    let (to_second, to_first) = (queue(), queue());
    let device = |host: u8, inbound: &FrameQueue, outbound: &FrameQueue| LoopDevice {
        capabilities: Capabilities {
            mac: [2, 0, 0, 0, 0, host],
            mtu,
            send_mtu: mtu,
            checksum: ChecksumMode::NotNeeded,
        },
        data: free_list(DATA_COUNT, mtu),
        control: free_list(CONTROL_COUNT, mtu),
        rx_queue: Rc::clone(inbound),
        tx_queue: Rc::clone(outbound),
        lose_every: 0,
        queued: 0,
    };
    [device(1, &to_first, &to_second), device(2, &to_second, &to_first)]
}

fn free_list(count: usize, mtu: u16) -> Rc<FreeList> {
    let list = Rc::new(RefCell::new(Vec::with_capacity(count)));
    let buffers = (0..count).map(|_| {
        let bytes = vec![0; frame_capacity(mtu)].into_boxed_slice();
        Rc::new(Buffer { bytes, len: Cell::new(0), pool: Rc::downgrade(&list) })
    });
    let buffers: Vec<_> = buffers.collect();
    list.borrow_mut().extend(buffers);
    list
}

impl LoopDevice {
    /// Returns the number of frames of both pools that are in use.
    #[must_use]
    pub fn frames_in_use(&self) -> usize {
        let free = self.data.borrow().len() + self.control.borrow().len();
        DATA_COUNT + CONTROL_COUNT - free
    }

    /// Drops every `count`th transmitted frame from now on; 0: none.
    pub const fn lose_every(&mut self, count: usize) {
        (self.lose_every, self.queued) = (count, 0);
    }
}

impl Device for LoopDevice {
    type Rx = LoopRx;
    type Tx = LoopTx;
    type Retained = LoopRetained;

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    #[inline(never)]
    fn receive(&mut self, burst: &mut Vec<LoopRx>, max: usize) -> usize {
        let mut inbound = self.rx_queue.borrow_mut();
        let count = inbound.len().min(max);
        burst.extend(inbound.drain(..count).map(LoopRx));
        count
    }

    #[inline(never)]
    fn allocate(&mut self, pool: TxClass) -> Option<LoopTx> {
        let (list, reserve) = match pool {
            TxClass::Data => (&self.data, RESERVE_COUNT),
            TxClass::Retransmit => (&self.data, 0),
            TxClass::Control => (&self.control, 0),
        };
        let mut list = list.borrow_mut();
        if list.len() <= reserve {
            return None;
        }
        list.pop().map(|buffer| LoopTx(FrameRef(Some(buffer))))
    }

    #[inline]
    fn data_avail_count(&self) -> usize {
        self.data.borrow().len().saturating_sub(RESERVE_COUNT)
    }

    #[inline]
    fn tx_free_count(&self) -> usize {
        QUEUE_LEN - self.tx_queue.borrow().len()
    }

    #[inline(never)]
    fn transmit(&mut self, frame: LoopTx) {
        let mut outbound = self.tx_queue.borrow_mut();
        if self.lose_every > 0 {
            self.queued += 1;
            if self.queued.is_multiple_of(self.lose_every) {
                return;
            }
        }
        if outbound.len() < QUEUE_LEN {
            outbound.push_back(frame.0);
        }
    }

    fn flush(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_returns_to_pool_on_last_drop() {
        let [mut left, mut right] = pair(100);
        let mut frame = left.allocate(TxClass::Data).unwrap();
        frame.buf_mut()[..3].copy_from_slice(&[1, 2, 3]);
        frame.set_len(3);
        let retained = frame.retain();
        left.transmit(frame);
        let mut burst = Vec::new();
        assert_eq!(right.receive(&mut burst, 32), 1);
        assert_eq!((burst[0].head(), retained.bytes()), (&[1, 2, 3][..], &[1, 2, 3][..]));
        assert_eq!(left.frames_in_use(), 1);
        drop(retained);
        assert_eq!(left.frames_in_use(), 1);
        burst.clear();
        assert_eq!((left.frames_in_use(), right.frames_in_use()), (0, 0));
    }

    #[test]
    fn data_reserve_and_control_pools_are_separate() {
        let [mut left, right] = pair(100);
        let data: Vec<_> = std::iter::from_fn(|| left.allocate(TxClass::Data)).collect();
        assert_eq!(data.len(), DATA_COUNT - RESERVE_COUNT);
        let retransmits: Vec<_> =
            std::iter::from_fn(|| left.allocate(TxClass::Retransmit)).collect();
        assert_eq!(retransmits.len(), RESERVE_COUNT);
        assert!(left.allocate(TxClass::Control).is_some());
        for frame in data {
            left.transmit(frame);
        }
        assert_eq!((left.tx_free_count(), right.rx_queue.borrow().len()), (0, QUEUE_LEN));
        drop(retransmits);
        assert_eq!(left.frames_in_use(), QUEUE_LEN);
    }

    #[test]
    #[should_panic(expected = "a retained frame never changes")]
    fn writing_a_retained_frame_panics() {
        let [mut left, _right] = pair(100);
        let mut frame = left.allocate(TxClass::Data).unwrap();
        let _retained = frame.retain();
        frame.buf_mut();
    }
}
