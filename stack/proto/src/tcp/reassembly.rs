//! Frames that arrived ahead of their turn, in sequence order, and the runs they form (the SACK
//! blocks we report, RFC 2018 section 4).
//!
//! Frames are kept whole and referred to; octets are never copied. What is held was committed to:
//! it is not given up for later arrivals, and of overlapping octets the first copy wins.

use core::ops::Range;
use std::collections::VecDeque;

use arrayvec::ArrayVec;

use crate::wire::seq::Seq;
use crate::wire::tcp::Block;

#[derive(Debug)]
struct Held<R> {
    seq: Seq,
    len: u32,
    /// Where the octets start in the frame.
    offset: usize,
    frame: R,
}

impl<R> Held<R> {
    fn end(&self) -> Seq {
        self.seq + self.len
    }
}

/// A run of contiguous held octets.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: Seq,
    end: Seq,
    /// When it last grew, in insertions: the newest run is reported first.
    stamp: u64,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Insertion {
    /// Held, at least in part.
    Held,
    /// All its octets were held before.
    Duplicate,
    /// Dropped: as many frames are held as may be.
    Full,
}

/// The frames held out of order.
#[derive(Debug)]
pub(super) struct Reassembly<R> {
    held: VecDeque<Held<R>>,
    runs: VecDeque<Run>,
    stamp: u64,
    /// Stamp up to which runs were reported.
    reported: u64,
    max: usize,
    /// More may be held.
    pub(super) admits: bool,
}

impl<R> Reassembly<R> {
    /// Nothing held, at most `max` frames later. Allocates when the first frame is held.
    pub(super) const fn new(max: usize) -> Self {
        Self {
            held: VecDeque::new(),
            runs: VecDeque::new(),
            stamp: 0,
            reported: 0,
            max,
            admits: true,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Frames held.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// First sequence number held.
    #[inline]
    pub(super) fn first(&self) -> Option<Seq> {
        self.held.front().map(|held| held.seq)
    }

    /// Holds `octets` of `frame`, which start at `seq`. If they cover several gaps, only the first
    /// is filled: one frame is held once, the peer sends the rest again.
    pub(super) fn insert(&mut self, seq: Seq, octets: Range<usize>, frame: R) -> Insertion {
        let Ok(len) = u32::try_from(octets.len()) else { return Insertion::Full };
        let end = seq + len;
        let mut start = seq;
        let mut index = self.held.partition_point(|held| held.seq <= start);
        if index > 0 {
            start = start.max(self.held[index - 1].end());
        }
        while let Some(next) = self.held.get(index).filter(|next| next.seq == start) {
            start = next.end();
            index += 1;
        }
        if start >= end {
            return Insertion::Duplicate;
        }
        if self.held.len() >= self.max || !self.admits {
            return Insertion::Full;
        }
        let stop = self.held.get(index).map_or(end, |next| end.min(next.seq));
        let offset = octets.start + (start - seq) as usize;
        self.held.insert(index, Held { seq: start, len: stop - start, offset, frame });
        self.extend_runs(start, stop);
        Insertion::Held
    }

    fn extend_runs(&mut self, start: Seq, end: Seq) {
        self.stamp += 1;
        let mut run = Run { start, end, stamp: self.stamp };
        let index = self.runs.partition_point(|run| run.end < start);
        while let Some(next) = self.runs.get(index).filter(|next| next.start <= run.end) {
            run.start = run.start.min(next.start);
            run.end = run.end.max(next.end);
            self.runs.remove(index);
        }
        self.runs.insert(index, run);
    }

    /// Takes out the frame that starts at `seq`, if it is held.
    pub(super) fn pop_at(&mut self, seq: Seq) -> Option<(R, Range<usize>)> {
        self.held.front().filter(|held| held.seq == seq)?;
        let held = self.held.pop_front()?;
        if let Some(run) = self.runs.front_mut() {
            run.start = held.end();
            if run.start == run.end {
                self.runs.pop_front();
            }
        }
        Some((held.frame, held.offset..held.offset + held.len as usize))
    }

    /// The runs, the one that grew last first.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Block> + '_ {
        let mut below = u64::MAX;
        core::iter::from_fn(move || {
            let older = self.runs.iter().filter(|run| run.stamp < below);
            let run = older.max_by_key(|run| run.stamp)?;
            below = run.stamp;
            Some((run.start, run.end))
        })
    }

    /// Appends runs to `blocks` up to `max` of them, the one that grew last first. True: some that
    /// grew were never reported, for want of room, and are left for the next ACK.
    ///
    /// One ACK answers a whole burst, so several runs may have grown since the last. The sender
    /// would never hear of those beyond the newest three; so older ones go out first, and each in
    /// turn.
    pub(super) fn report(&mut self, blocks: &mut ArrayVec<Block, 4>, max: usize) -> bool {
        let room = max.saturating_sub(blocks.len());
        let unreported = self.runs.iter().filter(|run| run.stamp > self.reported).count();
        let mut group: ArrayVec<Run, 4> = ArrayVec::new();
        if unreported > room {
            while group.len() < room {
                let next = self.runs.iter().filter(|run| run.stamp > self.reported);
                let Some(run) = next.min_by_key(|run| run.stamp) else { break };
                self.reported = run.stamp;
                group.push(*run);
            }
            blocks.extend(group.iter().rev().map(|run| (run.start, run.end)));
            return true;
        }
        self.reported = self.stamp;
        let known = blocks.clone();
        let others = self.blocks().filter(|block| !known.contains(block));
        blocks.extend(others.take(room));
        false
    }

    /// The run that contains `seq`.
    pub(super) fn run_of(&self, seq: Seq) -> Option<Block> {
        let run = self.runs.iter().find(|run| run.start <= seq && seq < run.end)?;
        Some((run.start, run.end))
    }

    /// Drops everything held.
    pub(super) fn clear(&mut self) {
        self.held.clear();
        self.runs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{Insertion, Reassembly};
    use crate::wire::seq::Seq;
    use crate::wire::tcp::Block;
    use proptest::prelude::*;

    fn blocks(held: &Reassembly<u32>) -> Vec<Block> {
        held.blocks().collect()
    }

    #[test]
    fn blocks_come_newest_first_and_merge() {
        let base = Seq(0xffff_ff00);
        let mut held = Reassembly::new(8);
        for (at, id) in [(100, 1), (300, 2), (500, 3)] {
            assert_eq!(held.insert(base + at, 10..60, id), Insertion::Held);
        }
        let block = |from, to| (base + from, base + to);
        assert_eq!(blocks(&held), [block(500, 550), block(300, 350), block(100, 150)]);
        assert_eq!(held.insert(base + 150, 0..150, 4), Insertion::Held);
        assert_eq!(blocks(&held), [block(100, 350), block(500, 550)]);
        assert_eq!(held.run_of(base + 200), Some(block(100, 350)));
        assert_eq!(held.pop_at(base), None);
        assert_eq!(held.pop_at(base + 100), Some((1, 10..60)));
        assert_eq!(held.pop_at(base + 150), Some((4, 0..150)));
        assert_eq!(held.pop_at(base + 300), Some((2, 10..60)));
        assert_eq!(blocks(&held), [block(500, 550)]);
    }

    #[test]
    fn first_copy_wins_and_one_frame_fills_one_gap() {
        let mut held = Reassembly::new(8);
        assert_eq!(held.insert(Seq(100), 0..100, 1), Insertion::Held);
        assert_eq!(held.insert(Seq(120), 0..80, 2), Insertion::Duplicate);
        assert_eq!(held.insert(Seq(300), 0..100, 3), Insertion::Held);
        // Covers 50..450: the gap before 100 first, then 200..300, then 400..450.
        assert_eq!(held.insert(Seq(50), 0..400, 4), Insertion::Held);
        assert_eq!(held.insert(Seq(50), 0..400, 5), Insertion::Held);
        assert_eq!(held.insert(Seq(50), 0..400, 6), Insertion::Held);
        assert_eq!(held.insert(Seq(50), 0..400, 7), Insertion::Duplicate);
        assert_eq!(blocks(&held), [(Seq(50), Seq(450))]);
        let mut at = Seq(50);
        let mut seen = Vec::new();
        while let Some((id, octets)) = held.pop_at(at) {
            at += u32::try_from(octets.len()).unwrap();
            seen.push((id, octets));
        }
        assert_eq!(seen, [(4, 0..50), (1, 0..100), (5, 150..250), (3, 0..100), (6, 350..400)]);
        assert!(held.is_empty() && blocks(&held).is_empty());
    }

    #[test]
    fn the_bound_holds() {
        let mut held = Reassembly::new(3);
        for at in 0..3 {
            assert_eq!(held.insert(Seq(at * 10), 0..5, at), Insertion::Held);
        }
        assert_eq!(held.insert(Seq(100), 0..5, 9), Insertion::Full);
        assert_eq!(held.insert(Seq(20), 0..5, 9), Insertion::Duplicate);
        held.pop_at(Seq(0)).unwrap();
        assert_eq!(held.insert(Seq(100), 0..5, 9), Insertion::Held);
    }

    proptest! {
        /// Against a map of octets: whoever brought an octet first keeps it, runs match the map.
        #[test]
        fn equals_a_byte_map(base in any::<u32>(),
                             segments in prop::collection::vec((1u32..200, 1usize..60), 1..40)) {
            let base = Seq(base);
            let mut held = Reassembly::new(1000);
            let mut map = [None::<usize>; 300];
            for (id, &(at, len)) in segments.iter().enumerate() {
                held.insert(base + at, 0..len, id);
                // The model fills the first gap only, too.
                let mut cells = (at as usize..at as usize + len).skip_while(|&c| map[c].is_some());
                let mut filled = Vec::new();
                for cell in cells.by_ref() {
                    if map[cell].is_some() { break; }
                    filled.push(cell);
                }
                for cell in filled { map[cell] = Some(id); }
            }
            let mut runs: Vec<Block> = Vec::new();
            for (cell, _) in map.iter().enumerate().filter(|(_, id)| id.is_some()) {
                let seq = base + u32::try_from(cell).unwrap();
                match runs.last_mut().filter(|run| run.1 == seq) {
                    Some(run) => run.1 = seq + 1,
                    None => runs.push((seq, seq + 1)),
                }
            }
            let mut blocks: Vec<Block> = held.blocks().collect();
            blocks.sort_by_key(|block| block.0 - base);
            prop_assert_eq!(&blocks, &runs);
            for (start, end) in runs {
                let mut at = start;
                while at != end {
                    let (id, octets) = held.pop_at(at).unwrap();
                    for offset in octets {
                        let cell = (at - base) as usize;
                        prop_assert_eq!(map[cell], Some(id));
                        prop_assert_eq!(segments[id].0 as usize + offset, cell);
                        at += 1;
                    }
                }
            }
            prop_assert!(held.is_empty());
        }
    }
}
