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
    /// When it last grew, in insertions: the newest run is reported first.
    stamp: u64,
}

/// What a connection holds out of order. Lent by the engine's pool while there is something.
#[derive(Debug)]
pub(super) struct Book<R> {
    entries: Vec<Entry<R>>,
    free: u32,
    /// In sequence order; no two touch.
    runs: VecDeque<Run>,
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
        self.stamp += 1;
        let stamp = self.stamp;
        let index = self.search(start);
        let follows = index > 0 && self.runs[index - 1].end == start;
        let precedes = self.runs.get(index).is_some_and(|run| run.start == end);
        self.note_steps(1 + self.runs.len().checked_ilog2().unwrap_or(0) as usize);
        let len = end - start;
        let is_taken = held.is_none();
        if follows && is_taken {
            // What was taken needs one entry, however many segments brought it.
            let run = &mut self.runs[index - 1];
            let tail = &mut self.entries[run.tail as usize];
            if tail.held.is_none() {
                tail.len += len;
                (run.end, run.stamp) = (end, stamp);
                if precedes {
                    self.join(index - 1);
                }
                return;
            }
        }
        if !follows && precedes && is_taken {
            let run = &mut self.runs[index];
            let head = &mut self.entries[run.head as usize];
            if head.held.is_none() {
                head.len += len;
                (run.start, run.stamp) = (start, stamp);
                return;
            }
        }
        let entry = self.new_entry(Entry { held, len, offset, next: NONE });
        if follows {
            let run = &mut self.runs[index - 1];
            self.entries[run.tail as usize].next = entry;
            (run.tail, run.end, run.stamp) = (entry, end, stamp);
            if precedes {
                self.join(index - 1);
            }
        } else if precedes {
            let run = &mut self.runs[index];
            self.entries[entry as usize].next = run.head;
            (run.head, run.start, run.stamp) = (entry, start, stamp);
        } else {
            self.note_steps(index.min(self.runs.len() - index));
            self.runs.insert(index, Run { start, end, head: entry, tail: entry, stamp });
        }
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
        (self.stamp, self.reported) = (0, 0);
        (self.pieces, self.share) = (0, Share::default());
    }

    fn report(&mut self, blocks: &mut ArrayVec<Block, 4>, max: usize) -> bool {
        let room = max.saturating_sub(blocks.len());
        let mut unreported = 0;
        // The newest first, and the oldest of those that were never reported, newest first.
        let mut newest: ArrayVec<Run, 5> = ArrayVec::new();
        let mut oldest: ArrayVec<Run, 5> = ArrayVec::new();
        for run in &self.runs {
            if blocks.contains(&(run.start, run.end)) {
                continue;
            }
            if run.stamp > self.reported {
                unreported += 1;
                let at = oldest.partition_point(|other| other.stamp > run.stamp);
                if oldest.len() < room || at > 0 {
                    oldest.insert(at, *run);
                }
                if oldest.len() > room {
                    oldest.remove(0);
                }
            }
            let at = newest.partition_point(|other| other.stamp > run.stamp);
            if at < room {
                newest.insert(at, *run);
                newest.truncate(room);
            }
        }
        if unreported > room {
            blocks.extend(oldest.iter().map(|run| (run.start, run.end)));
            self.reported = oldest.first().map_or(self.reported, |run| run.stamp);
            return true;
        }
        blocks.extend(newest.iter().map(|run| (run.start, run.end)));
        self.reported = self.stamp;
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
    /// turn.
    pub(super) fn report(&mut self, blocks: &mut ArrayVec<Block, 4>, max: usize) -> bool {
        self.book.as_mut().is_some_and(|book| book.report(blocks, max))
    }

    /// The run that contains `seq`.
    pub(super) fn run_of(&self, seq: Seq) -> Option<Block> {
        let book = self.book.as_ref()?;
        let run = book.runs.get(book.search(seq)).filter(|run| run.start <= seq)?;
        Some((run.start, run.end))
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
