//! Chains of mbufs: frames that continue others.

use crate::{Eal, EalConfig, Mempool, MempoolConfig, TxMbuf};

const COUNT: u32 = 15;

fn pool() -> Mempool {
    let eal = Eal::init(&EalConfig::default()).unwrap();
    Mempool::new(eal, &MempoolConfig { count: COUNT, cache: 0, frame_capacity: 500 }).unwrap()
}

/// Returns frames with the bytes 0, 1, 2 and so on, as many as the number.
fn frames(pool: &Mempool, count: u8) -> Vec<TxMbuf> {
    let mut frames = Vec::new();
    assert!(pool.allocate(&mut frames, count.into()));
    for (number, frame) in (0..).zip(&mut frames) {
        frame.buf_mut()[..100].fill(number);
        frame.set_len(100 - usize::from(number));
    }
    frames
}

fn segments(frame: &crate::Mbuf) -> Vec<(u8, usize)> {
    frame.segments().map(|segment| (segment[0], segment.len())).collect()
}

/// Returns the frame as a port would that receives what it has sent, as over `net_ring`.
fn received(frame: TxMbuf) -> crate::Mbuf {
    let raw = frame.0;
    core::mem::forget(frame);
    // SAFETY: a live mbuf, whose reference the value just forgotten had; nobody writes it.
    unsafe { crate::Mbuf::from_raw(raw) }
}

#[test]
fn appended_frames_follow_in_order_and_are_freed_together() {
    let pool = pool();
    let mut frames = frames(&pool, 4).into_iter();
    let mut first = frames.next().unwrap();
    first.append(frames);
    assert_eq!(first.bytes(), [0; 100], "the first segment");
    let frame = received(first);
    assert_eq!((frame.len(), segments(&frame)), (394, vec![(0, 100), (1, 99), (2, 98), (3, 97)]));
    assert_eq!(pool.available(), COUNT - 4);
    drop(frame);
    assert_eq!(pool.available(), COUNT);
}

/// In whatever order the port and the sender release their references.
#[test]
fn retained_segments_outlive_their_chain_one_by_one() {
    let pool = pool();
    for sent_after in 0..=3 {
        let mut frames = frames(&pool, 3);
        let mut retained: Vec<_> = frames.iter_mut().map(TxMbuf::retain).collect();
        let mut frames = frames.into_iter();
        let mut first = frames.next().unwrap();
        first.append(frames);
        // The port frees the chain after some segments were acknowledged.
        retained.drain(..sent_after);
        assert_eq!(pool.available(), COUNT - 3, "the port has the chain");
        drop(first);
        for number in sent_after..3 {
            assert_eq!(pool.available(), COUNT - 3 + u32::try_from(number).unwrap());
            let segment = retained.remove(0);
            assert_eq!(segment.bytes(), vec![u8::try_from(number).unwrap(); 100 - number]);
        }
        assert_eq!(pool.available(), COUNT);
    }
    // None of them is linked to another when it is allocated again.
    let frames = frames(&pool, 15);
    assert!(frames.into_iter().map(received).all(|frame| segments(&frame).len() == 1));
}

#[test]
#[should_panic(expected = "a frame of one segment")]
fn chains_are_not_appended() {
    let pool = pool();
    let mut frames = frames(&pool, 3);
    let last = frames.pop().unwrap();
    let mut second = frames.pop().unwrap();
    second.append(core::iter::once(last));
    frames[0].append(core::iter::once(second));
}
