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

use slots::{Slot, Slots};

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::Arc;
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::Arc;

pub(crate) mod slots;

/// Slots that are loaded ahead, at most; processors load the rest of a longer sequence themselves.
const PREFETCHED_SLOT_COUNT: u64 = 4;

/// Counter alone in its pair of cache lines, which processors fetch together.
#[derive(Debug)]
#[repr(align(128))]
struct Padded(AtomicU64);

#[derive(Debug)]
struct Shared {
    slots: Slots,
    /// Maximum number of requests.
    count_max: u64,
    /// Slots published since creation; written by the producer.
    tail: Padded,
    /// Requests retired since creation; written by the consumer.
    retired: Padded,
}

/// Application's side.
#[derive(Debug)]
pub(crate) struct Producer {
    shared: Arc<Shared>,
    /// Slots filled since creation.
    tail: u64,
    /// The tail as last published.
    published: u64,
    posted: u64,
    cached_retired: u64,
}

/// Number of slots published to a work queue since creation, for a thread that waits for more.
#[derive(Debug)]
pub struct Tail {
    shared: Arc<Shared>,
}

impl Tail {
    /// Loads the number, with acquire.
    #[inline(always)]
    #[must_use]
    pub fn load(&self) -> u64 {
        self.shared.tail.0.load(Ordering::Acquire)
    }
}

/// Stack's side.
#[derive(Debug)]
pub(crate) struct Consumer {
    shared: Arc<Shared>,
    /// Slots taken since creation.
    taken: u64,
    cached_tail: u64,
    /// Retired requests as last published.
    retired: u64,
}

/// Creates a work queue for at most `count_max` requests, of at most `slot_count_max` slots each.
pub(crate) fn work_queue(count_max: usize, slot_count_max: usize) -> (Producer, Consumer) {
    let shared = Arc::new(Shared {
        slots: Slots::new(count_max * slot_count_max),
        count_max: count_max as u64,
        tail: Padded(AtomicU64::new(0)),
        retired: Padded(AtomicU64::new(0)),
    });
    let consumer = Consumer { shared: Arc::clone(&shared), taken: 0, cached_tail: 0, retired: 0 };
    (Producer { shared, tail: 0, published: 0, posted: 0, cached_retired: 0 }, consumer)
}

impl Producer {
    /// Returns a view of the tail.
    pub(crate) fn tail(&self) -> Tail {
        Tail { shared: Arc::clone(&self.shared) }
    }

    /// Has `emit` encode a request, which [`Producer::publish`] passes to the stack, in the slots
    /// from the given number on; it returns how many it has filled. `false`, with nothing done, if
    /// the queue is full.
    #[inline(always)]
    pub(crate) fn post(&mut self, emit: impl FnOnce(&Slots, u64) -> u64) -> bool {
        if self.posted - self.cached_retired >= self.shared.count_max {
            self.cached_retired = self.shared.retired.0.load(Ordering::Acquire);
            if self.posted - self.cached_retired >= self.shared.count_max {
                return false;
            }
        }
        // The slots of retired requests are free, and there are enough for those that remain.
        self.tail += emit(&self.shared.slots, self.tail);
        self.posted += 1;
        true
    }

    /// Makes the requests posted so far visible to the stack. A plain store with release.
    #[inline]
    pub(crate) fn publish(&mut self) {
        // Stored only when changed: a full queue is posted to in vain again and again.
        if self.published != self.tail {
            self.published = self.tail;
            self.shared.tail.0.store(self.tail, Ordering::Release);
        }
    }
}

impl Consumer {
    /// Returns the number of the first slot of the next published request, if there is one.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<u64> {
        if self.taken == self.cached_tail && !self.has_published() {
            return None;
        }
        Some(self.taken)
    }

    /// Takes the next request, which has so many slots.
    #[inline(always)]
    pub(crate) const fn take(&mut self, slot_count: u64) {
        self.taken += slot_count;
    }

    /// True if a published request was not taken. Loads the tail.
    #[inline]
    pub(crate) fn has_published(&mut self) -> bool {
        self.cached_tail = self.shared.tail.0.load(Ordering::Acquire);
        self.taken != self.cached_tail
    }

    /// Returns the number of published slots that were not taken. Loads the tail.
    #[inline]
    pub(crate) fn published_slots(&self) -> u64 {
        self.shared.tail.0.load(Ordering::Acquire) - self.taken
    }

    /// Calls `prefetch` for the first of the `count` slots taken last.
    pub(crate) fn prefetch_last(&self, count: u64, prefetch: impl Fn(&Slot)) {
        let first = self.taken.saturating_sub(count);
        for number in first..self.taken.min(first + PREFETCHED_SLOT_COUNT) {
            prefetch(self.shared.slots.get(number));
        }
    }

    /// Returns the slots.
    #[inline(always)]
    pub(crate) fn slots(&self) -> &Slots {
        &self.shared.slots
    }

    /// Returns the maximum number of requests.
    pub(crate) fn count_max(&self) -> usize {
        usize::try_from(self.shared.count_max).unwrap_or(usize::MAX)
    }

    /// Gives back the slots of the first `count` requests ever taken.
    #[inline]
    pub(crate) fn retire(&mut self, count: u64) {
        // Stored only when changed, to leave the cache line with the application's core otherwise.
        if self.retired != count {
            self.retired = count;
            self.shared.retired.0.store(count, Ordering::Release);
        }
    }
}
