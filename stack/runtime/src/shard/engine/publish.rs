//! What a poll publishes to applications.

use ferrowarp_proto::device::Device;
use ferrowarp_proto::engine::Engine;

use crate::memory::HostMemory;
use crate::shard::cq_rings::CqRings;
use crate::shard::work_queue::Link;

/// Publishes the engine's state of a queue pair to the application, with what it may post.
pub(super) fn publish_state<D: Device>(engine: &Engine<D, HostMemory, CqRings>, link: &Link) {
    link.qp.set_state(engine.qp_state(link.id), engine.qp_send_rights(link.id));
}

/// Publishes the free slots of queues, then completions. Before the end of a poll (`is_last`) the
/// queue pairs stay listed: requests that are taken and complete without a signal free more slots.
#[inline(never)]
pub(super) fn publish_queues<D: Device>(
    engine: &mut Engine<D, HostMemory, CqRings>,
    is_last: bool,
) {
    engine.publish_retired_srqs();
    let mut index = 0;
    while let Some(qp) = engine.completions_mut().dirty(index) {
        engine.publish_retired(qp);
        index += 1;
    }
    if is_last {
        engine.completions_mut().clear_dirty();
    }
    engine.completions_mut().publish();
}
