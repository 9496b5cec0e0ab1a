use super::{Charge, OooPool, OooSegment, Quota, Share};
use crate::device::RxFrame;
use crate::tcp::tests::HeapFrame;

fn frame(len: usize) -> HeapFrame {
    let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    HeapFrame::new(&bytes)
}

fn bytes(segment: &OooSegment<HeapFrame>, offset: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    segment.copy_out(offset, &mut out);
    out
}

/// Holds segments of `len` bytes until there is no memory.
fn fill(pool: &mut OooPool<HeapFrame>, len: usize) -> Vec<OooSegment<HeapFrame>> {
    let mut all = Vec::new();
    while let Some((segment, offset)) = pool.buffer(frame(len + 54), 54..54 + len, Share::default())
    {
        assert_eq!(bytes(&segment, offset, len), frame(len + 54).bytes[54..]);
        all.push(segment);
        assert!(all.len() < 100_000);
    }
    all
}

#[test]
fn frames_then_copies_then_remaining_frames() {
    let mut pool = OooPool::new(8, 4 * 1472, 1460);
    let all = fill(&mut pool, 1448);
    let kinds: String = all
        .iter()
        .map(|segment| if matches!(segment, OooSegment::Frame(_)) { 'f' } else { 'c' })
        .collect();
    assert_eq!(kinds, "ffffccccffff");
    assert_eq!((pool.frames(), pool.bytes()), (8, 4 * 1472));
    all.into_iter().for_each(|segment| pool.release(segment));
    assert_eq!((pool.frames(), pool.bytes(), pool.allocated), (0, 0, 4 * 1472));
    // The blocks are reused.
    let blocks = |all: &[OooSegment<HeapFrame>]| -> Vec<_> {
        all.iter()
            .filter(|segment| matches!(segment, OooSegment::Copy(_)))
            .map(|h| h.head().as_ptr())
            .collect()
    };
    let first = fill(&mut pool, 1448);
    let mut once = blocks(&first);
    first.into_iter().for_each(|segment| pool.release(segment));
    let mut again = blocks(&fill(&mut pool, 1448));
    once.sort_unstable();
    again.sort_unstable();
    assert_eq!(once, again);
}

#[test]
fn small_segments_are_copied_while_blocks_are_left() {
    let mut pool = OooPool::new(8, 10 * 256, 1460);
    let all = fill(&mut pool, 1);
    assert_eq!((all.len(), pool.frames()), (18, 8));
    assert!(all[..10].iter().all(|segment| matches!(segment, OooSegment::Copy(_))));
}

#[test]
fn free_blocks_of_other_sizes_are_reclaimed() {
    let mut pool = OooPool::new(0, 64 * 1024, 1460);
    let small = fill(&mut pool, 200);
    assert_eq!((small.len(), pool.allocated), (256, 64 * 1024));
    small.into_iter().for_each(|segment| pool.release(segment));
    let full = fill(&mut pool, 1448);
    assert_eq!(full.len(), 64 * 1024 / 1472);
    assert!(pool.allocated <= 64 * 1024);
    full.into_iter().for_each(|segment| pool.release(segment));
    assert_eq!(fill(&mut pool, 1000).len(), 64);
}

#[test]
fn one_connection_gets_two_thirds_of_the_pool() {
    let mut pool = OooPool::new(30, 90 * 256, 1460);
    let (mut share, mut count) = (Share::default(), 0);
    while let Some((segment, _)) = pool.buffer(frame(100), 54..100, share) {
        share.connection.add(&segment);
        count += 1;
    }
    assert_eq!((count, share.connection.bytes, share.connection.frames), (60 + 20, 60 * 256, 20));
    let next = pool.buffer(frame(100), 54..100, Share::default());
    assert!(matches!(next, Some((OooSegment::Copy(_), 0))));
}

#[test]
fn connections_of_one_peer_leave_a_fifth_of_the_pool() {
    let mut pool = OooPool::new(50, 100 * 256, 1460);
    let mut held = Vec::new();
    // Each connection gets what it can, one after the other.
    for _ in 0..20 {
        let mut charge = Charge::none(7);
        let mut holds = Quota::default();
        while let Some((segment, _)) = pool.buffer(frame(100), 54..100, pool.share(charge, holds)) {
            holds.add(&segment);
            pool.charge(&mut charge, holds, 0);
            held.push(segment);
        }
    }
    assert_eq!((pool.bytes(), pool.frames()), (80 * 256, 40));
    let other = pool.share(Charge::none(8), Quota::default());
    let next = pool.buffer(frame(100), 54..100, other);
    assert!(matches!(next, Some((OooSegment::Copy(_), 0))));
}

/// Free blocks, too, count against the limit for ranges of consumed bytes.
#[test]
fn free_blocks_make_room_for_consumed_ranges() {
    let mut pool = OooPool::new(0, 64 * 1024, 1460);
    fill(&mut pool, 200).into_iter().for_each(|segment| pool.release(segment));
    let mut charge = Charge::none(7);
    let mut count = 0;
    while pool.admits_consumed(pool.share(charge, Quota { bytes: 64 * count, frames: 0 })) {
        count += 1;
        pool.charge(&mut charge, Quota { bytes: 64 * count, frames: 0 }, count);
        assert!(pool.allocated + pool.consumed <= 64 * 1024, "{} {count}", pool.allocated);
    }
    assert!(count > 600, "{count}");
    pool.charge(&mut charge, Quota::default(), 0);
    assert_eq!(fill(&mut pool, 200).len(), 256);
}

#[test]
fn segment_larger_than_any_block_keeps_its_frame() {
    let mut pool = OooPool::new(2, 1 << 20, 1460);
    let all = fill(&mut pool, 5000);
    assert!(all.len() == 2 && all.iter().all(|segment| matches!(segment, OooSegment::Frame(_))));
}
