use crate::config::EngineConfig;
use crate::ddp::vec_memory::VecMemory;
use crate::device::test_device::TestDevice;
use crate::engine::Engine;
use crate::time::Instant;
use crate::verbs::cm::ConnParam;
use crate::verbs::qp::QpInit;
use crate::verbs::wc::{Completions, CqId, Wc};

struct NoCompletions;

impl Completions for NoCompletions {
    fn push(&mut self, _: CqId, _: Wc) -> bool {
        true
    }
}

/// A connection that ends on a list leaves its entry there, which must not serve the next one in
/// its slot.
#[test]
fn connection_in_a_reused_slot_is_listed_once() {
    let config = EngineConfig::new("198.18.0.1".parse().unwrap(), 24, 7);
    let mut engine = Engine::new(config, TestDevice::new(), VecMemory::new(64), NoCompletions);
    let (now, cq) = (Instant::ZERO, CqId(0));
    let init = QpInit { pd: 1, send_cq: cq, recv_cq: cq, max_send_wr: 4, max_recv_wr: 4 };
    for is_replaced in [true, false] {
        let qp = engine.create_qp(init).unwrap();
        let remote = "198.18.0.2:4420".parse().unwrap();
        engine.connect(now, qp, remote, &ConnParam::default()).unwrap();
        let (conn, cx) = engine.at(0).unwrap();
        conn.make_ready(&mut cx.schedule);
        if is_replaced {
            engine.disconnect(now, qp).unwrap();
        }
    }
    let schedule = &engine.cx.schedule;
    for list in [schedule.ready.clone(), schedule.unresolved.clone()] {
        assert_eq!(list.into_iter().filter(|&entry| engine.by_id(entry).is_some()).count(), 1);
    }
}
