//! Requester of a stream: the requests of the send queue, their segments, and the order in which
//! they complete (RFC 5040 sections 5.5 and 6).
//!
//! Requests move through the queue in posting order:
//! `completed | built, or outstanding | being built | queued | posted and not taken`.
//! Segments are built front to back. A request completes when it and all requests before it are
//! done, in whatever order they became so. The requests lie in the slots of the send queue
//! ([`send_queue`]) until then; their progress is in `entries`.

use std::collections::VecDeque;

use crate::ddp::memory::{Memory, MemoryFault, MemoryRange};
use crate::ddp::regions::AccessScope;
use crate::ddp::sgl;
use crate::device::Device;
use crate::rdmap::segment::{self, Chunk, SegmentBuilder};
use crate::rdmap::segment_train::{SegmentTrain, TrainShape, TxSource};
use crate::rdmap::send_queue::wqe::{SendFlags, Wqe, WqeOpcode};
use crate::rdmap::send_queue::{self, SqCap, SqConsumer, SqProducer};
use crate::wire::ddp::{TAGGED_LEN, UNTAGGED_LEN, Version};
use crate::wire::rdmap::READ_REQUEST_LEN;
use crate::wire::rdmap_extensions::{ATOMIC_REQUEST_LEN, AtomicRequest, IMMEDIATE_LEN};
use crate::wire::seq::Seq;
use crate::work_queue::work_queues;

mod completion;
mod entries;
mod last_segments;
mod local_ops;
mod posted;
mod responses;
mod short_message;
mod terminated;

pub use completion::{DoneRequest, RequestOutcome};
pub use entries::Rejection;
use entries::{Entries, Entry, Progress};
pub use last_segments::LastSegments;
pub use posted::Admission;
pub use short_message::ShortMessage;

/// Requests of a queue whose entries are allocated with the first of them, at most: those of a
/// longer one take too long for that.
const LATE_ENTRIES_MAX: usize = 1024;

/// Requester of a stream.
#[derive(Debug)]
#[doc(alias = "ORD")]
pub struct Requester {
    sq: SqConsumer,
    /// Posts to the queue, unless the application does.
    producer: Option<Box<SqProducer>>,
    entries: Entries,
    /// Bytes of the request to build next that are in built segments.
    offset: u64,
    /// Outstanding Reads and atomic operations, oldest first, each by its number; at most ORD.
    /// Allocated with the first: many streams never have one.
    outstanding: VecDeque<u64>,
    /// Bytes of the response to the oldest outstanding Read that have been placed.
    response_placed: u32,
    /// Requests not built that [`Requester::execute_local_ops`] handles: local operations, and
    /// those rejected.
    local_count: u32,
    /// Requests that are done without a message: local operations, and those rejected.
    unsent_count: u64,
    ord: u16,
    /// The RTR Read, older than all others, is outstanding.
    rtr_read_pending: bool,
    send_msn: Seq,
    /// MSN of the next Read Request or Atomic Request.
    read_msn: Seq,
    /// MSN expected in the next Atomic Response.
    response_msn: Seq,
}

impl Requester {
    /// Has the port load what building the next requests reads: their entries, and the slots of as
    /// many as often lie together.
    pub(crate) fn prefetch_next<D: Device>(&self) {
        let unbuilt = self.entries.prefetch_next::<D>();
        self.sq.prefetch_last::<D>(unbuilt);
    }

    /// Creates a send queue whose requests are posted by [`Requester::post`].
    #[must_use]
    pub fn new(cap: SqCap) -> Self {
        let (requester, producer) = Self::with_producer(cap);
        Self { producer: Some(Box::new(producer)), ..requester }
    }

    /// Creates a send queue to which the application posts with the returned producer, on any
    /// thread.
    #[must_use]
    pub fn with_producer(cap: SqCap) -> (Self, SqProducer) {
        let ([queue], _) = work_queues([cap.shape()]);
        let (producer, sq) = send_queue::from_work_queue(queue);
        (Self::of(sq), producer)
    }

    /// Creates the requester of a send queue.
    pub(crate) fn of(sq: SqConsumer) -> Self {
        let mut entries = Entries::new();
        if sq.count_max() > LATE_ENTRIES_MAX {
            entries.allocate(sq.count_max());
        }
        Self {
            sq,
            producer: None,
            entries,
            offset: 0,
            outstanding: VecDeque::new(),
            response_placed: 0,
            local_count: 0,
            unsent_count: 0,
            ord: 0,
            rtr_read_pending: false,
            // req: DDP-082
            send_msn: Seq(1),
            // req: DDP-082
            read_msn: Seq(1),
            response_msn: Seq(1),
        }
    }

    /// Sets ORD, the number of Reads and atomic operations outstanding at a time. Called once, when
    /// the stream starts.
    pub const fn set_ord(&mut self, ord: u16) {
        self.ord = ord;
    }

    /// Returns the number of outstanding Reads and atomic operations.
    fn outstanding_count(&self) -> usize {
        self.outstanding.len() + usize::from(self.rtr_read_pending)
    }

    fn has_credit(&self) -> bool {
        self.outstanding_count() < usize::from(self.ord)
    }

    /// True if a message was ever built, at least in part.
    pub(super) fn has_built(&self) -> bool {
        let is_begun = || self.entries.unbuilt().is_some_and(|entry| entry.progress.is_begun());
        self.entries.next_to_build > self.unsent_count || self.offset > 0 || is_begun()
    }

    /// Sets the MSN of the next Send.
    #[cfg(test)]
    pub(super) const fn set_next_send_msn(&mut self, msn: u32) {
        self.send_msn = Seq(msn);
    }

    /// Sets the MSN of the next Read.
    #[cfg(test)]
    pub(super) const fn set_next_read_msn(&mut self, msn: u32) {
        self.read_msn = Seq(msn);
    }

    /// Allocates the MSN of a Send that is not in the queue.
    pub(super) fn alloc_send_msn(&mut self) -> u32 {
        let msn = self.send_msn.0;
        self.send_msn += 1;
        msn
    }

    /// Starts the zero-length RTR Read, which is not in the queue and older than all requests;
    /// returns its MSN.
    pub(super) fn start_rtr_read(&mut self) -> u32 {
        self.rtr_read_pending = true;
        let msn = self.read_msn.0;
        self.read_msn += 1;
        msn
    }

    /// Handles a segment of a Read Response: true if it is the response to the RTR Read.
    pub(super) const fn on_rtr_read_response(&mut self, is_empty: bool) -> bool {
        let ends = self.rtr_read_pending && is_empty;
        self.rtr_read_pending &= !ends;
        ends
    }

    /// Returns the capacity of its send queue.
    #[must_use]
    pub fn cap(&self) -> SqCap {
        self.sq.cap()
    }

    /// Returns the number of requests that were posted, and not reported yet. Reads those that were
    /// not taken: for reports.
    #[must_use]
    pub fn depth(&self) -> usize {
        usize::try_from(self.entries.end - self.entries.oldest).unwrap_or(0) + self.sq.untaken()
    }

    /// Returns ORD: Reads and atomic operations that may be outstanding.
    #[must_use]
    pub const fn ord(&self) -> u16 {
        self.ord
    }

    /// True if each request is done, whether or not its completion has been reported.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.entries.all_built() && self.outstanding.is_empty()
    }

    /// Closes the receive direction: no more responses arrive. True if a request still needs one.
    pub(super) fn on_rx_closed(&mut self) -> bool {
        // Requests that need a response are blocked from now on: there is no ORD credit.
        self.ord = 0;
        let mut waiting = self.entries.next_to_build..self.entries.end;
        !self.outstanding.is_empty() || waiting.any(|number| self.needs_response(number))
    }

    fn needs_response(&self, number: u64) -> bool {
        let is_waiting =
            |entry: &Entry| matches!(entry.progress, Progress::Queued | Progress::Reading { .. });
        let entry = self.entries.get(number).filter(|entry| is_waiting(entry));
        entry.is_some_and(|entry| entry.opcode().is_answered())
    }

    /// True if a segment can be built now.
    #[must_use]
    pub fn can_build(&self) -> bool {
        let Some(entry) = self.entries.unbuilt() else { return false };
        if !matches!(entry.progress, Progress::Queued) {
            return self.can_continue(entry.progress);
        }
        if self.offset > 0 {
            return true;
        }
        // A Read without ORD credit blocks the requests after it: they do not overtake it.
        // req: RDMAP-231, RDMAP-235, RDMAP-237
        let credit = !entry.opcode().is_answered() || self.has_credit();
        // req: RDMAP-217, RDMAP-237
        credit
            && !entry.opcode().is_local()
            && (!entry.flags().contains(SendFlags::FENCE) || self.outstanding.is_empty())
    }

    /// [`Requester::can_build`] for a request that is built in part, or was refused.
    #[cold]
    #[inline(never)]
    fn can_continue(&self, progress: Progress) -> bool {
        match progress {
            // Its next Read Request, its Immediate Data, or the report of a refused operation.
            Progress::Reading { .. } => self.has_credit(),
            Progress::WriteBuilt | Progress::LocalOpFailed(_) => true,
            _ => false,
        }
    }

    /// True if each request was built or refused.
    #[inline(always)]
    pub(super) const fn is_drained(&self) -> bool {
        self.entries.all_built()
    }

    /// True if a message has been built in part.
    #[must_use]
    pub const fn is_mid_message(&self) -> bool {
        self.offset > 0
    }

    /// Returns the length in bytes of the ULPDU that [`Requester::build`] would build with
    /// unlimited capacity. The packer needs it to check that the next ULPDU fits into a segment.
    #[must_use]
    pub fn next_ulpdu_len(&self) -> u64 {
        let Some(entry) = self.entries.unbuilt() else { return 0 };
        let rest = u64::from(entry.len) - self.offset;
        match entry.opcode() {
            WqeOpcode::Send => UNTAGGED_LEN as u64 + rest,
            WqeOpcode::WriteImmediate if entry.progress == Progress::WriteBuilt => {
                (UNTAGGED_LEN + IMMEDIATE_LEN) as u64
            }
            WqeOpcode::Write | WqeOpcode::WriteImmediate => TAGGED_LEN as u64 + rest,
            WqeOpcode::Read => (UNTAGGED_LEN + READ_REQUEST_LEN) as u64,
            WqeOpcode::FetchAdd | WqeOpcode::Swap | WqeOpcode::CmpSwap => {
                (UNTAGGED_LEN + ATOMIC_REQUEST_LEN) as u64
            }
            WqeOpcode::Immediate => (UNTAGGED_LEN + IMMEDIATE_LEN) as u64,
            WqeOpcode::Bind | WqeOpcode::Invalidate => 0,
        }
    }

    /// Builds the next segment into `out` and returns its length. Call only if
    /// [`Requester::can_build`]. `out` has at least 128 bytes; a message that does not fit
    /// continues in the next segment.
    ///
    /// # Errors
    /// [`MemoryFault`] if the request's memory is not registered as it claims. The request
    /// completes with [`RequestOutcome::LocalProtection`]. The stream has to end, since part of the
    /// message may have been sent.
    pub fn build(
        &mut self,
        memory: &impl Memory,
        scope: AccessScope,
        version: Version,
        out: &mut [u8],
    ) -> Result<usize, MemoryFault> {
        // RFC 5040 section 5.5: requests are sent in the order in which they were posted.
        let Some(entry) = self.entries.unbuilt_mut() else { return Ok(0) };
        let wqe = entry.wqe(&self.sq);
        let chunk = Chunk { offset: self.offset, remaining: u64::from(entry.len) - self.offset };
        let (send_msn, read_msn) = (self.send_msn.0, self.read_msn.0);
        // RFC 5040 section 4: one kind of message for each operation.
        let mut builder = SegmentBuilder { memory, scope, version, out };
        let segment = match entry.opcode() {
            WqeOpcode::Send => builder.send(&wqe, chunk, send_msn),
            WqeOpcode::WriteImmediate if entry.progress == Progress::WriteBuilt => {
                Ok(builder.immediate(&wqe, send_msn))
            }
            WqeOpcode::Write | WqeOpcode::WriteImmediate => builder.write(&wqe, chunk),
            WqeOpcode::Read => builder.read(&wqe, entry.next_sink(&wqe), read_msn),
            WqeOpcode::FetchAdd | WqeOpcode::Swap | WqeOpcode::CmpSwap => {
                let Some(op) = wqe.atomic() else { return Ok(0) };
                let (stag, to) = (wqe.stag(), wqe.remote());
                let request = AtomicRequest { id: read_msn, stag, to, op };
                builder.atomic(&wqe.sge(0), &request, read_msn)
            }
            WqeOpcode::Immediate => Ok(builder.immediate(&wqe, send_msn)),
            // Local operations send nothing; a refused one ends the stream here, in its turn.
            WqeOpcode::Bind | WqeOpcode::Invalidate => match entry.progress {
                Progress::LocalOpFailed(fault) => Err(fault),
                _ => return Ok(0),
            },
        };
        let segment = match segment {
            Ok(segment) => segment,
            // RFC 5040 section 7.1: an error of local memory ends the stream.
            Err(fault) => {
                entry.progress = Progress::Failed;
                return Err(fault);
            }
        };
        // RFC 5041 section 5.2: the next segment goes on where this one ends.
        // req: RDMAP-218, DDP-115
        if segment.last {
            self.offset = 0;
            self.on_message_built();
        } else {
            // req: DDP-096, DDP-099
            self.offset += segment.payload_len as u64;
        }
        Ok(segment.len)
    }

    /// Returns the next segments as a train; `None` if they are shorter or of another operation.
    pub(super) fn train(
        &self,
        memory: &impl Memory,
        scope: AccessScope,
        version: Version,
        shape: TrainShape,
    ) -> Option<SegmentTrain> {
        let entry = self.entries.unbuilt().filter(|_| self.can_build())?;
        let wqe = entry.wqe(&self.sq);
        let (offset, remaining) = (self.offset, u64::from(entry.len) - self.offset);
        let source = |header_len: usize| {
            let (len, count) = shape.payload(header_len, remaining);
            let range = resolve_source(memory, scope, &wqe, offset, len * count)?;
            Some((range, len))
        };
        match entry.opcode() {
            WqeOpcode::Write | WqeOpcode::WriteImmediate if entry.progress == Progress::Queued => {
                let (range, len) = source(TAGGED_LEN)?;
                let header = segment::write_header(version, offset, wqe.stag(), wqe.remote());
                Some(SegmentTrain::tagged(TxSource::Requests, &header, version, range, len))
            }
            WqeOpcode::Send => {
                let (range, len) = source(UNTAGGED_LEN)?;
                let header = segment::send_header(version, &wqe, offset, self.send_msn.0);
                Some(SegmentTrain::untagged(TxSource::Requests, &header, version, range, len))
            }
            _ => None,
        }
    }

    /// Notes that segments with `len` bytes of the message, and not its last, were built.
    pub(super) const fn advance(&mut self, len: usize) {
        // req: DDP-096, DDP-099
        self.offset += len as u64;
    }

    /// Handles the end of a message: its last segment was built.
    fn on_message_built(&mut self) {
        let number = self.entries.next_to_build;
        let Some(entry) = self.entries.unbuilt_mut() else { return };
        entry.progress = match entry.opcode() {
            WqeOpcode::Write | WqeOpcode::Bind | WqeOpcode::Invalidate => Progress::Built,
            WqeOpcode::WriteImmediate if entry.progress != Progress::WriteBuilt => {
                // Its Immediate Data follow.
                entry.progress = Progress::WriteBuilt;
                return;
            }
            WqeOpcode::Send | WqeOpcode::Immediate | WqeOpcode::WriteImmediate => {
                // req: DDP-081, DDP-083, RDMAP-021
                self.send_msn += 1;
                Progress::Built
            }
            WqeOpcode::Read | WqeOpcode::FetchAdd | WqeOpcode::Swap | WqeOpcode::CmpSwap => {
                let id = self.read_msn.0;
                // req: DDP-080, DDP-083, RDMAP-150
                self.read_msn += 1;
                // req: RDMAP-226
                self.outstanding.push_back(number);
                if entry.opcode() == WqeOpcode::Read {
                    if !entry.on_read_requested(&self.sq) {
                        return;
                    }
                    entry.progress
                } else {
                    Progress::Atomic { id }
                }
            }
        };
        self.entries.next_to_build += 1;
    }
}

/// Resolves the bytes of a payload from `offset` on that lie in one element, at most `len_max`.
/// `None` if they are inline, or cannot be read.
fn resolve_source(
    memory: &impl Memory,
    scope: AccessScope,
    wqe: &Wqe<'_>,
    offset: u64,
    len_max: usize,
) -> Option<MemoryRange> {
    if wqe.is_inline() {
        return None;
    }
    if wqe.payload_count() == 1 {
        return sgl::resolve_source(memory, scope, [wqe.sge(0)], offset, len_max).ok()?;
    }
    sgl::resolve_source(memory, scope, wqe.sges(), offset, len_max).ok()?
}

#[cfg(test)]
mod tests;
