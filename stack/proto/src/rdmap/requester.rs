//! Requester of a stream: the send queue, its segments, and the order in which requests complete
//! (RFC 5040 sections 5.5 and 6).
//!
//! Entries move through the queue in posting order:
//! `completed | built, or outstanding | being built | queued`.
//! Segments are built front to back. A request completes when it and all requests before it are
//! done, in whatever order they became so.

use std::collections::VecDeque;

use crate::ddp::memory::{Memory, MemoryFault};
use crate::ddp::regions::{AccessScope, RegionTable};
use crate::ddp::segments::Chunk;
use crate::ddp::sgl;
use crate::rdmap::operation::{Operation, Payload};
use crate::rdmap::segment::{self, SegmentBuilder};
use crate::rdmap::stream::TxSource;
use crate::rdmap::train::{SegmentTrain, TrainShape};
use crate::wire::atomic::{ATOMIC_REQUEST_LEN, AtomicRequest, IMMEDIATE_LEN};
use crate::wire::ddp::{TAGGED_LEN, UNTAGGED_LEN, Version};
use crate::wire::rdmap::READ_REQUEST_LEN;
use crate::wire::seq::Seq;

mod atomic;
mod last_of_write;
mod read_response;
mod terminated;

/// Posted work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Work request ID, returned in the completion.
    pub wr_id: u64,
    /// Operation to perform.
    pub operation: Operation,
    /// [`Operation::len`] of `operation`, computed once.
    pub len: u64,
    /// Success is reported too.
    pub signaled: bool,
    /// Fence: starts only when all earlier Reads and atomic operations have completed.
    pub fence: bool,
}

/// Progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Not built, or built in part.
    Queued,
    /// Built: no longer depends on the application's memory. Local operation: executed.
    Built,
    /// A [`Operation::WriteImmediate`] whose Write is built, but not its Immediate Data.
    WriteBuilt,
    /// Outstanding Read; `received` bytes of its response have been placed.
    Reading { received: u32 },
    /// Outstanding atomic operation; `id` is its Request Identifier.
    Atomic { id: u32 },
    /// Read or atomic operation whose response was delivered.
    Answered,
    /// Local operation that was refused: the next build fails, which ends the stream.
    LocalOpFailed(MemoryFault),
    /// Cannot be built: its memory is not registered as it claims.
    Failed,
}

#[derive(Debug)]
struct Entry {
    request: Request,
    progress: Progress,
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// Completed.
    Success,
    /// Its memory was not registered as it claims.
    LocalProtection,
    /// The stream ended before it was done.
    Flushed,
}

/// Send queue of a stream.
#[derive(Debug)]
pub struct Requester {
    queue: VecDeque<Entry>,
    count_max: usize,
    /// Number of entries at the front of `queue` that are built.
    built_count: usize,
    /// Bytes of the entry at `built_count` that are in built segments.
    offset: u64,
    /// Outstanding Reads and atomic operations, oldest first, each by its number, counted from the
    /// first request ever posted.
    outstanding: VecDeque<u64>,
    /// Requests removed from the queue since its creation.
    popped_count: u64,
    /// Queued local operations.
    local_count: usize,
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
    /// Creates a queue for at most `count_max` requests.
    #[must_use]
    pub fn new(count_max: usize) -> Self {
        Self {
            queue: VecDeque::with_capacity(count_max),
            count_max,
            built_count: 0,
            offset: 0,
            outstanding: VecDeque::new(),
            popped_count: 0,
            local_count: 0,
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
    pub fn set_ord(&mut self, ord: u16) {
        self.ord = ord;
        self.outstanding.reserve(usize::from(ord));
    }

    /// Returns the number of outstanding Reads and atomic operations.
    fn outstanding_count(&self) -> usize {
        self.outstanding.len() + usize::from(self.rtr_read_pending)
    }

    /// True if a request was ever built, at least in part.
    pub(super) const fn has_built(&self) -> bool {
        self.popped_count > 0 || self.built_count > 0 || self.offset > 0
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

    /// Returns ORD: Reads and atomic operations that may be outstanding.
    #[must_use]
    pub const fn ord(&self) -> u16 {
        self.ord
    }

    /// True if the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Closes the receive direction: no more responses arrive. True if a request still needs one.
    pub(super) fn on_rx_closed(&mut self) -> bool {
        // Requests that need a response are blocked from now on: there is no ORD credit.
        self.ord = 0;
        let mut waiting = self.queue.iter().skip(self.built_count);
        !self.outstanding.is_empty() || waiting.any(|entry| entry.request.operation.is_answered())
    }

    /// Returns the number of requests that can be posted now.
    #[must_use]
    pub fn free_count(&self) -> usize {
        self.count_max - self.queue.len()
    }

    /// Appends a request; `false` if the queue is full.
    pub fn post(&mut self, request: Request) -> bool {
        let fits = self.free_count() > 0;
        if fits {
            self.local_count += usize::from(request.operation.is_local());
            // req: DDP-109, RDMAP-003, RDMAP-139, RDMAP-178
            self.queue.push_back(Entry { request, progress: Progress::Queued });
        }
        fits
    }

    /// True if local operations are queued: see [`Requester::execute_local_ops`].
    #[must_use]
    pub const fn has_local_ops(&self) -> bool {
        self.local_count > 0
    }

    /// Executes the local operations that are next in the queue. To be called when one was posted,
    /// a message was built completely, or a Read or atomic operation completed.
    #[cold]
    pub fn execute_local_ops(&mut self, regions: &RegionTable, scope: AccessScope) {
        while self.local_count > 0 && self.offset == 0 {
            let Some(entry) = self.queue.get_mut(self.built_count) else { return };
            let waits = entry.request.fence && !self.outstanding.is_empty();
            if waits || entry.progress != Progress::Queued {
                return;
            }
            let done = match &entry.request.operation {
                Operation::Bind(bind) => regions.bind(bind, scope),
                Operation::Invalidate { stag } => regions.invalidate_local(*stag, scope),
                _ => return,
            };
            self.local_count -= 1;
            match done {
                Ok(()) => {
                    entry.progress = Progress::Built;
                    self.built_count += 1;
                }
                Err(fault) => entry.progress = Progress::LocalOpFailed(fault),
            }
        }
    }

    /// True if a segment can be built now.
    #[must_use]
    pub fn can_build(&self) -> bool {
        let Some(entry) = self.queue.get(self.built_count) else { return false };
        if entry.progress != Progress::Queued {
            // Its Immediate Data follow, or the build is to report a refused local operation.
            return entry.progress != Progress::Failed;
        }
        if self.offset > 0 {
            return true;
        }
        // A Read without ORD credit blocks the requests after it: they do not overtake it.
        // req: RDMAP-231, RDMAP-235, RDMAP-237
        let credit = !entry.request.operation.is_answered()
            || self.outstanding_count() < usize::from(self.ord);
        // req: RDMAP-217, RDMAP-237
        credit
            && !entry.request.operation.is_local()
            && (!entry.request.fence || self.outstanding.is_empty())
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
        let Some(entry) = self.queue.get(self.built_count) else { return 0 };
        match entry.request.operation {
            Operation::Send { .. } => UNTAGGED_LEN as u64 + entry.request.len - self.offset,
            Operation::WriteImmediate { .. } if entry.progress == Progress::WriteBuilt => {
                (UNTAGGED_LEN + IMMEDIATE_LEN) as u64
            }
            Operation::Write { .. } | Operation::WriteImmediate { .. } => {
                TAGGED_LEN as u64 + entry.request.len - self.offset
            }
            Operation::Read { .. } => (UNTAGGED_LEN + READ_REQUEST_LEN) as u64,
            Operation::Atomic { .. } => (UNTAGGED_LEN + ATOMIC_REQUEST_LEN) as u64,
            Operation::Immediate { .. } => (UNTAGGED_LEN + IMMEDIATE_LEN) as u64,
            Operation::Bind(_) | Operation::Invalidate { .. } => 0,
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
        let Some(entry) = self.queue.get_mut(self.built_count) else { return Ok(0) };
        let chunk = Chunk { offset: self.offset, remaining: entry.request.len - self.offset };
        let (send_msn, read_msn) = (self.send_msn.0, self.read_msn.0);
        let mut builder = SegmentBuilder { memory, scope, version, out };
        let segment = match &entry.request.operation {
            Operation::Send { payload, solicited, invalidate } => {
                builder.send(payload, chunk, send_msn, *solicited, *invalidate)
            }
            Operation::WriteImmediate { data, solicited, .. }
                if entry.progress == Progress::WriteBuilt =>
            {
                Ok(builder.immediate(data, *solicited, send_msn))
            }
            Operation::Write { payload, rkey, remote }
            | Operation::WriteImmediate { payload, rkey, remote, .. } => {
                builder.write(payload, chunk, *rkey, *remote)
            }
            Operation::Read { sink, rkey, remote } => builder.read(sink, *rkey, *remote, read_msn),
            Operation::Atomic { op, sink, rkey, remote } => {
                let request = AtomicRequest { id: read_msn, stag: *rkey, to: *remote, op: *op };
                builder.atomic(sink, &request, read_msn)
            }
            Operation::Immediate { data, solicited } => {
                Ok(builder.immediate(data, *solicited, send_msn))
            }
            Operation::Bind(_) | Operation::Invalidate { .. } => match entry.progress {
                Progress::LocalOpFailed(fault) => Err(fault),
                _ => return Ok(0),
            },
        };
        let segment = match segment {
            Ok(segment) => segment,
            Err(fault) => {
                entry.progress = Progress::Failed;
                return Err(fault);
            }
        };
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
        let entry = self.queue.get(self.built_count).filter(|_| self.can_build())?;
        let (offset, remaining) = (self.offset, entry.request.len - self.offset);
        let source = |payload: &Payload, header_len: usize| {
            let (len, count) = shape.payload(header_len, remaining);
            let Payload::Gather(list) = payload else { return None };
            let range = sgl::resolve_source(memory, scope, list, offset, len * count).ok()??;
            Some((range, len))
        };
        match &entry.request.operation {
            Operation::Write { payload, rkey, remote }
            | Operation::WriteImmediate { payload, rkey, remote, .. }
                if entry.progress == Progress::Queued =>
            {
                let (range, len) = source(payload, TAGGED_LEN)?;
                let header = segment::write_header(version, offset, *rkey, *remote);
                Some(SegmentTrain::tagged(TxSource::Requests, &header, version, range, len))
            }
            Operation::Send { payload, solicited, invalidate } => {
                let (range, len) = source(payload, UNTAGGED_LEN)?;
                let msn = self.send_msn.0;
                let header = segment::send_header(version, offset, msn, *solicited, *invalidate);
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
        let number = self.popped_count + self.built_count as u64;
        let Some(entry) = self.queue.get_mut(self.built_count) else { return };
        entry.progress = match entry.request.operation {
            Operation::Write { .. } | Operation::Bind(_) | Operation::Invalidate { .. } => {
                Progress::Built
            }
            Operation::WriteImmediate { .. } if entry.progress != Progress::WriteBuilt => {
                // Its Immediate Data follow.
                entry.progress = Progress::WriteBuilt;
                return;
            }
            Operation::Send { .. }
            | Operation::Immediate { .. }
            | Operation::WriteImmediate { .. } => {
                // req: DDP-081, DDP-083, RDMAP-021
                self.send_msn += 1;
                Progress::Built
            }
            Operation::Read { .. } | Operation::Atomic { .. } => {
                let id = self.read_msn.0;
                // req: DDP-080, DDP-083, RDMAP-150
                self.read_msn += 1;
                // req: RDMAP-226
                self.outstanding.push_back(number);
                if let Operation::Read { .. } = entry.request.operation {
                    Progress::Reading { received: 0 }
                } else {
                    Progress::Atomic { id }
                }
            }
        };
        self.built_count += 1;
    }

    /// Returns the oldest request and its outcome, if it is done; remove it with
    /// [`Requester::pop`].
    #[must_use]
    pub fn completed(&self) -> Option<(&Request, RequestOutcome)> {
        // req: RDMAP-210
        let entry = self.queue.front()?;
        let outcome = match entry.progress {
            Progress::Built | Progress::Answered => RequestOutcome::Success,
            Progress::Failed => RequestOutcome::LocalProtection,
            Progress::Queued
            | Progress::WriteBuilt
            | Progress::Reading { .. }
            | Progress::LocalOpFailed(_)
            | Progress::Atomic { .. } => return None,
        };
        Some((&entry.request, outcome))
    }

    /// Returns the oldest request and its outcome at the end of the stream: done, failed or
    /// flushed.
    #[must_use]
    pub fn flushed(&self) -> Option<(&Request, RequestOutcome)> {
        self.completed()
            .or_else(|| self.queue.front().map(|entry| (&entry.request, RequestOutcome::Flushed)))
    }

    /// Returns the number of the oldest request, counted from the first ever posted.
    #[must_use]
    pub const fn oldest_number(&self) -> u64 {
        self.popped_count
    }

    /// Removes the oldest request.
    pub fn pop(&mut self) {
        if self.queue.pop_front().is_some() {
            self.popped_count += 1;
            self.built_count = self.built_count.saturating_sub(1);
        }
    }

    fn entry(&self, number: u64) -> Option<&Entry> {
        self.queue.get(usize::try_from(number - self.popped_count).ok()?)
    }

    fn entry_mut(&mut self, number: u64) -> Option<&mut Entry> {
        self.queue.get_mut(usize::try_from(number - self.popped_count).ok()?)
    }
}
