//! Graceful close, half-close and lingering.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use ferrowarp::device::{self, DeviceSpec, OpenConfig};
use ferrowarp::{
    Access, ConnEvent, ConnParam, Context, Cq, DriveMode, EndReason, Ended, Mr, PostError, Qp,
    QpOptions, QpState, Wc, WcOpcode, WcStatus,
};

use crate::support::*;

fn connect_half_close(left: &Endpoint, right: &Endpoint) -> (Qp, Qp) {
    let (a, b) = (left.qp(), right.qp());
    let listener = right.context.listen(PORT, 1).unwrap();
    let mut param = ConnParam::default();
    param.half_close = true;
    a.connect(server(), param.clone()).unwrap();
    listener.accept_timeout(TIMEOUT).unwrap().accept(&b, param).unwrap();
    a.wait_established(TIMEOUT).unwrap();
    b.wait_established(TIMEOUT).unwrap();
    (a, b)
}

#[test]
fn work_posted_before_close_completes() {
    for drive in [DriveMode::Inline, DriveMode::Helper] {
        let (left, right) = endpoints(drive);
        let (a, b) = connect(&left, &right);
        let len = 100_000;
        let source = left.mr(len, Access::LOCAL_READ);
        let sink = left.mr(len, Access::LOCAL_WRITE);
        let remote = right.mr(len, Access::REMOTE_WRITE | Access::REMOTE_READ);
        let recv_mr = right.mr(64, Access::LOCAL_WRITE);
        source.write(0, &pattern(len, 7));
        b.post_recv(9, recv_mr.sge(0, 64)).unwrap();
        let all = u32::try_from(len).unwrap();
        // Nearly a full send queue, none of which was processed before the close.
        let mut post = a.post();
        for wr_id in 0..125 {
            post.write(source.sge(0, all), remote.remote()).wr_id(wr_id).signaled();
        }
        post.read(sink.sge(0, all), remote.remote()).wr_id(125).signaled();
        post.send_inline(b"last words").wr_id(126).signaled();
        post.ring().unwrap();
        a.close().unwrap();
        // The last place: it is not sent.
        send(&a, 127, b"late").unwrap();
        let done = left.completions(&right, 128);
        assert!(done.iter().map(|wc| wc.wr_id).eq(0..128));
        assert!(done[..127].iter().all(|wc| wc.status == WcStatus::Success));
        assert_eq!(done[127].status, WcStatus::Flushed);
        assert_eq!(contents(&sink), pattern(len, 7));
        let got = right.completions(&left, 1);
        assert_eq!((got[0].wr_id, got[0].opcode), (9, WcOpcode::Recv));
        assert!(matches!(
            expect_event(&a),
            ConnEvent::Disconnected { reason: EndReason::Local, .. }
        ));
        assert!(matches!(
            expect_event(&b),
            ConnEvent::Disconnected { reason: EndReason::PeerClosed, .. }
        ));
        assert_eq!((a.state(), b.state()), (QpState::Error, QpState::Error));
    }
}

/// It is taken in parts, between which other calls get their turn.
#[test]
fn close_executes_a_long_queue() {
    const COUNT: usize = 1 << 16;
    let (left, right) = endpoints(DriveMode::Inline);
    let cq = left.context.create_cq(COUNT).unwrap();
    let options = QpOptions::new(&cq).max_send_wr(COUNT);
    let (a, b) = connect_qps(&right, left.pd.create_qp(&options).unwrap(), right.qp()).0;
    let remote = right.mr(64, Access::REMOTE_WRITE);
    let source = left.mr(64, Access::LOCAL_READ);
    let mut post = a.post();
    for wr_id in 0..COUNT as u64 {
        post.write(source.sge(0, 8), remote.remote()).wr_id(wr_id).signaled();
    }
    post.ring().unwrap();
    a.close().unwrap();
    let mut found = Vec::with_capacity(COUNT);
    drive_until(&left.context, &right.context, || {
        cq.poll_with(COUNT, |wc| found.push(wc));
        found.len() == COUNT
    });
    assert!(found.iter().all(|wc| wc.status == WcStatus::Success));
    drop(b);
}

#[test]
fn half_close_leaves_the_other_direction_open() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = connect_half_close(&left, &right);
    let recv_mr = left.mr(64, Access::LOCAL_WRITE);
    let remote = left.mr(64, Access::ALL);
    // The responder may send only after the first FPDU of the initiator.
    write(&a, 0, recv_mr.sge(0, 0), &remote, 0).unwrap();
    a.post_recv(1, recv_mr.sge(0, 64)).unwrap();
    a.half_close().unwrap();
    assert_eq!(a.state(), QpState::Closing);
    left.completions(&right, 1);
    assert_eq!(expect_event(&b), ConnEvent::PeerFinished { qp: b.id() });
    assert_eq!(b.state(), QpState::Rts);
    assert_eq!(read(&b, 1, recv_mr.sge(0, 4), &remote, 0), Err(PostError::NoReads));
    send(&b, 2, b"my turn").unwrap();
    assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
    assert_eq!(contents(&recv_mr)[..7], *b"my turn");
    b.close().unwrap();
    assert!(matches!(expect_event(&a), ConnEvent::Disconnected { reason: EndReason::Local, .. }));
    assert!(matches!(expect_event(&b), ConnEvent::Disconnected { reason: EndReason::Local, .. }));
    assert_eq!(right.completions(&left, 1)[0].status, WcStatus::Success);
}

/// A context with a completed Write that is not acknowledged, as the peer is not driven any more:
/// closing it takes the whole linger time.
pub(crate) struct Unacknowledged {
    pub(crate) left: Endpoint,
    pub(crate) right: Endpoint,
    pub(crate) qps: (Qp, Qp),
    _regions: (Mr, Mr),
}

impl Unacknowledged {
    pub(crate) fn new(drive: DriveMode, linger: Duration) -> Self {
        reserve_pair([drive, DriveMode::Inline]);
        let opened = device::open(&DeviceSpec::Ring, &OpenConfig::new()).unwrap();
        let (here, there) = opened.into_pair().expect("ring is a pair");
        let mut left_config = config(1, drive);
        left_config.linger = linger;
        let left = Context::over(here, left_config).unwrap();
        let right = Context::over(there, config(2, DriveMode::Inline)).unwrap();
        let (left, right) = (Endpoint::new(left), Endpoint::new(right));
        let listener = right.context.listen(PORT, 1).unwrap();
        let (a, b) = (left.qp(), right.qp());
        a.connect(server(), ConnParam::default()).unwrap();
        let mut request = None;
        drive_until(&left.context, &right.context, || {
            request = listener.poll();
            request.is_some()
        });
        request.unwrap().accept(&b, ConnParam::default()).unwrap();
        drive_until(&left.context, &right.context, || {
            a.state() == QpState::Rts && b.state() == QpState::Rts
        });
        let source = left.mr(64, Access::LOCAL_READ);
        let sink = right.mr(64, Access::REMOTE_WRITE);
        write(&a, 1, source.sge(0, 64), &sink, 0).unwrap();
        let mut wcs = [Wc::default(); 4];
        let start = Instant::now();
        while left.cq.poll(&mut wcs).is_empty() {
            assert!(start.elapsed() < TIMEOUT, "a Write completes without the peer");
        }
        assert_eq!(wcs[0].status, WcStatus::Success);
        Self { left, right, qps: (a, b), _regions: (source, sink) }
    }
}

/// Measures `act`, which closes such a context.
fn close_unacknowledged(linger: Duration, act: impl FnOnce(Context)) -> Duration {
    let Unacknowledged { left, right: _right, qps: (a, _b), _regions: (source, _sink) } =
        Unacknowledged::new(DriveMode::Inline, linger);
    let Endpoint { context, pd, cq } = left;
    drop((a, source, pd, cq));
    let start = Instant::now();
    act(context);
    start.elapsed()
}

#[test]
fn drop_lingers_for_a_bounded_time() {
    let took = close_unacknowledged(Duration::from_secs(60), drop);
    assert!(took < Duration::from_secs(30), "{took:?}");
}

#[test]
fn close_lingers_for_the_configured_time() {
    // Longer than a dropped context lingers. The engine has a clock of its own, so nine tenths.
    const LINGER: Duration = Duration::from_millis(1_500);
    let took = close_unacknowledged(LINGER, Context::close);
    assert!(took >= LINGER * 9 / 10, "{took:?}");
}

/// Begins to post before the context is closed, and ends after `time`. Returns the result, the
/// completions of the queue pair, and how long closing takes.
fn post_across_close(time: Duration) -> (Result<(), PostError>, Vec<WcStatus>, Duration) {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = connect(&left, &right);
    let Endpoint { context, cq, .. } = left;
    let (begun, begins) = mpsc::channel();
    let (posted, took) = std::thread::scope(|scope| {
        let posting = scope.spawn(|| {
            let mut post = a.post();
            begun.send(()).unwrap();
            std::thread::sleep(time);
            one(post.send_inline(b"late").wr_id(7).signaled())
        });
        begins.recv().unwrap();
        drop((b, right));
        let start = Instant::now();
        context.close();
        let took = start.elapsed();
        (posting.join().unwrap(), took)
    });
    let found = poll_once(&cq);
    (posted, found.iter().map(|wc| wc.status).collect(), took)
}

#[test]
fn request_posted_across_close_is_flushed() {
    let (posted, found, _) = post_across_close(Duration::from_millis(300));
    assert_eq!((posted, found), (Ok(()), vec![WcStatus::Flushed]));
}

#[test]
fn posting_that_outlasts_close_is_refused() {
    let (posted, found, took) = post_across_close(Duration::from_secs(3));
    assert_eq!((posted, found), (Err(PostError::Ended(Ended::Closed)), Vec::new()));
    assert!(took < Duration::from_millis(2900), "{took:?}: closing waits for a second");
}

/// Posts until that is refused, and polls so that the completion queue has room. Returns the number
/// of requests accepted, and the completions.
fn accepted(cq: &Cq, post: impl Fn() -> Result<(), PostError>) -> (usize, Vec<Wc>) {
    let (mut count, mut found) = (0, Vec::new());
    loop {
        cq.poll_with(64, |wc| found.push(wc));
        match post() {
            Ok(()) => count += 1,
            Err(PostError::QueueFull) => std::thread::yield_now(),
            Err(_) => return (count, found),
        }
    }
}

/// Each request is accounted for: threads post until they are refused, to connected queue pairs and
/// to one that no shard has.
#[test]
fn all_that_is_posted_until_close_completes() {
    for round in 0..8 {
        let (mut left, mut right) = (config(1, DriveMode::Inline), config(2, DriveMode::Inline));
        (left.shards, right.shards) = (2, 2);
        let (left, right) = ring_pair(left, right).unwrap();
        let (left, right) = (Endpoint::new(left), Endpoint::new(right));
        let (a, b) = connect(&left, &right);
        let unbound = left.qp_with(1, 64);
        assert_eq!(unbound.shard(), None);
        let buffer = left.mr(64, Access::LOCAL_WRITE);
        let Endpoint { context, cq, .. } = &left;
        let posted = std::thread::scope(|scope| {
            let sends = scope.spawn(|| accepted(cq, || send(&a, 1, b"x")));
            let recvs = scope.spawn(|| accepted(cq, || a.post_recv(2, buffer.sge(0, 64))));
            let idle = scope.spawn(|| accepted(cq, || unbound.post_recv(3, buffer.sge(0, 64))));
            std::thread::sleep(Duration::from_millis(round));
            drop((b, right));
            context.clone().close();
            [sends, recvs, idle].map(|thread| thread.join().unwrap())
        });
        let mut found = posted.each_ref().map(|(_, found)| &found[..]).concat();
        while cq.poll_with(4096, |wc| found.push(wc)) > 0 {}
        let of = |id| found.iter().filter(|wc| wc.wr_id == id).count();
        assert_eq!([of(1), of(2), of(3)], posted.map(|(count, _)| count), "round {round}");
        assert!(!cq.overrun());
    }
}
