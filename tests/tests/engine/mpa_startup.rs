//! Connection start into FPDU mode, between two engines in virtual time: peer-to-peer with each
//! kind of RTR message, with FPDUs from the first byte, and after a streaming mode of the
//! applications.

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::time::{MILLISECOND, SECOND};
use ferrowarp_proto::verbs::cm::{
    CmError, ConnEvent, ConnInfo, ConnParam, ConnectError, EndReason, ReadDepths, RtrKinds, Start,
};
use ferrowarp_proto::verbs::wc::{QpId, WcOpcode, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, Payload, PostError, RecvWr, SendWr, Sge};
use ferrowarp_tests::conn_param;
use ferrowarp_tests::sim::pairs::{CQ, PD, PORT, completions, event, qp_init};
use ferrowarp_tests::sim::world::{World, WorldOptions};

const NONE: RtrKinds = RtrKinds { send: false, write: false, read: false };

fn queue_pair(world: &mut World, end: usize) -> QpId {
    world.ends[end].engine.create_qp(qp_init(16, 16)).unwrap()
}

fn established(world: &mut World, end: usize) -> ConnInfo {
    match event(world, end) {
        ConnEvent::Established { info, .. } => *info,
        other => panic!("end {end}: {other:?}"),
    }
}

/// Parameters of the model in which the initiator sends first.
fn client_server() -> ConnParam {
    conn_param(|it| it.peer_to_peer = false)
}

/// Starts both ends; the request is accepted.
fn connect_and_accept(world: &mut World, ours: &ConnParam, theirs: &ConnParam) -> [QpId; 2] {
    let listener = &mut world.ends[1].engine;
    let opened = if ours.start == Start::Frames {
        listener.listen(PORT, 8)
    } else {
        listener.listen_unframed(PORT, 8)
    };
    opened.unwrap();
    let qps = [queue_pair(world, 0), queue_pair(world, 1)];
    let (now, remote) = (world.now, world.socket(1, PORT));
    world.ends[0].engine.connect(now, qps[0], remote, ours).unwrap();
    let ConnEvent::ConnectRequest { request, offer, .. } = event(world, 1) else { panic!() };
    assert_eq!(offer.revision, if ours.start == Start::Frames { ours.revision } else { 0 });
    let now = world.now;
    world.ends[1].engine.accept(now, request, qps[1], theirs).unwrap();
    qps
}

fn post_receive(world: &mut World, end: usize, qp: QpId, wr_id: u64) {
    let lkey = world.ends[end].arena.register(0, 4096, Access::ALL, PD);
    let sg_list = [Sge { addr: 0, len: 4096, lkey }].into();
    world.ends[end].engine.post_recv(qp, RecvWr { wr_id, sg_list }).unwrap();
}

fn post_send(world: &mut World, end: usize, qp: QpId, bytes: &[u8]) {
    let payload = Payload::inline(bytes).unwrap();
    let operation = Operation::Send { payload, solicited: false, invalidate: None };
    let wr = SendWr { wr_id: 99, operation, signaled: false, fence: false };
    world.ends[end].engine.post_send(qp, wr).unwrap();
}

/// A Send of `bytes` from one end, received into the oldest buffer of the other.
fn expect_send(world: &mut World, from: usize, qps: [QpId; 2], wr_id: u64, bytes: &[u8]) {
    post_send(world, from, qps[from], bytes);
    let wc = completions(world, 1 - from, CQ, 1)[0];
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (wr_id, WcStatus::Success, WcOpcode::Recv));
    assert_eq!(wc.byte_len as usize, bytes.len());
    assert_eq!(world.ends[1 - from].arena.read(0, bytes.len()), bytes);
}

#[test]
fn responder_sends_first_with_each_rtr_kind() {
    let kinds = [
        RtrKinds { send: true, ..NONE },
        RtrKinds { write: true, ..NONE },
        RtrKinds { read: true, ..NONE },
        RtrKinds::ALL,
    ];
    for (index, rtr) in kinds.into_iter().enumerate() {
        for markers in [false, true] {
            // No Reads except for the RTR message.
            for reads in [0, 1, 16] {
                let mut world = World::new(&WorldOptions::new(index as u64));
                let mut ours = ConnParam::default();
                ours.peer_to_peer = true;
                ours.rtr = rtr;
                ours.markers = markers;
                ours.ird = reads;
                ours.ord = reads;
                let qps =
                    connect_and_accept(&mut world, &ours, &conn_param(|it| it.markers = markers));
                for (end, &qp) in qps.iter().enumerate() {
                    assert!(established(&mut world, end).extensions);
                    for wr_id in 0..3 {
                        post_receive(&mut world, end, qp, wr_id);
                    }
                }
                expect_send(&mut world, 1, qps, 0, b"first from the responder");
                // The RTR message has consumed no receive buffer, no completion and no Read.
                expect_send(&mut world, 0, qps, 0, b"");
                expect_send(&mut world, 0, qps, 1, b"and the initiator");
                expect_send(&mut world, 1, qps, 1, b"");
                assert_eq!(world.ends[0].queues.poll(CQ), None);
                assert_eq!(world.ends[1].queues.poll(CQ), None);
            }
        }
    }
}

#[test]
fn responder_waits_for_the_first_fpdu_without_peer_to_peer() {
    let mut world = World::new(&WorldOptions::new(3));
    let qps = connect_and_accept(&mut world, &client_server(), &ConnParam::default());
    for (end, &qp) in qps.iter().enumerate() {
        established(&mut world, end);
        post_receive(&mut world, end, qp, 0);
    }
    post_send(&mut world, 1, qps[1], b"too early");
    let received = world.run_until(SECOND, |world| world.ends[0].queues.poll(CQ).is_some());
    assert!(!received, "the responder sent before the first FPDU");
    expect_send(&mut world, 0, qps, 0, b"go on");
    assert_eq!(completions(&mut world, 0, CQ, 1)[0].byte_len, 9);
}

#[test]
fn no_common_rtr_kind_fails_the_connect() {
    for (ours, theirs) in [
        (RtrKinds { send: true, ..NONE }, RtrKinds { read: true, ..NONE }),
        (RtrKinds { write: true, ..NONE }, RtrKinds { send: true, read: true, write: false }),
    ] {
        for markers in [false, true] {
            let mut world = World::new(&WorldOptions::new(4));
            let ours = conn_param(|it| (it.peer_to_peer, it.rtr) = (true, ours));
            let theirs = conn_param(|it| (it.rtr, it.markers) = (theirs, markers));
            connect_and_accept(&mut world, &ours, &theirs);
            match event(&mut world, 0) {
                ConnEvent::ConnectFailed { error: ConnectError::NoCommonRtr, .. } => {}
                other => panic!("{other:?}"),
            }
            established(&mut world, 1);
            match event(&mut world, 1) {
                ConnEvent::Disconnected {
                    reason: EndReason::TerminateReceived(terminate), ..
                } => {
                    assert_eq!((terminate.layer, terminate.error_type, terminate.code), (2, 0, 7));
                }
                other => panic!("{other:?}"),
            }
            let over = world.run_until(30 * SECOND, |world| {
                world.ends.iter().all(|end| end.engine.unfinished_count() == 0)
            });
            assert!(over, "the connection is closed");
        }
    }
}

// req-test: MPA-042
#[test]
fn immediate_start() {
    let mut world = World::new(&WorldOptions::new(5));
    let mut param = ConnParam::default();
    param.start = Start::Immediate;
    let qps = connect_and_accept(&mut world, &param, &param);
    for (end, &qp) in qps.iter().enumerate() {
        let info = established(&mut world, end);
        assert_eq!((info.revision, info.markers_in, info.markers_out), (0, true, true));
        assert!(info.crc, "the draft has no way without");
        assert!(!info.extensions, "nor has it atomic operations");
        let operation = Operation::Immediate { data: [0; 8], solicited: false };
        let wr = SendWr { wr_id: 1, operation, signaled: true, fence: false };
        let posted = world.ends[end].engine.post_send(qp, wr);
        assert_eq!(posted, Err(PostError::Unsupported));
        post_receive(&mut world, end, qp, 0);
        post_receive(&mut world, end, qp, 1);
        // 1,460 bytes less the timestamps option: RFC 5044 section 4.5.
        assert_eq!(world.ends[end].engine.mulpdu(qp), Some(1430));
    }
    // Each direction starts independently.
    expect_send(&mut world, 1, qps, 0, b"first from the passive end");
    expect_send(&mut world, 0, qps, 0, b"and the active one");
    expect_send(&mut world, 0, qps, 1, &[7; 90]);
    let mut data = param;
    data.private_data = [1].into();
    let (now, remote) = (world.now, world.socket(1, PORT));
    let qp = queue_pair(&mut world, 0);
    let refused = world.ends[0].engine.connect(now, qp, remote, &data);
    assert_eq!(refused, Err(CmError::PrivateDataTooLong), "there is no frame to carry them");
}

#[test]
fn streaming_start() {
    for first in 0..2 {
        let mut world = World::new(&WorldOptions::new(6));
        let mut param = ConnParam::default();
        param.start = Start::Streaming;
        let qps = connect_and_accept(&mut world, &param, &param);
        for (end, &qp) in qps.iter().enumerate() {
            assert_eq!(event(&mut world, end), ConnEvent::Streaming { qp });
        }
        // An odd number of bytes, so that marker positions differ from a fresh connection's.
        let hello = [0x48; 777];
        assert_eq!(world.ends[0].engine.stream_send(qps[0], &hello), Ok(777));
        assert_eq!(world.ends[1].engine.stream_send(qps[1], b"me too"), Ok(6));
        let mut received = [Vec::new(), Vec::new()];
        let wanted = [6, 777];
        let done = world.run_until(30 * SECOND, |world| {
            for end in 0..2 {
                let mut out = [0; 100];
                let len_max = out.len().min(wanted[end] - received[end].len());
                let engine = &mut world.ends[end].engine;
                let len = engine.stream_receive(qps[end], &mut out[..len_max]).unwrap();
                received[end].extend_from_slice(&out[..len]);
            }
            (0..2).all(|end| received[end].len() == wanted[end])
        });
        assert!(done && received[0] == b"me too" && received[1] == hello);
        // One end switches first: its FPDUs wait until the other end has switched, too.
        let now = world.now;
        world.ends[first].engine.start_fpdus(now, qps[first], &param).unwrap();
        established(&mut world, first);
        post_send(&mut world, first, qps[first], b"early");
        world.run_for(SECOND);
        post_receive(&mut world, 1 - first, qps[1 - first], 0);
        let now = world.now;
        world.ends[1 - first].engine.start_fpdus(now, qps[1 - first], &param).unwrap();
        established(&mut world, 1 - first);
        assert_eq!(completions(&mut world, 1 - first, CQ, 1)[0].byte_len, 5);
        for wr_id in 0..2 {
            post_receive(&mut world, first, qps[first], wr_id);
            expect_send(&mut world, 1 - first, qps, wr_id, &[9; 80]);
        }
        let again = world.ends[0].engine.stream_send(qps[0], b"x");
        assert_eq!(again, Err(CmError::WrongState), "the time for that is over");
    }
}

#[test]
fn unframed_request_can_be_rejected() {
    let mut world = World::new(&WorldOptions::new(7));
    world.ends[1].engine.listen_unframed(PORT, 8).unwrap();
    let mut param = ConnParam::default();
    param.start = Start::Streaming;
    let qp = queue_pair(&mut world, 0);
    let (now, remote) = (world.now, world.socket(1, PORT));
    world.ends[0].engine.connect(now, qp, remote, &param).unwrap();
    assert_eq!(event(&mut world, 0), ConnEvent::Streaming { qp });
    let ConnEvent::ConnectRequest { request, .. } = event(&mut world, 1) else { panic!() };
    let now = world.now;
    let with_data = world.ends[1].engine.reject(now, request, ReadDepths::default(), b"no");
    assert_eq!(with_data, Err(CmError::PrivateDataTooLong));
    world.ends[1].engine.reject(now, request, ReadDepths::default(), b"").unwrap();
    match event(&mut world, 0) {
        ConnEvent::ConnectFailed { error: ConnectError::Protocol, .. } => {}
        other => panic!("{other:?}"),
    }
}

/// FPDUs sent by an end.
fn fpdus_sent(world: &World, end: usize) -> u64 {
    world.ends[end].engine.counters().fpdus_out
}

/// siw wakeup messages of an initiator that receives nothing.
const WAKEUPS: u64 = 5;

/// Advances time by half a second.
fn wait_half_a_second(world: &mut World) {
    world.run_for(SECOND / 2);
}

#[test]
fn silent_initiator_sends_siw_wakeups() {
    let quiet = client_server();
    let mut marked = client_server();
    marked.markers = true;
    for (theirs, wakeups) in [(&quiet, WAKEUPS), (&marked, 0)] {
        let mut world = World::new(&WorldOptions::new(8));
        let qps = connect_and_accept(&mut world, &marked, theirs);
        for (end, &qp) in qps.iter().enumerate() {
            established(&mut world, end);
            post_receive(&mut world, end, qp, 0);
            post_receive(&mut world, end, qp, 1);
        }
        expect_send(&mut world, 0, qps, 0, b"is anybody there?");
        assert_eq!(fpdus_sent(&world, 0), 1);
        wait_half_a_second(&mut world);
        assert_eq!(fpdus_sent(&world, 0), 1 + wakeups);
        // They have arrived without any effect.
        assert_eq!(world.ends[1].engine.counters().fpdus_in, 1 + wakeups);
        assert_eq!(world.ends[1].queues.poll(CQ), None);
        expect_send(&mut world, 0, qps, 1, b"I see");
        expect_send(&mut world, 1, qps, 0, b"yes");
        wait_half_a_second(&mut world);
        assert_eq!((fpdus_sent(&world, 0), fpdus_sent(&world, 1)), (2 + wakeups, 1), "never again");
    }
}

#[test]
fn siw_wakeup_waits_for_the_ack_of_the_first_message() {
    let mut options = WorldOptions::new(10);
    options.faults.delay_ns = 15 * MILLISECOND;
    let mut world = World::new(&options);
    let qps = connect_and_accept(&mut world, &client_server(), &client_server());
    for (end, &qp) in qps.iter().enumerate() {
        established(&mut world, end);
        post_receive(&mut world, end, qp, 0);
    }
    // The first message is still in flight when the first siw wakeup is due.
    expect_send(&mut world, 0, qps, 0, b"is anybody there?");
    assert_eq!(fpdus_sent(&world, 0), 1);
    wait_half_a_second(&mut world);
    let received = world.ends[1].engine.counters().fpdus_in;
    assert_eq!((fpdus_sent(&world, 0), received), (1 + WAKEUPS, 1 + WAKEUPS));
}

#[test]
fn no_siw_wakeup_to_a_peer_that_answers() {
    let mut world = World::new(&WorldOptions::new(11));
    let qps = connect_and_accept(&mut world, &client_server(), &client_server());
    for (end, &qp) in qps.iter().enumerate() {
        established(&mut world, end);
        post_receive(&mut world, end, qp, 0);
    }
    expect_send(&mut world, 0, qps, 0, b"is anybody there?");
    expect_send(&mut world, 1, qps, 0, b"yes");
    wait_half_a_second(&mut world);
    assert_eq!((fpdus_sent(&world, 0), fpdus_sent(&world, 1)), (2, 1));
}

#[test]
fn no_siw_wakeup_without_an_early_first_message() {
    for markers in [false, true] {
        let mut world = World::new(&WorldOptions::new(9));
        let mut param = client_server();
        param.markers = markers;
        let qps = connect_and_accept(&mut world, &param, &param);
        for (end, &qp) in qps.iter().enumerate() {
            established(&mut world, end);
            post_receive(&mut world, end, qp, 0);
        }
        wait_half_a_second(&mut world);
        expect_send(&mut world, 0, qps, 0, b"late");
        wait_half_a_second(&mut world);
        assert_eq!((fpdus_sent(&world, 0), fpdus_sent(&world, 1)), (1, 0));
    }
}
