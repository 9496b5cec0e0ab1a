//! Shared receive queues (SRQ), between two engines in virtual time.

use std::sync::Arc;

use ferrowarp_proto::ddp::recv_queue::{RqCap, recv_queue};
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam};
use ferrowarp_proto::verbs::qp::{QpCap, QpInit, QpState};
use ferrowarp_proto::verbs::srq::SrqBuffers;
use ferrowarp_proto::verbs::srq::{SrqError, SrqId};
use ferrowarp_proto::verbs::wc::{CqId, QpId, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, Payload, PostError, RecvWr, Sge};
use ferrowarp_proto::wire::rdmap::Opcode;
use ferrowarp_tests::longest_poll::LongestPoll;
use ferrowarp_tests::raw::{self, Peer, SegmentFixture};
use ferrowarp_tests::sim::pairs::*;
use ferrowarp_tests::sim::world::{World, WorldOptions};

/// Bytes of each SRQ buffer.
const BUFFER_LEN: u32 = 8192;

/// `count` connections whose queue pairs at end 1 share an SRQ with `buffers` buffers; `wr_id`s
/// from 0.
fn connected_with_srq(count: u32, buffers: u64) -> (World, Vec<[QpId; 2]>, SrqId, u32) {
    let mut world = World::new(&WorldOptions::new(1));
    let srq = world.ends[1].engine.create_srq(PD, RqCap::new(64)).unwrap();
    let region = register(&world, 1, 0, 1 << 20);
    let qps = (0..count).map(|number| connect(&mut world, number, Some(srq))).collect();
    for wr_id in 0..buffers {
        refill(&mut world, srq, region, wr_id);
    }
    (world, qps, srq, region)
}

fn refill(world: &mut World, srq: SrqId, region: u32, wr_id: u64) {
    let addr = wr_id % 64 * u64::from(BUFFER_LEN);
    let wr = receive(wr_id, region, addr, BUFFER_LEN);
    world.ends[1].engine.post_srq_recv(srq, wr).unwrap();
}

/// A Send of `len` bytes of a region of end 0.
fn long_send(wr_id: u64, lkey: u32, len: u32) -> ferrowarp_proto::verbs::wr::SendWr {
    let payload = Payload::Gather([Sge { addr: 0, len, lkey }].into());
    signaled_wr(wr_id, Operation::Send { payload, solicited: false, invalidate: None })
}

// req-test: RDMAP-169, RDMAP-208, DDP-003
#[test]
fn srq_buffers_are_consumed_in_arrival_order() {
    let (mut world, qps, srq, _) = connected_with_srq(2, 6);
    for (number, bytes) in [(0, b"a1"), (1, b"b1"), (0, b"a2"), (0, b"a3"), (1, b"b2")] {
        post(&mut world, 0, qps[number][0], send(1, bytes, None));
        settle(&mut world);
    }
    for (number, expected) in
        [(0, vec![(0, "a1"), (2, "a2"), (3, "a3")]), (1, vec![(1, "b1"), (4, "b2")])]
    {
        let wcs = completions(&mut world, 1, CqId(number), expected.len());
        for (wc, (wr_id, bytes)) in wcs.iter().zip(expected) {
            assert_eq!((wc.wr_id, wc.status, wc.byte_len), (wr_id, WcStatus::Success, 2));
            let at = usize::try_from(wr_id * u64::from(BUFFER_LEN)).unwrap();
            assert_eq!(world.ends[1].arena.read(at, 2), bytes.as_bytes());
        }
    }
    let engine = &world.ends[1].engine;
    assert_eq!((engine.srq_taken(qps[0][1]), engine.srq_taken(qps[1][1])), (3, 2));
    assert_eq!(engine.free_srq_slots(srq), 63);
}

#[test]
fn segmented_send_keeps_its_srq_buffer() {
    let (mut world, qps, _, _) = connected_with_srq(2, 3);
    let source = register(&world, 0, 0, u64::from(BUFFER_LEN));
    let bytes: Vec<u8> = (0..BUFFER_LEN).map(|at| (at % 251) as u8).collect();
    world.ends[0].arena.write(0, &bytes);
    for (number, [ours, _]) in qps.iter().enumerate() {
        post(&mut world, 0, *ours, long_send(number as u64, source, BUFFER_LEN));
    }
    let mut taken = Vec::new();
    for number in 0..2 {
        let wc = completions(&mut world, 1, CqId(number), 1)[0];
        assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, BUFFER_LEN));
        let at = usize::try_from(wc.wr_id).unwrap() * BUFFER_LEN as usize;
        assert!(world.ends[1].arena.read(at, bytes.len()) == bytes, "buffer {}", wc.wr_id);
        taken.push(wc.wr_id);
    }
    taken.sort_unstable();
    assert_eq!(taken, [0, 1]);
}

/// Also while another has taken a buffer since, but fewer.
#[test]
fn srq_limit_event_names_the_next_after_the_top_consumer_was_destroyed() {
    let (mut world, qps, srq, _) = connected_with_srq(3, 12);
    world.ends[1].engine.arm_srq(srq, 4).unwrap();
    for (number, count) in [4, 3, 1].into_iter().enumerate() {
        for wr_id in 0..count {
            post(&mut world, 0, qps[number][0], send(wr_id, b"some", None));
        }
    }
    settle(&mut world);
    let now = world.now;
    world.ends[1].engine.destroy_qp(now, qps[0][1]);
    post(&mut world, 0, qps[2][0], send(1, b"one more", None));
    let limit = ConnEvent::SrqLimit { srq, left: 3, most: Some((qps[1][1], 3)) };
    assert_eq!(event(&mut world, 1), limit);
}

// req-test: DDP-218, RDMAP-297
#[test]
fn srq_limit_event_fires_once_and_names_the_top_consumer() {
    let (mut world, qps, srq, region) = connected_with_srq(2, 8);
    world.ends[1].engine.arm_srq(srq, 4).unwrap();
    post(&mut world, 0, qps[1][0], send(0, b"meek", None));
    for wr_id in 0..4 {
        post(&mut world, 0, qps[0][0], send(wr_id, b"flood", None));
    }
    let limit = ConnEvent::SrqLimit { srq, left: 3, most: Some((qps[0][1], 4)) };
    assert_eq!(event(&mut world, 1), limit);
    settle(&mut world);
    assert_eq!(world.ends[1].engine.next_event(), None, "reported once");
    let taken = |qp: [QpId; 2]| world.ends[1].engine.srq_taken(qp[1]);
    assert_eq!([taken(qps[0]), taken(qps[1])], [4, 1]);
    assert_eq!(world.ends[0].engine.srq_taken(qps[0][0]), 0, "it has no shared queue");
    // The other stream still gets buffers.
    post(&mut world, 0, qps[1][0], send(1, b"meek", None));
    assert_eq!(completions(&mut world, 1, CqId(1), 2)[1].status, WcStatus::Success);
    // Re-armed below the limit, the event fires at once, and the counts restart.
    world.ends[1].engine.arm_srq(srq, 4).unwrap();
    assert_eq!(event(&mut world, 1), ConnEvent::SrqLimit { srq, left: 2, most: None });
    assert_eq!(world.ends[1].engine.srq_taken(qps[0][1]), 0);
    for wr_id in 8..14 {
        refill(&mut world, srq, region, wr_id);
    }
    world.ends[1].engine.arm_srq(srq, 4).unwrap();
    settle(&mut world);
    assert_eq!(world.ends[1].engine.next_event(), None, "eight are left");
}

// req-test: DDP-145, DDP-178
#[test]
fn empty_srq_terminates_only_the_stream_in_need() {
    let (mut world, qps, srq, region) = connected_with_srq(2, 1);
    post(&mut world, 0, qps[1][0], send(0, b"last", None));
    completions(&mut world, 1, CqId(1), 1);
    post(&mut world, 0, qps[0][0], send(0, b"none", None));
    assert_eq!(disconnect_cause(&mut world, 1), (qps[0][1], Some((1, 2, 2))));
    refill(&mut world, srq, region, 9);
    post(&mut world, 0, qps[1][0], send(0, b"more", None));
    assert_eq!(completions(&mut world, 1, CqId(1), 1)[0].wr_id, 9);
}

// req-test: RDMAP-297, DDP-218
#[test]
fn srq_cap_terminates_only_the_qp_above_it() {
    let (mut world, qps, srq, region) = connected_with_srq(2, 8);
    world.polls = Some(LongestPoll::default());
    world.ends[1].engine.cap_srq(srq, 3).unwrap();
    let flood = |world: &mut World, count: u64| {
        for wr_id in 0..count {
            post(world, 0, qps[0][0], send(wr_id, b"flood", None));
        }
        settle(world);
    };
    let held =
        |world: &World| [0, 1].map(|of: usize| world.ends[1].engine.srq_outstanding(qps[of][1]));
    flood(&mut world, 2);
    post(&mut world, 0, qps[1][0], send(0, b"meek", None));
    settle(&mut world);
    flood(&mut world, 1);
    assert_eq!(held(&world), [3, 1]);
    // Refills are credited in the order of consumption, and refilled buffers may be consumed again:
    // an application that keeps up never reaches the cap.
    for wr_id in 8..11 {
        refill(&mut world, srq, region, wr_id);
    }
    assert_eq!(held(&world), [1, 0]);
    for wr_id in 11..40 {
        flood(&mut world, 2);
        refill(&mut world, srq, region, wr_id);
        refill(&mut world, srq, region, wr_id);
    }
    assert_eq!(held(&world), [1, 0]);
    flood(&mut world, 2);
    assert_eq!((held(&world), world.ends[1].engine.free_srq_slots(srq)), ([3, 0], 64 - 5));
    assert_eq!(world.ends[1].engine.next_event(), None, "a full share is no error");
    // One more is refused, though buffers are left.
    flood(&mut world, 1);
    assert_eq!(disconnect_cause(&mut world, 1), (qps[0][1], Some((1, 2, 2))));
    assert_eq!(disconnect_cause(&mut world, 0), (qps[0][0], Some((1, 2, 2))));
    assert_eq!(world.ends[1].engine.counters().srq_caps_reached, 1);
    assert_eq!(world.ends[1].engine.free_srq_slots(srq), 64 - 5, "they are for others");
    for wr_id in 1..=3 {
        post(&mut world, 0, qps[1][0], send(wr_id, b"meek", None));
    }
    let done = completions(&mut world, 1, CqId(1), 4);
    assert!(done.iter().all(|wc| wc.status == WcStatus::Success));
    // Buffers consumed by a destroyed queue pair are still credited to it; without a cap one queue
    // pair may consume all.
    let now = world.now;
    world.ends[1].engine.destroy_qp(now, qps[0][1]);
    for wr_id in 50..53 {
        refill(&mut world, srq, region, wr_id);
    }
    assert_eq!(world.ends[1].engine.srq_outstanding(qps[1][1]), 3);
    world.ends[1].engine.cap_srq(srq, 0).unwrap();
    for wr_id in 4..9 {
        post(&mut world, 0, qps[1][0], send(wr_id, b"meek", None));
    }
    completions(&mut world, 1, CqId(1), 5);
    assert_eq!(world.ends[1].engine.free_srq_slots(srq), 64);
    assert_eq!(world.ends[1].engine.srq_outstanding(qps[1][1]), 8);
}

#[test]
fn buffers_that_the_application_posts_itself_are_counted_before_they_are_taken() {
    let mut world = World::new(&WorldOptions::new(1));
    let (mut producer, rq, _) = recv_queue(RqCap::new(2));
    let srq =
        world.ends[1].engine.create_srq_with(PD, Arc::new(SrqBuffers::new(rq, 1)), 0).unwrap();
    let region = register(&world, 1, 0, 1 << 20);
    let qps = connect(&mut world, 0, Some(srq));
    let mut post_buffer = |wr_id: u64| {
        let addr = wr_id * u64::from(BUFFER_LEN);
        let is_posted = producer.post(wr_id, &receive(wr_id, region, addr, BUFFER_LEN).sg_list);
        producer.publish();
        is_posted.is_ok()
    };
    let held = |world: &World| world.ends[1].engine.srq_outstanding(qps[1]);
    let send_one = |world: &mut World, expected: u64| {
        post(world, 0, qps[0], send(expected, b"message", None));
        let wc = completions(world, 1, CqId(0), 1)[0];
        assert_eq!((wc.wr_id, wc.status), (expected, WcStatus::Success));
    };
    assert!(post_buffer(0) && post_buffer(1) && !post_buffer(2));
    let refused = world.ends[1].engine.post_srq_recv(srq, receive(2, region, 0, 8));
    assert_eq!(refused, Err(PostError::QueueFull), "the application posts itself");
    assert_eq!(world.ends[1].engine.free_srq_slots(srq), 0);
    send_one(&mut world, 0);
    assert!(post_buffer(2), "the pass has given its place back");
    send_one(&mut world, 1);
    assert_eq!(held(&world), 1, "the first is replaced");
    send_one(&mut world, 2);
    // Counted before it is taken: it replaces the oldest buffer held, not itself.
    assert!(post_buffer(3));
    send_one(&mut world, 3);
    assert_eq!(held(&world), 2, "the last two");
    assert_eq!(world.ends[1].engine.free_srq_slots(srq), 2);
}

#[test]
fn srq_buffer_in_use_is_completed_by_its_own_stream() {
    let (mut world, qps, srq, _) = connected_with_srq(2, 3);
    // Too long: its buffer completes in error, the others stay.
    let source = register(&world, 0, 0, 1 << 16);
    post(&mut world, 0, qps[0][0], long_send(0, source, BUFFER_LEN + 1));
    assert_eq!(disconnect_cause(&mut world, 1), (qps[0][1], Some((1, 2, 5))));
    let wcs = completions(&mut world, 1, CqId(0), 1);
    assert_eq!((wcs[0].wr_id, wcs[0].status), (0, WcStatus::LocalLength));
    settle(&mut world);
    assert_eq!(world.ends[1].engine.free_srq_slots(srq), 62);
    // Interrupted in the middle of a message: the buffer is flushed to the queue pair that took it.
    let half = |lkey| Sge { addr: 0, len: BUFFER_LEN / 2, lkey };
    let payload = Payload::Gather([half(source), half(source ^ 0x100)].into());
    let operation = Operation::Send { payload, solicited: false, invalidate: None };
    post(&mut world, 0, qps[1][0], signaled_wr(1, operation));
    assert_eq!(disconnect_cause(&mut world, 1), (qps[1][1], Some((0, 0, 0))));
    let wc = completions(&mut world, 1, CqId(1), 1)[0];
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::Flushed));
    assert_eq!(world.ends[1].engine.free_srq_slots(srq), 63);
}

#[test]
fn invalid_srq_calls_are_refused() {
    let (mut world, qps, srq, region) = connected_with_srq(1, 0);
    let buffer = || receive(0, region, 0, 8);
    let engine = &mut world.ends[1].engine;
    assert_eq!(engine.post_recv(qps[0][1], buffer()), Err(PostError::SharedReceives));
    assert_eq!(engine.attach_srq(qps[0][1], srq), Err(SrqError::NotIdle));
    assert_eq!(engine.destroy_srq(srq), Err(SrqError::InUse));
    let cq = CqId(0);
    let init = QpInit { pd: PD + 1, send_cq: cq, recv_cq: cq, cap: QpCap::new(1, 1) };
    let foreign = engine.create_qp(init).unwrap();
    assert_eq!(engine.attach_srq(foreign, srq), Err(SrqError::OtherDomain));
    let small = engine.create_srq(PD, RqCap::new(1)).unwrap();
    assert_eq!(engine.post_srq_recv(small, buffer()), Ok(()));
    assert_eq!(engine.post_srq_recv(small, buffer()), Err(PostError::QueueFull));
    assert_eq!(engine.destroy_srq(small), Ok(()));
    assert_eq!(engine.post_srq_recv(small, buffer()), Err(PostError::NoSuchSrq));
    assert_eq!(engine.arm_srq(small, 1), Err(SrqError::NoSuchSrq));
    assert_eq!(engine.cap_srq(small, 1), Err(SrqError::NoSuchSrq));
    assert_eq!(engine.attach_srq(foreign, small), Err(SrqError::NoSuchSrq));
    let now = world.now;
    world.ends[1].engine.destroy_qp(now, qps[0][1]);
    assert_eq!(world.ends[1].engine.destroy_srq(srq), Ok(()));
}

/// A message after our FIN that cannot be placed into its buffer: no Terminate can be sent, and the
/// buffer returns to the SRQ.
#[test]
fn srq_buffer_unusable_after_our_fin_is_returned() {
    const SEND: Opcode = Opcode::Send { invalidate: false, solicited: false };
    let mut fx = SegmentFixture::new(|_| {});
    let srq = fx.engine.create_srq(raw::PD, RqCap::new(8)).unwrap();
    let mut peer = Peer::connect(&mut fx, 5000, 1460);
    peer.send(&mut fx, &raw::mpa_request());
    let (asked, qp) = (fx.connect_request(), fx.create_qp());
    fx.engine.attach_srq(qp, srq).unwrap();
    fx.engine.accept(fx.now, asked, qp, &ConnParam::default()).unwrap();
    peer.settle(&mut fx);
    // The lkey names no region.
    let sge = Sge { addr: 0, len: 4096, lkey: 0x1234_5600 };
    let buffer = RecvWr { wr_id: 1, sg_list: [sge].into() };
    fx.engine.post_srq_recv(srq, buffer).unwrap();
    peer.send(&mut fx, &raw::empty_write_fpdu());
    fx.engine.close(fx.now, qp).unwrap();
    peer.settle(&mut fx);
    assert!(peer.fin_received, "the engine has closed its direction");
    peer.send(&mut fx, &raw::untagged_fpdu(SEND, 0, 1, b"x"));
    fx.poll();
    assert_eq!(fx.engine.qp_state(qp), QpState::Error);
    assert_eq!((fx.engine.free_srq_slots(srq), fx.engine.srq_outstanding(qp)), (7, 0));
}

/// A burst that asks for one buffer more than the full queue has.
#[test]
fn queue_emptied_within_a_pass_takes_buffers_again_and_reports_its_limit() {
    const SEND: Opcode = Opcode::Send { invalidate: false, solicited: false };
    // More than one batch, and less; the queue pair at fault is one of two.
    for count in [1, 5, 32] {
        let mut fx = SegmentFixture::new(|_| {});
        let srq = fx.engine.create_srq(raw::PD, RqCap::new(count)).unwrap();
        let buffer = raw::recv_wr(&fx, 0);
        let [(mut greedy, its_qp), (mut other, other_qp)] = [5000, 5001].map(|port| {
            let mut peer = Peer::connect(&mut fx, port, 1460);
            peer.send(&mut fx, &raw::mpa_request());
            let (asked, qp) = (fx.connect_request(), fx.create_qp());
            fx.engine.attach_srq(qp, srq).unwrap();
            fx.engine.accept(fx.now, asked, qp, &ConnParam::default()).unwrap();
            assert!(matches!(fx.engine.next_event(), Some(ConnEvent::Established { .. })));
            peer.settle(&mut fx);
            (peer, qp)
        });
        let fill = |fx: &mut SegmentFixture| {
            (0..).map_while(|_| fx.engine.post_srq_recv(srq, buffer.clone()).ok()).count()
        };
        assert_eq!(fill(&mut fx), count);
        fx.engine.arm_srq(srq, 1).unwrap();
        let burst: Vec<u8> = (1..=u32::try_from(count).unwrap() + 1)
            .flat_map(|msn| raw::untagged_fpdu(SEND, 0, msn, b"x"))
            .collect();
        greedy.send(&mut fx, &burst);
        let most = Some((its_qp, count as u64));
        let mut events = std::iter::from_fn(|| fx.engine.next_event());
        assert!(events.any(|event| event == ConnEvent::SrqLimit { srq, left: 0, most }));
        assert_eq!(fx.engine.qp_state(its_qp), QpState::Error, "one message had no buffer");
        assert_eq!(fill(&mut fx), count, "all slots are free");
        other.send(&mut fx, &raw::untagged_fpdu(SEND, 0, 1, b"x"));
        assert_eq!((fx.engine.qp_state(other_qp), fill(&mut fx)), (QpState::Rts, 1));
    }
}
