//! Requests rejected when they are taken from the send queue.

use super::*;
use crate::ddp::memory::Access;
use crate::ddp::sgl::Sge;
use crate::ddp::vec_memory::VecMemory;
use crate::rdmap::operation::{Operation, Payload, SendWr};
use crate::rdmap::send_queue::SqCap;
use crate::rdmap::send_queue::wqe::OpcodeSet;

const NOTHING: Admission = Admission { rejected: OpcodeSet::ALL, reason: Rejection::WrongState };

fn write(wr_id: u64) -> SendWr {
    let payload = Payload::Inline([7; 4].into());
    let operation = Operation::Write { payload, rkey: 1, remote: 0 };
    SendWr { wr_id, operation, signaled: true, fence: false }
}

fn take_one(requester: &mut Requester, admission: Admission) -> bool {
    requester.take_posted(admission, 1) == 1
}

/// A requester whose queue holds these requests, of which it rejects those in `rejected`.
fn requester(count: u64, rejected: &[u64]) -> (Requester, SqProducer) {
    let (mut requester, mut producer) = Requester::with_producer(SqCap::new(8));
    assert!(requester.post(&write(0)).is_err(), "the application posts");
    for wr_id in 0..count {
        write(wr_id).post_to(&mut producer).unwrap();
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
            // The loop of short messages and the general builder by turns.
            let mut out = [0; 128];
            let mut buffer = Some(&mut out[..]);
            let version = Version::Ietf;
            let mut built = 0;
            if sent % 2 == 0 {
                let buffer = |len| buffer.take().map(|out| &mut out[..len]);
                built = requester.build_last_of_writes(&arena, scope, version, buffer).count;
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
    let sink = Sge { addr: 0, len: 8, lkey: 1 };
    let operation = Operation::Read { sink: [sink].into(), rkey: 1, remote: 0 };
    for rejected in [OpcodeSet::ANSWERED, OpcodeSet::EXTENSIONS.union(OpcodeSet::LOCAL)] {
        let wr = SendWr { operation: operation.clone(), ..write(0) };
        wr.post_to(&mut producer).unwrap();
        producer.publish();
        assert!(take_one(&mut requester, Admission { rejected, reason: Rejection::Unsupported }));
        assert_eq!(requester.on_rx_closed(), rejected != OpcodeSet::ANSWERED);
    }
}

#[test]
fn short_ways_build_what_the_general_one_builds() {
    let arena = VecMemory::new(4096);
    arena.write(0, &(0..4096u32).map(|at| (at * 7) as u8).collect::<Vec<_>>());
    let (scope, version) = (AccessScope::from(1), Version::Ietf);
    let lkey = arena.register(0, 4096, Access::LOCAL_READ, 1);
    let gather = |addr, len| Payload::Gather([Sge { addr, len, lkey }].into());
    let send = |wr_id: u64, len: u32, is_inline: bool| SendWr {
        wr_id,
        operation: Operation::Send {
            payload: if is_inline {
                Payload::Inline([7; 4].into())
            } else {
                gather(wr_id * 300, len)
            },
            solicited: wr_id.is_multiple_of(3),
            invalidate: (wr_id % 4 == 1).then_some(0x1234),
        },
        signaled: wr_id.is_multiple_of(2),
        fence: false,
    };
    let write_of = |wr_id: u64, len| SendWr {
        operation: Operation::Write { payload: gather(wr_id * 300, len), rkey: 5, remote: 70 },
        ..write(wr_id)
    };
    let requests = [
        send(0, 64, false),
        send(1, 0, false),
        send(2, 200, false),
        write_of(3, 100),
        send(4, 4, true),
        send(5, 90, false),
        send(6, 300, false),
        write_of(7, 0),
    ];
    let build = |takes_short_ways: bool| {
        let mut requester = Requester::new(SqCap::new(requests.len()));
        requests.iter().for_each(|request| requester.post_and_take(request));
        let (mut ulpdus, mut short_count) = (Vec::new(), [0; 2]);
        while requester.can_build() {
            for (index, count) in short_count.iter_mut().enumerate().filter(|_| takes_short_ways) {
                // Some do not fit, and are cut by the general way.
                let mut outs: Vec<_> = std::iter::repeat_n([0; 128], 8).collect();
                let (mut free, mut lens) = (outs.iter_mut(), Vec::new());
                let buffer = |len: usize| {
                    let out = free.next()?.get_mut(..len)?;
                    lens.push(len);
                    Some(out)
                };
                let built = if index == 0 {
                    requester.build_last_of_sends(&arena, scope, version, buffer)
                } else {
                    requester.build_last_of_writes(&arena, scope, version, buffer)
                };
                *count += built.count;
                ulpdus.extend(outs.iter().zip(&lens).map(|(out, &len)| out[..len].to_vec()));
            }
            if requester.can_build() {
                let mut out = [0; 128];
                let len = requester.build(&arena, scope, version, &mut out).unwrap();
                ulpdus.push(out[..len].to_vec());
            }
        }
        (ulpdus, completions(&mut requester), short_count)
    };
    let (short, general) = (build(true), build(false));
    assert_eq!((short.0, short.1), (general.0, general.1));
    assert!(short.2[0] >= 3 && short.2[1] >= 1, "{:?}", short.2);
}
