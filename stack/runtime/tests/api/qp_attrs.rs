//! Attributes of queue pairs, and their return to the first state.

use ferrowarp::{
    Access, CmError, ConnEvent, ConnParam, ConnectError, CreateError, DriveMode, EndReason, Ended,
    Qp, QpAttrs, QpOptions, QpState, SrqOptions, WcStatus,
};

use crate::support::*;

const SIZES: [usize; 5] = [9, 32, 256, 5, 3];

/// Capacities of sends (requests, elements, inline bytes) and receives (requests, elements).
fn sizes(attrs: &QpAttrs) -> [usize; 5] {
    let QpAttrs { max_send_wr, max_send_sge, max_inline_data, max_recv_wr, max_recv_sge, .. } =
        *attrs;
    [max_send_wr, max_send_sge, max_inline_data, max_recv_wr, max_recv_sge]
}

fn sized<'a>(end: &'a Endpoint) -> QpOptions<'a> {
    let [max_send_wr, max_send_sge, max_inline_data, max_recv_wr, max_recv_sge] = SIZES;
    QpOptions::new(&end.cq)
        .max_send_wr(max_send_wr)
        .max_send_sge(max_send_sge)
        .max_inline_data(max_inline_data)
        .max_recv_wr(max_recv_wr)
        .max_recv_sge(max_recv_sge)
}

#[test]
fn attributes_follow_the_connection() {
    let (left, right) = endpoints(DriveMode::Inline);
    let a = left.pd.create_qp(&sized(&left).user_data(7)).unwrap();
    let b = right.qp();
    assert_eq!(a.user_data(), 7);
    a.set_user_data(8);
    assert_eq!((a.user_data(), b.user_data()), (8, 0));

    // Of no shard yet: everything that is posted waits.
    for wr_id in 0..4 {
        a.post_recv(wr_id, []).unwrap();
    }
    a.post().send_inline(&[5; 200]).wr_id(1).signaled().ring().unwrap();
    send(&a, 2, b"two").unwrap();
    let early = a.attrs().unwrap();
    assert_eq!((sizes(&early), early.state), (SIZES, QpState::Idle));
    assert_eq!((early.send_depth, early.recv_depth), (2, 4));
    assert_eq!((early.local, early.peer, early.end), (None, None, None));

    b.post_recv(1, right.mr(256, Access::LOCAL_WRITE).sge(0, 256)).unwrap();
    b.post_recv(2, []).unwrap();
    let listener = right.context.listen(PORT, 1).unwrap();
    a.connect(server(), ConnParam::new().ird(3).ord(5)).unwrap();
    let connecting = a.attrs().unwrap();
    assert_eq!((connecting.state, connecting.peer), (QpState::Connecting, Some(server())));
    assert_eq!((connecting.send_depth, connecting.recv_depth), (2, 4));
    let request = listener.accept_timeout(TIMEOUT).unwrap();
    request.accept(&b, ConnParam::new().ord(9)).unwrap();
    let info = a.wait_established(TIMEOUT).unwrap();
    let attrs = a.attrs().unwrap();
    assert_eq!((sizes(&attrs), attrs.state), (SIZES, QpState::Rts));
    assert_eq!((attrs.ird, attrs.ord), (info.ird, info.ord));
    assert_eq!((attrs.ird, attrs.ord), (3, 5));
    assert_eq!((a.local(), a.peer()), (Some(info.local), Some(info.peer)));
    assert_eq!(a.peer(), Some(server()));
    b.wait_established(TIMEOUT).unwrap();
    assert_eq!((b.local(), b.peer()), (a.peer(), a.local()));

    // The second Send finds a receive without bytes.
    assert_eq!(left.completions(&right, 1)[0].wr_id, 1);
    let ConnEvent::Disconnected { reason, .. } = expect_event(&a) else { panic!() };
    assert!(matches!(reason, EndReason::TerminateReceived(_)), "{reason:?}");
    let ended = a.attrs().unwrap();
    assert_eq!((ended.state, ended.end), (QpState::Error, Some(reason)));
    assert_eq!((ended.local, ended.peer), (Some(info.local), Some(info.peer)));
    drive_until(&left.context, &right.context, || a.attrs().unwrap().recv_depth == 0);
    left.context.close();
    assert_eq!(a.attrs(), None);
}

/// A refused attempt: the connection is gone at once, its addresses stay.
#[test]
fn attributes_name_the_failure_of_a_connect() {
    let (left, right) = endpoints(DriveMode::Inline);
    let a = left.qp();
    a.connect(server(), ConnParam::new()).unwrap();
    drive_until(&left.context, &right.context, || a.state() == QpState::Error);
    let attrs = a.attrs().unwrap();
    assert_eq!((attrs.connect_error, attrs.end), (Some(ConnectError::Refused), None));
    assert_eq!(attrs.peer, Some(server()));
    assert_eq!(left.context.usage().engine.connections, 0);
    // Ended by this end, in one way or the other.
    for end in [Qp::disconnect, Qp::to_error] {
        let qp = left.qp();
        qp.connect(server(), ConnParam::new()).unwrap();
        end(&qp).unwrap();
        assert_eq!(qp.wait_established(TIMEOUT), Err(ConnectError::Local));
        let attrs = qp.attrs().unwrap();
        assert_eq!((attrs.connect_error, attrs.end), (Some(ConnectError::Local), None));
    }
    let qp = left.qp();
    qp.connect(server(), ConnParam::new()).unwrap();
    left.context.close();
    assert_eq!(qp.wait_established(TIMEOUT), Err(ConnectError::Local));
}

#[test]
fn attributes_of_shared_receives_are_of_the_send_queue_alone() {
    let (left, _right) = endpoints(DriveMode::Inline);
    let srq = left.pd.create_srq_with(&SrqOptions::new(8).max_sge(32)).unwrap();
    let qp = left.pd.create_qp(&sized(&left).srq(&srq)).unwrap();
    assert_eq!(sizes(&qp.attrs().unwrap()), [9, 32, 256, 0, 0]);
    qp.to_error().unwrap();
    assert_eq!(sizes(&qp.attrs().unwrap()), [9, 32, 256, 0, 0]);
}

/// Connects, exchanges a message and resets, again and again; nothing of a connection before is
/// left.
fn queue_pairs_are_used_again(drive: DriveMode) {
    let (left, right) = endpoints(drive);
    let mut a = left.pd.create_qp(&sized(&left)).unwrap();
    let mut b = right.qp();
    let mut last = a.id();
    for round in 0..8_u64 {
        let ((mut c, mut d), _) = connect_qps(&right, a, b);
        assert_eq!(sizes(&c.attrs().unwrap()), SIZES);
        d.post_recv(round, []).unwrap();
        send(&c, round, b"").unwrap();
        assert_eq!(outcomes(&right.completions(&left, 1)), [(round, WcStatus::Success)]);
        assert_eq!(outcomes(&left.completions(&right, 1)), [(round, WcStatus::Success)]);
        // Flushed, and never polled.
        c.post_recv(99, []).unwrap();
        d.post_recv(99, []).unwrap();
        if round % 2 == 0 {
            c.to_error().unwrap();
            drive_until(&left.context, &right.context, || d.state() == QpState::Error);
        }
        c.reset().unwrap();
        d.reset().unwrap();
        assert_eq!((c.state(), c.next_event().is_none()), (QpState::Idle, true));
        assert_eq!((c.id().index, c.id() == last), (last.index, false));
        assert_eq!((poll_once(&left.cq), poll_once(&right.cq)), (vec![], vec![]));
        let attrs = c.attrs().unwrap();
        assert_eq!((sizes(&attrs), attrs.end, attrs.peer), (SIZES, None, None));
        assert_eq!((attrs.send_depth, attrs.recv_depth), (0, 0));
        last = c.id();
        (a, b) = (c, d);
    }
}

#[test]
fn queue_pairs_are_used_again_inline() {
    queue_pairs_are_used_again(DriveMode::Inline);
}

#[test]
fn queue_pairs_are_used_again_with_a_thread() {
    queue_pairs_are_used_again(DriveMode::Dedicated);
}

/// Reset takes the place of the queue pair it was: no limit is in its way.
#[test]
fn reset_needs_no_room() {
    let mut config = config(1, DriveMode::Inline);
    config.qps_max = 1;
    config.limits.queue_entries_max = 2;
    let (left, _right) = ring_pair(config, self::config(2, DriveMode::Inline)).unwrap();
    let (pd, cq) = (left.alloc_pd(), left.create_cq(8).unwrap());
    let options = QpOptions::new(&cq).max_send_wr(1).max_recv_wr(1);
    let mut qp = pd.create_qp(&options).unwrap();
    qp.reset().unwrap();
    assert!(matches!(pd.create_qp(&options).err(), Some(CreateError::Limit(_))));
    drop(qp);
    let mut qp = pd.create_qp(&options).unwrap();
    let region = pd.register_for(&qp, left.allocate(8).unwrap(), Access::ALL).unwrap();
    qp.reset().unwrap();
    drop(region);
    left.close();
    assert_eq!(qp.reset(), Err(CreateError::Ended(Ended::Closed)));
    assert_eq!((qp.state(), qp.to_error()), (QpState::Error, Err(CmError::Ended(Ended::Closed))));
}
