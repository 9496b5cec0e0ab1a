//! The requesting half of a stream: the send queue, the segments made of it, and the order in
//! which requests complete (RFC 5040 sections 5.5 and 6).
//!
//! Entries move through the queue in posting order: `completed | built, or waiting for a response
//! | being built | queued`. Segments are built front to back; a request completes when it and all
//! before it are done, whatever order they became so.

use std::collections::VecDeque;

use crate::ddp::memory::{Memory, MemoryFault};
use crate::ddp::regions::{Reach, RegionTable, Stag};
use crate::rdmap::operation::Operation;
use crate::rdmap::segment::{Maker, Part};
use crate::wire::atomic::{ATOMIC_REQUEST_LEN, AtomicRequest, IMMEDIATE_LEN};
use crate::wire::ddp::{TAGGED_LEN, Tagged, UNTAGGED_LEN, Version};
use crate::wire::rdmap::READ_REQUEST_LEN;
use crate::wire::seq::Seq;

mod atomic;
mod refused;

/// A posted request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The poster's name for it.
    pub wr_id: u64,
    /// What to do.
    pub operation: Operation,
    /// [`Operation::len`] of it, summed up once.
    pub len: u64,
    /// Report success too.
    pub signaled: bool,
    /// Start only when all earlier Reads and atomic operations have completed.
    pub fence: bool,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Not begun, or begun and not built whole.
    Queued,
    /// Its octets no longer depend on the application's memory.
    Built,
    /// A Write with immediate data whose Write is built, and its Immediate Data not.
    Written,
    /// A Read whose response is `received` octets in.
    Reading { received: u32 },
    /// An atomic operation whose request was built, under this name.
    Atomic { id: u32 },
    /// A Read or atomic operation whose response was delivered.
    Answered,
    /// It concerns this end alone and was refused: the stream is to end with the next segment.
    Refused(MemoryFault),
    /// It cannot be built: its memory is not registered as it claims.
    Failed,
}

#[derive(Debug)]
struct Entry {
    request: Request,
    progress: Progress,
}

/// A request that left the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As asked.
    Success,
    /// Its memory was not registered as it claims.
    LocalProtection,
    /// The stream ended before it was done.
    Flushed,
}

/// The send queue of a stream.
#[derive(Debug)]
pub struct Requester {
    queue: VecDeque<Entry>,
    count_max: usize,
    /// Entries before this index are built.
    built: usize,
    /// Octets of the entry at `built` that went into segments.
    offset: u64,
    /// Reads and atomic operations in progress, oldest first, each counted from the first request
    /// ever posted.
    awaited: VecDeque<u64>,
    /// Requests that left the queue since it was made.
    popped: u64,
    /// Queued requests that concern this end alone.
    local_count: usize,
    ord: u16,
    /// The ready-to-receive Read, older than all others, is not answered.
    rtr_read: bool,
    send_msn: Seq,
    /// Of Read Requests and Atomic Requests.
    read_msn: Seq,
    /// The next Atomic Response's.
    response_msn: Seq,
}

impl Requester {
    /// A queue for at most `count_max` requests.
    #[must_use]
    pub fn new(count_max: usize) -> Self {
        Self {
            queue: VecDeque::with_capacity(count_max),
            count_max,
            built: 0,
            offset: 0,
            awaited: VecDeque::new(),
            popped: 0,
            local_count: 0,
            ord: 0,
            rtr_read: false,
            // req: DDP-082
            send_msn: Seq(1),
            // req: DDP-082
            read_msn: Seq(1),
            response_msn: Seq(1),
        }
    }

    /// Sets how many Reads and atomic operations may be in progress; done once, when the stream
    /// starts.
    pub fn set_ord(&mut self, ord: u16) {
        self.ord = ord;
        self.awaited.reserve(usize::from(ord));
    }

    /// Reads and atomic operations in progress.
    fn in_progress(&self) -> usize {
        self.awaited.len() + usize::from(self.rtr_read)
    }

    /// Octets of a request went into segments, ever.
    pub(super) const fn has_begun(&self) -> bool {
        self.popped > 0 || self.built > 0 || self.offset > 0
    }

    /// The next Send has this MSN.
    #[cfg(test)]
    pub(super) const fn begin_sends_at(&mut self, msn: u32) {
        self.send_msn = Seq(msn);
    }

    /// The next Read has this MSN.
    #[cfg(test)]
    pub(super) const fn begin_reads_at(&mut self, msn: u32) {
        self.read_msn = Seq(msn);
    }

    /// MSN of a Send that is not in the queue.
    pub(super) fn take_send_msn(&mut self) -> u32 {
        let msn = self.send_msn.0;
        self.send_msn += 1;
        msn
    }

    /// MSN of a Read of no octets that is not in the queue, and is older than any that is.
    pub(super) fn begin_rtr_read(&mut self) -> u32 {
        self.rtr_read = true;
        let msn = self.read_msn.0;
        self.read_msn += 1;
        msn
    }

    /// A segment of a Read Response came: true if it answers the Read that is not in the queue.
    pub(super) const fn ends_rtr_read(&mut self, is_empty: bool) -> bool {
        let ends = self.rtr_read && is_empty;
        self.rtr_read &= !ends;
        ends
    }

    /// Reads and atomic operations that may be in progress.
    #[must_use]
    pub const fn ord(&self) -> u16 {
        self.ord
    }

    /// Nothing is left of all that was posted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The peer answers no more; true if it still had to.
    pub(super) fn end_answers(&mut self) -> bool {
        // Whatever needs an answer waits for credit from now on.
        self.ord = 0;
        let mut waiting = self.queue.iter().skip(self.built);
        !self.awaited.is_empty() || waiting.any(|entry| entry.request.operation.is_answered())
    }

    /// Free places.
    #[must_use]
    pub fn room(&self) -> usize {
        self.count_max - self.queue.len()
    }

    /// Appends a request; `false` if the queue is full.
    pub fn post(&mut self, request: Request) -> bool {
        let fits = self.room() > 0;
        if fits {
            self.local_count += usize::from(request.operation.is_local());
            // req: DDP-109, RDMAP-003, RDMAP-139, RDMAP-178
            self.queue.push_back(Entry { request, progress: Progress::Queued });
        }
        fits
    }

    /// Requests wait that concern this end alone: see [`Requester::run_local`].
    #[must_use]
    pub const fn has_local(&self) -> bool {
        self.local_count > 0
    }

    /// Carries out what concerns this end alone, as far as it is its turn: to be called when such
    /// a request was posted, a message was built whole, or a Read completed.
    #[cold]
    pub fn run_local(&mut self, regions: &RegionTable, reach: Reach) {
        while self.local_count > 0 && self.offset == 0 {
            let Some(entry) = self.queue.get_mut(self.built) else { return };
            let waits = entry.request.fence && !self.awaited.is_empty();
            if waits || entry.progress != Progress::Queued {
                return;
            }
            let done = match &entry.request.operation {
                Operation::Bind(bind) => regions.bind(bind, reach),
                Operation::Invalidate { stag } => regions.invalidate_local(*stag, reach),
                _ => return,
            };
            self.local_count -= 1;
            match done {
                Ok(()) => {
                    entry.progress = Progress::Built;
                    self.built += 1;
                }
                Err(fault) => entry.progress = Progress::Refused(fault),
            }
        }
    }

    /// A segment can be built now.
    #[must_use]
    pub fn ready(&self) -> bool {
        let Some(entry) = self.queue.get(self.built) else { return false };
        if entry.progress != Progress::Queued {
            // It failed; or was refused, and is yet to end the stream.
            return entry.progress != Progress::Failed;
        }
        if self.offset > 0 || entry.progress == Progress::Written {
            return true;
        }
        // A Read without credit blocks what follows it: requests are not overtaken.
        // req: RDMAP-231, RDMAP-235, RDMAP-237
        let credit =
            !entry.request.operation.is_answered() || self.in_progress() < usize::from(self.ord);
        // req: RDMAP-217, RDMAP-237
        credit
            && !entry.request.operation.is_local()
            && (!entry.request.fence || self.awaited.is_empty())
    }

    /// A message is begun and not built whole.
    #[must_use]
    pub const fn mid_message(&self) -> bool {
        self.offset > 0
    }

    /// Octets of the ULPDU that [`Requester::build`] would make with no bound on its room; lets
    /// the packer see whether the next ULPDU fits what is left of a segment.
    #[must_use]
    pub fn next_len(&self) -> u64 {
        let Some(entry) = self.queue.get(self.built) else { return 0 };
        match entry.request.operation {
            Operation::Send { .. } => UNTAGGED_LEN as u64 + entry.request.len - self.offset,
            Operation::WriteImmediate { .. } if entry.progress == Progress::Written => {
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

    /// Builds the next segment into `out` and returns its length. Call only when
    /// [`Requester::ready`]. `out` has at least 128 octets; a message that does not fit goes on
    /// in the next segment.
    ///
    /// # Errors
    /// [`MemoryFault`] if the request's memory is not registered as it claims. The request will
    /// complete with [`Outcome::LocalProtection`]; the stream has to end, since part of the
    /// message may have been sent.
    pub fn build(
        &mut self,
        memory: &impl Memory,
        reach: Reach,
        version: Version,
        out: &mut [u8],
    ) -> Result<usize, MemoryFault> {
        let Some(entry) = self.queue.get_mut(self.built) else { return Ok(0) };
        let part = Part { offset: self.offset, left: entry.request.len - self.offset };
        let (send_msn, read_msn) = (self.send_msn.0, self.read_msn.0);
        let mut maker = Maker { memory, reach, version, out };
        let made = match &entry.request.operation {
            Operation::Send { payload, solicited, invalidate } => {
                maker.send(payload, part, send_msn, *solicited, *invalidate)
            }
            Operation::WriteImmediate { data, solicited, .. }
                if entry.progress == Progress::Written =>
            {
                Ok(maker.immediate(data, *solicited, send_msn))
            }
            Operation::Write { payload, rkey, remote }
            | Operation::WriteImmediate { payload, rkey, remote, .. } => {
                maker.write(payload, part, *rkey, *remote)
            }
            Operation::Read { sink, rkey, remote } => maker.read(sink, *rkey, *remote, read_msn),
            Operation::Atomic { op, sink, rkey, remote } => {
                let request = AtomicRequest { id: read_msn, stag: *rkey, to: *remote, op: *op };
                maker.atomic(sink, &request, read_msn)
            }
            Operation::Immediate { data, solicited } => {
                Ok(maker.immediate(data, *solicited, send_msn))
            }
            Operation::Bind(_) | Operation::Invalidate { .. } => match entry.progress {
                Progress::Refused(fault) => Err(fault),
                _ => return Ok(0),
            },
        };
        let made = match made {
            Ok(made) => made,
            Err(fault) => {
                entry.progress = Progress::Failed;
                return Err(fault);
            }
        };
        // req: RDMAP-218, DDP-115
        if made.last {
            self.offset = 0;
            self.message_built();
        } else {
            // req: DDP-096, DDP-099
            self.offset += made.payload_len as u64;
        }
        Ok(made.len)
    }

    /// The last segment of a message was built.
    fn message_built(&mut self) {
        let number = self.popped + self.built as u64;
        let Some(entry) = self.queue.get_mut(self.built) else { return };
        entry.progress = match entry.request.operation {
            Operation::Write { .. } | Operation::Bind(_) | Operation::Invalidate { .. } => {
                Progress::Built
            }
            Operation::WriteImmediate { .. } if entry.progress != Progress::Written => {
                // Its other message is still to come.
                entry.progress = Progress::Written;
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
                self.awaited.push_back(number);
                if let Operation::Read { .. } = entry.request.operation {
                    Progress::Reading { received: 0 }
                } else {
                    Progress::Atomic { id }
                }
            }
        };
        self.built += 1;
    }

    /// Checks a segment of a Read Response against the oldest Read in progress: it must go on
    /// exactly where that one stands. Returns the sink's STag to place it with, or `None` if no
    /// Read is in progress.
    ///
    /// # Errors
    /// [`MemoryFault`] if STag, offset or length are not the Read's.
    pub fn expect_response(
        &self,
        header: &Tagged,
        len: usize,
    ) -> Result<Option<Stag>, MemoryFault> {
        let Some((entry, received)) = self.oldest_read() else { return Ok(None) };
        let Operation::Read { sink, .. } = &entry.request.operation else { return Ok(None) };
        let end = u64::from(received) + len as u64;
        // STag and offset of a segment without payload are not checked (RFC 5041 section 5.2).
        if len > 0 {
            // req: RDMAP-163
            if header.stag != sink.lkey {
                return Err(MemoryFault::InvalidStag);
            }
            // req: RDMAP-082
            if header.to.checked_add(len as u64).is_none() {
                return Err(MemoryFault::Wrap);
            }
            // req: RDMAP-166
            if header.to != sink.addr.wrapping_add(u64::from(received)) {
                return Err(MemoryFault::Bounds);
            }
        }
        // req: RDMAP-166
        if end > u64::from(sink.len) || (header.last && end != u64::from(sink.len)) {
            return Err(MemoryFault::Bounds);
        }
        Ok(Some(sink.lkey))
    }

    /// Counts a segment of a Read Response that was placed; true when it completed the Read.
    pub fn response_placed(&mut self, len: usize, last: bool) -> bool {
        let Some(&number) = self.awaited.front() else { return false };
        let Some(entry) = self.entry_mut(number) else { return false };
        let Progress::Reading { received } = entry.progress else { return false };
        // req: RDMAP-039, RDMAP-210, RDMAP-219, RDMAP-223
        if last {
            entry.progress = Progress::Answered;
            self.awaited.pop_front();
        } else {
            let len = u32::try_from(len).expect("expect_response bounds it by the sink");
            entry.progress = Progress::Reading { received: received + len };
        }
        last
    }

    /// The oldest request and how it ended, if it is done; take it off with [`Requester::pop`].
    #[must_use]
    pub fn completed(&self) -> Option<(&Request, Outcome)> {
        // req: RDMAP-210
        let entry = self.queue.front()?;
        let outcome = match entry.progress {
            Progress::Built | Progress::Answered => Outcome::Success,
            Progress::Failed => Outcome::LocalProtection,
            Progress::Queued
            | Progress::Written
            | Progress::Reading { .. }
            | Progress::Refused(_)
            | Progress::Atomic { .. } => return None,
        };
        Some((&entry.request, outcome))
    }

    /// The oldest request and how it ends now that the stream has: done, failed or flushed.
    #[must_use]
    pub fn flushed(&self) -> Option<(&Request, Outcome)> {
        self.completed()
            .or_else(|| self.queue.front().map(|entry| (&entry.request, Outcome::Flushed)))
    }

    /// Number of the oldest request, counted from the first ever posted.
    #[must_use]
    pub const fn oldest_number(&self) -> u64 {
        self.popped
    }

    /// Takes the oldest request off.
    pub fn pop(&mut self) {
        if self.queue.pop_front().is_some() {
            self.popped += 1;
            self.built = self.built.saturating_sub(1);
        }
    }

    fn oldest_read(&self) -> Option<(&Entry, u32)> {
        let number = *self.awaited.front()?;
        let entry = self.entry(number)?;
        match entry.progress {
            Progress::Reading { received } => Some((entry, received)),
            _ => None,
        }
    }

    fn entry(&self, number: u64) -> Option<&Entry> {
        self.queue.get(usize::try_from(number - self.popped).ok()?)
    }

    fn entry_mut(&mut self, number: u64) -> Option<&mut Entry> {
        self.queue.get_mut(usize::try_from(number - self.popped).ok()?)
    }
}
