//! The requesting half of a stream: the send queue, the segments made of it, and the order in
//! which requests complete (RFC 5040 sections 5.5 and 6).
//!
//! Entries move through the queue in posting order: `completed | built, or waiting for a response
//! | being built | queued`. Segments are built front to back; a request completes when it and all
//! before it are done, whatever order they became so.

use std::collections::VecDeque;

use crate::ddp::memory::{Access, Memory, MemoryFault};
use crate::ddp::regions::Stag;
use crate::ddp::sgl;
use crate::rdmap::operation::{Operation, Payload};
use crate::wire::ddp::{TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged, Version};
use crate::wire::rdmap::{Opcode, QN_READ_REQUEST, QN_SEND, READ_REQUEST_LEN, ReadRequest};
use crate::wire::seq::Seq;

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
    /// Start only when all earlier Reads have completed.
    pub fence: bool,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Not begun, or begun and not built whole.
    Queued,
    /// Its octets no longer depend on the application's memory.
    Built,
    /// A Read whose response is `received` octets in.
    Reading { received: u32 },
    /// A Read whose response was delivered.
    Answered,
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
    /// Reads in progress, oldest first, each counted from the first request ever posted.
    reads: VecDeque<u64>,
    /// Requests that left the queue since it was made.
    popped: u64,
    ord: u16,
    send_msn: Seq,
    read_msn: Seq,
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
            reads: VecDeque::new(),
            popped: 0,
            ord: 0,
            send_msn: Seq(1),
            read_msn: Seq(1),
        }
    }

    /// Sets how many Reads may be in progress; done once, when the stream starts.
    pub fn set_ord(&mut self, ord: u16) {
        self.ord = ord;
        self.reads.reserve(usize::from(ord));
    }

    /// Reads that may be in progress.
    #[must_use]
    pub const fn ord(&self) -> u16 {
        self.ord
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
            self.queue.push_back(Entry { request, progress: Progress::Queued });
        }
        fits
    }

    /// A segment can be built now.
    #[must_use]
    pub fn ready(&self) -> bool {
        let Some(entry) = self.queue.get(self.built) else { return false };
        if entry.progress == Progress::Failed {
            return false;
        }
        if self.offset > 0 {
            return true;
        }
        // A Read without credit blocks what follows it: requests are not overtaken.
        let credit = match entry.request.operation {
            Operation::Read { .. } => self.reads.len() < usize::from(self.ord),
            _ => true,
        };
        credit && (!entry.request.fence || self.reads.is_empty())
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
            Operation::Write { .. } => TAGGED_LEN as u64 + entry.request.len - self.offset,
            Operation::Read { .. } => (UNTAGGED_LEN + READ_REQUEST_LEN) as u64,
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
        pd: u32,
        version: Version,
        out: &mut [u8],
    ) -> Result<usize, MemoryFault> {
        let Some(entry) = self.queue.get_mut(self.built) else { return Ok(0) };
        let offset = self.offset;
        let left = entry.request.len - offset;
        let built = match &entry.request.operation {
            Operation::Send { payload, solicited, invalidate } => {
                let (len, last) = chunk(left, out.len() - UNTAGGED_LEN);
                let opcode =
                    Opcode::Send { invalidate: invalidate.is_some(), solicited: *solicited };
                let header = Untagged {
                    last,
                    rsvd_ulp: opcode.control(version),
                    rsvd_ulp_rest: invalidate.unwrap_or(0),
                    queue: QN_SEND,
                    msn: self.send_msn.0,
                    mo: low_half(offset),
                };
                header.emit(version, out);
                let body = &mut out[UNTAGGED_LEN..UNTAGGED_LEN + len];
                fetch(memory, pd, payload, offset, body).map(|()| (UNTAGGED_LEN, len, last))
            }
            Operation::Write { payload, rkey, remote } => {
                let (len, last) = chunk(left, out.len() - TAGGED_LEN);
                let header = Tagged {
                    last,
                    rsvd_ulp: Opcode::Write.control(version),
                    stag: *rkey,
                    to: remote.wrapping_add(offset),
                };
                header.emit(version, out);
                let body = &mut out[TAGGED_LEN..TAGGED_LEN + len];
                fetch(memory, pd, payload, offset, body).map(|()| (TAGGED_LEN, len, last))
            }
            Operation::Read { sink, rkey, remote } => {
                let header = Untagged {
                    last: true,
                    rsvd_ulp: Opcode::ReadRequest.control(version),
                    rsvd_ulp_rest: 0,
                    queue: QN_READ_REQUEST,
                    msn: self.read_msn.0,
                    mo: 0,
                };
                header.emit(version, out);
                let request = ReadRequest {
                    sink_stag: sink.lkey,
                    sink_to: sink.addr,
                    len: sink.len,
                    source_stag: *rkey,
                    source_to: *remote,
                };
                request.emit(&mut out[UNTAGGED_LEN..]);
                // An unusable sink is found before the peer is asked to fill it.
                check_sink(memory, pd, sink).map(|()| (UNTAGGED_LEN, READ_REQUEST_LEN, true))
            }
        };
        let (header_len, len, last) = match built {
            Ok(built) => built,
            Err(fault) => {
                entry.progress = Progress::Failed;
                return Err(fault);
            }
        };
        if last {
            entry.progress = match entry.request.operation {
                Operation::Read { .. } => {
                    self.reads.push_back(self.popped + self.built as u64);
                    self.read_msn += 1;
                    Progress::Reading { received: 0 }
                }
                Operation::Send { .. } => {
                    self.send_msn += 1;
                    Progress::Built
                }
                Operation::Write { .. } => Progress::Built,
            };
            self.built += 1;
            self.offset = 0;
        } else {
            self.offset += len as u64;
        }
        Ok(header_len + len)
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
            if header.stag != sink.lkey {
                return Err(MemoryFault::InvalidStag);
            }
            if header.to != sink.addr.wrapping_add(u64::from(received)) {
                return Err(MemoryFault::Bounds);
            }
        }
        if end > u64::from(sink.len) || (header.last && end != u64::from(sink.len)) {
            return Err(MemoryFault::Bounds);
        }
        Ok(Some(sink.lkey))
    }

    /// Counts a segment of a Read Response that was placed; true when it completed the Read.
    pub fn response_placed(&mut self, len: usize, last: bool) -> bool {
        let Some(&number) = self.reads.front() else { return false };
        let Some(entry) = self.entry_mut(number) else { return false };
        let Progress::Reading { received } = entry.progress else { return false };
        if last {
            entry.progress = Progress::Answered;
            self.reads.pop_front();
        } else {
            let len = u32::try_from(len).expect("expect_response bounds it by the sink");
            entry.progress = Progress::Reading { received: received + len };
        }
        last
    }

    /// The oldest request and how it ended, if it is done; take it off with [`Requester::pop`].
    #[must_use]
    pub fn completed(&self) -> Option<(&Request, Outcome)> {
        let entry = self.queue.front()?;
        let outcome = match entry.progress {
            Progress::Built | Progress::Answered => Outcome::Success,
            Progress::Failed => Outcome::LocalProtection,
            Progress::Queued | Progress::Reading { .. } => return None,
        };
        Some((&entry.request, outcome))
    }

    /// The oldest request and how it ends now that the stream has: done, failed or flushed.
    #[must_use]
    pub fn flushed(&self) -> Option<(&Request, Outcome)> {
        self.completed()
            .or_else(|| self.queue.front().map(|entry| (&entry.request, Outcome::Flushed)))
    }

    /// The oldest request left, at least in part.
    #[must_use]
    pub const fn oldest_begun(&self) -> bool {
        self.built > 0 || self.offset > 0
    }

    /// Takes the oldest request off.
    pub fn pop(&mut self) {
        if self.queue.pop_front().is_some() {
            self.popped += 1;
            self.built = self.built.saturating_sub(1);
        }
    }

    fn oldest_read(&self) -> Option<(&Entry, u32)> {
        let number = *self.reads.front()?;
        let entry = self.queue.get(usize::try_from(number - self.popped).ok()?)?;
        match entry.progress {
            Progress::Reading { received } => Some((entry, received)),
            _ => None,
        }
    }

    fn entry_mut(&mut self, number: u64) -> Option<&mut Entry> {
        self.queue.get_mut(usize::try_from(number - self.popped).ok()?)
    }
}

/// Octets of the next segment's payload, and whether it is the message's last.
fn chunk(left: u64, room: usize) -> (usize, bool) {
    match usize::try_from(left) {
        Ok(left) if left <= room => (left, true),
        _ => (room, false),
    }
}

fn fetch(
    memory: &impl Memory,
    pd: u32,
    payload: &Payload,
    offset: u64,
    out: &mut [u8],
) -> Result<(), MemoryFault> {
    match payload {
        Payload::Gather(list) => sgl::gather(memory, pd, list, offset, out),
        Payload::Inline(octets) => {
            let start = usize::try_from(offset).expect("inline data is short");
            out.copy_from_slice(&octets[start..start + out.len()]);
            Ok(())
        }
    }
}

fn check_sink(memory: &impl Memory, pd: u32, sink: &sgl::Sge) -> Result<(), MemoryFault> {
    if sink.len == 0 {
        return Ok(());
    }
    let len = sink.len as usize;
    memory.regions().resolve(sink.lkey, pd, Access::LOCAL_WRITE, sink.addr, len).map(|_| ())
}

/// MO of an offset within a message, which is below 2^32.
fn low_half(offset: u64) -> u32 {
    u32::try_from(offset).expect("messages are shorter than 2^32 octets")
}
