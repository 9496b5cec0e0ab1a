//! Shard's side of a queue pair's work queues: tells the engine of posted requests.

use std::sync::Arc;

use ferrowarp_proto::device::Device;
use ferrowarp_proto::engine::Engine;
use ferrowarp_proto::verbs::wc::{CqId, QpId};
use ferrowarp_proto::work_queue::Tails;

use crate::memory::HostMemory;
use crate::shard::cq_rings::CqRings;
use crate::shard::qp::QpShared;

/// Send requests taken from one queue per poll.
pub(crate) const TAKE_COUNT_MAX: usize = 256;

/// The engine's side of posting.
pub(crate) trait EngineQueues {
    /// Takes at most `max` posted send requests; returns their number, and whether there are more.
    fn take_sends(&mut self, qp: QpId, max: usize) -> (usize, bool);
    /// Receives were posted.
    fn on_recvs_posted(&mut self, qp: QpId);
    fn rings(&mut self) -> &mut CqRings;
}

impl<D: Device> EngineQueues for Engine<D, HostMemory, CqRings> {
    #[inline]
    fn take_sends(&mut self, qp: QpId, max: usize) -> (usize, bool) {
        Self::take_sends(self, qp, max)
    }

    #[inline]
    fn on_recvs_posted(&mut self, qp: QpId) {
        Self::on_recvs_posted(self, qp);
    }

    #[inline]
    fn rings(&mut self) -> &mut CqRings {
        self.completions_mut()
    }
}

/// Shard's side of a queue pair's work queues, which the engine reads itself.
pub(crate) struct Link {
    pub(crate) id: QpId,
    pub(crate) qp: Arc<QpShared>,
    cqs: [CqId; 2],
    /// Of the send queue and of the receive queue.
    tails: Tails<2>,
    /// Low halves of the tail of the send queue up to which everything was taken, and of that of
    /// the receive queue of which the engine knows: the queues have fewer slots than 2^32.
    seen: [u32; 2],
    /// The shard polls the tails.
    pub(crate) is_hot: bool,
    /// There were requests since this was last cleared.
    pub(crate) is_used: bool,
    /// Overruns of the completion queue of sends, and of receives, of which there was an event.
    overruns_noted: [bool; 2],
}

const _: () = assert!(size_of::<Option<Link>>() == 56, "each queue pair has one");

/// Result of [`Link::serve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    /// There were requests.
    pub(crate) any: bool,
    /// Number of sends taken.
    pub(crate) sends: usize,
    /// There are more: the next poll has to try again.
    pub(crate) sends_left: bool,
}

#[expect(clippy::cast_possible_truncation, reason = "for comparison of numbers that are close")]
#[inline(always)]
const fn low_half(tail: u64) -> u32 {
    tail as u32
}

impl Link {
    /// `cqs`: of sends, of receives.
    pub(crate) fn new(id: QpId, qp: Arc<QpShared>, cqs: [CqId; 2], tails: Tails<2>) -> Self {
        Self {
            id,
            qp,
            cqs,
            tails,
            seen: [0; 2],
            is_hot: false,
            is_used: false,
            overruns_noted: [false; 2],
        }
    }

    /// True if there are requests of which the engine does not know.
    #[inline(always)]
    pub(crate) fn has_posted(&self) -> bool {
        self.tails.load().map(low_half) != self.seen
    }

    /// Notes that `cq`, which it uses, has overrun; false if that was noted before.
    pub(crate) fn has_news_of_overrun(&mut self, cq: CqId) -> bool {
        let mut is_news = false;
        for (noted, _) in self.overruns_noted.iter_mut().zip(self.cqs).filter(|it| it.1 == cq) {
            is_news |= !std::mem::replace(noted, true);
        }
        is_news
    }

    /// Tells the engine of posted requests, and has it take `max` sends at most.
    pub(crate) fn serve<E: EngineQueues>(&mut self, engine: &mut E, max: usize) -> Served {
        let [sq_tail, rq_tail] = self.tails.load().map(low_half);
        let any_recv = self.seen[1] != rq_tail;
        if any_recv {
            self.seen[1] = rq_tail;
            engine.on_recvs_posted(self.id);
        }
        let (sends, sends_left) = engine.take_sends(self.id, max);
        if !sends_left {
            // Or more: those that were posted meanwhile cost one call that takes nothing.
            self.seen[0] = sq_tail;
        }
        self.is_used = true;
        engine.rings().mark_dirty(self.id);
        Served { any: any_recv || sends > 0, sends, sends_left }
    }
}

#[cfg(test)]
mod tests {
    use ferrowarp_proto::verbs::work_queues::WorkQueues;
    use ferrowarp_proto::verbs::wr::{PostError, RecvWr};

    use super::*;
    use crate::shard::cq_rings::CqProducer;

    const ID: QpId = QpId { index: 0, generation: 0 };
    const CQ: CqId = CqId(0);

    /// Engine that counts the calls about receives.
    struct Fake {
        recvs_posted: usize,
        sends_left: bool,
        rings: CqRings,
    }

    impl EngineQueues for Fake {
        fn take_sends(&mut self, _: QpId, _: usize) -> (usize, bool) {
            (usize::from(self.sends_left), self.sends_left)
        }

        fn on_recvs_posted(&mut self, _: QpId) {
            self.recvs_posted += 1;
        }

        fn rings(&mut self) -> &mut CqRings {
            &mut self.rings
        }
    }

    fn set_up(max: usize) -> (Fake, Link, Arc<QpShared>) {
        let mut rings = CqRings::new(1);
        rings.add(CQ, CqProducer::new(4, Arc::default(), None).0);
        let WorkQueues { sends, recvs, tails, .. } = WorkQueues::new(1, max);
        let qp = Arc::new(QpShared::new(sends, recvs));
        let link = Link::new(ID, Arc::clone(&qp), [CQ, CQ], tails);
        (Fake { recvs_posted: 0, sends_left: false, rings }, link, qp)
    }

    fn post(qp: &QpShared, wr_id: u64) {
        let wr = RecvWr { wr_id, sg_list: Default::default() };
        assert_eq!(qp.post_recvs([wr]), (1, None));
    }

    #[test]
    fn engine_is_told_of_receives_once() {
        let (mut fake, mut link, qp) = set_up(4);
        (0..3).for_each(|wr_id| post(&qp, wr_id));
        assert!(link.has_posted());
        assert!(link.serve(&mut fake, 1).any);
        assert!(!link.has_posted());
        assert!(!link.serve(&mut fake, 1).any);
        post(&qp, 3);
        assert!(link.serve(&mut fake, 1).any);
        assert_eq!(fake.recvs_posted, 2);
    }

    #[test]
    fn requests_before_a_panic_are_published_by_the_next_post() {
        let (_, link, qp) = set_up(2);
        let wr = || RecvWr { wr_id: 0, sg_list: Default::default() };
        let wrs = (0..3).map(|number| if number < 2 { wr() } else { panic!("as expected") });
        let posting = std::panic::AssertUnwindSafe(|| qp.post_recvs(wrs));
        assert!(std::panic::catch_unwind(posting).is_err());
        assert!(!link.has_posted());
        // The queue is full until the stack sees them.
        assert_eq!(qp.post_recv(&wr()), Err(PostError::QueueFull));
        assert!(link.has_posted());
    }

    #[test]
    fn sends_that_are_left_are_taken_by_the_next_poll() {
        let (mut fake, mut link, _qp) = set_up(1);
        let served = Served { any: false, sends: 0, sends_left: false };
        assert_eq!(link.serve(&mut fake, 1), served);
        fake.sends_left = true;
        assert_eq!(link.serve(&mut fake, 1), Served { any: true, sends: 1, sends_left: true });
    }
}
