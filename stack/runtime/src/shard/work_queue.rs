//! Shard's side of a queue pair's work queues: moves requests from the rings into the engine.

use std::sync::Arc;

use ferrowarp_proto::device::Device;
use ferrowarp_proto::engine::Engine;
use ferrowarp_proto::verbs::wc::{Completions, CqId, QpId, Wc, WcOpcode, WcStatus};
use ferrowarp_proto::verbs::wr::{PostError, RecvWr, SendWr};

use crate::memory::HostMemory;
use crate::shard::cq_rings::CqRings;
use crate::shard::qp::QpShared;
use crate::spsc::Consumer;

/// Send requests taken from one ring per poll.
const TAKE_COUNT_MAX: usize = 64;

/// The engine's side of posting: its work queues, and the rings of its completions.
pub(crate) trait EngineQueues {
    fn free_send_slots(&self, qp: QpId) -> usize;
    fn free_recv_slots(&self, qp: QpId) -> usize;
    fn post_send(&mut self, qp: QpId, wr: SendWr) -> Result<(), PostError>;
    fn post_recv(&mut self, qp: QpId, wr: RecvWr) -> Result<(), PostError>;
    fn rings(&mut self) -> &mut CqRings;
}

impl<D: Device> EngineQueues for Engine<D, HostMemory, CqRings> {
    #[inline]
    fn free_send_slots(&self, qp: QpId) -> usize {
        Self::free_send_slots(self, qp)
    }

    #[inline]
    fn free_recv_slots(&self, qp: QpId) -> usize {
        Self::free_recv_slots(self, qp)
    }

    #[inline]
    fn post_send(&mut self, qp: QpId, wr: SendWr) -> Result<(), PostError> {
        Self::post_send(self, qp, wr)
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

/// Shard's side of a queue pair's rings.
pub(crate) struct Link {
    pub(crate) id: QpId,
    pub(crate) qp: Arc<QpShared>,
    sends: WorkQueue<SendWr>,
    recvs: WorkQueue<RecvWr>,
}

/// Shard's side of one work queue.
struct WorkQueue<T> {
    ring: Consumer<T>,
    cq: CqId,
    /// Capacity of the queue, in requests; the engine's queue has the same.
    max: usize,
    /// Requests taken from the ring since creation.
    taken: u64,
    /// Completion of a request that the engine rejected, to be reported after all requests before
    /// it.
    refused: Option<Wc>,
}

impl<T> WorkQueue<T> {
    const fn new(ring: Consumer<T>, cq: CqId, max: usize) -> Self {
        Self { ring, cq, max, taken: 0, refused: None }
    }

    /// Reports the rejected request, if the engine has completed all before it and the CQ has
    /// space. True if none is left to report.
    fn report(&mut self, free: usize, rings: &mut CqRings) -> bool {
        let Some(wc) = self.refused else {
            return true;
        };
        let done = free >= self.max && rings.push(self.cq, wc);
        if done {
            self.refused = None;
        }
        done
    }

    /// Number of requests that no longer occupy the queue, given the free slots of the engine's
    /// queue.
    fn retired(&self, free: usize) -> u64 {
        let held = self.max.saturating_sub(free) + usize::from(self.refused.is_some());
        self.taken - held as u64
    }
}

/// Result of taking requests from one ring.
struct Taken {
    any: bool,
    /// Some are left for the next poll.
    again: bool,
}

/// Moves at most `max` requests of one work queue into the engine.
fn take<T, E: EngineQueues>(
    queue: &mut WorkQueue<T>,
    max: usize,
    engine: &mut E,
    free_slots: impl Fn(&E) -> usize,
    mut post: impl FnMut(&mut E, T) -> Result<(), Wc>,
) -> Taken {
    let mut taken = Taken { any: false, again: false };
    for _ in 0..max {
        let free = free_slots(engine);
        if !queue.report(free, engine.rings()) {
            taken.again = true;
            return taken;
        }
        if free == 0 {
            break;
        }
        let Some(wr) = queue.ring.pop() else {
            return taken;
        };
        taken.any = true;
        queue.taken += 1;
        queue.refused = post(engine, wr).err();
    }
    taken.again = !queue.ring.is_empty() || queue.refused.is_some();
    taken
}

impl Link {
    pub(crate) fn new(
        id: QpId,
        qp: Arc<QpShared>,
        (sends, send_cq, max_send_wr): (Consumer<SendWr>, CqId, usize),
        (recvs, recv_cq, max_recv_wr): (Consumer<RecvWr>, CqId, usize),
    ) -> Self {
        Self {
            id,
            qp,
            sends: WorkQueue::new(sends, send_cq, max_send_wr),
            recvs: WorkQueue::new(recvs, recv_cq, max_recv_wr),
        }
    }

    /// True if send or receive completions go to `cq`.
    pub(crate) fn uses(&self, cq: CqId) -> bool {
        self.sends.cq == cq || self.recvs.cq == cq
    }

    /// Moves posted requests into the engine. Returns two flags: there were any; the next poll has
    /// to try again.
    pub(crate) fn serve<E: EngineQueues>(&mut self, engine: &mut E) -> (bool, bool) {
        let id = self.id;
        // All receives in one poll: what the application sends after posting them, for example a
        // credit, leaves in the same poll, and the response may need every one of them.
        let recv_count_max = self.recvs.max;
        let recvs = take(
            &mut self.recvs,
            recv_count_max,
            engine,
            |engine| engine.free_recv_slots(id),
            |engine, wr| {
                let wr_id = wr.wr_id;
                engine.post_recv(id, wr).map_err(|error| refusal(id, wr_id, WcOpcode::Recv, error))
            },
        );
        let sends = take(
            &mut self.sends,
            TAKE_COUNT_MAX,
            engine,
            |engine| engine.free_send_slots(id),
            |engine, wr| {
                let (wr_id, opcode) = (wr.wr_id, WcOpcode::from(&wr.operation));
                engine.post_send(id, wr).map_err(|error| refusal(id, wr_id, opcode, error))
            },
        );
        engine.rings().mark_dirty(id);
        (recvs.any || sends.any, recvs.again || sends.again)
    }

    /// Publishes to the application how many requests have left the queues.
    #[inline]
    pub(crate) fn publish_retired(&self, free_sends: usize, free_recvs: usize) {
        self.qp.set_retired(self.sends.retired(free_sends), self.recvs.retired(free_recvs));
    }
}

/// Completion of a request that was posted successfully and that the engine rejects because its
/// state has changed.
fn refusal(qp: QpId, wr_id: u64, opcode: WcOpcode, error: PostError) -> Wc {
    let status = match error {
        PostError::TooLong | PostError::Misaligned => WcStatus::LocalLength,
        PostError::NoReads | PostError::Unsupported => WcStatus::RemoteOperation,
        _ => WcStatus::Flushed,
    };
    Wc {
        wr_id,
        qp,
        status,
        opcode,
        byte_len: 0,
        solicited: false,
        invalidated: None,
        immediate: None,
    }
}

#[cfg(test)]
mod tests {
    use ferrowarp_proto::verbs::wr::{Operation, Payload};

    use super::*;
    use crate::shard::cq_rings::CqProducer;
    use crate::spsc::{Producer, ring};

    const ID: QpId = QpId { index: 0, generation: 0 };
    const RECV_COUNT_MAX: usize = 256;

    /// Engine that takes requests while it has free slots, unless the stream has ended.
    struct Fake {
        free: usize,
        ended: bool,
        taken: Vec<u64>,
        received: usize,
        rings: CqRings,
    }

    impl EngineQueues for Fake {
        fn free_send_slots(&self, _: QpId) -> usize {
            self.free
        }

        fn free_recv_slots(&self, _: QpId) -> usize {
            RECV_COUNT_MAX - self.received
        }

        fn post_send(&mut self, _: QpId, wr: SendWr) -> Result<(), PostError> {
            if self.ended {
                return Err(PostError::WrongState);
            }
            assert!(self.free > 0, "checked first");
            self.free -= 1;
            self.taken.push(wr.wr_id);
            Ok(())
        }

        fn post_recv(&mut self, _: QpId, _: RecvWr) -> Result<(), PostError> {
            self.received += 1;
            Ok(())
        }

        fn rings(&mut self) -> &mut CqRings {
            &mut self.rings
        }
    }

    fn set_up() -> (Fake, Link, Producer<SendWr>, Consumer<Wc>) {
        let mut rings = CqRings::new(1);
        let (producer, completions) = CqProducer::new(4, None);
        let cq = rings.add(producer);
        let (sends, sends_taken) = ring(4);
        let (recvs, recvs_taken) = ring(4);
        let qp = Arc::new(QpShared::new(sends, 4, recvs, 4));
        let link = Link::new(ID, Arc::clone(&qp), (sends_taken, cq, 4), (recvs_taken, cq, 4));
        // Replace the send ring by one that the test fills.
        let (posted, taken) = ring(4);
        let sends = WorkQueue::new(taken, cq, 4);
        (
            Fake { free: 4, ended: false, taken: vec![], received: 0, rings },
            Link { sends, ..link },
            posted,
            completions,
        )
    }

    fn post(ring: &mut Producer<SendWr>, wr_id: u64) {
        let operation =
            Operation::Send { payload: Payload::empty(), solicited: false, invalidate: None };
        ring.push(SendWr { wr_id, operation, signaled: true, fence: false }).unwrap();
        ring.publish();
    }

    #[test]
    fn request_without_a_free_slot_stays_in_the_ring() {
        let (mut fake, mut link, mut posted, _completions) = set_up();
        (0..4).for_each(|wr_id| post(&mut posted, wr_id));
        assert_eq!(link.serve(&mut fake), (true, false));
        post(&mut posted, 4);
        assert_eq!(link.serve(&mut fake), (false, true));
        assert_eq!((fake.taken.as_slice(), link.sends.retired(0)), (&[0, 1, 2, 3][..], 0));
        fake.free = 1;
        assert_eq!(link.serve(&mut fake), (true, false));
        assert_eq!((fake.taken.last(), link.sends.retired(0)), (Some(&4), 1));
    }

    #[test]
    fn receives_are_taken_all_at_once() {
        let (mut fake, link, _sends, _completions) = set_up();
        let (mut posted, taken) = ring(RECV_COUNT_MAX);
        let recvs = WorkQueue::new(taken, link.recvs.cq, RECV_COUNT_MAX);
        let mut link = Link { recvs, ..link };
        for wr_id in 0..RECV_COUNT_MAX as u64 {
            posted.push(RecvWr { wr_id, sg_list: Default::default() }).unwrap();
        }
        posted.publish();
        assert_eq!(link.serve(&mut fake), (true, false));
        assert_eq!(fake.received, RECV_COUNT_MAX);
    }

    #[test]
    fn request_refused_after_the_end_completes_after_all_before_it() {
        let (mut fake, mut link, mut posted, mut completions) = set_up();
        post(&mut posted, 7);
        link.serve(&mut fake);
        fake.ended = true;
        post(&mut posted, 8);
        post(&mut posted, 9);
        assert_eq!(link.serve(&mut fake), (true, true));
        fake.rings.publish();
        assert!(completions.pop().is_none(), "an older request has not completed yet");
        assert_eq!(link.sends.retired(3), 0);
        fake.free = 4;
        assert_eq!(link.serve(&mut fake), (true, false));
        fake.rings.publish();
        let flushed: Vec<_> = std::iter::from_fn(|| completions.pop()).collect();
        let flushed: Vec<_> = flushed.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(flushed, [(8, WcStatus::Flushed), (9, WcStatus::Flushed)]);
        assert_eq!(link.sends.retired(4), 3);
    }
}
