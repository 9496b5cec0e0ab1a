//! Work queue in memory: a ring of slots that the application fills and the stack reads where they
//! lie, until the requests complete.
//!
//! A request is encoded once, into one slot of 64 bytes or several; there is no second queue and
//! no copy. The stack never writes a slot, so that its cache line passes between the cores once in
//! each direction. How requests are encoded is said by [`rdmap::send_queue`] and
//! [`ddp::recv_queue`].
//!
//! One producer and one consumer, each on any thread. The words of the slots are atomic, accessed
//! without an ordering of their own: the producer publishes them with a release of the tail, and
//! the consumer gives them back with a release of the number of retired requests. The ring has
//! slots for as many requests of the largest size as the queue may hold, so that only requests
//! are counted.
//!
//! [`rdmap::send_queue`]: crate::rdmap::send_queue
//! [`ddp::recv_queue`]: crate::ddp::recv_queue

use core::marker::PhantomData;
#[cfg(not(loom))]
use core::sync::atomic::Ordering;
#[cfg(loom)]
use loom::sync::atomic::Ordering;

use slots::{Lines, Slot, Slots};

use crate::ended::Ended;

pub(crate) mod slots;

/// Slots that are loaded ahead, at most; processors load the rest of a longer sequence themselves.
const PREFETCHED_SLOT_COUNT: u64 = 4;

/// Reason why a request was refused (verbs: the error of `ibv_post_send`, `ibv_post_recv` and
/// `ibv_post_srq_recv`). Nothing of it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue already holds the maximum number of requests.
    #[error("the queue is full; poll completions before posting more")]
    QueueFull,
    /// Nobody takes the requests any more.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// The thread is posting to the queue already: it was interrupted by a signal, or holds the
    /// guard of another call.
    #[error("this thread is posting to the queue already, before a signal or in another call")]
    Reentered,
    /// The list has more elements than the queue was made for.
    #[error("the list has more elements than the queue was made for: raise its maximum")]
    TooManySges,
    /// There are more inline bytes than the queue was made for.
    #[error("there are more inline bytes than the queue was made for: raise its maximum")]
    InlineTooLong,
    /// The sink of an RDMA Read is inline bytes.
    #[error("the sink of an RDMA Read is registered memory, not inline bytes")]
    InlineSink,
    /// The message is longer than 2^32-1 bytes.
    #[error("the message is longer than 4294967295 bytes")]
    TooLong,
    /// RDMA Read or atomic operation on a connection with ORD 0.
    #[error("the connection grants no RDMA Reads or atomic operations (ORD is 0)")]
    NoReads,
    /// The word of an atomic operation is not at a multiple of eight, or its sink is not eight
    /// bytes.
    #[error("an atomic operation needs a remote word at a multiple of 8 and a sink of 8 bytes")]
    Misaligned,
    /// Atomic operation or Immediate Data on a connection without RFC 7306.
    #[error("the connection has no atomic operations and no immediate data (RFC 7306)")]
    Unsupported,
    /// The queue pair is attached to a shared receive queue.
    #[error("the queue pair takes buffers from a shared receive queue: post there")]
    SharedReceives,
    /// No shared receive queue has this handle.
    #[error("no such shared receive queue")]
    NoSuchSrq,
    /// No queue pair has this handle.
    #[error("no such queue pair")]
    NoSuchQp,
}

const _: () = assert!(size_of::<Result<(), PostError>>() == 1, "posting returns it in a register");

/// Application's side.
#[derive(Debug)]
pub(crate) struct Producer {
    slots: Slots,
    /// Number of the queue in its memory.
    queue: u8,
    /// [`RequestMax`], without padding.
    sge_count: u8,
    len: u16,
    /// Requests that surely find room, as far as is known of those that are retired.
    room: u32,
    /// Slots filled since creation.
    tail: u64,
    /// Requests posted since creation, less the maximum number.
    posted: u64,
}

/// Numbers of slots published to the `N` work queues of one memory since creation, for a thread
/// that waits for more.
#[derive(Clone, Debug)]
pub struct Tails<const N: usize> {
    lines: Lines,
    _count: PhantomData<[u64; N]>,
}

impl<const N: usize> Tails<N> {
    /// Loads the numbers, in the order of the queues, with acquire. They are in one cache line.
    #[inline(always)]
    #[must_use]
    pub fn load(&self) -> [u64; N] {
        core::array::from_fn(|queue| self.lines.tail(queue).load(Ordering::Acquire))
    }
}

/// Stack's side.
#[derive(Debug)]
pub(crate) struct Consumer {
    slots: Slots,
    /// Number of the queue in its memory.
    queue: u8,
    /// [`RequestMax`], without padding.
    sge_count: u8,
    len: u16,
    /// Maximum number of requests.
    count_max: u32,
    /// Slots taken since creation.
    taken: u64,
    /// Tail as last loaded, modulo 2^32: a queue has fewer slots.
    cached_tail: u32,
    /// Retired requests as last published, modulo 2^32: a queue has fewer.
    retired: u32,
}

/// Requests that a queue may have, at most: the slots of all queues of a memory are fewer than
/// 2^32.
pub const WORK_REQUESTS_MAX: usize = 1 << 26;

/// Size of a work queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape {
    /// Maximum number of requests, no more than [`WORK_REQUESTS_MAX`].
    pub(crate) count_max: usize,
    /// Slots of a request, at most.
    pub(crate) slot_count: usize,
    /// What each request may have.
    pub(crate) max: RequestMax,
}

/// What a request may have at most.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestMax {
    /// Scatter/gather elements.
    pub(crate) sge_count: u8,
    /// Inline bytes of a send request; slots of a receive request.
    pub(crate) len: u16,
}

/// Creates work queues of the given shapes in one memory. That is for queues of one owner: the
/// tails share a cache line, and so do the numbers of retired requests.
///
/// # Panics
/// If one is to have more than [`WORK_REQUESTS_MAX`] requests.
pub(crate) fn work_queues<const N: usize>(
    shapes: [Shape; N],
) -> ([(Producer, Consumer); N], Tails<N>) {
    for Shape { count_max, .. } in shapes {
        assert!(count_max <= WORK_REQUESTS_MAX, "{count_max} requests in a queue");
    }
    let rings = Slots::rings(shapes.map(|shape| shape.count_max * shape.slot_count));
    let lines = rings[0].lines.clone();
    let mut shapes = (0..).zip(shapes);
    let queues = rings.map(|slots| {
        let (queue, Shape { count_max, max, .. }) = shapes.next().expect("a ring for each shape");
        let count_max = u32::try_from(count_max).expect("no more requests than slots");
        let posted = u64::from(count_max).wrapping_neg();
        let room = count_max;
        let RequestMax { sge_count, len } = max;
        let (slots, stack_slots) = (slots.clone(), slots);
        let producer = Producer { slots, queue, sge_count, len, room, tail: 0, posted };
        let consumer = Consumer {
            slots: stack_slots,
            queue,
            sge_count,
            len,
            count_max,
            taken: 0,
            cached_tail: 0,
            retired: 0,
        };
        (producer, consumer)
    });
    (queues, Tails { lines, _count: PhantomData })
}

impl Producer {
    /// Begins a request: returns the number of its first slot. The slots from there on may be
    /// filled, as many as a request has, before [`Producer::end`].
    ///
    /// # Errors
    /// `QueueFull`.
    #[inline(always)]
    pub(crate) fn begin(&mut self) -> Result<u64, PostError> {
        if self.room == 0 && !self.has_room() {
            return Err(PostError::QueueFull);
        }
        Ok(self.tail)
    }

    /// Loads the number of retired requests: true if another finds room.
    fn has_room(&mut self) -> bool {
        let retired = self.slots.lines.retired(self.queue as usize).load(Ordering::Acquire);
        #[expect(clippy::cast_possible_truncation, reason = "at most the maximum number")]
        let room = retired.wrapping_sub(self.posted) as u32;
        self.room = room;
        room > 0
    }

    /// Ends a request of so many slots, which [`Producer::publish`] passes to the stack.
    #[inline(always)]
    pub(crate) const fn end(&mut self, slot_count: u64) {
        // The slots of retired requests are free, and there are enough for those that remain.
        self.tail += slot_count;
        self.room -= 1;
        self.posted = self.posted.wrapping_add(1);
    }

    /// Returns the number of requests posted since creation, less the maximum number, modulo 2^64.
    #[inline(always)]
    pub(crate) const fn posted(&self) -> u64 {
        self.posted
    }

    /// Returns the slots.
    #[inline(always)]
    pub(crate) const fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Returns what a request may have.
    #[inline(always)]
    pub(crate) const fn max(&self) -> RequestMax {
        RequestMax { sge_count: self.sge_count, len: self.len }
    }

    /// Makes the requests posted so far visible to the stack. A plain store with release.
    #[inline]
    pub(crate) fn publish(&mut self) {
        let tail = self.slots.lines.tail(self.queue as usize);
        // Stored only when changed: a full queue is posted to in vain again and again. Only this
        // side stores it.
        if tail.load(Ordering::Relaxed) != self.tail {
            tail.store(self.tail, Ordering::Release);
        }
    }
}

impl Consumer {
    /// Returns the number of the first slot of the next published request, if there is one.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<u64> {
        if low_bits(self.taken) == self.cached_tail && !self.has_published() {
            return None;
        }
        Some(self.taken)
    }

    /// Returns the number of slots taken since creation.
    #[inline(always)]
    pub(crate) const fn taken(&self) -> u64 {
        self.taken
    }

    /// Takes the next request, which has so many slots.
    #[inline(always)]
    pub(crate) const fn take(&mut self, slot_count: u64) {
        self.taken += slot_count;
    }

    /// True if a published request was not taken. Loads the tail.
    #[inline]
    pub(crate) fn has_published(&mut self) -> bool {
        let tail = self.load_tail();
        self.cached_tail = low_bits(tail);
        self.taken != tail
    }

    /// Returns the number of published slots that were not taken. Loads the tail.
    #[inline]
    pub(crate) fn published_slots(&self) -> u64 {
        self.load_tail() - self.taken
    }

    #[inline(always)]
    fn load_tail(&self) -> u64 {
        self.slots.lines.tail(self.queue as usize).load(Ordering::Acquire)
    }

    /// Calls `prefetch` for the first of the `count` slots taken last.
    pub(crate) fn prefetch_last(&self, count: u64, prefetch: impl Fn(&Slot)) {
        let first = self.taken.saturating_sub(count);
        for number in first..self.taken.min(first + PREFETCHED_SLOT_COUNT) {
            prefetch(self.slots.get(number));
        }
    }

    /// Returns the slots.
    #[inline(always)]
    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Returns the maximum number of requests.
    pub(crate) const fn count_max(&self) -> usize {
        self.count_max as usize
    }

    /// Returns what a request may have.
    pub(crate) const fn max(&self) -> RequestMax {
        RequestMax { sge_count: self.sge_count, len: self.len }
    }

    /// Gives back the slots of the first `count` requests ever taken.
    #[inline]
    pub(crate) fn retire(&mut self, count: u64) {
        // Stored only when changed, to leave the cache line with the application's core otherwise.
        if self.retired != low_bits(count) {
            self.retired = low_bits(count);
            self.slots.lines.retired(self.queue as usize).store(count, Ordering::Release);
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "for comparison of numbers that are close")]
#[inline(always)]
const fn low_bits(count: u64) -> u32 {
    count as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Requests of two slots in one queue and of three in the other, through several rounds of both
    /// rings: each is read as it was written, and the counts are each queue's own.
    #[test]
    fn queues_of_one_memory_do_not_overlap() {
        const SLOTS: [u64; 2] = [2, 3];
        let shapes = [(3, SLOTS[0]), (2, SLOTS[1])].map(|(count_max, slot_count)| Shape {
            count_max,
            slot_count: slot_count as usize,
            max: RequestMax::default(),
        });
        let (queues, tails) = work_queues(shapes);
        let mut queues = queues.into_iter().zip(SLOTS).zip([3_u64, 2]).collect::<Vec<_>>();
        let word = |queue: usize, slot: u64, word: usize| slot << 8 | (queue << 4 | word) as u64;
        for round in 1..=5 {
            for (index, (((producer, _), slot_count), count_max)) in queues.iter_mut().enumerate() {
                for _ in 0..*count_max {
                    let number = producer.begin().unwrap();
                    for slot in number..number + *slot_count {
                        (0..slots::SLOT_WORDS).for_each(|at| {
                            producer.slots().get(slot).store(at, word(index, slot, at));
                        });
                    }
                    producer.end(*slot_count);
                }
                assert_eq!(producer.begin(), Err(PostError::QueueFull));
                producer.publish();
            }
            let published = [0, 1].map(|at| round * queues[at].1 * queues[at].0.1);
            assert_eq!(tails.load(), published);
            for (index, (((_, consumer), slot_count), count_max)) in queues.iter_mut().enumerate() {
                for _ in 0..*count_max {
                    let number = consumer.next().unwrap();
                    for slot in number..number + *slot_count {
                        for at in 0..slots::SLOT_WORDS {
                            let found = consumer.slots().get(slot).load(at);
                            assert_eq!(found, word(index, slot, at), "queue {index}, slot {slot}");
                        }
                    }
                    consumer.take(*slot_count);
                }
                assert_eq!(consumer.next(), None);
                consumer.retire(round * *count_max);
            }
        }
    }
}
