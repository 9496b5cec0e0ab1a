//! Receive requests are read as they were posted, wherever they lie in the ring.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// A maximum of elements, and lists up to it.
fn any_lists() -> impl Strategy<Value = (usize, Vec<Vec<Sge>>)> {
    let sge = (any::<u64>(), any::<u32>(), any::<u32>());
    let sge = sge.prop_map(|(addr, len, lkey)| Sge { addr, len, lkey });
    (1..=SGE_COUNT_MAX).prop_flat_map(move |sge_max| {
        let list = prop::collection::vec(sge.clone(), 0..=sge_max);
        (Just(sge_max), prop::collection::vec(list, 1..40))
    })
}

proptest! {
    #[test]
    fn request_is_read_as_posted_at_each_place_of_the_ring(
        (max_recv_sge, lists) in any_lists(),
        count_max in 1_usize..6,
    ) {
        let cap = RqCap { max_recv_wr: count_max, max_recv_sge };
        let (mut producer, mut rq, _) = recv_queue(cap);
        let (mut copy_producer, mut copy_rq, _) = recv_queue(rq.cap_of_one());
        let mut copies = rq.new_copies();
        let too_long = vec![Sge::default(); max_recv_sge + 1];
        let mut posted = VecDeque::new();
        for (wr_id, list) in (u64::MAX - 50..).zip(&lists) {
            prop_assert_eq!(producer.post(wr_id, &too_long), Err(PostError::TooManySges));
            prop_assert_eq!(producer.post(wr_id, list), Ok(()));
            producer.publish();
            posted.push_back((wr_id, list));
            prop_assert_eq!(rq.len(), posted.len());
            if posted.len() == count_max {
                let (wr_id, list) = posted.pop_front().unwrap();
                let wqe = rq.front().unwrap();
                prop_assert_eq!((wqe.wr_id(), &wqe.sges().collect::<Vec<_>>()), (wr_id, list));
                let only = (list.len() == 1).then(|| list[0]);
                prop_assert_eq!(wqe.only_sge(), only);
                // As a shared receive queue passes it on.
                copies.push_back(&wqe);
                prop_assert!(copies.len() == 1 && copies.post_front(&mut copy_producer));
                copy_producer.publish();
                let copy = copy_rq.front().unwrap();
                prop_assert_eq!((copy.wr_id(), &copy.sges().collect::<Vec<_>>()), (wr_id, list));
                copy_rq.pop_front();
                copy_rq.publish_retired(0);
                rq.pop_front();
                rq.publish_retired(0);
            }
        }
    }
}

#[test]
fn queue_holds_its_number_of_requests_until_they_are_retired() {
    let (mut producer, mut rq, _) = recv_queue(RqCap::new(3));
    let list = [];
    for wr_id in 0..3 {
        producer.post(wr_id, &list).unwrap();
    }
    assert_eq!(producer.post(3, &list), Err(PostError::QueueFull));
    assert!(rq.front().is_none(), "nothing is seen before it is published");
    producer.publish();
    assert_eq!((rq.front().unwrap().wr_id(), rq.len()), (0, 3));
    rq.pop_front();
    assert_eq!(
        producer.post(3, &list),
        Err(PostError::QueueFull),
        "a request that has left still occupies the queue"
    );
    rq.publish_retired(0);
    producer.post(3, &list).unwrap();
    assert_eq!(producer.post(4, &list), Err(PostError::QueueFull));
    producer.publish();
    for wr_id in 1..4 {
        assert_eq!(rq.front().unwrap().wr_id(), wr_id);
        rq.pop_front();
    }
    assert!(rq.front().is_none());
}
