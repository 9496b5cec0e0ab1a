//! Completion queues that are resized while they are in use.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrowarp::{
    Access, Cq, CqOptions, CreateError, DriveMode, Ended, LimitError, Notify, Qp, QpOptions,
    QpState, ResizeError, Wc, WcStatus,
};

use crate::shards::sharded;
use crate::support::rx_hook::hooked_shards;
use crate::support::*;

/// Connects a queue pair of `left` with this completion queue over each shard.
fn connect_over_shards(left: &Endpoint, right: &Endpoint, cq: &Cq) -> Vec<(Qp, Qp)> {
    let connect = |shard| {
        let options = QpOptions::new(cq).shard(shard);
        connect_qps(right, left.pd.create_qp(&options).unwrap(), right.qp()).0
    };
    (0..left.context.shard_count()).map(connect).collect()
}

/// Completes these requests, whose completions nobody polls.
fn complete(left: &Endpoint, right: &Endpoint, qp: &Qp, wr_ids: std::ops::Range<u64>) {
    let completed = || left.context.counters().engine.completions;
    let wanted = completed() + (wr_ids.end - wr_ids.start);
    wr_ids.for_each(|wr_id| empty_write(qp, wr_id).unwrap());
    drive_until(&left.context, &right.context, || completed() == wanted);
}

/// Set when it is dropped, also by a panic, so that no thread waits for another that is gone.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn traffic_goes_on_while_resized(shards: usize, drive: DriveMode) {
    const EACH: u64 = 2000;
    const RESIZES: u64 = 200;
    const OUTSTANDING: u64 = 16;
    const SIZES: [usize; 6] = [16, 256, 17, 1024, 16, 64];
    let (left, right) = sharded(shards, drive);
    let cq = left.context.create_cq(64).unwrap();
    let pairs = connect_over_shards(&left, &right, &cq);
    let polled: Vec<_> = pairs.iter().map(|_| AtomicU64::new(0)).collect();
    let (resizes, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let is_done = || done.load(Ordering::Acquire);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _done = Done(&done);
            while !is_done() {
                right.context.drive();
                std::thread::yield_now();
            }
        });
        scope.spawn(|| {
            let _done = Done(&done);
            for entries in SIZES.into_iter().cycle().take_while(|_| !is_done()) {
                cq.resize(entries).unwrap();
                assert_eq!(cq.capacity(), entries);
                resizes.fetch_add(1, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            let _done = Done(&done);
            let mut wcs = [Wc::default(); 8];
            while !is_done() {
                let found = cq.poll(&mut wcs);
                if found.is_empty() {
                    std::thread::yield_now();
                }
                for wc in found {
                    let index = pairs.iter().position(|(a, _)| a.id() == wc.qp).unwrap();
                    let next = polled[index].fetch_add(1, Ordering::Release);
                    assert_eq!((wc.wr_id, wc.status), (next, WcStatus::Success));
                }
            }
        });
        let _done = Done(&done);
        let start = Instant::now();
        let mut posted = vec![0; pairs.len()];
        let is_enough = |count| count >= EACH && resizes.load(Ordering::Relaxed) >= RESIZES;
        let mut is_polled = false;
        while !is_polled && !is_done() {
            is_polled = true;
            for (((a, _), polled), posted) in pairs.iter().zip(&polled).zip(&mut posted) {
                let seen = polled.load(Ordering::Acquire);
                if !is_enough(*posted) && *posted - seen < OUTSTANDING {
                    empty_write(a, *posted).unwrap();
                    *posted += 1;
                }
                is_polled &= is_enough(*posted) && seen == *posted;
            }
            assert!(start.elapsed() < TIMEOUT, "{posted:?} posted, {polled:?} polled");
        }
        assert!(is_polled, "another thread has failed");
    });
    assert!(!cq.overrun());
}

#[test]
fn queue_of_one_shard_is_resized_under_traffic() {
    traffic_goes_on_while_resized(1, DriveMode::Inline);
}

#[test]
fn queue_over_shards_is_resized_under_traffic() {
    traffic_goes_on_while_resized(3, DriveMode::Inline);
}

#[test]
fn queue_of_shards_with_helpers_is_resized_under_traffic() {
    traffic_goes_on_while_resized(2, DriveMode::Helper);
}

/// Shrinking fails while a ring holds more, and changes nothing; what the queue holds stays, in
/// order, and it holds as many as was asked for.
#[test]
fn queue_is_not_shrunk_below_what_it_holds() {
    let (left, right) = sharded(2, DriveMode::Inline);
    let cq = left.context.create_cq(32).unwrap();
    let pairs = connect_over_shards(&left, &right, &cq);
    complete(&left, &right, &pairs[0].0, 0..3);
    complete(&left, &right, &pairs[1].0, 0..9);
    let refused = cq.resize(8).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the completion queue holds 9 completions of shard 1, and 8 entries are too few for them: \
         poll some first, or ask for more"
    );
    assert!(matches!(refused, ResizeError::TooFew { shard: 1, held: 9, entries: 8 }));
    assert_eq!(cq.capacity(), 32);
    complete(&left, &right, &pairs[0].0, 3..32);
    assert!(!cq.overrun(), "no ring was shrunk");
    cq.resize(64).unwrap();
    complete(&left, &right, &pairs[1].0, 9..64);
    assert!(!cq.overrun(), "each ring has grown");
    let mut wcs = [Wc::default(); 128];
    let found = cq.poll(&mut wcs);
    assert_eq!(found.len(), 96);
    for ((a, _), count) in pairs.iter().zip([32, 64]) {
        let of_one: Vec<_> = found.iter().filter(|wc| wc.qp == a.id()).collect();
        let ids: Vec<_> = of_one.iter().map(|wc| wc.wr_id).collect();
        assert_eq!(ids, (0..count).collect::<Vec<_>>());
    }
    cq.resize(8).unwrap();
    complete(&left, &right, &pairs[0].0, 0..8);
    assert!(!cq.overrun());
    empty_write(&pairs[0].0, 8).unwrap();
    drive_until(&left.context, &right.context, || cq.overrun());
}

#[test]
fn resize_is_limited_as_creation_is() {
    let config = |host| {
        let mut config = config(host, DriveMode::Inline);
        (config.shards, config.limits.cq_entries_max) = (2, 100);
        config
    };
    let (left, _right) = ring_pair(config(1), config(2)).unwrap();
    let cq = left.create_cq(10).unwrap();
    let used = |refused| match refused {
        ResizeError::Limit(LimitError { limit, used, wanted, .. }) => (limit, used, wanted),
        other => panic!("{other}"),
    };
    assert_eq!(used(cq.resize(51).unwrap_err()), (100, 20, 82), "of two shards");
    assert_eq!(cq.capacity(), 10);
    cq.resize(50).unwrap();
    let of_one = |entries| left.create_cq_with(&CqOptions::new(entries).shard(1));
    assert!(of_one(1).is_err());
    cq.resize(10).unwrap();
    let other = of_one(80).unwrap();
    assert_eq!(used(cq.resize(11).unwrap_err()), (100, 100, 2));
    other.resize(79).unwrap();
    assert_eq!(used(cq.resize(11).unwrap_err()), (100, 99, 2));
    // Failed calls acquire nothing, and all is released with the queues.
    drop((cq, other));
    assert!(of_one(100).is_ok());
}

/// An armed queue stays armed, and a thread that sleeps while it is resized is woken.
#[test]
fn resize_loses_no_notification() {
    const ROUNDS: u64 = 400;
    let (left, right) = sharded(2, DriveMode::Helper);
    let channel = left.context.create_comp_channel().unwrap();
    let cq = left.context.create_cq_on(&channel, 4).unwrap();
    let pairs = connect_over_shards(&left, &right, &cq);
    cq.req_notify(Notify::Next).unwrap();
    cq.resize(16).unwrap();
    assert_eq!(channel.next_event(), None);
    empty_write(&pairs[0].0, 0).unwrap();
    assert_eq!(channel.wait(TIMEOUT), Some(cq.id()));
    let mut found = Vec::new();
    assert_eq!(cq.poll_with(32, |wc| found.push(wc)), 1);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for entries in [4, 64].into_iter().cycle() {
                if done.load(Ordering::Acquire) {
                    break;
                }
                cq.resize(entries).unwrap();
            }
        });
        let _done = Done(&done);
        for (round, (a, _)) in (1..ROUNDS).zip(pairs.iter().cycle()) {
            empty_write(a, round).unwrap();
            found.clear();
            while found.is_empty() {
                cq.req_notify(Notify::Next).unwrap();
                if cq.poll_with(32, |wc| found.push(wc)) == 0 {
                    assert_eq!(channel.wait(TIMEOUT), Some(cq.id()), "round {round}");
                }
            }
            assert_eq!((found.len(), found[0].wr_id), (1, round));
            while channel.next_event().is_some() {}
        }
    });
}

/// The queue overruns while it is resized: completions that found no place follow, each once and
/// in order.
#[test]
fn overrun_during_resizes_loses_no_completion() {
    const EACH: u64 = 48;
    let (left, right) = sharded(2, DriveMode::Inline);
    let cq = left.context.create_cq(4).unwrap();
    let pairs = connect_over_shards(&left, &right, &cq);
    for (a, _) in &pairs {
        (0..EACH).for_each(|wr_id| empty_write(a, wr_id).unwrap());
    }
    let done = AtomicBool::new(false);
    let mut found = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for entries in [4, 8, 16].into_iter().cycle() {
                if done.load(Ordering::Acquire) {
                    break;
                }
                match cq.resize(entries) {
                    Ok(()) | Err(ResizeError::TooFew { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let _done = Done(&done);
        drive_until(&left.context, &right.context, || {
            pairs.iter().all(|(a, _)| a.state() == QpState::Error)
        });
        drive_until(&left.context, &right.context, || {
            cq.poll_with(32, |wc| found.push(wc));
            found.len() as u64 >= 2 * EACH
        });
    });
    assert!(cq.overrun());
    for (a, _) in &pairs {
        let ids: Vec<_> = found.iter().filter(|wc| wc.qp == a.id()).map(|wc| wc.wr_id).collect();
        assert_eq!(ids, (0..EACH).collect::<Vec<_>>());
    }
}

/// Growing a queue that has overrun gives the completions that found no place one.
#[test]
fn resize_after_an_overrun_admits_the_flushed_completions() {
    let (left, right) = endpoints(DriveMode::Inline);
    let cq = left.context.create_cq(4).unwrap();
    let pairs = connect_over_shards(&left, &right, &cq);
    (0..16).for_each(|wr_id| empty_write(&pairs[0].0, wr_id).unwrap());
    drive_until(&left.context, &right.context, || pairs[0].0.state() == QpState::Error);
    cq.resize(16).unwrap();
    // Nothing is polled meanwhile.
    drive_for(&left.context, &right.context, Duration::from_millis(1));
    let found = poll_once(&cq);
    let ids: Vec<_> = found.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, (0..16).collect::<Vec<_>>());
    assert!(cq.overrun(), "it has overrun all the same");
}

/// The ring of a shard that has failed stays as it is, and is accounted for as it is.
#[test]
fn resize_leaves_the_ring_of_a_dead_shard() {
    let config = |host| {
        let mut config = config(host, DriveMode::Inline);
        (config.shards, config.limits.cq_entries_max) = (2, 8192 + 128);
        config.linger = Duration::from_millis(50);
        config
    };
    let (left, right, hooks) = hooked_shards(config(1), config(2));
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    let of_dead = right.context.create_cq_with(&CqOptions::new(4).shard(0)).unwrap();
    let connect = |shard| {
        let a = left.pd.create_qp(&QpOptions::new(&left.cq).shard(shard)).unwrap();
        connect_qps(&right, a, right.qp()).0
    };
    let [(_a0, b0), (a1, b1)] = [0, 1].map(connect);
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    b0.post_recv(1, recv_mr.sge(0, 64)).unwrap();
    b1.post_recv(2, recv_mr.sge(0, 64)).unwrap();
    let kill = |shard: usize| {
        *hooks[shard].rx.lock().unwrap() = Some(Box::new(|| panic!("deliberate panic of a test")));
        let dead = right.context.shard(shard).unwrap();
        drive_until(&left.context, &right.context, || dead.has_failed());
    };
    kill(0);
    right.cq.resize(64).unwrap();
    assert_eq!(
        (right.cq.capacity(), of_dead.resize(8)),
        (64, Err(ResizeError::Ended(Ended::Failed)))
    );
    let of_one = |entries| right.context.create_cq_with(&CqOptions::new(entries).shard(1));
    let left_over = 8192 + 128 - 4 - 4096 - 64;
    assert!(of_one(left_over + 1).is_err() && of_one(left_over).is_ok());
    // What the dead shard has flushed is there, and the other goes on.
    send(&a1, 3, b"still there").unwrap();
    let mut found = right.completions(&left, 2);
    found.sort_unstable_by_key(|wc| wc.wr_id);
    let found: Vec<_> = found.iter().map(|wc| (wc.wr_id, wc.qp, wc.status)).collect();
    assert_eq!(found, [(1, b0.id(), WcStatus::Flushed), (2, b1.id(), WcStatus::Success)]);
    kill(1);
    assert_eq!(
        (right.cq.resize(128), right.cq.capacity()),
        (Err(ResizeError::Ended(Ended::Failed)), 64)
    );
    left.context.clone().close();
    assert_eq!(left.cq.resize(128), Err(ResizeError::Ended(Ended::Closed)));
}

#[test]
fn absurd_capacities_are_refused() {
    let mut left = config(1, DriveMode::Inline);
    left.limits.cq_entries_max = u64::MAX;
    let (left, _right) = ring_pair(left, config(2, DriveMode::Inline)).unwrap();
    let cq = left.create_cq(4).unwrap();
    for wanted in [(1 << 26) + 1, (1 << 63) + 1, usize::MAX] {
        let created = left.create_cq(wanted).err();
        assert_eq!(created, Some(CreateError::QueueTooLong { wanted, limit: 1 << 26 }));
        assert_eq!(cq.resize(wanted), Err(ResizeError::TooLong { wanted, limit: 1 << 26 }));
    }
}
