//! The event channel reports everything but completions, and calls that wait for it sleep.

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use ferrowarp::{
    Access, AsyncEvent, ConnEvent, ConnParam, Context, DriveMode, EndReason, EventChannel, Qp,
    QpOptions,
};

use crate::support::*;

/// All pending events of the channel, in order.
fn drain_events(channel: &EventChannel) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| channel.next_event()).collect()
}

fn connection(qp: &Qp) -> AsyncEvent {
    AsyncEvent::Connection { qp: qp.id() }
}

#[test]
fn each_event_names_its_source() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (left_channel, right_channel) =
        (left.context.event_channel().unwrap(), right.context.event_channel().unwrap());
    let (left_side, right_side) = (left.context.clone(), right.context.clone());
    let settle = || drive_for(&left_side, &right_side, Duration::from_millis(20));

    let listener = right.context.listen(PORT, 8).unwrap();
    let (a, b, c) = (left.qp(), left.qp(), left.qp());
    for qp in [&a, &b, &c] {
        qp.connect(server(), ConnParam::default()).unwrap();
    }
    settle();
    // Three requests of one listener give one event.
    assert_eq!(
        drain_events(&right_channel),
        [AsyncEvent::ConnectRequest { listener: PORT.into() }]
    );
    let requests: Vec<_> = std::iter::from_fn(|| listener.poll()).collect();
    assert_eq!(requests.len(), 3);

    // A shared receive queue, and a completion queue that will overrun.
    let srq = right.pd.create_srq(16).unwrap();
    let small = right.context.create_cq(1).unwrap();
    let options = |cq| QpOptions::new(cq).max_send_wr(8).max_recv_wr(8);
    let shared = right.pd.create_qp(&options(&right.cq).srq(&srq)).unwrap();
    let overrun = right.pd.create_qp(&options(&small)).unwrap();
    let plain = right.qp();
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    for wr_id in 0..8 {
        srq.post_recv(wr_id, recv_mr.sge(0, 64)).unwrap();
        overrun.post_recv(wr_id, recv_mr.sge(0, 64)).unwrap();
    }
    srq.arm(8).unwrap();
    for (request, qp) in requests.into_iter().zip([&shared, &overrun, &plain]) {
        request.accept(qp, ConnParam::default()).unwrap();
    }
    settle();
    let mut up = drain_events(&right_channel);
    up.sort_by_key(|event| format!("{event:?}"));
    let mut expected = [&shared, &overrun, &plain].map(connection);
    expected.sort_by_key(|event| format!("{event:?}"));
    assert_eq!(up, expected);
    assert_eq!(drain_events(&left_channel).len(), 3);

    // Requests were accepted in order of arrival: `a` is connected to `shared`, `b` to `overrun`.
    send(&a, 1, b"x").unwrap();
    settle();
    assert_eq!(drain_events(&right_channel), [AsyncEvent::SrqLimit { srq: srq.id() }]);
    assert_eq!(srq.next_limit().map(|limit| limit.left), Some(7));
    send(&b, 1, b"x").unwrap();
    send(&b, 2, b"x").unwrap();
    settle();
    assert!(small.overrun());
    let reported = drain_events(&right_channel);
    assert!(reported.contains(&AsyncEvent::CqOverrun { cq: small.id() }), "{reported:?}");
    assert!(reported.contains(&connection(&overrun)), "{reported:?}");

    // The channel reports a queue pair once for several events, which the queue pair holds.
    c.disconnect().unwrap();
    settle();
    assert_eq!(drain_events(&right_channel), [connection(&plain)]);
    assert!(matches!(plain.next_event(), Some(ConnEvent::Established { .. })));
    assert!(matches!(
        plain.next_event(),
        Some(ConnEvent::Disconnected { reason: EndReason::PeerClosed, .. })
    ));
}

#[test]
fn events_before_the_channel_was_created_are_reported() {
    let (left, right) = endpoints(DriveMode::Inline);
    let listener = right.context.listen(PORT, 1).unwrap();
    let a = left.qp();
    a.connect(server(), ConnParam::default()).unwrap();
    drive_for(&left.context, &right.context, Duration::from_millis(20));
    let channel = right.context.event_channel().unwrap();
    let mut descriptor = fs::File::from(channel.as_fd().try_clone_to_owned().unwrap()).take(1);
    assert_eq!(descriptor.read(&mut [0; 8]).unwrap(), 1);
    assert_eq!(channel.next_event(), Some(AsyncEvent::ConnectRequest { listener: PORT.into() }));
    // A context has one event channel.
    let again = right.context.event_channel().unwrap();
    assert_eq!(again.as_fd().as_raw_fd(), channel.as_fd().as_raw_fd());
    drop(listener);
}

#[test]
fn dropped_qp_yields_no_event() {
    let (left, right) = endpoints(DriveMode::Inline);
    let channel = left.context.event_channel().unwrap();
    let (a, b) = connect(&left, &right);
    b.disconnect().unwrap();
    drive_for(&left.context, &right.context, Duration::from_millis(20));
    drop(a);
    assert_eq!(channel.next_event(), None);
}

/// Processor time of a thread of this process, from the scheduler's statistics.
fn cpu_time(thread: &str) -> Duration {
    let statistics = fs::read_to_string(format!("/proc/{thread}/schedstat")).unwrap();
    Duration::from_nanos(statistics.split(' ').next().unwrap().parse().unwrap())
}

/// True if a thread of this process sleeps: it neither runs nor waits for a processor, as a thread
/// that yields does.
fn is_asleep(thread: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{thread}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().trim_start().starts_with('S')
}

/// Runs `wait` on a thread of its own, and `trigger` a second later. Asserts that the thread sleeps
/// until then, and returns soon after.
fn assert_sleeps_until(what: &str, wait: impl FnOnce() -> bool + Send, trigger: impl FnOnce()) {
    const SAMPLES: u32 = 50;
    const INTERVAL: Duration = Duration::from_millis(20);
    std::thread::scope(|scope| {
        let (tx, rx) = std::sync::mpsc::channel();
        let waiter = scope.spawn(move || {
            let own = fs::read_link("/proc/thread-self").unwrap();
            tx.send(own.to_str().unwrap().to_owned()).unwrap();
            assert!(wait(), "{what}: the wait timed out");
            Instant::now()
        });
        let thread = rx.recv().unwrap();
        let start = Instant::now();
        while !is_asleep(&thread) && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(INTERVAL);
        }
        let before = cpu_time(&thread);
        let mut running = 0;
        for _ in 0..SAMPLES {
            std::thread::sleep(INTERVAL);
            running += u32::from(!is_asleep(&thread));
        }
        let used = cpu_time(&thread) - before;
        trigger();
        let triggered = Instant::now();
        let woke = waiter.join().unwrap().saturating_duration_since(triggered);
        assert!(running <= SAMPLES / 10, "{what}: awake {running} times of {SAMPLES}");
        assert!(used < SAMPLES * INTERVAL / 20, "{what}: {used:?} on a processor");
        assert!(woke < Duration::from_secs(10), "{what}: woke {woke:?} late");
    });
}

fn waiting_calls_sleep(drive: DriveMode) {
    let (left, right) = endpoints(drive);
    let listener = right.context.listen(PORT, 8).unwrap();
    let channel = right.context.event_channel().unwrap();
    let (a, b) = (left.qp(), right.qp());
    let connect = |qp: &Qp| qp.connect(server(), ConnParam::default()).unwrap();
    let mut request = None;
    let wait = || {
        request = listener.accept_timeout(TIMEOUT);
        request.is_some()
    };
    assert_sleeps_until("accept_timeout", wait, || connect(&a));
    let wait = || a.wait_established(TIMEOUT).is_ok();
    assert_sleeps_until("wait_established", wait, || {
        request.take().unwrap().accept(&b, ConnParam::default()).unwrap();
    });
    assert!(b.wait_established(TIMEOUT).is_ok());
    let wait = || matches!(a.wait_event(TIMEOUT), Some(ConnEvent::Disconnected { .. }));
    assert_sleeps_until("wait_event", wait, || b.disconnect().unwrap());
    assert!(b.wait_event(TIMEOUT).is_some());
    let _ = drain_events(&channel);
    let c = left.qp();
    let request = AsyncEvent::ConnectRequest { listener: PORT.into() };
    // A queue pair has its event before the channel names it, so the name of `b` may still come.
    let wait = || {
        let mut events = std::iter::from_fn(|| channel.wait(TIMEOUT));
        events.any(|event| event == request)
    };
    assert_sleeps_until("EventChannel::wait", wait, || connect(&c));
}

#[test]
fn waiting_calls_sleep_with_a_helper() {
    waiting_calls_sleep(DriveMode::Helper);
}

#[test]
fn waiting_calls_sleep_with_a_dedicated_thread() {
    waiting_calls_sleep(DriveMode::Dedicated);
}

/// Two threads that only sleep on their channels and handle the events: no connection is missed.
#[test]
fn event_channel_wait_loses_no_event() {
    const ROUNDS: usize = 100;
    let (left, right) = endpoints(DriveMode::Helper);
    let listener = right.context.listen(PORT, 16).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let channel = right.context.event_channel().unwrap();
            let (mut open, mut served) = (Vec::new(), 0);
            while served < ROUNDS {
                match channel.wait(TIMEOUT).expect("an event was lost") {
                    AsyncEvent::ConnectRequest { .. } => {
                        while let Some(request) = listener.poll() {
                            let qp = right.qp();
                            request.accept(&qp, ConnParam::default()).unwrap();
                            open.push(qp);
                        }
                    }
                    AsyncEvent::Connection { qp } => {
                        let at = open.iter().position(|open| open.id() == qp).unwrap();
                        while let Some(event) = open[at].next_event() {
                            if matches!(event, ConnEvent::Disconnected { .. }) {
                                open.swap_remove(at);
                                served += 1;
                                break;
                            }
                        }
                    }
                    event => panic!("{event:?}"),
                }
            }
        });
        let channel = left.context.event_channel().unwrap();
        for round in 0..ROUNDS {
            let qp = left.qp();
            qp.connect(server(), ConnParam::default()).unwrap();
            let mut ended = false;
            while !ended {
                let event = channel.wait(TIMEOUT);
                assert_eq!(event, Some(connection(&qp)), "an event was lost in round {round}");
                while let Some(event) = qp.next_event() {
                    match event {
                        ConnEvent::Established { .. } => qp.disconnect().unwrap(),
                        ConnEvent::Disconnected { .. } => ended = true,
                        event => panic!("{event:?}"),
                    }
                }
            }
        }
    });
}

#[test]
fn close_wakes_waiters() {
    let (left, right) = endpoints(DriveMode::Helper);
    let listener = right.context.listen(PORT, 1).unwrap();
    let channel = right.context.event_channel().unwrap();
    let qp = right.qp();
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(listener.accept_timeout(Duration::MAX).is_none()));
        scope.spawn(|| assert!(qp.wait_event(Duration::MAX).is_none()));
        scope.spawn(|| assert!(channel.wait(Duration::MAX).is_none()));
        std::thread::sleep(Duration::from_millis(100));
        Context::close(right.context.clone());
    });
    assert!(start.elapsed() < TIMEOUT);
    drop(left);
}
