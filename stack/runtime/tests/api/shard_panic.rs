//! A panic in one of several shards: its connections end in error, the others go on.

use std::time::Instant;

use ferrowarp::{
    Access, AsyncEvent, CmError, ConnEvent, CqOptions, DriveMode, EndReason, Ended, Qp, QpOptions,
    QpState, WcStatus,
};

use crate::support::rx_hook::{Hooks, hooked_shards};
use crate::support::*;

fn panic_next(hooks: &Hooks) {
    *hooks.rx.lock().unwrap() = Some(Box::new(|| panic!("deliberate panic of this test")));
}

/// Connects over a shard of both ends.
fn connect_on(left: &Endpoint, right: &Endpoint, shard: usize) -> (Qp, Qp) {
    let a = left.pd.create_qp(&QpOptions::new(&left.cq).shard(shard)).unwrap();
    connect_qps(right, a, right.qp()).0
}

fn dead_shard_leaves_the_others(drive: DriveMode) {
    let config = |host| {
        let mut config = config(host, drive);
        (config.shards, config.cores) = (2, Vec::new());
        config.linger = std::time::Duration::from_millis(50);
        config
    };
    let (left, right, hooks) = hooked_shards(config(1), config(2));
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    let events = right.context.event_channel().unwrap();
    let pairs = [0, 1].map(|shard| connect_on(&left, &right, shard));
    let listener = right.context.listen(PORT, 4).unwrap();
    while events.next_event().is_some() {}
    // The lead, which answers neighbors for all.
    panic_next(&hooks[0]);
    let start = Instant::now();
    let dead = right.context.shard(0).unwrap();
    while !dead.has_failed() {
        right.context.drive();
        assert!(start.elapsed() < TIMEOUT, "the panic was not noticed");
        std::thread::yield_now();
    }
    assert!(!right.context.has_failed() && !right.context.shard(1).unwrap().has_failed());
    let [(_, b0), (a1, b1)] = &pairs;
    let failed = ConnEvent::Disconnected { qp: b0.id(), reason: EndReason::LocalError };
    assert_eq!(expect_event(b0), failed);
    let mut got = Vec::new();
    while let Some(event) = events.next_event() {
        got.push(event);
    }
    assert!(got.contains(&AsyncEvent::ShardFailed { shard: 0 }), "{got:?}");
    assert!(!got.contains(&AsyncEvent::Failed), "{got:?}");
    assert_eq!((b0.state(), b1.state()), (QpState::Error, QpState::Rts));
    assert_eq!(b0.disconnect(), Err(CmError::Ended(Ended::Failed)));
    // The other connection goes on.
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    b1.post_recv(1, recv_mr.sge(0, 64)).unwrap();
    send(a1, 2, b"still there").unwrap();
    let found = right.completions(&left, 1);
    assert_eq!((found[0].qp, found[0].status), (b1.id(), WcStatus::Success));
    // New connections are made by the shard that lives.
    let a = left.pd.create_qp(&QpOptions::new(&left.cq).shard(1)).unwrap();
    a.connect(server(), param(b"")).unwrap();
    let request = listener.accept_timeout(TIMEOUT).expect("a request");
    assert_eq!(request.shard(), 1);
    let b = right.qp();
    request.accept(&b, param(b"")).unwrap();
    b.wait_established(TIMEOUT).unwrap();
    let bound = right.qp();
    bound.connect(std::net::SocketAddr::new(address(1), PORT), param(b"")).unwrap();
    assert_eq!(bound.shard(), Some(1), "not the dead one");
    // Completion queues, listeners and memory go on.
    assert!(right.context.create_cq_with(&CqOptions::new(4).shard(0)).is_err());
    assert!(right.context.create_cq(4).is_ok());
    drop(listener);
    assert!(right.context.listen(PORT, 1).is_ok());
    // The second death is that of the context.
    let unbound = right.qp();
    unbound.post_recv(1, recv_mr.sge(0, 64)).unwrap();
    panic_next(&hooks[1]);
    while !right.context.has_failed() {
        right.context.drive();
        assert!(start.elapsed() < TIMEOUT, "the second panic was not noticed");
        std::thread::yield_now();
    }
    let mut got = Vec::new();
    while let Some(event) = events.wait(TIMEOUT) {
        got.push(event);
    }
    assert_eq!(got.last(), Some(&AsyncEvent::Failed));
    assert_eq!(unbound.state(), QpState::Error);
    assert_eq!(unbound.wait_event(TIMEOUT), None);
    assert!(recv_mr.deregister().is_some());
    assert!(start.elapsed() < TIMEOUT, "a call waited for its whole timeout");
}

#[test]
fn dead_shard_leaves_the_others_polled_inline() {
    dead_shard_leaves_the_others(DriveMode::Inline);
}

#[test]
fn dead_shard_leaves_the_others_with_helpers() {
    dead_shard_leaves_the_others(DriveMode::Helper);
}

/// Receives posted to a dead shard's queue pair are flushed, and its completion queue serves the
/// other shard on.
#[test]
fn completion_queue_survives_the_death_of_a_shard() {
    let config = |host| {
        let mut config = config(host, DriveMode::Inline);
        config.shards = 2;
        config.linger = std::time::Duration::from_millis(50);
        config
    };
    let (left, right, hooks) = hooked_shards(config(1), config(2));
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    let [(_a0, b0), (a1, b1)] = [0, 1].map(|shard| connect_on(&left, &right, shard));
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    b0.post_recv(1, recv_mr.sge(0, 64)).unwrap();
    b1.post_recv(2, recv_mr.sge(0, 64)).unwrap();
    panic_next(&hooks[0]);
    drive_until(&left.context, &right.context, || right.context.shard(0).unwrap().has_failed());
    send(&a1, 3, b"still there").unwrap();
    let mut found = right.completions(&left, 2);
    found.sort_unstable_by_key(|wc| wc.wr_id);
    let found: Vec<_> = found.iter().map(|wc| (wc.wr_id, wc.qp, wc.status)).collect();
    assert_eq!(found, [(1, b0.id(), WcStatus::Flushed), (2, b1.id(), WcStatus::Success)]);
}
