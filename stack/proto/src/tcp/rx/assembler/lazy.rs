//! Assembler allocated lazily: a connection has it only while data is out of order.

use arrayvec::ArrayVec;

use super::{Assembler, Overlap};
use crate::tcp::rx::ooo_queue::{Charge, Contiguous, OooPool, OooSegment, Quota, Share};
use crate::wire::seq::Seq;
use crate::wire::tcp::SackBlock;

/// [`Assembler`] of one connection, allocated lazily: mostly nothing is out of order.
#[derive(Debug)]
pub(in crate::tcp) struct LazyAssembler<R> {
    pub(super) inner: Option<Box<Assembler<R>>>,
}

impl<R> LazyAssembler<R> {
    /// No out-of-order data.
    pub(in crate::tcp) const fn new() -> Self {
        Self { inner: None }
    }

    /// True if no out-of-order data is left.
    #[inline]
    pub(in crate::tcp) fn is_empty(&self) -> bool {
        self.inner.as_ref().is_none_or(|assembler| assembler.segment_count == 0)
    }

    /// True if no memory is taken from the pool.
    #[inline]
    pub(in crate::tcp) const fn is_idle(&self) -> bool {
        self.inner.is_none()
    }

    /// Number of segments, buffered or consumed.
    #[inline]
    pub(in crate::tcp) fn len(&self) -> usize {
        self.inner.as_ref().map_or(0, |assembler| assembler.segment_count)
    }

    /// Usage of the pool by this connection, and by its peer of group `peer`.
    pub(in crate::tcp) fn share(&self, pool: &OooPool<R>, peer: u8) -> Share {
        match &self.inner {
            Some(assembler) => pool.share(assembler.charge, assembler.quota),
            None => pool.share(Charge::none(peer), Quota::default()),
        }
    }

    /// Returns the end of the last range.
    #[inline]
    pub(in crate::tcp) fn end(&self) -> Option<Seq> {
        Some(self.inner.as_ref()?.ranges.back()?.end)
    }

    /// Returns the new and the duplicate part of `start..end`. If it covers several holes, only the
    /// first is returned as new: a frame is buffered once, and the peer retransmits the rest.
    pub(in crate::tcp) fn overlap(&self, start: Seq, end: Seq) -> Overlap {
        match &self.inner {
            Some(assembler) => assembler.overlap(start, end),
            None => Overlap { new: Some((start, end)), duplicate: None },
        }
    }

    /// True if `block`, which is new, may be accepted with a limit of `segments_max` segments.
    pub(in crate::tcp) fn admits(&self, block: SackBlock, segments_max: usize) -> bool {
        self.inner
            .as_ref()
            .map_or(segments_max > 0, |assembler| assembler.admits(block, segments_max))
    }

    /// Accepts `block`, which is new and admitted: buffered in `segment` from `offset` on, or
    /// consumed if `None`. The peer is of group `peer`.
    pub(in crate::tcp) fn insert(
        &mut self,
        (pool, peer): (&mut OooPool<R>, u8),
        block: SackBlock,
        segment: Option<OooSegment<R>>,
        offset: u32,
    ) {
        let assembler = self.inner.get_or_insert_with(|| pool.take_assembler());
        assembler.charge.peer = peer;
        assembler.insert(block, segment, offset);
        self.charge(pool);
    }

    /// Charges the pool for what is held now.
    pub(in crate::tcp) fn charge(&mut self, pool: &mut OooPool<R>) {
        if let Some(assembler) = &mut self.inner {
            pool.charge(&mut assembler.charge, assembler.quota, assembler.consumed_count);
        }
    }

    /// Removes and returns the segment that starts at `seq`, if there is one.
    pub(in crate::tcp) fn pop_at(&mut self, seq: Seq) -> Option<Contiguous<R>> {
        let assembler = self.inner.as_mut()?;
        assembler.ranges.front().filter(|range| range.start == seq)?;
        assembler.pop()
    }

    /// Returns the memory to the pool, with every buffered segment. To be called when none of it
    /// will be delivered any more, or none is left.
    pub(in crate::tcp) fn release(&mut self, pool: &mut OooPool<R>) {
        let Some(mut assembler) = self.inner.take() else { return };
        while let Some(contiguous) = assembler.pop() {
            if let Contiguous::Buffered { segment, .. } = contiguous {
                pool.release(segment);
            }
        }
        pool.charge(&mut assembler.charge, Quota::default(), 0);
        pool.put_assembler(assembler);
    }

    /// Appends ranges to `blocks`, up to `max` blocks in all, the most recently extended first.
    /// Returns true if extended ranges that were never reported did not fit; they are left for the
    /// next ACK.
    ///
    /// One ACK answers a whole burst, so several ranges may have been extended since the last.
    /// Those beyond the newest three would never be reported; so the oldest unreported ranges are
    /// sent first, until all are reported.
    ///
    /// A range that begins at `rcv_nxt`, the acknowledgment number, is left out: the byte before a
    /// block was not received (RFC 2018 section 3), and senders such as Linux discard such a block.
    /// There is one while data in order waits for its turn, or for memory above TCP.
    pub(in crate::tcp) fn fill_sack_blocks(
        &mut self,
        rcv_nxt: Seq,
        blocks: &mut ArrayVec<SackBlock, 4>,
        max: usize,
    ) -> bool {
        self.inner
            .as_mut()
            .is_some_and(|assembler| assembler.fill_sack_blocks(rcv_nxt, blocks, max))
    }

    /// Returns the range that contains `seq`.
    pub(in crate::tcp) fn range_of(&self, seq: Seq) -> Option<SackBlock> {
        self.inner.as_ref()?.range_of(seq)
    }

    /// True if a segment starts at `seq`: [`LazyAssembler::pop_at`] returns it.
    pub(in crate::tcp) fn has_at(&self, seq: Seq) -> bool {
        let first = self.inner.as_ref().and_then(|assembler| assembler.ranges.front());
        first.is_some_and(|range| range.start == seq)
    }

    /// Returns the ranges in sequence order.
    #[cfg(test)]
    pub(in crate::tcp) fn ranges(&self) -> Vec<SackBlock> {
        let ranges = self.inner.iter().flat_map(|assembler| &assembler.ranges);
        ranges.map(|range| (range.start, range.end)).collect()
    }
}
