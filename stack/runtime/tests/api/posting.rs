//! Requests posted before, during and after a connection, and several at a time.

use std::iter::from_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use ferrowarp::{
    Access, ConnEvent, ConnParam, ConnectError, DriveMode, EndReason, Mr, PostError, Qp, QpOptions,
    QpState, RemoteAddr, Sge, Wc, WcOpcode, WcStatus,
};

use crate::shards::sharded;
use crate::support::*;

/// Completions of sends, and those of receives.
fn sends_and_recvs(wcs: &[Wc]) -> [Vec<(u64, WcStatus)>; 2] {
    let (recvs, sends): (Vec<_>, Vec<_>) = wcs.iter().partition(|wc| wc.opcode == WcOpcode::Recv);
    [sends, recvs].map(outcomes)
}

/// Posts signaled Sends at once; each carries its number.
fn post_numbers(qp: &Qp, numbers: std::ops::Range<usize>) {
    let mut post = qp.post();
    for number in numbers {
        post.send_inline(&number.to_ne_bytes()).wr_id(number as u64).signaled();
    }
    post.ring().unwrap();
}

/// Posts receives for the numbers from 0 to `count`, each with a word of the region.
fn post_words(qp: &Qp, region: &Mr, count: usize) {
    qp.post_recvs((0..count).map(|number| (number as u64, region.sge(8 * number, 8)))).unwrap();
}

/// Asserts that there are no more completions.
pub(crate) fn assert_no_more(left: &Endpoint, right: &Endpoint) {
    drive_for(&left.context, &right.context, Duration::from_millis(5));
    for end in [left, right] {
        assert_eq!(end.cq.poll(&mut [Wc::default()]), []);
    }
}

/// Connects two queue pairs, of which the active one may have `ord` Reads outstanding.
pub(crate) fn connect_with_ord(right: &Endpoint, a: &Qp, b: &Qp, ord: u16) {
    let listener = right.context.listen(PORT, 1).unwrap();
    let mut param = ConnParam::default();
    param.ord = ord;
    a.connect(server(), param).unwrap();
    listener.accept_timeout(TIMEOUT).unwrap().accept(b, ConnParam::default()).unwrap();
    assert_eq!(a.wait_established(TIMEOUT).unwrap().ord, ord);
}

/// Both sides send: before they have a connection, while it is being set up, and on it `late` more.
fn early_sends_are_sent_in_order(shards: usize, drive: DriveMode, late: usize) {
    // More than a poll takes, of one queue and of all.
    const EARLY: usize = 640;
    const SETUP: usize = EARLY + 64;
    let count = SETUP + late;
    let (left, right) = sharded(shards, drive);
    let (a, b) = (left.qp_with(1024, 1024), right.qp_with(1024, 1024));
    let ends = [(&left, &a), (&right, &b)];
    let regions = ends.map(|(end, _)| end.mr(8 * count, Access::LOCAL_WRITE));
    for ((end, qp), region) in ends.iter().zip(&regions) {
        post_words(qp, region, count);
        post_numbers(qp, 0..EARLY);
        assert_eq!((qp.state(), end.cq.poll(&mut [Wc::default()])), (QpState::Idle, &[][..]));
    }
    let listener = right.context.listen(PORT, 1).unwrap();
    a.connect(server(), ConnParam::default()).unwrap();
    post_numbers(&a, EARLY..SETUP);
    let request = listener.accept_timeout(TIMEOUT).expect("a request");
    assert_eq!((a.state(), b.state()), (QpState::Connecting, QpState::Idle));
    request.accept(&b, ConnParam::default()).unwrap();
    post_numbers(&b, EARLY..SETUP);
    for (_, qp) in ends {
        qp.wait_established(TIMEOUT).unwrap();
        post_numbers(qp, SETUP..count);
    }
    for ([(end, _), (other, _)], region) in [ends, [ends[1], ends[0]]].iter().zip(&regions) {
        let found = sends_and_recvs(&end.completions(other, 2 * count));
        assert_eq!(found, [(); 2].map(|()| all(0..count as u64, WcStatus::Success)));
        let numbers = (0..count).map(|at| region.load_word(8 * at));
        assert!(numbers.eq(0..count as u64), "messages arrive in order");
    }
    assert_no_more(&left, &right);
}

#[test]
fn early_sends_are_sent_in_order_inline() {
    for late in [0, 64] {
        early_sends_are_sent_in_order(1, DriveMode::Inline, late);
    }
}

#[test]
fn early_sends_are_sent_in_order_with_helpers() {
    for late in [0, 64] {
        early_sends_are_sent_in_order(1, DriveMode::Helper, late);
    }
}

#[test]
fn early_sends_of_queue_pairs_without_a_shard_are_sent_in_order() {
    for (drive, late) in [(DriveMode::Inline, 0), (DriveMode::Inline, 64), (DriveMode::Helper, 0)] {
        early_sends_are_sent_in_order(2, drive, late);
    }
}

/// More queue pairs than a shard polls without doorbells, each with more than a poll takes.
#[test]
fn early_sends_of_many_queue_pairs_are_sent_in_order() {
    const PAIRS: usize = 150;
    const EACH: usize = 300;
    let (left, right) = endpoints(DriveMode::Inline);
    let recvs = right.context.create_cq(PAIRS * EACH).unwrap();
    let options = QpOptions::new(&right.cq).recv_cq(&recvs).max_recv_wr(EACH);
    let pairs: Vec<_> = (0..PAIRS)
        .map(|_| (left.qp_with(EACH, 1), right.pd.create_qp(&options).unwrap()))
        .collect();
    for (a, b) in &pairs {
        let mut post = a.post();
        for _ in 1..EACH {
            post.send_inline(b"");
        }
        post.send_inline(b"").wr_id(1).signaled();
        post.ring().unwrap();
        b.post_recvs((0..EACH as u64).map(|wr_id| (wr_id, []))).unwrap();
    }
    let listener = right.context.listen(PORT, PAIRS).unwrap();
    for (a, b) in &pairs {
        a.connect(server(), ConnParam::default()).unwrap();
        listener.accept_timeout(TIMEOUT).unwrap().accept(b, ConnParam::default()).unwrap();
    }
    assert_eq!(outcomes(&left.completions(&right, PAIRS)), all([1; PAIRS], WcStatus::Success));
    let mut found = Vec::new();
    drive_until(&left.context, &right.context, || {
        recvs.poll_with(64, |wc| found.push(wc));
        found.len() == PAIRS * EACH
    });
    for (_, b) in &pairs {
        let of_one = outcomes(found.iter().filter(|wc| wc.qp == b.id()));
        assert_eq!(of_one, all(0..EACH as u64, WcStatus::Success));
    }
}

/// What a connection turns out not to permit completes in error, in its place.
#[test]
fn early_requests_that_the_connection_does_not_permit_fail() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = (left.qp(), right.qp());
    let (sink, source) = (left.mr(64, Access::ALL), right.mr(64, Access::ALL));
    b.post_recv(9, []).unwrap();
    empty_write(&a, 1).unwrap();
    read(&a, 2, sink.sge(0, 8), &source, 0).unwrap();
    send(&a, 3, b"").unwrap();
    connect_with_ord(&right, &a, &b, 0);
    let expected = [(1, WcStatus::Success), (2, WcStatus::RemoteOperation), (3, WcStatus::Success)];
    assert_eq!(outcomes(&left.completions(&right, 3)), expected);
    assert_eq!(outcomes(&right.completions(&left, 1)), [(9, WcStatus::Success)]);
    assert_eq!(read(&a, 4, sink.sge(0, 8), &source, 0), Err(PostError::NoReads));
    assert_eq!((a.state(), b.state()), (QpState::Rts, QpState::Rts));
}

#[test]
fn early_requests_are_flushed_if_the_connection_fails() {
    const COUNT: usize = 640;
    for (shards, drive) in [(1, DriveMode::Inline), (1, DriveMode::Helper), (2, DriveMode::Inline)]
    {
        let (left, right) = sharded(shards, drive);
        for is_rejected in [false, true] {
            let listener = is_rejected.then(|| right.context.listen(PORT, 1).unwrap());
            let recvs = left.context.create_cq(4).unwrap();
            let options = QpOptions::new(&left.cq).recv_cq(&recvs).max_send_wr(1024);
            let a = left.pd.create_qp(&options).unwrap();
            post_numbers(&a, 0..COUNT - 64);
            a.post_recvs([(0, []), (1, [])]).unwrap();
            a.connect(server(), ConnParam::default()).unwrap();
            post_numbers(&a, COUNT - 64..COUNT);
            a.post_recv(2, []).unwrap();
            let expected = match listener {
                None => ConnectError::Refused,
                Some(listener) => {
                    listener.accept_timeout(TIMEOUT).unwrap().reject(b"").unwrap();
                    ConnectError::Rejected
                }
            };
            assert_eq!(a.wait_established(TIMEOUT), Err(expected));
            let flushed = left.completions(&right, COUNT);
            assert_eq!(outcomes(&flushed), all(0..COUNT as u64, WcStatus::Flushed));
            let mut flushed = Vec::new();
            drive_until(&left.context, &right.context, || {
                recvs.poll_with(64, |wc| flushed.push(wc));
                flushed.len() >= 3
            });
            assert_eq!(outcomes(&flushed), all(0..3, WcStatus::Flushed));
            assert_no_more(&left, &right);
        }
    }
}

/// Posts sends and receives to a queue pair in the error state, also while others are flushed, and
/// asserts that each is flushed once and in order.
fn assert_flushed_late(end: &Endpoint, other: &Endpoint, qp: &Qp) {
    assert_eq!(qp.state(), QpState::Error);
    for round in 0..4 {
        for wr_id in 0..100 {
            send(qp, wr_id, b"").unwrap();
            qp.post_recv(wr_id, []).unwrap();
            if round % 2 == 1 {
                end.context.drive();
            }
        }
        let found = sends_and_recvs(&end.completions(other, 200));
        assert_eq!(found, [(); 2].map(|()| all(0..100, WcStatus::Flushed)));
    }
    assert_no_more(end, other);
}

#[test]
fn requests_posted_after_the_end_are_flushed() {
    for drive in [DriveMode::Inline, DriveMode::Helper] {
        let (left, right) = endpoints(drive);
        let (a, b) = connect(&left, &right);
        a.disconnect().unwrap();
        assert!(matches!(
            expect_event(&a),
            ConnEvent::Disconnected { reason: EndReason::Local, .. }
        ));
        let reason = expect_event(&b);
        assert!(matches!(reason, ConnEvent::Disconnected { reason: EndReason::PeerClosed, .. }));
        assert_flushed_late(&left, &right, &a);
        assert_flushed_late(&right, &left, &b);
    }
}

#[test]
fn queue_pair_without_a_connection_is_moved_to_the_error_state() {
    for (shards, drive) in [(1, DriveMode::Inline), (2, DriveMode::Inline), (2, DriveMode::Helper)]
    {
        let (left, right) = sharded(shards, drive);
        let qp = left.qp();
        assert!(shards == 1 || qp.shard().is_none());
        post_numbers(&qp, 0..100);
        qp.post_recvs((0..100).map(|wr_id| (wr_id, []))).unwrap();
        qp.to_error().unwrap();
        let found = sends_and_recvs(&left.completions(&right, 200));
        assert_eq!(found, [(); 2].map(|()| all(0..100, WcStatus::Flushed)));
        assert_flushed_late(&left, &right, &qp);
        qp.to_error().unwrap();
        assert_eq!((qp.next_event(), qp.state()), (None, QpState::Error));
        assert!(qp.connect(server(), ConnParam::default()).is_err());
        assert_no_more(&left, &right);
    }
}

#[test]
fn connected_queue_pair_is_moved_to_the_error_state() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = connect(&left, &right);
    a.post_recv(7, []).unwrap();
    a.to_error().unwrap();
    assert!(matches!(expect_event(&a), ConnEvent::Disconnected { reason: EndReason::Local, .. }));
    assert!(matches!(
        expect_event(&b),
        ConnEvent::Disconnected { reason: EndReason::PeerClosed, .. }
    ));
    assert_eq!(outcomes(&left.completions(&right, 1)), [(7, WcStatus::Flushed)]);
    assert_flushed_late(&left, &right, &a);
}

#[test]
fn posting_while_the_thread_is_posting_is_refused() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = connect(&left, &right);
    let mut post = a.post();
    post.write_inline(b"", RemoteAddr::default()).wr_id(1).signaled();
    assert_eq!(empty_write(&a, 2), Err(PostError::Reentered));
    assert_eq!(a.post().ring().map_err(|refused| refused.error), Err(PostError::Reentered));
    // Other queues are not concerned.
    a.post_recv(3, []).unwrap();
    post_numbers(&left.qp(), 0..1);
    std::thread::scope(|scope| {
        // Another thread waits.
        let waiting = scope.spawn(|| empty_write(&a, 4));
        post.write_inline(b"", RemoteAddr::default()).wr_id(5).signaled();
        post.ring().unwrap();
        waiting.join().unwrap().unwrap();
    });
    empty_write(&a, 6).unwrap();
    let found = left.completions(&right, 4);
    assert_eq!(outcomes(&found), all([1, 5, 4, 6], WcStatus::Success));

    // Receives, while the iterator of others runs.
    let srq = right.pd.create_srq(4).unwrap();
    let mut reentered = 0;
    b.post_recvs(from_fn(|| {
        assert_eq!(b.post_recv(9, []), Err(PostError::Reentered));
        srq.post_recvs(from_fn(|| -> Option<(u64, Sge)> {
            assert_eq!(srq.post_recv(9, []), Err(PostError::Reentered));
            reentered += 1;
            None
        }))
        .unwrap();
        (reentered == 1).then_some((8, []))
    }))
    .unwrap();
    assert_eq!(reentered, 2);
    send(&a, 7, b"").unwrap();
    assert_eq!(outcomes(&right.completions(&left, 1)), [(8, WcStatus::Success)]);
}

/// A thread that panics while it posts has posted what was encoded, and lets others post.
#[test]
fn panic_between_two_requests_posts_the_first() {
    for drive in [DriveMode::Inline, DriveMode::Helper] {
        let (left, right) = endpoints(drive);
        let (a, b) = connect(&left, &right);
        // Without the message of a panic.
        let panic = || resume_unwind(Box::new("deliberate"));
        let buffer = right.mr(3, Access::LOCAL_WRITE);
        let receiving = catch_unwind(AssertUnwindSafe(|| {
            b.post_recvs((0..3).map(|at| {
                if at == 2 {
                    panic();
                }
                (at as u64, buffer.sge(at, 1))
            }))
        }));
        assert!(receiving.is_err());
        b.post_recv(2, buffer.sge(2, 1)).unwrap();
        let posting = catch_unwind(AssertUnwindSafe(|| {
            let mut post = a.post();
            post.send_inline(b"1").wr_id(1).signaled();
            post.send_inline(b"2").wr_id(2).signaled();
            panic();
        }));
        assert!(posting.is_err());
        std::thread::scope(|scope| {
            scope.spawn(|| send(&a, 3, b"3").unwrap());
        });
        assert_eq!(outcomes(&left.completions(&right, 3)), all(1..=3, WcStatus::Success));
        assert_eq!(outcomes(&right.completions(&left, 3)), all(0..3, WcStatus::Success));
        assert_eq!(contents(&buffer), b"123");
        assert_no_more(&left, &right);
    }
}

/// A completion queue with a place for each request, whose completions are polled with a closure
/// that posts in their place, and drives.
#[test]
fn place_of_a_completion_is_free_for_the_request_posted_in_its_place() {
    const COUNT: usize = 4;
    let (left, right) = endpoints(DriveMode::Inline);
    let cq = left.context.create_cq(COUNT).unwrap();
    let a = left.pd.create_qp(&QpOptions::new(&cq).max_send_wr(COUNT).max_recv_wr(1)).unwrap();
    let ((a, _b), _) = connect_qps(&right, a, right.qp());
    (0..COUNT).for_each(|_| empty_write(&a, 0).unwrap());
    let mut left_to_post = 1_000;
    drive_until(&left.context, &right.context, || {
        cq.poll_with(usize::MAX, |wc| {
            assert_eq!(wc.status, WcStatus::Success);
            if left_to_post > 0 {
                left_to_post -= 1;
                empty_write(&a, 0).unwrap();
                left.context.drive();
            }
        });
        left_to_post == 0
    });
    assert!(!cq.overrun());
}
