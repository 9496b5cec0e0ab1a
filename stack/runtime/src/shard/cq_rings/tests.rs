use std::iter::from_fn;
use std::sync::Weak;

use ferrowarp_proto::verbs::wc::{WcOpcode, WcStatus};

use super::*;
use crate::shard::cq_overrun::OverrunSink;

const fn wc(wr_id: u64) -> Wc {
    Wc::new(wr_id, QpId { index: 3, generation: 0 }, WcStatus::Success, WcOpcode::Send)
}

#[test]
fn completions_appear_at_publish_and_mark_their_qp_once() {
    let mut rings = CqRings::new(4);
    let (producer, mut consumer) = CqProducer::new(2, Arc::default(), None);
    let cq = CqId(0);
    rings.add(cq, producer);
    assert!(rings.push(cq, wc(1)) && rings.push(cq, wc(2)));
    assert!(!rings.push(cq, wc(3)), "full");
    assert!(consumer.pop().is_none());
    assert_eq!((rings.dirty(0), rings.dirty(1)), (Some(wc(1).qp), None));
    rings.clear_dirty();
    assert_eq!(rings.dirty(0), None);
    rings.publish();
    assert_eq!(consumer.pop().map(|wc| wc.wr_id), Some(1));
    assert!(rings.push(cq, wc(3)), "the freed slot is used");
}

/// Completions of a queue pair, by `wr_id`.
struct Several<'a>(&'a mut Vec<u64>);

impl Completed for Several<'_> {
    fn drain(self, mut accept: impl FnMut(Wc) -> bool) -> bool {
        while let Some(&wr_id) = self.0.first() {
            if !accept(wc(wr_id)) {
                return false;
            }
            self.0.remove(0);
        }
        true
    }
}

#[test]
fn completions_that_do_not_fit_are_left() {
    let mut rings = CqRings::new(4);
    let (producer, mut consumer) = CqProducer::new(2, Arc::default(), None);
    let cq = CqId(0);
    rings.add(cq, producer);
    let mut completed = vec![1, 2, 3, 4, 5];
    assert!(!rings.push_all(cq, Several(&mut completed)));
    assert_eq!(completed, [3, 4, 5]);
    assert_eq!((rings.dirty(0), rings.dirty(1)), (Some(wc(1).qp), None));
    rings.publish();
    assert_eq!(consumer.pop().map(|wc| wc.wr_id), Some(1));
    assert!(!rings.push_all(cq, Several(&mut completed)), "one fits");
    assert_eq!(completed, [4, 5]);
    rings.clear_dirty();
    assert!(!rings.push_all(cq, Several(&mut completed)), "none fits");
    assert_eq!((completed.len(), rings.dirty(0)), (2, None), "no slot was freed");
    rings.publish();
    assert_eq!(from_fn(|| consumer.pop()).map(|wc| wc.wr_id).collect::<Vec<_>>(), [2, 3]);
    assert!(rings.push_all(cq, Several(&mut completed)));
    // Nothing to append is no overrun, not even of a queue that is gone.
    rings.remove(cq);
    assert!(rings.push_all(cq, Several(&mut Vec::new())));
    assert!(!rings.push_all(cq, Several(&mut vec![1])));
}

#[test]
fn overrun_of_another_shard_is_news_once_and_for_the_same_queue() {
    let overrun: Arc<CqOverrun> = Arc::default();
    let mut rings = CqRings::new(4);
    rings.add(CqId(1), CqProducer::new(2, Arc::clone(&overrun), None).0);
    assert!(rings.has_to_end_qps(CqId(1), &overrun));
    assert!(rings.claim_overrun(CqId(1)), "the first");
    assert!(!rings.claim_overrun(CqId(1)));
    assert!(!rings.has_to_end_qps(CqId(1), &overrun), "reported");
    rings.remove(CqId(1));
    rings.add(CqId(1), CqProducer::new(2, Arc::default(), None).0);
    assert!(!rings.has_to_end_qps(CqId(1), &overrun), "of a queue that is gone");
}

/// A shard that waits in vain for the other's message.
struct Sink;

impl OverrunSink for Sink {
    fn end_cq(&self, _: CqId, _: Arc<CqOverrun>) {}
}

/// Two shards with a queue of both.
fn two_shards() -> [(CqRings, Consumer<Wc>); 2] {
    let sinks = [(); 2].map(|()| Weak::<Sink>::new() as Weak<dyn OverrunSink>);
    let overrun = Arc::new(CqOverrun::new(sinks.into()));
    [(); 2].map(|()| {
        let mut rings = CqRings::new(4);
        let (producer, consumer) = CqProducer::new(4, Arc::clone(&overrun), None);
        rings.add(CqId(1), producer);
        (rings, consumer)
    })
}

#[test]
fn overrun_of_another_shard_is_tested_by_each_push() {
    let cq = CqId(1);
    let [(mut first, _), (mut second, mut consumer)] = two_shards();
    assert!(second.push(cq, wc(1)));
    first.claim_overrun(cq);
    assert!(!second.push(cq, wc(2)), "there are three places, but the queue has overrun");
    let mut several = vec![2, 3];
    assert!(!second.push_all(cq, Several(&mut several)));
    assert_eq!(several, [2, 3]);
    assert!(second.push_all(cq, Several(&mut Vec::new())), "nothing to append");
    second.publish();
    assert_eq!(consumer.pop().map(|wc| wc.wr_id), Some(1), "what was before stays");
    assert!(consumer.pop().is_none());
    // Its queue pairs are ended: what they had outstanding is flushed, as in the first shard.
    assert!(!second.claim_overrun(cq), "the first was the other");
    for rings in [&mut first, &mut second] {
        assert!(!rings.push(cq, wc(4)), "not ended yet");
        rings.on_qps_ended(cq);
    }
    let reporters =
        [&mut first, &mut second].map(|rings| rings.take_ended_cq().unwrap().is_reporter);
    assert_eq!(reporters, [true, false]);
    assert!(first.push(cq, wc(4)) && second.push_all(cq, Several(&mut several)));
    second.publish();
    assert_eq!([(); 3].map(|()| consumer.pop().map(|wc| wc.wr_id)), [Some(2), Some(3), None]);
}

#[test]
fn failed_shard_flushes_whatever_overran() {
    let cq = CqId(1);
    let [(mut first, _), (mut second, _consumer)] = two_shards();
    first.claim_overrun(cq);
    assert!(!second.push(cq, wc(1)));
    second.accept_flushed();
    assert!(second.push(cq, wc(1)));
}

#[test]
fn resized_queue_keeps_its_completions_and_its_mark() {
    let mut rings = CqRings::new(4);
    let (producer, mut consumer) = CqProducer::new(4, Arc::default(), None);
    let cq = CqId(0);
    rings.add(cq, producer);
    assert!((1..=3).all(|wr_id| rings.push(cq, wc(wr_id))));
    assert_eq!(rings.resize(cq, &mut consumer, &mut Slots::new(2)), Err(3));
    let mut slots = Slots::new(8);
    assert_eq!(rings.resize(cq, &mut consumer, &mut slots), Ok(()));
    assert_eq!(slots.count(), 4, "those until now");
    assert!((4..=8).all(|wr_id| rings.push(cq, wc(wr_id))) && !rings.push(cq, wc(9)));
    assert!(consumer.pop().is_none() && rings.has_completions(), "not published");
    rings.publish();
    let found = from_fn(|| consumer.pop()).map(|wc| wc.wr_id);
    assert_eq!(found.collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn removed_cq_refuses_completions_and_its_id_is_reused() {
    let mut rings = CqRings::new(4);
    let first = CqId(0);
    rings.add(first, CqProducer::new(2, Arc::default(), None).0);
    assert!(rings.push(first, wc(1)));
    rings.remove(first);
    assert!(!rings.push(first, wc(2)));
    rings.publish();
    rings.add(first, CqProducer::new(2, Arc::default(), None).0);
    assert!(rings.push(first, wc(3)));
    assert!(!rings.push(CqId(7), wc(1)));
}

/// The lock of a channel is held by a thread that is preempted: polls try again in turn, a bounded
/// number of queues each, and raise each event once.
#[test]
fn events_under_a_held_lock_are_raised_in_turn() {
    let count = u32::try_from(3 * RAISED_PER_POLL + 1).unwrap();
    let [held, free] = [(); 2].map(|()| Arc::new(CompEventQueue::new().unwrap()));
    let mut rings = CqRings::new(4);
    let mut consumers = Vec::new();
    for number in 0..count {
        let events = if number + 1 == count { &free } else { &held };
        let notify = Arc::new(CqNotify::new(CqId(number), Arc::clone(events), Box::default()));
        notify.req_notify(Notify::Next);
        let (producer, consumer) = CqProducer::new(2, Arc::default(), Some(notify));
        rings.add(CqId(number), producer);
        consumers.push(consumer);
    }
    let preempted = held.hold();
    for number in (0..count).rev() {
        assert!(rings.push(CqId(number), wc(1)));
    }
    rings.publish();
    assert!(rings.has_deferred() && consumers.iter_mut().all(|consumer| consumer.pop().is_some()));
    assert_eq!(free.pop(), Some(CqId(count - 1)), "another channel does not wait");
    rings.publish();
    drop(preempted);
    let mut polls = 0;
    let mut raised = Vec::new();
    while rings.has_deferred() {
        rings.publish();
        let before = raised.len();
        raised.extend(std::iter::from_fn(|| held.pop()));
        assert!(raised.len() - before <= RAISED_PER_POLL);
        polls += 1;
    }
    assert_eq!((raised.len(), polls), (count as usize - 1, 3));
    raised.sort_unstable_by_key(|cq| cq.0);
    assert!(raised.into_iter().eq((0..count - 1).map(CqId)));
}
