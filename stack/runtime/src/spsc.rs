//! Bounded lock-free ring, single producer, single consumer. Either side may move between threads.
//!
//! Producer and consumer each own an index and cache the other's. They reload the cached index only
//! when it says full or empty, so in steady flow no shared cache line is read for the index.

use std::mem::MaybeUninit;

use crossbeam::utils::CachePadded;

use crate::sync::{Arc, AtomicUsize, Cell, Ordering};

struct Ring<T> {
    slots: Box<[Cell<MaybeUninit<T>>]>,
    mask: usize,
    /// Index of the next slot to read; written by the consumer.
    head: CachePadded<AtomicUsize>,
    /// Index of the next slot to fill; written by the producer.
    tail: CachePadded<AtomicUsize>,
}

// SAFETY: a slot belongs to the producer while its index is in `tail..head + capacity`, to the
// consumer while it is in `head..tail`; the indices are published with release and read with
// acquire, so sharing the ring only moves values between threads.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    /// Returns the first index that is not free for the producer.
    #[cold]
    fn load_limit(&self) -> usize {
        self.head.load(Ordering::Acquire).wrapping_add(self.slots.len())
    }

    /// Moves the value out of a slot.
    ///
    /// # Safety
    /// The caller is the consumer, the index is in `head..tail` as loaded with acquire, and the
    /// consumer takes each index once.
    #[inline(always)]
    unsafe fn take(&self, index: usize) -> T {
        self.slots[index & self.mask].with_mut(|slot| {
            // SAFETY: the producer has filled the slot and released it to the consumer.
            let filled = unsafe { &*slot };
            // SAFETY: filled, and moved out once.
            unsafe { filled.assume_init_read() }
        })
    }
}

/// Producer side of a ring.
pub(crate) struct Producer<T> {
    shared: Arc<Ring<T>>,
    /// Next index to fill; ahead of the shared tail by the number of unpublished values.
    tail: usize,
    published: usize,
    cached_head: usize,
}

/// Consumer side of a ring.
pub(crate) struct Consumer<T> {
    shared: Arc<Ring<T>>,
    head: usize,
    cached_tail: usize,
}

/// Read-only view of a ring, for any thread.
pub(crate) struct Peek<T> {
    shared: Arc<Ring<T>>,
}

/// Returns a ring for at least `capacity` values, rounded up to a power of two.
pub(crate) fn ring<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let capacity = capacity.max(1).next_power_of_two();
    let shared = Arc::new(Ring {
        slots: (0..capacity).map(|_| Cell::new(MaybeUninit::uninit())).collect(),
        mask: capacity - 1,
        head: CachePadded::new(AtomicUsize::new(0)),
        tail: CachePadded::new(AtomicUsize::new(0)),
    });
    let consumer = Consumer { shared: Arc::clone(&shared), head: 0, cached_tail: 0 };
    (Producer { shared, tail: 0, published: 0, cached_head: 0 }, consumer)
}

impl<T> Producer<T> {
    /// Writes a single value: [`Batch::push`].
    #[cfg(test)]
    pub(crate) fn push(&mut self, value: T) -> Result<(), T> {
        self.batch().push(value)
    }

    /// Begins to write several values.
    #[inline(always)]
    pub(crate) fn batch(&mut self) -> Batch<'_, T> {
        let Self { shared, tail, cached_head, .. } = self;
        let limit = cached_head.wrapping_add(shared.mask + 1);
        Batch { ring: shared, slots: &shared.slots, next: *tail, limit, tail, cached_head }
    }

    /// Makes the pushed values visible to the consumer. A plain store with release.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.published != self.tail {
            self.published = self.tail;
            self.shared.tail.store(self.tail, Ordering::Release);
        }
    }
}

/// Values being written to a ring: what each of them needs is kept apart, for registers.
pub(crate) struct Batch<'a, T> {
    ring: &'a Ring<T>,
    slots: &'a [Cell<MaybeUninit<T>>],
    /// Next index to fill.
    next: usize,
    /// First index that is not free, as far as the producer knows.
    limit: usize,
    /// Those of the producer, stored at the end.
    tail: &'a mut usize,
    cached_head: &'a mut usize,
}

impl<T> Batch<'_, T> {
    /// Writes a value to the ring. The consumer sees it after the next [`Producer::publish`].
    ///
    /// # Errors
    /// Returns the value if the ring is full.
    #[inline(always)]
    pub(crate) fn push(&mut self, value: T) -> Result<(), T> {
        if self.next == self.limit {
            self.limit = self.ring.load_limit();
            if self.next == self.limit {
                return Err(value);
            }
        }
        self.slots[self.next & (self.slots.len() - 1)].with_mut(|slot| {
            // SAFETY: the index is in `tail..head + capacity`, so the slot is the producer's, and
            // the consumer has moved its last value out.
            unsafe { (*slot).write(value) };
        });
        self.next = self.next.wrapping_add(1);
        Ok(())
    }
}

impl<T> Drop for Batch<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.tail = self.next;
        *self.cached_head = self.limit.wrapping_sub(self.slots.len());
    }
}

impl<T> Peek<T> {
    /// True if the ring was empty at the time of two relaxed loads.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.shared.head.load(Ordering::Relaxed) == self.shared.tail.load(Ordering::Relaxed)
    }
}

impl<T> Consumer<T> {
    pub(crate) fn peek(&self) -> Peek<T> {
        Peek { shared: Arc::clone(&self.shared) }
    }

    /// Removes and returns the oldest value.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        let value = self.read_next()?;
        self.shared.head.store(self.head, Ordering::Release);
        Some(value)
    }

    /// Moves at most `max` values to the end of `out`, oldest first, and returns their number. One
    /// store of the head index for all.
    #[inline]
    pub(crate) fn pop_into(&mut self, out: &mut Vec<T>, max: usize) -> usize {
        if self.cached_tail.wrapping_sub(self.head) < max {
            self.cached_tail = self.shared.tail.load(Ordering::Acquire);
        }
        let count = self.cached_tail.wrapping_sub(self.head).min(max);
        if count > 0 {
            let Self { shared, head, .. } = self;
            // The length is known, so that capacity is checked once for all.
            out.extend((0..count).map(|index| {
                // SAFETY: the index is in `head..tail`, and the head advances past it below.
                unsafe { shared.take(head.wrapping_add(index)) }
            }));
            *head = head.wrapping_add(count);
            shared.head.store(*head, Ordering::Release);
        }
        count
    }

    /// True if no value is published. Reloads the producer's index only if the cached one says
    /// empty.
    #[inline]
    pub(crate) fn is_empty(&mut self) -> bool {
        if self.head == self.cached_tail {
            self.cached_tail = self.shared.tail.load(Ordering::Acquire);
        }
        self.head == self.cached_tail
    }

    #[inline]
    fn read_next(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: the index is in `head..tail`, and the head advances past it.
        let value = unsafe { self.shared.take(self.head) };
        self.head = self.head.wrapping_add(1);
        Some(value)
    }
}

impl<T> Drop for Producer<T> {
    /// Publishes the pushed values.
    fn drop(&mut self) {
        self.publish();
    }
}

impl<T> Drop for Consumer<T> {
    /// Drops the values that were published and not read. Values published after that are never
    /// dropped, which leaks at most their resources.
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn full_ring_is_not_taken_for_empty() {
        let (mut tx, mut rx) = ring(4);
        for value in 0..4 {
            tx.push(value).unwrap();
        }
        assert_eq!(tx.push(4), Err(4));
        assert_eq!(rx.pop(), None, "nothing is seen before it is published");
        tx.publish();
        let mut out = Vec::new();
        assert_eq!(rx.pop_into(&mut out, 3), 3);
        assert_eq!(out, [0, 1, 2]);
        tx.push(4).unwrap();
        tx.publish();
        assert_eq!((rx.pop(), rx.pop(), rx.pop()), (Some(3), Some(4), None));
    }

    #[test]
    fn matches_a_deque_over_random_operations() {
        let (mut tx, mut rx) = ring(8);
        let mut model = VecDeque::new();
        let mut state = 1_u64;
        for step in 0..100_000_u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if state >> 63 == 0 {
                if tx.push(step).is_ok() {
                    model.push_back(step);
                } else {
                    assert_eq!(model.len(), 8);
                }
                tx.publish();
            } else {
                assert_eq!(rx.pop(), model.pop_front());
            }
        }
    }

    #[test]
    fn unread_values_are_dropped_with_the_ring() {
        let token = std::sync::Arc::new(());
        let (mut tx, rx) = ring(4);
        for _ in 0..3 {
            tx.push(std::sync::Arc::clone(&token)).unwrap();
        }
        drop(tx);
        drop(rx);
        assert_eq!(std::sync::Arc::strong_count(&token), 1);
    }

    #[test]
    fn order_is_kept_between_two_threads() {
        let (mut tx, mut rx) = ring(64);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for value in 0..200_000_u64 {
                    while tx.push(value).is_err() {
                        std::thread::yield_now();
                    }
                    tx.publish();
                }
            });
            let mut next = 0;
            while next < 200_000 {
                match rx.pop() {
                    Some(value) => {
                        assert_eq!(value, next);
                        next += 1;
                    }
                    None => std::thread::yield_now(),
                }
            }
        });
    }
}

#[cfg(all(test, loom))]
mod proofs {
    use loom::thread;

    use super::*;

    #[test]
    fn values_arrive_once_in_order_whole() {
        loom::model(|| {
            let (mut tx, mut rx) = ring(2);
            let producer = thread::spawn(move || {
                for value in 0..3_u32 {
                    let mut value = Box::new(value);
                    while let Err(back) = tx.push(value) {
                        value = back;
                        thread::yield_now();
                    }
                    tx.publish();
                }
            });
            let mut next = 0;
            while next < 3 {
                match rx.pop() {
                    Some(value) => {
                        assert_eq!(*value, next);
                        next += 1;
                    }
                    None => thread::yield_now(),
                }
            }
            producer.join().unwrap();
            assert!(rx.pop().is_none());
        });
    }
}
