//! Send queue in memory (verbs: SQ): a [work queue](crate::work_queue) of [`SendWr`]s, each encoded
//! in one slot or two ([`wqe`]).
//!
//! The state of a request is not here but in the requester's entry of it.

use crate::device::Device;
use crate::rdmap::operation::{MESSAGE_LEN_MAX, SendWr};
use crate::work_queue::{Consumer, Producer, Shape};
use wqe::{Control, Wqe};

mod encode;
pub mod wqe;

/// Application's side of a send queue.
#[derive(Debug)]
pub struct SqProducer(Producer);

/// Stack's side of a send queue.
#[derive(Debug)]
pub(crate) struct SqConsumer(Consumer);

/// Shape of a send queue for at most `count_max` requests.
pub(crate) const fn shape(count_max: usize) -> Shape {
    Shape { count_max, slot_count_max: wqe::SLOT_COUNT_MAX }
}

/// Returns the two sides of a send queue, of a work queue of its [`shape`].
pub(crate) fn from_work_queue(
    (producer, consumer): (Producer, Consumer),
) -> (SqProducer, SqConsumer) {
    (SqProducer(producer), SqConsumer(consumer))
}

impl SqProducer {
    /// Encodes a request, which [`SqProducer::publish`] passes to the stack; `false`, with nothing
    /// done, if the queue is full. The caller has checked the request ([`SendWr::check`]).
    #[inline(always)]
    #[must_use]
    pub fn post(&mut self, wr: &SendWr) -> bool {
        debug_assert!(wr.operation.len() <= u64::from(MESSAGE_LEN_MAX), "checked before");
        self.0.post(|slots, number| encode::encode(slots, number, wr))
    }

    /// Makes the requests posted so far visible to the stack. A plain store with release.
    #[inline]
    pub fn publish(&mut self) {
        self.0.publish();
    }
}

impl SqConsumer {
    /// Takes the next published request; returns the number of its first slot, and the request.
    #[inline(always)]
    pub(in crate::rdmap) fn take(&mut self) -> Option<(u64, Wqe<'_>)> {
        let number = self.0.next()?;
        let control = Wqe::new(self.0.slots(), number).control();
        self.0.take(control.slot_count());
        Some((number, self.wqe(number, control)))
    }

    /// Has the port load the slots of the last requests taken, of one slot each: at most `count`.
    pub(in crate::rdmap) fn prefetch_last<D: Device>(&self, count: u64) {
        self.0.prefetch_last(count, D::prefetch);
    }

    /// True if a published request was not taken.
    #[inline]
    pub(in crate::rdmap) fn has_published(&mut self) -> bool {
        self.0.has_published()
    }

    /// Returns the request in the slots from `number` on, which was taken and not retired, and
    /// whose word 1 is `control`.
    #[inline(always)]
    pub(in crate::rdmap) fn wqe(&self, number: u64, control: Control) -> Wqe<'_> {
        Wqe::with_control(self.0.slots(), number, control)
    }

    /// Gives back the slots of the first `count` requests ever taken.
    #[inline]
    pub(in crate::rdmap) fn retire(&mut self, count: u64) {
        self.0.retire(count);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
