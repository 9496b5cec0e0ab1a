//! Send queue in memory (verbs: SQ): a ring of slots that the application fills and the stack
//! reads where they lie, until the requests complete.
//!
//! A request ([`SendWr`]) is encoded once, into one slot of 64 bytes or two ([`wqe`]); there is no
//! second queue and no copy. The stack never writes a slot: what it has to remember of a request
//! is in the requester's own entry, so that a slot's cache line passes between the cores once in
//! each direction.
//!
//! One producer and one consumer, each on any thread. The words of the slots are atomic, accessed
//! without an ordering of their own: the producer publishes them with a release of the tail, and
//! the consumer gives them back with a release of the number of retired requests. The ring has
//! slots for as many requests of the largest size as the queue may hold, so that only requests
//! are counted.

use crate::rdmap::operation::{MESSAGE_LEN_MAX, SendWr};
use slots::Slots;
use wqe::{Control, Wqe};

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::Arc;
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::Arc;

mod emit;
mod slots;
pub mod wqe;

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

/// Application's side of a send queue.
#[derive(Debug)]
pub struct SqProducer {
    shared: Arc<Shared>,
    /// Slots filled since creation.
    tail: u64,
    /// The tail as last published.
    published: u64,
    posted: u64,
    cached_retired: u64,
}

/// Number of slots published to a send queue since creation, for a thread that waits for more.
#[derive(Debug)]
pub struct SqTail {
    shared: Arc<Shared>,
}

impl SqTail {
    /// Loads the number, with acquire.
    #[inline(always)]
    #[must_use]
    pub fn load(&self) -> u64 {
        self.shared.tail.0.load(Ordering::Acquire)
    }
}

/// Stack's side of a send queue.
#[derive(Debug)]
pub(in crate::rdmap) struct SqConsumer {
    shared: Arc<Shared>,
    /// Slots taken since creation.
    taken: u64,
    cached_tail: u64,
    /// Retired requests as last published.
    retired: u64,
}

/// Creates a send queue for at most `count_max` requests.
pub(in crate::rdmap) fn send_queue(count_max: usize) -> (SqProducer, SqConsumer) {
    let shared = Arc::new(Shared {
        slots: Slots::new(count_max * wqe::SLOT_COUNT_MAX),
        count_max: count_max as u64,
        tail: Padded(AtomicU64::new(0)),
        retired: Padded(AtomicU64::new(0)),
    });
    let consumer = SqConsumer { shared: Arc::clone(&shared), taken: 0, cached_tail: 0, retired: 0 };
    (SqProducer { shared, tail: 0, published: 0, posted: 0, cached_retired: 0 }, consumer)
}

impl SqProducer {
    /// Returns a view of the tail.
    #[must_use]
    pub fn tail(&self) -> SqTail {
        SqTail { shared: Arc::clone(&self.shared) }
    }

    /// Encodes a request, which [`SqProducer::publish`] passes to the stack; `false`, with nothing
    /// done, if the queue is full. The caller has checked the request ([`SendWr::check`]).
    #[inline(always)]
    #[must_use]
    pub fn post(&mut self, wr: &SendWr) -> bool {
        if self.posted - self.cached_retired >= self.shared.count_max {
            self.cached_retired = self.shared.retired.0.load(Ordering::Acquire);
            if self.posted - self.cached_retired >= self.shared.count_max {
                return false;
            }
        }
        debug_assert!(wr.operation.len() <= u64::from(MESSAGE_LEN_MAX), "checked before");
        // The slots of retired requests are free, and there are enough for those that remain.
        self.tail += emit::emit(&self.shared.slots, self.tail, wr);
        self.posted += 1;
        true
    }

    /// Makes the requests posted so far visible to the stack. A plain store with release.
    #[inline]
    pub fn publish(&mut self) {
        // Stored only when changed: a full queue is posted to in vain again and again.
        if self.published != self.tail {
            self.published = self.tail;
            self.shared.tail.0.store(self.tail, Ordering::Release);
        }
    }
}

impl SqConsumer {
    /// Takes the next published request; returns the number of its first slot, and the request.
    #[inline(always)]
    pub(in crate::rdmap) fn take(&mut self) -> Option<(u64, Wqe<'_>)> {
        if self.taken == self.cached_tail {
            self.cached_tail = self.shared.tail.0.load(Ordering::Acquire);
            if self.taken == self.cached_tail {
                return None;
            }
        }
        let number = self.taken;
        let wqe = Wqe::new(&self.shared.slots, number);
        self.taken += wqe.slot_count();
        Some((number, wqe))
    }

    /// True if a published request was not taken.
    #[inline]
    pub(in crate::rdmap) fn has_published(&mut self) -> bool {
        self.cached_tail = self.shared.tail.0.load(Ordering::Acquire);
        self.taken != self.cached_tail
    }

    /// Returns the request in the slots from `number` on, which was taken and not retired, and
    /// whose word 1 is `control`.
    #[inline(always)]
    pub(in crate::rdmap) fn wqe(&self, number: u64, control: Control) -> Wqe<'_> {
        Wqe::with_control(&self.shared.slots, number, control)
    }

    /// Gives back the slots of the first `count` requests ever taken.
    #[inline]
    pub(in crate::rdmap) fn retire(&mut self, count: u64) {
        // Stored only when changed, to leave the cache line with the application's core otherwise.
        if self.retired != count {
            self.retired = count;
            self.shared.retired.0.store(count, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
