//! Shared receive queues over several shards.

use ferrowarp::{Access, DriveMode, PostError, QpOptions, QpState, WcStatus};

use crate::shards::sharded;
use crate::support::*;

/// Connections of both shards take their buffers from one queue, and each buffer is used once.
#[test]
fn shared_receive_queue_serves_all_shards() {
    const ROUNDS: u64 = 50;
    const BUFFERS: u64 = 8;
    const PLACE: usize = 64;
    let (left, right) = sharded(2, DriveMode::Inline);
    let srq = right.pd.create_srq(8).unwrap();
    assert_eq!(srq.shard(), None);
    let recv_mr = right.mr(8 * PLACE, Access::LOCAL_WRITE);
    let place = |wr_id: u64| PLACE * usize::try_from(wr_id % BUFFERS).unwrap();
    let post = |wr_id| srq.post_recv(wr_id, recv_mr.sge(place(wr_id), 64));
    (0..BUFFERS).for_each(|wr_id| post(wr_id).unwrap());
    assert_eq!(post(BUFFERS), Err(PostError::QueueFull));
    let connect = |_| {
        let b = right.pd.create_qp(&QpOptions::new(&right.cq).srq(&srq)).unwrap();
        connect_qps(&right, left.qp(), b).0
    };
    let pairs: Vec<_> = (0..4).map(connect).collect();
    for shard in 0..2 {
        assert_eq!(pairs.iter().filter(|(_, b)| b.shard() == Some(shard)).count(), 2);
    }
    let mut next = BUFFERS;
    for round in 0..ROUNDS {
        // As many messages as there are buffers: none may lie unused with an idle shard.
        for (index, (a, _)) in (0u8..).zip(&pairs) {
            let count = if round.is_multiple_of(2) { 2 } else { 8 * u32::from(index == 3) };
            for _ in 0..count {
                send(a, round, &[index; 5]).unwrap();
            }
        }
        let found = right.completions(&left, 8);
        let mut ids: Vec<_> = found.iter().map(|wc| wc.wr_id).collect();
        ids.sort_unstable();
        assert_eq!(ids, (next - BUFFERS..next).collect::<Vec<_>>(), "round {round}");
        for wc in &found {
            assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 5));
            let mut numbered = (0u8..).zip(&pairs);
            let (index, _) = numbered.find(|(_, (_, b))| b.id() == wc.qp).unwrap();
            let at = place(wc.wr_id);
            assert_eq!(contents(&recv_mr)[at..at + 5], [index; 5]);
        }
        assert_eq!(left.completions(&right, 8).len(), 8);
        drive_until(&left.context, &right.context, || {
            while next < (round + 2) * BUFFERS && post(next).is_ok() {
                next += 1;
            }
            next == (round + 2) * BUFFERS
        });
    }
}

/// Limit and cap of a shared receive queue count what all shards take.
#[test]
fn srq_limit_and_cap_count_all_shards() {
    let (left, right) = sharded(2, DriveMode::Inline);
    let srq = right.pd.create_srq(16).unwrap();
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    let post = |wr_id| srq.post_recv(wr_id, recv_mr.sge(0, 64)).unwrap();
    (0..16).for_each(post);
    let pairs = [0, 1].map(|_| {
        let b = right.pd.create_qp(&QpOptions::new(&right.cq).srq(&srq)).unwrap();
        connect_qps(&right, left.qp(), b).0
    });
    assert_ne!(pairs[0].1.shard(), pairs[1].1.shard());
    srq.arm(12).unwrap();
    let send_to = |index: usize, count: usize| {
        for _ in 0..count {
            send(&pairs[index].0, 1, b"x").unwrap();
        }
        assert_eq!(right.completions(&left, count).len(), count);
    };
    send_to(0, 2);
    send_to(1, 2);
    assert_eq!(srq.next_limit(), None, "12 are left");
    send_to(0, 1);
    drive_until(&left.context, &right.context, || {
        srq.next_limit().is_some_and(|limit| {
            assert_eq!((limit.left, limit.most), (11, Some((pairs[0].1.id(), 3))));
            true
        })
    });
    // Each may hold four; a post credits the one that took its buffer first.
    srq.cap(4).unwrap();
    (16..18).for_each(post);
    send_to(0, 3);
    assert_eq!(pairs[0].1.state(), QpState::Rts);
    send(&pairs[0].0, 1, b"one too many").unwrap();
    drive_until(&left.context, &right.context, || pairs[0].1.state() == QpState::Error);
    send_to(1, 2);
    assert_eq!(pairs[1].1.state(), QpState::Rts);
}
