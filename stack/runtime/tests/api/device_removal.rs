//! Removal of the device: the connections of its shards end in error, threads that wait are woken,
//! and the context can be closed.

use std::time::Instant;

use ferrowarp::{
    Access, AsyncEvent, CmError, ConnEvent, DriveMode, EndReason, Ended, QpState, WcStatus,
};

use crate::support::rx_hook::{hooked_contexts, run};
use crate::support::*;

fn removal_ends_all_connections(drive: DriveMode) {
    let (left, right, hooks) = hooked_contexts(config(1, drive), config(2, drive));
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    let events = right.context.event_channel().unwrap();
    let (_a, b) = connect_qps(&right, left.qp(), right.qp()).0;
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    b.post_recv(1, recv_mr.sge(0, 64)).unwrap();
    while events.next_event().is_some() {}
    run(&hooks.removal);
    // Without a poll of the application.
    let start = Instant::now();
    while !right.context.has_failed() {
        assert!(start.elapsed() < TIMEOUT, "the removal was not noticed");
        std::thread::yield_now();
    }
    let expected = ConnEvent::Disconnected { qp: b.id(), reason: EndReason::DeviceRemoved };
    assert_eq!(expect_event(&b), expected);
    assert_eq!((b.state(), b.disconnect()), (QpState::Error, Err(CmError::Ended(Ended::Failed))));
    let found = right.completions(&left, 1);
    assert_eq!((found[0].wr_id, found[0].status), (1, WcStatus::Flushed));
    let mut got = Vec::new();
    while let Some(event) = events.wait(TIMEOUT) {
        got.push(event);
    }
    assert_eq!(got.last(), Some(&AsyncEvent::Failed));
    assert!(!left.context.has_failed());
    right.context.close();
    assert!(start.elapsed() < TIMEOUT, "a call waited for its whole timeout");
}

#[test]
fn removal_ends_all_connections_polled_inline() {
    removal_ends_all_connections(DriveMode::Inline);
}

#[test]
fn removal_ends_all_connections_of_a_dedicated_thread() {
    removal_ends_all_connections(DriveMode::Dedicated);
}

/// A device that is removed after its context has been closed, or has failed, changes nothing.
#[test]
fn late_removal_is_ignored() {
    let config = |host| config(host, DriveMode::Inline);
    let (left, right, hooks) = hooked_contexts(config(1), config(2));
    let observer = hooks.removal.lock().unwrap().take().expect("the shard observes its device");
    right.close();
    observer();
    assert!(!left.has_failed());
}
