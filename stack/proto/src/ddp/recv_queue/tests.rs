//! Receive requests are read as they were posted, wherever they lie in the ring.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

fn any_list() -> impl Strategy<Value = SgList> {
    let sge = (any::<u64>(), any::<u32>(), any::<u32>());
    let sge = sge.prop_map(|(addr, len, lkey)| Sge { addr, len, lkey });
    prop::collection::vec(sge, 0..=SGE_COUNT_MAX)
        .prop_map(|list| SgList::try_from(&list[..]).unwrap())
}

proptest! {
    #[test]
    fn request_is_read_as_posted_at_each_place_of_the_ring(
        lists in prop::collection::vec(any_list(), 1..40),
        count_max in 1_usize..6,
    ) {
        let (mut producer, mut rq, _) = recv_queue(count_max);
        let mut posted = VecDeque::new();
        for (wr_id, list) in (u64::MAX - 50..).zip(&lists) {
            prop_assert!(producer.post(wr_id, list));
            producer.publish();
            posted.push_back((wr_id, list));
            prop_assert_eq!(rq.len(), posted.len());
            if posted.len() == count_max {
                let (wr_id, list) = posted.pop_front().unwrap();
                let wqe = rq.front().unwrap();
                prop_assert_eq!((wqe.wr_id(), &wqe.sg_list()), (wr_id, list));
                let only = (list.len() == 1).then(|| list[0]);
                prop_assert_eq!(wqe.only_sge(), only);
                rq.pop_front();
                rq.publish_retired(0);
            }
        }
    }
}

#[test]
fn queue_holds_its_number_of_requests_until_they_are_retired() {
    let (mut producer, mut rq, _) = recv_queue(3);
    let list = SgList::default();
    for wr_id in 0..3 {
        assert!(producer.post(wr_id, &list));
    }
    assert!(!producer.post(3, &list));
    assert!(rq.front().is_none(), "nothing is seen before it is published");
    producer.publish();
    assert_eq!((rq.front().unwrap().wr_id(), rq.len()), (0, 3));
    rq.pop_front();
    assert!(!producer.post(3, &list), "a request that has left still occupies the queue");
    rq.publish_retired(0);
    assert!(producer.post(3, &list));
    assert!(!producer.post(4, &list));
    producer.publish();
    for wr_id in 1..4 {
        assert_eq!(rq.front().unwrap().wr_id(), wr_id);
        rq.pop_front();
    }
    assert!(rq.front().is_none());
}
