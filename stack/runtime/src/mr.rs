//! Memory regions.

use std::sync::Arc;

use ferrowarp_proto::ddp::atomic::{ATOMIC_LEN, AtomicOp};
use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::ddp::regions::{Registration, Stag};
use ferrowarp_proto::verbs::wr::Sge;

use crate::arena::Buffer;
use crate::context::Inner;
use crate::error::MemoryError;
use crate::memory::Span;

/// Why a word is refused.
const UNALIGNED: &str = "a word's address is a multiple of eight";

/// A registered memory region.
///
/// Its octets are copied in and out; no reference to them exists, because the peer may write
/// there at any moment. Dropping it invalidates the STag, waits until no pass of the shard uses
/// the memory any more, and frees it.
pub struct Mr {
    context: Arc<Inner>,
    stag: Stag,
    span: Span,
    /// `None` for memory of the caller.
    buffer: Option<Buffer>,
}

impl Mr {
    pub(crate) fn register(
        context: &Arc<Inner>,
        pd: u32,
        span: Span,
        buffer: Option<Buffer>,
        access: Access,
    ) -> Result<Self, MemoryError> {
        let stag = context.regions.register(&Registration {
            pd,
            base: span.addr(),
            len: span.len() as u64,
            access: access | Access::LOCAL_READ,
            backing: span.addr(),
        })?;
        Ok(Self { context: Arc::clone(context), stag, span, buffer })
    }

    /// Address of the first octet; peers count from here, too.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.span.addr()
    }

    /// Octets.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.span.len()
    }

    /// True if the region has no octet.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.span.len() == 0
    }

    /// The STag, for local requests. iWARP has one where verbs has two.
    #[must_use]
    pub const fn lkey(&self) -> Stag {
        self.stag
    }

    /// The STag, for peers.
    #[must_use]
    pub const fn rkey(&self) -> Stag {
        self.stag
    }

    /// Octets `offset..offset + len` as an element of a request.
    ///
    /// # Panics
    /// If they leave the region.
    #[must_use]
    pub fn sge(&self, offset: usize, len: u32) -> Sge {
        let piece = self.span.slice(offset, len as usize);
        Sge { addr: piece.addr(), len, lkey: self.stag }
    }

    /// Copies `octets` to `offset`; the last one becomes visible last.
    ///
    /// # Panics
    /// If they leave the region.
    pub fn write(&self, offset: usize, octets: &[u8]) {
        self.span.slice(offset, octets.len()).write(octets);
    }

    /// Copies the octets at `offset` to `out`.
    ///
    /// # Panics
    /// If they leave the region.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.span.slice(offset, out.len()).read(out);
    }

    /// Sets `len` octets at `offset`.
    ///
    /// # Panics
    /// If they leave the region.
    pub fn fill(&self, offset: usize, len: usize, octet: u8) {
        self.span.slice(offset, len).fill(octet);
    }

    /// The octet at `offset`, with acquire: if it is the last octet of a Write that the peer made,
    /// the octets before it are there, too.
    ///
    /// # Panics
    /// If it is outside the region.
    #[must_use]
    #[inline]
    pub fn load_last(&self, offset: usize) -> u8 {
        self.span.slice(offset, 1).load_acquire()
    }

    /// Stores the octet at `offset`, with release.
    ///
    /// # Panics
    /// If it is outside the region.
    #[inline]
    pub fn store_release(&self, offset: usize, octet: u8) {
        self.span.slice(offset, 1).store_release(octet);
    }

    /// Carries out an atomic operation on the word of eight octets at `offset`, in the byte order
    /// of this machine, and returns what the word was before.
    ///
    /// Atomic towards everything that uses atomic instructions on the word: this method on other
    /// threads, an `AtomicU64` over memory given to [`Pd::register_raw`](crate::Pd::register_raw),
    /// and the atomic operations of peers, whichever queue pair they come by. Towards plain copies,
    /// those of RDMA Writes and of [`Mr::write`] among them, it is not.
    ///
    /// # Panics
    /// If the word leaves the region, or its address is not a multiple of eight.
    pub fn atomic(&self, offset: usize, op: AtomicOp) -> u64 {
        self.span.slice(offset, ATOMIC_LEN).atomic(op).expect(UNALIGNED)
    }

    /// The word of eight octets at `offset`, read at once, with acquire: what a thread or a peer
    /// did before it changed the word by an atomic operation is visible, too.
    ///
    /// # Panics
    /// As [`Mr::atomic`].
    #[must_use]
    pub fn load_word(&self, offset: usize) -> u64 {
        self.span.slice(offset, ATOMIC_LEN).load_word().expect(UNALIGNED)
    }

    /// Deregisters and returns the buffer; `None` if the memory is the caller's.
    #[must_use]
    pub fn deregister(mut self) -> Option<Buffer> {
        self.withdraw();
        self.buffer.take()
    }

    /// After this nobody reaches the memory. The peer may have invalidated the STag already.
    fn withdraw(&mut self) {
        if self.stag != 0 {
            self.context.regions.invalidate(self.stag);
            self.context.shard.quiesce();
            self.context.regions.release(self.stag);
            self.stag = 0;
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.withdraw();
    }
}
