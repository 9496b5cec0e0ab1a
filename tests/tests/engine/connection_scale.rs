//! Ten thousand connections between two engines in virtual time: memory and work of an idle
//! connection, and that the work per packet does not depend on their number.
//!
//! Memory is the growth of the process's resident set (`/proc/self/statm`) from before the first
//! connection to after the last one has been idle for a few seconds, less what the queue pairs took
//! when they were created, halved for the two ends. Time is the CPU time of this thread
//! (`/proc/thread-self/schedstat`), to exclude most of the influence of other processes; the
//! fastest of several rounds counts.

use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::wc::{QpId, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, Payload, SendWr, Sge};
use ferrowarp_tests::sim::heap_device::PoolSizes;
use ferrowarp_tests::sim::pairs::{CQ, handshake, qp_init, register};
use ferrowarp_tests::sim::world::{World, WorldOptions};
use ferrowarp_tests::{process, test_name};

const COUNT: usize = 10_000;
/// Bytes of an RDMA Write, and Writes per round.
const WRITE_LEN: u32 = 64 * 1024;
const WRITES: u64 = 200;

fn busy_ns() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split(' ').next()?.parse().ok()
}

struct ManyConnections {
    world: World,
    stags: [u32; 2],
    qps: Vec<[QpId; 2]>,
    connected: usize,
}

impl ManyConnections {
    fn new() -> Self {
        let options = WorldOptions {
            arena_len: 1 << 20,
            pools: PoolSizes { data: 1 << 14, reserve: 64, control: 1 << 14 },
            ..WorldOptions::new(1)
        };
        let world = World::new(&options);
        let stags = [0, 1].map(|end| register(&world, end, 0, u64::from(WRITE_LEN)));
        Self { world, stags, qps: Vec::new(), connected: 0 }
    }

    fn make_queue_pairs(&mut self, count: usize) {
        let ends = &mut self.world.ends;
        for _ in 0..count {
            let mut make =
                |end: usize| ends[end].engine.create_qp(qp_init(4, 4)).expect("a free queue pair");
            self.qps.push([make(0), make(1)]);
        }
    }

    /// Connects all queue pairs that are not connected yet.
    fn connect(&mut self) {
        for &qps in &self.qps[self.connected..] {
            handshake(&mut self.world, qps, &Default::default());
        }
        self.connected = self.qps.len();
    }

    /// Advances time without new work.
    fn idle(&mut self, ns: u64) {
        let end = self.world.now + ns;
        while self.world.now < end && self.world.step() {}
    }

    /// Writes on the last connection; returns the time per frame in nanoseconds.
    fn write(&mut self) -> f64 {
        let [qp, _] = *self.qps.last().expect("connected");
        let (frames, start) = (self.world.frames, busy_ns().unwrap_or(0));
        for number in 0..WRITES {
            let gather = Sge { addr: 0, len: WRITE_LEN, lkey: self.stags[0] };
            let payload = Payload::Gather([gather].into());
            let operation = Operation::Write { payload, rkey: self.stags[1], remote: 0 };
            let wr = SendWr { wr_id: number, operation, signaled: true, fence: false };
            self.world.ends[0].engine.post_send(qp, wr).expect("a free slot");
            let done = self.world.run_until(SECOND, |world| {
                let wc = world.ends[0].queues.poll(CQ);
                wc.is_some_and(|wc| {
                    assert_eq!(wc.status, WcStatus::Success);
                    true
                })
            });
            assert!(done, "write {number}");
        }
        let spent = busy_ns().unwrap_or(0) - start;
        spent as f64 / (self.world.frames - frames) as f64
    }
}

#[test]
fn cost_per_frame_is_independent_of_connection_count() {
    if !process::isolated(test_name!()) {
        return;
    }
    let mut many = ManyConnections::new();
    // Warm-up: everything that is allocated only once.
    many.make_queue_pairs(100);
    many.connect();
    let few = (0..5).map(|_| many.write()).fold(f64::MAX, f64::min);

    let before_queues = process::resident_bytes();
    many.make_queue_pairs(COUNT - 100);
    let before = process::resident_bytes();
    many.connect();
    many.idle(5 * SECOND);
    let after = process::resident_bytes();
    for end in &many.world.ends {
        let usage = end.engine.usage();
        assert_eq!((usage.connections, usage.tuples), (COUNT, COUNT), "{usage:?}");
        assert_eq!((usage.ooo_frames, usage.ooo_bytes, usage.partial_fpdus), (0, 0, 0));
        // At most four timers per connection.
        assert!(usage.timers <= 4 * COUNT, "{usage:?}");
        assert_eq!(end.engine.device().frames_in_use(), 0, "an idle connection keeps no frame");
    }
    let per_queue_pair = (before - before_queues) / (2 * (COUNT - 100));
    let per_connection = (after - before) / (2 * (COUNT - 100));
    println!("{per_connection} bytes per idle connection, {per_queue_pair} per queue pair");

    let many_ns = (0..5).map(|_| many.write()).fold(f64::MAX, f64::min);
    println!("{few:.0} ns per frame with 100 connections, {many_ns:.0} with {COUNT}");
    // Caches are colder; a scan of all connections would cost a thousand times as much.
    assert!(many_ns < 4.0 * few, "{many_ns} ns against {few}");
}
