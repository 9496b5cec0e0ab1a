//! Change of a completion queue's capacity while it is in use (`ibv_resize_cq`).
//!
//! Each shard exchanges the slots of its ring between two of its polls: the thread that resizes
//! holds the shard's lock then, which excludes the producer, and the lock of the ring's consumer.
//! With both it moves the completions over, so that none is lost, doubled or overtaken, and no side
//! needs to know of the slots before. The indices of the ring stay ([`ferrowarp_lockfree::spsc`]):
//! threads that look whether it is empty, without a lock, notice nothing, and what arming and
//! notifying rely on is unchanged. So pushing and polling pay nothing for it.
//!
//! The locks are taken in this order, and the second is only tried: a thread that polls may have
//! been preempted with it, and the shard is not to wait for that.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use ferrowarp_lockfree::spsc::Slots;
use ferrowarp_lockfree::sync::Backoff;
use ferrowarp_proto::verbs::wc::{CqId, Wc};
use ferrowarp_proto::work_queue::WORK_REQUESTS_MAX;

use super::{Accounted, Cq, CqInner, CqRing};
use crate::error::ResizeError;
use crate::shard::Shard;

impl Cq {
    /// Changes the capacity to at least `entries` completions of each shard that feeds the queue
    /// (`ibv_resize_cq`), while shards complete requests and threads poll: no completion is lost,
    /// doubled or reordered, and a pending request for notification stays.
    ///
    /// Waits for each shard in turn, for one poll of another thread at most, as other control calls
    /// do; a shard that no thread polls is not waited for. The shard then stands still while the
    /// completions in its ring are moved, some nanoseconds for each. The ring of a shard that has
    /// failed stays as it is: nothing is added to it. An overrun from before is not undone, but
    /// flushed completions that found no place get one.
    ///
    /// # Errors
    /// [`ResizeError`]: `TooFew` if more completions are in the ring of a shard than fit the new
    /// one, which has `entries` places, rounded up to a power of two. They are counted while
    /// neither the shard nor a poll changes them. If the ring of a shard is found too full after
    /// those of others were shrunk, these get their former capacity back; a ring that overran
    /// meanwhile has overrun. `Limit` as for [`Context::create_cq`](crate::Context::create_cq),
    /// where the additional entries count alone; `TooLong`; `Ended`.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, entries: usize) -> Result<(), ResizeError> {
        self.inner.resize(entries)
    }

    /// Capacity, as asked for at creation or by the last [`Cq::resize`], in completions of each
    /// shard that feeds the queue.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.inner.capacity.load(Ordering::Relaxed)
    }
}

impl CqInner {
    fn resize(&self, entries: usize) -> Result<(), ResizeError> {
        self.check_fed()?;
        if entries > WORK_REQUESTS_MAX {
            return Err(ResizeError::TooLong { wanted: entries, limit: WORK_REQUESTS_MAX });
        }
        let mut accounted = self.accounted.lock().unwrap_or_else(PoisonError::into_inner);
        let Accounted { of_rings, permit } = &mut *accounted;
        let more = of_rings.iter().map(|&had| entries.saturating_sub(had));
        permit.grow(more.fold(0, usize::saturating_add))?;
        let rings: Box<[_]> = self.rings().collect();
        let resized = self.check_fit(entries).and_then(|()| {
            let resized = resize_all(of_rings, entries, |at, entries| {
                let (_, (owner, ring)) = rings[at];
                ring.resize(owner, self.id, entries)
            });
            resized.map_err(|(at, held)| ResizeError::TooFew { shard: rings[at].0, held, entries })
        });
        permit.shrink_to(of_rings.iter().fold(0, |sum, &of_ring| sum.saturating_add(of_ring)));
        if resized? {
            self.capacity.store(entries, Ordering::Relaxed);
            Ok(())
        } else {
            Err(self.context.why_no_shard().into())
        }
    }

    /// Fails if a ring of a shard that runs holds too many completions now. Most times this finds
    /// out before anything is changed.
    fn check_fit(&self, entries: usize) -> Result<(), ResizeError> {
        let count = Slots::<Wc>::count_for(entries);
        for (shard, (owner, ring)) in self.rings() {
            let held = ring.peek.len_min();
            if held > count && !owner.has_ended() {
                return Err(ResizeError::TooFew { shard, held, entries });
            }
        }
        Ok(())
    }

    /// Returns the rings, each with its shard and the number of that.
    fn rings(&self) -> impl Iterator<Item = (usize, (&Arc<Shard>, &CqRing))> {
        let first = self.shard.as_ref().map_or(0, |&(shard, _)| shard);
        let shards = self.context.shards.iter().enumerate().skip(first);
        let rings = std::iter::once(&self.first).chain(&self.others);
        shards.zip(rings).map(|((index, shard), ring)| (index, (shard, ring)))
    }
}

/// Calls `resize` with each ring, by its place in `of_rings`, and its new capacity; notes those
/// for which it returns true, and returns true if any is among them. After an error those before
/// get their former capacity back, and the place is returned with the error.
fn resize_all(
    of_rings: &mut [usize],
    entries: usize,
    mut resize: impl FnMut(usize, usize) -> Result<bool, usize>,
) -> Result<bool, (usize, usize)> {
    let before: Box<[usize]> = (&*of_rings).into();
    let mut is_any = false;
    for at in 0..before.len() {
        match resize(at, entries) {
            Ok(true) => (of_rings[at], is_any) = (entries, true),
            Ok(false) => {}
            Err(held) => {
                for at in (0..at).filter(|&at| before[at] != entries) {
                    // More than it was shrunk to, so that what it holds fits.
                    if resize(at, before[at]) == Ok(true) {
                        of_rings[at] = before[at];
                    }
                }
                return Err((at, held));
            }
        }
    }
    Ok(is_any)
}

impl CqRing {
    /// Gives the ring slots for `entries` completions. False if the shard has ended, and the ring
    /// stays as it is.
    ///
    /// # Errors
    /// The number of completions in the ring, if they do not fit.
    fn resize(&self, shard: &Shard, cq: CqId, entries: usize) -> Result<bool, usize> {
        // Made and freed without a lock.
        let mut slots = Slots::new(entries);
        let mut backoff = Backoff::default();
        loop {
            let resized = shard.control(|engine, _| {
                let mut consumer = self.ring.try_lock()?;
                Some(engine.resize_cq(cq, &mut consumer, &mut slots))
            });
            match resized {
                Err(_) => return Ok(false),
                Ok(None) => backoff.wait(),
                Ok(Some(result)) => return result.map(|()| true),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resizes rings that hold these numbers of completions; `None`: the shard has ended. Returns
    /// the sizes of the rings as well.
    fn resize(
        held: [Option<usize>; 3],
        of_rings: &mut [usize; 3],
        entries: usize,
    ) -> (Result<bool, (usize, usize)>, [usize; 3]) {
        let mut sizes = *of_rings;
        let result = resize_all(of_rings, entries, |at, entries| match held[at] {
            Some(held) if held > entries => Err(held),
            Some(_) => {
                sizes[at] = entries;
                Ok(true)
            }
            None => Ok(false),
        });
        (result, sizes)
    }

    #[test]
    fn all_rings_are_resized_or_none() {
        let mut of_rings = [8, 8, 8];
        assert_eq!(resize([Some(2), Some(4), Some(0)], &mut of_rings, 4), (Ok(true), [4, 4, 4]));
        assert_eq!(of_rings, [4, 4, 4]);
        let refused = resize([Some(2), Some(1), Some(3)], &mut of_rings, 2);
        assert_eq!((refused, of_rings), ((Err((2, 3)), [4, 4, 4]), [4, 4, 4]));
    }

    #[test]
    fn ring_of_an_ended_shard_keeps_its_capacity() {
        let mut of_rings = [8, 8, 8];
        assert_eq!(resize([None, Some(0), Some(2)], &mut of_rings, 4), (Ok(true), [8, 4, 4]));
        assert_eq!(of_rings, [8, 4, 4]);
        let refused = resize([None, Some(0), Some(4)], &mut of_rings, 2);
        assert_eq!((refused, of_rings), ((Err((2, 4)), [8, 4, 4]), [8, 4, 4]));
        assert_eq!(resize([None; 3], &mut of_rings, 16), (Ok(false), [8, 4, 4]));
        assert_eq!(of_rings, [8, 4, 4]);
    }
}
