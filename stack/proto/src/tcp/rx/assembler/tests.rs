use arrayvec::ArrayVec;
use proptest::prelude::*;

use super::{Assembler, Contiguous, Overlap, RANGES_MAX, RECENT_MAX, SackBlock};
use crate::tcp::lazy::Lazy;
use crate::tcp::tests::{HeapFrame, ooo_pool};
use crate::tcp::{OooPool, OooSegment};
use crate::wire::seq::Seq;

/// Inserts what is new of `len` bytes at `seq`, all of value `id`; returns the range inserted.
fn insert(
    all: &mut Lazy<Assembler<HeapFrame>>,
    pool: &mut OooPool<HeapFrame>,
    seq: Seq,
    len: u32,
    id: u8,
) -> Option<SackBlock> {
    let block = all.overlap(seq, seq + len).new?;
    let frame = HeapFrame::new(&vec![id; len as usize + 60]);
    let from = (block.0 - seq) as usize + 60;
    let bytes = from..from + (block.1 - block.0) as usize;
    let (segment, offset) = pool.buffer(frame, bytes, all.share(pool, 0)).unwrap();
    all.insert((pool, 0), block, Some(segment), u32::try_from(offset).unwrap());
    Some(block)
}

fn pop(
    all: &mut Lazy<Assembler<HeapFrame>>,
    pool: &mut OooPool<HeapFrame>,
    seq: Seq,
) -> Option<(u8, u32)> {
    match all.update(|ranges| ranges.pop_at(seq))? {
        Contiguous::Buffered { segment, bytes } => {
            let mut id = [0; 1];
            crate::device::RxFrame::copy_out(&segment, bytes.start, &mut id);
            pool.release(segment);
            Some((id[0], u32::try_from(bytes.len()).unwrap()))
        }
        Contiguous::Consumed { len, .. } => Some((0xff, len)),
    }
}

fn sack_blocks(all: &mut Lazy<Assembler<HeapFrame>>) -> Vec<SackBlock> {
    let mut blocks = ArrayVec::new();
    while all.update(|ranges| ranges.fill_sack_blocks(Seq(0), &mut blocks, 4)) {}
    blocks.to_vec()
}

#[test]
fn sack_blocks_are_newest_first_and_merge() {
    let base = Seq(0xffff_ff00);
    let (mut all, mut pool) = (Lazy::<Assembler<_>>::new(), ooo_pool());
    for (at, id) in [(100, 1), (300, 2), (500, 3)] {
        assert!(insert(&mut all, &mut pool, base + at, 50, id).is_some());
    }
    let block = |from, to| (base + from, base + to);
    assert_eq!(sack_blocks(&mut all), [block(500, 550), block(300, 350), block(100, 150)]);
    insert(&mut all, &mut pool, base + 150, 150, 4);
    assert_eq!(sack_blocks(&mut all), [block(100, 350), block(500, 550)]);
    assert_eq!(all.as_ref().and_then(|ranges| ranges.range_of(base + 200)), Some(block(100, 350)));
    assert_eq!(
        (
            all.as_ref().and_then(|ranges| ranges.range_of(base + 350)),
            all.as_ref().and_then(|ranges| ranges.range_of(base + 99))
        ),
        (None, None)
    );
    assert_eq!(pop(&mut all, &mut pool, base), None);
    assert_eq!(pop(&mut all, &mut pool, base + 100), Some((1, 50)));
    assert_eq!(pop(&mut all, &mut pool, base + 150), Some((4, 150)));
    assert_eq!(pop(&mut all, &mut pool, base + 300), Some((2, 50)));
    assert_eq!(sack_blocks(&mut all), [block(500, 550)]);
}

#[test]
fn overlap_gives_the_first_new_and_the_first_duplicate_part() {
    let (mut all, mut pool) = (Lazy::<Assembler<_>>::new(), ooo_pool());
    insert(&mut all, &mut pool, Seq(100), 100, 1);
    insert(&mut all, &mut pool, Seq(300), 100, 2);
    let block = |from, to| Some((Seq(from), Seq(to)));
    for (asked, new, duplicate) in [
        ((0, 50), block(0, 50), None),
        ((0, 100), block(0, 100), None),
        ((50, 150), block(50, 100), block(100, 150)),
        ((50, 450), block(50, 100), block(100, 200)),
        ((100, 200), None, block(100, 200)),
        ((120, 180), None, block(120, 180)),
        ((120, 350), block(200, 300), block(120, 200)),
        ((200, 300), block(200, 300), None),
        ((250, 500), block(250, 300), block(300, 400)),
        ((350, 500), block(400, 500), block(350, 400)),
        ((400, 500), block(400, 500), None),
        ((450, 500), block(450, 500), None),
    ] {
        let overlap = all.overlap(Seq(asked.0), Seq(asked.1));
        assert_eq!(overlap, Overlap { new, duplicate }, "{asked:?}");
    }
}

#[test]
fn segment_over_several_gaps_fills_the_first() {
    let (mut all, mut pool) = (Lazy::<Assembler<_>>::new(), ooo_pool());
    insert(&mut all, &mut pool, Seq(100), 100, 1);
    insert(&mut all, &mut pool, Seq(300), 100, 3);
    // Covers 50..450: the gap before 100 first, then 200..300, then 400..450.
    for id in 4..7 {
        assert!(insert(&mut all, &mut pool, Seq(50), 400, id).is_some());
    }
    assert_eq!(insert(&mut all, &mut pool, Seq(50), 400, 7), None);
    assert_eq!(all.ranges(), [(Seq(50), Seq(450))]);
    let mut at = Seq(50);
    let mut seen = Vec::new();
    while let Some((id, len)) = pop(&mut all, &mut pool, at) {
        at += len;
        seen.push((id, len));
    }
    assert_eq!(seen, [(4, 50), (1, 100), (5, 100), (3, 100), (6, 50)]);
    assert!(all.is_empty() && all.ranges().is_empty());
}

#[test]
fn consumed_ranges_share_one_entry() {
    let (mut all, mut pool) = (Lazy::<Assembler<HeapFrame>>::new(), ooo_pool());
    let take = |all: &mut Lazy<Assembler<HeapFrame>>, pool: &mut _, from, to| {
        all.insert((pool, 0), (Seq(from), Seq(to)), None, 0);
    };
    take(&mut all, &mut pool, 100, 200);
    take(&mut all, &mut pool, 200, 300);
    take(&mut all, &mut pool, 50, 100);
    assert_eq!(all.as_ref().map_or(0, Assembler::len), 1);
    insert(&mut all, &mut pool, Seq(300), 50, 1);
    take(&mut all, &mut pool, 350, 400);
    take(&mut all, &mut pool, 500, 600);
    // Merges the two ranges around it.
    take(&mut all, &mut pool, 400, 500);
    assert_eq!(all.ranges(), [(Seq(50), Seq(600))]);
    let mut at = Seq(50);
    let mut seen = Vec::new();
    while let Some(next) = all.update(|ranges| ranges.pop_at(at)) {
        let len = match next {
            Contiguous::Buffered { bytes, .. } => u32::try_from(bytes.len()).unwrap(),
            Contiguous::Consumed { seq, len } => {
                assert_eq!(seq, at);
                len
            }
        };
        seen.push(len);
        at += len;
    }
    assert_eq!(seen, [250, 50, 150, 100]);
    assert!(all.is_empty());
}

#[test]
fn segment_and_range_counts_are_bounded() {
    let (mut all, mut pool) = (Lazy::<Assembler<_>>::new(), ooo_pool());
    assert!(!all.admits((Seq(0), Seq(1)), 0) && all.admits((Seq(0), Seq(1)), 1));
    for at in 0..3 {
        insert(&mut all, &mut pool, Seq(at * 10), 5, 1);
    }
    assert!(!all.admits((Seq(100), Seq(105)), 3) && all.admits((Seq(100), Seq(105)), 4));
    let ranges_max = u32::try_from(RANGES_MAX).unwrap();
    for at in 3..ranges_max {
        assert!(all.admits((Seq(at * 10), Seq(at * 10 + 5)), usize::MAX));
        insert(&mut all, &mut pool, Seq(at * 10), 5, 1);
    }
    let admits =
        |all: &Lazy<Assembler<HeapFrame>>, from, to| all.admits((Seq(from), Seq(to)), usize::MAX);
    assert!(!admits(&all, 10 * ranges_max, 10 * ranges_max + 1), "one more range");
    assert!(!admits(&all, 17, 18), "one more range in the middle");
    assert!(admits(&all, 15, 16) && admits(&all, 19, 20) && admits(&all, 15, 20));
    insert(&mut all, &mut pool, Seq(15), 5, 1);
    assert!(admits(&all, 10 * ranges_max, 10 * ranges_max + 1));
}

/// 1,700 segments are in flight, of which 3 % are lost and retransmitted in order: the entries
/// moved and searched per segment do not grow with their number.
#[test]
fn insert_cost_is_independent_of_the_range_count() {
    let steps_per_segment = |count: u32| {
        let (mut all, mut pool) = (Lazy::<Assembler<_>>::new(), ooo_pool());
        let lost = |at: u32| at.is_multiple_of(33);
        for at in (0..count).filter(|at| !lost(*at)) {
            insert(&mut all, &mut pool, Seq(at * 100), 100, 1);
        }
        let holes = all.ranges().len();
        // All but the first, so that nothing becomes contiguous and each filled hole merges two
        // ranges.
        for at in (1..count).filter(|at| lost(*at)) {
            insert(&mut all, &mut pool, Seq(at * 100), 100, 1);
        }
        assert_eq!(all.ranges().len(), 1);
        let steps = all.as_ref().unwrap().steps;
        (holes, steps as f64 / f64::from(count))
    };
    let (few, at_few) = steps_per_segment(170);
    let (many, at_many) = steps_per_segment(1700);
    assert_eq!((few, many), (6, 52));
    println!("steps per segment: {at_few} with {few} ranges, {at_many} with {many}");
    assert!(at_many < 8.0 && at_many < 2.0 * at_few + 2.0, "{at_few} {at_many}");
}

/// A peer that leaves holes open and repeats duplicates: the ranges examined per ACK do not grow
/// with the number of ranges.
#[test]
fn sack_report_cost_is_independent_of_the_hole_count() {
    let steps_per_ack = |count: u32| {
        let (mut all, mut pool) = (Lazy::<Assembler<_>>::new(), ooo_pool());
        for at in 1..=count {
            insert(&mut all, &mut pool, Seq(at * 2), 1, 1);
            sack_blocks(&mut all);
        }
        assert_eq!(all.ranges().len(), count as usize);
        let before = all.as_ref().unwrap().steps;
        for _ in 0..1000 {
            let mut blocks = ArrayVec::new();
            assert!(!all.update(|ranges| ranges.fill_sack_blocks(Seq(0), &mut blocks, 3)));
            assert_eq!(blocks[0], (Seq(count * 2), Seq(count * 2 + 1)));
        }
        (all.as_ref().unwrap().steps - before) / 1000
    };
    let (few, many) = (steps_per_ack(64), steps_per_ack(u32::try_from(RANGES_MAX).unwrap()));
    println!("steps per ACK: {few} with 64 ranges, {many} with {RANGES_MAX}");
    assert!(many < 2 * few, "{few} {many}");
}

/// More ranges were extended than are remembered: each remembered one is reported once, and the
/// remaining blocks report others.
#[test]
fn each_recent_range_is_reported_once() {
    let (mut all, mut pool) = (Lazy::<Assembler<_>>::new(), ooo_pool());
    for at in 1..=100 {
        insert(&mut all, &mut pool, Seq(at * 10), 5, 1);
    }
    let mut reports = Vec::new();
    loop {
        let mut blocks = ArrayVec::new();
        let more = all.update(|ranges| ranges.fill_sack_blocks(Seq(10), &mut blocks, 3));
        reports.push(blocks.to_vec());
        if !more {
            break;
        }
    }
    let block = |at: u32| (Seq(at * 10), Seq(at * 10 + 5));
    assert_eq!(reports.len(), RECENT_MAX.div_ceil(3));
    let oldest = 101 - u32::try_from(RECENT_MAX).unwrap();
    assert_eq!(reports[0], [block(oldest + 2), block(oldest + 1), block(oldest)]);
    assert_eq!(*reports.last().unwrap(), [block(100), block(99), block(98)]);
    // All but one of the recent ranges merge: the first others follow, without the one at RCV.NXT.
    for at in 30..100 {
        insert(&mut all, &mut pool, Seq(at * 10 + 5), 5, 1);
    }
    let mut blocks = ArrayVec::new();
    assert!(!all.update(|ranges| ranges.fill_sack_blocks(Seq(10), &mut blocks, 3)));
    assert_eq!(blocks.to_vec(), [(Seq(300), Seq(1005)), block(2), block(3)]);
}

#[test]
fn release_returns_all_memory_to_the_pool() {
    let (mut all, mut pool) = (Lazy::<Assembler<_>>::new(), ooo_pool());
    for at in 0..100 {
        insert(&mut all, &mut pool, Seq(at * 100), 50, 1);
    }
    assert!(pool.bytes() > 0 && all.holds_memory());
    all.release(&mut pool);
    assert!(!all.holds_memory() && (pool.frames(), pool.bytes()) == (0, 0));
    // The same assembler again, empty.
    insert(&mut all, &mut pool, Seq(7), 50, 1);
    assert_eq!(
        (all.ranges(), all.as_ref().map_or(0, Assembler::len)),
        (vec![(Seq(7), Seq(57))], 1)
    );
    assert!(matches!(
        all.update(|ranges| ranges.pop_at(Seq(7))),
        Some(Contiguous::Buffered { segment: OooSegment::Copy(_), .. })
    ));
}

proptest! {
    /// Against a map of bytes: the first copy of a byte wins, and the ranges match the map.
    #[test]
    fn matches_a_byte_map(base in any::<u32>(),
                         segments in prop::collection::vec((1u32..200, 1u32..60), 1..40)) {
        let base = Seq(base);
        let (mut all, mut pool) = (Lazy::<Assembler<_>>::new(), ooo_pool());
        let mut map = [None::<u8>; 300];
        for (&(at, len), id) in segments.iter().zip(0..) {
            insert(&mut all, &mut pool, base + at, len, id);
            // The model also fills the first hole only.
            let cells = (at as usize..(at + len) as usize).skip_while(|&c| map[c].is_some());
            let filled: Vec<_> = cells.take_while(|&cell| map[cell].is_none()).collect();
            for cell in filled { map[cell] = Some(id); }
        }
        let mut ranges: Vec<SackBlock> = Vec::new();
        for (seq, _) in (0..).map(|at| base + at).zip(&map).filter(|(_, id)| id.is_some()) {
            match ranges.last_mut().filter(|range| range.1 == seq) {
                Some(range) => range.1 = seq + 1,
                None => ranges.push((seq, seq + 1)),
            }
        }
        prop_assert_eq!(&all.ranges(), &ranges);
        for (start, end) in ranges {
            let mut at = start;
            while at != end {
                let (id, len) = pop(&mut all, &mut pool, at).unwrap();
                for cell in (at - base)..(at - base) + len {
                    prop_assert_eq!(map[cell as usize], Some(id));
                }
                at += len;
            }
        }
        prop_assert!(all.is_empty());
        prop_assert_eq!((pool.frames(), pool.bytes()), (0, 0));
    }
}
