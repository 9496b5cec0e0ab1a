//! Requests are read as they were posted, wherever they lie in the ring.

use proptest::prelude::*;

use super::wqe::{OpcodeSet, SendFlags, WqeOpcode};
use super::*;
use crate::ddp::memory::Access;
use crate::rdmap::operation::{AtomicOp, Bind, Operation, Payload, SendWr, SgList, Sge};
use crate::work_queue::{PostError, work_queues};

fn send_queue_of(cap: SqCap) -> (SqProducer, SqConsumer) {
    let ([queue], _) = work_queues([cap.shape()]);
    from_work_queue(queue)
}

fn any_list(cap: SqCap, count_min: usize) -> impl Strategy<Value = SgList> {
    let sge = (any::<u64>(), 0..u32::MAX / SGE_COUNT_MAX as u32, any::<u32>());
    let sge = sge.prop_map(|(addr, len, lkey)| Sge { addr, len, lkey });
    prop::collection::vec(sge, count_min..=cap.max_send_sge)
        .prop_map(|list| SgList::try_from_iter(list).unwrap())
}

fn any_payload(cap: SqCap) -> impl Strategy<Value = Payload> {
    prop_oneof![
        any_list(cap, 0).prop_map(Payload::Gather),
        prop::collection::vec(any::<u8>(), 0..=cap.max_inline_data)
            .prop_map(|bytes| Payload::inline(&bytes).unwrap()),
    ]
}

fn any_atomic() -> impl Strategy<Value = AtomicOp> {
    let words = any::<[u64; 4]>();
    (0..3, words).prop_map(|(kind, [a, b, c, d])| match kind {
        0 => AtomicOp::FetchAdd { add: a, boundaries: b },
        1 => AtomicOp::Swap { swap: a, mask: b },
        _ => AtomicOp::CmpSwap { compare: a, compare_mask: b, swap: c, swap_mask: d },
    })
}

fn any_operation(cap: SqCap) -> impl Strategy<Value = Operation> {
    let bind = (any::<[u32; 2]>(), any::<[u64; 2]>(), any::<u8>(), any::<bool>());
    let bind = bind.prop_map(|([rkey, lkey], [addr, len], bits, zero_based)| {
        let access = Access::from_bits(bits);
        Operation::Bind(Bind { rkey, lkey, addr, len, access, zero_based })
    });
    let at = || (any::<u32>(), any::<u64>());
    let data = || (any::<[u8; 8]>(), any::<bool>());
    let sink = || (any::<u64>(), any::<u32>(), any::<u32>());
    let sge = |(addr, len, lkey)| Sge { addr, len, lkey };
    prop_oneof![
        (any_payload(cap), any::<bool>(), any::<Option<u32>>()).prop_map(
            |(payload, solicited, invalidate)| Operation::Send { payload, solicited, invalidate }
        ),
        (any_payload(cap), at()).prop_map(|(payload, (rkey, remote))| Operation::Write {
            payload,
            rkey,
            remote
        }),
        (any_payload(cap), at(), data()).prop_map(
            |(payload, (rkey, remote), (data, solicited))| {
                Operation::WriteImmediate { payload, rkey, remote, data, solicited }
            }
        ),
        (any_list(cap, 1), at()).prop_map(|(sink, (rkey, remote))| Operation::Read {
            sink,
            rkey,
            remote
        }),
        (any_atomic(), sink(), at()).prop_map(move |(op, sink, (rkey, remote))| {
            Operation::Atomic { op, sink: Sge { len: 8, ..sge(sink) }, rkey, remote: remote & !7 }
        }),
        data().prop_map(|(data, solicited)| Operation::Immediate { data, solicited }),
        bind,
        any::<u32>().prop_map(|stag| Operation::Invalidate { stag }),
    ]
}

fn any_request(cap: SqCap) -> impl Strategy<Value = SendWr> {
    (any::<u64>(), any_operation(cap), any::<bool>(), any::<bool>()).prop_map(
        |(wr_id, operation, signaled, fence)| SendWr { wr_id, operation, signaled, fence },
    )
}

/// A capacity, and requests within it.
fn any_requests() -> impl Strategy<Value = (SqCap, Vec<SendWr>)> {
    (1_usize..6, 1..=SGE_COUNT_MAX, 0..=INLINE_LEN_MAX).prop_flat_map(|(count, sge, inline)| {
        let cap = SqCap { max_send_wr: count, max_send_sge: sge, max_inline_data: inline };
        (Just(cap), prop::collection::vec(any_request(cap), 1..40))
    })
}

/// Decodes a request.
fn decode(sq: &SqConsumer, slot: u64) -> SendWr {
    let wqe = Wqe::new(sq.0.slots(), slot);
    let solicited = wqe.flags().contains(SendFlags::SOLICITED);
    let (rkey, remote) = (wqe.stag(), wqe.remote());
    let payload = || {
        if !wqe.is_inline() {
            return Payload::Gather(SgList::try_from_iter(wqe.sges()).unwrap());
        }
        let mut bytes = vec![0; wqe.payload_count()];
        // In two pieces, as segments are built.
        let (left, right) = bytes.split_at_mut(wqe.payload_count() / 3);
        wqe.copy_inline(0, left);
        wqe.copy_inline(left.len(), right);
        Payload::inline(&bytes).unwrap()
    };
    let operation = match wqe.opcode() {
        WqeOpcode::Send => {
            Operation::Send { payload: payload(), solicited, invalidate: wqe.invalidate() }
        }
        WqeOpcode::Write => Operation::Write { payload: payload(), rkey, remote },
        WqeOpcode::WriteImmediate => {
            let data = wqe.immediate();
            Operation::WriteImmediate { payload: payload(), rkey, remote, data, solicited }
        }
        WqeOpcode::Read => {
            let sink = SgList::try_from_iter(wqe.sges()).unwrap();
            Operation::Read { sink, rkey, remote }
        }
        WqeOpcode::FetchAdd | WqeOpcode::Swap | WqeOpcode::CmpSwap => {
            Operation::Atomic { op: wqe.atomic().unwrap(), sink: wqe.sge(0), rkey, remote }
        }
        WqeOpcode::Immediate => Operation::Immediate { data: wqe.immediate(), solicited },
        WqeOpcode::Bind => Operation::Bind(wqe.bind()),
        WqeOpcode::Invalidate => Operation::Invalidate { stag: wqe.stag() },
    };
    SendWr {
        wr_id: wqe.wr_id(),
        operation,
        signaled: wqe.flags().contains(SendFlags::SIGNALED),
        fence: wqe.flags().contains(SendFlags::FENCE),
    }
}

proptest! {
    #[test]
    fn request_is_read_as_posted_at_each_place_of_the_ring(
        (cap, requests) in any_requests(),
    ) {
        let (mut producer, mut sq) = send_queue_of(cap);
        let (mut retired, mut waiting) = (0, std::collections::VecDeque::new());
        for wr in &requests {
            wr.post_to(&mut producer).unwrap();
            producer.publish();
            let (slot, wqe) = sq.take().unwrap();
            prop_assert_eq!(u64::from(wqe.len()), wr.operation.len());
            let opcode = wqe.opcode();
            prop_assert_eq!(opcode.is_answered(), wr.operation.is_answered());
            prop_assert_eq!(opcode.is_local(), wr.operation.is_local());
            let is_extension = OpcodeSet::EXTENSIONS.contains(opcode);
            prop_assert_eq!(is_extension, wr.operation.is_extension());
            waiting.push_back((slot, wr));
            if waiting.len() == cap.max_send_wr {
                let (slot, wr) = waiting.pop_front().unwrap();
                prop_assert_eq!(&decode(&sq, slot), wr);
                retired += 1;
                sq.retire(retired);
            }
        }
        for (slot, wr) in waiting {
            prop_assert_eq!(&decode(&sq, slot), wr);
        }
    }
}

fn invalidate(wr_id: u64) -> SendWr {
    let operation = Operation::Invalidate { stag: 7 };
    SendWr { wr_id, operation, signaled: true, fence: false }
}

#[test]
fn queue_holds_its_number_of_requests_until_they_are_retired() {
    let (mut producer, mut sq) = send_queue_of(SqCap::new(3));
    for wr_id in 0..3 {
        invalidate(wr_id).post_to(&mut producer).unwrap();
    }
    assert_eq!(invalidate(3).post_to(&mut producer), Err(PostError::QueueFull));
    assert!(sq.take().is_none(), "nothing is seen before it is published");
    producer.publish();
    let taken: Vec<_> = (0..3).map(|_| sq.take().unwrap().0).collect();
    assert!(sq.take().is_none());
    assert_eq!(
        invalidate(3).post_to(&mut producer),
        Err(PostError::QueueFull),
        "requests taken still occupy the queue"
    );
    assert_eq!(taken.iter().map(|&slot| decode(&sq, slot).wr_id).collect::<Vec<_>>(), [0, 1, 2]);
    sq.retire(1);
    invalidate(3).post_to(&mut producer).unwrap();
    assert_eq!(invalidate(4).post_to(&mut producer), Err(PostError::QueueFull));
    producer.publish();
    assert!(sq.has_published());
    let slot = sq.take().unwrap().0;
    assert_eq!(decode(&sq, slot).wr_id, 3);
}

#[test]
fn requests_arrive_in_order_and_whole_between_two_threads() {
    const COUNT: u64 = 100_000;
    let (mut producer, mut sq) =
        send_queue_of(SqCap { max_send_sge: SGE_COUNT_MAX, ..SqCap::new(16) });
    let request = |wr_id: u64| {
        // One to nine slots.
        let count = 1 + wr_id as usize % SGE_COUNT_MAX;
        let list = (0..count).map(|_| Sge { addr: wr_id, len: 1, lkey: wr_id as u32 });
        let operation = Operation::Write {
            payload: Payload::Gather(SgList::try_from_iter(list).unwrap()),
            rkey: 1,
            remote: wr_id,
        };
        SendWr { wr_id, operation, signaled: true, fence: false }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for wr_id in 0..COUNT {
                while request(wr_id).post_to(&mut producer).is_err() {
                    std::thread::yield_now();
                }
                producer.publish();
            }
        });
        let mut next = 0;
        while next < COUNT {
            match sq.take() {
                Some((slot, _)) => {
                    assert_eq!(decode(&sq, slot), request(next));
                    next += 1;
                    sq.retire(next);
                }
                None => std::thread::yield_now(),
            }
        }
    });
}

#[test]
fn request_beyond_a_limit_by_one_is_refused() {
    let cap = SqCap { max_send_wr: 1, max_send_sge: 3, max_inline_data: 17 };
    let (mut producer, _) = send_queue_of(cap);
    let head = WqeHead::default();
    let sge = |len| Sge { addr: 0, len, lkey: 1 };
    let (four, too_long) = ([sge(1); 4], [sge(u32::MAX), sge(1)]);
    let refused = [
        (WqePayload::Gather(&four), PostError::TooManySges),
        (WqePayload::Gather(&too_long), PostError::TooLong),
        (WqePayload::Inline(&[0; 18]), PostError::InlineTooLong),
    ];
    for (payload, error) in refused {
        for opcode in [WqeOpcode::Send, WqeOpcode::Write, WqeOpcode::Read] {
            let is_sink = opcode == WqeOpcode::Read && matches!(payload, WqePayload::Inline(_));
            let error = if is_sink { PostError::InlineSink } else { error };
            assert_eq!(producer.post(opcode, &head, payload), Err(error));
        }
        assert_eq!(producer.post_write_immediate(&head, [0; 8], payload), Err(error));
    }
    let op = AtomicOp::fetch_add(1);
    for (remote, len) in [(4, 8), (8, 7), (8, 9)] {
        let head = WqeHead { remote, ..head };
        assert_eq!(producer.post_atomic(&head, op, &sge(len)), Err(PostError::Misaligned));
    }
    assert!(producer.post_atomic(&head, op, &sge(8)).is_ok());
    assert_eq!(producer.post_immediate(&head, [0; 8]), Err(PostError::QueueFull));
}
