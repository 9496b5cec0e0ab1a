//! A half-closed queue pair outlives the one of its peer, as in verbs, where nobody notices that a
//! queue pair at the other end was destroyed.

use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::cm::{ConnEvent, EndReason};
use ferrowarp_proto::verbs::qp::{QpCap, QpInit, QpState};
use ferrowarp_proto::verbs::wc::{QpId, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, Payload, RecvWr};
use ferrowarp_tests::conn_param;
use ferrowarp_tests::sim::pairs::{CQ, PD, completions, connect_new, event, post, signaled_wr};
use ferrowarp_tests::sim::world::{World, WorldOptions};

fn send_of(text: &[u8]) -> Operation {
    let payload = Payload::inline(text).unwrap();
    Operation::Send { payload, solicited: false, invalidate: None }
}

/// Connects two queue pairs, and destroys one when it has sent a message.
fn outlived() -> (World, QpId) {
    let mut world = World::new(&WorldOptions::new(21));
    let init = QpInit { pd: PD, send_cq: CQ, recv_cq: CQ, cap: QpCap::new(8, 8) };
    let param = conn_param(|it| it.half_close = true);
    let qps = connect_new(&mut world, init, &[param.clone(), param]);
    for wr_id in 0..2 {
        world.ends[1].engine.post_recv(qps[1], RecvWr { wr_id, sg_list: [].into() }).unwrap();
    }
    // The last message of a program that ends: it is delivered.
    post(&mut world, 0, qps[0], signaled_wr(1, send_of(b"")));
    completions(&mut world, 0, CQ, 1);
    let now = world.now;
    world.ends[0].engine.destroy_qp(now, qps[0]);
    assert_eq!(completions(&mut world, 1, CQ, 1)[0].status, WcStatus::Success);
    assert_eq!(event(&mut world, 1), ConnEvent::PeerFinished { qp: qps[1] });
    (world, qps[1])
}

/// It finds out that the other is gone.
fn ends(world: &mut World, qp: QpId) {
    let ended = completions(world, 1, CQ, 2);
    assert!(ended.iter().any(|wc| wc.wr_id == 1 && wc.status == WcStatus::Flushed), "{ended:?}");
    let ConnEvent::Disconnected { reason, .. } = event(world, 1) else { panic!() };
    assert!(matches!(reason, EndReason::Reset | EndReason::PeerClosed), "{reason:?}");
    assert_eq!(world.ends[1].engine.qp_state(qp), QpState::Error);
}

#[test]
fn nothing_happens_until_it_sends() {
    let (mut world, qp) = outlived();
    world.run_for(600 * SECOND);
    assert_eq!(world.ends[0].engine.connection_count(), 0, "nobody waits for it");
    assert_eq!(world.ends[1].engine.qp_state(qp), QpState::Rts);
    assert_eq!(world.ends[1].queues.poll(CQ), None, "the other receive waits");
    post(&mut world, 1, qp, signaled_wr(2, send_of(b"hello?")));
    ends(&mut world, qp);
}

/// What it sends at once is acknowledged, because the connection of the other end lingers, and read
/// by nobody: it has to hear of that.
#[test]
fn message_that_nobody_reads_is_answered_with_a_reset() {
    let (mut world, qp) = outlived();
    world.run_for(SECOND);
    post(&mut world, 1, qp, signaled_wr(2, send_of(b"hello?")));
    world.run_for(600 * SECOND);
    ends(&mut world, qp);
}
