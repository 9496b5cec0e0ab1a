//! Receive queue in memory (verbs: RQ): a [work queue](crate::work_queue) of untagged buffers.
//!
//! Each request has the same number of slots, enough for the longest scatter/gather list, and the
//! first holds three elements. So requests are counted without a look at them.
//!
//! | Word | Bits | Content |
//! |---|---|---|
//! | 0 | | `wr_id` |
//! | 1 | 0 to 7 | number of SGEs |
//! | 2 | | `addr` of the first SGE |
//! | 3 | 0 to 31 | `len` of the first SGE |
//! | | 32 to 63 | `lkey` of the first SGE; the others follow in two words each |

#![expect(clippy::cast_possible_truncation, reason = "fields are cut out of words")]

use crate::ddp::regions::Stag;
use crate::ddp::sgl::{SGE_COUNT_MAX, SgList, Sge};
use crate::work_queue::slots::{SLOT_WORDS, Slot, Slots};
use crate::work_queue::{Consumer, Producer, Shape, Tails, work_queues};

/// Word of the work request ID.
const WR_ID: usize = 0;
/// Word of the number of SGEs.
const COUNT: usize = 1;
/// First word of the SGEs.
const SGES: usize = 2;
/// Slots of each request.
const SLOT_COUNT: usize = (SGES + 2 * SGE_COUNT_MAX).div_ceil(SLOT_WORDS);

/// Application's side of a receive queue.
#[derive(Debug)]
pub struct RqProducer(Producer);

/// Stack's side of a receive queue.
#[derive(Debug)]
pub struct RqConsumer {
    ring: Consumer,
}

/// Creates a receive queue for at most `count_max` requests, which shares its memory with no other.
/// Zeroes 128 to 256 bytes for each: the ring is a power of two.
#[must_use]
pub fn recv_queue(count_max: usize) -> (RqProducer, RqConsumer, Tails<1>) {
    let ([queue], tails) = work_queues([shape(count_max)]);
    let (producer, consumer) = from_work_queue(queue);
    (producer, consumer, tails)
}

/// Shape of a receive queue for at most `count_max` requests.
pub(crate) const fn shape(count_max: usize) -> Shape {
    Shape { count_max, slot_count_max: SLOT_COUNT }
}

/// Returns the two sides of a receive queue, of a work queue of its [`shape`].
pub(crate) fn from_work_queue((producer, ring): (Producer, Consumer)) -> (RqProducer, RqConsumer) {
    (RqProducer(producer), RqConsumer { ring })
}

impl RqProducer {
    /// Encodes a request, which [`RqProducer::publish`] passes to the stack; `false`, with nothing
    /// done, if the queue is full.
    #[inline(always)]
    #[must_use]
    pub fn post(&mut self, wr_id: u64, sg_list: &SgList) -> bool {
        self.0.post(|slots, number| {
            let first = slots.get(number);
            first.store(WR_ID, wr_id);
            first.store(COUNT, sg_list.len() as u64);
            for (index, sge) in sg_list.iter().enumerate() {
                let (slot, word) = place_of_sge(slots, first, number, index);
                slot.store(word, sge.addr);
                slot.store(word + 1, u64::from(sge.len) | u64::from(sge.lkey) << 32);
            }
            SLOT_COUNT as u64
        })
    }

    /// Makes the requests posted so far visible to the stack. A plain store with release.
    #[inline]
    pub fn publish(&mut self) {
        self.0.publish();
    }
}

/// Slot and word of SGE `index`, of which no slot has a part.
#[inline(always)]
fn place_of_sge<'a>(
    slots: &'a Slots,
    first: &'a Slot,
    number: u64,
    index: usize,
) -> (&'a Slot, usize) {
    const { assert!(SGES.is_multiple_of(2) && SLOT_WORDS.is_multiple_of(2)) };
    let word = SGES + 2 * index;
    if word < SLOT_WORDS {
        (first, word)
    } else {
        (slots.get(number + (word / SLOT_WORDS) as u64), word % SLOT_WORDS)
    }
}

impl RqConsumer {
    /// Returns the oldest request.
    #[inline]
    pub(crate) fn front(&mut self) -> Option<RecvWqe<'_>> {
        let number = self.ring.next()?;
        let slots = self.ring.slots();
        Some(RecvWqe { slots, first: slots.get(number), number })
    }

    /// Removes the oldest request, which is there; its slots are given back by
    /// [`RqConsumer::publish_retired`].
    #[inline]
    pub(crate) const fn pop_front(&mut self) {
        self.ring.take(SLOT_COUNT as u64);
    }

    /// Returns the number of requests that have left the queue since creation.
    #[inline]
    pub(crate) const fn taken(&self) -> u64 {
        self.ring.taken() / SLOT_COUNT as u64
    }

    /// Returns the number of requests. Loads the tail.
    pub(crate) fn len(&self) -> usize {
        self.ring.published_slots() as usize / SLOT_COUNT
    }

    /// Returns the maximum number of requests.
    pub(crate) const fn count_max(&self) -> usize {
        self.ring.count_max()
    }

    /// Lets the application use the places of the requests that have left the queue, but for so
    /// many.
    #[inline]
    pub(crate) fn publish_retired(&mut self, kept: usize) {
        self.ring.retire(self.taken() - kept as u64);
    }
}

/// A receive request in its slots.
#[derive(Clone, Copy, Debug)]
pub struct RecvWqe<'a> {
    slots: &'a Slots,
    first: &'a Slot,
    /// Number of the first slot.
    number: u64,
}

impl RecvWqe<'_> {
    /// Work request ID, returned in the completion.
    #[inline(always)]
    #[must_use]
    pub fn wr_id(&self) -> u64 {
        self.first.load(WR_ID)
    }

    /// The SGE, if there is one alone.
    #[inline(always)]
    pub(super) fn only_sge(&self) -> Option<Sge> {
        (self.first.load(COUNT) as u8 == 1).then(|| self.sge(0))
    }

    /// Scatter/gather list, filled front to back.
    #[inline]
    #[must_use]
    pub fn sg_list(&self) -> SgList {
        let count = usize::from(self.first.load(COUNT) as u8);
        SgList::first_of((0..count).map(|index| self.sge(index)))
    }

    #[inline(always)]
    fn sge(&self, index: usize) -> Sge {
        let (slot, word) = place_of_sge(self.slots, self.first, self.number, index);
        let rest = slot.load(word + 1);
        Sge { addr: slot.load(word), len: rest as u32, lkey: (rest >> 32) as Stag }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
