//! Contexts with several shards: binding, queues over shards, deregistration, closing.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferrowarp::{
    Access, CmError, ConnEvent, CqOptions, CreateError, DriveMode, Ended, Notify, PostError, Qp,
    QpOptions, QpState, SrqOptions, WcOpcode, WcStatus,
};

use crate::support::*;

/// Two ends with this number of shards each.
pub(crate) fn sharded(shards: usize, drive: DriveMode) -> (Endpoint, Endpoint) {
    let config = |host| {
        let mut config = config(host, drive);
        config.shards = shards;
        config.cores = Vec::new();
        config
    };
    let (left, right) = ring_pair(config(1), config(2)).unwrap();
    assert_eq!((left.shard_count(), right.shard_count()), (shards, shards));
    (Endpoint::new(left), Endpoint::new(right))
}

/// Connects `count` pairs of new queue pairs, by one listener.
pub(crate) fn connect_many(left: &Endpoint, right: &Endpoint, count: usize) -> Vec<(Qp, Qp)> {
    let listener = right.context.listen(PORT, count).unwrap();
    let connect = |_| {
        let (a, b) = (left.qp(), right.qp());
        assert_eq!((a.shard(), b.shard()), (None, None));
        a.connect(server(), param(b"")).unwrap();
        let request = listener.accept_timeout(TIMEOUT).expect("a request");
        let shard = request.shard();
        request.accept(&b, param(b"")).unwrap();
        a.wait_established(TIMEOUT).unwrap();
        b.wait_established(TIMEOUT).unwrap();
        assert_eq!(b.shard(), Some(shard));
        (a, b)
    };
    (0..count).map(connect).collect()
}

/// Each left queue pair writes a region of its own, and reads it back.
pub(crate) fn write_and_read_all(left: &Endpoint, right: &Endpoint, pairs: &[(Qp, Qp)]) {
    const LEN: usize = 20_000;
    let regions: Vec<_> = (0u8..)
        .zip(pairs)
        .map(|(seed, (a, _))| {
            let source = left.mr(LEN, Access::LOCAL_WRITE);
            source.write(0, &pattern(LEN, seed));
            let sink = left.mr(LEN, Access::LOCAL_WRITE);
            let remote = right.mr(LEN, Access::REMOTE_WRITE | Access::REMOTE_READ);
            write(a, 1, source.sge(0, 20_000), &remote, 0).unwrap();
            read(a, 2, sink.sge(0, 20_000), &remote, 0).unwrap();
            (source, sink, remote)
        })
        .collect();
    let found = left.completions(right, 2 * pairs.len());
    assert!(found.iter().all(|wc| wc.status == WcStatus::Success), "{found:?}");
    for (a, _) in pairs {
        let of_one: Vec<_> = found.iter().filter(|wc| wc.qp == a.id()).collect();
        let order: Vec<_> = of_one.iter().map(|wc| wc.wr_id).collect();
        assert_eq!(order, [1, 2], "completions of a queue pair are in order");
    }
    for (seed, (_source, sink, remote)) in (0u8..).zip(&regions) {
        assert!(contents(sink) == pattern(LEN, seed) && contents(remote) == pattern(LEN, seed));
    }
}

fn connections_are_spread(drive: DriveMode, shards: usize) {
    let (left, right) = sharded(shards, drive);
    let pairs = connect_many(&left, &right, 2 * shards);
    assert!(pairs.iter().all(|(a, b)| a.shard() == b.shard()), "queue i is the peer's queue i");
    for shard in 0..shards {
        let on_it = pairs.iter().filter(|(a, _)| a.shard() == Some(shard)).count();
        assert_eq!(on_it, 2);
        let handle = right.context.shard(shard).unwrap();
        assert_eq!((handle.index(), handle.connection_count()), (shard, 2));
        assert!(handle.has_link());
    }
    assert_eq!(right.context.connection_count(), 2 * shards);
    assert!(right.context.shard(shards).is_none());
    let mut numbers: Vec<_> = pairs.iter().map(|(_, b)| b.id().index).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), pairs.len(), "numbers are the context's");
    write_and_read_all(&left, &right, &pairs);
    let counters = right.context.counters().engine;
    assert_eq!(
        (counters.connections_established, counters.fpdus_in > 0),
        (2 * shards as u64, true)
    );
    assert_eq!(counters.frames_forwarded, 0, "every frame arrived at its shard");
    // The numbers are free again.
    drop(pairs);
    let again = left.qp();
    assert!((again.id().index as usize) < 2 * shards);
}

#[test]
fn connections_are_spread_over_shards_polled_inline() {
    connections_are_spread(DriveMode::Inline, 3);
}

#[test]
fn connections_are_spread_over_shards_with_helpers() {
    connections_are_spread(DriveMode::Helper, 2);
}

/// A thread that takes requests leaves the shards to the threads that drive them.
#[test]
fn next_request_polls_no_shard() {
    let (left, right) = sharded(2, DriveMode::Inline);
    let listener = right.context.listen(PORT, 1).unwrap();
    let (a, b) = (left.qp(), right.qp());
    a.connect(server(), param(b"")).unwrap();
    let received = || right.context.counters().engine.frames_in;
    let shard = a.shard().unwrap();
    let drive = |end: &Endpoint| end.context.shard(shard).unwrap().drive();
    let start = std::time::Instant::now();
    let request = loop {
        let before = received();
        drive(&left);
        let found = listener.next_request();
        assert_eq!(received(), before, "the SYN and the MPA request wait in the port's queue");
        if let Some(request) = found {
            break request;
        }
        drive(&right);
        assert!(start.elapsed() < TIMEOUT, "no request");
    };
    assert_eq!(request.shard(), shard);
    request.accept(&b, param(b"")).unwrap();
    a.wait_established(TIMEOUT).unwrap();
}

/// Helpers are not pinned: there may be more than cores.
#[test]
fn each_shard_has_a_helper_whatever_the_number_of_cores() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // `ring` has 16 queues at most.
    let shards = (cores + 1).min(16);
    let (left, right) = sharded(shards, DriveMode::Helper);
    let pairs = connect_many(&left, &right, shards);
    let source = left.mr(64, Access::LOCAL_READ);
    let remote = right.mr(64, Access::REMOTE_WRITE);
    // A look at the counters polls nothing.
    let received = |shard| right.context.shard(shard).unwrap().counters().engine.fpdus_in;
    let before: Vec<_> = (0..shards).map(received).collect();
    for (a, _) in &pairs {
        write(a, 1, source.sge(0, 64), &remote, 0).unwrap();
    }
    let start = std::time::Instant::now();
    for (shard, &before) in before.iter().enumerate() {
        while received(shard) == before {
            assert!(start.elapsed() < TIMEOUT, "shard {shard} is not polled");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn connections_are_spread_over_shards_with_dedicated_threads() {
    connections_are_spread(DriveMode::Dedicated, 2);
}

/// Each thread drives one shard of an end, and uses queues of that shard alone.
#[test]
fn threads_drive_one_shard_each() {
    const SHARDS: usize = 2;
    const ROUNDS: u64 = 200;
    let (left, right) = sharded(SHARDS, DriveMode::Inline);
    let started = &Barrier::new(2 * SHARDS);
    let done = &AtomicBool::new(false);
    let create = |end: &Endpoint, shard| {
        let cq = end.context.create_cq_with(&CqOptions::new(64).shard(shard)).unwrap();
        assert_eq!(cq.shard(), Some(shard));
        let qp = end.pd.create_qp(&QpOptions::new(&cq)).unwrap();
        assert_eq!(qp.shard(), Some(shard), "the shard of its completion queue");
        (cq, qp)
    };
    std::thread::scope(|scope| {
        let mut clients = Vec::new();
        for shard in 0..SHARDS {
            let port = PORT + u16::try_from(shard).unwrap();
            let (left, right) = (&left, &right);
            scope.spawn(move || {
                let listener = right.context.listen(port, 1).unwrap();
                let (cq, qp) = create(right, shard);
                started.wait();
                let handle = right.context.shard(shard).unwrap();
                let mut accepted = false;
                while !done.load(Ordering::Acquire) {
                    handle.drive();
                    if let Some(request) = listener.next_request().filter(|_| !accepted) {
                        request.accept(&qp, param(b"")).unwrap();
                        accepted = true;
                    }
                    cq.poll_with(32, |_| ());
                    std::thread::yield_now();
                }
                assert!(accepted);
            });
            clients.push(scope.spawn(move || {
                let (cq, qp) = create(left, shard);
                let source = left.mr(4096, Access::LOCAL_READ);
                let remote = right.mr(4096, Access::REMOTE_WRITE);
                started.wait();
                let remote_end = std::net::SocketAddr::new(server().ip(), port);
                qp.connect(remote_end, param(b"")).unwrap();
                qp.wait_established(TIMEOUT).unwrap();
                let mut found = Vec::new();
                for round in 0..ROUNDS {
                    source.fill(0, 4096, round.to_le_bytes()[0]);
                    write(&qp, round, source.sge(0, 4096), &remote, 0).unwrap();
                    let start = std::time::Instant::now();
                    while cq.poll_with(32, |wc| found.push(wc)) == 0 {
                        assert!(start.elapsed() < TIMEOUT, "round {round} of shard {shard}");
                        std::thread::yield_now();
                    }
                }
                assert!(found.iter().all(|wc| wc.status == WcStatus::Success));
                assert_eq!(found.len() as u64, ROUNDS);
            }));
        }
        let results: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        done.store(true, Ordering::Release);
        assert!(results.iter().all(Result::is_ok));
    });
}

#[test]
fn receives_posted_before_binding_are_found() {
    let (left, right) = sharded(3, DriveMode::Inline);
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    for round in 0..6 {
        let (a, b) = (left.qp(), right.qp());
        b.post_recv(round, recv_mr.sge(0, 64)).unwrap();
        assert_eq!((b.shard(), b.state()), (None, QpState::Idle));
        let ((a, b), _) = connect_qps(&right, a, b);
        send(&a, 9, &round.to_le_bytes()).unwrap();
        let found = right.completions(&left, 1);
        assert_eq!((found[0].wr_id, found[0].opcode), (round, WcOpcode::Recv));
        assert_eq!((found[0].qp, contents(&recv_mr)[0]), (b.id(), round.to_le_bytes()[0]));
        left.completions(&right, 1);
    }
}

#[test]
fn queue_pair_of_another_shard_cannot_accept() {
    let (left, right) = sharded(2, DriveMode::Inline);
    let listener = right.context.listen(PORT, 4).unwrap();
    let a = left.pd.create_qp(&QpOptions::new(&left.cq).shard(0)).unwrap();
    let b = right.pd.create_qp(&QpOptions::new(&right.cq).shard(1)).unwrap();
    a.connect(server(), param(b"")).unwrap();
    let request = listener.accept_timeout(TIMEOUT).expect("a request");
    assert_eq!(request.shard(), 0);
    let refused = request.accept(&b, param(b"")).unwrap_err();
    assert_eq!(refused, CmError::WrongShard);
    assert_eq!(
        refused.to_string(),
        "the queue pair belongs to another shard than the connection request: accept with one of \
         the request's shard, or one whose queues are of no single shard"
    );
    assert!(a.wait_established(TIMEOUT).is_err(), "the request was rejected");
    // It can still be used.
    let a = left.pd.create_qp(&QpOptions::new(&left.cq).shard(1)).unwrap();
    a.connect(server(), param(b"")).unwrap();
    let request = listener.accept_timeout(TIMEOUT).expect("a request");
    request.accept(&b, param(b"")).unwrap();
    b.wait_established(TIMEOUT).unwrap();
}

/// The peer gives up before its request is accepted: the queue pair can still serve another shard.
#[test]
fn request_that_is_gone_binds_no_queue_pair() {
    let (left, right) = sharded(2, DriveMode::Inline);
    let listener = right.context.listen(PORT, 4).unwrap();
    let b = right.qp();
    for round in 0..3 {
        let a = left.qp();
        a.connect(server(), param(b"")).unwrap();
        let request = listener.accept_timeout(TIMEOUT).expect("a request");
        if round < 2 {
            a.disconnect().unwrap();
            drive_until(&left.context, &right.context, || right.context.connection_count() == 0);
            assert_eq!(request.accept(&b, param(b"")), Err(CmError::Gone));
            assert_eq!(b.shard(), None);
        } else {
            request.accept(&b, param(b"")).unwrap();
            b.wait_established(TIMEOUT).unwrap();
        }
    }
}

#[test]
fn queues_of_different_shards_are_refused() {
    let (left, _right) = sharded(2, DriveMode::Inline);
    let cq = |shard| left.context.create_cq_with(&CqOptions::new(8).shard(shard));
    let missing = CreateError::NoShard { shard: 2, count: 2 };
    assert_eq!(cq(2).err(), Some(missing));
    assert_eq!(
        missing.to_string(),
        "there is no shard 2: the context has 2, numbered from 0; raise `shards` of its \
         configuration, or name another"
    );
    let cqs = [0, 1].map(|shard| cq(shard).unwrap());
    let create = |options: &QpOptions<'_>| left.pd.create_qp(options).map(|qp| qp.shard());
    assert_eq!(create(&QpOptions::new(&left.cq)), Ok(None));
    assert_eq!(create(&QpOptions::new(&left.cq).recv_cq(&cqs[1])), Ok(Some(1)));
    let different = Err(CreateError::DifferentShards);
    assert_eq!(create(&QpOptions::new(&cqs[0]).recv_cq(&cqs[1])), different);
    assert_eq!(create(&QpOptions::new(&cqs[0]).shard(1)), different);
    assert_eq!(create(&QpOptions::new(&cqs[1]).shard(1)), Ok(Some(1)));
    assert_eq!(create(&QpOptions::new(&left.cq).shard(2)), Err(missing));
    let create_srq = |shard| left.pd.create_srq_with(&SrqOptions::new(4).shard(shard));
    let srq = create_srq(1).unwrap();
    assert_eq!(create(&QpOptions::new(&left.cq).srq(&srq)), Ok(Some(1)));
    assert_eq!(create(&QpOptions::new(&cqs[0]).srq(&srq)), different);
    assert_eq!(create_srq(2).err(), Some(missing));
    let other = create_srq(0).unwrap();
    assert_ne!(srq.id(), other.id(), "events name them");
}

#[test]
fn queue_over_shards_is_notified_by_each() {
    let (left, right) = sharded(2, DriveMode::Helper);
    let channel = right.context.create_comp_channel().unwrap();
    let cq = right.context.create_cq_on(&channel, 64).unwrap();
    assert_eq!(cq.shard(), None);
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    for round in 0..6 {
        let b = right.pd.create_qp(&QpOptions::new(&cq)).unwrap();
        b.post_recv(round, recv_mr.sge(0, 64)).unwrap();
        let ((a, b), _) = connect_qps(&right, left.qp(), b);
        cq.req_notify(Notify::Next).unwrap();
        send(&a, 1, b"wake up").unwrap();
        assert_eq!(channel.wait(TIMEOUT), Some(cq.id()), "shard {:?}", b.shard());
        let found = poll_once(&cq);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].wr_id, found[0].qp), (round, b.id()));
        left.completions(&right, 1);
    }
}

/// A small poll does not return completions of one shard for ever.
#[test]
fn completions_of_shards_are_polled_in_turn() {
    const EACH: usize = 20;
    let (left, right) = sharded(2, DriveMode::Inline);
    let pairs = connect_many(&left, &right, 2);
    for (a, _) in &pairs {
        (0..EACH as u64).for_each(|wr_id| send(a, wr_id, b"").unwrap());
    }
    // The peer has no receives: only the sends' own completions count here.
    drive_for(&left.context, &right.context, Duration::from_millis(20));
    let mut seen = Vec::new();
    for _ in 0..2 {
        assert_eq!(left.cq.poll_with(1, |wc| seen.push(wc.qp)), 1);
    }
    assert_ne!(seen[0], seen[1]);
}

#[test]
fn closing_ends_queue_pairs_that_belong_to_no_shard() {
    let (left, right) = sharded(2, DriveMode::Helper);
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    let unbound = right.qp();
    unbound.post_recv(1, recv_mr.sge(0, 64)).unwrap();
    assert_eq!(unbound.disconnect(), Err(CmError::Gone), "it has no connection");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| unbound.wait_event(Duration::MAX));
        right.context.clone().close();
        assert_eq!(waiting.join().unwrap(), None, "a wait ends with the context");
    });
    assert_eq!(unbound.wait_event(Duration::MAX), None);
    assert_eq!(unbound.state(), QpState::Error);
    assert_eq!(unbound.post_recv(1, recv_mr.sge(0, 64)), Err(PostError::Ended(Ended::Closed)));
    assert_eq!(unbound.connect(server(), param(b"")), Err(CmError::Ended(Ended::Closed)));
    assert_eq!(
        right.pd.create_qp(&QpOptions::new(&right.cq)).err(),
        Some(CreateError::Ended(Ended::Closed))
    );
    drop(left);
}

/// A region written by queue pairs of both shards is deregistered meanwhile: nothing is written to
/// its memory any more.
#[test]
fn deregistration_waits_for_all_shards() {
    const LEN: u32 = 1 << 16;
    let (left, right) = sharded(2, DriveMode::Helper);
    for round in 0..20_u8 {
        let pairs = connect_many(&left, &right, 2);
        let source = left.mr(LEN as usize, Access::LOCAL_READ);
        source.fill(0, LEN as usize, 1);
        let target = right.mr(LEN as usize, Access::REMOTE_WRITE);
        for (a, _) in &pairs {
            for wr_id in 0..32 {
                write(a, wr_id, source.sge(0, LEN), &target, 0).unwrap();
            }
        }
        if round.is_multiple_of(2) {
            std::thread::sleep(Duration::from_micros(u64::from(round) * 50));
        }
        let buffer = target.deregister().expect("the only handle");
        // The memory is the application's alone now: nothing changes there any more.
        let before = buffer.to_vec();
        for (a, _) in &pairs {
            // Each ends with a Terminate, or has completed everything before.
            let _ = a.disconnect();
            let ended = |event: ConnEvent| matches!(event, ConnEvent::Disconnected { .. });
            while !ended(expect_event(a)) {}
        }
        assert!(buffer[..] == before, "round {round}");
        while left.cq.poll_with(32, |_| ()) > 0 {}
    }
}
