//! Two ports back to back on one thread, with zero-copy transfer of pooled heap frames.
//!
//! A frame is one reference-counted buffer. Sender and receiver hold references to it; dropping the
//! last one returns the buffer to its pool. No allocation after the pair is created.
//!
//! The ports are `Send`, so that a shard of the runtime can own one. Its locks are never contended:
//! both ends are polled by one thread.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ferrowarp_proto::device::{
    Capabilities, ChecksumMode, ChecksumRequest, ChecksumState, Device, Retained, RxFrame, TxClass,
    TxFrame, frame_capacity,
};

use crate::memory_marks::{range_of, range_of_arc, range_of_vec};

/// Frames for segments with payload, in each direction.
const DATA_COUNT: usize = 512;
/// Data frames reserved for retransmissions.
const RESERVE_COUNT: usize = 16;
/// Frames for all other packets.
const CONTROL_COUNT: usize = 128;
/// Frames in flight in one direction.
const QUEUE_LEN: usize = 256;

/// Free buffers, last in first out.
type FreeList = Mutex<Vec<Arc<Buffer>>>;

/// A buffer of a pool.
pub struct Buffer {
    bytes: Box<[u8]>,
    len: AtomicUsize,
    pool: Weak<FreeList>,
}

impl Buffer {
    /// Returns the length of the frame in bytes.
    #[inline]
    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }
}

/// Locks a list whose users do not panic.
#[inline]
fn lock<T>(list: &Mutex<T>) -> MutexGuard<'_, T> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A reference to a frame: received, to be sent, or retained. Dropping the last one returns the
/// buffer to its pool.
#[derive(Clone)]
pub struct LoopFrame(Option<Arc<Buffer>>);

impl LoopFrame {
    fn buffer(&self) -> &Arc<Buffer> {
        self.0.as_ref().expect("taken only when dropped")
    }
}

impl Drop for LoopFrame {
    #[inline]
    fn drop(&mut self) {
        if let Some(buffer) = self.0.take()
            && Arc::strong_count(&buffer) == 1
            && let Some(pool) = buffer.pool.upgrade()
        {
            lock(&pool).push(buffer);
        }
    }
}

impl RxFrame for LoopFrame {
    #[inline]
    fn head(&self) -> &[u8] {
        self.bytes()
    }

    #[inline]
    fn len(&self) -> usize {
        self.buffer().len()
    }

    fn copy_out(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.bytes()[offset..offset + out.len()]);
    }

    #[inline]
    fn checksum(&self) -> ChecksumState {
        ChecksumState::Good
    }
}

impl Retained for LoopFrame {
    #[inline]
    fn bytes(&self) -> &[u8] {
        let buffer = self.buffer();
        &buffer.bytes[..buffer.len()]
    }
}

impl TxFrame for LoopFrame {
    type Retained = Self;

    #[inline(never)]
    fn buf_mut(&mut self) -> &mut [u8] {
        let buffer = self.0.as_mut().and_then(Arc::get_mut);
        &mut buffer.expect("a retained frame never changes").bytes
    }

    #[inline]
    fn set_len(&mut self, len: usize) {
        let buffer = self.buffer();
        assert!(len <= buffer.bytes.len(), "longer than the buffer");
        buffer.len.store(len, Ordering::Relaxed);
    }

    #[inline]
    fn retain(&mut self) -> Self {
        self.clone()
    }

    fn request_checksum(&mut self, _: &ChecksumRequest) {
        unreachable!("the port offers no offload");
    }
}

/// Frames in flight in one direction.
type FrameQueue = Arc<Mutex<VecDeque<LoopFrame>>>;

/// Frames that a port has moved so far.
#[derive(Debug, Default)]
pub struct FrameCounts {
    /// Frames given to the port.
    pub sent: AtomicU64,
    /// Frames taken from it.
    pub received: AtomicU64,
}

/// One port of a pair.
pub struct LoopDevice {
    capabilities: Capabilities,
    data: Arc<FreeList>,
    control: Arc<FreeList>,
    rx_queue: FrameQueue,
    tx_queue: FrameQueue,
    /// Remain readable when the port has an owner.
    pub frames: Arc<FrameCounts>,
    /// Drops every `lose_every`th queued frame; 0: none.
    lose_every: usize,
    queued: usize,
}

/// Two ports connected to each other, with a pool each. Checksums are not needed, as frames stay in
/// memory, but may be computed and verified in software.
pub fn pair(mtu: u16, checksum: ChecksumMode) -> [LoopDevice; 2] {
    let queue = || Arc::new(Mutex::new(VecDeque::with_capacity(QUEUE_LEN)));
    let (to_second, to_first) = (queue(), queue());
    let device = |host: u8, inbound: &FrameQueue, outbound: &FrameQueue| LoopDevice {
        capabilities: Capabilities {
            mac: [2, 0, 0, 0, 0, host],
            mtu,
            send_mtu: mtu,
            checksum,
            tso_segments_max: 0,
            hairpin_mtu: 0,
        },
        data: free_list(DATA_COUNT, mtu),
        control: free_list(CONTROL_COUNT, mtu),
        rx_queue: Arc::clone(inbound),
        tx_queue: Arc::clone(outbound),
        frames: Arc::default(),
        lose_every: 0,
        queued: 0,
    };
    [device(1, &to_first, &to_second), device(2, &to_second, &to_first)]
}

fn free_list(count: usize, mtu: u16) -> Arc<FreeList> {
    let list = Arc::new(Mutex::new(Vec::with_capacity(count)));
    let buffers = (0..count).map(|_| {
        let bytes = vec![0; frame_capacity(mtu)].into_boxed_slice();
        Arc::new(Buffer { bytes, len: AtomicUsize::new(0), pool: Arc::downgrade(&list) })
    });
    let buffers: Vec<_> = buffers.collect();
    lock(&list).extend(buffers);
    list
}

impl LoopDevice {
    /// Returns the number of frames of both pools that are in use.
    pub fn frames_in_use(&self) -> usize {
        let free = lock(&self.data).len() + lock(&self.control).len();
        DATA_COUNT + CONTROL_COUNT - free
    }

    /// Returns the addresses of all memory that the port has allocated, frames included, for a
    /// memory trace. To be called before the port moves a frame.
    pub fn memory(&self) -> Vec<Range<usize>> {
        let mut ranges = vec![range_of_arc(&self.frames)];
        for queue in [&self.rx_queue, &self.tx_queue] {
            let queued = lock(queue);
            // An empty new queue begins at the start of its memory.
            let start = queued.as_slices().0.as_ptr().addr();
            ranges.push(start..start + queued.capacity() * size_of::<LoopFrame>());
            ranges.push(range_of_arc(queue));
        }
        for list in [&self.data, &self.control] {
            let free = lock(list);
            ranges.extend([range_of_arc(list), range_of_vec(&free)]);
            ranges.extend(free.iter().map(range_of_arc));
            ranges.extend(free.iter().map(|buffer| range_of(&*buffer.bytes)));
        }
        ranges
    }

    /// Drops every `count`th transmitted frame from now on; 0: none.
    pub fn lose_every(&mut self, count: usize) {
        (self.lose_every, self.queued) = (count, 0);
    }
}

impl Device for LoopDevice {
    type Rx = LoopFrame;
    type Tx = LoopFrame;
    type Retained = LoopFrame;

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    #[inline(never)]
    fn receive(&mut self, burst: &mut Vec<LoopFrame>, max: usize) -> usize {
        let mut inbound = lock(&self.rx_queue);
        let count = inbound.len().min(max);
        // One by one: the drop of a drain would be a function that is not the harness's by name.
        burst.extend((0..count).filter_map(|_| inbound.pop_front()));
        self.frames.received.fetch_add(count as u64, Ordering::Relaxed);
        count
    }

    #[inline(never)]
    fn allocate(&mut self, pool: TxClass) -> Option<LoopFrame> {
        let (list, reserve) = match pool {
            TxClass::Data => (&self.data, RESERVE_COUNT),
            TxClass::Retransmit => (&self.data, 0),
            TxClass::Control => (&self.control, 0),
        };
        let mut list = lock(list);
        if list.len() <= reserve {
            return None;
        }
        list.pop().map(|buffer| LoopFrame(Some(buffer)))
    }

    // Not inlined, as the others: a profile attributes their work to the harness.
    #[inline(never)]
    fn data_avail_count(&self) -> usize {
        lock(&self.data).len().saturating_sub(RESERVE_COUNT)
    }

    #[inline(never)]
    fn tx_free_count(&self) -> usize {
        QUEUE_LEN - lock(&self.tx_queue).len()
    }

    #[inline(never)]
    fn transmit(&mut self, frame: LoopFrame) {
        let mut outbound = lock(&self.tx_queue);
        if self.lose_every > 0 {
            self.queued += 1;
            if self.queued.is_multiple_of(self.lose_every) {
                return;
            }
        }
        self.frames.sent.fetch_add(1, Ordering::Relaxed);
        if outbound.len() < QUEUE_LEN {
            outbound.push_back(frame);
        }
    }

    fn flush(&mut self) {}
}
