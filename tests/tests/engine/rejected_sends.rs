//! Requests that the application posts while the connection changes: taken from the send queue,
//! they are rejected, each is reported in its place, and the connection goes on.

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::ddp::untagged::BufferQueue;
use ferrowarp_proto::rdmap::requester::Requester;
use ferrowarp_proto::rdmap::send_queue::SqProducer;
use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam, EndReason};
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wc::{QpId, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, Payload, SendWr, Sge};
use ferrowarp_tests::conn_param;
use ferrowarp_tests::sim::pairs::{CQ, PD, completions, event, handshake, qp_init, write};
use ferrowarp_tests::sim::world::{World, WorldOptions};

const SEND_COUNT_MAX: usize = 8;
/// Longer than the initial congestion window.
const LONG_LEN: u32 = 64 << 10;
const ARENA_LEN: usize = 1 << 17;

/// Two queue pairs; the application posts to end 0's itself.
struct Pair {
    world: World,
    qps: [QpId; 2],
    sq: SqProducer,
    /// STag of the arena of end 1.
    rkey: u32,
}

impl Pair {
    fn new(cq_len: usize) -> Self {
        let options = WorldOptions { cq_len, arena_len: ARENA_LEN, ..WorldOptions::new(31) };
        let mut world = World::new(&options);
        let init = qp_init(SEND_COUNT_MAX, 1);
        let (requester, sq) = Requester::with_producer(init.cap.sends);
        let recv_queue = BufferQueue::new(init.cap.recvs);
        let active = world.ends[0].engine.create_qp_with(init, requester, recv_queue).unwrap();
        let passive = world.ends[1].engine.create_qp(init).unwrap();
        let rkey = world.ends[1].arena.register(0, ARENA_LEN as u64, Access::ALL, PD);
        Self { world, qps: [active, passive], sq, rkey }
    }

    fn connect(&mut self, param: ConnParam) {
        handshake(&mut self.world, self.qps, &[param.clone(), param]);
    }

    /// Posts requests, and has the engine take them.
    fn post(&mut self, requests: impl IntoIterator<Item = SendWr>) {
        for wr in requests {
            wr.post_to(&mut self.sq).unwrap();
        }
        self.sq.publish();
        let (count, is_left) = self.world.ends[0].engine.take_sends(self.qps[0], SEND_COUNT_MAX);
        assert!(count > 0 && !is_left);
    }

    /// A short Write of these bytes to the address that is their first byte.
    fn write(&self, wr_id: u64, signaled: bool) -> SendWr {
        let marker = u8::try_from(wr_id).unwrap();
        SendWr {
            signaled,
            ..write(wr_id, &[marker; 4], self.rkey, u64::from(LONG_LEN) + wr_id * 4)
        }
    }

    /// Posts a Write that is built only in part, and closes the connection.
    fn close_mid_message(&mut self) {
        let source = self.world.ends[0].arena.register(0, ARENA_LEN as u64, Access::ALL, PD);
        self.world.ends[0].arena.write(0, &[7; LONG_LEN as usize]);
        let sge = Sge { addr: 0, len: LONG_LEN, lkey: source };
        let payload = Payload::Gather([sge].into());
        let operation = Operation::Write { payload, rkey: self.rkey, remote: 0 };
        self.post([SendWr { wr_id: 0, operation, signaled: true, fence: false }]);
        let now = self.world.now;
        let end = &mut self.world.ends[0];
        end.engine.drive(now);
        end.engine.close(now, self.qps[0]).unwrap();
        assert_eq!(end.engine.qp_state(self.qps[0]), QpState::Closing);
    }

    fn completions(&mut self, count: usize) -> Vec<(u64, WcStatus)> {
        let found = completions(&mut self.world, 0, CQ, count);
        found.iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    fn expect_closed(&mut self) {
        for (end, reason) in [(0, EndReason::Local), (1, EndReason::PeerClosed)] {
            let qp = self.qps[end];
            assert_eq!(event(&mut self.world, end), ConnEvent::Disconnected { qp, reason });
        }
        let sink = self.world.ends[1].arena.read(0, ARENA_LEN);
        let (long, rest) = sink.split_at(LONG_LEN as usize);
        assert!(long.iter().all(|&byte| byte == 7), "the message was sent to its end");
        assert!(rest.iter().all(|&byte| byte == 0), "nothing that was rejected was sent");
    }
}

#[test]
fn requests_after_the_close_complete_in_their_place() {
    let mut pair = Pair::new(64);
    pair.connect(ConnParam::default());
    pair.close_mid_message();
    // The unsignaled one is reported as well: it was not executed.
    pair.post([pair.write(1, true), pair.write(2, false)]);
    let expected = [(0, WcStatus::Success), (1, WcStatus::Flushed), (2, WcStatus::Flushed)];
    assert_eq!(pair.completions(3), expected);
    pair.expect_closed();
}

#[test]
fn rejected_requests_wait_for_a_full_completion_queue_without_delaying_the_close() {
    let mut pair = Pair::new(1);
    pair.connect(ConnParam::default());
    pair.close_mid_message();
    pair.post((1..=4).map(|wr_id| pair.write(wr_id, false)).collect::<Vec<_>>());
    pair.expect_closed();
    let expected: Vec<_> = [(0, WcStatus::Success)]
        .into_iter()
        .chain((1..=4).map(|wr_id| (wr_id, WcStatus::Flushed)))
        .collect();
    assert_eq!(pair.completions(5), expected);
    assert_eq!(pair.world.ends[0].engine.counters().cq_overruns, 0);
}

#[test]
fn rejected_requests_are_reported_as_the_completion_queue_is_polled() {
    let mut pair = Pair::new(1);
    pair.connect(conn_param(|it| {
        it.ord = 0;
        it.ird = 0;
    }));
    let read = |wr_id| {
        let operation = Operation::Read { sink: [Sge::default()].into(), rkey: 1, remote: 0 };
        SendWr { wr_id, operation, signaled: false, fence: false }
    };
    pair.post([read(1), read(2), pair.write(3, false), read(4)]);
    let expected = [1, 2, 4].map(|wr_id| (wr_id, WcStatus::RemoteOperation));
    assert_eq!(pair.completions(3), expected);
    // The queue pair goes on, and a success still finds its place.
    pair.post([pair.write(5, true)]);
    assert_eq!(pair.completions(1), [(5, WcStatus::Success)]);
    let engine = &pair.world.ends[0].engine;
    assert_eq!((engine.counters().cq_overruns, engine.qp_state(pair.qps[0])), (0, QpState::Rts));
}

// req-test: RDMAP-031, RDMAP-035
#[test]
fn only_signaled_successes_among_rejected_requests_are_reported() {
    let mut pair = Pair::new(64);
    pair.connect(conn_param(|it| {
        it.ord = 0;
        it.ird = 0;
    }));
    let read = |wr_id| {
        let operation = Operation::Read { sink: [Sge::default()].into(), rkey: 1, remote: 0 };
        SendWr { wr_id, operation, signaled: false, fence: false }
    };
    let writes = [(2, true), (3, false), (5, true), (6, false), (7, true)];
    let [a, b, c, d, e] = writes.map(|(wr_id, signaled)| pair.write(wr_id, signaled));
    pair.post([read(1), a, b, read(4), c, d, e]);
    let expected = [
        (1, WcStatus::RemoteOperation),
        (2, WcStatus::Success),
        (4, WcStatus::RemoteOperation),
        (5, WcStatus::Success),
        (7, WcStatus::Success),
    ];
    assert_eq!(pair.completions(5), expected);
}

#[test]
fn requests_before_the_connection_are_taken_once_it_is_up() {
    let mut pair = Pair::new(64);
    let early = [pair.write(1, true), pair.write(2, false)];
    early.iter().for_each(|wr| wr.post_to(&mut pair.sq).unwrap());
    pair.sq.publish();
    assert_eq!(pair.world.ends[0].engine.take_sends(pair.qps[0], SEND_COUNT_MAX), (0, false));
    pair.connect(ConnParam::default());
    pair.post([pair.write(3, true)]);
    assert_eq!(pair.completions(2), [(1, WcStatus::Success), (3, WcStatus::Success)]);
    let placed = pair.world.run_until(SECOND, |world| {
        let sink = world.ends[1].arena.read(LONG_LEN as usize + 4, 12);
        sink == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]
    });
    assert!(placed);
}
