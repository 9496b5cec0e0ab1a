//! One queue of a DPDK port as the stack's device.

use dpdk_sys::{BURST, Eal, Mempool, RxQueue, TxMbuf, TxQueue};
use ferrowarp_proto::device::{Capabilities, Device, TxClass};

use crate::device::frame::{DpdkRetained, DpdkRx, DpdkTx};
use crate::device::raw::RawPort;

/// Frames taken from a pool at a time. Few, so that a short burst is built in buffers that are
/// still in the first-level cache: with 32, bursts of four full frames took twice as long.
const MBUF_CACHE_LEN: usize = 8;

/// What a device has done so far. Counts frames unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Received.
    pub rx_frames: u64,
    /// Handed to the port.
    pub tx_frames: u64,
    /// Dropped because the transmit queue was full.
    pub tx_dropped: u64,
    /// Dropped because the port sends no frame of that length.
    pub tx_too_long: u64,
    /// Flushes after which frames stayed queued because the port took no more.
    pub tx_deferred: u64,
    /// Allocations refused because the data pool was drained.
    pub data_drained: u64,
    /// Allocations refused although the reserve was tried too.
    pub retransmit_drained: u64,
    /// Allocations refused because the control pool was drained.
    pub control_drained: u64,
}

/// Frames up to so many bytes are taken for headers only: Ethernet, IPv6, TCP with all options.
const HEADERS_LEN_MAX: u16 = 14 + 40 + 60;

/// Bytes of the longest frame with an IP packet of `mtu` bytes: Ethernet's header and a tag.
pub(super) fn frame_len_max(mtu: u16) -> usize {
    usize::from(mtu) + 14 + 4
}

/// Most bytes asked of the caches ahead: processors follow longer runs by themselves.
const PREFETCH_BYTES_MAX: u16 = 2048;

/// Empty frames taken from a pool in bulk, to be given out one by one.
#[derive(Debug)]
pub(super) struct MbufCache {
    pool: Mempool,
    /// The next to be given out, already on its way into the caches of this core.
    next: Option<TxMbuf>,
    frames: Vec<TxMbuf>,
    refill: usize,
}

impl MbufCache {
    pub(super) fn new(pool: Mempool, refill: usize) -> Self {
        Self { pool, next: None, frames: Vec::with_capacity(refill), refill }
    }

    #[inline]
    fn alloc(&mut self) -> Option<TxMbuf> {
        match self.frames.pop() {
            Some(frame) => Some(frame),
            None => self.refill_and_alloc(),
        }
    }

    /// As `take`, and has the first `len` bytes of the frame after that brought near: over `ring`
    /// and memif the peer's core has read them last.
    #[inline]
    fn alloc_prefetched(&mut self, len: u16) -> Option<TxMbuf> {
        let frame = self.next.take().or_else(|| self.alloc());
        self.next = self.alloc();
        if let Some(next) = &self.next {
            next.prefetch_write(len.min(PREFETCH_BYTES_MAX));
        }
        frame
    }

    /// A frame of `len` bytes that `fill` writes; `None` if there is none, or its room is less.
    pub(super) fn copy(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Option<TxMbuf> {
        let mut frame = self.alloc()?;
        fill(frame.buf_mut().get_mut(..len)?);
        frame.set_len(len);
        Some(frame)
    }

    /// Frames left, those in threads' caches not counted.
    #[inline]
    fn avail_count(&self) -> usize {
        self.frames.len() + self.pool.common_pool_count() as usize
    }

    fn refill_and_alloc(&mut self) -> Option<TxMbuf> {
        // Near exhaustion a bulk request takes nothing at all: ask for the last ones singly.
        if !self.pool.allocate(&mut self.frames, self.refill) {
            self.pool.allocate(&mut self.frames, 1);
        }
        self.frames.pop()
    }
}

/// The pools frames are built from.
#[derive(Debug)]
pub(super) struct TxPools {
    pub(super) data: MbufCache,
    pub(super) control: MbufCache,
    pub(super) reserve: MbufCache,
}

impl TxPools {
    pub(super) fn new(data: Mempool, control: Mempool, reserve: Mempool) -> Self {
        Self {
            data: MbufCache::new(data, MBUF_CACHE_LEN),
            control: MbufCache::new(control, MBUF_CACHE_LEN),
            // Nothing is put aside here: what one connection does not need another may.
            reserve: MbufCache::new(reserve, 1),
        }
    }
}

/// A queue of a DPDK port: movable to the thread that polls it, owned by one.
///
/// Dropping it closes the port. Frames may outlive it.
#[derive(Debug)]
pub struct DpdkDevice {
    rx: RxQueue,
    tx: TxQueue,
    /// Frames for the next flush, at most `queue_max`.
    queue: Vec<TxMbuf>,
    queue_max: usize,
    pools: TxPools,
    /// Bytes of the data frame sent last: what the next one is likely to have.
    likely_len: u16,
    capabilities: Capabilities,
    counters: DeviceCounters,
    name: String,
}

impl DpdkDevice {
    pub(super) fn new(
        (rx, tx): (RxQueue, TxQueue),
        pools: TxPools,
        queue_max: usize,
        capabilities: Capabilities,
        name: String,
    ) -> Self {
        Self {
            rx,
            tx,
            queue: Vec::with_capacity(queue_max),
            queue_max,
            pools,
            likely_len: 0,
            capabilities,
            counters: DeviceCounters::default(),
            name,
        }
    }

    /// As a port without a stack: the control and reserve pools go.
    #[must_use]
    pub fn into_raw(self) -> RawPort {
        let Self { rx, tx, pools, queue_max, capabilities, name, .. } = self;
        RawPort::new((rx, tx), pools.data, queue_max, frame_len_max(capabilities.send_mtu), name)
    }

    /// The device as it was named, for reports.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it has done so far.
    #[must_use]
    pub fn counters(&self) -> DeviceCounters {
        self.counters
    }

    /// Whether the link is up: over memif, whether the peer is connected. A control call, not
    /// for every pass.
    #[must_use]
    pub fn link_is_up(&self) -> bool {
        self.rx.link_is_up()
    }

    /// Frames queued and not yet taken by the port.
    #[must_use]
    pub fn transmit_backlog(&self) -> usize {
        self.queue.len()
    }

    /// Unused frames of each pool: data, control, reserve. Walks the caches of all threads: for
    /// tests and reports.
    #[must_use]
    pub fn available(&self) -> [u32; 3] {
        [&self.pools.data, &self.pools.control, &self.pools.reserve].map(|stash| {
            let stashed = u32::try_from(stash.frames.len()).unwrap_or(u32::MAX);
            stash.pool.available() + stashed + u32::from(stash.next.is_some())
        })
    }
}

/// Registers the calling thread with DPDK until it ends, so that it gets caches of its own in
/// every pool. Call it first on each thread that drives a device; doing it again costs one read.
///
/// Returns false, and all works at half the speed, if DPDK does not run yet or has no slot left.
pub fn adopt_thread() -> bool {
    Eal::running().is_some_and(Eal::adopt_thread)
}

impl Device for DpdkDevice {
    type Rx = DpdkRx;
    type Tx = DpdkTx;
    type Retained = DpdkRetained;

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    #[inline]
    fn receive(&mut self, burst: &mut Vec<DpdkRx>, max: usize) -> usize {
        let mut received = 0;
        while received < max {
            let wanted = (max - received).min(BURST);
            let count = self.rx.burst(wanted, |frame| burst.push(DpdkRx(frame)));
            received += count;
            if count < wanted {
                break;
            }
        }
        self.counters.rx_frames += received as u64;
        received
    }

    #[inline]
    fn allocate(&mut self, pool: TxClass) -> Option<DpdkTx> {
        let (frame, drained) = match pool {
            TxClass::Data => {
                (self.pools.data.alloc_prefetched(self.likely_len), &mut self.counters.data_drained)
            }
            TxClass::Control => (self.pools.control.alloc(), &mut self.counters.control_drained),
            TxClass::Retransmit => (
                self.pools.data.alloc_prefetched(0).or_else(|| self.pools.reserve.alloc()),
                &mut self.counters.retransmit_drained,
            ),
        };
        if frame.is_none() {
            *drained += 1;
        }
        frame.map(DpdkTx)
    }

    #[inline]
    fn data_avail_count(&self) -> usize {
        self.pools.data.avail_count()
    }

    #[inline]
    fn tx_free_count(&self) -> usize {
        self.queue_max - self.queue.len()
    }

    #[inline]
    fn transmit(&mut self, frame: DpdkTx) {
        let len = frame.0.bytes().len();
        if len > frame_len_max(self.capabilities.send_mtu) {
            // It would stand at the head of the queue for ever.
            self.counters.tx_too_long += 1;
        } else if self.queue.len() < self.queue_max {
            let len = u16::try_from(len).unwrap_or(u16::MAX);
            if len > HEADERS_LEN_MAX {
                self.likely_len = len;
            }
            self.queue.push(frame.0);
        } else {
            self.counters.tx_dropped += 1;
        }
    }

    #[inline]
    fn flush(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        self.counters.tx_frames += self.tx.flush(&mut self.queue) as u64;
        self.counters.tx_deferred += u64::from(!self.queue.is_empty());
    }
}
