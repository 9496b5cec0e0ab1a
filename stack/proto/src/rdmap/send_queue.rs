//! Send queue in memory (verbs: SQ): a [work queue](crate::work_queue) of send requests, each
//! encoded in as many slots as it needs ([`wqe`]).
//!
//! The state of a request is not here but in the requester's entry of it.

use crate::ddp::sgl::{INLINE_LEN_MAX, SGE_COUNT_MAX};
use crate::device::Device;
use crate::work_queue::{Consumer, Producer, RequestMax, Shape};
use wqe::{Control, Wqe};

mod encode;
mod flags;
pub mod wqe;

pub use encode::{WqeHead, WqePayload, WqePlace};

/// Capacity of a send queue (verbs: the fields of `ibv_qp_cap` for sends).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqCap {
    /// Outstanding requests.
    pub max_send_wr: usize,
    /// Scatter/gather elements of a request, at most [`SGE_COUNT_MAX`].
    pub max_send_sge: usize,
    /// Inline bytes of a request, at most [`INLINE_LEN_MAX`].
    pub max_inline_data: usize,
}

impl SqCap {
    /// A queue whose requests have two slots at most: 6 elements, 96 inline bytes.
    #[must_use]
    pub const fn new(max_send_wr: usize) -> Self {
        Self { max_send_wr, max_send_sge: 6, max_inline_data: 96 }
    }

    /// Shape of its work queue.
    ///
    /// # Panics
    /// If a request is to have more elements or inline bytes than any may.
    #[expect(clippy::cast_possible_truncation, reason = "both are small")]
    pub(crate) const fn shape(self) -> Shape {
        let Self { max_send_wr, max_send_sge, max_inline_data } = self;
        assert!(max_send_sge <= SGE_COUNT_MAX && max_inline_data <= INLINE_LEN_MAX);
        let max = RequestMax {
            // One has the shortest way of all, without a check.
            sge_count: if max_send_sge == 0 { 1 } else { max_send_sge as u8 },
            len: max_inline_data as u16,
        };
        let slot_count = wqe::slot_count_max(max_send_sge, max_inline_data);
        Shape { count_max: max_send_wr, slot_count, max }
    }
}

/// Application's side of a send queue.
#[derive(Debug)]
pub struct SqProducer(Producer);

/// Stack's side of a send queue.
#[derive(Debug)]
pub(crate) struct SqConsumer(Consumer);

/// Returns the two sides of a send queue, over a work queue of its shape.
pub(crate) fn from_work_queue(
    (producer, consumer): (Producer, Consumer),
) -> (SqProducer, SqConsumer) {
    (SqProducer(producer), SqConsumer(consumer))
}

impl SqProducer {
    /// Returns the number of requests posted since creation, less the maximum number, modulo 2^64.
    #[inline(always)]
    #[must_use]
    pub const fn posted(&self) -> u64 {
        self.0.posted()
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

    /// Returns the maximum number of requests.
    pub(in crate::rdmap) const fn count_max(&self) -> usize {
        self.0.count_max()
    }

    /// Returns its capacity.
    pub(in crate::rdmap) fn cap(&self) -> SqCap {
        let RequestMax { sge_count, len } = self.0.max();
        let max_send_wr = self.0.count_max();
        SqCap { max_send_wr, max_send_sge: sge_count.into(), max_inline_data: len.into() }
    }

    /// Counts the published requests that were not taken. Reads each.
    pub(in crate::rdmap) fn untaken(&self) -> usize {
        let (mut number, end) = (self.0.taken(), self.0.taken() + self.0.published_slots());
        let mut count = 0;
        while number < end {
            number += Wqe::new(self.0.slots(), number).control().slot_count();
            count += 1;
        }
        count
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
