use ferrowarp_proto::verbs::qp::QpCap;
use ferrowarp_proto::verbs::work_queues::WorkQueues;

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
    let WorkQueues { sends, recvs, tails, .. } = WorkQueues::new(QpCap::new(1, max));
    let qp = Arc::new(QpShared::new(sends, recvs));
    let id = QpId { index: 0, generation: 0 };
    let shard_qp = ShardQp::new(id, Arc::clone(&qp), [CQ, CQ], tails);
    (engine, shard_qp, qp)
}

fn post(qp: &QpShared, wr_id: u64) {
    let mut queue = qp.lock_recvs().unwrap();
    queue.post(wr_id, &[]).unwrap();
    queue.publish();
}

#[test]
fn receives_are_announced_to_the_engine_once() {
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
fn sends_that_are_left_are_taken_by_the_next_poll() {
    let (mut fake, mut shard_qp, _qp) = set_up(1);
    let served = Served { any: false, sends: 0, sends_left: false };
    assert_eq!(shard_qp.serve(&mut fake, 1), served);
    fake.sends_left = true;
    assert_eq!(shard_qp.serve(&mut fake, 1), Served { any: true, sends: 1, sends_left: true });
}

const COUNT: usize = IDLE_COUNT_MAX + 2;

/// A shard with queue pairs that were all rung.
struct RungShard {
    shard_qps: ShardQps,
    qps: Vec<Arc<QpShared>>,
    doorbells: Doorbells,
    engine: FakeEngine,
}

impl RungShard {
    fn new() -> Self {
        let mut shard_qps = ShardQps::new();
        shard_qps.hot_count_max = COUNT;
        let mut shard = Self {
            shard_qps,
            qps: Vec::new(),
            doorbells: Doorbells::new(COUNT),
            engine: FakeEngine::new(COUNT),
        };
        for index in 0..COUNT {
            let id = QpId { index: u32::try_from(index).unwrap(), generation: 0 };
            let WorkQueues { sends, recvs, tails, .. } = WorkQueues::new(QpCap::new(1, 4));
            let qp = Arc::new(QpShared::new(sends, recvs));
            shard.shard_qps.insert(ShardQp::new(id, Arc::clone(&qp), [CQ; 2], tails));
            shard.qps.push(qp);
            shard.doorbells.ring(index);
        }
        shard.serve_rung();
        shard
    }

    fn serve_rung(&mut self) {
        let Self { shard_qps, doorbells, engine, .. } = self;
        shard_qps.serve_rung(engine, Instant::ZERO, doorbells);
    }

    fn post(&self, index: usize) {
        post(&self.qps[index], 0);
    }

    fn hot_count(&self) -> usize {
        self.qps.iter().filter(|qp| qp.hot().is_hot()).count()
    }
}

#[test]
fn rung_queue_pairs_become_hot_and_need_no_doorbell() {
    let mut shard = RungShard::new();
    assert_eq!((shard.hot_count(), shard.doorbells.has_hot()), (COUNT, true));
    shard.post(3);
    assert!(!shard.doorbells.is_pending());
    assert!(shard.shard_qps.serve_hot(&mut shard.engine));
    assert_eq!(shard.engine.recvs_posted.len(), 1);
    assert!(!shard.shard_qps.serve_hot(&mut shard.engine));
}

#[test]
fn surplus_of_idle_queue_pairs_is_demoted() {
    let mut shard = RungShard::new();
    let due = Instant::ZERO + IDLE_NS;
    assert!(shard.shard_qps.is_care_due(due));
    // All were used since they were rung.
    shard.shard_qps.care(due, &shard.doorbells);
    assert_eq!(shard.hot_count(), COUNT);
    shard.post(0);
    shard.shard_qps.serve_hot(&mut shard.engine);
    shard.shard_qps.care(due + IDLE_NS, &shard.doorbells);
    assert_eq!(shard.hot_count(), if hot::count_max() > 0 { 4 } else { COUNT });
    assert!(shard.qps[0].hot().is_hot(), "in use");
}

#[test]
fn demotion_rings_for_requests_that_were_not_taken() {
    let mut shard = RungShard::new();
    if !hot::count_max() > 0 {
        return;
    }
    shard.post(5);
    shard.shard_qps.demote_all(&shard.doorbells);
    assert_eq!((shard.hot_count(), shard.doorbells.has_hot()), (0, false));
    assert!(shard.doorbells.is_pending());
    shard.serve_rung();
    assert_eq!(shard.engine.recvs_posted.len(), 1);
    assert_eq!(shard.hot_count(), 1, "the one that was rung");
    assert!(!shard.shard_qps.is_care_due(Instant::ZERO + IDLE_NS));
}

#[test]
fn removed_queue_pair_is_not_polled() {
    let mut shard = RungShard::new();
    let id = shard.shard_qps.iter().next().unwrap().id;
    shard.shard_qps.remove(id);
    assert!(shard.shard_qps.get(id).is_none());
    shard.post(0);
    assert!(!shard.shard_qps.serve_hot(&mut shard.engine));
}
