//! Shard's side of a queue pair's work queues: passes posted requests to the engine.

use std::sync::Arc;

use ferrowarp_proto::device::Device;
use ferrowarp_proto::engine::Engine;
use ferrowarp_proto::rdmap::send_queue::SqTail;
use ferrowarp_proto::verbs::wc::{CqId, QpId};
use ferrowarp_proto::verbs::wr::{PostError, RecvWr};

use crate::memory::HostMemory;
use crate::shard::cq_rings::CqRings;
use crate::shard::qp::QpShared;
use crate::spsc::Consumer;

/// Send requests taken from one queue per poll.
const TAKE_COUNT_MAX: usize = 256;

/// The engine's side of posting.
pub(crate) trait EngineQueues {
    fn free_recv_slots(&self, qp: QpId) -> usize;
    /// Takes at most `max` posted send requests; returns their number, and whether there are more.
    fn take_sends(&mut self, qp: QpId, max: usize) -> (usize, bool);
    fn post_recv(&mut self, qp: QpId, wr: RecvWr) -> Result<(), PostError>;
    fn rings(&mut self) -> &mut CqRings;
}

impl<D: Device> EngineQueues for Engine<D, HostMemory, CqRings> {
    #[inline]
    fn free_recv_slots(&self, qp: QpId) -> usize {
        Self::free_recv_slots(self, qp)
    }

    #[inline]
    fn take_sends(&mut self, qp: QpId, max: usize) -> (usize, bool) {
        Self::take_sends(self, qp, max)
    }

    #[inline]
    fn post_recv(&mut self, qp: QpId, wr: RecvWr) -> Result<(), PostError> {
        Self::post_recv(self, qp, wr)
    }

    #[inline]
    fn rings(&mut self) -> &mut CqRings {
        self.completions_mut()
    }
}

/// Shard's side of a queue pair's work queues. The engine reads the send queue itself.
pub(crate) struct Link {
    pub(crate) id: QpId,
    pub(crate) qp: Arc<QpShared>,
    cqs: [CqId; 2],
    recvs: RecvRing,
    sq_tail: SqTail,
    /// Tail of the send queue up to which everything was taken.
    sq_taken: u64,
    /// The shard polls the tails.
    pub(crate) is_hot: bool,
    /// There were requests since this was last cleared.
    pub(crate) is_used: bool,
}

/// Shard's side of a receive queue.
struct RecvRing {
    ring: Consumer<RecvWr>,
    /// Capacity of the queue, in requests; the engine's queue has the same.
    max: usize,
    /// Requests taken from the ring since creation.
    taken: u64,
}

impl RecvRing {
    /// Moves posted requests into the engine. Returns two flags: there were any; some are left.
    #[inline]
    fn take(&mut self, id: QpId, engine: &mut impl EngineQueues) -> (bool, bool) {
        if self.ring.is_empty() { (false, false) } else { self.take_posted(id, engine) }
    }

    #[inline(never)]
    fn take_posted(&mut self, id: QpId, engine: &mut impl EngineQueues) -> (bool, bool) {
        let mut free = engine.free_recv_slots(id);
        let mut any = false;
        while free > 0
            && let Some(wr) = self.ring.pop()
        {
            // The engine has a free slot, and takes receives in each state.
            let posted = engine.post_recv(id, wr);
            debug_assert_eq!(posted, Ok(()));
            free -= 1;
            self.taken += 1;
            any = true;
        }
        (any, !self.ring.is_empty())
    }
}

impl Link {
    pub(crate) const fn new(
        id: QpId,
        qp: Arc<QpShared>,
        [send_cq, recv_cq]: [CqId; 2],
        sq_tail: SqTail,
        ring: Consumer<RecvWr>,
        max_recv_wr: usize,
    ) -> Self {
        let recvs = RecvRing { ring, max: max_recv_wr, taken: 0 };
        Self {
            id,
            qp,
            cqs: [send_cq, recv_cq],
            recvs,
            sq_tail,
            sq_taken: 0,
            is_hot: false,
            is_used: false,
        }
    }

    /// True if requests were posted and not taken.
    #[inline(always)]
    pub(crate) fn has_posted(&mut self) -> bool {
        self.sq_tail.load() != self.sq_taken || !self.recvs.ring.is_empty()
    }

    /// True if send or receive completions go to `cq`.
    pub(crate) fn uses(&self, cq: CqId) -> bool {
        self.cqs.contains(&cq)
    }

    /// Takes posted requests into the engine. Returns two flags: there were any; the next poll has
    /// to try again.
    pub(crate) fn serve<E: EngineQueues>(&mut self, engine: &mut E) -> (bool, bool) {
        // All receives in one poll: what the application sends after posting them, for example a
        // credit, leaves in the same poll, and the response may need every one of them.
        let (any_recv, recvs_left) = self.recvs.take(self.id, engine);
        let sq_tail = self.sq_tail.load();
        let (sends, sends_left) = engine.take_sends(self.id, TAKE_COUNT_MAX);
        if !sends_left {
            // Or more: those that were posted meanwhile cost one call that takes nothing.
            self.sq_taken = sq_tail;
        }
        self.is_used = true;
        engine.rings().mark_dirty(self.id);
        (any_recv || sends > 0, recvs_left || sends_left)
    }

    /// Publishes to the application how many receives have left the queue, given the free slots of
    /// the engine's.
    #[inline]
    pub(crate) fn publish_retired(&self, free_recvs: usize) {
        let held = self.recvs.max.saturating_sub(free_recvs);
        self.qp.set_retired_recvs(self.recvs.taken - held as u64);
    }
}

#[cfg(test)]
mod tests {
    use ferrowarp_proto::rdmap::requester::Requester;

    use super::*;
    use crate::shard::cq_rings::CqProducer;
    use crate::spsc::{Producer, ring};

    const ID: QpId = QpId { index: 0, generation: 0 };
    const CQ: CqId = CqId(0);
    const RECV_COUNT_MAX: usize = 256;

    /// Engine that takes receives while it has free slots.
    struct Fake {
        free: usize,
        received: Vec<u64>,
        sends_left: bool,
        rings: CqRings,
    }

    impl EngineQueues for Fake {
        fn free_recv_slots(&self, _: QpId) -> usize {
            self.free
        }

        fn take_sends(&mut self, _: QpId, _: usize) -> (usize, bool) {
            (usize::from(self.sends_left), self.sends_left)
        }

        fn post_recv(&mut self, _: QpId, wr: RecvWr) -> Result<(), PostError> {
            assert!(self.free > 0, "checked first");
            self.free -= 1;
            self.received.push(wr.wr_id);
            Ok(())
        }

        fn rings(&mut self) -> &mut CqRings {
            &mut self.rings
        }
    }

    fn set_up(max: usize) -> (Fake, Link, Producer<RecvWr>) {
        let mut rings = CqRings::new(1);
        assert_eq!(rings.add(CqProducer::new(4, None).0), CQ);
        let (_, producer) = Requester::with_producer(1);
        let (sq_tail, (unused, _)) = (producer.tail(), ring(1));
        let qp = Arc::new(QpShared::new(producer, unused, 1));
        let (posted, taken) = ring(max);
        let link = Link::new(ID, qp, [CQ, CQ], sq_tail, taken, max);
        (Fake { free: max, received: vec![], sends_left: false, rings }, link, posted)
    }

    fn post(ring: &mut Producer<RecvWr>, wr_id: u64) {
        ring.push(RecvWr { wr_id, sg_list: Default::default() }).unwrap();
        ring.publish();
    }

    #[test]
    fn request_without_a_free_slot_stays_in_the_ring() {
        let (mut fake, mut link, mut posted) = set_up(4);
        (0..4).for_each(|wr_id| post(&mut posted, wr_id));
        assert_eq!(link.serve(&mut fake), (true, false));
        post(&mut posted, 4);
        assert_eq!(link.serve(&mut fake), (false, true));
        assert_eq!(fake.received, [0, 1, 2, 3]);
        fake.free = 1;
        assert_eq!(link.serve(&mut fake), (true, false));
        assert_eq!((fake.received.last(), link.recvs.taken), (Some(&4), 5));
    }

    #[test]
    fn receives_are_taken_all_at_once() {
        let (mut fake, mut link, mut posted) = set_up(RECV_COUNT_MAX);
        (0..RECV_COUNT_MAX as u64).for_each(|wr_id| post(&mut posted, wr_id));
        assert_eq!(link.serve(&mut fake), (true, false));
        assert_eq!(fake.received.len(), RECV_COUNT_MAX);
    }

    #[test]
    fn sends_that_are_left_are_taken_by_the_next_poll() {
        let (mut fake, mut link, _posted) = set_up(1);
        assert_eq!(link.serve(&mut fake), (false, false));
        fake.sends_left = true;
        assert_eq!(link.serve(&mut fake), (true, true));
    }
}
