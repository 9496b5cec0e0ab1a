//! The frames of the bound: mbufs of a `ring` port, reused in the order of the runtime's pools.

use anyhow::{Context, Result};
use ferrowarp::device::{Device, DpdkDevice, DpdkTx, TxClass};
use ferrowarp_proto::tcp;

use super::layout::emss;

/// Segments that the engine sends per pass, and so the frames in flight where both ends take turns
/// on one core: the pass of the sink acknowledges them all.
pub(crate) const BURST_LEN: usize = 16;
/// Mbufs that the runtime takes from a pool at a time.
const CACHE_LEN: usize = 8;

/// Frames in rotation on one core: a burst, and those taken from the pool in advance.
pub(crate) const ONE_CORE_COUNT: usize = BURST_LEN + CACHE_LEN;

/// Returns the frames in rotation on two cores: a receive window in flight, as large as that of a
/// new connection, and those taken in advance.
pub(crate) fn two_cores_count(mtu: u16) -> usize {
    let window = usize::try_from(tcp::Config::default().recv_window).unwrap_or(usize::MAX);
    window.div_ceil(emss(mtu)).max(BURST_LEN) + CACHE_LEN
}

/// Free frames at the source: last in, first out, but taken from the pool in advance, a few at a
/// time, as the runtime does. So the frames that are built next are not those freed last, and a
/// burst walks the same addresses as in the run.
#[derive(Debug)]
pub(crate) struct FramePool<F> {
    pool: Vec<F>,
    cache: Vec<F>,
    /// The runtime prefetches this one while the frame before it is built.
    next: Option<F>,
}

impl FramePool<DpdkTx> {
    /// Takes `count` mbufs from the data pool of `device`.
    pub(crate) fn allocate(device: &mut DpdkDevice, count: usize) -> Result<Self> {
        let frames = (0..count).map(|_| device.allocate(TxClass::Data));
        let frames: Option<Vec<_>> = frames.collect();
        let frames = frames.with_context(|| format!("the pool has no {count} frames"))?;
        Ok(Self::new(frames))
    }
}

impl<F> FramePool<F> {
    pub(crate) fn new(frames: Vec<F>) -> Self {
        Self { pool: frames, cache: Vec::with_capacity(CACHE_LEN), next: None }
    }

    /// Takes a frame; `None` if all are in use.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<F> {
        let frame = self.next.take().or_else(|| self.pop());
        self.next = self.pop();
        frame
    }

    #[inline]
    fn pop(&mut self) -> Option<F> {
        if self.cache.is_empty() {
            let free = self.pool.len();
            self.cache.extend(self.pool.drain(free.saturating_sub(CACHE_LEN)..).rev());
        }
        self.cache.pop()
    }

    #[inline]
    pub(crate) fn free(&mut self, frame: F) {
        self.pool.push(frame);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_burst_at_a_time_rotates_all_frames_of_one_core() {
        let mut pool = FramePool::new((0..1000).collect());
        let burst = |pool: &mut FramePool<usize>| {
            let frames: Vec<_> = (0..BURST_LEN).map(|_| pool.take().unwrap()).collect();
            frames.iter().for_each(|&frame| pool.free(frame));
            frames
        };
        let used: BTreeSet<_> = (0..10).flat_map(|_| burst(&mut pool)).collect();
        assert_eq!(used.len(), ONE_CORE_COUNT);
    }
}
