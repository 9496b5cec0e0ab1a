//! Completions: those of a destroyed queue pair, and time stamps.

use std::sync::atomic::{AtomicBool, Ordering};

use ferrowarp::{CqOptions, DriveMode, QpOptions, WcStatus};

use crate::support::*;

/// Two queue pairs share a queue. Of the one that is dropped nothing is left there, of the other
/// everything, in order.
fn completions_leave_with_their_queue_pair(drive: DriveMode) {
    let (left, right) = endpoints(drive);
    let (a, b) = connect(&left, &right);
    let (c, d) = connect(&left, &right);
    for wr_id in 0..6 {
        for (receiver, sender) in [(&b, &a), (&d, &c)] {
            receiver.post_recv(wr_id, []).unwrap();
            send(sender, wr_id, b"").unwrap();
        }
    }
    // A receive that is flushed when its queue pair is dropped.
    a.post_recv(6, []).unwrap();
    drive_until(&left.context, &right.context, || left.context.counters().engine.completions == 12);
    drop(a);
    let stays = left.completions(&right, 6);
    assert!(stays.iter().all(|wc| wc.qp == c.id()), "{stays:?}");
    assert_eq!(outcomes(&stays), all(0..6, WcStatus::Success));
    assert_eq!(poll_once(&left.cq), []);
    drop((b, d));
    assert_eq!(poll_once(&right.cq), []);
}

#[test]
fn completions_leave_with_their_queue_pair_inline() {
    completions_leave_with_their_queue_pair(DriveMode::Inline);
}

#[test]
fn completions_leave_with_their_queue_pair_beside_a_thread() {
    completions_leave_with_their_queue_pair(DriveMode::Dedicated);
}

/// Another thread polls while queue pairs are destroyed.
#[test]
fn queue_pairs_are_dropped_while_others_poll() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (c, d) = connect(&left, &right);
    let done = AtomicBool::new(false);
    let others = std::thread::scope(|scope| {
        let polling = scope.spawn(|| {
            let (mut of_c, mut others) = (0, 0);
            while of_c < 20 || !done.load(Ordering::Acquire) {
                left.cq.poll_with(1, |wc| if wc.qp == c.id() { of_c += 1 } else { others += 1 });
                right.context.drive();
            }
            assert_eq!(of_c, 20);
            others
        });
        for wr_id in 0..20 {
            let a = left.qp();
            a.post_recv(1, []).unwrap();
            a.to_error().unwrap();
            d.post_recv(wr_id, []).unwrap();
            send(&c, wr_id, b"").unwrap();
        }
        done.store(true, Ordering::Release);
        polling.join().unwrap()
    });
    assert!(others <= 20, "each is flushed once");
    assert_eq!(poll_once(&left.cq), []);
}

#[test]
fn completions_have_the_time_at_which_they_become_visible() {
    let (left, right) = endpoints(DriveMode::Inline);
    let stamped = right.context.create_cq_with(&CqOptions::new(64).timestamps(true)).unwrap();
    let options = QpOptions::new(&right.cq).recv_cq(&stamped);
    let b = right.pd.create_qp(&options).unwrap();
    let ((a, b), _) = connect_qps(&right, left.qp(), b);
    let mut last = 0;
    for wr_id in 0..3 {
        b.post_recv(wr_id, []).unwrap();
        let before = right.context.now_ns();
        send(&a, wr_id, b"").unwrap();
        let mut stamps = Vec::new();
        drive_until(&left.context, &right.context, || {
            stamped.poll_with(1, |wc| stamps.push(wc.timestamp_ns)) > 0
        });
        let after = right.context.now_ns();
        assert!((before..=after).contains(&stamps[0]), "{before} {stamps:?} {after}");
        assert!(stamps[0] > last);
        last = stamps[0];
    }
    assert!(left.completions(&right, 3).iter().all(|wc| wc.timestamp_ns == 0), "not asked for");
}
