//! A panic during a poll ends the context, with events, flushed requests and errors.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ferrowarp::{
    Access, AsyncEvent, CmError, ConnEvent, CreateError, DriveMode, EndReason, Ended, Notify,
    PostError, QpOptions, QpState, ReqNotifyError, WcStatus,
};

use crate::support::rx_hook::hooked_contexts;
use crate::support::*;

/// Receives outstanding when the poll panics.
const RECEIVES: usize = 4;

fn panic_ends_the_context(drive: DriveMode) {
    // Calls that wait on one end poll the other one if it is driven inline, and do not sleep then.
    let other = if drive == DriveMode::Inline { drive } else { DriveMode::Helper };
    let mut left = config(1, other);
    // Its peer will not acknowledge.
    left.linger = Duration::from_millis(50);
    let (left, right, hooks) = hooked_contexts(left, config(2, drive));
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    let channel = right.context.create_comp_channel().unwrap();
    let events = right.context.event_channel().unwrap();
    let listener = right.context.listen(PORT + 1, 1).unwrap();
    let cq = right.context.create_cq_on(&channel, 64).unwrap();
    let options = QpOptions::new(&cq).max_send_wr(4).max_recv_wr(8);
    let b = right.pd.create_qp(&options).unwrap();
    let (_a, b) = connect_qps(&right, left.qp(), b).0;
    let unused = right.qp();
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    for wr_id in 0..RECEIVES as u64 {
        b.post_recv(wr_id, recv_mr.sge(0, 64)).unwrap();
    }
    assert!(!right.context.has_failed() && !hooks.has_left.load(Ordering::Relaxed));
    while events.next_event().is_some() {}
    cq.req_notify(Notify::Solicited).unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        // Sleeping threads: on the channel, twice although only one event follows; on the listener;
        // on the queue pair.
        let waiter = scope.spawn(|| (channel.wait(TIMEOUT), channel.wait(TIMEOUT)));
        let served = scope.spawn(|| listener.accept_timeout(TIMEOUT).is_none());
        let waiting = scope.spawn(|| b.wait_event(TIMEOUT));
        *hooks.rx.lock().unwrap() = Some(Box::new(|| panic!("deliberate panic of this test")));
        while !right.context.has_failed() {
            right.context.drive();
            assert!(start.elapsed() < TIMEOUT, "the panic was not noticed");
            std::thread::yield_now();
        }
        assert_eq!(waiter.join().unwrap(), (Some(cq.id()), None));
        let got = waiting.join().unwrap();
        let is_end = matches!(
            got,
            Some(ConnEvent::Disconnected { reason: EndReason::LocalError, qp }) if qp == b.id()
        );
        assert!(is_end, "{got:?}");
        assert!(served.join().unwrap(), "no connection request");
    });
    let got = [events.wait(TIMEOUT), events.wait(TIMEOUT), events.wait(TIMEOUT)];
    let end = Some(AsyncEvent::Connection { qp: b.id() });
    assert_eq!(got, [end, Some(AsyncEvent::Failed), None]);
    assert!(hooks.has_left.load(Ordering::Relaxed), "frames of other contexts would wait for it");
    // Outstanding receives are flushed, in order.
    let found: Vec<_> = poll_once(&cq).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let flushed: Vec<_> = (0..RECEIVES as u64).map(|id| (id, WcStatus::Flushed)).collect();
    assert_eq!(found, flushed);
    // Later calls fail at once.
    assert_eq!([b.state(), unused.state()], [QpState::Error; 2]);
    assert_eq!(send(&b, 9, b"x"), Err(PostError::Ended(Ended::Failed)));
    assert_eq!(unused.post_recv(9, recv_mr.sge(0, 64)), Err(PostError::Ended(Ended::Failed)));
    assert_eq!(unused.connect(server(), param(b"")), Err(CmError::Ended(Ended::Failed)));
    assert_eq!(b.disconnect(), Err(CmError::Ended(Ended::Failed)));
    assert_eq!(right.context.listen(PORT, 1).err(), Some(CmError::Ended(Ended::Failed)));
    assert_eq!(right.context.create_cq(1).err(), Some(CreateError::Ended(Ended::Failed)));
    assert_eq!(cq.req_notify(Notify::Next), Err(ReqNotifyError::Ended(Ended::Failed)));
    assert_eq!(b.wait_event(TIMEOUT), None);
    assert!(!right.context.drive());
    // Memory can be deregistered, and the context closed.
    assert!(recv_mr.deregister().is_some());
    right.context.clone().close();
    assert!(right.context.has_failed() && !left.context.has_failed());
    assert!(start.elapsed() < TIMEOUT, "a call waited for its whole timeout");
}

#[test]
fn panic_while_polling_inline_ends_the_context() {
    panic_ends_the_context(DriveMode::Inline);
}

#[test]
fn panic_in_a_dedicated_thread_ends_the_context() {
    panic_ends_the_context(DriveMode::Dedicated);
}

#[test]
fn panic_in_a_helper_ends_the_context() {
    panic_ends_the_context(DriveMode::Helper);
}

/// A thread finds the queue pair in order, and the shard fails before it has posted.
#[test]
fn request_posted_across_the_end_of_a_shard_is_flushed() {
    let drive = DriveMode::Inline;
    for is_hot in [false, true] {
        let mut left = config(1, drive);
        left.linger = Duration::from_millis(50);
        let (left, right, hooks) = hooked_contexts(left, config(2, drive));
        let (left, right) = (Endpoint::new(left), Endpoint::new(right));
        let (_a, b) = connect(&left, &right);
        let recv_mr = right.mr(64, Access::LOCAL_WRITE);
        if is_hot {
            b.post_recv(1, recv_mr.sge(0, 64)).unwrap();
            right.context.drive();
        }
        *hooks.rx.lock().unwrap() = Some(Box::new(|| panic!("deliberate panic of this test")));
        let mut post = b.post();
        while !right.context.has_failed() {
            right.context.drive();
        }
        post.send_inline(b"late").wr_id(2);
        post.ring().unwrap();
        let found = poll_once(&right.cq);
        let ids: Vec<_> = found.iter().map(|wc| wc.wr_id).collect();
        assert!(found.iter().all(|wc| wc.status == WcStatus::Flushed));
        assert_eq!(ids, if is_hot { vec![1, 2] } else { vec![2] });
    }
}
