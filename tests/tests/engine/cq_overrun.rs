//! Overrun of a completion queue that many queue pairs use: each pass ends a bounded number of
//! them, and the others of the shard have their turn meanwhile.

use std::rc::Rc;
use std::time::Duration;

use ferrowarp_proto::ddp::vec_memory::VecMemory;
use ferrowarp_proto::engine::{Engine, EngineConfig};
use ferrowarp_proto::time::Instant;
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam};
use ferrowarp_proto::verbs::qp::{QpCap, QpInit, QpState};
use ferrowarp_proto::verbs::wc::{Completions, CqId, QpId, Wc, WcStatus};
use ferrowarp_proto::verbs::wr::RecvWr;
use ferrowarp_proto::wire::rdmap::Opcode;
use ferrowarp_tests::longest_poll::LongestPoll;
use ferrowarp_tests::raw::{
    self, CQ, PD, Peer, SegmentFixture, mpa_request, recv_wr, untagged_fpdu,
};
use ferrowarp_tests::sim::world::address;

const COUNT: usize = 10_000;
/// Queue pairs that a pass ends, at most.
const PASS_MAX: usize = 64;
const SEND: Opcode = Opcode::Send { invalidate: false, solicited: false };

fn init(cq: CqId) -> QpInit {
    QpInit { pd: PD, send_cq: cq, recv_cq: cq, cap: QpCap::new(1, 64) }
}

/// Connects a queue pair with completions to `cq`, and receives posted.
fn connected(fx: &mut SegmentFixture, port: u16, cq: CqId) -> (Peer, QpId) {
    let mut peer = Peer::connect(fx, port, 1460);
    peer.send(fx, &mpa_request());
    let request = fx.connect_request();
    let qp = fx.engine.create_qp(init(cq)).unwrap();
    fx.engine.accept(fx.now, request, qp, &ConnParam::default()).unwrap();
    assert!(matches!(fx.engine.next_event(), Some(ConnEvent::Established { .. })));
    peer.settle(fx);
    for wr_id in 0..8 {
        fx.engine.post_recv(qp, recv_wr(fx, wr_id)).unwrap();
    }
    (peer, qp)
}

struct Overrun {
    fx: SegmentFixture,
    /// Not connected, each with a receive to flush.
    idle: Vec<QpId>,
    /// Peers and queue pairs: the one that overruns the queue, one behind all others in the
    /// engine's table, and one of another queue.
    ends: [(Peer, QpId); 3],
}

impl Overrun {
    fn new() -> Self {
        let mut fx = SegmentFixture::new(|config| config.qps_max = COUNT + 3);
        let first = connected(&mut fx, 5000, CQ);
        let other = connected(&mut fx, 5001, CqId(1));
        let create = |_| {
            let qp = fx.engine.create_qp(QpInit { cap: QpCap::new(1, 1), ..init(CQ) }).unwrap();
            fx.engine.post_recv(qp, RecvWr { wr_id: 0, sg_list: Default::default() }).unwrap();
            qp
        };
        let idle = (0..COUNT).map(create).collect();
        let last = connected(&mut fx, 5002, CQ);
        let mut overrun = Self { fx, idle, ends: [first, last, other] };
        overrun.fx.push_results.borrow_mut().push_back(false);
        overrun.send(0, 1);
        assert_eq!(overrun.fx.engine.next_event(), Some(ConnEvent::CqOverrun { cq: CQ }));
        overrun
    }

    /// Sends a message to one of the connected queue pairs, and polls.
    fn send(&mut self, end: usize, msn: u32) {
        let Self { fx, ends, .. } = self;
        ends[end].0.send(fx, &untagged_fpdu(SEND, 0, msn, b"x"));
    }

    fn ended_count(&self) -> usize {
        let has_ended = |&&qp: &&QpId| self.fx.engine.qp_state(qp) == QpState::Error;
        self.idle.iter().filter(has_ended).count()
    }

    fn completions(&self, cq: CqId) -> Vec<Wc> {
        std::iter::from_fn(|| self.fx.queues.poll(cq)).collect()
    }
}

#[test]
fn overrun_ends_a_bounded_number_of_queue_pairs_per_pass() {
    let mut fx = Overrun::new();
    let (mut ended, mut passes) = (0, 1);
    loop {
        let now = fx.ended_count();
        assert!(now - ended <= PASS_MAX, "{} ended in a pass", now - ended);
        if now == COUNT {
            break;
        }
        ended = now;
        assert!(fx.fx.engine.deadline().is_some_and(|at| at <= fx.fx.now), "there is more to do");
        if passes <= 8 {
            // A message to another queue has its turn in the same pass.
            fx.send(2, passes);
            let received = fx.completions(CqId(1));
            let statuses: Vec<_> = received.iter().map(|wc| wc.status).collect();
            assert_eq!(statuses, [WcStatus::Success]);
        } else {
            fx.fx.poll();
        }
        passes += 1;
    }
    assert!(passes as usize >= COUNT / PASS_MAX, "{passes}");
    // Each receive is flushed once, as the application polls.
    let mut flushed = Vec::new();
    for _ in 0..COUNT {
        fx.fx.poll();
        flushed.extend(fx.completions(CQ).into_iter().filter(|wc| wc.qp != fx.ends[0].1));
    }
    assert!(flushed.iter().all(|wc| wc.status == WcStatus::Flushed));
    assert_eq!(flushed.len(), COUNT + 8);
    assert_eq!(fx.fx.engine.qp_state(fx.ends[2].1), QpState::Rts);
    assert_eq!(fx.fx.engine.counters().cq_overruns, 1);
}

#[test]
fn nothing_succeeds_after_an_overrun() {
    let mut fx = Overrun::new();
    let last = fx.ends[1].1;
    // Its messages arrive while the queue pairs before it are being ended.
    for msn in 1..=3 {
        fx.send(1, msn);
        assert_eq!(fx.fx.engine.qp_state(last), QpState::Rts);
        assert_eq!(fx.completions(CQ), [], "the queue accepts nothing");
    }
    let mut found = Vec::new();
    for _ in 0..COUNT {
        fx.fx.poll();
        found.extend(fx.completions(CQ));
    }
    let of_last: Vec<_> = found.iter().filter(|wc| wc.qp == last).collect();
    let ids: Vec<_> = of_last.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7], "each once and in order");
    assert!(of_last.iter().all(|wc| wc.status == WcStatus::Flushed));
    // The one that overran the queue reports what had arrived before.
    let of_first = found.iter().filter(|wc| wc.qp == fx.ends[0].1).map(|wc| wc.status);
    assert_eq!(of_first.collect::<Vec<_>>()[..2], [WcStatus::Success, WcStatus::Flushed]);
}

/// A queue that is destroyed meanwhile is forgotten, and so are queue pairs.
#[test]
fn overrun_ends_with_its_queue() {
    let mut fx = Overrun::new();
    let now = fx.fx.now;
    for qp in fx.idle.drain(..).chain([fx.ends[0].1, fx.ends[1].1]) {
        fx.fx.engine.destroy_qp(now, qp);
    }
    fx.fx.engine.forget_cq(CQ);
    let next = fx.fx.engine.create_qp(init(CQ)).unwrap();
    fx.fx.settle();
    assert_eq!(fx.fx.engine.qp_state(next), QpState::Idle);
    fx.send(2, 1);
    assert_eq!(fx.completions(CqId(1)).len(), 1);
}

/// Completion queues that are full.
struct FullQueues;

impl Completions for FullQueues {
    fn push(&mut self, _: CqId, _: Wc) -> bool {
        false
    }
}

/// As other shards find them, more than once each.
#[test]
fn cost_of_an_overrun_is_independent_of_the_number_of_overrun_queues() {
    const QUEUES: u32 = 16_000;
    let mut config = EngineConfig::new(address(1), 24, 7);
    config.qps_max = 1000;
    let arena = Rc::new(VecMemory::new(64));
    let mut engine = Engine::new(config, raw::device(64), arena, FullQueues);
    for _ in 0..1000 {
        engine.create_qp(init(CqId(QUEUES))).unwrap();
    }
    let (mut now, mut polls) = (Instant::from_nanos(1000), LongestPoll::default());
    for _ in 0..2 {
        polls.time(|| (0..QUEUES).for_each(|cq| engine.on_cq_overrun(CqId(cq))));
        now = now + 1000;
        polls.time(|| engine.drive(now));
    }
    let reported: Vec<_> = std::iter::from_fn(|| engine.next_event()).collect();
    let expected: Vec<_> = (0..QUEUES).map(|cq| ConnEvent::CqOverrun { cq: CqId(cq) }).collect();
    assert!(reported == expected, "each once and in order");
    // With a visit of each other queue it takes a second.
    polls.assert_below("overruns of many queues", Duration::from_millis(100));
}
