use arrayvec::ArrayVec;
use proptest::prelude::*;

use super::{Block, InTurn, News, RECENT_MAX, RUNS_MAX, Reassembly};
use crate::tcp::held::{Held, HoldPool};
use crate::tcp::tests::{Heap, pool};
use crate::wire::seq::Seq;

/// Holds what is new of `len` octets at `seq`, each being `id`; where it went.
fn insert(
    all: &mut Reassembly<Heap>,
    pool: &mut HoldPool<Heap>,
    seq: Seq,
    len: u32,
    id: u8,
) -> Option<Block> {
    let block = all.news(seq, seq + len).fresh?;
    let frame = Heap::new(&vec![id; len as usize + 60]);
    let from = (block.0 - seq) as usize + 60;
    let octets = from..from + (block.1 - block.0) as usize;
    let (held, offset) = pool.keep(frame, octets, all.share()).unwrap();
    all.insert(pool, block, Some(held), u32::try_from(offset).unwrap());
    Some(block)
}

fn pop(all: &mut Reassembly<Heap>, pool: &mut HoldPool<Heap>, seq: Seq) -> Option<(u8, u32)> {
    match all.pop_at(seq)? {
        InTurn::Held { held, octets } => {
            let mut id = [0; 1];
            crate::device::RxFrame::copy_out(&held, octets.start, &mut id);
            pool.give_back(held);
            Some((id[0], u32::try_from(octets.len()).unwrap()))
        }
        InTurn::Taken { len, .. } => Some((0xff, len)),
    }
}

fn report(all: &mut Reassembly<Heap>) -> Vec<Block> {
    let mut blocks = ArrayVec::new();
    while all.report(Seq(0), &mut blocks, 4) {}
    blocks.to_vec()
}

#[test]
fn blocks_come_newest_first_and_merge() {
    let base = Seq(0xffff_ff00);
    let (mut all, mut pool) = (Reassembly::new(), pool());
    for (at, id) in [(100, 1), (300, 2), (500, 3)] {
        assert!(insert(&mut all, &mut pool, base + at, 50, id).is_some());
    }
    let block = |from, to| (base + from, base + to);
    assert_eq!(report(&mut all), [block(500, 550), block(300, 350), block(100, 150)]);
    insert(&mut all, &mut pool, base + 150, 150, 4);
    assert_eq!(report(&mut all), [block(100, 350), block(500, 550)]);
    assert_eq!(all.run_of(base + 200), Some(block(100, 350)));
    assert_eq!((all.run_of(base + 350), all.run_of(base + 99)), (None, None));
    assert_eq!(pop(&mut all, &mut pool, base), None);
    assert_eq!(pop(&mut all, &mut pool, base + 100), Some((1, 50)));
    assert_eq!(pop(&mut all, &mut pool, base + 150), Some((4, 150)));
    assert_eq!(pop(&mut all, &mut pool, base + 300), Some((2, 50)));
    assert_eq!(report(&mut all), [block(500, 550)]);
}

#[test]
fn the_first_new_part_and_the_first_known_one() {
    let (mut all, mut pool) = (Reassembly::new(), pool());
    insert(&mut all, &mut pool, Seq(100), 100, 1);
    insert(&mut all, &mut pool, Seq(300), 100, 2);
    let block = |from, to| Some((Seq(from), Seq(to)));
    for (asked, fresh, known) in [
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
        let news = all.news(Seq(asked.0), Seq(asked.1));
        assert_eq!(news, News { fresh, known }, "{asked:?}");
    }
}

#[test]
fn one_frame_fills_one_gap() {
    let (mut all, mut pool) = (Reassembly::new(), pool());
    insert(&mut all, &mut pool, Seq(100), 100, 1);
    insert(&mut all, &mut pool, Seq(300), 100, 3);
    // Covers 50..450: the gap before 100 first, then 200..300, then 400..450.
    for id in 4..7 {
        assert!(insert(&mut all, &mut pool, Seq(50), 400, id).is_some());
    }
    assert_eq!(insert(&mut all, &mut pool, Seq(50), 400, 7), None);
    assert_eq!(all.runs(), [(Seq(50), Seq(450))]);
    let mut at = Seq(50);
    let mut seen = Vec::new();
    while let Some((id, len)) = pop(&mut all, &mut pool, at) {
        at += len;
        seen.push((id, len));
    }
    assert_eq!(seen, [(4, 50), (1, 100), (5, 100), (3, 100), (6, 50)]);
    assert!(all.is_empty() && all.runs().is_empty());
}

#[test]
fn what_was_taken_is_one_piece_of_a_run() {
    let (mut all, mut pool) = (Reassembly::<Heap>::new(), pool());
    let take = |all: &mut Reassembly<Heap>, pool: &mut _, from, to| {
        all.insert(pool, (Seq(from), Seq(to)), None, 0);
    };
    take(&mut all, &mut pool, 100, 200);
    take(&mut all, &mut pool, 200, 300);
    take(&mut all, &mut pool, 50, 100);
    assert_eq!(all.len(), 1);
    insert(&mut all, &mut pool, Seq(300), 50, 1);
    take(&mut all, &mut pool, 350, 400);
    take(&mut all, &mut pool, 500, 600);
    // Joins the two that it lies between.
    take(&mut all, &mut pool, 400, 500);
    assert_eq!(all.runs(), [(Seq(50), Seq(600))]);
    let mut at = Seq(50);
    let mut seen = Vec::new();
    while let Some(next) = all.pop_at(at) {
        let len = match next {
            InTurn::Held { octets, .. } => u32::try_from(octets.len()).unwrap(),
            InTurn::Taken { seq, len } => {
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
fn the_bounds_hold() {
    let (mut all, mut pool) = (Reassembly::new(), pool());
    assert!(!all.admits((Seq(0), Seq(1)), 0) && all.admits((Seq(0), Seq(1)), 1));
    for at in 0..3 {
        insert(&mut all, &mut pool, Seq(at * 10), 5, 1);
    }
    assert!(!all.admits((Seq(100), Seq(105)), 3) && all.admits((Seq(100), Seq(105)), 4));
    let runs = u32::try_from(RUNS_MAX).unwrap();
    for at in 3..runs {
        assert!(all.admits((Seq(at * 10), Seq(at * 10 + 5)), usize::MAX));
        insert(&mut all, &mut pool, Seq(at * 10), 5, 1);
    }
    let admits = |all: &Reassembly<Heap>, from, to| all.admits((Seq(from), Seq(to)), usize::MAX);
    assert!(!admits(&all, 10 * runs, 10 * runs + 1), "one more run");
    assert!(!admits(&all, 17, 18), "one more run in the middle");
    assert!(admits(&all, 15, 16) && admits(&all, 19, 20) && admits(&all, 15, 20));
    insert(&mut all, &mut pool, Seq(15), 5, 1);
    assert!(admits(&all, 10 * runs, 10 * runs + 1));
}

/// 1,700 segments under way, 3 % of which are lost, and come once more in order: what is moved and
/// searched per segment does not grow with what is held.
#[test]
fn the_work_does_not_grow_with_what_is_held() {
    let steps_per_piece = |count: u32| {
        let (mut all, mut pool) = (Reassembly::new(), pool());
        let lost = |at: u32| at.is_multiple_of(33);
        for at in (0..count).filter(|at| !lost(*at)) {
            insert(&mut all, &mut pool, Seq(at * 100), 100, 1);
        }
        let holes = all.runs().len();
        // All but the first, so that nothing can be handed up and every hole joins two runs.
        for at in (1..count).filter(|at| lost(*at)) {
            insert(&mut all, &mut pool, Seq(at * 100), 100, 1);
        }
        assert_eq!(all.runs().len(), 1);
        let steps = all.book.as_ref().unwrap().steps;
        (holes, steps as f64 / f64::from(count))
    };
    let (few, at_few) = steps_per_piece(170);
    let (many, at_many) = steps_per_piece(1700);
    assert_eq!((few, many), (6, 52));
    println!("steps per piece: {at_few} with {few} runs, {at_many} with {many}");
    assert!(at_many < 8.0 && at_many < 2.0 * at_few + 2.0, "{at_few} {at_many}");
}

/// Holes that a peer makes and never fills, and duplicates that it repeats: an ACK for each looks
/// at no more runs because there are many.
#[test]
fn work_of_a_report_does_not_grow_with_the_holes() {
    let steps_per_ack = |count: u32| {
        let (mut all, mut pool) = (Reassembly::new(), pool());
        for at in 1..=count {
            insert(&mut all, &mut pool, Seq(at * 2), 1, 1);
            report(&mut all);
        }
        assert_eq!(all.runs().len(), count as usize);
        let before = all.book.as_ref().unwrap().steps;
        for _ in 0..1000 {
            let mut blocks = ArrayVec::new();
            assert!(!all.report(Seq(0), &mut blocks, 3));
            assert_eq!(blocks[0], (Seq(count * 2), Seq(count * 2 + 1)));
        }
        (all.book.as_ref().unwrap().steps - before) / 1000
    };
    let (few, many) = (steps_per_ack(64), steps_per_ack(u32::try_from(RUNS_MAX).unwrap()));
    println!("steps per ACK: {few} with 64 runs, {many} with {RUNS_MAX}");
    assert!(many < 2 * few, "{few} {many}");
}

/// More runs have grown than are remembered: those that are get reported, each once, and what is
/// left of the room names others.
#[test]
fn reports_of_many_runs_end() {
    let (mut all, mut pool) = (Reassembly::new(), pool());
    for at in 1..=100 {
        insert(&mut all, &mut pool, Seq(at * 10), 5, 1);
    }
    let mut told = Vec::new();
    loop {
        let mut blocks = ArrayVec::new();
        let more = all.report(Seq(10), &mut blocks, 3);
        told.push(blocks.to_vec());
        if !more {
            break;
        }
    }
    let block = |at: u32| (Seq(at * 10), Seq(at * 10 + 5));
    assert_eq!(told.len(), RECENT_MAX.div_ceil(3));
    let oldest = 101 - u32::try_from(RECENT_MAX).unwrap();
    assert_eq!(told[0], [block(oldest + 2), block(oldest + 1), block(oldest)]);
    assert_eq!(*told.last().unwrap(), [block(100), block(99), block(98)]);
    // All but one that grew last become one run: the first others follow, without what is next.
    for at in 30..100 {
        insert(&mut all, &mut pool, Seq(at * 10 + 5), 5, 1);
    }
    let mut blocks = ArrayVec::new();
    assert!(!all.report(Seq(10), &mut blocks, 3));
    assert_eq!(blocks.to_vec(), [(Seq(300), Seq(1005)), block(2), block(3)]);
}

#[test]
fn memory_goes_back_with_the_last_piece() {
    let (mut all, mut pool) = (Reassembly::new(), pool());
    for at in 0..100 {
        insert(&mut all, &mut pool, Seq(at * 100), 50, 1);
    }
    assert!(pool.octets() > 0 && !all.is_idle());
    all.give_back(&mut pool);
    assert!(all.is_idle() && (pool.frames(), pool.octets()) == (0, 0));
    // The same book again, empty.
    insert(&mut all, &mut pool, Seq(7), 50, 1);
    assert_eq!((all.runs(), all.len()), (vec![(Seq(7), Seq(57))], 1));
    assert!(matches!(all.pop_at(Seq(7)), Some(InTurn::Held { held: Held::Copied(_), .. })));
}

proptest! {
    /// Against a map of octets: whoever brought an octet first keeps it, runs match the map.
    #[test]
    fn equals_a_byte_map(base in any::<u32>(),
                         segments in prop::collection::vec((1u32..200, 1u32..60), 1..40)) {
        let base = Seq(base);
        let (mut all, mut pool) = (Reassembly::new(), pool());
        let mut map = [None::<u8>; 300];
        for (&(at, len), id) in segments.iter().zip(0..) {
            insert(&mut all, &mut pool, base + at, len, id);
            // The model fills the first gap only, too.
            let cells = (at as usize..(at + len) as usize).skip_while(|&c| map[c].is_some());
            let filled: Vec<_> = cells.take_while(|&cell| map[cell].is_none()).collect();
            for cell in filled { map[cell] = Some(id); }
        }
        let mut runs: Vec<Block> = Vec::new();
        for (seq, _) in (0..).map(|at| base + at).zip(&map).filter(|(_, id)| id.is_some()) {
            match runs.last_mut().filter(|run| run.1 == seq) {
                Some(run) => run.1 = seq + 1,
                None => runs.push((seq, seq + 1)),
            }
        }
        prop_assert_eq!(&all.runs(), &runs);
        for (start, end) in runs {
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
        prop_assert_eq!((pool.frames(), pool.octets()), (0, 0));
    }
}
