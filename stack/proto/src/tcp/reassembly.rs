//! What arrived ahead of its turn: the runs of contiguous octets it forms (the SACK blocks we
//! report, RFC 2018 section 4), and of each run the pieces in order.
//!
//! A run only ever grows at its ends, so a piece is appended to a run, put before one, begins one
//! or joins two: the work is the search among the runs, of which there are as many as holes. What
//! was accepted is not given up for later arrivals, and of overlapping octets the first copy wins.

use core::ops::Range;
use std::collections::VecDeque;

use arrayvec::ArrayVec;

use super::held::{Held, HoldPool, SPARE_ENTRIES, Share};
use crate::wire::seq::Seq;
use crate::wire::tcp::Block;

/// Most runs of a connection: bounds the work of a segment that begins one in the middle, and of a
/// report. A queue that overflows takes every other segment of what exceeds its rate: at 1 Gb/s
/// over 20 ms that makes more than 2,000 holes at once, and an early segment refused for want of a
/// run is lost once more.
const RUNS_MAX: usize = 4096;
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
    /// `None`: the upper layer has taken the octets already.
    held: Option<Held<R>>,
    len: u32,
    /// Where the octets start in what is held.
    offset: u32,
    /// The piece that follows in the run, or the next free entry.
    next: u32,
}

/// A run of contiguous octets.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: Seq,
    end: Seq,
    /// First and last piece.
    head: u32,
    tail: u32,
}

/// That a run grew.
#[derive(Clone, Copy, Debug)]
struct Growth {
    /// Its last octet then: in the same run for as long as that is there.
    seq: Seq,
    /// When, in insertions: the newest run is reported first.
    stamp: u64,
}

/// What a connection holds out of order. Lent by the engine's pool while there is something.
#[derive(Debug)]
pub(super) struct Book<R> {
    entries: Vec<Entry<R>>,
    free: u32,
    /// In sequence order; no two touch.
    runs: VecDeque<Run>,
    /// The runs that grew last, the newest at the end; what is handed up since may still be named.
    recent: ArrayVec<Growth, RECENT_MAX>,
    stamp: u64,
    /// Stamp up to which runs were reported.
    reported: u64,
    pieces: usize,
    share: Share,
    /// Runs looked at or moved.
    #[cfg(test)]
    steps: usize,
}

impl<R> Default for Book<R> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            free: NONE,
            runs: VecDeque::new(),
            recent: ArrayVec::new_const(),
            stamp: 0,
            reported: 0,
            pieces: 0,
            share: Share::default(),
            #[cfg(test)]
            steps: 0,
        }
    }
}

/// The next octets in order, out of what was accepted early.
#[derive(Debug)]
pub enum InTurn<R> {
    /// They were held until now. The holder goes back by [`HoldPool::give_back`].
    Held {
        /// What holds them.
        held: Held<R>,
        /// Where they lie in it.
        octets: Range<usize>,
    },
    /// The upper layer took them when they came.
    Taken {
        /// Sequence number of the first.
        seq: Seq,
        /// How many.
        len: u32,
    },
}

/// What an arriving range is in the light of what was accepted before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct News {
    /// The first part that is new.
    pub(super) fresh: Option<Block>,
    /// The first part that is not.
    pub(super) known: Option<Block>,
}

impl<R> Book<R> {
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
        match self.runs.back() {
            Some(last) if last.end > seq => {}
            _ => return self.runs.len(),
        }
        if self.runs.front().is_some_and(|first| first.end > seq) {
            return 0;
        }
        self.runs.partition_point(|run| run.end <= seq)
    }

    fn news(&self, start: Seq, end: Seq) -> News {
        let index = self.search(start);
        let overlap = |run: &Run| {
            let block = (run.start.max(start), run.end.min(end));
            (block.0 < block.1).then_some(block)
        };
        let Some(run) = self.runs.get(index) else {
            return News { fresh: Some((start, end)), known: None };
        };
        if run.start > start {
            return News { fresh: Some((start, end.min(run.start))), known: overlap(run) };
        }
        // No two runs touch, so what follows the run is new, up to the next.
        let stop = self.runs.get(index + 1).map_or(end, |next| end.min(next.start));
        let fresh = (run.end < end).then_some((run.end, stop));
        News { fresh, known: overlap(run) }
    }

    /// True if an entry for `start..end`, which is new, is within bounds.
    fn admits(&self, (start, end): Block, pieces_max: usize) -> bool {
        if self.pieces >= pieces_max {
            return false;
        }
        if self.runs.len() < RUNS_MAX {
            return true;
        }
        let index = self.search(start);
        let follows = index > 0 && self.runs[index - 1].end == start;
        follows || self.runs.get(index).is_some_and(|run| run.start == end)
    }

    fn new_entry(&mut self, entry: Entry<R>) -> u32 {
        self.pieces += 1;
        if let Some(held) = &entry.held {
            self.share.add(held);
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

    /// Adds `start..end`, which is new, as octets held from `offset` on, or taken.
    fn insert(&mut self, (start, end): Block, held: Option<Held<R>>, offset: u32) {
        let index = self.search(start);
        let follows = index > 0 && self.runs[index - 1].end == start;
        let precedes = self.runs.get(index).is_some_and(|run| run.start == end);
        self.note_steps(1 + self.runs.len().checked_ilog2().unwrap_or(0) as usize);
        let index = if follows { index - 1 } else { index };
        if !self.extend_taken(index, (start, end), (follows, precedes), held.is_none()) {
            let entry = self.new_entry(Entry { held, len: end - start, offset, next: NONE });
            if follows {
                let run = &mut self.runs[index];
                self.entries[run.tail as usize].next = entry;
                (run.tail, run.end) = (entry, end);
            } else if precedes {
                let run = &mut self.runs[index];
                self.entries[entry as usize].next = run.head;
                (run.head, run.start) = (entry, start);
            } else {
                self.note_steps(index.min(self.runs.len() - index));
                self.runs.insert(index, Run { start, end, head: entry, tail: entry });
            }
        }
        if follows && precedes {
            self.join(index);
        }
        self.note_growth(index, follows && precedes);
    }

    /// What was taken needs one entry, however many segments brought it: true if the run at `index`
    /// has one next to `start..end`.
    fn extend_taken(
        &mut self,
        index: usize,
        (start, end): Block,
        (follows, precedes): (bool, bool),
        is_taken: bool,
    ) -> bool {
        if !is_taken || !(follows || precedes) {
            return false;
        }
        let run = &mut self.runs[index];
        let entry = &mut self.entries[if follows { run.tail } else { run.head } as usize];
        if entry.held.is_some() {
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
    fn note_growth(&mut self, index: usize, has_joined: bool) {
        self.stamp += 1;
        let Run { start, end, .. } = self.runs[index];
        let newest = Growth { seq: end - 1, stamp: self.stamp };
        let is_in = |growth: &Growth| start <= growth.seq && growth.seq < end;
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
    fn join(&mut self, index: usize) {
        self.note_steps((index + 1).min(self.runs.len() - index - 1));
        let Some(next) = self.runs.remove(index + 1) else { return };
        let run = &mut self.runs[index];
        self.entries[run.tail as usize].next = next.head;
        (run.tail, run.end) = (next.tail, next.end);
    }

    /// Takes out the first piece of the first run.
    fn pop(&mut self) -> Option<InTurn<R>> {
        let run = self.runs.front_mut()?;
        let (seq, head) = (run.start, run.head);
        let entry = &mut self.entries[head as usize];
        let (len, start) = (entry.len, entry.offset as usize);
        let held = entry.held.take();
        run.start = seq + len;
        run.head = core::mem::replace(&mut entry.next, self.free);
        self.free = head;
        if run.start == run.end {
            self.runs.pop_front();
        }
        self.pieces -= 1;
        Some(match held {
            Some(held) => {
                self.share.remove(&held);
                InTurn::Held { held, octets: start..start + len as usize }
            }
            None => InTurn::Taken { seq, len },
        })
    }

    /// Forgets everything; what is held must have been given back.
    pub(super) fn reset(&mut self) {
        self.entries.clear();
        self.entries.shrink_to(SPARE_ENTRIES);
        self.free = NONE;
        self.runs.clear();
        self.recent.clear();
        (self.stamp, self.reported) = (0, 0);
        (self.pieces, self.share) = (0, Share::default());
    }

    /// The run that contains `seq`.
    fn run_of(&self, seq: Seq) -> Option<Block> {
        let run = self.runs.get(self.search(seq)).filter(|run| run.start <= seq)?;
        Some((run.start, run.end))
    }

    /// See [`Reassembly::report`]. Cost: a search for each of at most [`RECENT_MAX`] runs.
    fn report(&mut self, next: Seq, blocks: &mut ArrayVec<Block, 4>, max: usize) -> bool {
        let room = max.saturating_sub(blocks.len());
        let search = 1 + self.runs.len().checked_ilog2().unwrap_or(0) as usize;
        // The newest first, and the oldest of those that were never reported.
        let mut newest: ArrayVec<Block, 4> = ArrayVec::new();
        let mut unreported: ArrayVec<(Block, u64), RECENT_MAX> = ArrayVec::new();
        for at in (0..self.recent.len()).rev() {
            let Growth { seq, stamp } = self.recent[at];
            if stamp <= self.reported && newest.len() >= room {
                break;
            }
            self.note_steps(search);
            let run = self.run_of(seq).filter(|run| run.0 != next && !blocks.contains(run));
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
        for run in self.runs.iter().take(OTHERS_MAX) {
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
pub(super) struct Reassembly<R> {
    book: Option<Box<Book<R>>>,
}

impl<R> Reassembly<R> {
    /// Nothing accepted.
    pub(super) const fn new() -> Self {
        Self { book: None }
    }

    /// True if nothing was accepted that is not in order by now.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.book.as_ref().is_none_or(|book| book.pieces == 0)
    }

    /// True if no book is kept.
    #[inline]
    pub(super) const fn is_idle(&self) -> bool {
        self.book.is_none()
    }

    /// Pieces held or taken.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.book.as_ref().map_or(0, |book| book.pieces)
    }

    /// What the connection has of the pool.
    pub(super) fn share(&self) -> Share {
        self.book.as_ref().map_or_else(Share::default, |book| book.share)
    }

    /// End of the last run.
    #[inline]
    pub(super) fn end(&self) -> Option<Seq> {
        Some(self.book.as_ref()?.runs.back()?.end)
    }

    /// What of `start..end` is new. If it covers several gaps, the first only: one frame is held
    /// once, and the peer sends the rest again.
    pub(super) fn news(&self, start: Seq, end: Seq) -> News {
        match &self.book {
            Some(book) => book.news(start, end),
            None => News { fresh: Some((start, end)), known: None },
        }
    }

    /// True if `block`, which is new, may be accepted where `pieces_max` pieces are the bound.
    pub(super) fn admits(&self, block: Block, pieces_max: usize) -> bool {
        self.book.as_ref().map_or(pieces_max > 0, |book| book.admits(block, pieces_max))
    }

    /// Accepts `block`, which is new and admitted: held from `offset` on, or taken.
    pub(super) fn insert(
        &mut self,
        pool: &mut HoldPool<R>,
        block: Block,
        held: Option<Held<R>>,
        offset: u32,
    ) {
        self.book.get_or_insert_with(|| pool.book()).insert(block, held, offset);
    }

    /// Takes out the piece that starts at `seq`, if there is one.
    pub(super) fn pop_at(&mut self, seq: Seq) -> Option<InTurn<R>> {
        let book = self.book.as_mut()?;
        book.runs.front().filter(|run| run.start == seq)?;
        book.pop()
    }

    /// Gives the book back to the pool, and all that is held. To be called when nothing of it is
    /// wanted any more, or nothing is left.
    pub(super) fn give_back(&mut self, pool: &mut HoldPool<R>) {
        let Some(mut book) = self.book.take() else { return };
        while let Some(due) = book.pop() {
            if let InTurn::Held { held, .. } = due {
                pool.give_back(held);
            }
        }
        pool.return_book(book);
    }

    /// Appends runs to `blocks` up to `max` of them, the one that grew last first. True: some that
    /// grew were never reported, for want of room, and are left for the next ACK.
    ///
    /// One ACK answers a whole burst, so several runs may have grown since the last. The sender
    /// would never hear of those beyond the newest three; so older ones go out first, and each in
    /// turn. A run that begins at `next`, which is acknowledged next, is none any more.
    pub(super) fn report(
        &mut self,
        next: Seq,
        blocks: &mut ArrayVec<Block, 4>,
        max: usize,
    ) -> bool {
        self.book.as_mut().is_some_and(|book| book.report(next, blocks, max))
    }

    /// The run that contains `seq`.
    pub(super) fn run_of(&self, seq: Seq) -> Option<Block> {
        self.book.as_ref()?.run_of(seq)
    }

    /// True if a piece starts at `seq`: [`Reassembly::pop_at`] has something.
    pub(super) fn has_at(&self, seq: Seq) -> bool {
        let first = self.book.as_ref().and_then(|book| book.runs.front());
        first.is_some_and(|run| run.start == seq)
    }

    /// The runs in sequence order.
    #[cfg(test)]
    pub(super) fn runs(&self) -> Vec<Block> {
        let runs = self.book.iter().flat_map(|book| &book.runs);
        runs.map(|run| (run.start, run.end)).collect()
    }
}

#[cfg(test)]
mod tests;
