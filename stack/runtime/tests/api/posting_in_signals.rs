//! Posting in the handler of a signal.

use std::iter::from_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use crossbeam::atomic::AtomicCell;
use ferrowarp::{DriveMode, PostError, Qp, RemoteAddr, Wc, WcStatus};

use crate::support::*;

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
    let mut count = |wc: Wc| completed[usize::from(wc.wr_id == BY_HANDLER)] += 1;
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
            while left.cq.poll_with(64, &mut count) > 0 {}
            right.context.drive();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let calls = HANDLER_CALLS.load(Ordering::Relaxed);
    assert!(calls >= CALLS, "{calls} signals in {TIMEOUT:?}");
    a.to_error().unwrap();
    drive_for(&left.context, &right.context, Duration::from_millis(5));
    while left.cq.poll_with(64, &mut count) > 0 {}
    assert_eq!(completed, [posted, HANDLER_POSTED.load(Ordering::Relaxed)], "in {calls} calls");
}
