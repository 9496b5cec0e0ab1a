//! Overruns of completion queues that several shards feed.

use std::time::{Duration, Instant};

use ferrowarp::{
    Access, CmError, ConnEvent, ConnectError, Cq, DriveMode, Mr, Qp, QpOptions, QpState, WcStatus,
};

use crate::shards::sharded;
use crate::support::rx_hook::{Hooks, hooked_shards};
use crate::support::*;

/// Number of [`post_sends`].
const SENDS: u64 = 16;

#[test]
fn overrun_in_one_shard_ends_the_queue_pairs_of_all() {
    let (left, right) = sharded(2, DriveMode::Inline);
    let small = left.context.create_cq(4).unwrap();
    let pairs: Vec<_> = [0, 1]
        .map(|shard| {
            let options = QpOptions::new(&small).shard(shard);
            connect_qps(&right, left.pd.create_qp(&options).unwrap(), receiving(&right)).0
        })
        .into();
    let unrelated = connect(&left, &right);
    post_sends(&pairs[0].0);
    drive_until(&left.context, &right.context, || {
        pairs.iter().all(|(a, _)| a.state() == QpState::Error)
    });
    assert!(small.overrun());
    assert_eq!(left.context.counters().engine.cq_overruns, 1, "of one queue, at two shards");
    assert_eq!(unrelated.0.state(), QpState::Rts);
    // What the queue holds can be polled, of both shards.
    let mut found = Vec::new();
    drive_until(&left.context, &right.context, || {
        small.poll_with(32, |wc| found.push(wc));
        found.len() as u64 == SENDS
    });
    let order: Vec<_> = found.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(order, (0..SENDS).collect::<Vec<_>>(), "each once, in order");
}

/// A queue pair of `end` with a receive for each of [`post_sends`]. A Send that finds none is
/// answered with a Terminate, and what that flushes waits for places: the queue does not overrun.
fn receiving(end: &Endpoint) -> Qp {
    let qp = end.qp();
    (0..SENDS).for_each(|_| qp.post_recv(0, []).unwrap());
    qp
}

/// Posts Sends that overrun a queue of four entries.
fn post_sends(qp: &Qp) {
    (0..SENDS).for_each(|wr_id| send(qp, wr_id, b"").unwrap());
}

/// Overruns `small`, with the sends of `a`, which is connected to a [`receiving`] one.
fn overrun(left: &Endpoint, right: &Endpoint, small: &Cq, a: &Qp) {
    post_sends(a);
    drive_until(&left.context, &right.context, || small.overrun() && a.state() == QpState::Error);
}

/// Queue pairs that are not connected when a completion queue of theirs overruns: one with a shard,
/// one without, and one that is created later.
fn overrun_ends_idle_queue_pairs(shards: usize) {
    let (left, right) = sharded(shards, DriveMode::Inline);
    let small = left.context.create_cq(4).unwrap();
    let recv_mr = left.mr(64, Access::LOCAL_WRITE);
    let options = QpOptions::new(&small).recv_cq(&left.cq);
    let create = |options: &QpOptions<'_>| left.pd.create_qp(options).unwrap();
    let bound = create(&options.shard(shards - 1));
    let free = create(&options);
    let idle = [&bound, &free];
    for (qp, first) in idle.into_iter().zip([100, 200]) {
        (first..first + 3).for_each(|wr_id| qp.post_recv(wr_id, recv_mr.sge(0, 64)).unwrap());
    }
    let unrelated = left.qp();
    let active = create(&QpOptions::new(&small).shard(0));
    let (active, _passive) = connect_qps(&right, active, receiving(&right)).0;
    overrun(&left, &right, &small, &active);
    drive_until(&left.context, &right.context, || {
        idle.iter().all(|qp| qp.state() == QpState::Error)
    });
    assert_eq!(unrelated.state(), QpState::Idle);
    assert!(bound.shard() == Some(shards - 1) && free.shard().is_some());
    let event = ConnEvent::CqOverrun { cq: small.id() };
    for qp in idle {
        assert_eq!((qp.next_event(), qp.next_event()), (Some(event.clone()), None));
        qp.post_recv(9, recv_mr.sge(0, 64)).unwrap();
        assert_eq!(qp.connect(server(), param(b"")), Err(CmError::CqOverrun));
    }
    // Their receives complete in the other queue, each once, also those posted after the end.
    let mut found = Vec::with_capacity(16);
    drive_until(&left.context, &right.context, || {
        left.cq.poll_with(16, |wc| found.push(wc));
        found.len() >= 8
    });
    for (qp, first) in idle.into_iter().zip([100, 200]) {
        let of_one = found.iter().filter(|wc| wc.qp == qp.id());
        let ids: Vec<_> = of_one.map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(ids, [first, first + 1, first + 2, 9].map(|id| (id, WcStatus::Flushed)));
    }
    // Accepting fails as well, and rejects.
    let listener = left.context.listen(PORT, 1).unwrap();
    let peer = right.qp();
    let address = std::net::SocketAddr::from(([198, 18, 0, 1], PORT));
    peer.connect(address, param(b"")).unwrap();
    let request = listener.accept_timeout(TIMEOUT).expect("a request");
    assert_eq!(request.accept(&free, param(b"")), Err(CmError::CqOverrun));
    assert_eq!(peer.wait_established(TIMEOUT).unwrap_err(), ConnectError::Rejected);
    // A queue pair on that queue is in error from the beginning.
    let late = create(&options);
    assert_eq!((late.state(), late.next_event()), (QpState::Error, Some(event)));
    assert_eq!(late.connect(server(), param(b"")), Err(CmError::CqOverrun));
    let numbers = [bound.id(), free.id(), late.id()].map(|id| id.index);
    drop((bound, free, late));
    // They can be destroyed, and their numbers be used again.
    let again = [(); 3].map(|()| left.qp());
    assert!(again.iter().all(|qp| numbers.contains(&qp.id().index)), "{numbers:?}");
}

#[test]
fn overrun_ends_idle_queue_pairs_of_one_shard() {
    overrun_ends_idle_queue_pairs(1);
}

#[test]
fn overrun_ends_queue_pairs_that_belong_to_no_shard() {
    overrun_ends_idle_queue_pairs(2);
}

/// A queue pair is created, or connects, while the queue overruns: it ends, whichever comes first.
#[test]
fn queue_pair_that_binds_during_an_overrun_ends() {
    for _ in 0..50 {
        let (left, right) = sharded(2, DriveMode::Inline);
        let small = left.context.create_cq(4).unwrap();
        let active = left.pd.create_qp(&QpOptions::new(&small).shard(0)).unwrap();
        let (active, _passive) = connect_qps(&right, active, receiving(&right)).0;
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let binding = scope.spawn(|| {
                let mut qps = Vec::new();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) && qps.len() < 16 {
                    let qp = left.pd.create_qp(&QpOptions::new(&small)).unwrap();
                    match qp.connect(server(), param(b"")) {
                        Ok(()) | Err(CmError::CqOverrun) => qps.push(qp),
                        Err(error) => panic!("{error}"),
                    }
                }
                qps
            });
            overrun(&left, &right, &small, &active);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            let qps = binding.join().unwrap();
            drive_until(&left.context, &right.context, || {
                qps.iter().all(|qp| qp.state() == QpState::Error)
            });
        });
    }
}

/// Connections over each of two shards whose right ends have a receive completion queue with four
/// places for each shard: five messages are on their way to the first one, two to the second.
struct Fixture {
    left: Endpoint,
    right: Endpoint,
    hooks: Vec<Hooks>,
    small: Cq,
    pairs: [(Qp, Qp); 2],
    _recv_mr: Mr,
}

impl Fixture {
    /// With this number of receives at each right end.
    fn new(recvs: [u64; 2]) -> Self {
        let config = |host| {
            let mut config = config(host, DriveMode::Inline);
            (config.shards, config.linger) = (2, Duration::from_millis(50));
            config
        };
        let (left, right, hooks) = hooked_shards(config(1), config(2));
        let (left, right) = (Endpoint::new(left), Endpoint::new(right));
        let small = right.context.create_cq(4).unwrap();
        let recv_mr = right.mr(64, Access::LOCAL_WRITE);
        let pairs = [0, 1].map(|shard| {
            let a = left.pd.create_qp(&QpOptions::new(&left.cq).shard(shard)).unwrap();
            let b = right.pd.create_qp(&QpOptions::new(&right.cq).recv_cq(&small)).unwrap();
            let wr_ids = 0..recvs[shard];
            wr_ids.for_each(|wr_id| b.post_recv(wr_id, recv_mr.sge(0, 64)).unwrap());
            connect_qps(&right, a, b).0
        });
        assert_eq!([&pairs[0].1, &pairs[1].1].map(Qp::shard), [Some(0), Some(1)]);
        let sent = || left.context.counters().engine.fpdus_out;
        let before = sent();
        for (count, (a, _)) in [5, 2].into_iter().zip(&pairs) {
            (0..count).for_each(|wr_id| send(a, wr_id, b"x").unwrap());
        }
        let start = Instant::now();
        while sent() < before + 7 {
            left.context.drive();
            assert!(start.elapsed() < TIMEOUT, "not sent");
        }
        Self { left, right, hooks, small, pairs, _recv_mr: recv_mr }
    }

    /// Has the queue overrun in the first shard in the middle of the next poll of the second, which
    /// goes on with `then`.
    fn overrun_in_next_poll(&self, then: impl FnOnce() + Send + 'static) {
        let (other, small) = (self.right.context.shard(0).unwrap(), self.small.clone());
        *self.hooks[1].rx.lock().unwrap() = Some(Box::new(move || {
            while !small.overrun() && other.drive() {}
            then();
        }));
    }
}

/// The other shard finds free places for the messages that it has received, and the queue overrun:
/// it completes none of them before it has ended its queue pairs.
#[test]
fn shard_in_a_poll_adds_nothing_to_a_queue_that_overran_in_another() {
    let fx = Fixture::new([8, 8]);
    let [(_, b0), (_, b1)] = &fx.pairs;
    let shard = fx.right.context.shard(1).unwrap();
    let placed = || shard.counters().engine.fpdus_in;
    let (before, start) = (placed(), Instant::now());
    fx.overrun_in_next_poll(|| ());
    while placed() == before {
        shard.drive();
        assert!(start.elapsed() < TIMEOUT, "not received");
    }
    assert_eq!((fx.small.overrun(), b1.state()), (true, QpState::Error), "after the same poll");
    // A poll that finds completions polls no shard.
    let mut found = Vec::with_capacity(16);
    assert_eq!(fx.small.poll_with(16, |wc| found.push(wc)), 4);
    assert!(found.iter().all(|wc| wc.qp == b0.id()), "{found:?}");
    // What was received is reported later, and the rest flushed.
    drive_until(&fx.left.context, &fx.right.context, || {
        fx.small.poll_with(16, |wc| found.push(wc));
        found.len() == 16
    });
    for (b, received) in [(b0, 5), (b1, 2)] {
        let of_one: Vec<_> = found.iter().filter(|wc| wc.qp == b.id()).collect();
        let ids: Vec<_> = of_one.iter().map(|wc| wc.wr_id).collect();
        assert_eq!(ids, (0..8).collect::<Vec<_>>());
        assert!(of_one[..received].iter().all(|wc| wc.status == WcStatus::Success), "{of_one:?}");
        assert!(of_one[received..].iter().all(|wc| wc.status == WcStatus::Flushed), "{of_one:?}");
    }
}

/// A shard that fails before it has ended the queue pairs of a queue that overran in another
/// flushes them all the same.
#[test]
fn shard_that_fails_flushes_into_a_queue_that_overran_in_another() {
    let fx = Fixture::new([5, 4]);
    fx.overrun_in_next_poll(|| panic!("deliberate panic of a test"));
    let shard = fx.right.context.shard(1).unwrap();
    shard.drive();
    assert!(fx.small.overrun() && shard.has_failed());
    let found = poll_once(&fx.small);
    let [_, (_, b1)] = &fx.pairs;
    let of_one: Vec<_> = found.iter().filter(|wc| wc.qp == b1.id()).collect();
    let ids: Vec<_> = of_one.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ids, [0, 1, 2, 3].map(|wr_id| (wr_id, WcStatus::Flushed)));
}
