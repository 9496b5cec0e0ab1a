//! Cost of a poll: it does not grow with what is idle or waits, and one application that posts
//! whatever it can leaves the others their turn.

use std::time::{Duration, Instant};

use ferrowarp::{
    Access, AsyncEvent, Config, ConnEvent, Context, Cq, DriveMode, Qp, QpOptions, QpState, Srq, Wc,
    WcStatus,
};

use crate::longest_poll::LongestPoll;
use crate::support::*;

const BATCH_LEN: u32 = 100;

/// Nanoseconds of a poll that finds nothing to do, in one batch.
fn batch_poll_ns(context: &Context) -> f64 {
    let begin = Instant::now();
    for _ in 0..BATCH_LEN {
        context.drive();
    }
    begin.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH_LEN)
}

/// Asserts that an idle poll of `context` costs little more than one of `empty`, and returns both
/// costs in nanoseconds. The fastest batch of each counts, of as many as it takes: in others the
/// thread was preempted, or shared its core. Batches alternate, for the processor's speed changes.
fn assert_polls_like(empty: &Context, context: &Context) -> [f64; 2] {
    // Queue pairs that were rung just now are polled for some milliseconds.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(20) {
        context.drive();
        empty.drive();
    }
    let mut fastest = [f64::INFINITY; 2];
    loop {
        for _ in 0..200 {
            for (fastest, context) in fastest.iter_mut().zip([empty, context]) {
                *fastest = fastest.min(batch_poll_ns(context));
            }
        }
        let [without, cost] = fastest;
        // It was a hundred times.
        if cost < 1.5 * without + 100.0 {
            return fastest;
        }
        assert!(begin.elapsed() < TIMEOUT, "{cost:.0} ns a poll, {without:.0} without");
    }
}

/// Queue pairs of a completion queue that overran which a poll ends, at most: of those that belong
/// to a shard, and as many that belong to none, at the end of the poll and in its middle.
const ENDED_PER_POLL: usize = 192;

fn roomy(host: u8, qps: usize) -> Config {
    let mut config = config(host, DriveMode::Inline);
    config.qps_max = qps + 64;
    config.limits.connections_max = 2 * qps + 64;
    config
}

/// Queue pairs in the error state, each with requests to flush to `full`, which has no free slots:
/// it has overrun.
fn blocked(
    left: &Endpoint,
    right: &Endpoint,
    full: &Cq,
    count: usize,
    polls: &mut LongestPoll,
) -> Vec<Qp> {
    let options = QpOptions::new(full).max_send_wr(16).max_recv_wr(2);
    let create = || left.pd.create_qp(&options).unwrap();
    let idle: Vec<_> = (0..count).map(|_| create()).collect();
    for qp in &idle {
        qp.post_recv(7, []).unwrap();
    }
    // One that fills the queue ends them all.
    let (active, _passive) = connect_qps(right, create(), right.qp()).0;
    while send(&active, 0, b"").is_ok() {}
    // Each poll ends a bounded number.
    let ended = || idle.iter().filter(|qp| qp.state() == QpState::Error).count();
    let (mut before, begin) = (0, Instant::now());
    while before < count {
        polls.time(|| left.context.drive());
        right.context.drive();
        let now = ended();
        assert!(now - before <= ENDED_PER_POLL, "{} in a poll", now - before);
        assert!(begin.elapsed() < TIMEOUT, "{now} have ended");
        before = now;
    }
    drive_until(&left.context, &right.context, || !polls.time(|| left.context.drive()));
    idle
}

#[test]
fn poll_costs_the_same_with_many_idle_and_blocked_queues() {
    const IDLE: usize = 10_000;
    const SRQS: usize = 1000;
    let (left, right) = ring_pair(roomy(1, 2 * IDLE), config(2, DriveMode::Inline)).unwrap();
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    let polls_like_empty = || assert_polls_like(&right.context, &left.context);
    let empty = polls_like_empty();
    let _srqs: Vec<Srq> = (0..SRQS).map(|_| left.pd.create_srq(4).unwrap()).collect();
    let with_srqs = polls_like_empty();
    let options = QpOptions::new(&left.cq).max_send_wr(1).max_recv_wr(1).shard(0);
    let _idle: Vec<Qp> = (0..IDLE).map(|_| left.pd.create_qp(&options).unwrap()).collect();
    let with_idle = polls_like_empty();
    let full = left.context.create_cq(4).unwrap();
    let mut polls = LongestPoll::default();
    let waiting = blocked(&left, &right, &full, IDLE, &mut polls);
    polls.end();
    let with_blocked = polls_like_empty();
    println!(
        "ns per idle poll of an empty context and this one: {empty:.0?}, with {SRQS} SRQs \
         {with_srqs:.0?}, and {IDLE} idle queue pairs {with_idle:.0?}, and {IDLE} that wait to \
         flush {with_blocked:.0?}"
    );
    // All are flushed as the application polls.
    let (mut wcs, mut flushed) = ([Wc::default(); 64], 0);
    drive_until(&left.context, &right.context, || {
        let found = full.poll(&mut wcs);
        flushed +=
            found.iter().filter(|wc| wc.status == WcStatus::Flushed && wc.wr_id == 7).count();
        flushed == waiting.len()
    });
    let begin = Instant::now();
    drop(waiting);
    println!("destroying {IDLE} queue pairs: {:?}", begin.elapsed());
}

#[test]
fn flood_of_one_application_leaves_the_others_their_turn() {
    const FLOODING: usize = 1000;
    const REQUESTS: usize = 128;
    let (left, right) = ring_pair(roomy(1, FLOODING), roomy(2, FLOODING)).unwrap();
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    let flooding: Vec<_> = (0..FLOODING)
        .map(|_| connect_qps(&right, left.qp_with(REQUESTS, 1), right.qp_with(1, 1)).0)
        .collect();
    // Created last: it has the highest number.
    let small = left.context.create_cq(16).unwrap();
    let options = QpOptions::new(&small).max_send_wr(4).max_recv_wr(4);
    let qp = left.pd.create_qp(&options).unwrap();
    let (modest, peer) = connect_qps(&right, qp, right.qp()).0;
    let (source, sink) = (left.mr(64, Access::ALL), right.mr(64, Access::ALL));
    let flood = || {
        for (qp, _) in &flooding {
            let mut post = qp.post();
            for _ in 0..REQUESTS {
                post.write(source.sge(0, 8), sink.remote());
            }
            let _ = post.ring();
        }
    };
    let (mut longest, mut rounds, mut most) = (LongestPoll::default(), 0, 0);
    let mut wcs = [Wc::default(); 16];
    let begin = Instant::now();
    while rounds < 20 {
        flood();
        write(&modest, rounds, source.sge(0, 8), &sink, 8).unwrap();
        let mut polls = 0;
        // It polls the shard.
        while longest.time(|| small.poll(&mut wcs).len()) == 0 {
            longest.time(|| left.context.drive());
            right.context.drive();
            polls += 1;
            assert!(begin.elapsed() < TIMEOUT, "round {rounds}: nothing completes");
        }
        // Control calls and the other direction, meanwhile.
        assert!(modest.tcp_stats().is_some() && peer.tcp_stats().is_some());
        (rounds, most) = (rounds + 1, most.max(polls));
    }
    println!("{most} polls at most until a completion");
    // A turn takes a poll for each 64 doorbells and each burst of segments.
    assert!(most <= 4 * FLOODING, "{most} polls");
    longest.end();
}

/// An application that leaves its completion queue full, takes one completion at a time, and goes
/// on to overrun further queues, leaves the others their turn.
#[test]
fn full_queues_of_one_application_leave_the_others_their_turn() {
    const WAITING: usize = 2000;
    const ROUNDS: usize = 20;
    let (left, right) = ring_pair(roomy(1, WAITING + 64), config(2, DriveMode::Inline)).unwrap();
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    let (modest, _peer) = connect(&left, &right);
    let (source, sink) = (left.mr(64, Access::ALL), right.mr(64, Access::ALL));
    let mut polls = LongestPoll::default();
    let full = left.context.create_cq(4).unwrap();
    let waiting = blocked(&left, &right, &full, WAITING, &mut polls);
    let (mut wcs, mut taken, mut most, mut more) = ([Wc::default(); 16], 0, 0, Vec::new());
    for round in 0..ROUNDS {
        taken += full.poll_with(1, |_| ());
        if round % 4 == 0 {
            let full = left.context.create_cq(1).unwrap();
            let options = QpOptions::new(&full).max_send_wr(16);
            let qp = left.pd.create_qp(&options).unwrap();
            let (qp, peer) = connect_qps(&right, qp, right.qp()).0;
            while send(&qp, 0, b"").is_ok() {}
            more.push((qp, peer, full));
        }
        write(&modest, round as u64, source.sge(0, 8), &sink, 8).unwrap();
        let mut count = 0;
        while count == 0 || polls.time(|| left.cq.poll(&mut wcs).len()) == 0 {
            polls.time(|| left.context.drive());
            right.context.drive();
            count += 1;
            assert!(count < 1000, "round {round}: nothing completes");
        }
        assert_eq!((wcs[0].wr_id, wcs[0].status), (round as u64, WcStatus::Success));
        most = most.max(count);
    }
    println!("{most} polls at most until a completion");
    assert!(most <= 32 && taken >= ROUNDS / 2, "{most} polls, {taken} taken");
    drive_until(&left.context, &right.context, || {
        more.iter().all(|(qp, ..)| qp.state() == QpState::Error)
    });
    assert!(waiting.iter().all(|qp| qp.state() == QpState::Error));
    polls.end();
}

/// Queue pairs that belong to no shard when their completion queue overruns: each poll ends a
/// bounded number of them, and the application is told once all have ended.
#[test]
fn overrun_ends_many_unbound_queue_pairs_in_turn() {
    const UNBOUND: usize = 2000;
    let mut configs = [roomy(1, UNBOUND), roomy(2, 16)];
    for config in &mut configs {
        config.shards = 2;
    }
    let [left, right] = configs;
    let (left, right) = ring_pair(left, right).unwrap();
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    let channel = left.context.event_channel().unwrap();
    let full = left.context.create_cq(4).unwrap();
    let mut polls = LongestPoll::default();
    let waiting = blocked(&left, &right, &full, UNBOUND, &mut polls);
    let overrun = AsyncEvent::CqOverrun { cq: full.id() };
    let reported = std::iter::from_fn(|| channel.next_event());
    let last = reported.enumerate().filter(|(_, event)| *event == overrun).map(|(at, _)| at);
    let last: Vec<_> = last.collect();
    assert!(
        last.len() == 1 && last[0] >= UNBOUND,
        "after those of {UNBOUND} queue pairs: {last:?}"
    );
    for qp in &waiting {
        assert_eq!(qp.next_event(), Some(ConnEvent::CqOverrun { cq: full.id() }));
    }
    polls.end();
}
