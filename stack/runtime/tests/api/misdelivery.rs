//! Ports that deliver flows to the wrong shard: the owner gets each frame, once, whichever thread
//! drives which shard.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use ferrowarp::{Access, CqOptions, DriveMode, QpOptions, Wc, WcStatus};

use crate::shards::{connect_many, write_and_read_all};
use crate::support::heap_port::{Steer, by_flow, heap_contexts, mirrored};
use crate::support::*;

fn steered(shards: usize, drive: DriveMode, steer: Steer) -> (Endpoint, Endpoint) {
    let config = |host| {
        let mut config = config(host, drive);
        (config.shards, config.cores) = (shards, Vec::new());
        config
    };
    let (left, right) = heap_contexts(config(1), config(2), steer);
    (Endpoint::new(left), Endpoint::new(right))
}

fn flows_reach_their_owner(shards: usize, drive: DriveMode) {
    let (left, right) = steered(shards, drive, by_flow);
    let pairs = connect_many(&left, &right, 3 * shards);
    write_and_read_all(&left, &right, &pairs);
    for end in [&left, &right] {
        let counters = end.context.counters().engine;
        assert_eq!(counters.segments_unmatched, 0, "no RST for a connection of another shard");
        assert_eq!(counters.connections_failed, 0);
    }
    let forwarded = [&left, &right].map(|end| end.context.counters().engine.frames_forwarded);
    // A passive open happens where the SYN arrives; the replies come back elsewhere.
    assert!(forwarded.iter().sum::<u64>() > 0, "{forwarded:?}");
    drop(pairs);
}

#[test]
fn misdelivered_flows_reach_their_owner_polled_inline() {
    flows_reach_their_owner(3, DriveMode::Inline);
}

#[test]
fn misdelivered_flows_reach_their_owner_with_helpers() {
    flows_reach_their_owner(2, DriveMode::Helper);
}

#[test]
fn misdelivered_flows_reach_their_owner_with_dedicated_threads() {
    flows_reach_their_owner(2, DriveMode::Dedicated);
}

#[test]
fn nothing_is_forwarded_if_queues_are_mirrored() {
    let (left, right) = steered(2, DriveMode::Inline, mirrored);
    let pairs = connect_many(&left, &right, 4);
    assert!(pairs.iter().all(|(a, b)| a.shard() == b.shard()));
    write_and_read_all(&left, &right, &pairs);
    for end in [&left, &right] {
        assert_eq!(end.context.counters().engine.frames_forwarded, 0);
    }
}

/// Four threads, each of which drives one shard, and polls a queue over all shards of its end. Each
/// queue pair receives from a shared queue and writes to a region that another thread reads once
/// the message after it has arrived.
#[test]
fn threads_share_queues_and_the_mesh() {
    const SHARDS: usize = 2;
    const ROUNDS: u64 = 100;
    const LEN: usize = 3000;
    let (left, right) = steered(SHARDS, DriveMode::Inline, by_flow);
    let srq = right.pd.create_srq(16).unwrap();
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    (0..16).for_each(|wr_id| srq.post_recv(wr_id, recv_mr.sge(0, 64)).unwrap());
    let listener = right.context.listen(PORT, SHARDS).unwrap();
    let connect = |index: usize| {
        let cq = left.context.create_cq_with(&CqOptions::new(256).shard(index)).unwrap();
        let a = left.pd.create_qp(&QpOptions::new(&cq)).unwrap();
        let b = right.pd.create_qp(&QpOptions::new(&right.cq).srq(&srq)).unwrap();
        a.connect(server(), param(b"")).unwrap();
        listener.accept_timeout(TIMEOUT).unwrap().accept(&b, param(b"")).unwrap();
        a.wait_established(TIMEOUT).unwrap();
        b.wait_established(TIMEOUT).unwrap();
        (cq, a, b, right.mr(LEN, Access::REMOTE_WRITE))
    };
    let connections: Vec<_> = (0..SHARDS).map(connect).collect();
    let (done, finished) = (&AtomicBool::new(false), &AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for shard in 0..SHARDS {
            let (right, srq, recv_mr, connections) = (&right, &srq, &recv_mr, &connections);
            scope.spawn(move || {
                let handle = right.context.shard(shard).unwrap();
                let mut wcs = [Wc::default(); 32];
                while !done.load(Ordering::Acquire) {
                    if !handle.drive() {
                        std::thread::yield_now();
                    }
                    for wc in right.cq.poll(&mut wcs) {
                        assert_eq!(wc.status, WcStatus::Success);
                        if !wc.opcode.is_receive() {
                            continue;
                        }
                        let of = connections.iter().find(|(_, _, b, _)| b.id() == wc.qp).unwrap();
                        let bytes = contents(&of.3);
                        assert!(bytes.iter().all(|&byte| byte == bytes[0]), "a Write is torn");
                        srq.post_recv(wc.wr_id, recv_mr.sge(0, 64)).unwrap();
                        send(&of.2, 0, b"seen").unwrap();
                    }
                }
            });
        }
        let mut senders = Vec::new();
        for shard in 0..SHARDS {
            let (left, connections) = (&left, &connections);
            senders.push(scope.spawn(move || {
                let handle = left.context.shard(shard).unwrap();
                let source = left.mr(LEN, Access::LOCAL_READ);
                let reply = left.mr(64, Access::LOCAL_WRITE);
                for round in 0..ROUNDS {
                    let (cq, a, _, target) = &connections[shard];
                    source.fill(0, LEN, round.to_le_bytes()[0]);
                    a.post_recv(3, reply.sge(0, 64)).unwrap();
                    write(a, 1, source.sge(0, 3000), target, 0).unwrap();
                    send(a, 2, b"written").unwrap();
                    let (mut found, start) = (Vec::new(), Instant::now());
                    while found.len() < 3 {
                        handle.drive();
                        if cq.poll_with(32, |wc| found.push(wc)) == 0 {
                            std::thread::yield_now();
                        }
                        assert!(start.elapsed() < TIMEOUT, "round {round} of shard {shard}");
                    }
                    assert!(found.iter().all(|wc| wc.status == WcStatus::Success));
                }
                // The other connection's frames may arrive here.
                finished.fetch_add(1, Ordering::AcqRel);
                let start = Instant::now();
                while finished.load(Ordering::Acquire) < SHARDS && start.elapsed() < TIMEOUT {
                    handle.drive();
                    std::thread::yield_now();
                }
            }));
        }
        let results: Vec<_> = senders.into_iter().map(|sender| sender.join()).collect();
        done.store(true, Ordering::Release);
        assert!(results.iter().all(Result::is_ok));
    });
}
