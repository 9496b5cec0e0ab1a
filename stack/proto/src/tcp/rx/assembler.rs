//! Reassembly of out-of-order data: the ranges of contiguous bytes received (the SACK blocks
//! reported, RFC 2018 section 4), and the segments of each range in order.
//!
//! A range only grows at its ends. A segment is appended to a range, prepended to one, begins one
//! or merges two. The cost is the search among the ranges, of which there are as many as holes.
//! Accepted data is never evicted for later arrivals. Of overlapping bytes the first copy wins.

use std::collections::VecDeque;

use arrayvec::ArrayVec;

use super::ooo_queue::{CONSUMED_LEN, Charge, Contiguous, OooPool, OooSegment, Quota, Share};
use crate::tcp::lazy::Lazy;
use crate::wire::seq::Seq;
use crate::wire::tcp::SackBlock;

/// Most ranges of a connection. Bounds the cost of a segment that begins a range in the middle, and
/// of a SACK report. A bottleneck queue that overflows drops every other segment above its rate: at
/// 1 Gb/s over 20 ms that leaves more than 2,000 holes at once. An out-of-order segment dropped for
/// lack of a range is one more loss.
const RANGES_MAX: usize = 4096;
/// Number of most recently extended ranges remembered for SACK reports: as many as segments of one
/// receive burst, so that every range extended by a burst is reported, if need be in several ACKs.
const RECENT_MAX: usize = 32;
/// Most other ranges examined to fill the remaining SACK blocks.
const OTHERS_MAX: usize = 8;
/// Entries for which a spare assembler keeps its memory.
const SPARE_ENTRIES: usize = 2048;
/// End of a linked list of entries.
const NONE: u32 = u32::MAX;

/// Segment of a range, or a free entry.
#[derive(Debug)]
struct Entry<R> {
    /// `None`: the upper layer has consumed the bytes already.
    segment: Option<OooSegment<R>>,
    len: u32,
    /// Offset of the bytes in `segment`.
    offset: u32,
    /// Next segment of the range, or next free entry.
    next: u32,
}

/// Range of contiguous bytes.
#[derive(Clone, Copy, Debug)]
struct SeqRange {
    start: Seq,
    end: Seq,
    /// First and last segment.
    head: u32,
    tail: u32,
}

/// Range that was extended recently.
#[derive(Clone, Copy, Debug)]
struct RecentRange {
    /// Its last byte at that time: identifies the range until that byte is delivered.
    seq: Seq,
    /// Time, counted in insertions: the newest range is reported first.
    stamp: u64,
}

/// Out-of-order data of a connection. Taken from the engine's pool while there is any.
#[derive(Debug)]
pub(in crate::tcp) struct Assembler<R> {
    entries: Vec<Entry<R>>,
    free: u32,
    /// In sequence order; no two are adjacent or overlap.
    ranges: VecDeque<SeqRange>,
    /// Most recently extended ranges, the newest last; may refer to data delivered since.
    recent: ArrayVec<RecentRange, RECENT_MAX>,
    stamp: u64,
    /// Stamp up to which ranges were reported.
    reported: u64,
    segment_count: usize,
    /// Entries of consumed bytes.
    consumed_count: usize,
    quota: Quota,
    /// Charge at the pool.
    charge: Charge,
    /// Ranges examined or moved.
    #[cfg(test)]
    steps: usize,
}

impl<R> Default for Assembler<R> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            free: NONE,
            ranges: VecDeque::new(),
            recent: ArrayVec::new_const(),
            stamp: 0,
            reported: 0,
            segment_count: 0,
            consumed_count: 0,
            quota: Quota::default(),
            charge: Charge::default(),
            #[cfg(test)]
            steps: 0,
        }
    }
}

/// New and duplicate parts of an arriving range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) struct Overlap {
    /// First part that is new.
    pub(in crate::tcp) new: Option<SackBlock>,
    /// First part that was received before.
    pub(in crate::tcp) duplicate: Option<SackBlock>,
}

impl<R> Assembler<R> {
    /// Counts steps, for a test of the cost.
    #[cfg_attr(not(test), expect(unused_variables, clippy::unused_self, reason = "tests count"))]
    fn note_steps(&mut self, count: usize) {
        #[cfg(test)]
        {
            self.steps += count;
        }
    }

    /// Returns the index of the first range that ends beyond `seq`.
    #[inline]
    fn search(&self, seq: Seq) -> usize {
        // Most segments lie beyond all ranges, or before them.
        match self.ranges.back() {
            Some(last) if last.end > seq => {}
            _ => return self.ranges.len(),
        }
        if self.ranges.front().is_some_and(|first| first.end > seq) {
            return 0;
        }
        self.ranges.partition_point(|range| range.end <= seq)
    }

    /// True if no out-of-order data is left.
    #[inline]
    pub(in crate::tcp) const fn is_empty(&self) -> bool {
        self.segment_count == 0
    }

    /// Number of segments, buffered or consumed.
    #[inline]
    pub(in crate::tcp) const fn len(&self) -> usize {
        self.segment_count
    }

    /// Returns the end of the last range.
    #[inline]
    pub(in crate::tcp) fn end(&self) -> Option<Seq> {
        Some(self.ranges.back()?.end)
    }

    fn overlap(&self, start: Seq, end: Seq) -> Overlap {
        let index = self.search(start);
        let overlap = |range: &SeqRange| {
            let block = (range.start.max(start), range.end.min(end));
            (block.0 < block.1).then_some(block)
        };
        let Some(range) = self.ranges.get(index) else {
            return Overlap { new: Some((start, end)), duplicate: None };
        };
        if range.start > start {
            return Overlap { new: Some((start, end.min(range.start))), duplicate: overlap(range) };
        }
        // No two ranges are adjacent, so what follows this one up to the next is new.
        let stop = self.ranges.get(index + 1).map_or(end, |next| end.min(next.start));
        let new = (range.end < end).then_some((range.end, stop));
        Overlap { new, duplicate: overlap(range) }
    }

    /// True if the limits admit an entry for `start..end`, which is new.
    fn admits(&self, (start, end): SackBlock, segments_max: usize) -> bool {
        if self.segment_count >= segments_max {
            return false;
        }
        if self.ranges.len() < RANGES_MAX {
            return true;
        }
        let index = self.search(start);
        let follows = index > 0 && self.ranges[index - 1].end == start;
        follows || self.ranges.get(index).is_some_and(|range| range.start == end)
    }

    fn new_entry(&mut self, entry: Entry<R>) -> u32 {
        self.segment_count += 1;
        match &entry.segment {
            Some(segment) => self.quota.add(segment),
            None => {
                self.consumed_count += 1;
                self.quota.bytes += CONSUMED_LEN;
            }
        }
        if self.free == NONE {
            let index = u32::try_from(self.entries.len()).unwrap_or(NONE);
            self.entries.push(entry);
            return index;
        }
        let index = self.free;
        let slot = &mut self.entries[index as usize];
        self.free = slot.next;
        *slot = entry;
        index
    }

    /// Inserts `start..end`, which is new: buffered in `segment` from `offset` on, or consumed if
    /// `None`.
    fn insert(&mut self, (start, end): SackBlock, segment: Option<OooSegment<R>>, offset: u32) {
        let index = self.search(start);
        let follows = index > 0 && self.ranges[index - 1].end == start;
        let precedes = self.ranges.get(index).is_some_and(|range| range.start == end);
        self.note_steps(1 + self.ranges.len().checked_ilog2().unwrap_or(0) as usize);
        let index = if follows { index - 1 } else { index };
        if !self.extend_consumed(index, (start, end), (follows, precedes), segment.is_none()) {
            let entry = self.new_entry(Entry { segment, len: end - start, offset, next: NONE });
            if follows {
                let range = &mut self.ranges[index];
                self.entries[range.tail as usize].next = entry;
                (range.tail, range.end) = (entry, end);
            } else if precedes {
                let range = &mut self.ranges[index];
                self.entries[entry as usize].next = range.head;
                (range.head, range.start) = (entry, start);
            } else {
                self.note_steps(index.min(self.ranges.len() - index));
                self.ranges.insert(index, SeqRange { start, end, head: entry, tail: entry });
            }
        }
        if follows && precedes {
            self.merge(index);
        }
        self.note_recent(index, follows && precedes);
    }

    /// Extends the entry of consumed bytes next to `start..end` in the range at `index`: consumed
    /// bytes need one entry, however many segments they came in. Returns false if these are not
    /// consumed, or there is no such entry.
    fn extend_consumed(
        &mut self,
        index: usize,
        (start, end): SackBlock,
        (follows, precedes): (bool, bool),
        is_consumed: bool,
    ) -> bool {
        if !is_consumed || !(follows || precedes) {
            return false;
        }
        let range = &mut self.ranges[index];
        let entry = &mut self.entries[if follows { range.tail } else { range.head } as usize];
        if entry.segment.is_some() {
            return false;
        }
        entry.len += end - start;
        if follows {
            range.end = end;
        } else {
            range.start = start;
        }
        true
    }

    /// Makes the range at `index` the most recently extended one. `has_joined`: it was merged from
    /// two, each of which may be remembered.
    fn note_recent(&mut self, index: usize, has_joined: bool) {
        self.stamp += 1;
        let SeqRange { start, end, .. } = self.ranges[index];
        let newest = RecentRange { seq: end - 1, stamp: self.stamp };
        let is_in = |recent: &RecentRange| start <= recent.seq && recent.seq < end;
        if !has_joined && let Some(last) = self.recent.last_mut().filter(|last| is_in(last)) {
            *last = newest;
            return;
        }
        self.note_steps(self.recent.len());
        self.recent.retain(|recent| !is_in(recent));
        if self.recent.is_full() {
            self.recent.remove(0);
        }
        self.recent.push(newest);
    }

    /// Merges the range at `index` and the one after it, which are adjacent.
    fn merge(&mut self, index: usize) {
        self.note_steps((index + 1).min(self.ranges.len() - index - 1));
        let Some(next) = self.ranges.remove(index + 1) else { return };
        let range = &mut self.ranges[index];
        self.entries[range.tail as usize].next = next.head;
        (range.tail, range.end) = (next.tail, next.end);
    }

    /// True if a segment starts at `seq`: [`Assembler::pop_at`] returns it.
    pub(in crate::tcp) fn has_at(&self, seq: Seq) -> bool {
        self.ranges.front().is_some_and(|range| range.start == seq)
    }

    /// Removes and returns the segment that starts at `seq`, if there is one.
    pub(in crate::tcp) fn pop_at(&mut self, seq: Seq) -> Option<Contiguous<R>> {
        if self.has_at(seq) { self.pop() } else { None }
    }

    /// Removes and returns the first segment of the first range.
    fn pop(&mut self) -> Option<Contiguous<R>> {
        let range = self.ranges.front_mut()?;
        let (seq, head) = (range.start, range.head);
        let entry = &mut self.entries[head as usize];
        let (len, start) = (entry.len, entry.offset as usize);
        let segment = entry.segment.take();
        range.start = seq + len;
        range.head = core::mem::replace(&mut entry.next, self.free);
        self.free = head;
        if range.start == range.end {
            self.ranges.pop_front();
        }
        self.segment_count -= 1;
        Some(match segment {
            Some(segment) => {
                self.quota.remove(&segment);
                Contiguous::Buffered { segment, bytes: start..start + len as usize }
            }
            None => {
                self.consumed_count -= 1;
                self.quota.bytes -= CONSUMED_LEN;
                Contiguous::Consumed { seq, len }
            }
        })
    }

    /// Clears everything. Buffered segments must have been released before, and what the pool was
    /// charged for.
    pub(in crate::tcp) fn reset(&mut self) {
        self.entries.clear();
        self.entries.shrink_to(SPARE_ENTRIES);
        self.free = NONE;
        self.ranges.clear();
        self.recent.clear();
        (self.stamp, self.reported) = (0, 0);
        (self.segment_count, self.consumed_count) = (0, 0);
        (self.quota, self.charge) = (Quota::default(), Charge::default());
    }

    /// Returns the range that contains `seq`.
    pub(in crate::tcp) fn range_of(&self, seq: Seq) -> Option<SackBlock> {
        let range = self.ranges.get(self.search(seq)).filter(|range| range.start <= seq)?;
        Some((range.start, range.end))
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
    ///
    /// Cost: a search for each of at most [`RECENT_MAX`] ranges.
    pub(in crate::tcp) fn fill_sack_blocks(
        &mut self,
        rcv_nxt: Seq,
        blocks: &mut ArrayVec<SackBlock, 4>,
        max: usize,
    ) -> bool {
        let capacity = max.saturating_sub(blocks.len());
        let search = 1 + self.ranges.len().checked_ilog2().unwrap_or(0) as usize;
        // RFC 2018 section 4: the block extended last is the first. Those never reported are
        // collected too.
        let mut newest: ArrayVec<SackBlock, 4> = ArrayVec::new();
        let mut unreported: ArrayVec<(SackBlock, u64), RECENT_MAX> = ArrayVec::new();
        for at in (0..self.recent.len()).rev() {
            let RecentRange { seq, stamp } = self.recent[at];
            if stamp <= self.reported && newest.len() >= capacity {
                break;
            }
            self.note_steps(search);
            let block =
                self.range_of(seq).filter(|block| block.0 != rcv_nxt && !blocks.contains(block));
            let Some(block) = block else { continue };
            if stamp > self.reported {
                unreported.push((block, stamp));
            }
            if newest.len() < capacity {
                newest.push(block);
            }
        }
        // More than fit, as one ACK answers a burst: the oldest first, the others in the next ACK.
        if unreported.len() > capacity {
            let oldest = &unreported[unreported.len() - capacity..];
            self.reported = oldest.first().map_or(self.reported, |&(_, stamp)| stamp);
            blocks.extend(oldest.iter().map(|&(block, _)| block));
            return true;
        }
        blocks.extend(newest);
        self.reported = self.stamp;
        // RFC 2018 section 4: as many distinct blocks as possible. In sequence order here.
        self.note_steps(OTHERS_MAX);
        for range in self.ranges.iter().take(OTHERS_MAX) {
            let block = (range.start, range.end);
            if blocks.len() < max && block.0 != rcv_nxt && !blocks.contains(&block) {
                blocks.push(block);
            }
        }
        false
    }
}

/// The assembler of a connection: it is in memory of the pool while there is out-of-order data.
impl<R> Lazy<Assembler<R>> {
    /// True if no out-of-order data is left.
    #[inline]
    pub(in crate::tcp) fn is_empty(&self) -> bool {
        self.as_ref().is_none_or(Assembler::is_empty)
    }

    /// Returns the new and the duplicate part of `start..end`. If it covers several holes, only the
    /// first is returned as new: a frame is buffered once, and the peer retransmits the rest.
    pub(in crate::tcp) fn overlap(&self, start: Seq, end: Seq) -> Overlap {
        match self.as_ref() {
            Some(assembler) => assembler.overlap(start, end),
            None => Overlap { new: Some((start, end)), duplicate: None },
        }
    }

    /// True if `block`, which is new, may be accepted with a limit of `segments_max` segments.
    pub(in crate::tcp) fn admits(&self, block: SackBlock, segments_max: usize) -> bool {
        self.as_ref().map_or(segments_max > 0, |assembler| assembler.admits(block, segments_max))
    }

    /// Usage of the pool by this connection, and by its peer of group `peer`.
    pub(in crate::tcp) fn share(&self, pool: &OooPool<R>, peer: u8) -> Share {
        match self.as_ref() {
            Some(assembler) => pool.share(assembler.charge, assembler.quota),
            None => pool.share(Charge::none(peer), Quota::default()),
        }
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
        let assembler = self.get_or_insert_with(|| pool.take_assembler());
        assembler.charge.peer = peer;
        assembler.insert(block, segment, offset);
        self.charge(pool);
    }

    /// Charges the pool for what is held now.
    pub(in crate::tcp) fn charge(&mut self, pool: &mut OooPool<R>) {
        if let Some(assembler) = self.as_mut() {
            pool.charge(&mut assembler.charge, assembler.quota, assembler.consumed_count);
        }
    }

    /// Returns the memory to the pool, with every buffered segment. To be called when none of it
    /// will be delivered any more, or none is left.
    pub(in crate::tcp) fn release(&mut self, pool: &mut OooPool<R>) {
        let Some(mut assembler) = self.take() else { return };
        while let Some(contiguous) = assembler.pop() {
            if let Contiguous::Buffered { segment, .. } = contiguous {
                pool.release(segment);
            }
        }
        pool.charge(&mut assembler.charge, Quota::default(), 0);
        pool.put_assembler(assembler);
    }

    /// Returns the ranges in sequence order.
    #[cfg(test)]
    pub(in crate::tcp) fn ranges(&self) -> Vec<SackBlock> {
        let ranges = self.as_ref().into_iter().flat_map(|assembler| &assembler.ranges);
        ranges.map(|range| (range.start, range.end)).collect()
    }
}

#[cfg(test)]
mod tests;
