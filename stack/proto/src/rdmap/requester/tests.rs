//! Requests rejected when they are taken from the send queue.

use super::*;
use crate::ddp::vec_memory::VecMemory;
use crate::rdmap::operation::{Operation, Payload, SendWr};
use crate::rdmap::send_queue::wqe::OpcodeSet;

const NOTHING: Admission = Admission { rejected: OpcodeSet::ALL, reason: Rejection::WrongState };

fn write(wr_id: u64) -> SendWr {
    let payload = Payload::Inline([7; 4].into_iter().collect());
    let operation = Operation::Write { payload, rkey: 1, remote: 0 };
    SendWr { wr_id, operation, signaled: true, fence: false }
}

fn take_one(requester: &mut Requester, admission: Admission) -> bool {
    requester.take_posted(admission, 1) == 1
}

/// A requester whose queue holds these requests, of which it rejects those in `rejected`.
fn requester(count: u64, rejected: &[u64]) -> (Requester, SqProducer) {
    let (mut requester, mut producer) = Requester::with_producer(8);
    assert!(!requester.post(&write(0)), "the application posts");
    for wr_id in 0..count {
        assert!(producer.post(&write(wr_id)));
    }
    producer.publish();
    for wr_id in 0..count {
        assert!(requester.has_posted());
        let is_rejected = rejected.contains(&wr_id);
        assert!(take_one(&mut requester, if is_rejected { NOTHING } else { Admission::ALL }));
    }
    assert!(!requester.has_posted() && !take_one(&mut requester, NOTHING));
    (requester, producer)
}

fn completions(requester: &mut Requester) -> Vec<(u64, RequestOutcome)> {
    let mut done = Vec::new();
    while let Some((request, outcome)) = requester.completed() {
        done.push((request.wr_id, outcome));
        requester.pop();
    }
    done
}

#[test]
fn rejected_requests_complete_after_all_before_them_and_are_not_sent() {
    const REJECTED: RequestOutcome = RequestOutcome::Rejected(Rejection::WrongState);
    let arena = VecMemory::new(64);
    let scope = AccessScope::from(1);
    for rejected in [&[0][..], &[1], &[0, 1], &[1, 2], &[2, 3], &[0, 3], &[0, 1, 2, 3]] {
        let (mut requester, _) = requester(4, rejected);
        requester.execute_local_ops(arena.regions(), scope);
        let mut sent = 0;
        while requester.can_build() {
            // The short way and the general one by turns.
            let mut out = [0; 128];
            let mut buffer = Some(&mut out[..]);
            let version = Version::Ietf;
            let mut built = 0;
            if sent % 2 == 0 {
                let buffer = |len| buffer.take().map(|out| &mut out[..len]);
                built = requester.build_last_of_writes(&arena, scope, version, buffer);
            }
            if built == 0 {
                requester.build(&arena, scope, version, &mut out).unwrap();
                built = 1;
            }
            requester.execute_local_ops(arena.regions(), scope);
            sent += built as usize;
        }
        assert_eq!(sent, 4 - rejected.len());
        assert_eq!(requester.has_built(), sent > 0);
        let outcome = |wr_id| {
            if rejected.contains(&wr_id) { REJECTED } else { RequestOutcome::Success }
        };
        let expected: Vec<_> = (0..4).map(|wr_id| (wr_id, outcome(wr_id))).collect();
        assert_eq!(completions(&mut requester), expected, "{rejected:?}");
        assert!(requester.is_done() && !requester.has_local_ops());
    }
}

#[test]
fn rejected_read_needs_no_response() {
    let (mut requester, mut producer) = requester(0, &[]);
    let sink = crate::ddp::sgl::Sge { addr: 0, len: 8, lkey: 1 };
    let operation = Operation::Read { sink, rkey: 1, remote: 0 };
    for rejected in [OpcodeSet::ANSWERED, OpcodeSet::EXTENSIONS.union(OpcodeSet::LOCAL)] {
        let wr = SendWr { operation: operation.clone(), ..write(0) };
        assert!(producer.post(&wr));
        producer.publish();
        assert!(take_one(&mut requester, Admission { rejected, reason: Rejection::Unsupported }));
        assert_eq!(requester.on_rx_closed(), rejected != OpcodeSet::ANSWERED);
    }
}
