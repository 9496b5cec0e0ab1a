//! Objects that are made, and waited for, while their context closes; and objects that get the
//! number of one that is gone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferrowarp::{
    Access, AsyncEvent, CmError, ConnParam, CreateError, DriveMode, Ended, PostError, QpOptions,
    QpState, ResizeError,
};

use crate::close::Unacknowledged;
use crate::support::*;

/// Runs `act` while a context waits for its peer in `close`, for a second.
fn while_closing(drive: DriveMode, act: impl FnOnce(&Endpoint)) {
    let fixture = Unacknowledged::new(drive, Duration::from_secs(1));
    let (left, a) = (&fixture.left, &fixture.qps.0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let closing = left.context.clone();
        scope.spawn(move || closing.close());
        while a.state() != QpState::Error {
            std::thread::yield_now();
        }
        act(left);
    });
    assert!(start.elapsed() < TIMEOUT);
}

/// Whatever was made before, or is made while it closes, no call waits for ever.
fn calls_return_when_closed(drive: DriveMode) {
    while_closing(drive, |left| {
        // Refused, all of them; where one is not, it has to wake.
        if let Ok(listener) = left.context.listen(PORT, 1) {
            assert!(listener.accept_timeout(Duration::MAX).is_none());
        }
        if let Ok(channel) = left.context.event_channel() {
            while channel.wait(Duration::MAX).is_some() {}
        }
        if let Ok(channel) = left.context.create_comp_channel() {
            assert_eq!(channel.wait(Duration::MAX), None);
        }
        if let Ok(qp) = left.pd.create_qp(&QpOptions::new(&left.cq)) {
            while qp.wait_event(Duration::MAX).is_some() {}
            assert!(qp.wait_established(Duration::MAX).is_err());
            assert_eq!(qp.state(), QpState::Error);
        }
        let shard = QpOptions::new(&left.cq).shard(0);
        if let Ok(qp) = left.pd.create_qp(&shard) {
            let connected = qp.connect(server(), ConnParam::default());
            while qp.wait_event(Duration::MAX).is_some() {}
            assert_eq!(
                (connected, qp.state()),
                (Err(CmError::Ended(Ended::Closed)), QpState::Error)
            );
        }
    });
}

#[test]
fn calls_return_when_closed_with_a_helper() {
    calls_return_when_closed(DriveMode::Helper);
}

#[test]
fn calls_return_when_closed_with_a_dedicated_thread() {
    calls_return_when_closed(DriveMode::Dedicated);
}

#[test]
fn calls_return_when_closed_inline() {
    calls_return_when_closed(DriveMode::Inline);
}

#[test]
fn closing_context_takes_no_listener_queue_pair_or_connection() {
    while_closing(DriveMode::Helper, |left| {
        assert_eq!(left.context.listen(PORT, 1).err(), Some(CmError::Ended(Ended::Closed)));
        assert_eq!(
            left.context.listen_unframed(PORT, 1).err(),
            Some(CmError::Ended(Ended::Closed))
        );
        let options = QpOptions::new(&left.cq);
        assert_eq!(
            left.pd.create_qp(&options.shard(0)).err(),
            Some(CreateError::Ended(Ended::Closed))
        );
        assert_eq!(left.pd.create_qp(&options).err(), Some(CreateError::Ended(Ended::Closed)));
    });
}

/// A queue pair that has no connection ends when closing begins, not when it is over.
#[test]
fn idle_queue_pairs_end_when_closing_begins() {
    let fixture = Unacknowledged::new(DriveMode::Helper, TIMEOUT);
    let left = &fixture.left;
    let bound = left.pd.create_qp(&QpOptions::new(&left.cq).shard(0)).unwrap();
    let free = left.pd.create_qp(&QpOptions::new(&left.cq)).unwrap();
    let has_closed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let closing = left.context.clone();
        scope.spawn(|| {
            closing.close();
            has_closed.store(true, Ordering::Relaxed);
        });
        let start = Instant::now();
        for qp in [&bound, &free] {
            assert_eq!(qp.wait_event(TIMEOUT / 2), None);
            assert_eq!(
                qp.connect(server(), ConnParam::default()),
                Err(CmError::Ended(Ended::Closed))
            );
            let posted = send(qp, 1, b"");
            assert_eq!(
                (qp.state(), posted),
                (QpState::Error, Err(PostError::Ended(Ended::Closed)))
            );
        }
        assert!(start.elapsed() < TIMEOUT / 2, "they wake");
        // The peer acknowledges, so that it does not take a minute.
        while !has_closed.load(Ordering::Relaxed) {
            fixture.right.context.drive();
        }
    });
}

/// An application that finds a queue pair connected finds what was negotiated, however many events
/// of others come first.
#[test]
fn rights_are_published_with_the_state() {
    const COUNT: usize = 300;
    let (left, right) = endpoints(DriveMode::Inline);
    let small = right.context.create_cq(1).unwrap();
    let listener = right.context.listen(PORT, 4).unwrap();
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    let source = left.mr(64, Access::ALL);
    let options = QpOptions::new(&right.cq).recv_cq(&small).max_send_wr(1).max_recv_wr(2);
    let pairs: Vec<_> = (0..COUNT)
        .map(|_| {
            let (a, b) = (left.qp_with(4, 1), right.pd.create_qp(&options).unwrap());
            a.connect(server(), ConnParam::default()).unwrap();
            listener.accept_timeout(TIMEOUT).unwrap().accept(&b, ConnParam::default()).unwrap();
            a.wait_established(TIMEOUT).unwrap();
            b.wait_established(TIMEOUT).unwrap();
            (a, b)
        })
        .collect();
    let (a, b) = (left.qp(), right.qp());
    a.connect(server(), ConnParam::default()).unwrap();
    let request = listener.accept_timeout(TIMEOUT).unwrap();
    // A completion queue overruns, which ends all its queue pairs in one poll.
    let (first, its_peer) = &pairs[0];
    (0..2).for_each(|wr_id| its_peer.post_recv(wr_id, recv_mr.sge(0, 64)).unwrap());
    (0..2).for_each(|wr_id| send(first, wr_id, b"x").unwrap());
    drive_until(&left.context, &right.context, || small.overrun());
    let mut without_reads = ConnParam::default();
    without_reads.ord = 0;
    request.accept(&b, without_reads).unwrap();
    if b.state() == QpState::Rts {
        assert_eq!(read(&b, 1, recv_mr.sge(0, 4), &source, 0), Err(PostError::NoReads));
    }
    assert_eq!(b.state(), QpState::Rts);
}

/// An overrun names the queue that has overrun, and no later one, also if its number is the same.
#[test]
fn overrun_of_a_destroyed_queue_names_no_other() {
    let (left, right) = endpoints(DriveMode::Inline);
    let channel = right.context.event_channel().unwrap();
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    let small = right.context.create_cq(1).unwrap();
    let number = small.id();
    let options = QpOptions::new(&right.cq).recv_cq(&small);
    let ((a, b), _) = connect_qps(&right, left.qp(), right.pd.create_qp(&options).unwrap());
    (0..2).for_each(|wr_id| b.post_recv(wr_id, recv_mr.sge(0, 64)).unwrap());
    (0..2).for_each(|wr_id| send(&a, wr_id, b"x").unwrap());
    drive_until(&left.context, &right.context, || small.overrun());
    drop((b, small));
    let next = right.context.create_cq(64).unwrap();
    assert_ne!(next.id(), number);
    drive_for(&left.context, &right.context, Duration::from_millis(5));
    while let Some(event) = channel.next_event() {
        assert_ne!(event, AsyncEvent::CqOverrun { cq: next.id() });
    }
    assert!(!next.overrun());
}

/// Port 0 stands for a free port, as with sockets.
#[test]
fn listener_on_port_0_gets_a_free_port() {
    let mut right_config = config(2, DriveMode::Inline);
    right_config.source_ports = 50_000..=50_002;
    let (left, right) = ring_pair(config(1, DriveMode::Inline), right_config).unwrap();
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    let taken = right.context.listen(50_001, 1).unwrap();
    let (first, second) =
        (right.context.listen(0, 1).unwrap(), right.context.listen_unframed(0, 1).unwrap());
    assert_eq!([taken.port(), first.port(), second.port()], [50_001, 50_000, 50_002]);
    assert_eq!(right.context.listen(0, 1).err(), Some(CmError::NoResources));
    let (a, b) = (left.qp(), right.qp());
    a.connect((address(2), first.port()).into(), ConnParam::default()).unwrap();
    first.accept_timeout(TIMEOUT).unwrap().accept(&b, ConnParam::default()).unwrap();
    a.wait_established(TIMEOUT).unwrap();
    drop((first, second));
    // Not the port that was chosen last.
    assert_eq!(right.context.listen(0, 1).unwrap().port(), 50_000);
}

/// A queue of any length works, or is refused, whatever the limit on all of them.
#[test]
fn queue_that_is_too_long_is_refused() {
    let mut unlimited = config(1, DriveMode::Inline);
    (unlimited.limits.cq_entries_max, unlimited.limits.queue_entries_max) = (u64::MAX, u64::MAX);
    let (left, _right) = ring_pair(unlimited, config(2, DriveMode::Inline)).unwrap();
    let left = Endpoint::new(left);
    for wanted in [usize::MAX, (1 << 63) + 1, (1 << 26) + 1] {
        let error = Some(CreateError::QueueTooLong { wanted, limit: 1 << 26 });
        assert_eq!(left.context.create_cq(wanted).err(), error);
        assert_eq!(left.pd.create_srq(wanted).err(), error);
        let options = QpOptions::new(&left.cq);
        assert_eq!(left.pd.create_qp(&options.max_send_wr(wanted)).err(), error);
        assert_eq!(left.pd.create_qp(&options.max_recv_wr(wanted)).err(), error);
        let error = ResizeError::TooLong { wanted, limit: 1 << 26 };
        assert_eq!(left.cq.resize(wanted), Err(error));
    }
    let none = left.context.create_cq(0).unwrap();
    let options = QpOptions::new(&none).max_send_wr(0).max_recv_wr(0);
    assert!(left.pd.create_qp(&options).is_ok() && left.pd.create_srq(0).is_ok());
    assert_eq!(none.resize(0), Ok(()));
}

/// Private data that are too long are an error, not a panic.
#[test]
fn length_of_private_data_is_checked() {
    let param = |len| ConnParam::new().private_data(vec![1; len]);
    assert_eq!(param(512).unwrap().private_data.len(), 512);
    assert_eq!(
        param(513).unwrap_err().to_string(),
        "513 bytes of private data are too many: give 512 or fewer"
    );
}
