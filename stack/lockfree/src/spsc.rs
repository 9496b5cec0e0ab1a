//! Bounded lock-free ring, single producer, single consumer. Either side may move between threads.
//!
//! Producer and consumer each own an index and cache the other's. They reload the cached index only
//! when it shows a full or empty ring, so in steady flow no shared cache line is read for the
//! index.
//!
//! Whoever has both sides can replace the slots ([`replace_slots`]); the indices stay.

use std::mem::MaybeUninit;

use crossbeam::utils::CachePadded;

use crate::sync::{Arc, AtomicUsize, Cell, Ordering};

/// Indices of a ring, from its creation on; they outlast its slots.
struct Indices {
    /// Index of the next slot to read; written by the consumer.
    head: CachePadded<AtomicUsize>,
    /// Index of the next slot to fill; written by the producer.
    tail: CachePadded<AtomicUsize>,
}

impl Indices {
    /// Returns the first index that is not free for the producer.
    #[cold]
    fn load_limit(&self, capacity: usize) -> usize {
        self.head.load(Ordering::Acquire).wrapping_add(capacity)
    }
}

struct Slot<T>(Cell<MaybeUninit<T>>);

// SAFETY: a slot belongs to the producer while its index is in `tail..head + capacity`, to the
// consumer while it is in `head..tail`; the indices are published with release and read with
// acquire, so sharing the slots only moves values between threads.
unsafe impl<T: Send> Sync for Slot<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Slot<T> {}

/// Slots of a ring: a power of two, of which the index selects one. They do not drop what is in
/// them.
// Not loom's `Arc`, which has no slices; that the slots are freed last is not to be proved.
pub struct Slots<T>(std::sync::Arc<[Slot<T>]>);

impl<T> Slots<T> {
    /// Returns slots for at least `capacity` values, rounded up to a power of two.
    pub fn new(capacity: usize) -> Self {
        Self(
            (0..Self::count_for(capacity))
                .map(|_| Slot(Cell::new(MaybeUninit::uninit())))
                .collect(),
        )
    }

    /// Returns the number of slots for this capacity.
    pub const fn count_for(capacity: usize) -> usize {
        if capacity == 0 { 1 } else { capacity.next_power_of_two() }
    }

    fn share(&self) -> Self {
        Self(std::sync::Arc::clone(&self.0))
    }

    /// Returns their number.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    fn at(&self, index: usize) -> &Cell<MaybeUninit<T>> {
        &self.0[index & (self.0.len() - 1)].0
    }

    /// Moves the value out of a slot.
    ///
    /// # Safety
    /// The caller is the consumer, the index is in `head..tail` as loaded with acquire, and the
    /// consumer takes each index once.
    #[inline(always)]
    unsafe fn take(&self, index: usize) -> T {
        self.at(index).with_mut(|slot| {
            // SAFETY: the producer has filled the slot and released it to the consumer.
            let filled = unsafe { &*slot };
            // SAFETY: filled, and moved out once.
            unsafe { filled.assume_init_read() }
        })
    }
}

/// Producer side of a ring.
pub struct Producer<T> {
    indices: Arc<Indices>,
    slots: Slots<T>,
    /// Next index to fill; ahead of the shared tail by the number of unpublished values.
    tail: usize,
    published: usize,
    cached_head: usize,
}

/// Consumer side of a ring.
pub struct Consumer<T> {
    indices: Arc<Indices>,
    slots: Slots<T>,
    head: usize,
    cached_tail: usize,
}

/// Read-only view of a ring, for any thread, whatever its slots.
pub struct Peek {
    indices: Arc<Indices>,
}

/// Returns a ring for at least `capacity` values, rounded up to a power of two.
pub fn ring<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let slots = Slots::new(capacity);
    let indices = Arc::new(Indices {
        head: CachePadded::new(AtomicUsize::new(0)),
        tail: CachePadded::new(AtomicUsize::new(0)),
    });
    let consumer =
        Consumer { indices: Arc::clone(&indices), slots: slots.share(), head: 0, cached_tail: 0 };
    (Producer { indices, slots, tail: 0, published: 0, cached_head: 0 }, consumer)
}

/// Returns the number of values in a ring, published or not. The borrows of both sides keep it.
///
/// # Panics
/// If they are not of one ring.
pub fn held<T>(producer: &Producer<T>, consumer: &Consumer<T>) -> usize {
    assert!(Arc::ptr_eq(&producer.indices, &consumer.indices), "sides of different rings");
    producer.tail.wrapping_sub(consumer.head)
}

/// Exchanges the slots of a ring, and moves its values, published or not, to the new ones. The
/// indices stay the same, and so what a [`Peek`] shows.
///
/// Neither side is in use meanwhile: the caller borrows both. If they are behind locks, those make
/// the new slots visible to whoever uses them next.
///
/// # Panics
/// If the sides are not of one ring, or it holds more values than there are slots.
pub fn replace_slots<T>(
    producer: &mut Producer<T>,
    consumer: &mut Consumer<T>,
    slots: &mut Slots<T>,
) {
    let held = held(producer, consumer);
    assert!(held <= slots.count(), "{held} values for {} slots", slots.count());
    for index in (0..held).map(|index| consumer.head.wrapping_add(index)) {
        // SAFETY: the index is in `head..tail` of the producer, of which the producer has filled
        // every slot; each is moved once, and the old slots are not read again.
        let value = unsafe { consumer.slots.take(index) };
        slots.at(index).with_mut(|slot| {
            // SAFETY: no side has these slots yet.
            unsafe { (*slot).write(value) };
        });
    }
    // An older one could be more than the new capacity behind the tail.
    producer.cached_head = consumer.head;
    producer.slots = slots.share();
    std::mem::swap(&mut consumer.slots, slots);
}

impl<T> Producer<T> {
    /// Writes a single value: [`Batch::push`].
    #[cfg(test)]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        self.batch().push(value)
    }

    /// Begins to write several values.
    #[inline(always)]
    pub fn batch(&mut self) -> Batch<'_, T> {
        let Self { indices, slots, tail, cached_head, .. } = self;
        let limit = cached_head.wrapping_add(slots.count());
        Batch { indices, slots: &slots.0, next: *tail, limit, tail, cached_head }
    }

    /// Changes each value that is not published yet.
    pub fn update_unpublished(&mut self, mut update: impl FnMut(&mut T)) {
        let mut index = self.published;
        while index != self.tail {
            self.slots.at(index).with_mut(|slot| {
                // SAFETY: the index is in `published..tail`, so the slot is still the producer's.
                let filled = unsafe { &mut *slot };
                // SAFETY: the producer has filled it.
                update(unsafe { filled.assume_init_mut() });
            });
            index = index.wrapping_add(1);
        }
    }

    /// True if there is no free slot: one load of the consumer's index.
    pub fn is_full(&self) -> bool {
        let head = self.indices.head.load(Ordering::Relaxed);
        self.tail.wrapping_sub(head) >= self.slots.count()
    }

    /// Makes the pushed values visible to the consumer. A plain store with release.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.tail {
            self.published = self.tail;
            self.indices.tail.store(self.tail, Ordering::Release);
        }
    }
}

/// Values being written to a ring: what each of them needs is kept apart, for registers.
pub struct Batch<'a, T> {
    indices: &'a Indices,
    slots: &'a [Slot<T>],
    /// Next index to fill.
    next: usize,
    /// First index that is not free, as far as the cached head shows.
    limit: usize,
    /// Indices of the producer, stored at the end.
    tail: &'a mut usize,
    cached_head: &'a mut usize,
}

impl<T> Batch<'_, T> {
    /// Writes a value to the ring. The consumer sees it after the next [`Producer::publish`].
    ///
    /// # Errors
    /// Returns the value if the ring is full.
    #[inline(always)]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.next == self.limit {
            self.limit = self.indices.load_limit(self.slots.len());
            if self.next == self.limit {
                return Err(value);
            }
        }
        self.slots[self.next & (self.slots.len() - 1)].0.with_mut(|slot| {
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

impl Peek {
    /// Returns a number of values that were published at the time of the call; none, if all that
    /// the first of its two loads saw were read by the second.
    pub fn len_min(&self) -> usize {
        let tail = self.indices.tail.load(Ordering::Acquire);
        let head = self.indices.head.load(Ordering::Relaxed);
        let len = tail.wrapping_sub(head);
        if len > usize::MAX / 2 { 0 } else { len }
    }

    /// True if the ring was empty at the time of two relaxed loads.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.indices.head.load(Ordering::Relaxed) == self.indices.tail.load(Ordering::Relaxed)
    }
}

impl<T> Consumer<T> {
    /// Returns a view of the ring, for threads that have neither side.
    pub fn peek(&self) -> Peek {
        Peek { indices: Arc::clone(&self.indices) }
    }

    /// Removes and returns the oldest value.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let value = self.read_next()?;
        self.indices.head.store(self.head, Ordering::Release);
        Some(value)
    }

    /// Copies values to `out`, oldest first, and returns their number. One store of the head index
    /// for all.
    #[inline]
    pub fn pop_into(&mut self, out: &mut [T]) -> usize
    where
        T: Copy,
    {
        let room = out.len();
        let mut places = out.iter_mut();
        self.pop_each(room, |value| {
            if let Some(place) = places.next() {
                *place = value;
            }
        })
    }

    /// Passes values to `accept`, oldest first, `max` of them at most, and returns their number.
    /// One store of the head index for all. If `accept` panics, all of them stay in the queue.
    #[inline]
    pub fn pop_each(&mut self, max: usize, mut accept: impl FnMut(T)) -> usize
    where
        T: Copy,
    {
        if self.cached_tail.wrapping_sub(self.head) < max {
            self.cached_tail = self.indices.tail.load(Ordering::Acquire);
        }
        let count = self.cached_tail.wrapping_sub(self.head).min(max);
        if count > 0 {
            for index in 0..count {
                // SAFETY: the index is in `head..tail`, and the head advances past it below.
                accept(unsafe { self.slots.take(self.head.wrapping_add(index)) });
            }
            self.head = self.head.wrapping_add(count);
            self.indices.head.store(self.head, Ordering::Release);
        }
        count
    }

    /// Removes the published values for which `keep` returns false; the others keep their order.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool)
    where
        T: Copy,
    {
        self.cached_tail = self.indices.tail.load(Ordering::Acquire);
        // From the newest to the oldest, so that those that stay move towards the tail, and the
        // slots that become free are before the new head.
        let mut first = self.cached_tail;
        let mut index = self.cached_tail;
        while index != self.head {
            index = index.wrapping_sub(1);
            // SAFETY: the index is in `head..tail`. The value is `Copy`: what is read stays.
            let value = unsafe { self.slots.take(index) };
            if !keep(&value) {
                continue;
            }
            first = first.wrapping_sub(1);
            // Most times nothing is removed.
            if first != index {
                self.slots.at(first).with_mut(|slot| {
                    // SAFETY: this index is in `head..tail` as well, and its value was read before.
                    unsafe { (*slot).write(value) };
                });
            }
        }
        if first != self.head {
            self.head = first;
            self.indices.head.store(self.head, Ordering::Release);
        }
    }

    /// True if no value is published. Reloads the producer's index only if the cached one shows
    /// an empty ring.
    #[inline]
    pub fn is_empty(&mut self) -> bool {
        if self.head == self.cached_tail {
            self.cached_tail = self.indices.tail.load(Ordering::Acquire);
        }
        self.head == self.cached_tail
    }

    #[inline]
    fn read_next(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: the index is in `head..tail`, and the head advances past it.
        let value = unsafe { self.slots.take(self.head) };
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
mod tests;

#[cfg(all(test, loom))]
mod proofs {
    use loom::thread;

    use super::*;
    use crate::spin_lock::SpinLock;

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

    /// The consumer removes a value, and moves an older one to its place, while the producer goes
    /// on.
    #[test]
    fn values_are_removed_while_others_are_pushed() {
        loom::model(|| {
            let (mut tx, mut rx) = ring(2);
            for value in 0..2_u32 {
                assert!(tx.push(value).is_ok());
            }
            tx.publish();
            let producer = thread::spawn(move || {
                let is_pushed = tx.push(2).is_ok();
                tx.publish();
                is_pushed
            });
            rx.retain(|&value| value != 1);
            let is_pushed = producer.join().unwrap();
            let left = [(); 2].map(|()| rx.pop());
            assert_eq!(left, [Some(0), is_pushed.then_some(2)]);
        });
    }

    /// Slots are replaced under the locks of both sides, between an unpublished value and its
    /// publication or before or after: each side finds the values where they are, and a thread that
    /// looks without a lock does not miss one.
    #[test]
    fn values_outlast_the_slots() {
        loom::model(|| {
            let (mut tx, rx) = ring(1);
            let peek = rx.peek();
            assert!(tx.push(1_u32).is_ok());
            let (tx, rx) = (Arc::new(SpinLock::new(tx)), Arc::new(SpinLock::new(rx)));
            let producer = {
                let tx = Arc::clone(&tx);
                thread::spawn(move || {
                    tx.lock().publish();
                    let mut tx = tx.lock();
                    let second = tx.push(2).is_ok();
                    tx.publish();
                    second
                })
            };
            let consumer = {
                let rx = Arc::clone(&rx);
                thread::spawn(move || {
                    // As a poll does: it locks only what is not empty.
                    if peek.is_empty() { None } else { Some(rx.lock().pop()) }
                })
            };
            let is_replaced = {
                let mut tx = tx.lock();
                let rx = rx.try_lock();
                rx.map(|mut rx| replace_slots(&mut tx, &mut rx, &mut Slots::new(2))).is_some()
            };
            let second = producer.join().unwrap();
            let first = consumer.join().unwrap();
            assert!(first.is_none_or(|value| value == Some(1)), "not empty, and nothing there");
            let mut rx = rx.lock();
            if first.is_none() {
                assert_eq!(rx.pop(), Some(1));
            }
            assert_eq!(rx.pop(), second.then_some(2));
            assert!(rx.pop().is_none());
            // Whoever pushes next sees the new slots.
            let mut tx = tx.lock();
            let places = (0..2).take_while(|&value| tx.push(value).is_ok()).count();
            assert_eq!(places, if is_replaced { 2 } else { 1 });
        });
    }
}
