//! Queue of untagged buffers at the Data Sink (RFC 5041 sections 4.3, 5.3 and 7.1).

use crate::ddp::memory::{Access, Memory, MemoryFault, MemoryRange};
use crate::ddp::recv_queue::{RecvWqe, RecvWqeCopies, RqCap, RqConsumer, RqProducer, recv_queue};
use crate::ddp::regions::AccessScope;
use crate::ddp::sgl::{self, Sge};
use crate::wire::ddp::Untagged;
use crate::wire::seq::Seq;
use crate::work_queue::PostError;

/// Delivered untagged message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveredMessage {
    /// `wr_id` of its buffer.
    pub wr_id: u64,
    /// Length of the message in bytes.
    pub len: u32,
}

/// Reason why an untagged segment was not placed, in the order of the checks. Names of error codes
/// are those of RFC 5041 section 7.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UntaggedFault {
    /// "Invalid MSN - MSN range is not valid": the message was already received, or the MSN skips
    /// one.
    MsnRange,
    /// "Invalid MSN - no buffer available": no buffer is posted for the MSN.
    NoBuffer,
    /// "Invalid MO": not the next MO expected. The stream is in order, so it has to be.
    MessageOffset,
    /// "DDP Message too long for available buffer".
    TooLong {
        /// `wr_id` of the buffer.
        wr_id: u64,
    },
    /// The buffer is not registered as its receive request claims: a local error.
    Local {
        /// `wr_id` of the buffer.
        wr_id: u64,
        /// The failed check.
        fault: MemoryFault,
    },
}

/// Queue of untagged buffers in posting order, with the next MSN and MO expected. The buffers are
/// read where the application has posted them ([`recv_queue`](crate::ddp::recv_queue)).
#[derive(Debug)]
#[doc(alias = "MSN")]
pub struct BufferQueue {
    rq: RqConsumer,
    /// For [`BufferQueue::post`], unless the application posts itself.
    producer: Option<Box<RqProducer>>,
    msn: Seq,
    next_mo: u32,
}

impl BufferQueue {
    /// Creates a queue of this capacity; the first message has MSN 1. Buffers are
    /// posted with [`BufferQueue::post`].
    #[must_use]
    pub fn new(cap: RqCap) -> Self {
        let (queue, producer) = Self::with_producer(cap);
        Self { producer: Some(Box::new(producer)), ..queue }
    }

    /// As [`BufferQueue::new`], for buffers that the application posts with the returned producer,
    /// on any thread. Zeroes 64 to 128 bytes for each slot: the ring is a power of two.
    #[must_use]
    pub fn with_producer(cap: RqCap) -> (Self, RqProducer) {
        let (producer, rq, _) = recv_queue(cap);
        (Self::of(rq), producer)
    }

    /// Creates the queue of the buffers that are posted to a receive queue.
    pub(crate) const fn of(rq: RqConsumer) -> Self {
        // req: DDP-082
        Self { rq, producer: None, msn: Seq(1), next_mo: 0 }
    }

    /// Returns the number of buffers that [`BufferQueue::post`] accepts now.
    #[must_use]
    pub fn free_count(&self) -> usize {
        if self.producer.is_some() { self.rq.count_max() - self.rq.len() } else { 0 }
    }

    /// Returns its capacity.
    #[must_use]
    pub fn cap(&self) -> RqCap {
        self.rq.cap()
    }

    /// Returns the number of buffers that were posted, and not used yet.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.rq.len()
    }

    /// Appends a buffer.
    ///
    /// # Errors
    /// `QueueFull`, also if the application posts itself; `TooManySges`.
    pub fn post(&mut self, wr_id: u64, list: &[Sge]) -> Result<(), PostError> {
        self.publish_retired();
        let producer = self.producer.as_mut().ok_or(PostError::QueueFull)?;
        // req: DDP-005
        let posted = producer.post(wr_id, list);
        producer.publish();
        posted
    }

    /// Appends the oldest of these copies; `false` if there is none, or the queue is full.
    pub(crate) fn post_copy(&mut self, copies: &mut RecvWqeCopies) -> bool {
        self.publish_retired();
        let Some(producer) = &mut self.producer else { return false };
        let is_posted = copies.post_front(producer);
        producer.publish();
        is_posted
    }

    /// Lets the application post as many buffers as have left the queue.
    #[inline]
    pub fn publish_retired(&mut self) {
        self.rq.publish_retired(0);
    }

    /// Sets the MSN expected next.
    #[cfg(test)]
    pub(crate) const fn set_next_msn(&mut self, msn: u32) {
        self.msn = Seq(msn);
    }

    /// Counts a received message that consumes no buffer.
    pub fn skip_message(&mut self) {
        self.msn += 1;
    }

    /// Places a segment of an in-order stream. Returns the message if this was its last segment;
    /// its buffer has then left the queue.
    ///
    /// # Errors
    /// [`UntaggedFault`]; nothing of the segment was placed, except on `Local`.
    pub fn place(
        &mut self,
        memory: &impl Memory,
        scope: AccessScope,
        header: &Untagged,
        payload: &[u8],
    ) -> Result<Option<DeliveredMessage>, UntaggedFault> {
        // RFC 5041 section 7.1: the MSN is the next one expected, as the stream is in order.
        let ahead = Seq(header.msn) - self.msn;
        let is_old = Seq(header.msn) < self.msn;
        // req: DDP-148, DDP-149, DDP-179
        if ahead != 0 {
            // req: DDP-145, DDP-154, DDP-178
            let lacks_buffer = !is_old && ahead as usize >= self.rq.len();
            return Err(if lacks_buffer {
                UntaggedFault::NoBuffer
            } else {
                UntaggedFault::MsnRange
            });
        }
        // Section 7.1: a buffer is posted for it.
        // req: DDP-010, DDP-145, DDP-154, DDP-178
        let Some(buffer) = self.rq.front() else { return Err(UntaggedFault::NoBuffer) };
        // Section 7.1: the MO continues the message without a gap.
        // req: DDP-146, DDP-180
        if header.mo != self.next_mo {
            return Err(UntaggedFault::MessageOffset);
        }
        let offset = u64::from(self.next_mo);
        let end = offset + payload.len() as u64;
        let (wr_id, list) = (buffer.wr_id(), buffer.sges());
        // Section 7.1: the payload ends within the buffer.
        // req: DDP-004, DDP-147, DDP-181, RDMAP-172
        if end > list.clone().map(|sge| u64::from(sge.len)).sum() {
            return Err(UntaggedFault::TooLong { wr_id });
        }
        let Ok(end) = u32::try_from(end) else { return Err(UntaggedFault::TooLong { wr_id }) };
        // Section 5.2: placement; a buffer that is not registered as claimed is a local error.
        sgl::scatter(memory, scope, list, offset, payload)
            .map_err(|fault| UntaggedFault::Local { wr_id, fault })?;
        // req: DDP-097, DDP-118
        self.next_mo = end;
        // Section 5.4: the L flag completes the message, which is then delivered.
        // req: DDP-042, DDP-043, RDMAP-016, RDMAP-220
        if !header.last {
            return Ok(None);
        }
        Ok(self.deliver_first(end))
    }

    /// Delivers the message in the first buffer, of `len` bytes.
    #[inline]
    fn deliver_first(&mut self, len: u32) -> Option<DeliveredMessage> {
        // req: DDP-002, DDP-003, DDP-005, RDMAP-173, RDMAP-180, RDMAP-208, RDMAP-346
        let wr_id = self.rq.front()?.wr_id();
        self.rq.pop_front();
        // req: DDP-083, DDP-149
        self.msn += 1;
        self.next_mo = 0;
        // req: DDP-117, RDMAP-023
        Some(DeliveredMessage { wr_id, len })
    }

    /// Returns the rest of the buffer to which the next segment in order is to be placed. `None` if
    /// the segment is another, its buffer has several elements or none, or the rest is not
    /// registered as a whole: [`BufferQueue::place`] is to check it.
    #[inline]
    pub fn rest_of_sink(
        &mut self,
        memory: &impl Memory,
        scope: AccessScope,
        header: &Untagged,
    ) -> Option<MemoryRange> {
        if (header.msn, header.mo) != (self.msn.0, self.next_mo) {
            return None;
        }
        let sge = self.rq.front()?.only_sge()?;
        let len = sge.len.checked_sub(self.next_mo)? as usize;
        let at = sge.addr.checked_add(u64::from(self.next_mo))?;
        memory.regions().resolve(sge.lkey, scope, Access::LOCAL_WRITE, at, len).ok()
    }

    /// Notes that `len` bytes of a message were placed to [`BufferQueue::rest_of_sink`], and not
    /// its last.
    #[inline(always)]
    pub const fn advance(&mut self, len: u32) {
        // req: DDP-097, DDP-118
        self.next_mo += len;
    }

    /// As [`BufferQueue::advance`], for the last bytes of the message, which is delivered.
    #[inline]
    pub fn deliver(&mut self, len: u32) -> Option<DeliveredMessage> {
        self.deliver_first(self.next_mo + len)
    }

    /// Removes the oldest buffer, to flush it; returns its work request ID.
    pub fn pop_front(&mut self) -> Option<u64> {
        let wr_id = self.rq.front()?.wr_id();
        self.rq.pop_front();
        Some(wr_id)
    }

    /// Returns the oldest buffer.
    #[must_use]
    pub fn front(&mut self) -> Option<RecvWqe<'_>> {
        self.rq.front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ddp::sgl::Sge;
    use crate::ddp::vec_memory::VecMemory;

    fn header(msn: u32, mo: u32, last: bool) -> Untagged {
        Untagged { last, rsvd_ulp: 0x43, rsvd_ulp_rest: 0, qn: 0, msn, mo }
    }

    fn queue(arena: &VecMemory, lens: &[u32]) -> BufferQueue {
        let stag = arena.register(0, 64, Access::LOCAL_WRITE, 1);
        let mut queue = BufferQueue::new(RqCap::new(lens.len()));
        for (index, &len) in lens.iter().enumerate() {
            let sge = Sge { addr: index as u64 * 16, len, lkey: stag };
            queue.post(index as u64, &[sge]).unwrap();
        }
        queue
    }

    #[test]
    fn messages_fill_buffers_in_order() {
        let arena = VecMemory::new(64);
        let mut queue = queue(&arena, &[16, 8]);
        let mut place = |h, p: &[u8]| queue.place(&arena, 1.into(), &h, p);
        assert_eq!(place(header(1, 0, false), b"abcd"), Ok(None));
        assert_eq!(
            place(header(1, 4, true), b"ef"),
            Ok(Some(DeliveredMessage { wr_id: 0, len: 6 }))
        );
        assert_eq!(place(header(2, 0, true), b""), Ok(Some(DeliveredMessage { wr_id: 1, len: 0 })));
        assert_eq!(place(header(3, 0, true), b""), Err(UntaggedFault::NoBuffer));
        assert_eq!(arena.read(0, 6), b"abcdef");
    }

    #[test]
    fn each_invalid_segment_has_its_fault() {
        let arena = VecMemory::new(64);
        let mut queue = queue(&arena, &[4, 4]);
        let mut fault = |h, p: &[u8]| queue.place(&arena, 1.into(), &h, p).unwrap_err();
        assert_eq!(fault(header(0, 0, true), b""), UntaggedFault::MsnRange);
        assert_eq!(fault(header(2, 0, true), b""), UntaggedFault::MsnRange);
        assert_eq!(fault(header(3, 0, true), b""), UntaggedFault::NoBuffer);
        assert_eq!(fault(header(1, 1, true), b""), UntaggedFault::MessageOffset);
        assert_eq!(fault(header(1, 0, true), b"12345"), UntaggedFault::TooLong { wr_id: 0 });
        assert_eq!(arena.read(0, 64), [0; 64]);
        let wrong_pd = queue.place(&arena, 2.into(), &header(1, 0, true), b"1");
        let fault = MemoryFault::NotAssociated;
        assert_eq!(wrong_pd, Err(UntaggedFault::Local { wr_id: 0, fault }));
    }
}
