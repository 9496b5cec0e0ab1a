//! Requests to flush that wait for free slots of a completion queue: what a pass does of them, and
//! what others still get.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use ferrowarp_proto::ddp::vec_memory::VecMemory;
use ferrowarp_proto::engine::{Engine, EngineConfig};
use ferrowarp_proto::time::Instant;
use ferrowarp_proto::verbs::qp::{QpCap, QpInit};
use ferrowarp_proto::verbs::wc::{Completions, CqId, QpId, Wc, WcStatus};
use ferrowarp_proto::verbs::wr::RecvWr;
use ferrowarp_tests::longest_poll::LongestPoll;
use ferrowarp_tests::raw;
use ferrowarp_tests::sim::heap_device::HeapDevice;
use ferrowarp_tests::sim::pairs::PD;
use ferrowarp_tests::sim::world::address;

/// Completion queues with free slots, and the number of attempts to push.
#[derive(Clone, Default)]
struct Queues {
    free: Rc<RefCell<HashMap<CqId, usize>>>,
    reported: Rc<RefCell<Vec<Wc>>>,
    pushes: Rc<Cell<usize>>,
}

impl Completions for Queues {
    fn push(&mut self, cq: CqId, wc: Wc) -> bool {
        self.pushes.set(self.pushes.get() + 1);
        let mut free = self.free.borrow_mut();
        let free = free.entry(cq).or_default();
        let fits = *free > 0;
        if fits {
            *free -= 1;
            self.reported.borrow_mut().push(wc);
        }
        fits
    }

    fn is_full(&self, cq: CqId) -> bool {
        self.free.borrow().get(&cq).is_none_or(|&free| free == 0)
    }
}

struct FlushFixture {
    engine: Engine<HeapDevice, Rc<VecMemory>, Queues>,
    queues: Queues,
    polls: LongestPoll,
    now: Instant,
}

impl FlushFixture {
    fn new(qps_max: usize) -> Self {
        let mut config = EngineConfig::new(address(1), 24, 7);
        config.qps_max = qps_max;
        let queues = Queues::default();
        let arena = Rc::new(VecMemory::new(64));
        let engine = Engine::new(config, raw::device(64), arena, queues.clone());
        Self { engine, queues, polls: LongestPoll::default(), now: Instant::from_nanos(1000) }
    }

    /// A queue pair in the error state with `count` receives to flush to `cq`.
    fn ended(&mut self, cq: u32, count: usize) -> QpId {
        let cq = CqId(cq);
        let init = QpInit { pd: PD, send_cq: cq, recv_cq: cq, cap: QpCap::new(1, count.max(1)) };
        let qp = self.engine.create_qp(init).unwrap();
        for wr_id in 0..count as u64 {
            self.engine.post_recv(qp, RecvWr { wr_id, sg_list: Default::default() }).unwrap();
        }
        self.engine.end_idle_qp(qp);
        qp
    }

    fn free(&self, cq: u32, count: usize) {
        self.queues.free.borrow_mut().insert(CqId(cq), count);
    }

    /// One pass; returns the attempts to push.
    fn pass(&mut self) -> usize {
        self.now = self.now + 1000;
        let Self { engine, queues, polls, now } = self;
        queues.pushes.set(0);
        polls.time(|| engine.drive(*now));
        self.queues.pushes.get()
    }

    fn passes(&mut self, count: usize) {
        for _ in 0..count {
            self.pass();
        }
    }

    /// Passes until none is due; returns their number, and the most attempts of one.
    fn settle(&mut self) -> (usize, usize) {
        let (mut passes, mut most) = (0, 0);
        while self.engine.deadline() == Some(Instant::ZERO) {
            most = most.max(self.pass());
            passes += 1;
            assert!(passes < 100_000, "no end");
        }
        (passes, most)
    }

    /// Number of completions of these queue pairs, which are flushed, each once and in order.
    fn reported(&self, of: impl Fn(QpId) -> bool) -> usize {
        let mut next = HashMap::<QpId, u64>::new();
        let reported = self.queues.reported.borrow();
        let its = reported.iter().filter(|wc| of(wc.qp));
        for wc in its {
            assert_eq!(wc.status, WcStatus::Flushed);
            let next = next.entry(wc.qp).or_default();
            assert_eq!(wc.wr_id, *next);
            *next += 1;
        }
        next.values().map(|&count| usize::try_from(count).expect("a count")).sum()
    }
}

/// Attempts of a pass, at most: with the visits of queue pairs it makes at most 256.
const ATTEMPTS_MAX: usize = 256;

#[test]
fn pass_tries_none_of_many_queue_pairs_behind_a_full_queue() {
    const COUNT: usize = 10_000;
    let mut fx = FlushFixture::new(COUNT + 2);
    let waiting: Vec<_> = (0..COUNT).map(|_| fx.ended(0, 1)).collect();
    let (_, most) = fx.settle();
    assert!(most <= ATTEMPTS_MAX, "{most} attempts");
    assert_eq!(fx.pass(), 0, "attempts at a full queue");
    // Others do not wait with them, one that has ended with them either.
    fx.free(1, 8);
    let other = fx.ended(1, 3);
    fx.pass();
    fx.pass();
    assert_eq!(fx.reported(|qp| qp == other), 3);
    // As space appears each is reported once.
    let mut passes = 0;
    while fx.reported(|_| true) < COUNT + 3 {
        fx.free(0, 100);
        fx.pass();
        passes += 1;
        assert!(passes < 2 * COUNT / 100, "{} after {passes} passes", fx.reported(|_| true));
    }
    assert_eq!(fx.reported(|qp| qp != other), waiting.len());
    fx.polls.assert_below("flushes behind a full queue", Duration::from_millis(20));
}

#[test]
fn many_full_queues_are_looked_at_in_turn() {
    const COUNT: u32 = 1000;
    let mut fx = FlushFixture::new(COUNT as usize);
    for cq in 0..COUNT {
        fx.ended(cq, 2);
    }
    fx.settle();
    assert_eq!(fx.pass(), 0, "attempts at full queues");
    (0..COUNT).step_by(7).for_each(|cq| fx.free(cq, 2));
    for _ in 0..COUNT {
        fx.pass();
    }
    assert_eq!(fx.reported(|_| true), 2 * COUNT.div_ceil(7) as usize);
    fx.polls.assert_below("flushes behind many full queues", Duration::from_millis(20));
}

#[test]
fn long_flush_is_bounded_per_pass_and_shared_among_queues() {
    let mut fx = FlushFixture::new(8);
    for cq in 0..2 {
        fx.free(cq, 100_000);
    }
    let long: Vec<_> = (0..4).map(|_| fx.ended(0, 8192)).collect();
    let most = (0..8).map(|_| fx.pass()).max();
    assert!(most <= Some(ATTEMPTS_MAX), "{most:?} attempts");
    let short = fx.ended(1, 40);
    for _ in 0..8 {
        fx.pass();
    }
    assert_eq!(fx.reported(|qp| qp == short), 40);
    let (passes, most) = fx.settle();
    assert!(most <= ATTEMPTS_MAX && passes > 60, "{most} attempts, {passes} passes");
    assert_eq!(fx.reported(|qp| long.contains(&qp)), 4 * 8192);
    fx.polls.assert_below("long flushes", Duration::from_millis(20));
}

/// Each of them alone has more to flush than a pass may.
#[test]
fn long_flushes_leave_half_of_a_pass_to_queues_that_waited() {
    let mut fx = FlushFixture::new(16);
    let waiting: Vec<_> = (2..6).map(|cq| fx.ended(cq, 8192)).collect();
    fx.settle();
    fx.free(0, 100_000);
    let long: Vec<_> = (0..8).map(|_| fx.ended(0, 8192)).collect();
    for cq in 2..6 {
        fx.free(cq, 100_000);
    }
    for pass in 1..=32 {
        assert!(fx.pass() <= ATTEMPTS_MAX);
        let waited = fx.reported(|qp| waiting.contains(&qp));
        // Two more of the full queues are seen to have free slots in each pass.
        let least = if pass == 1 { 2 * 32 } else { pass * ATTEMPTS_MAX / 2 - 64 };
        assert!(waited >= least, "{waited} after {pass} passes");
    }
    let each: Vec<_> = long.iter().map(|&long| fx.reported(|qp| qp == long)).collect();
    assert!(each.iter().all(|&count| count > 400), "they take turns: {each:?}");
    assert!(each.iter().max().unwrap() - each.iter().min().unwrap() <= 32, "{each:?}");
    fx.polls.assert_below("long flushes and queues that waited", Duration::from_millis(20));
}

/// The next completion queue has the same place in the table.
#[test]
fn destroyed_completion_queue_leaves_nothing_to_its_successor() {
    for was_ready in [false, true] {
        let mut fx = FlushFixture::new(8);
        let [old, new] = [0, 1].map(|generation| CqId::new(3, generation).0);
        // Other full queues, before it in line.
        for cq in 4..7 {
            fx.ended(cq, 1);
        }
        let its = fx.ended(old, 8192);
        fx.settle();
        if was_ready {
            fx.free(old, 100_000);
            fx.passes(4);
        }
        fx.engine.destroy_qp(fx.now, its);
        fx.engine.forget_cq(CqId(old));
        // The port of an application looks at the queue that is in the place now.
        fx.free(old, 1);
        let waiting = fx.ended(new, 40);
        fx.settle();
        assert_eq!(fx.pass(), 0, "attempts at a full queue");
        fx.free(new, 100);
        fx.queues.free.borrow_mut().remove(&CqId(old));
        fx.passes(4);
        assert_eq!(fx.reported(|qp| qp == waiting), 40);
    }
}

#[test]
fn destroying_queue_pairs_that_wait_to_flush_visits_no_others() {
    const COUNT: usize = 16_000;
    let mut fx = FlushFixture::new(COUNT);
    let mut waiting: Vec<_> = (0..COUNT).map(|_| fx.ended(0, 1)).collect();
    fx.settle();
    let kept = waiting.swap_remove(COUNT / 2);
    let FlushFixture { engine, polls, now, .. } = &mut fx;
    polls.time(|| waiting.iter().for_each(|&qp| engine.destroy_qp(*now, qp)));
    fx.free(0, 2);
    fx.pass();
    assert_eq!((fx.reported(|qp| qp == kept), fx.reported(|_| true)), (1, 1));
    // 0.7 s with a visit of each other.
    fx.polls.assert_below("destroying queue pairs", Duration::from_millis(250));
}
