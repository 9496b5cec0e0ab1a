//! Calls of one thread while another thread is in the middle of a poll of the shard.

use std::sync::{Arc, mpsc};

use ferrowarp::{Access, DriveMode, Notify, WcStatus};

use crate::support::rx_hook::hooked_contexts;
use crate::support::*;

#[test]
fn recv_posted_before_the_rx_burst_serves_that_burst() {
    let (left, right, hooks) =
        hooked_contexts(config(1, DriveMode::Inline), config(2, DriveMode::Inline));
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    let (a, b) = connect(&left, &right);
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    let b = Arc::new(b);
    for wr_id in 0..3 {
        // The message is in the ring, and the poll that will receive it has begun.
        send(&a, wr_id, b"now").unwrap();
        left.context.drive();
        let (qp, buffer) = (Arc::clone(&b), recv_mr.sge(0, 64));
        *hooks.rx.lock().unwrap() = Some(Box::new(move || qp.post_recv(wr_id, buffer).unwrap()));
        let got = right.completions(&left, 1);
        assert_eq!((got[0].wr_id, got[0].status), (wr_id, WcStatus::Success));
        left.completions(&right, 1);
    }
}

#[test]
fn recv_completion_is_published_before_the_poll_transmits() {
    let (left, right, hooks) =
        hooked_contexts(config(1, DriveMode::Inline), config(2, DriveMode::Inline));
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    let (a, b) = connect(&left, &right);
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    b.post_recv(7, recv_mr.sge(0, 64)).unwrap();
    right.context.drive();
    send(&a, 0, b"now").unwrap();
    left.context.drive();
    let (found, polled) = mpsc::channel();
    let cq = right.cq.clone();
    *hooks.tx.lock().unwrap() = Some(Box::new(move || {
        found.send(poll_once(&cq)).unwrap();
    }));
    right.context.drive();
    let completions = polled.recv().unwrap();
    assert_eq!(completions.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [7]);
}

#[test]
fn unsignaled_requests_free_their_slots_in_the_poll_that_also_receives() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = connect(&left, &right);
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    let sink = left.mr(64, Access::ALL);
    b.post_recv(7, recv_mr.sge(0, 64)).unwrap();
    // The initiator sends first: then the responder may.
    send(&a, 0, b"first").unwrap();
    right.completions(&left, 1);
    b.post_recv(8, recv_mr.sge(0, 64)).unwrap();
    right.context.drive();
    let post_unsignaled = || b.post().write_inline(b"x", sink.remote()).ring();
    while post_unsignaled().is_ok() {}
    send(&a, 1, b"second").unwrap();
    left.context.drive();
    // One poll receives the message, and takes and completes the Writes.
    right.context.drive();
    post_unsignaled().unwrap();
    let completions = poll_once(&right.cq);
    assert_eq!(completions.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [8]);
}

#[test]
fn req_notify_does_not_wait_for_the_shard_lock() {
    let (_left, right, hooks) =
        hooked_contexts(config(1, DriveMode::Inline), config(2, DriveMode::Inline));
    let channel = right.create_comp_channel().unwrap();
    let cq = right.create_cq_on(&channel, 4).unwrap();
    let (outcome, outcomes) = mpsc::channel();
    *hooks.rx.lock().unwrap() = Some(Box::new(move || {
        let (tx, rx) = mpsc::channel();
        std::thread::spawn(move || {
            let _ = tx.send(cq.req_notify(Notify::Next));
        });
        outcome.send(rx.recv_timeout(TIMEOUT)).unwrap();
    }));
    right.drive();
    assert_eq!(outcomes.recv(), Ok(Ok(Ok(()))), "the call returned before the poll ended");
}
