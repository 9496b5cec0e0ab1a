//! Per-request state of the requester. It is separate from the slots of the send queue, so that the
//! stack never writes a line that the application reads.

use crate::ddp::memory::MemoryFault;
use crate::device::Device;
use crate::rdmap::send_queue::SqConsumer;
use crate::rdmap::send_queue::wqe::{Control, SendFlags, Wqe, WqeOpcode};

/// Progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Not built, or built in part.
    Queued,
    /// Built: no longer depends on the application's memory. Local operation: executed.
    Built,
    /// A [`WqeOpcode::WriteImmediate`] whose Write is built, but not its Immediate Data.
    WriteBuilt,
    /// Outstanding Read, at least in part: each SGE of its sink that is not empty has a Read
    /// Request. The next one is for SGE `next`, the next response for SGE `answering`.
    Reading { next: u8, answering: u8 },
    /// Outstanding atomic operation; `id` is its Request Identifier.
    Atomic { id: u32 },
    /// Read or atomic operation whose response was delivered.
    Answered,
    /// Local operation that was refused: the next build fails, which ends the stream.
    LocalOpFailed(MemoryFault),
    /// Cannot be built: its memory is not registered as it claims.
    Failed,
    /// Refused when it was taken from the send queue.
    Rejected(Rejection),
}

impl Progress {
    /// True if a message of the request was built, but not all.
    pub(super) const fn is_begun(self) -> bool {
        matches!(self, Self::WriteBuilt | Self::Reading { .. })
    }
}

/// Reason why a posted request was refused: the connection changed after it was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The connection does not execute requests, or not any more.
    WrongState,
    /// The connection grants no such operation, or not any more.
    Unsupported,
}

/// State of a request. What its completion needs is here as well, so that the completion does not
/// read the slots again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Operation, flags and so on.
    pub(super) control: Control,
    pub(super) wr_id: u64,
    /// Number of its first slot in the send queue, modulo 2^32.
    slot: u32,
    /// Bytes that it transfers.
    pub(super) len: u32,
    pub(super) progress: Progress,
}

const _: () = assert!(size_of::<Entry>() == 32, "two entries share a cache line");

impl Entry {
    const UNUSED: Self =
        Self { control: Control::NONE, wr_id: 0, slot: 0, len: 0, progress: Progress::Queued };

    /// Returns the entry of the request `wqe`, which begins in `slot`.
    #[inline(always)]
    pub(super) fn new(slot: u64, wqe: &Wqe<'_>) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "a queue has fewer slots")]
        let slot = slot as u32;
        let progress = Progress::Queued;
        Self { control: wqe.control(), wr_id: wqe.wr_id(), slot, len: wqe.len(), progress }
    }

    #[inline(always)]
    pub(super) fn opcode(&self) -> WqeOpcode {
        self.control.opcode()
    }

    #[inline(always)]
    pub(super) const fn flags(&self) -> SendFlags {
        self.control.flags()
    }

    /// Returns the request in its slots.
    #[inline(always)]
    pub(super) fn wqe<'a>(&self, sq: &'a SqConsumer) -> Wqe<'a> {
        sq.wqe(u64::from(self.slot), self.control)
    }

    /// Returns the SGE for which a Read needs a Read Request next.
    #[inline(always)]
    pub(super) fn next_sink(&self, wqe: &Wqe<'_>) -> u8 {
        match self.progress {
            Progress::Reading { next, .. } => next,
            _ => wqe.first_sink(),
        }
    }

    /// Handles a Read Request that was built for the next sink of a Read: true if no other sink
    /// needs one.
    #[inline(always)]
    pub(super) fn on_read_requested(&mut self, sq: &SqConsumer) -> bool {
        let wqe = self.wqe(sq);
        let sink = self.next_sink(&wqe);
        let answering = match self.progress {
            Progress::Reading { answering, .. } => answering,
            _ => sink,
        };
        let next = wqe.sink_after(sink);
        self.progress = Progress::Reading { next, answering };
        usize::from(next) == wqe.payload_count()
    }

    /// Handles the end of the response for SGE `answering` of a Read: true if it completes the
    /// Read.
    #[inline(always)]
    pub(super) fn on_read_answered(&mut self, sq: &SqConsumer) -> bool {
        let Progress::Reading { next, answering } = self.progress else { return false };
        let wqe = self.wqe(sq);
        let answering = wqe.sink_after(answering);
        let is_done = usize::from(answering) == wqe.payload_count();
        self.progress =
            if is_done { Progress::Answered } else { Progress::Reading { next, answering } };
        is_done
    }
}

/// Entries that are loaded ahead: two cache lines, as a rule.
const PREFETCHED_COUNT: usize = 4;

/// Entries of the requests in the queue. A request is identified by its number, counted from the
/// first ever posted: `oldest..next_to_build` are built or refused, `next_to_build..end` are not.
#[derive(Debug)]
pub(super) struct Entries {
    /// By number, modulo the length, which is a power of two. Of a short queue allocated with the
    /// first request: many queue pairs never have one.
    entries: Box<[Entry]>,
    pub(super) oldest: u64,
    pub(super) next_to_build: u64,
    pub(super) end: u64,
}

impl Entries {
    /// Room for none, until [`Entries::allocate`].
    pub(super) fn new() -> Self {
        Self { entries: Box::new([Entry::UNUSED]), oldest: 0, next_to_build: 0, end: 0 }
    }

    /// True if [`Entries::allocate`] was not called.
    #[inline(always)]
    pub(super) const fn is_unallocated(&self) -> bool {
        self.entries.len() == 1
    }

    /// Makes room for `count_max` requests, before the first is appended.
    #[cold]
    #[inline(never)]
    pub(super) fn allocate(&mut self, count_max: usize) {
        // Two at least, so that this is done once.
        let count = count_max.next_power_of_two().max(2);
        self.entries = vec![Entry::UNUSED; count].into_boxed_slice();
    }

    /// Has the port load the entries of the next requests to build, as far as they lie together;
    /// returns how many are not built.
    pub(super) fn prefetch_next<D: Device>(&self) -> u64 {
        let first = self.index(self.next_to_build);
        let end = (first + PREFETCHED_COUNT).min(self.entries.len());
        D::prefetch(&self.entries[first..end]);
        self.end - self.next_to_build
    }

    /// True if every request was built or refused.
    pub(super) const fn all_built(&self) -> bool {
        self.next_to_build == self.end
    }

    #[inline(always)]
    fn index(&self, number: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let index = number as usize & (self.entries.len() - 1);
        index
    }

    /// Appends an entry. There is a free one.
    #[inline(always)]
    pub(super) fn push(&mut self, entry: Entry) {
        let index = self.index(self.end);
        self.entries[index] = entry;
        self.end += 1;
    }

    /// Returns the entry of a request in the queue.
    #[inline(always)]
    pub(super) fn get(&self, number: u64) -> Option<&Entry> {
        (self.oldest..self.end).contains(&number).then(|| &self.entries[self.index(number)])
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Entry> {
        let index = self.index(number);
        (self.oldest..self.end).contains(&number).then(|| &mut self.entries[index])
    }

    /// Returns the entry of the request to build after the next `skipped`.
    #[inline(always)]
    pub(super) fn unbuilt_after_mut(&mut self, skipped: u64) -> Option<&mut Entry> {
        let number = self.next_to_build + skipped;
        let index = self.index(number);
        (number != self.end).then(|| &mut self.entries[index])
    }

    /// Returns the entry of the next request to build.
    #[inline(always)]
    pub(super) fn unbuilt(&self) -> Option<&Entry> {
        let index = self.index(self.next_to_build);
        (self.next_to_build != self.end).then(|| &self.entries[index])
    }

    /// Returns the entry of the next request to build, if no other was posted after it.
    #[inline(always)]
    pub(super) fn only_unbuilt(&self) -> Option<&Entry> {
        let index = self.index(self.next_to_build);
        (self.next_to_build + 1 == self.end).then(|| &self.entries[index])
    }

    /// Returns the oldest entry if its request is the only one that was built or refused.
    #[inline(always)]
    pub(super) fn only_built(&self) -> Option<&Entry> {
        let index = self.index(self.oldest);
        (self.oldest + 1 == self.next_to_build).then(|| &self.entries[index])
    }

    #[inline(always)]
    pub(super) fn unbuilt_mut(&mut self) -> Option<&mut Entry> {
        self.unbuilt_after_mut(0)
    }

    /// Removes the oldest of the entries that were built or refused, as long as `accept` returns
    /// true.
    #[inline(always)]
    pub(super) fn pop_built_while(&mut self, mut accept: impl FnMut(&Entry) -> bool) {
        // The loop keeps all this in registers.
        let (entries, mut oldest, end) = (&self.entries[..], self.oldest, self.next_to_build);
        while oldest != end {
            #[expect(clippy::cast_possible_truncation, reason = "masked")]
            let index = oldest as usize & (entries.len() - 1);
            if !accept(&entries[index]) {
                break;
            }
            oldest += 1;
        }
        self.oldest = oldest;
    }

    /// Removes the oldest entry, if there is one.
    #[inline(always)]
    pub(super) fn pop(&mut self) {
        if self.oldest != self.end {
            self.oldest += 1;
            self.next_to_build = self.next_to_build.max(self.oldest);
        }
    }
}
