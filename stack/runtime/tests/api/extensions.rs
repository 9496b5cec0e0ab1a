//! Atomic operations and Immediate Data (RFC 7306).

use std::thread;

use ferrowarp::{
    Access, AtomicOp, ConnEvent, DriveMode, EndReason, Mr, PostError, Qp, SendFlags, Wc, WcOpcode,
    WcStatus,
};

use crate::support::*;

fn atomic(qp: &Qp, wr_id: u64, op: AtomicOp, sink: &Mr, word: &Mr) -> Result<(), PostError> {
    one(qp.post().atomic(op, sink.sge(0, 8), word.remote()).wr_id(wr_id).signaled())
}

#[test]
fn atomics_update_the_word_and_return_the_old_value() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, _b) = connect(&left, &right);
    let word = right.mr(8, Access::REMOTE_ATOMIC);
    let sink = left.mr(8, Access::LOCAL_WRITE);
    let steps = [
        (AtomicOp::fetch_add(7), WcOpcode::FetchAdd, 0),
        (AtomicOp::swap(100), WcOpcode::Swap, 7),
        (AtomicOp::cmp_swap(99, 1), WcOpcode::CmpSwap, 100),
        (AtomicOp::cmp_swap(100, 2), WcOpcode::CmpSwap, 100),
    ];
    for (op, opcode, before) in steps {
        atomic(&a, 1, op, &sink, &word).unwrap();
        let wc = left.completions(&right, 1)[0];
        assert_eq!((wc.status, wc.opcode, wc.byte_len), (WcStatus::Success, opcode, 8));
        assert_eq!(sink.load_word(0), before);
    }
    assert_eq!(word.load_word(0), 2);
}

#[test]
fn atomics_lose_no_update_across_qps_and_local_threads() {
    const REMOTE: u64 = 4_000;
    const LOCAL: u64 = 200_000;
    let (left, right) = endpoints(DriveMode::Inline);
    let word = right.mr(8, Access::REMOTE_ATOMIC);
    // Two counters in one word: local threads add to the lower half, peers to the upper half, with
    // carries stopped at the boundary. Neither may change the other half.
    let upper = AtomicOp::FetchAdd { add: 1 << 32, boundaries: 1 << 31 | 1 << 63 };
    let links: Vec<_> = (0..2).map(|_| connect(&left, &right)).collect();
    let sink = left.mr(8, Access::LOCAL_WRITE);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..LOCAL {
                    word.atomic(0, AtomicOp::fetch_add(1));
                }
            });
        }
        let (mut posted, mut done, mut wcs) = (0, 0, [Wc::default(); 32]);
        drive_until(&left.context, &right.context, || {
            for (a, _) in &links {
                while posted < REMOTE && atomic(a, posted, upper, &sink, &word).is_ok() {
                    posted += 1;
                }
            }
            let found = left.cq.poll(&mut wcs);
            assert!(found.iter().all(|wc| wc.status == WcStatus::Success), "{found:?}");
            done += found.len() as u64;
            done == REMOTE
        });
    });
    assert_eq!(word.load_word(0), (REMOTE << 32) + 2 * LOCAL);
}

#[test]
fn write_is_placed_before_its_immediate_data_completes() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = connect(&left, &right);
    let len = 50_000;
    let source = left.mr(len, Access::LOCAL_READ);
    let target = right.mr(len, Access::REMOTE_WRITE);
    let all = u32::try_from(len).unwrap();
    for round in 0..4_u8 {
        source.write(0, &pattern(len, round));
        b.post_recv(round.into(), []).unwrap();
        let (data, solicited) = ([round; 8], round % 2 == 0);
        let flags = SendFlags::SIGNALED.and(SendFlags::SOLICITED.when(solicited));
        let mut post = a.post();
        post.write_immediate(source.sge(0, all), target.remote(), data).wr_id(9).with(flags);
        post.ring().unwrap();
        let seen = right.completions(&left, 1)[0];
        assert_eq!(contents(&target), pattern(len, round));
        assert_eq!(
            (seen.wr_id, seen.status, seen.opcode),
            (round.into(), WcStatus::Success, WcOpcode::RecvImmediate)
        );
        assert_eq!((seen.byte_len, seen.immediate(), seen.solicited), (all, Some(data), solicited));
        let wc = left.completions(&right, 1)[0];
        assert_eq!((wc.opcode, wc.byte_len, wc.immediate()), (WcOpcode::Write, all, None));
    }
    b.post_recv(10, []).unwrap();
    a.post().immediate(*b"all done").wr_id(11).signaled().ring().unwrap();
    let seen = right.completions(&left, 1)[0];
    assert_eq!((seen.byte_len, seen.immediate()), (0, Some(*b"all done")));
    assert_eq!(left.completions(&right, 1)[0].opcode, WcOpcode::Immediate);
}

#[test]
fn invalid_atomic_requests_are_refused_at_post() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, _b) = connect(&left, &right);
    let word = right.mr(16, Access::REMOTE_ATOMIC);
    let sink = left.mr(16, Access::LOCAL_WRITE);
    let post = |len, offset| {
        one(a.post().atomic(AtomicOp::swap(1), sink.sge(0, len), word.remote().at(offset)))
    };
    assert_eq!(post(8, 4), Err(PostError::Misaligned));
    assert_eq!(post(4, 0), Err(PostError::Misaligned));
    assert_eq!(post(16, 0), Err(PostError::Misaligned));
    assert_eq!(post(8, 8), Ok(()));
}

/// A region with every access right except `REMOTE_ATOMIC`.
#[test]
fn atomic_without_remote_atomic_access_is_refused() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, _b) = connect(&left, &right);
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::LOCAL_WRITE;
    let word = right.mr(8, rights);
    let sink = left.mr(8, Access::LOCAL_WRITE);
    atomic(&a, 1, AtomicOp::swap(1), &sink, &word).unwrap();
    let wc = left.completions(&right, 1)[0];
    assert_eq!((wc.status, wc.opcode), (WcStatus::RemoteAccess, WcOpcode::Swap));
    assert_eq!(word.load_word(0), 0);
}

#[test]
fn without_extensions_atomics_are_refused_both_ways() {
    let mut off = config(2, DriveMode::Inline);
    off.extensions = false;
    let (left, right) = ring_pair(config(1, DriveMode::Inline), off).unwrap();
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    let (a, b) = connect(&left, &right);
    let word = right.mr(8, Access::ALL);
    let sink = left.mr(8, Access::ALL);
    let refused = atomic(&b, 1, AtomicOp::swap(1), &word, &sink);
    assert_eq!(refused, Err(PostError::Unsupported));
    assert_eq!(one(b.post().immediate([0; 8])), Err(PostError::Unsupported));

    atomic(&a, 3, AtomicOp::swap(1), &sink, &word).unwrap();
    let wc = left.completions(&right, 1)[0];
    assert_eq!((wc.wr_id, wc.status), (3, WcStatus::RemoteOperation));
    let ConnEvent::Disconnected { reason: EndReason::TerminateReceived(seen), .. } =
        expect_event(&a)
    else {
        panic!("no Terminate");
    };
    assert_eq!((seen.layer, seen.error_type, seen.code), (0, 2, 6));
    assert_eq!(word.load_word(0), 0);
}
