//! Registered memory, memory windows, shared receive queues and resource limits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferrowarp::{
    Access, ConnEvent, CreateError, DriveMode, EndReason, MemoryError, PostError, QpOptions,
    RemoteAddr, Wc, WcOpcode, WcStatus,
};

use crate::support::*;

/// One thread drives both ends and keeps Writes outstanding, another revokes the region: after the
/// call returns no byte changes.
// req-test: DDP-210, RDMAP-281
#[test]
fn nothing_is_written_after_revoke_returns() {
    const LEN: usize = 1 << 16;
    const LEN_32: u32 = 1 << 16;
    let (left, right) = endpoints(DriveMode::Inline);
    let mut written = 0;
    for round in 0..12_u64 {
        let (a, _b) = connect(&left, &right);
        let source = left.mr(LEN, Access::LOCAL_READ);
        let sink = right.mr(LEN, Access::REMOTE_WRITE);
        let over = AtomicBool::new(false);
        let remote = sink.remote();
        let post = |number: u64| {
            // Each Write carries different bytes.
            source.fill(0, LEN, number.to_le_bytes()[0]);
            let source = source.sge(0, LEN_32);
            a.post().write(source, remote).wr_id(number).signaled().ring().unwrap();
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..4).for_each(post);
                let mut wcs = [Wc::default(); 32];
                let mut number = 4_u64;
                while !over.load(Ordering::Relaxed) {
                    let found = left.cq.poll(&mut wcs);
                    right.context.drive();
                    for _ in found {
                        number += 1;
                        // Flushed once a Write after the revocation has ended the connection.
                        post(number);
                    }
                }
            });
            // Half of the rounds revoke while Writes are being placed, however long the first one
            // takes; the others may revoke before it.
            let start = Instant::now();
            while round % 2 == 1 && sink.load_last(LEN - 1) == 0 {
                assert!(start.elapsed() < TIMEOUT, "no Write is placed");
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_micros(300 + 397 * round));
            sink.revoke();
            let then = contents(&sink);
            std::thread::sleep(Duration::from_millis(3));
            let now = contents(&sink);
            over.store(true, Ordering::Relaxed);
            assert!(then == now, "round {round}: bytes changed after the revocation");
            written += u32::from(then.iter().any(|&byte| byte != 0));
        });
        drop(a);
        drive_until(&left.context, &right.context, || right.context.connection_count() == 0);
    }
    assert!(written >= 6, "Writes were placed in {written} rounds only");
}

// req-test: RDMAP-007, RDMAP-008, RDMAP-043, RDMAP-280
#[test]
fn stag_is_valid_until_revoked_and_enable_gives_a_new_one() {
    let (left, right) = endpoints(DriveMode::Inline);
    let source = left.mr(64, Access::ALL);
    let mut sink = right.mr(64, Access::ALL);
    for round in 0..3_u64 {
        let (a, b) = connect(&left, &right);
        for number in 0..100 {
            write(&a, number, source.sge(0, 8), &sink, 0).unwrap();
            read(&a, number, source.sge(8, 8), &sink, 0).unwrap();
            let wcs = left.completions(&right, 2);
            assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success));
        }
        let old = sink.remote();
        let new = sink.enable(Access::REMOTE_READ | Access::REMOTE_WRITE);
        assert_eq!((sink.rkey(), new == old.rkey), (new, false));
        write(&a, 201, source.sge(0, 8), &sink, 0).unwrap();
        a.post().write(source.sge(0, 8), old).wr_id(200).signaled().ring().unwrap();
        let ConnEvent::Disconnected { reason, .. } = expect_event(&b) else { panic!() };
        assert!(matches!(reason, EndReason::TerminateSent(_)), "round {round}: {reason:?}");
        left.completions(&right, 2);
        drop((a, b));
    }
}

// req-test: DDP-198, RDMAP-325, RDMAP-326
#[test]
fn qp_bound_region_is_refused_to_other_qps() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, _a) = connect(&left, &right);
    let (b, _b) = connect(&left, &right);
    let buffer = left.context.allocate(64).unwrap();
    let mine = left.pd.register_for(&a, buffer, Access::ALL).unwrap();
    let sink = right.mr(64, Access::ALL);
    write(&a, 1, mine.sge(0, 8), &sink, 0).unwrap();
    assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
    write(&b, 2, mine.sge(0, 8), &sink, 0).unwrap();
    assert_eq!(left.completions(&right, 1)[0].status, WcStatus::LocalProtection);
}

// req-test: DDP-213, DDP-215
#[test]
fn register_for_a_qp_of_another_pd_or_context_is_refused() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = connect(&left, &right);
    let buffer = || left.context.allocate(64).unwrap();
    let other = left.context.alloc_pd();
    for (pd, qp) in [(&other, &a), (&left.pd, &b)] {
        let refused = pd.register_for(qp, buffer(), Access::ALL).unwrap_err();
        assert!(matches!(refused.error, MemoryError::Foreign), "{refused}");
        assert_eq!(refused.buffer.len(), 64);
    }
    left.pd.register_for(&a, buffer(), Access::ALL).unwrap();
}

/// The window is revoked while the request to bind it is queued behind a Read, by a fence: the bind
/// fails, and the STag is not valid.
#[test]
fn revoked_window_is_not_bound_by_a_queued_request() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, _b) = connect(&left, &right);
    let region = left.mr(4096, Access::ALL);
    let library = right.mr(64, Access::ALL);
    let mut window = left.pd.allocate_window().unwrap();
    read(&a, 1, region.sge(0, 8), &library, 0).unwrap();
    let bind = window.bind(&region, 0, 64, Access::REMOTE_WRITE, true);
    a.post().bind(bind).fence().wr_id(2).signaled().ring().unwrap();
    left.context.drive();
    assert!(!window.revoke());
    let ends: Vec<_> = left.completions(&right, 2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [(1, WcStatus::Success), (2, WcStatus::Bind)]);
    assert_eq!(region.window_count(), 0);
    // A new request binds it.
    let (a, _b) = connect(&left, &right);
    let before = window.rkey();
    let bind = window.bind(&region, 0, 64, Access::REMOTE_WRITE, true);
    assert_ne!(window.rkey(), before);
    a.post().bind(bind).wr_id(3).signaled().ring().unwrap();
    assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
    assert_eq!(region.window_count(), 1);
}

#[test]
fn window_ends_by_revoke_invalidate_region_or_drop() {
    let (left, right) = endpoints(DriveMode::Inline);
    let source = left.mr(64, Access::ALL);
    source.write(0, b"through the window");
    let mut window = right.pd.allocate_window().unwrap();
    for case in 0..4 {
        let (a, b) = connect(&left, &right);
        let region = right.mr(4096, Access::ALL);
        let rights = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let bind = window.bind(&region, 100, 50, rights, true);
        b.post().bind(bind).wr_id(1).signaled().ring().unwrap();
        let wc = right.completions(&left, 1)[0];
        assert_eq!((wc.opcode, wc.status), (WcOpcode::Bind, WcStatus::Success));
        assert_eq!(region.window_count(), 1);
        let stag = window.rkey();
        let write_into = |wr_id| {
            let remote = RemoteAddr { addr: 32, rkey: stag };
            a.post().write(source.sge(0, 18), remote).wr_id(wr_id).signaled().ring().unwrap();
        };
        write_into(2);
        drive_until(&left.context, &right.context, || region.load_last(149) == b'w');
        match case {
            0 => assert!(window.revoke()),
            1 => {
                b.post().invalidate(stag).wr_id(4).signaled().ring().unwrap();
                assert_eq!(right.completions(&left, 1)[0].opcode, WcOpcode::Invalidate);
            }
            2 => region.revoke(),
            _ => drop(std::mem::replace(&mut window, right.pd.allocate_window().unwrap())),
        }
        assert_eq!(region.window_count(), 0);
        region.fill(0, 4096, 0);
        write_into(3);
        let ConnEvent::Disconnected { reason, .. } = expect_event(&b) else { panic!() };
        assert!(matches!(reason, EndReason::TerminateSent(_)), "case {case}: {reason:?}");
        assert!(contents(&region).iter().all(|&byte| byte == 0));
        left.completions(&right, 2);
        drop((a, b));
    }
}

#[test]
fn srq_serves_its_qps_and_raises_the_limit_event() {
    let (left, right) = endpoints(DriveMode::Inline);
    let recv_mr = right.mr(4096, Access::LOCAL_WRITE);
    let srq = right.pd.create_srq(8).unwrap();
    let place = |wr_id: u64| 64 * usize::try_from(wr_id % 64).unwrap();
    let post = |wr_id: u64| srq.post_recv(wr_id, recv_mr.sge(place(wr_id), 64));
    (0..8).for_each(|wr_id| post(wr_id).unwrap());
    assert_eq!(post(8), Err(PostError::QueueFull));
    let sharing = || {
        let options = QpOptions::new(&right.cq).max_send_wr(8).max_recv_wr(8);
        right.pd.create_qp(&options.srq(&srq)).unwrap()
    };
    let (first, second) = (sharing(), sharing());
    let refused = first.post_recv(0, recv_mr.sge(0, 64));
    assert_eq!(refused, Err(PostError::SharedReceives));
    let ((a, first), _) = connect_qps(&right, left.qp(), first);
    let ((b, second), _) = connect_qps(&right, left.qp(), second);
    srq.arm(4).unwrap();
    // No effect while receives are reposted in time.
    srq.cap(6).unwrap();
    let mut next = 8;
    for round in 0..50 {
        send(&a, 1, b"from a").unwrap();
        send(&b, 2, b"from b").unwrap();
        left.completions(&right, 2);
        let wcs = right.completions(&left, 2);
        for wc in &wcs {
            assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 6));
            let mut bytes = [0; 6];
            recv_mr.read(place(wc.wr_id), &mut bytes);
            let expected = if wc.qp == first.id() { b"from a" } else { b"from b" };
            assert_eq!((&bytes, round), (expected, round));
            // An entry is free as soon as its completion has been polled.
            post(next).unwrap();
            next += 1;
        }
    }
    assert_eq!(srq.next_limit(), None, "the queue never held fewer than the limit");
    for wr_id in 0..5 {
        send(&a, wr_id, b"flood").unwrap();
    }
    right.completions(&left, 5);
    let limit = srq.next_limit().expect("three are left");
    assert_eq!((limit.left, limit.most.map(|(qp, _)| qp)), (3, Some(first.id())));
    // The sixth receive is the last that one queue pair may take; the rest is for the other one.
    for wr_id in 5..7 {
        send(&a, wr_id, b"flood").unwrap();
    }
    right.completions(&left, 1);
    let ConnEvent::Disconnected { reason, .. } = expect_event(&first) else { panic!() };
    assert_eq!(reason.error(), Some((1, 2, 2)));
    send(&b, 8, b"from b").unwrap();
    assert_eq!(right.completions(&left, 1)[0].status, WcStatus::Success);
    drop((first, second));
    drop(srq);
}

// req-test: DDP-213, DDP-215, RDMAP-285, RDMAP-292
#[test]
fn objects_of_another_context_are_refused() {
    let (left, right) = endpoints(DriveMode::Inline);
    let create = |pd: &ferrowarp::Pd, send: &Endpoint, recv: &Endpoint| {
        let (send_cq, recv_cq) = (&send.cq, &recv.cq);
        let options = QpOptions::new(send_cq).recv_cq(recv_cq).max_send_wr(1).max_recv_wr(1);
        pd.create_qp(&options).err()
    };
    assert_eq!(create(&left.pd, &left, &left), None);
    assert_eq!(create(&left.pd, &right, &left), Some(CreateError::OtherContext));
    assert_eq!(create(&left.pd, &left, &right), Some(CreateError::OtherContext));
    assert_eq!(create(&left.pd, &right, &right), Some(CreateError::OtherContext));
    let srq = right.pd.create_srq(1).unwrap();
    let (send_cq, recv_cq) = (&left.cq, &left.cq);
    let options = QpOptions::new(send_cq).recv_cq(recv_cq).max_send_wr(1).max_recv_wr(1);
    let sharing = left.pd.create_qp(&options.srq(&srq));
    assert_eq!(sharing.err(), Some(CreateError::OtherContext));
    let srq = left.context.alloc_pd().create_srq(1).unwrap();
    let sharing = left.pd.create_qp(&options.srq(&srq));
    assert_eq!(sharing.err(), Some(CreateError::OtherDomain));
    // An STag of the other context is invalid here.
    let (a, _b) = connect(&left, &right);
    let foreign = right.mr(64, Access::ALL);
    write(&a, 1, foreign.sge(0, 8), &foreign, 0).unwrap();
    assert_eq!(left.completions(&right, 1)[0].status, WcStatus::LocalProtection);
}

#[test]
fn long_message_holds_its_srq_buffer_over_many_polls() {
    const LEN: u32 = 1 << 20;
    let (left, right) = endpoints(DriveMode::Inline);
    let source = left.mr(1 << 20, Access::LOCAL_READ);
    let bytes = pattern(1 << 20, 7);
    source.write(0, &bytes);
    let recv_mr = right.mr(1 << 20, Access::LOCAL_WRITE);
    let srq = right.pd.create_srq(1).unwrap();
    let options = QpOptions::new(&right.cq).max_send_wr(8).max_recv_wr(8);
    let sharing = right.pd.create_qp(&options.srq(&srq)).unwrap();
    let ((a, b), _) = connect_qps(&right, left.qp(), sharing);
    for wr_id in 0..3 {
        recv_mr.fill(0, 1 << 20, 0);
        srq.post_recv(wr_id, recv_mr.sge(0, LEN)).unwrap();
        a.post().send(source.sge(0, LEN)).wr_id(wr_id).signaled().ring().unwrap();
        let mut wcs = Vec::new();
        drive_until(&left.context, &right.context, || {
            // The queue pair also sends meanwhile.
            let _ = empty_write(&b, 99);
            right.cq.poll_with(32, |wc| wcs.push(wc));
            wcs.iter().any(|wc| wc.opcode == WcOpcode::Recv)
        });
        let wc = wcs.iter().find(|wc| wc.opcode == WcOpcode::Recv).unwrap();
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (wr_id, WcStatus::Success, LEN));
        assert!(contents(&recv_mr) == bytes);
    }
}

/// Asserts that the message of an error names the setting that is the limit.
fn assert_names_setting(message: impl std::fmt::Display, setting: &str) {
    let message = message.to_string();
    assert!(message.contains(setting) && message.contains("raise"), "{message}");
}

#[test]
fn queue_that_is_too_long_is_refused() {
    let mut large = config(1, DriveMode::Inline);
    large.limits.queue_entries_max = u64::MAX;
    let (left, _right) = ring_pair(large, config(2, DriveMode::Inline)).unwrap();
    let (pd, cq) = (left.alloc_pd(), left.create_cq(4).unwrap());
    for wanted in [(1 << 26) + 1, usize::MAX] {
        let error = CreateError::QueueTooLong { wanted, limit: 1 << 26 };
        let options = QpOptions::new(&cq);
        assert_eq!(pd.create_qp(&options.max_send_wr(wanted)).err(), Some(error));
        assert_eq!(pd.create_qp(&options.max_recv_wr(wanted)).err(), Some(error));
        assert_eq!(pd.create_srq(wanted).err(), Some(error));
        assert!(error.to_string().contains("67108864 or fewer"), "{error}");
    }
}

// req-test: DDP-214, DDP-217, RDMAP-291, RDMAP-294, RDMAP-295
#[test]
fn exhausted_limit_is_named_and_released_entries_are_reusable() {
    let mut small = config(1, DriveMode::Inline);
    small.qps_max = 64;
    small.regions_max = 8;
    small.limits.registered_bytes_max = 8192;
    small.limits.cq_entries_max = 100;
    small.limits.queue_entries_max = 1000;
    let (left, _right) = ring_pair(small, config(2, DriveMode::Inline)).unwrap();
    let pd = left.alloc_pd();

    let cq = left.create_cq(60).unwrap();
    let error = left.create_cq(60).err().unwrap();
    assert!(matches!(error, CreateError::Limit(_)));
    assert_names_setting(error, "`limits.cq_entries_max`");
    for _ in 0..2 {
        assert!(left.create_cq(40).is_ok());
    }

    let register = |len| pd.register(left.allocate(len).unwrap(), Access::ALL);
    let half = register(4096).unwrap();
    let mut buffer = left.allocate(8192).unwrap();
    buffer[8188..].copy_from_slice(b"mine");
    let refused = pd.register(buffer, Access::ALL).unwrap_err();
    assert!(matches!(refused.error, MemoryError::Limit(_)));
    assert_names_setting(&refused, "`limits.registered_bytes_max`");
    drop(half);
    // The error returns the buffer, which can be registered once the limit allows.
    let whole = pd.register(refused.buffer, Access::ALL).unwrap();
    let mut last = [0; 4];
    whole.read(8188, &mut last);
    assert_eq!(&last, b"mine");
    drop(whole);
    let windows: Vec<_> = (0..8).map(|_| pd.allocate_window().unwrap()).collect();
    assert_names_setting(register(1).unwrap_err(), "`regions_max`");
    drop(windows);
    drop(register(1).unwrap());

    let options = |max_send_wr| QpOptions::new(&cq).max_send_wr(max_send_wr).max_recv_wr(1);
    let Err(error) = pd.create_qp(&options(1000)) else { panic!("1001 entries") };
    assert!(matches!(error, CreateError::Limit(_)));
    assert_names_setting(error, "`limits.queue_entries_max`");
    assert_names_setting(pd.create_srq(1001).err().unwrap(), "`limits.queue_entries_max`");
    let qps: Vec<_> = (0..64).map(|_| pd.create_qp(&options(4)).unwrap()).collect();
    assert_names_setting(pd.create_qp(&options(4)).err().unwrap(), "`qps_max`");
    drop(qps);
    drop(pd.create_qp(&options(999)).unwrap());
}
