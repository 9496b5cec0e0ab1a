//! Connection setup and teardown of every kind, between two engines in virtual time.

use std::cell::Cell;
use std::rc::Rc;

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::cm::{
    CmError, ConnEvent, ConnInfo, ConnParam, ConnectError, EndReason, ReadDepths, RequestId,
};
use ferrowarp_proto::verbs::qp::{QpInit, QpState};
use ferrowarp_proto::verbs::wc::{CqId, QpId, Wc, WcOpcode, WcStatus};
use ferrowarp_proto::verbs::wr::{AtomicOp, Operation, Payload, PostError, RecvWr, SendWr, Sge};
use ferrowarp_tests::conn_param;
use ferrowarp_tests::longest_poll::LongestPoll;
use ferrowarp_tests::sim::link::Faults;
use ferrowarp_tests::sim::pairs::{self, CQ, PD, PORT, connect_new, event, qp_init, send};
use ferrowarp_tests::sim::world::{World, WorldOptions};

fn no_event(world: &mut World, end: usize) {
    let found = world.run_until(SECOND, |world| world.ends[end].engine.next_event().is_some());
    assert!(!found, "an event that nobody expected");
}

fn completions(world: &mut World, end: usize, count: usize) -> Vec<Wc> {
    completions_of(world, end, CQ, count)
}

fn completions_of(world: &mut World, end: usize, cq: CqId, count: usize) -> Vec<Wc> {
    let mut found = Vec::new();
    world.run_until(30 * SECOND, |world| {
        found.extend(std::iter::from_fn(|| world.ends[end].queues.poll(cq)));
        found.len() >= count
    });
    assert_eq!(found.len(), count, "{found:?}");
    found
}

fn request(world: &mut World) -> (RequestId, ConnInfo) {
    match event(world, 1) {
        ConnEvent::ConnectRequest { listener, request, offer } if listener.port() == PORT => {
            (request, *offer)
        }
        other => panic!("unexpected {other:?}"),
    }
}

fn connect_with(world: &mut World, param: &ConnParam) -> QpId {
    let (now, remote) = (world.now, world.socket(1, PORT));
    let qp = world.ends[0].engine.create_qp(qp_init(16, 16)).unwrap();
    world.ends[0].engine.connect(now, qp, remote, param).unwrap();
    qp
}

/// Connects with default parameters; both queue pairs are ready.
fn connected(world: &mut World) -> [QpId; 2] {
    connected_with(world, &ConnParam::default(), &ConnParam::default())
}

fn connected_with(world: &mut World, ours: &ConnParam, theirs: &ConnParam) -> [QpId; 2] {
    connect_new(world, qp_init(16, 16), &[ours.clone(), theirs.clone()])
}

fn register(world: &World, end: usize, access: Access) -> u32 {
    world.ends[end].arena.register(0, 4096, access, PD)
}

fn sge(lkey: u32, addr: u64, len: u32) -> Sge {
    Sge { addr, len, lkey }
}

fn write(wr_id: u64, rkey: u32, remote: u64) -> SendWr {
    pairs::write(wr_id, &[1, 2, 3, 4], rkey, remote)
}

fn receive(wr_id: u64, lkey: u32, len: u32) -> RecvWr {
    RecvWr { wr_id, sg_list: [sge(lkey, 0, len)].into() }
}

#[test]
fn private_data_and_ird_ord_are_exchanged() {
    let mut world = World::new(&WorldOptions::new(1));
    world.ends[1].engine.listen(PORT, 8).unwrap();
    assert_eq!(world.ends[1].engine.listen(PORT, 8), Err(CmError::PortInUse(PORT)));
    let mut ours = ConnParam::default();
    ours.ird = 3;
    ours.ord = 9;
    ours.private_data = [7; 508].into();
    connect_with(&mut world, &ours);
    let (request, offer) = request(&mut world);
    assert_eq!((offer.ird, offer.ord), (9, 3));
    assert_eq!(offer.private_data[..], [7; 508]);
    let theirs = conn_param(|it| {
        it.ird = 4;
        it.ord = 5;
        it.private_data = (*b"welcome").into();
    });
    let now = world.now;
    let passive = world.ends[1].engine.create_qp(qp_init(16, 16)).unwrap();
    world.ends[1].engine.accept(now, request, passive, &theirs).unwrap();
    assert_eq!(
        world.ends[1].engine.accept(now, request, passive, &theirs),
        Err(CmError::WrongState)
    );
    let ConnEvent::Established { info, .. } = event(&mut world, 0) else { panic!() };
    assert_eq!((info.ird, info.ord, info.crc), (3, 9, true));
    assert_eq!(info.private_data[..], *b"welcome");
    let ConnEvent::Established { info, .. } = event(&mut world, 1) else { panic!() };
    assert_eq!((info.ird, info.ord), (9, 3));
}

#[test]
fn reject_carries_private_data_and_needed_depths() {
    let mut world = World::new(&WorldOptions::new(2));
    world.ends[1].engine.listen(PORT, 8).unwrap();
    let qp = connect_with(&mut world, &ConnParam::default());
    let (request, _) = request(&mut world);
    let now = world.now;
    let needed = ReadDepths { ird: 3, ord: 40 };
    world.ends[1].engine.reject(now, request, needed, b"not today").unwrap();
    let ConnEvent::ConnectFailed { qp: failed, error, private_data, reads } = event(&mut world, 0)
    else {
        panic!()
    };
    assert_eq!((failed, error, reads), (qp, ConnectError::Rejected, Some(needed)));
    assert_eq!(private_data[..], *b"not today");
    let now = world.now;
    assert_eq!(
        world.ends[1].engine.reject(now, request, ReadDepths::default(), b""),
        Err(CmError::Gone)
    );
    let gone = world.run_until(30 * SECOND, |world| {
        world.ends.iter().all(|end| end.engine.connection_count() == 0)
    });
    assert!(gone);
}

#[test]
fn connect_without_listener_is_refused() {
    let mut world = World::new(&WorldOptions::new(3));
    connect_with(&mut world, &ConnParam::default());
    let ConnEvent::ConnectFailed { error, .. } = event(&mut world, 0) else { panic!() };
    assert_eq!(error, ConnectError::Refused);
    assert_eq!(world.ends[0].engine.connection_count(), 0);
}

#[test]
fn connect_to_absent_host_is_reported_as_unreachable() {
    let mut world = World::new(&WorldOptions::new(4));
    let now = world.now;
    let qp = world.ends[0].engine.create_qp(qp_init(16, 16)).unwrap();
    let engine = &mut world.ends[0].engine;
    engine.connect(now, qp, "198.18.0.77:1".parse().unwrap(), &ConnParam::default()).unwrap();
    let ConnEvent::ConnectFailed { error, .. } = event(&mut world, 0) else { panic!() };
    assert_eq!(error, ConnectError::Unreachable);
    assert_eq!(world.ends[0].engine.connection_count(), 0);
    let now = world.now;
    let far = "203.0.113.1:1".parse().unwrap();
    let other = world.ends[0].engine.create_qp(qp_init(16, 16)).unwrap();
    let engine = &mut world.ends[0].engine;
    assert_eq!(engine.connect(now, other, far, &ConnParam::default()), Err(CmError::Unreachable));
}

#[test]
fn backlog_is_bounded_and_drains() {
    let mut world = World::new(&WorldOptions::new(5));
    world.ends[1].engine.listen(PORT, 2).unwrap();
    for _ in 0..3 {
        connect_with(&mut world, &ConnParam::default());
    }
    let first = request(&mut world).0;
    request(&mut world);
    no_event(&mut world, 1);
    assert!(world.ends[1].engine.counters().backlog_overflows > 0);
    let now = world.now;
    world.ends[1].engine.reject(now, first, ReadDepths::default(), b"").unwrap();
    // The third retries and gets a slot.
    request(&mut world);
}

// req-test: DDP-142, RDMAP-240
#[test]
fn disconnect_flushes_each_request_once_and_delivers_completed_sends() {
    let mut world = World::new(&WorldOptions::new(6));
    let [active, passive] = connected(&mut world);
    let stag = register(&world, 1, Access::ALL);
    for wr_id in 0..3 {
        world.ends[1].engine.post_recv(passive, receive(wr_id, stag, 64)).unwrap();
    }
    let ours = register(&world, 0, Access::ALL);
    world.ends[0].engine.post_recv(active, receive(9, ours, 64)).unwrap();
    world.ends[0].engine.post_send(active, send(1, b"last words", None)).unwrap();
    assert_eq!(completions(&mut world, 0, 1)[0].status, WcStatus::Success);
    let now = world.now;
    world.ends[0].engine.disconnect(now, active).unwrap();
    let ConnEvent::Disconnected { reason, .. } = event(&mut world, 0) else { panic!() };
    assert_eq!(reason, EndReason::Local);
    let ConnEvent::Disconnected { reason, .. } = event(&mut world, 1) else { panic!() };
    assert_eq!(reason, EndReason::PeerClosed);
    let flushed = completions(&mut world, 0, 1);
    assert_eq!((flushed[0].wr_id, flushed[0].status), (9, WcStatus::Flushed));
    let received = completions(&mut world, 1, 3);
    let seen: Vec<_> = received.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let flush = WcStatus::Flushed;
    assert_eq!(seen, [(0, WcStatus::Success), (1, flush), (2, flush)]);
    assert_eq!(world.ends[1].arena.read(0, 10), b"last words");
    // Requests posted afterwards are flushed, too.
    assert_eq!(world.ends[0].engine.qp_state(active), QpState::Error);
    world.ends[0].engine.post_send(active, send(5, b"too late", None)).unwrap();
    let late = completions(&mut world, 0, 1);
    assert_eq!((late[0].wr_id, late[0].status), (5, WcStatus::Flushed));
}

// req-test: DDP-140, DDP-143
#[test]
fn refused_access_terminates_both_ends() {
    let mut world = World::new(&WorldOptions::new(7));
    let [active, passive] = connected(&mut world);
    let read_only = register(&world, 1, Access::REMOTE_READ);
    world.ends[0].engine.post_send(active, write(1, read_only, 0)).unwrap();
    let ConnEvent::Disconnected { qp, reason } = event(&mut world, 1) else { panic!() };
    let EndReason::TerminateSent(terminate) = reason else { panic!("{reason:?}") };
    assert_eq!((qp, terminate.cause(), terminate.ddp_header().len()), (passive, (1, 1, 0), 14));
    let ConnEvent::Disconnected { qp, reason } = event(&mut world, 0) else { panic!() };
    assert_eq!((qp, reason), (active, EndReason::TerminateReceived(terminate)));
    assert_eq!(world.ends[1].arena.read(0, 4), [0; 4]);
    // The next connection works.
    let [active, passive] = connected(&mut world);
    let stag = register(&world, 1, Access::ALL);
    world.ends[1].engine.post_recv(passive, receive(1, stag, 64)).unwrap();
    world.ends[0].engine.post_send(active, send(2, b"again", None)).unwrap();
    // The Write completed when its segments were built; nothing else did.
    let statuses: Vec<_> = completions(&mut world, 0, 2).iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::Success; 2]);
    completions(&mut world, 1, 1);
}

#[test]
fn refused_read_completes_with_remote_access_error() {
    let mut world = World::new(&WorldOptions::new(8));
    let [active, _] = connected(&mut world);
    let ours = register(&world, 0, Access::ALL);
    let operation =
        Operation::Read { sink: [sge(ours, 0, 8)].into(), rkey: 0x1234_5678, remote: 0 };
    let read = SendWr { wr_id: 1, operation, signaled: true, fence: false };
    world.ends[0].engine.post_send(active, read).unwrap();
    world.ends[0].engine.post_send(active, write(2, 5, 0)).unwrap();
    let seen: Vec<_> =
        completions(&mut world, 0, 2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    // The Write after it was built, but has no guarantee of placement.
    assert_eq!(seen, [(1, WcStatus::RemoteAccess), (2, WcStatus::Flushed)]);
}

#[test]
fn requests_after_a_flushed_read_are_flushed() {
    // Also with a completion queue of one entry.
    for cq_len in [1, 64] {
        let mut world = World::new(&WorldOptions { cq_len, ..WorldOptions::new(14) });
        let [active, _] = connected(&mut world);
        let ours = register(&world, 0, Access::ALL);
        let stag = register(&world, 1, Access::ALL);
        world.partition();
        let operation = Operation::Read { sink: [sge(ours, 0, 8)].into(), rkey: stag, remote: 0 };
        let read = SendWr { wr_id: 1, operation, signaled: true, fence: false };
        world.ends[0].engine.post_send(active, read).unwrap();
        for wr_id in 2..5 {
            world.ends[0].engine.post_send(active, write(wr_id, stag, 0)).unwrap();
        }
        world.run_for(SECOND);
        let now = world.now;
        world.ends[0].engine.disconnect(now, active).unwrap();
        let ended = completions(&mut world, 0, 4);
        let seen: Vec<_> = ended.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(seen, [1, 2, 3, 4].map(|wr_id| (wr_id, WcStatus::Flushed)));
    }
}

/// On a slow path the data accepted before the close takes longer than the linger time and is still
/// delivered. A peer that stops acknowledging is reset after the linger time.
#[test]
fn linger_lasts_while_the_peer_acknowledges() {
    const LEN: u32 = 1 << 15;
    for is_partitioned in [false, true] {
        let mut world = World::new(&WorldOptions::new(15));
        let [active, _] = connected(&mut world);
        let ours = world.ends[0].arena.register(0, 1 << 20, Access::ALL, PD);
        let stag = world.ends[1].arena.register(0, 1 << 20, Access::ALL, PD);
        world.ends[0].arena.write(0, &[0x5a; LEN as usize]);
        // Bytes per second: 256 KiB take half a minute.
        world.set_faults(Faults { rate: Some(8 * 1024), delay_ns: 1000, ..Faults::NONE });
        let mut accepted = 0;
        for wr_id in 0..8 {
            let payload = Payload::Gather([sge(ours, 0, LEN)].into());
            let remote = wr_id * u64::from(LEN);
            let operation = Operation::Write { payload, rkey: stag, remote };
            let wr = SendWr { wr_id, operation, signaled: true, fence: false };
            world.ends[0].engine.post_send(active, wr).unwrap();
        }
        world.run_until(20 * SECOND, |world| {
            accepted += u64::from(world.ends[0].queues.poll(CQ).is_some());
            accepted == 4
        });
        assert_eq!(accepted, 4);
        let begun = world.now;
        world.ends[0].engine.disconnect(begun, active).unwrap();
        if is_partitioned {
            world.run_for(SECOND);
            world.partition();
        }
        let gone =
            world.run_until(100 * SECOND, |world| world.ends[0].engine.connection_count() == 0);
        assert!(gone);
        let took = world.now.since(begun);
        if is_partitioned {
            assert!((5 * SECOND..10 * SECOND).contains(&took), "{took}");
            continue;
        }
        assert!(took > 6 * SECOND, "a test of a linger time that is not over: {took}");
        let ConnEvent::Disconnected { reason, .. } = event(&mut world, 1) else { panic!() };
        assert_eq!(reason, EndReason::PeerClosed);
        let placed = world.ends[1].arena.read(0, 4 * LEN as usize);
        assert!(placed.iter().all(|&byte| byte == 0x5a));
    }
}

#[test]
fn send_without_or_beyond_a_receive_buffer_terminates() {
    for (len, code, status) in [(None, 2, None), (Some(4), 5, Some(WcStatus::LocalLength))] {
        let mut world = World::new(&WorldOptions::new(9));
        let [active, passive] = connected(&mut world);
        let stag = register(&world, 1, Access::ALL);
        if let Some(len) = len {
            world.ends[1].engine.post_recv(passive, receive(1, stag, len)).unwrap();
        }
        world.ends[0].engine.post_send(active, send(1, b"hello", None)).unwrap();
        let ConnEvent::Disconnected { reason, .. } = event(&mut world, 0) else { panic!() };
        let EndReason::TerminateReceived(info) = reason else { panic!("{reason:?}") };
        assert_eq!((info.layer, info.error_type, info.code), (1, 2, code));
        if let Some(status) = status {
            let failed = completions(&mut world, 1, 1)[0];
            assert_eq!((failed.wr_id, failed.status), (1, status));
        }
    }
}

#[test]
fn unregistered_memory_fails_the_request_and_terminates() {
    let mut world = World::new(&WorldOptions::new(10));
    let [active, _] = connected(&mut world);
    let payload = Payload::Gather([sge(0x5555_5500, 0, 8)].into());
    let operation = Operation::Send { payload, solicited: false, invalidate: None };
    let bad = SendWr { wr_id: 1, operation, signaled: false, fence: false };
    world.ends[0].engine.post_send(active, bad).unwrap();
    let failed = completions(&mut world, 0, 1)[0];
    assert_eq!((failed.status, failed.opcode), (WcStatus::LocalProtection, WcOpcode::Send));
    let ConnEvent::Disconnected { reason, .. } = event(&mut world, 0) else { panic!() };
    assert_eq!(reason, EndReason::LocalError);
    let ConnEvent::Disconnected { reason, .. } = event(&mut world, 1) else { panic!() };
    assert!(matches!(reason, EndReason::TerminateReceived(info) if info.layer == 0));
}

// req-test: RDMAP-286
#[test]
fn cq_overrun_ends_only_its_own_qps() {
    for [full, other_cq] in [[CQ, CqId(1)], [CqId(1), CQ], [CqId(1), CqId(2)]] {
        overrun_cq(full, other_cq);
    }
}

/// Overruns a completion queue, while queue pairs use another, or both.
fn overrun_cq(full: CqId, other_cq: CqId) {
    let options = WorldOptions { cq_len: 2, ..WorldOptions::new(11) };
    let mut world = World::new(&options);
    world.polls = Some(LongestPoll::default());
    let init = QpInit { send_cq: full, recv_cq: full, ..qp_init(16, 16) };
    let [active, _] = connect_new(&mut world, init, &[(); 2].map(|()| ConnParam::default()));
    // Queue pairs with completions of one kind on that queue, and with none.
    let [(sends, _), (receives, _), (other, peer_of_other)] =
        [(full, other_cq), (other_cq, full), (other_cq, other_cq)].map(|(send_cq, recv_cq)| {
            let now = world.now;
            let init = QpInit { send_cq, recv_cq, ..qp_init(16, 16) };
            let remote = world.socket(1, PORT);
            let qp = world.ends[0].engine.create_qp(init).unwrap();
            world.ends[0].engine.connect(now, qp, remote, &ConnParam::default()).unwrap();
            let (request, _) = request(&mut world);
            let passive = world.ends[1].engine.create_qp(qp_init(16, 16)).unwrap();
            let now = world.now;
            world.ends[1].engine.accept(now, request, passive, &ConnParam::default()).unwrap();
            for end in [0, 1] {
                assert!(matches!(event(&mut world, end), ConnEvent::Established { .. }));
            }
            (qp, passive)
        });
    // One whose request is not decided on, and one that is not connected.
    let [connecting, idle] = [(); 2].map(|()| world.ends[0].engine.create_qp(init).unwrap());
    let (now, remote) = (world.now, world.socket(1, PORT));
    world.ends[0].engine.connect(now, connecting, remote, &ConnParam::default()).unwrap();
    let _undecided = request(&mut world);
    // A request of the unaffected queue pair is under way meanwhile.
    let stags = [0, 1].map(|end| register(&world, end, Access::ALL));
    world.ends[0].arena.write(0, &[0x5a; 4096]);
    let under_way = |wr_id, at: u64| SendWr {
        wr_id,
        operation: Operation::Write {
            payload: Payload::Gather([sge(stags[0], at, 2048)].into()),
            rkey: stags[1],
            remote: at,
        },
        signaled: true,
        fence: false,
    };
    world.ends[0].engine.post_recv(other, receive(11, stags[0], 5)).unwrap();
    world.ends[0].engine.post_send(other, under_way(10, 0)).unwrap();
    for wr_id in 0..5 {
        let nothing = Operation::Write { payload: Payload::empty(), rkey: 0, remote: 0 };
        let wr = SendWr { wr_id, operation: nothing, signaled: true, fence: false };
        world.ends[0].engine.post_send(active, wr).unwrap();
    }
    assert_eq!(event(&mut world, 0), ConnEvent::CqOverrun { cq: full });
    for ended in [active, sends, receives] {
        let ConnEvent::Disconnected { qp, reason } = event(&mut world, 0) else { panic!() };
        assert_eq!((qp, reason), (ended, EndReason::LocalError));
    }
    let ConnEvent::ConnectFailed { qp, error, .. } = event(&mut world, 0) else { panic!() };
    assert_eq!((qp, error), (connecting, ConnectError::CqOverrun));
    for qp in [connecting, idle] {
        assert_eq!(world.ends[0].engine.qp_state(qp), QpState::Error);
    }
    let (now, remote) = (world.now, world.socket(1, PORT));
    let again = world.ends[0].engine.connect(now, idle, remote, &ConnParam::default());
    assert_eq!(again, Err(CmError::WrongState));
    // Every request is reported once, in order, as space appears.
    let ids: Vec<_> = completions_of(&mut world, 0, full, 5).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4]);
    // The queue pair that uses the other completion queue goes on, in both directions.
    world.ends[0].engine.post_send(other, under_way(12, 2048)).unwrap();
    let done = completions_of(&mut world, 0, other_cq, 2);
    let done: Vec<_> = done.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [10, 12].map(|wr_id| (wr_id, WcStatus::Success)));
    world.ends[1].engine.post_send(peer_of_other, send(1, b"hello", None)).unwrap();
    let received = completions_of(&mut world, 0, other_cq, 1)[0];
    let expected = (11, WcOpcode::Recv, WcStatus::Success, 5);
    assert_eq!((received.wr_id, received.opcode, received.status, received.byte_len), expected);
    assert_eq!(world.ends[0].arena.read(0, 5), b"hello");
    let placed = world.run_until(30 * SECOND, |world| {
        world.ends[1].arena.read(0, 4096).iter().all(|&byte| byte == 0x5a)
    });
    assert!(placed);
    assert_eq!(world.ends[0].engine.qp_state(other), QpState::Rts);
    assert_eq!(world.ends[1].engine.qp_state(peer_of_other), QpState::Rts);
}

#[test]
fn reads_and_atomic_operations_need_ord() {
    let mut world = World::new(&WorldOptions::new(12));
    let mut none = ConnParam::default();
    none.ird = 0;
    none.ord = 0;
    let [active, _] = connected_with(&mut world, &none, &none);
    let operation = Operation::Read { sink: [Sge::default()].into(), rkey: 1, remote: 0 };
    let read = SendWr { wr_id: 1, operation, signaled: true, fence: false };
    let engine = &mut world.ends[0].engine;
    assert_eq!(engine.post_send(active, read), Err(PostError::NoReads));
    let (op, sink) = (AtomicOp::swap(1), Sge { len: 8, ..Sge::default() });
    let operation = Operation::Atomic { op, sink, rkey: 1, remote: 8 };
    let atomic = SendWr { wr_id: 1, operation, signaled: true, fence: false };
    assert_eq!(engine.post_send(active, atomic), Err(PostError::NoReads));
    for wr_id in 0..16 {
        engine.post_send(active, write(wr_id, 1, 0)).unwrap();
    }
    assert_eq!(engine.post_send(active, write(16, 1, 0)), Err(PostError::QueueFull));
}

// req-test: DDP-021, DDP-032, RDMAP-252, MPA-148
#[test]
fn lost_peer_times_out_and_work_is_flushed() {
    let mut world = World::new(&WorldOptions::new(13));
    let [active, _] = connected(&mut world);
    let ours = register(&world, 0, Access::ALL);
    world.partition();
    let operation = Operation::Read { sink: [sge(ours, 0, 8)].into(), rkey: 1, remote: 0 };
    let read = SendWr { wr_id: 1, operation, signaled: true, fence: false };
    world.ends[0].engine.post_send(active, read).unwrap();
    let mut seen = None;
    world.run_until(300 * SECOND, |world| {
        seen = seen.take().or_else(|| world.ends[0].engine.next_event());
        seen.is_some()
    });
    let Some(ConnEvent::Disconnected { reason, .. }) = seen else { panic!("{seen:?}") };
    assert_eq!((reason, reason.error()), (EndReason::TimedOut, Some((2, 0, 1))));
    assert_eq!(completions(&mut world, 0, 1)[0].status, WcStatus::Flushed);
    assert_eq!(world.ends[0].engine.connection_count(), 0);
}

// req-test: RDMAP-322
#[test]
fn corruption_missed_by_tcp_is_caught_by_the_mpa_crc() {
    let caught = Rc::new(Cell::new(0));
    for seed in 0..40 {
        let faults = Faults { corrupt: 0.05, delay_ns: 1000, ..Faults::default() };
        let options = WorldOptions { faults, repair_checksums: true, ..WorldOptions::new(seed) };
        let mut world = World::new(&options);
        world.clear_faults();
        let [active, _] = connected(&mut world);
        let stag = world.ends[1].arena.register(0, 1 << 20, Access::ALL, PD);
        let ours = world.ends[0].arena.register(0, 1 << 20, Access::ALL, PD);
        world.ends[0].arena.write(0, &[0x5a; 1 << 18]);
        world.set_faults(faults);
        for wr_id in 0..8 {
            let payload = Payload::Gather([sge(ours, 0, 1 << 15)].into());
            let remote = wr_id << 15;
            let operation = Operation::Write { payload, rkey: stag, remote };
            let wr = SendWr { wr_id, operation, signaled: true, fence: false };
            world.ends[0].engine.post_send(active, wr).unwrap();
        }
        world.run_until(SECOND, |world| {
            if matches!(
                world.ends[1].engine.next_event(),
                Some(ConnEvent::Disconnected { reason: EndReason::TerminateSent(info), .. })
                    if (info.layer, info.error_type, info.code) == (2, 0, 2)
            ) {
                caught.set(caught.get() + 1);
            }
            false
        });
        let placed = world.ends[1].arena.read(0, 1 << 18);
        assert!(placed.iter().all(|&byte| byte == 0x5a || byte == 0), "seed {seed}");
    }
    assert!(caught.get() > 20, "only {} of 40 runs saw a damaged FPDU", caught.get());
}
