//! What arrived ahead of its turn: the runs of contiguous bytes it forms (the SACK blocks we
//! report, RFC 2018 section 4), and of each run the pieces in order.
//!
//! A run only ever grows at its ends, so a piece is appended to a run, put before one, begins one
//! or joins two: the work is the search among the runs, of which there are as many as holes. What
//! was accepted is not given up for later arrivals, and of overlapping bytes the first copy wins.

use core::ops::Range;
use std::collections::VecDeque;

use arrayvec::ArrayVec;

use super::ooo_queue::{OooPool, OooSegment, Quota, SPARE_ENTRIES};
use crate::wire::seq::Seq;
use crate::wire::tcp::SackBlock;

/// Most runs of a connection: bounds the work of a segment that begins one in the middle, and of a
/// report. A queue that overflows takes every other segment of what exceeds its rate: at 1 Gb/s
/// over 20 ms that makes more than 2,000 holes at once, and an early segment refused for want of a
/// run is lost once more.
const RANGES_MAX: usize = 4096;
/// Runs that grew last and are remembered for reports: as many segments as one pass takes, so that
/// each run that grew in it is reported, if only several ACKs have room for all.
const RECENT_MAX: usize = 32;
/// Other runs looked at to fill a report with.
const OTHERS_MAX: usize = 8;
/// End of a chain of entries.
const NONE: u32 = u32::MAX;

/// A piece of a run, or a free entry.
#[derive(Debug)]
struct Entry<R> {
    /// `None`: the upper layer has taken the bytes already.
    segment: Option<OooSegment<R>>,
    len: u32,
    /// Where the bytes start in what is held.
    offset: u32,
    /// The piece that follows in the run, or the next free entry.
    next: u32,
}

/// A run of contiguous bytes.
#[derive(Clone, Copy, Debug)]
struct SeqRange {
    start: Seq,
    end: Seq,
    /// First and last piece.
    head: u32,
    tail: u32,
}

/// That a run grew.
#[derive(Clone, Copy, Debug)]
struct RecentRange {
    /// Its last byte then: in the same run for as long as that is there.
    seq: Seq,
    /// When, in insertions: the newest run is reported first.
    stamp: u64,
}

/// What a connection holds out of order. Lent by the engine's pool while there is something.
#[derive(Debug)]
pub(super) struct Assembler<R> {
    entries: Vec<Entry<R>>,
    free: u32,
    /// In sequence order; no two touch.
    ranges: VecDeque<SeqRange>,
    /// The runs that grew last, the newest at the end; what is handed up since may still be named.
    recent: ArrayVec<RecentRange, RECENT_MAX>,
    stamp: u64,
    /// Stamp up to which runs were reported.
    reported: u64,
    segment_count: usize,
    quota: Quota,
    /// Runs looked at or moved.
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
            quota: Quota::default(),
            #[cfg(test)]
            steps: 0,
        }
    }
}

/// The next bytes in order, out of what was accepted early.
#[derive(Debug)]
pub enum Contiguous<R> {
    /// They were held until now. The holder goes back by [`OooPool::release`].
    Buffered {
        /// What holds them.
        segment: OooSegment<R>,
        /// Where they lie in it.
        bytes: Range<usize>,
    },
    /// The upper layer took them when they came.
    Consumed {
        /// Sequence number of the first.
        seq: Seq,
        /// How many.
        len: u32,
    },
}

/// What an arriving range is in the light of what was accepted before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overlap {
    /// The first part that is new.
    pub(super) new: Option<SackBlock>,
    /// The first part that is not.
    pub(super) duplicate: Option<SackBlock>,
}

impl<R> Assembler<R> {
    /// Counts work, for a test of its amount.
    #[cfg_attr(not(test), expect(unused_variables, clippy::unused_self, reason = "tests count"))]
    fn note_steps(&mut self, count: usize) {
        #[cfg(test)]
        {
            self.steps += count;
        }
    }

    /// Index of the first run that ends beyond `seq`.
    #[inline]
    fn search(&self, seq: Seq) -> usize {
        // What arrives mostly lies beyond everything, or before.
        match self.ranges.back() {
            Some(last) if last.end > seq => {}
            _ => return self.ranges.len(),
        }
        if self.ranges.front().is_some_and(|first| first.end > seq) {
            return 0;
        }
        self.ranges.partition_point(|run| run.end <= seq)
    }

    fn overlap(&self, start: Seq, end: Seq) -> Overlap {
        let index = self.search(start);
        let overlap = |run: &SeqRange| {
            let block = (run.start.max(start), run.end.min(end));
            (block.0 < block.1).then_some(block)
        };
        let Some(run) = self.ranges.get(index) else {
            return Overlap { new: Some((start, end)), duplicate: None };
        };
        if run.start > start {
            return Overlap { new: Some((start, end.min(run.start))), duplicate: overlap(run) };
        }
        // No two runs touch, so what follows the run is new, up to the next.
        let stop = self.ranges.get(index + 1).map_or(end, |next| end.min(next.start));
        let new = (run.end < end).then_some((run.end, stop));
        Overlap { new, duplicate: overlap(run) }
    }

    /// True if an entry for `start..end`, which is new, is within bounds.
    fn admits(&self, (start, end): SackBlock, pieces_max: usize) -> bool {
        if self.segment_count >= pieces_max {
            return false;
        }
        if self.ranges.len() < RANGES_MAX {
            return true;
        }
        let index = self.search(start);
        let follows = index > 0 && self.ranges[index - 1].end == start;
        follows || self.ranges.get(index).is_some_and(|run| run.start == end)
    }

    fn new_entry(&mut self, entry: Entry<R>) -> u32 {
        self.segment_count += 1;
        if let Some(held) = &entry.segment {
            self.quota.add(held);
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

    /// Adds `start..end`, which is new, as bytes held from `offset` on, or taken.
    fn insert(&mut self, (start, end): SackBlock, held: Option<OooSegment<R>>, offset: u32) {
        let index = self.search(start);
        let follows = index > 0 && self.ranges[index - 1].end == start;
        let precedes = self.ranges.get(index).is_some_and(|run| run.start == end);
        self.note_steps(1 + self.ranges.len().checked_ilog2().unwrap_or(0) as usize);
        let index = if follows { index - 1 } else { index };
        if !self.extend_consumed(index, (start, end), (follows, precedes), held.is_none()) {
            let entry =
                self.new_entry(Entry { segment: held, len: end - start, offset, next: NONE });
            if follows {
                let run = &mut self.ranges[index];
                self.entries[run.tail as usize].next = entry;
                (run.tail, run.end) = (entry, end);
            } else if precedes {
                let run = &mut self.ranges[index];
                self.entries[entry as usize].next = run.head;
                (run.head, run.start) = (entry, start);
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

    /// What was taken needs one entry, however many segments brought it: true if the run at `index`
    /// has one next to `start..end`.
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
        let run = &mut self.ranges[index];
        let entry = &mut self.entries[if follows { run.tail } else { run.head } as usize];
        if entry.segment.is_some() {
            return false;
        }
        entry.len += end - start;
        if follows {
            run.end = end;
        } else {
            run.start = start;
        }
        true
    }

    /// The run at `index` has grown, and is the newest; `has_joined`: two were named that are one
    /// now.
    fn note_recent(&mut self, index: usize, has_joined: bool) {
        self.stamp += 1;
        let SeqRange { start, end, .. } = self.ranges[index];
        let newest = RecentRange { seq: end - 1, stamp: self.stamp };
        let is_in = |growth: &RecentRange| start <= growth.seq && growth.seq < end;
        if !has_joined && let Some(last) = self.recent.last_mut().filter(|last| is_in(last)) {
            *last = newest;
            return;
        }
        self.note_steps(self.recent.len());
        self.recent.retain(|growth| !is_in(growth));
        if self.recent.is_full() {
            self.recent.remove(0);
        }
        self.recent.push(newest);
    }

    /// Joins the run at `index` and the one after it, which touch.
    fn merge(&mut self, index: usize) {
        self.note_steps((index + 1).min(self.ranges.len() - index - 1));
        let Some(next) = self.ranges.remove(index + 1) else { return };
        let run = &mut self.ranges[index];
        self.entries[run.tail as usize].next = next.head;
        (run.tail, run.end) = (next.tail, next.end);
    }

    /// Takes out the first piece of the first run.
    fn pop(&mut self) -> Option<Contiguous<R>> {
        let run = self.ranges.front_mut()?;
        let (seq, head) = (run.start, run.head);
        let entry = &mut self.entries[head as usize];
        let (len, start) = (entry.len, entry.offset as usize);
        let held = entry.segment.take();
        run.start = seq + len;
        run.head = core::mem::replace(&mut entry.next, self.free);
        self.free = head;
        if run.start == run.end {
            self.ranges.pop_front();
        }
        self.segment_count -= 1;
        Some(match held {
            Some(held) => {
                self.quota.remove(&held);
                Contiguous::Buffered { segment: held, bytes: start..start + len as usize }
            }
            None => Contiguous::Consumed { seq, len },
        })
    }

    /// Forgets everything; what is held must have been given back.
    pub(super) fn reset(&mut self) {
        self.entries.clear();
        self.entries.shrink_to(SPARE_ENTRIES);
        self.free = NONE;
        self.ranges.clear();
        self.recent.clear();
        (self.stamp, self.reported) = (0, 0);
        (self.segment_count, self.quota) = (0, Quota::default());
    }

    /// The run that contains `seq`.
    fn range_of(&self, seq: Seq) -> Option<SackBlock> {
        let run = self.ranges.get(self.search(seq)).filter(|run| run.start <= seq)?;
        Some((run.start, run.end))
    }

    /// See [`LazyAssembler::fill_sack_blocks`]. Cost: a search for each of at most [`RECENT_MAX`]
    /// runs.
    fn fill_sack_blocks(
        &mut self,
        next: Seq,
        blocks: &mut ArrayVec<SackBlock, 4>,
        max: usize,
    ) -> bool {
        let room = max.saturating_sub(blocks.len());
        let search = 1 + self.ranges.len().checked_ilog2().unwrap_or(0) as usize;
        // The newest first, and the oldest of those that were never reported.
        let mut newest: ArrayVec<SackBlock, 4> = ArrayVec::new();
        let mut unreported: ArrayVec<(SackBlock, u64), RECENT_MAX> = ArrayVec::new();
        for at in (0..self.recent.len()).rev() {
            let RecentRange { seq, stamp } = self.recent[at];
            if stamp <= self.reported && newest.len() >= room {
                break;
            }
            self.note_steps(search);
            let run = self.range_of(seq).filter(|run| run.0 != next && !blocks.contains(run));
            let Some(run) = run else { continue };
            if stamp > self.reported {
                unreported.push((run, stamp));
            }
            if newest.len() < room {
                newest.push(run);
            }
        }
        if unreported.len() > room {
            let oldest = &unreported[unreported.len() - room..];
            self.reported = oldest.first().map_or(self.reported, |run| run.1);
            blocks.extend(oldest.iter().map(|run| run.0));
            return true;
        }
        blocks.extend(newest);
        self.reported = self.stamp;
        // Those that grew before are named again, from the left.
        self.note_steps(OTHERS_MAX);
        for run in self.ranges.iter().take(OTHERS_MAX) {
            let block = (run.start, run.end);
            if blocks.len() < max && run.start != next && !blocks.contains(&block) {
                blocks.push(block);
            }
        }
        false
    }
}

/// What one connection accepted out of order: usually nothing, and then no memory.
#[derive(Debug)]
pub(super) struct LazyAssembler<R> {
    inner: Option<Box<Assembler<R>>>,
}

impl<R> LazyAssembler<R> {
    /// Nothing accepted.
    pub(super) const fn new() -> Self {
        Self { inner: None }
    }

    /// True if nothing was accepted that is not in order by now.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.inner.as_ref().is_none_or(|book| book.segment_count == 0)
    }

    /// True if no book is kept.
    #[inline]
    pub(super) const fn is_idle(&self) -> bool {
        self.inner.is_none()
    }

    /// Pieces held or taken.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.inner.as_ref().map_or(0, |book| book.segment_count)
    }

    /// What the connection has of the pool.
    pub(super) fn quota(&self) -> Quota {
        self.inner.as_ref().map_or_else(Quota::default, |book| book.quota)
    }

    /// End of the last run.
    #[inline]
    pub(super) fn end(&self) -> Option<Seq> {
        Some(self.inner.as_ref()?.ranges.back()?.end)
    }

    /// What of `start..end` is new. If it covers several gaps, the first only: one frame is held
    /// once, and the peer sends the rest again.
    pub(super) fn overlap(&self, start: Seq, end: Seq) -> Overlap {
        match &self.inner {
            Some(book) => book.overlap(start, end),
            None => Overlap { new: Some((start, end)), duplicate: None },
        }
    }

    /// True if `block`, which is new, may be accepted where `pieces_max` pieces are the bound.
    pub(super) fn admits(&self, block: SackBlock, pieces_max: usize) -> bool {
        self.inner.as_ref().map_or(pieces_max > 0, |book| book.admits(block, pieces_max))
    }

    /// Accepts `alloc_block`, which is new and admitted: held from `offset` on, or taken.
    pub(super) fn insert(
        &mut self,
        pool: &mut OooPool<R>,
        block: SackBlock,
        held: Option<OooSegment<R>>,
        offset: u32,
    ) {
        self.inner.get_or_insert_with(|| pool.take_assembler()).insert(block, held, offset);
    }

    /// Takes out the piece that starts at `seq`, if there is one.
    pub(super) fn pop_at(&mut self, seq: Seq) -> Option<Contiguous<R>> {
        let book = self.inner.as_mut()?;
        book.ranges.front().filter(|run| run.start == seq)?;
        book.pop()
    }

    /// Gives the book back to the pool, and all that is held. To be called when nothing of it is
    /// wanted any more, or nothing is left.
    pub(super) fn release(&mut self, pool: &mut OooPool<R>) {
        let Some(mut book) = self.inner.take() else { return };
        while let Some(due) = book.pop() {
            if let Contiguous::Buffered { segment: held, .. } = due {
                pool.release(held);
            }
        }
        pool.put_assembler(book);
    }

    /// Appends runs to `blocks` up to `max` of them, the one that grew last first. True: some that
    /// grew were never reported, for want of room, and are left for the next ACK.
    ///
    /// One ACK answers a whole burst, so several runs may have grown since the last. The sender
    /// would never hear of those beyond the newest three; so older ones go out first, and each in
    /// turn. A run that begins at `next_timeout`, which is acknowledged next, is none any more.
    pub(super) fn fill_sack_blocks(
        &mut self,
        next: Seq,
        blocks: &mut ArrayVec<SackBlock, 4>,
        max: usize,
    ) -> bool {
        self.inner.as_mut().is_some_and(|book| book.fill_sack_blocks(next, blocks, max))
    }

    /// The run that contains `seq`.
    pub(super) fn range_of(&self, seq: Seq) -> Option<SackBlock> {
        self.inner.as_ref()?.range_of(seq)
    }

    /// True if a piece starts at `seq`: [`LazyAssembler::pop_at`] has something.
    pub(super) fn has_at(&self, seq: Seq) -> bool {
        let first = self.inner.as_ref().and_then(|book| book.ranges.front());
        first.is_some_and(|run| run.start == seq)
    }

    /// The runs in sequence order.
    #[cfg(test)]
    pub(super) fn ranges(&self) -> Vec<SackBlock> {
        let runs = self.inner.iter().flat_map(|book| &book.ranges);
        runs.map(|run| (run.start, run.end)).collect()
    }
}

#[cfg(test)]
mod tests;
