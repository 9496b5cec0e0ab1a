use ferrowarp_proto::verbs::work_queues::WorkQueues;
use ferrowarp_proto::verbs::wr::{PostError, RecvWr};

use super::*;
use crate::shard::cq_rings::CqProducer;

const CQ: CqId = CqId(0);

/// Engine that records the calls about receives.
struct FakeEngine {
    recvs_posted: Vec<QpId>,
    sends_left: bool,
    rings: CqRings,
}

impl FakeEngine {
    fn new(qps_max: usize) -> Self {
        Self { recvs_posted: Vec::new(), sends_left: false, rings: CqRings::new(qps_max) }
    }
}

impl EngineQueues for FakeEngine {
    fn take_sends(&mut self, _: QpId, _: usize) -> (usize, bool) {
        (usize::from(self.sends_left), self.sends_left)
    }

    fn on_recvs_posted(&mut self, qp: QpId) {
        self.recvs_posted.push(qp);
    }

    fn rings(&mut self) -> &mut CqRings {
        &mut self.rings
    }
}

fn set_up(max: usize) -> (FakeEngine, ShardQp, Arc<QpShared>) {
    let mut engine = FakeEngine::new(1);
    engine.rings.add(CQ, CqProducer::new(4, Arc::default(), None).0);
    let WorkQueues { sends, recvs, tails, .. } = WorkQueues::new(1, max);
    let qp = Arc::new(QpShared::new(sends, recvs));
    let id = QpId { index: 0, generation: 0 };
    let shard_qp = ShardQp::new(id, Arc::clone(&qp), [CQ, CQ], tails);
    (engine, shard_qp, qp)
}

fn post(qp: &QpShared, wr_id: u64) {
    let wr = RecvWr { wr_id, sg_list: Default::default() };
    assert_eq!(qp.post_recvs([wr]), (1, None));
}

#[test]
fn engine_is_told_of_receives_once() {
    let (mut fake, mut shard_qp, qp) = set_up(4);
    (0..3).for_each(|wr_id| post(&qp, wr_id));
    assert!(shard_qp.has_posted());
    assert!(shard_qp.serve(&mut fake, 1).any);
    assert!(!shard_qp.has_posted());
    assert!(!shard_qp.serve(&mut fake, 1).any);
    post(&qp, 3);
    assert!(shard_qp.serve(&mut fake, 1).any);
    assert_eq!(fake.recvs_posted.len(), 2);
}

#[test]
fn requests_before_a_panic_are_published_by_the_next_post() {
    let (_, shard_qp, qp) = set_up(2);
    let wr = || RecvWr { wr_id: 0, sg_list: Default::default() };
    let wrs = (0..3).map(|number| if number < 2 { wr() } else { panic!("as expected") });
    let posting = std::panic::AssertUnwindSafe(|| qp.post_recvs(wrs));
    assert!(std::panic::catch_unwind(posting).is_err());
    assert!(!shard_qp.has_posted());
    // The queue is full until the stack sees them.
    assert_eq!(qp.post_recv(&wr()), Err(PostError::QueueFull));
    assert!(shard_qp.has_posted());
}

#[test]
fn sends_that_are_left_are_taken_by_the_next_poll() {
    let (mut fake, mut shard_qp, _qp) = set_up(1);
    let served = Served { any: false, sends: 0, sends_left: false };
    assert_eq!(shard_qp.serve(&mut fake, 1), served);
    fake.sends_left = true;
    assert_eq!(shard_qp.serve(&mut fake, 1), Served { any: true, sends: 1, sends_left: true });
}

const COUNT: usize = IDLE_COUNT_MAX + 2;

/// A shard with queue pairs that were all rung.
struct Fixture {
    shard_qps: ShardQps,
    qps: Vec<Arc<QpShared>>,
    doorbells: Doorbells,
    engine: FakeEngine,
}

impl Fixture {
    fn new() -> Self {
        let mut shard_qps = ShardQps::new();
        shard_qps.hot_count_max = COUNT;
        let mut fixture = Self {
            shard_qps,
            qps: Vec::new(),
            doorbells: Doorbells::new(COUNT),
            engine: FakeEngine::new(COUNT),
        };
        for index in 0..COUNT {
            let id = QpId { index: u32::try_from(index).unwrap(), generation: 0 };
            let WorkQueues { sends, recvs, tails, .. } = WorkQueues::new(1, 4);
            let qp = Arc::new(QpShared::new(sends, recvs));
            fixture.shard_qps.insert(ShardQp::new(id, Arc::clone(&qp), [CQ; 2], tails));
            fixture.qps.push(qp);
            fixture.doorbells.ring(index);
        }
        fixture.serve_rung();
        fixture
    }

    fn serve_rung(&mut self) {
        let Self { shard_qps, doorbells, engine, .. } = self;
        shard_qps.serve_rung(engine, Instant::ZERO, doorbells);
    }

    fn post(&self, index: usize) {
        let wr = RecvWr { wr_id: 0, sg_list: Default::default() };
        assert_eq!(self.qps[index].post_recvs([wr]), (1, None));
    }

    fn hot_count(&self) -> usize {
        self.qps.iter().filter(|qp| qp.hot().is_hot()).count()
    }
}

#[test]
fn rung_queue_pairs_become_hot_and_need_no_doorbell() {
    let mut fixture = Fixture::new();
    assert_eq!((fixture.hot_count(), fixture.doorbells.has_hot()), (COUNT, true));
    fixture.post(3);
    assert!(!fixture.doorbells.is_pending());
    assert!(fixture.shard_qps.serve_hot(&mut fixture.engine));
    assert_eq!(fixture.engine.recvs_posted.len(), 1);
    assert!(!fixture.shard_qps.serve_hot(&mut fixture.engine));
}

#[test]
fn surplus_of_idle_queue_pairs_is_demoted() {
    let mut fixture = Fixture::new();
    let due = Instant::ZERO + IDLE_NS;
    assert!(fixture.shard_qps.is_demotion_due(due));
    // All were used since they were rung.
    fixture.shard_qps.demote_idle(due, &fixture.doorbells);
    assert_eq!(fixture.hot_count(), COUNT);
    fixture.post(0);
    fixture.shard_qps.serve_hot(&mut fixture.engine);
    fixture.shard_qps.demote_idle(due + IDLE_NS, &fixture.doorbells);
    assert_eq!(fixture.hot_count(), if hot::count_max() > 0 { 4 } else { COUNT });
    assert!(fixture.qps[0].hot().is_hot(), "in use");
}

#[test]
fn demotion_rings_for_requests_that_were_not_taken() {
    let mut fixture = Fixture::new();
    if !hot::count_max() > 0 {
        return;
    }
    fixture.post(5);
    fixture.shard_qps.demote_all(&fixture.doorbells);
    assert_eq!((fixture.hot_count(), fixture.doorbells.has_hot()), (0, false));
    assert!(fixture.doorbells.is_pending());
    fixture.serve_rung();
    assert_eq!(fixture.engine.recvs_posted.len(), 1);
    assert_eq!(fixture.hot_count(), 1, "the one that was rung");
    assert!(!fixture.shard_qps.is_demotion_due(Instant::ZERO + IDLE_NS));
}

#[test]
fn removed_queue_pair_is_not_polled() {
    let mut fixture = Fixture::new();
    let id = fixture.shard_qps.iter().next().unwrap().id;
    fixture.shard_qps.remove(id);
    assert!(fixture.shard_qps.get(id).is_none());
    fixture.post(0);
    assert!(!fixture.shard_qps.serve_hot(&mut fixture.engine));
}
