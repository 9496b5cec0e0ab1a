//! Memory footprint of idle connections: thousands of them, measured in resident pages.

use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam};
use ferrowarp_proto::verbs::qp::{QpCap, QpInit};
use ferrowarp_proto::verbs::wc::{CqId, QpId};
use ferrowarp_tests::sim::world::{World, WorldOptions};
use ferrowarp_tests::{process, test_name};

/// Connections at each end.
const CONNECTIONS: usize = 10_000;
/// Connections set up at a time.
const BATCH: usize = 50;
/// Maximum bytes of an idle connection, besides what its queue pair requested.
const BUDGET: usize = 960;
/// Time after which a connection is idle.
const IDLE_NS: u64 = 2 * SECOND;
const PORT: u16 = 4420;

fn queue_pairs(world: &mut World, end: usize) -> Vec<QpId> {
    let init = QpInit { pd: 1, send_cq: CqId(0), recv_cq: CqId(0), cap: QpCap::new(4, 4) };
    (0..CONNECTIONS).map(|_| world.ends[end].engine.create_qp(init).unwrap()).collect()
}

/// Connects the queue pairs, a batch at a time.
fn connect<'a>(world: &mut World, active: &[QpId], passive: &mut impl Iterator<Item = &'a QpId>) {
    let remote = world.socket(1, PORT);
    // The Read queues belong to the queue pair, too, but are allocated when it connects.
    let mut param = ConnParam::default();
    param.ird = 0;
    param.ord = 0;
    for batch in active.chunks(BATCH) {
        for &qp in batch {
            let now = world.now;
            world.ends[0].engine.connect(now, qp, remote, &param).unwrap();
        }
        let mut established = 0;
        let done = world.run_until(10 * SECOND, |world| {
            for end in 0..2 {
                while let Some(event) = world.ends[end].engine.next_event() {
                    match event {
                        ConnEvent::ConnectRequest { request, .. } => {
                            let (now, qp) = (world.now, *passive.next().unwrap());
                            world.ends[end].engine.accept(now, request, qp, &param).unwrap();
                        }
                        ConnEvent::Established { .. } => established += 1,
                        other => panic!("{other:?}"),
                    }
                }
            }
            established == 2 * batch.len()
        });
        assert!(done, "{established} of {}", 2 * batch.len());
        // Buffers used during connection setup are returned, and serve the next batch.
        world.run_for(IDLE_NS);
    }
}

#[test]
fn idle_connection_uses_at_most_960_bytes() {
    if !process::isolated(test_name!()) {
        return;
    }
    let mut world = World::new(&WorldOptions::new(5));
    world.ends[1].engine.listen(PORT, 2 * BATCH).unwrap();
    let qps = [queue_pairs(&mut world, 0), queue_pairs(&mut world, 1)];
    let mut passive = qps[1].iter();
    // Warm-up of pools and tables.
    let (first, others) = qps[0].split_at(2 * BATCH);
    connect(&mut world, first, &mut passive);
    let before = process::resident_bytes();
    connect(&mut world, others, &mut passive);
    let each = (process::resident_bytes() - before) / (2 * others.len());
    println!("{each} bytes for each of {} idle connections, at both ends", others.len());
    for end in &world.ends {
        assert_eq!(end.engine.connection_count(), CONNECTIONS);
    }
    assert!(each <= BUDGET, "{each} bytes");
}
