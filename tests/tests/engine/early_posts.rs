//! Requests posted before the connection, and after its end.

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam};
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wc::{QpId, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, SendWr, Sge};
use ferrowarp_tests::conn_param;
use ferrowarp_tests::sim::pairs::{
    CQ, PD, PORT, completions, event, handshake, post, qp_init, receive, send, write,
};
use ferrowarp_tests::sim::world::{World, WorldOptions};

fn queue_pairs(world: &mut World) -> [QpId; 2] {
    [0, 1].map(|end| world.ends[end].engine.create_qp(qp_init(8, 8)).unwrap())
}

fn statuses(world: &mut World, end: usize, count: usize) -> Vec<(u64, WcStatus)> {
    completions(world, end, CQ, count).iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

#[test]
fn requests_of_both_ends_wait_for_the_connection() {
    let mut world = World::new(&WorldOptions::new(41));
    let qps = queue_pairs(&mut world);
    for (end, qp) in world.ends.iter_mut().zip(qps) {
        let stag = end.arena.register(0, 4096, Access::ALL, PD);
        for wr_id in 0..4 {
            end.engine.post_recv(qp, receive(wr_id, stag, 64 * wr_id, 64)).unwrap();
        }
    }
    for wr_id in 10..12 {
        (0..2).for_each(|end| post(&mut world, end, qps[end], send(wr_id, b"early", None)));
    }
    world.ends[1].engine.listen(PORT, 1).unwrap();
    let (now, remote) = (world.now, world.socket(1, PORT));
    world.ends[0].engine.connect(now, qps[0], remote, &ConnParam::default()).unwrap();
    assert_eq!(world.ends[0].engine.qp_state(qps[0]), QpState::Connecting);
    post(&mut world, 0, qps[0], send(12, b"connecting", None));
    let ConnEvent::ConnectRequest { request, .. } = event(&mut world, 1) else { panic!() };
    assert!((0..2).all(|end| world.ends[end].queues.poll(CQ).is_none()), "nothing is sent before");
    let now = world.now;
    world.ends[1].engine.accept(now, request, qps[1], &ConnParam::default()).unwrap();
    for (end, received) in [(0, 2), (1, 3)] {
        let found = completions(&mut world, end, CQ, 5);
        assert!(found.iter().all(|wc| wc.status == WcStatus::Success), "{found:?}");
        let (recvs, sends): (Vec<_>, Vec<_>) =
            found.iter().map(|wc| wc.wr_id).partition(|&wr_id| wr_id < 10);
        assert_eq!(recvs, (0..received).collect::<Vec<_>>());
        assert_eq!(sends, (10..10 + 5 - received).collect::<Vec<_>>());
    }
    assert_eq!(world.ends[1].arena.read(128, 10), b"connecting");
}

#[test]
fn early_request_without_a_right_to_it_is_reported_in_its_place() {
    let mut world = World::new(&WorldOptions::new(42));
    let qps = queue_pairs(&mut world);
    let rkey = world.ends[1].arena.register(0, 4096, Access::ALL, PD);
    post(&mut world, 0, qps[0], write(1, b"first", rkey, 0));
    let operation = Operation::Read { sink: [Sge::default()].into(), rkey, remote: 0 };
    post(&mut world, 0, qps[0], SendWr { wr_id: 2, operation, signaled: false, fence: false });
    post(&mut world, 0, qps[0], write(3, b"third", rkey, 8));
    let no_reads = conn_param(|it| (it.ird, it.ord) = (0, 0));
    handshake(&mut world, qps, &[no_reads.clone(), no_reads]);
    let expected = [(1, WcStatus::Success), (2, WcStatus::RemoteOperation), (3, WcStatus::Success)];
    assert_eq!(statuses(&mut world, 0, 3), expected);
    assert_eq!(world.ends[0].engine.qp_state(qps[0]), QpState::Rts);
}

#[test]
fn requests_of_a_connection_that_fails_are_flushed() {
    let mut world = World::new(&WorldOptions::new(43));
    let [qp, _] = queue_pairs(&mut world);
    post(&mut world, 0, qp, send(1, b"before", None));
    let (now, remote) = (world.now, world.socket(1, PORT));
    world.ends[0].engine.connect(now, qp, remote, &ConnParam::default()).unwrap();
    post(&mut world, 0, qp, send(2, b"while", None));
    assert!(matches!(event(&mut world, 0), ConnEvent::ConnectFailed { .. }));
    // As those that are posted after the end.
    post(&mut world, 0, qp, send(3, b"after", None));
    world.ends[0].engine.post_recv(qp, receive(4, 0, 0, 0)).unwrap();
    let expected = [1, 2, 3, 4].map(|wr_id| (wr_id, WcStatus::Flushed));
    assert_eq!(statuses(&mut world, 0, 4), expected);
}

#[test]
fn queue_pair_without_a_connection_can_be_ended() {
    let mut world = World::new(&WorldOptions::new(44));
    let [qp, _] = queue_pairs(&mut world);
    world.ends[0].engine.post_recv(qp, receive(1, 0, 0, 0)).unwrap();
    post(&mut world, 0, qp, send(2, b"never", None));
    world.ends[0].engine.end_idle_qp(qp);
    assert_eq!(world.ends[0].engine.qp_state(qp), QpState::Error);
    let expected = [(2, WcStatus::Flushed), (1, WcStatus::Flushed)];
    assert_eq!(statuses(&mut world, 0, 2), expected);
}
