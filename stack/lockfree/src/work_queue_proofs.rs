//! Every interleaving of a thread that posts to a work queue and of the stack that takes, completes
//! and retires the requests: each is seen once, in order and whole.

use ferrowarp_proto::rdmap::operation::{Operation, SendWr, SgList, Sge};
use ferrowarp_proto::rdmap::requester::{Admission, Rejection};
use ferrowarp_proto::rdmap::send_queue::wqe::OpcodeSet;
use ferrowarp_proto::verbs::qp::QpCap;
use ferrowarp_proto::verbs::work_queues::WorkQueues;
use ferrowarp_proto::verbs::wr::Payload;
use loom::thread;

/// A list that ends in the second slot of a request and names it.
fn list(wr_id: u64) -> SgList {
    SgList::from([Sge { addr: 0, len: wr_id as u32, lkey: 0 }; 4])
}

/// A request of two slots whose first and last words name it.
fn request(wr_id: u64) -> SendWr {
    let list = list(wr_id);
    let operation = Operation::Write { payload: Payload::Gather(list), rkey: 0, remote: 0 };
    SendWr { wr_id, operation, signaled: true, fence: false }
}

#[test]
fn sends_arrive_once_in_order_whole() {
    const COUNT: u64 = 2;
    loom::model(|| {
        let WorkQueues { mut requester, sends: mut producer, .. } =
            WorkQueues::new(QpCap::new(1, 1));
        let application = thread::spawn(move || {
            for wr_id in 1..=COUNT {
                while request(wr_id).post_to(&mut producer).is_err() {
                    thread::yield_now();
                }
                producer.publish();
            }
        });
        // What is rejected completes at once.
        let admission = Admission { rejected: OpcodeSet::ALL, reason: Rejection::WrongState };
        let mut next = 1;
        while next <= COUNT {
            if requester.take_posted(admission, 1) == 0 {
                thread::yield_now();
                continue;
            }
            let (done, _) = requester.completed().unwrap();
            assert_eq!((done.wr_id, u64::from(done.len)), (next, 4 * next));
            requester.pop();
            requester.publish_retired();
            next += 1;
        }
        application.join().unwrap();
    });
}

#[test]
fn receives_arrive_once_in_order_whole() {
    const COUNT: u64 = 2;
    loom::model(|| {
        let WorkQueues { recv_queue: mut queue, recvs: mut producer, .. } =
            WorkQueues::new(QpCap::new(1, 1));
        let application = thread::spawn(move || {
            for wr_id in 1..=COUNT {
                while producer.post(wr_id, &list(wr_id)).is_err() {
                    thread::yield_now();
                }
                producer.publish();
            }
        });
        let mut next = 1;
        while next <= COUNT {
            let Some(buffer) = queue.front() else {
                thread::yield_now();
                continue;
            };
            assert_eq!(buffer.wr_id(), next);
            assert!(buffer.sges().eq(list(next).iter().copied()));
            queue.pop_front();
            queue.publish_retired();
            next += 1;
        }
        application.join().unwrap();
    });
}
