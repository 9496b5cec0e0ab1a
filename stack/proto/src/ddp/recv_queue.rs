//! Receive queue in memory (verbs: RQ): a [work queue](crate::work_queue) of untagged buffers.
//!
//! Each request has the same number of slots, a power of two that is enough for the longest
//! scatter/gather list that the queue was made for; the first holds three elements. So requests are
//! counted without a look at them.
//!
//! | Word | Bits | Content |
//! |---|---|---|
//! | 0 | | `wr_id` |
//! | 1 | 0 to 7 | number of SGEs |
//! | 2 | | `addr` of the first SGE |
//! | 3 | 0 to 31 | `len` of the first SGE |
//! | | 32 to 63 | `lkey` of the first SGE; the others follow in two words each |

#![expect(clippy::cast_possible_truncation, reason = "fields are cut out of words")]

use std::collections::VecDeque;

use crate::ddp::regions::Stag;
use crate::ddp::sgl::{SGE_COUNT_MAX, Sge};
use crate::work_queue::slots::{SLOT_WORDS, Slot, Slots};
use crate::work_queue::{Consumer, PostError, Producer, RequestMax, Shape, Tails, work_queues};

/// Word of the work request ID.
const WR_ID: usize = 0;
/// Word of the number of SGEs.
const COUNT: usize = 1;
/// First word of the SGEs.
const SGES: usize = 2;

/// Capacity of a receive queue (verbs: the fields of `ibv_qp_cap` for receives, or of
/// `ibv_srq_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RqCap {
    /// Outstanding requests.
    pub max_recv_wr: usize,
    /// Scatter/gather elements of a request, at most [`SGE_COUNT_MAX`].
    pub max_recv_sge: usize,
}

impl RqCap {
    /// A queue whose requests have two slots: 6 elements at most.
    #[must_use]
    pub const fn new(max_recv_wr: usize) -> Self {
        Self { max_recv_wr, max_recv_sge: 6 }
    }

    /// Shape of its work queue.
    ///
    /// # Panics
    /// If a request is to have more elements than any may.
    pub(crate) const fn shape(self) -> Shape {
        let Self { max_recv_wr, max_recv_sge } = self;
        assert!(max_recv_sge <= SGE_COUNT_MAX);
        let slot_count = (SGES + 2 * max_recv_sge).div_ceil(SLOT_WORDS).next_power_of_two();
        let max = RequestMax { sge_count: max_recv_sge as u8, len: slot_count as u16 };
        Shape { count_max: max_recv_wr, slot_count, max }
    }
}

/// Application's side of a receive queue.
#[derive(Debug)]
pub struct RqProducer(Producer);

/// Stack's side of a receive queue.
#[derive(Debug)]
pub struct RqConsumer {
    ring: Consumer,
    /// Binary logarithm of the slots of each request.
    slot_shift: u8,
}

/// Creates a receive queue of this capacity, which shares its memory with no other. Zeroes 64 to
/// 128 bytes for each slot: the ring is a power of two.
///
/// # Panics
/// If it is to have more than [`WORK_REQUESTS_MAX`](crate::work_queue::WORK_REQUESTS_MAX) requests,
/// or a request more elements than any may.
#[must_use]
pub fn recv_queue(cap: RqCap) -> (RqProducer, RqConsumer, Tails<1>) {
    let ([queue], tails) = work_queues([cap.shape()]);
    let (producer, consumer) = from_work_queue(queue);
    (producer, consumer, tails)
}

/// Returns the two sides of a receive queue, over a work queue of its shape.
pub(crate) fn from_work_queue((producer, ring): (Producer, Consumer)) -> (RqProducer, RqConsumer) {
    let slot_shift = producer.max().len.ilog2() as u8;
    (RqProducer(producer), RqConsumer { ring, slot_shift })
}

impl RqProducer {
    /// Encodes a request, which [`RqProducer::publish`] passes to the stack.
    ///
    /// # Errors
    /// `QueueFull`, `TooManySges`; nothing was posted.
    #[inline(always)]
    pub fn post(&mut self, wr_id: u64, list: &[Sge]) -> Result<(), PostError> {
        let RequestMax { sge_count, len: slot_count } = self.0.max();
        if list.len() > usize::from(sge_count) {
            return Err(PostError::TooManySges);
        }
        let number = self.0.begin()?;
        let slots = self.0.slots();
        let first = slots.get(number);
        first.store(WR_ID, wr_id);
        first.store(COUNT, list.len() as u64);
        for (index, sge) in list.iter().enumerate() {
            let (slot, word) = place_of_sge(slots, first, number, index);
            slot.store(word, sge.addr);
            slot.store(word + 1, u64::from(sge.len) | u64::from(sge.lkey) << 32);
        }
        self.0.end(slot_count.into());
        Ok(())
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
        self.ring.take(1 << self.slot_shift);
    }

    /// Returns the number of requests that have left the queue since creation.
    #[inline]
    pub(crate) const fn taken(&self) -> u64 {
        self.ring.taken() >> self.slot_shift
    }

    /// Returns the number of requests. Loads the tail.
    pub(crate) fn len(&self) -> usize {
        self.ring.published_slots() as usize >> self.slot_shift
    }

    /// Returns its capacity.
    pub(crate) fn cap(&self) -> RqCap {
        let max_recv_sge = self.ring.max().sge_count.into();
        RqCap { max_recv_wr: self.count_max(), max_recv_sge }
    }

    /// Capacity of a queue for one of its requests.
    pub(crate) fn cap_of_one(&self) -> RqCap {
        RqCap { max_recv_wr: 1, ..self.cap() }
    }

    /// Returns a queue for copies of its requests.
    pub(crate) const fn new_copies(&self) -> RecvWqeCopies {
        RecvWqeCopies { words: VecDeque::new(), stride: SLOT_WORDS << self.slot_shift }
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

impl<'a> RecvWqe<'a> {
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

    /// Scatter/gather elements, filled front to back.
    #[inline]
    pub fn sges(self) -> impl Iterator<Item = Sge> + Clone {
        let count = usize::from(self.first.load(COUNT) as u8);
        (0..count).map(move |index| self.sge(index))
    }

    #[inline(always)]
    fn sge(&self, index: usize) -> Sge {
        let (slot, word) = place_of_sge(self.slots, self.first, self.number, index);
        sge_of(slot.load(word), slot.load(word + 1))
    }

    fn word(&self, index: usize) -> u64 {
        let slot = self.slots.get(self.number + (index / SLOT_WORDS) as u64);
        slot.load(index % SLOT_WORDS)
    }
}

/// Returns the SGE in two words.
#[inline(always)]
const fn sge_of(addr: u64, rest: u64) -> Sge {
    Sge { addr, len: rest as u32, lkey: (rest >> 32) as Stag }
}

/// Copies of the requests of one receive queue, oldest first: the words of their slots.
#[derive(Debug)]
pub(crate) struct RecvWqeCopies {
    words: VecDeque<u64>,
    /// Words of a request.
    stride: usize,
}

impl RecvWqeCopies {
    /// Returns the number of copies.
    pub(crate) fn len(&self) -> usize {
        self.words.len() / self.stride
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Appends a copy.
    pub(crate) fn push_back(&mut self, wqe: &RecvWqe<'_>) {
        let Self { words, stride } = self;
        words.extend((0..*stride).map(|word| wqe.word(word)));
    }

    /// Puts a copy before the others.
    pub(crate) fn push_front(&mut self, wqe: &RecvWqe<'_>) {
        for word in (0..self.stride).rev() {
            self.words.push_front(wqe.word(word));
        }
    }

    /// Moves the oldest copies of `from`, which has such copies too, to the end of this queue: at
    /// most `count`. Returns their number.
    pub(crate) fn take_front(&mut self, from: &mut Self, count: usize) -> usize {
        let count = count.min(from.len());
        self.words.extend(from.words.drain(..count * from.stride));
        count
    }

    /// Moves all copies of `from`, which has such copies too, before those of this queue.
    pub(crate) fn put_back(&mut self, from: &mut Self) {
        while let Some(word) = from.words.pop_back() {
            self.words.push_front(word);
        }
    }

    /// Removes the oldest copy; returns its work request ID.
    #[cfg(test)]
    pub(crate) fn pop_front(&mut self) -> Option<u64> {
        self.words.drain(..self.stride.min(self.words.len())).next()
    }

    /// Removes the oldest copy, and posts it to a queue; `false` if there is none, or the queue
    /// does not take it.
    pub(crate) fn post_front(&mut self, to: &mut RqProducer) -> bool {
        let mut words = self.words.drain(..self.stride.min(self.words.len()));
        let (Some(wr_id), Some(count)) = (words.next(), words.next()) else { return false };
        let mut list = [Sge::default(); SGE_COUNT_MAX];
        let list = &mut list[..usize::from(count as u8)];
        for sge in &mut *list {
            let (Some(addr), Some(rest)) = (words.next(), words.next()) else { return false };
            *sge = sge_of(addr, rest);
        }
        to.post(wr_id, list).is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
