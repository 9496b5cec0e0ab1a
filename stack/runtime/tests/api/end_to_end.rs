//! The stack from request to completion, both ends driven by the test's own thread.

use std::time::{Duration, Instant};

use ferrowarp::device::ChecksumMode;
use ferrowarp::{
    Access, CmError, ConnEvent, ConnectError, DriveMode, EndReason, Ended, PostError, QpState,
    RemoteAddr, Wc, WcOpcode, WcStatus,
};

use crate::support::*;

fn summary(wcs: &[Wc]) -> Vec<(u64, WcOpcode, WcStatus)> {
    wcs.iter().map(|wc| (wc.wr_id, wc.opcode, wc.status)).collect()
}

#[test]
fn private_data_and_ird_ord_reach_both_peers() {
    let (left, right) = endpoints(DriveMode::Inline);
    let ((a, b), (at_left, at_right)) = connect_qps(&right, left.qp(), right.qp());
    assert_eq!(at_left.private_data.as_slice(), b"from the right");
    assert_eq!(at_left.peer, server());
    assert_eq!((at_left.local.ip(), at_right.peer.ip()), (address(1), address(1)));
    assert_eq!((at_left.ord, at_right.ird, at_left.crc), (16, 16, true));
    assert_eq!((a.state(), b.state()), (QpState::Rts, QpState::Rts));
}

#[test]
fn requests_complete_in_order_with_correct_data() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = connect(&left, &right);
    let len = 100_000;
    let source = left.mr(len, Access::LOCAL_READ);
    let sink = left.mr(len, Access::LOCAL_WRITE);
    let remote = right.mr(len, Access::REMOTE_WRITE | Access::REMOTE_READ);
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    source.write(0, &pattern(len, 7));
    b.post_recv(9, recv_mr.sge(0, 64)).unwrap();
    let all = u32::try_from(len).unwrap();
    write(&a, 1, source.sge(0, all), &remote, 0).unwrap();
    read(&a, 2, sink.sge(0, all), &remote, 0).unwrap();
    send(&a, 3, b"done").unwrap();
    let wcs = left.completions(&right, 3);
    assert_eq!(
        summary(&wcs),
        [
            (1, WcOpcode::Write, WcStatus::Success),
            (2, WcOpcode::Read, WcStatus::Success),
            (3, WcOpcode::Send, WcStatus::Success),
        ]
    );
    assert_eq!(contents(&sink), pattern(len, 7));
    assert_eq!(contents(&remote), pattern(len, 7));
    let got = right.completions(&left, 1);
    assert_eq!((got[0].wr_id, got[0].byte_len, got[0].qp), (9, 4, b.id()));
    assert_eq!(contents(&recv_mr)[..4], *b"done");
}

#[test]
fn minimum_mtu_carries_messages() {
    let small = |host| {
        let mut config = config(host, DriveMode::Inline);
        config.mtu = ferrowarp::device::MTU_MIN;
        config
    };
    let (left, right) = ring_pair(small(1), small(2)).unwrap();
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    let (a, _b) = connect(&left, &right);
    let source = left.mr(5000, Access::LOCAL_READ);
    let remote = right.mr(5000, Access::ALL);
    let sink = left.mr(5000, Access::LOCAL_WRITE);
    source.write(0, &pattern(5000, 3));
    write(&a, 1, source.sge(0, 5000), &remote, 0).unwrap();
    read(&a, 2, sink.sge(0, 5000), &remote, 0).unwrap();
    let wcs = left.completions(&right, 2);
    assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success), "{wcs:?}");
    assert_eq!(contents(&sink), pattern(5000, 3));
}

#[test]
fn send_with_invalidate_revokes_the_region() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = connect(&left, &right);
    let source = left.mr(64, Access::LOCAL_READ);
    let buffer = right.context.allocate(64).unwrap();
    let remote = right.pd.register_for(&b, buffer, Access::REMOTE_WRITE).unwrap();
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    b.post_recv(5, recv_mr.sge(0, 64)).unwrap();
    let mut post = a.post();
    post.send_inline(b"finished").wr_id(1).signaled().solicited().with_invalidate(remote.rkey());
    post.ring().unwrap();
    let got = right.completions(&left, 1);
    assert_eq!(got[0].invalidated(), Some(remote.rkey()));
    assert!(got[0].solicited);
    // A Write to it is answered with a Terminate, which ends the connection.
    write(&a, 2, source.sge(0, 64), &remote, 0).unwrap();
    let ConnEvent::Disconnected { reason: EndReason::TerminateReceived(info), .. } =
        expect_event(&a)
    else {
        panic!("no Terminate at the left end");
    };
    assert_eq!((info.layer, info.error_type, info.code), (1, 1, 0), "DDP, tagged, invalid STag");
    assert!(matches!(
        expect_event(&b),
        ConnEvent::Disconnected { reason: EndReason::TerminateSent(_), .. }
    ));
    assert_eq!(contents(&remote), [0; 64]);
    drop(remote);
}

#[test]
fn reject_carries_private_data() {
    let (left, right) = endpoints(DriveMode::Inline);
    let listener = right.context.listen(PORT, 1).unwrap();
    let a = left.qp();
    a.connect(server(), param(b"please")).unwrap();
    let request = listener.accept_timeout(TIMEOUT).unwrap();
    request.reject(b"not today").unwrap();
    let ConnEvent::ConnectFailed { error, private_data, .. } = expect_event(&a) else {
        panic!("the connection attempt did not fail");
    };
    assert_eq!((error, private_data.as_slice()), (ConnectError::Rejected, &b"not today"[..]));
    assert_eq!(a.state(), QpState::Error);
}

#[test]
fn dropped_conn_request_is_rejected() {
    let (left, right) = endpoints(DriveMode::Inline);
    let listener = right.context.listen(PORT, 1).unwrap();
    let a = left.qp();
    a.connect(server(), param(b"")).unwrap();
    drop(listener.accept_timeout(TIMEOUT).unwrap());
    assert_eq!(a.wait_established(TIMEOUT), Err(ConnectError::Rejected));
}

#[test]
fn connect_without_a_listener_is_refused() {
    let (left, _right) = endpoints(DriveMode::Inline);
    let a = left.qp();
    a.connect(server(), param(b"")).unwrap();
    assert_eq!(a.wait_established(TIMEOUT), Err(ConnectError::Refused));
}

#[test]
fn second_listener_on_a_port_is_refused() {
    let (_left, right) = endpoints(DriveMode::Inline);
    let first = right.context.listen(PORT, 1).unwrap();
    assert_eq!(right.context.listen(PORT, 1).err(), Some(CmError::PortInUse(PORT)));
    drop(first);
    assert!(right.context.listen(PORT, 1).is_ok());
}

#[test]
fn disconnect_flushes_each_outstanding_request_once() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = connect(&left, &right);
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    for wr_id in 0..100 {
        b.post_recv(wr_id, recv_mr.sge(0, 64)).unwrap();
    }
    send(&a, 7, b"only one").unwrap();
    assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
    a.disconnect().unwrap();
    let wcs = right.completions(&left, 100);
    assert_eq!((wcs[0].wr_id, wcs[0].status), (0, WcStatus::Success));
    for (wc, wr_id) in wcs[1..].iter().zip(1..) {
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (wr_id, WcStatus::Flushed, WcOpcode::Recv));
    }
    assert!(matches!(expect_event(&a), ConnEvent::Disconnected { reason: EndReason::Local, .. }));
    assert!(matches!(
        expect_event(&b),
        ConnEvent::Disconnected { reason: EndReason::PeerClosed, .. }
    ));
    drive_for(&left.context, &right.context, Duration::from_millis(20));
    assert_eq!(poll_once(&right.cq), [], "each request completes once");
}

#[test]
fn requests_still_in_the_ring_at_disconnect_are_flushed() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, _b) = connect(&left, &right);
    let source = left.mr(1 << 20, Access::LOCAL_READ);
    let remote = right.mr(1 << 20, Access::REMOTE_WRITE);
    // In the send ring only: nothing is driven between these calls and the disconnect.
    for wr_id in 0..100 {
        write(&a, wr_id, source.sge(0, 1 << 20), &remote, 0).unwrap();
    }
    a.disconnect().unwrap();
    let wcs = left.completions(&right, 100);
    let ids: Vec<u64> = wcs.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, (0..100).collect::<Vec<_>>());
    assert!(wcs.iter().any(|wc| wc.status == WcStatus::Flushed));
    let done = wcs.iter().take_while(|wc| wc.status == WcStatus::Success).count();
    assert!(wcs[done..].iter().all(|wc| wc.status == WcStatus::Flushed));
}

#[test]
fn send_queue_holds_exactly_max_send_wr() {
    let (left, right) = endpoints(DriveMode::Inline);
    let ((a, _b), _) = connect_qps(&right, left.qp_with(5, 1), right.qp_with(1, 1));
    let post_unsignaled = || one(a.post().write_inline(b"", RemoteAddr::default()));
    for round in 0..10 {
        for _ in 0..4 {
            post_unsignaled().unwrap();
        }
        empty_write(&a, round).unwrap();
        assert_eq!(post_unsignaled(), Err(PostError::QueueFull));
        // Polling the completion frees all five entries.
        let wc = left.completions(&right, 1)[0];
        assert_eq!((wc.wr_id, wc.status), (round, WcStatus::Success));
    }
    // A poll frees entries of unsignaled requests as well.
    for _ in 0..1000 {
        drive_until(&left.context, &right.context, || post_unsignaled().is_ok());
    }
}

#[test]
fn cq_overrun_ends_only_its_own_qps() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = connect(&left, &right);
    let small = left.context.create_cq(4).unwrap();
    let options = ferrowarp::QpOptions::new(&small).max_send_wr(64).max_recv_wr(4);
    let over = left.pd.create_qp(&options).unwrap();
    let ((over, _over_peer), _) = connect_qps(&right, over, right.qp());
    for wr_id in 0..16 {
        empty_write(&over, wr_id).unwrap();
    }
    drive_until(&left.context, &right.context, || over.state() == QpState::Error);
    assert!(small.overrun());
    // No completion is lost or repeated: the rest follows as entries are polled.
    let mut wcs = Vec::new();
    drive_until(&left.context, &right.context, || {
        small.poll_with(32, |wc| wcs.push(wc));
        wcs.len() >= 16
    });
    let ids: Vec<u64> = wcs.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, (0..16).collect::<Vec<_>>());
    // The other queue pair is not affected.
    assert_eq!((a.state(), b.state()), (QpState::Rts, QpState::Rts));
    empty_write(&a, 77).unwrap();
    assert_eq!(left.completions(&right, 1)[0].wr_id, 77);
}

#[test]
fn memory_may_be_deregistered_during_writes() {
    let (left, right) = endpoints(DriveMode::Inline);
    for round in 0..20 {
        let (a, _b) = connect(&left, &right);
        let source = left.mr(1 << 18, Access::LOCAL_READ);
        let remote = right.mr(1 << 18, Access::REMOTE_WRITE);
        for wr_id in 0..8 {
            write(&a, wr_id, source.sge(0, 1 << 18), &remote, 0).unwrap();
        }
        for _ in 0..round * 5 {
            left.context.drive();
            right.context.drive();
        }
        if round % 2 == 0 {
            // The sink: the peer receives a Terminate.
            drop(remote);
        } else {
            // The source: the request fails locally.
            drop(source);
        }
        let wcs = left.completions(&right, 8);
        assert!(wcs.iter().all(|wc| wc.wr_id < 8));
    }
}

#[test]
fn many_queue_pairs_share_a_context() {
    const COUNT: usize = 200;
    let (left, right) = endpoints(DriveMode::Inline);
    let pairs: Vec<_> = (0..COUNT).map(|_| connect(&left, &right)).collect();
    let source = left.mr(COUNT * 4096, Access::LOCAL_READ);
    let remote = right.mr(COUNT * 4096, Access::REMOTE_WRITE);
    source.write(0, &pattern(COUNT * 4096, 3));
    for round in 0..4_u64 {
        for (index, (a, _)) in (0_u64..).zip(&pairs) {
            let offset = index * 4096 + round * 1024;
            let sge = source.sge(usize::try_from(offset).unwrap(), 1024);
            write(a, index, sge, &remote, offset).unwrap();
        }
    }
    let wcs = left.completions(&right, COUNT * 4);
    assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success));
    drive_until(&left.context, &right.context, || contents(&remote) == pattern(COUNT * 4096, 3));
}

#[test]
fn completed_work_arrives_after_the_context_is_dropped() {
    let mut lingering = config(1, DriveMode::Inline);
    (lingering.linger, lingering.drop_linger) = (TIMEOUT, TIMEOUT);
    let (left, right) = ring_pair(lingering, config(2, DriveMode::Inline)).unwrap();
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    let (a, b) = connect(&left, &right);
    let len = 1 << 20;
    let remote = right.mr(len, Access::REMOTE_WRITE);
    let source = left.mr(len, Access::LOCAL_READ);
    source.write(0, &pattern(len, 1));
    write(&a, 1, source.sge(0, 1 << 20), &remote, 0).unwrap();
    assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
    let start = Instant::now();
    drop((a, source, left));
    // It lingers until the peer has acknowledged everything, not for the configured time.
    assert!(start.elapsed() < TIMEOUT / 2, "lingering took {:?}", start.elapsed());
    assert!(matches!(
        expect_event(&b),
        ConnEvent::Disconnected { reason: EndReason::PeerClosed, .. }
    ));
    assert_eq!(contents(&remote), pattern(len, 1));
}

#[test]
fn handles_fail_after_close() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = connect(&left, &right);
    let mr = left.mr(64, Access::ALL);
    left.context.clone().close();
    assert_eq!(a.state(), QpState::Error);
    assert_eq!(send(&a, 1, b""), Err(PostError::Ended(Ended::Closed)));
    assert_eq!(a.disconnect(), Err(CmError::Ended(Ended::Closed)));
    assert_eq!(left.context.listen(PORT, 1).err(), Some(CmError::Ended(Ended::Closed)));
    assert!(!left.context.drive());
    assert!(matches!(expect_event(&b), ConnEvent::Disconnected { .. }));
    drop(mr);
}

#[test]
fn region_of_another_pd_is_refused() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, _b) = connect(&left, &right);
    let foreign = right.context.alloc_pd();
    let remote =
        foreign.register(right.context.allocate(64).unwrap(), Access::REMOTE_WRITE).unwrap();
    let source = left.mr(64, Access::LOCAL_READ);
    write(&a, 1, source.sge(0, 64), &remote, 0).unwrap();
    assert!(matches!(
        expect_event(&a),
        ConnEvent::Disconnected { reason: EndReason::TerminateReceived(_), .. }
    ));
}

#[test]
fn connect_to_an_absent_host_is_reported_as_unreachable() {
    let (left, right) = endpoints(DriveMode::Inline);
    let a = left.qp();
    let nobody = std::net::SocketAddr::new(address(77), PORT);
    a.connect(nobody, param(b"")).unwrap();
    assert_eq!(a.wait_established(TIMEOUT), Err(ConnectError::Unreachable));
    drop(right);
}

#[test]
fn disconnect_while_connecting_flushes_receives() {
    let (left, right) = endpoints(DriveMode::Inline);
    let a = left.qp();
    let recv_mr = left.mr(64, Access::LOCAL_WRITE);
    a.post_recv(3, recv_mr.sge(0, 64)).unwrap();
    a.connect(std::net::SocketAddr::new(address(77), PORT), param(b"")).unwrap();
    a.disconnect().unwrap();
    assert_eq!(a.state(), QpState::Error);
    let wcs = left.completions(&right, 1);
    assert_eq!((wcs[0].wr_id, wcs[0].status), (3, WcStatus::Flushed));
    assert!(a.wait_established(TIMEOUT).is_err());
}

#[test]
fn transfers_work_at_every_mtu_and_checksum_mode() {
    for (mtu, checksum) in [(9000, false), (1500, true), (9000, true), (576, true), (256, true)] {
        let config = |host| {
            let mut config = config(host, DriveMode::Inline);
            (config.mtu, config.checksum) = (mtu, checksum.then_some(ChecksumMode::Software));
            config
        };
        let (left, right) = ring_pair(config(1), config(2)).unwrap();
        let (left, right) = (Endpoint::new(left), Endpoint::new(right));
        let (a, _b) = connect(&left, &right);
        let len = 1 << 20;
        let source = left.mr(len, Access::LOCAL_READ);
        let remote = right.mr(len, Access::REMOTE_WRITE | Access::REMOTE_READ);
        let back = left.mr(len, Access::LOCAL_WRITE);
        source.write(0, &pattern(len, 5));
        write(&a, 1, source.sge(0, 1 << 20), &remote, 0).unwrap();
        read(&a, 2, back.sge(0, 1 << 20), &remote, 0).unwrap();
        let wcs = left.completions(&right, 2);
        assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success));
        assert_eq!(contents(&back), pattern(len, 5), "mtu {mtu}, checksum {checksum}");
    }
}

#[test]
fn opening_a_single_ring_is_refused() {
    let opened = ferrowarp::Context::open(config(1, DriveMode::Inline));
    assert!(matches!(opened.err(), Some(ferrowarp::OpenError::Pair)));
    let mut bad = config(1, DriveMode::Inline);
    bad.addresses[0].prefix_len = 33;
    assert!(matches!(
        ferrowarp::Context::open(bad).err(),
        Some(ferrowarp::OpenError::Prefix { prefix_len: 33, .. })
    ));
}

#[test]
fn mtu_below_the_minimum_is_refused_with_the_minimum() {
    let config = |host, mtu| {
        let mut config = config(host, DriveMode::Inline);
        config.mtu = mtu;
        config
    };
    let open = |mtu| ring_pair(config(1, mtu), config(2, mtu)).map(|_| ());
    let error = open(255).unwrap_err().to_string();
    assert!(error.contains("256"), "{error}");
    assert!(open(256).is_ok());
    let mut bad = config(1, 1279);
    let ip = "2001:2::1".parse().unwrap();
    bad.addresses.push(ferrowarp::InterfaceAddress { ip, prefix_len: 64 });
    let error = ring_pair(bad, config(2, 1279)).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("1280"), "{error}");
}

/// The passive side sends first, which the peer-to-peer model allows.
#[test]
fn responder_may_send_first() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = connect(&left, &right);
    a.post_recv(1, []).unwrap();
    send(&b, 2, b"").unwrap();
    assert_eq!(outcomes(&left.completions(&right, 1)), [(1, WcStatus::Success)]);
    assert_eq!(outcomes(&right.completions(&left, 1)), [(2, WcStatus::Success)]);
}
