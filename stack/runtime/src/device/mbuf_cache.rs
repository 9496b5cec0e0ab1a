//! Mempools of a device, and the mbufs allocated from them in advance.

use dpdk_sys::{Eal, Mempool, MempoolConfig, TxMbuf};

use crate::device::pools::{MEMPOOL_CACHE_SIZE, OnePool, PoolSizes};

/// Mbufs allocated from a pool at a time. Few, so that a short burst is built in buffers that are
/// still in the L1 cache: with 32, bursts of four full frames took twice as long.
const MBUF_CACHE_LEN: usize = 8;

/// Most bytes prefetched: processors prefetch the rest of a longer sequential access themselves.
const PREFETCH_BYTES_MAX: usize = 2048;

/// Empty mbufs allocated from a pool in bulk and returned one by one.
#[derive(Debug)]
pub(super) struct MbufCache {
    /// Next mbuf of `alloc_prefetched`, already being prefetched into this core's caches.
    next: Option<TxMbuf>,
    frames: Vec<TxMbuf>,
    refill: usize,
    /// Mbufs of the pool that are left to other uses of it.
    left: u32,
    /// Dropped last: the host program may free its pool as soon as nothing refers to it.
    pool: Mempool,
}

impl MbufCache {
    fn new(pool: Mempool, refill: usize) -> Self {
        Self::leaving(0, pool, refill)
    }

    /// Allocates while more than `left` mbufs of the pool are free, about.
    fn leaving(left: u32, pool: Mempool, refill: usize) -> Self {
        Self { next: None, frames: Vec::with_capacity(refill), refill, left, pool }
    }

    #[inline]
    pub(super) fn alloc(&mut self) -> Option<TxMbuf> {
        match self.frames.pop() {
            Some(frame) => Some(frame),
            None => self.refill_and_alloc(),
        }
    }

    /// Allocates as `alloc` does, and prefetches the first `len` bytes of the following mbuf for
    /// writing: over
    /// `ring` and memif the peer's core read them last.
    #[inline]
    pub(super) fn alloc_prefetched(&mut self, len: usize) -> Option<TxMbuf> {
        let frame = self.next.take().or_else(|| self.alloc());
        self.next = self.alloc();
        if let Some(next) = &self.next {
            next.prefetch_write(len.min(PREFETCH_BYTES_MAX));
        }
        frame
    }

    /// Returns a frame of `len` bytes written by `fill`; `None` if no mbuf is free or the frame
    /// does not fit.
    pub(super) fn copy(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Option<TxMbuf> {
        let mut frame = self.alloc()?;
        fill(frame.buf_mut().get_mut(..len)?);
        frame.set_len(len);
        Some(frame)
    }

    /// Returns the number of free mbufs, not counting `next` and the threads' mempool caches.
    #[inline]
    pub(super) fn avail_count(&self) -> usize {
        self.frames.len() + self.pool.common_pool_count().saturating_sub(self.left) as usize
    }

    /// Counts as `avail_count` does, with `next` and the threads' mempool caches, which it walks.
    pub(super) fn avail_count_slow(&self) -> u32 {
        let cached = u32::try_from(self.frames.len()).unwrap_or(u32::MAX);
        let free = self.pool.available().saturating_sub(self.left);
        free + cached + u32::from(self.next.is_some())
    }

    fn refill_and_alloc(&mut self) -> Option<TxMbuf> {
        if self.left != 0 && self.pool.common_pool_count() <= self.left {
            return None;
        }
        // A bulk allocation is all or nothing: near exhaustion take the last mbufs singly.
        if !self.pool.allocate(&mut self.frames, self.refill) {
            self.pool.allocate(&mut self.frames, 1);
        }
        self.frames.pop()
    }
}

/// Mempools of the frames that the stack transmits.
#[derive(Debug)]
pub(super) struct TxPools {
    pub(super) data: MbufCache,
    pub(super) control: MbufCache,
    pub(super) reserve: MbufCache,
}

impl TxPools {
    /// All from one mempool. What is for retransmission at SND.UNA, and for control packets, is
    /// left there by the other uses.
    pub(super) fn of_one(pool: &Mempool, needs: &OnePool) -> Self {
        let cache = |left, refill| MbufCache::leaving(left, pool.clone(), refill);
        Self {
            data: cache(needs.left_by_data, MBUF_CACHE_LEN),
            control: cache(needs.left_by_control, MBUF_CACHE_LEN),
            reserve: cache(0, 1),
        }
    }
}

/// Creates the mempools of one device: data, control and reserve for transmission, and one for
/// reception.
pub(super) fn create_pools(
    eal: Eal,
    sizes: &PoolSizes,
    rx_buf_size: u16,
) -> Result<(TxPools, Mempool), dpdk_sys::Error> {
    let pool = |count: u32, frame_capacity, cache| {
        Mempool::new(eal, &MempoolConfig { count, cache, frame_capacity })
    };
    let data = pool(sizes.data, sizes.frame_capacity, MEMPOOL_CACHE_SIZE)?;
    let control = pool(sizes.control, sizes.frame_capacity, MEMPOOL_CACHE_SIZE)?;
    // No caches: every mbuf of the reserve must be available to any thread.
    let reserve = pool(sizes.reserve, sizes.frame_capacity, 0)?;
    let receive = match sizes.receive {
        0 => data.clone(),
        count => pool(count, rx_buf_size, MEMPOOL_CACHE_SIZE)?,
    };
    let tx = TxPools {
        data: MbufCache::new(data, MBUF_CACHE_LEN),
        control: MbufCache::new(control, MBUF_CACHE_LEN),
        // No bulk allocation: any mbuf of the reserve may be needed elsewhere.
        reserve: MbufCache::new(reserve, 1),
    };
    Ok((tx, receive))
}

#[cfg(test)]
mod tests {
    use dpdk_sys::EalConfig;

    use super::*;

    /// However many data segments are in flight, control packets and retransmissions have mbufs.
    #[test]
    fn uses_of_one_pool_leave_mbufs_to_each_other() {
        let eal = Eal::init(&EalConfig::default()).unwrap();
        let config = MempoolConfig { count: 127, cache: 0, frame_capacity: 256 };
        let pool = Mempool::new(eal, &config).unwrap();
        let (left_by_data, left_by_control) = (60, 20);
        let needs = OnePool { frame_capacity: 256, count: 127, left_by_data, left_by_control };
        let mut pools = TxPools::of_one(&pool, &needs);
        let drain =
            |cache: &mut MbufCache| std::iter::from_fn(|| cache.alloc()).collect::<Vec<_>>();
        let refill = u32::try_from(MBUF_CACHE_LEN).unwrap();
        let data = drain(&mut pools.data);
        assert_eq!(pools.data.avail_count(), 0);
        assert!(pool.available() <= left_by_data && pool.available() > left_by_data - refill);
        let control = drain(&mut pools.control);
        assert!(control.len() >= 40 - MBUF_CACHE_LEN);
        assert!(pool.available() > left_by_control - refill);
        let reserve = drain(&mut pools.reserve);
        assert!(reserve.len() > 20 - MBUF_CACHE_LEN && pool.available() == 0);
        drop((data, control, reserve, pools));
        assert_eq!(pool.available(), 127);
    }
}
