//! Requests posted before, during and after a connection, several at a time, as large as they may
//! be, and from where the thread is posting already.

use std::iter::from_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use crossbeam::atomic::AtomicCell;
use ferrowarp::{
    Access, ConnParam, ConnectError, CreateError, DriveMode, EndReason, Event, INLINE_LEN_MAX, Mr,
    PostError, Qp, QpOptions, QpState, RemoteAddr, SGE_COUNT_MAX, Sge, Wc, WcOpcode, WcStatus,
    WqePayload,
};

use crate::shards::sharded;
use crate::support::*;

fn outcomes<'a>(wcs: impl IntoIterator<Item = &'a Wc>) -> Vec<(u64, WcStatus)> {
    wcs.into_iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

/// Completions of sends, and those of receives.
fn sends_and_recvs(wcs: &[Wc]) -> [Vec<(u64, WcStatus)>; 2] {
    let (recvs, sends): (Vec<_>, Vec<_>) = wcs.iter().partition(|wc| wc.opcode == WcOpcode::Recv);
    [sends, recvs].map(outcomes)
}

/// These requests, each with the same status.
fn all(wr_ids: impl IntoIterator<Item = u64>, status: WcStatus) -> Vec<(u64, WcStatus)> {
    wr_ids.into_iter().map(|wr_id| (wr_id, status)).collect()
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
fn assert_no_more(left: &Endpoint, right: &Endpoint) {
    drive_for(&left.context, &right.context, Duration::from_millis(5));
    let mut more = Vec::new();
    assert_eq!((left.cq.poll(&mut more), right.cq.poll(&mut more)), (0, 0), "{more:?}");
}

/// Connects two queue pairs, of which the active one may have `ord` Reads outstanding.
fn connect_with_ord(right: &Endpoint, a: &Qp, b: &Qp, ord: u16) {
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
        assert_eq!((qp.state(), end.cq.poll(&mut Vec::new())), (QpState::Idle, 0));
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
        (1..EACH).for_each(|_| drop(post.send_inline(b"")));
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
        recvs.poll(&mut found);
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
                recvs.poll(&mut flushed);
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
        assert!(matches!(expect_event(&a), Event::Disconnected { reason: EndReason::Local, .. }));
        let reason = expect_event(&b);
        assert!(matches!(reason, Event::Disconnected { reason: EndReason::PeerClosed, .. }));
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
    assert!(matches!(expect_event(&a), Event::Disconnected { reason: EndReason::Local, .. }));
    assert!(matches!(expect_event(&b), Event::Disconnected { reason: EndReason::PeerClosed, .. }));
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

/// Queue pair to which the signal handler posts.
static HANDLED: OnceLock<Weak<Qp>> = OnceLock::new();
/// Results of the handler's last send and receive.
static RESULTS: [AtomicCell<Option<Result<(), PostError>>>; 2] =
    [const { AtomicCell::new(None) }; 2];
/// Numbers of its calls, and of its requests that were accepted.
static HANDLER_CALLS: AtomicU64 = AtomicU64::new(0);
static HANDLER_POSTED: AtomicU64 = AtomicU64::new(0);

// A handler takes no lock.
const _: () = assert!(AtomicCell::<Option<Result<(), PostError>>>::is_lock_free());

/// Work request ID of the handler's requests.
const BY_HANDLER: u64 = u64::MAX;

extern "C" fn post_in_handler(_: libc::c_int) {
    if let Some(qp) = HANDLED.get().and_then(Weak::upgrade) {
        let results = [empty_write(&qp, BY_HANDLER), qp.post_recv(BY_HANDLER, [])];
        for (place, result) in RESULTS.iter().zip(results) {
            place.store(Some(result));
            HANDLER_POSTED.fetch_add(result.is_ok().into(), Ordering::Relaxed);
        }
        HANDLER_CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Raises the signal; returns the results of the handler.
fn raise() -> [Result<(), PostError>; 2] {
    // SAFETY: the signal has a handler.
    assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0);
    RESULTS.each_ref().map(|result| result.take().expect("the handler ran"))
}

#[test]
fn signal_handler_posts_unless_its_thread_is_posting() {
    const CALLS: u64 = 2000;
    const BATCH: u64 = 8;
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, _b) = connect(&left, &right);
    let a = Arc::new(a);
    HANDLED.set(Arc::downgrade(&a)).unwrap();
    let handler: extern "C" fn(libc::c_int) = post_in_handler;
    // It stays: a signal may still be on its way at the end.
    // SAFETY: the handler does nothing but what is possible in one.
    let before = unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    assert_eq!(before, libc::SIG_DFL);

    assert_eq!(raise(), [Ok(()), Ok(())]);
    let mut post = a.post();
    post.write_inline(b"", RemoteAddr::default()).wr_id(1).signaled();
    assert_eq!(raise(), [Err(PostError::Reentered), Ok(())]);
    post.write_inline(b"", RemoteAddr::default()).wr_id(2).signaled();
    assert_eq!(raise(), [Err(PostError::Reentered), Ok(())]);
    post.ring().unwrap();
    let mut is_first = true;
    a.post_recvs(from_fn(|| {
        assert_eq!(raise(), [Ok(()), Err(PostError::Reentered)]);
        std::mem::take(&mut is_first).then_some((3, []))
    }))
    .unwrap();
    assert_eq!(raise(), [Ok(()), Ok(())]);
    let found = left.completions(&right, 6);
    let ids = [BY_HANDLER, 1, 2, BY_HANDLER, BY_HANDLER, BY_HANDLER];
    assert_eq!(outcomes(&found), all(ids, WcStatus::Success));

    // At any instruction of the thread. Completions of its requests, and of the handler's:
    let mut completed = [2, 4];
    let mut count = |wcs: &[Wc]| {
        wcs.iter().for_each(|wc| completed[usize::from(wc.wr_id == BY_HANDLER)] += 1);
    };
    // SAFETY: it has no preconditions.
    let this = unsafe { libc::pthread_self() };
    let (is_over, start, mut posted) = (AtomicBool::new(false), Instant::now(), 3);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // SAFETY: that thread waits for this one, and the signal has a handler.
                assert_eq!(unsafe { libc::pthread_kill(this, libc::SIGUSR1) }, 0);
                std::thread::yield_now();
            }
        });
        let mut wcs = Vec::with_capacity(64);
        while HANDLER_CALLS.load(Ordering::Relaxed) < CALLS && start.elapsed() < TIMEOUT {
            let mut post = a.post();
            for _ in 0..BATCH {
                post.write_inline(b"", RemoteAddr::default()).signaled();
            }
            posted += match post.ring() {
                Ok(()) => BATCH,
                Err(refused) => {
                    assert_eq!(refused.error, PostError::QueueFull);
                    refused.posted as u64
                }
            };
            while left.cq.poll(&mut wcs) > 0 {
                count(&wcs);
                wcs.clear();
            }
            right.context.drive();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let calls = HANDLER_CALLS.load(Ordering::Relaxed);
    assert!(calls >= CALLS, "{calls} signals in {TIMEOUT:?}");
    a.to_error().unwrap();
    drive_for(&left.context, &right.context, Duration::from_millis(5));
    let mut wcs = Vec::new();
    while left.cq.poll(&mut wcs) > 0 {}
    count(&wcs);
    assert_eq!(completed, [posted, HANDLER_POSTED.load(Ordering::Relaxed)], "in {calls} calls");
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

/// Options of the largest requests.
fn largest(end: &Endpoint) -> QpOptions<'_> {
    QpOptions::new(&end.cq)
        .max_send_sge(SGE_COUNT_MAX)
        .max_recv_sge(SGE_COUNT_MAX)
        .max_inline_data(INLINE_LEN_MAX)
}

#[test]
fn options_beyond_the_largest_requests_are_refused() {
    let (left, _right) = endpoints(DriveMode::Inline);
    assert_eq!((SGE_COUNT_MAX, INLINE_LEN_MAX), (32, 256));
    assert!(left.pd.create_qp(&largest(&left)).is_ok());
    let options = QpOptions::new(&left.cq);
    for (options, option, wanted, limit) in [
        (options.max_send_sge(33), "max_send_sge", 33, 32),
        (options.max_recv_sge(33), "max_recv_sge", 33, 32),
        (options.max_inline_data(257), "max_inline_data", 257, 256),
        (options.max_inline_data(usize::MAX), "max_inline_data", usize::MAX, 256),
    ] {
        let error = CreateError::RequestTooLong { option, wanted, limit };
        assert_eq!(left.pd.create_qp(&options).err(), Some(error));
        assert!(error.to_string().contains(option), "{error}");
    }
}

/// A request that is too long is refused, and those after it; those before it are posted.
#[test]
fn requests_longer_than_the_options_are_refused() {
    let (left, right) = endpoints(DriveMode::Inline);
    let default = QpOptions::new(&left.cq);
    let small = default.max_send_sge(1).max_recv_sge(1).max_inline_data(1);
    let odd = default.max_send_sge(3).max_recv_sge(4).max_inline_data(101);
    for (options, sends, recvs, bytes) in
        [(default, 6, 6, 96), (small, 1, 1, 1), (odd, 3, 4, 101), (largest(&left), 32, 32, 256)]
    {
        let qp = left.pd.create_qp(&options).unwrap();
        let (list, text) = ([Sge::default(); 33], [0; 257]);
        let remote = RemoteAddr::default();
        for (len, expected) in [(sends, Ok(())), (sends + 1, Err(PostError::TooManySges))] {
            let list = &list[..len];
            assert_eq!(one(qp.post().send(list)), expected);
            assert_eq!(one(qp.post().write(list, remote)), expected);
            assert_eq!(one(qp.post().read(list, remote)), expected);
            assert_eq!(one(qp.post().write_immediate(list, remote, [0; 8])), expected);
        }
        for (len, expected) in [(bytes, Ok(())), (bytes + 1, Err(PostError::InlineTooLong))] {
            assert_eq!(one(qp.post().send_inline(&text[..len])), expected);
            assert_eq!(one(qp.post().write_inline(&text[..len], remote)), expected);
        }
        assert_eq!(qp.post_recv(0, &list[..recvs]), Ok(()));
        assert_eq!(qp.post_recv(0, &list[..=recvs]), Err(PostError::TooManySges));

        let mut post = qp.post();
        post.send(list[0]);
        post.send_inline(b"");
        post.send(&list[..=sends]);
        post.send(list[0]);
        let refused = post.ring().unwrap_err();
        assert_eq!((refused.error, refused.posted), (PostError::TooManySges, 2));
        let refused = qp.post_recvs([(0, &list[..1]), (0, &list[..=recvs]), (0, &[])]).unwrap_err();
        assert_eq!((refused.error, refused.posted), (PostError::TooManySges, 1));
        // What was accepted is in the queues, and nothing else.
        qp.to_error().unwrap();
        left.completions(&right, 6 + 1 + 2 + 1);
        assert_no_more(&left, &right);
    }
    let srq = left.pd.create_srq(4).unwrap();
    assert_eq!(srq.post_recv(1, [Sge::default(); 6]), Ok(()));
    assert_eq!(srq.post_recv(1, [Sge::default(); 7]), Err(PostError::TooManySges));
}

#[test]
fn invalid_requests_are_refused() {
    let (left, _right) = endpoints(DriveMode::Inline);
    let qp = left.qp();
    let half = Sge { len: 1 << 31, ..Sge::default() };
    assert_eq!(one(qp.post().send(&[half, half])), Err(PostError::TooLong));
    let inline = WqePayload::Inline(b"x");
    assert_eq!(one(qp.post().read(inline, RemoteAddr::default())), Err(PostError::InlineSink));
}

/// Disjoint pieces of a region, of different lengths and in reverse order, of `len` bytes together.
fn pieces(region: &Mr, count: usize, len: usize) -> Vec<Sge> {
    let stride = region.len() / count;
    let end = |index: usize| len * index * index / (count * count);
    let piece = |index: usize| {
        let len = end(index + 1) - end(index);
        assert!(len <= stride);
        region.sge(stride * (count - 1 - index), u32::try_from(len).unwrap())
    };
    (0..count).map(piece).collect()
}

/// The bytes that the pieces of a list hold.
fn gathered(region: &Mr, list: &[Sge]) -> Vec<u8> {
    let all = contents(region);
    let piece = |sge: &Sge| {
        let offset = usize::try_from(sge.addr - region.addr()).unwrap();
        &all[offset..offset + sge.len as usize]
    };
    list.iter().flat_map(piece).copied().collect()
}

/// Requests of all sizes up to the largest, in short queues, whose ends they go around.
#[test]
fn requests_of_all_sizes_arrive() {
    const LEN: usize = 1 << 16;
    let (left, right) = endpoints(DriveMode::Inline);
    let create =
        |end: &Endpoint| end.pd.create_qp(&largest(end).max_send_wr(5).max_recv_wr(3)).unwrap();
    let (a, b) = connect_qps(&right, create(&left), create(&right)).0;
    let source = left.mr(LEN, Access::LOCAL_READ);
    source.write(0, &pattern(LEN, 5));
    let text = pattern(INLINE_LEN_MAX, 9);
    for count in (1..=SGE_COUNT_MAX).chain([SGE_COUNT_MAX; 8]) {
        let [received, received_inline, written] = [(); 3].map(|()| right.mr(LEN, Access::ALL));
        let list = pieces(&source, count, 100 * count);
        let inline = &text[..count * (INLINE_LEN_MAX / SGE_COUNT_MAX)];
        // The receiver's lists are divided in another way.
        let buffer = pieces(&received, SGE_COUNT_MAX + 1 - count, 100 * count);
        let buffer_inline = pieces(&received_inline, count, inline.len());
        b.post_recv(1, &buffer).unwrap();
        b.post_recv(2, &buffer_inline).unwrap();
        b.post_recv(3, []).unwrap();
        let place = |number: usize| written.remote().at((number * LEN / 4) as u64);
        let mut post = a.post();
        post.send(&list[..]).wr_id(1);
        post.send_inline(inline).wr_id(2);
        post.write(&list[..], place(0)).wr_id(3);
        post.write_inline(inline, place(1)).wr_id(4);
        post.write_immediate(&list[..], place(2), *b"notified").wr_id(5).signaled();
        post.ring().unwrap();
        assert_eq!(outcomes(&left.completions(&right, 1)), [(5, WcStatus::Success)]);
        let found = right.completions(&left, 3);
        assert_eq!(outcomes(&found), all(1..=3, WcStatus::Success));
        let lens = [100 * count, inline.len(), 0];
        assert!(found.iter().map(|wc| wc.byte_len as usize).eq(lens));
        let sent = gathered(&source, &list);
        assert!(gathered(&received, &buffer) == sent, "{count} pieces");
        assert!(gathered(&received_inline, &buffer_inline) == inline, "{count} pieces");
        let written = contents(&written);
        for (number, bytes) in [&sent[..], inline, &sent[..]].into_iter().enumerate() {
            assert!(written[number * LEN / 4..].starts_with(bytes), "{count} pieces");
        }
    }
}

/// Each piece takes an ORD credit of its own, however few there are.
#[test]
fn read_fills_a_sink_of_many_pieces() {
    const LEN: usize = 100_000;
    const READS: usize = 3;
    for ord in [1, 2, ConnParam::default().ord] {
        let (left, right) = endpoints(DriveMode::Inline);
        let (a, b) = (left.pd.create_qp(&largest(&left)).unwrap(), right.qp());
        connect_with_ord(&right, &a, &b, ord);
        let source = right.mr(LEN, Access::REMOTE_READ);
        source.write(0, &pattern(LEN, 3));
        let sinks = [(); READS].map(|()| left.mr(10 * LEN, Access::LOCAL_WRITE));
        let lists = sinks.each_ref().map(|sink| pieces(sink, SGE_COUNT_MAX, LEN));
        b.post_recv(0, []).unwrap();
        let mut post = a.post();
        for (wr_id, list) in lists.iter().enumerate() {
            post.read(&list[..], source.remote()).wr_id(wr_id as u64).signaled();
        }
        post.send_inline(b"").wr_id(READS as u64).fence().signaled();
        post.ring().unwrap();
        let found = left.completions(&right, READS + 1);
        assert_eq!(outcomes(&found), all(0..=READS as u64, WcStatus::Success));
        for (sink, list) in sinks.iter().zip(&lists) {
            assert!(gathered(sink, list) == pattern(LEN, 3), "ORD {ord}");
        }
        assert_eq!(outcomes(&right.completions(&left, 1)), [(0, WcStatus::Success)]);
        assert_no_more(&left, &right);
    }
}
