//! Memory regions.

use std::fmt;
use std::sync::Arc;

use ferrowarp_proto::ddp::atomic::{ATOMIC_LEN, AtomicOp};
use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::ddp::regions::{AccessScope, Registration, Stag, StreamId};
use ferrowarp_proto::verbs::wr::Sge;

use crate::arena::Buffer;
use crate::context::ContextInner;
use crate::error::MemoryError;
use crate::invalidation;
use crate::limits::{Permit, Resource};
use crate::memory::Span;

/// Why a word is refused.
const UNALIGNED: &str = "a word's address is a multiple of eight";

/// A registered memory region.
///
/// Its bytes are copied in and out; no reference to them exists, because the peer may write
/// there at any moment, and so may other threads: a copy that meets another has old and new bytes
/// in any mixture. Dropping it invalidates the STag and every window bound to it, waits until
/// no pass uses the memory any more (at most two passes and the beginning of the next of the
/// slowest shard), and frees it.
///
/// The STag stays valid however often it is used, until [`Mr::revoke`] or the drop, or, if it was
/// registered for one queue pair alone ([`Pd::register_for`](crate::Pd::register_for)), a request
/// of that queue pair or a Send with Invalidate of its peer ends it. [`Mr::enable`] gives it
/// another one. How the peer learns of address, STag and length is the application's affair: the
/// protocol has no message for that.
// req: RDMAP-011, DDP-008
pub struct Mr {
    context: Arc<ContextInner>,
    stag: Stag,
    span: Span,
    /// `None` for memory of the caller.
    buffer: Option<Buffer>,
    _permit: Permit,
}

impl Mr {
    pub(crate) fn register(
        context: &Arc<ContextInner>,
        reach: AccessScope,
        span: Span,
        access: Access,
    ) -> Result<Self, MemoryError> {
        let grant = context.limits.acquire(Resource::RegisteredBytes, span.len())?;
        let stag = context.regions.register(&Registration {
            pd: reach.pd,
            stream: (reach.stream != StreamId::NONE).then_some(reach.stream),
            base: span.addr(),
            len: span.len() as u64,
            access: access | Access::LOCAL_READ,
            backing: span.addr(),
        })?;
        Ok(Self { context: Arc::clone(context), stag, span, buffer: None, _permit: grant })
    }

    /// The buffer that was registered belongs to the region from now on.
    pub(crate) fn with_buffer(self, buffer: Buffer) -> Self {
        let mut kept = self;
        kept.buffer = Some(buffer);
        kept
    }

    /// Address of the first byte; peers count from here, too.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.span.addr()
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.span.len()
    }

    /// True if the region has no byte.
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

    /// The address of bytes `offset..offset + len`.
    pub(crate) fn addr_of(&self, offset: usize, len: usize) -> u64 {
        self.span.slice(offset, len).addr()
    }

    /// Bytes `offset..offset + len` as an element of a request.
    ///
    /// # Panics
    /// If they leave the region.
    #[must_use]
    pub fn sge(&self, offset: usize, len: u32) -> Sge {
        let piece = self.span.slice(offset, len as usize);
        Sge { addr: piece.addr(), len, lkey: self.stag }
    }

    /// Copies `bytes` to `offset`; the last one becomes visible last.
    ///
    /// # Panics
    /// If they leave the region.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.span.slice(offset, bytes.len()).write(bytes);
    }

    /// Copies the bytes at `offset` to `out`.
    ///
    /// # Panics
    /// If they leave the region.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.span.slice(offset, out.len()).read(out);
    }

    /// Sets `len` bytes at `offset`.
    ///
    /// # Panics
    /// If they leave the region.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        self.span.slice(offset, len).fill(byte);
    }

    /// The byte at `offset`, with acquire: if it is the last byte of a Write that the peer made,
    /// the bytes before it are there, too.
    ///
    /// # Panics
    /// If it is outside the region.
    #[must_use]
    #[inline]
    pub fn load_last(&self, offset: usize) -> u8 {
        self.span.slice(offset, 1).load_acquire()
    }

    /// Stores the byte at `offset`, with release.
    ///
    /// # Panics
    /// If it is outside the region.
    #[inline]
    pub fn store_release(&self, offset: usize, byte: u8) {
        self.span.slice(offset, 1).store_release(byte);
    }

    /// Carries out an atomic operation on the word of eight bytes at `offset`, in the byte order
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

    /// The word of eight bytes at `offset`, read at once, with acquire: what a thread or a peer
    /// did before it changed the word by an atomic operation is visible, too.
    ///
    /// # Panics
    /// As [`Mr::atomic`].
    #[must_use]
    pub fn load_word(&self, offset: usize) -> u64 {
        self.span.slice(offset, ATOMIC_LEN).load_word().expect(UNALIGNED)
    }

    /// Withdraws all access at once, that of windows bound to the region too. When this returns, no
    /// peer changes the memory any more and none reads it: it waits until no pass uses it. Requests
    /// that name the region fail, and connections whose peer does are ended.
    // req: DDP-210, RDMAP-043, RDMAP-281
    pub fn revoke(&mut self) {
        let ContextInner { regions, shard, .. } = &*self.context;
        invalidation::revoke_region(regions, self.stag, || shard.synchronize());
    }

    /// Gives the region an STag again, which the one before does not tell, after whatever ended
    /// that; if nothing has, it is revoked first. This end may always read, `access` says what
    /// else.
    ///
    /// # Panics
    /// Never: a region can be enabled as long as it exists.
    // req: RDMAP-007, RDMAP-280
    pub fn enable(&mut self, access: Access) -> Stag {
        self.revoke();
        let enabled = self.context.regions.enable(self.stag, access | Access::LOCAL_READ);
        self.stag = enabled.expect("the slot is a region until it is released");
        self.stag
    }

    /// Memory windows bound to the region at present.
    #[must_use]
    pub fn window_count(&self) -> u32 {
        self.context.regions.window_count(self.stag)
    }

    /// Deregisters and returns the buffer; `None` if the memory is the caller's.
    #[must_use]
    pub fn deregister(mut self) -> Option<Buffer> {
        self.release();
        self.buffer.take()
    }

    /// After this nobody reaches the memory. The peer may have invalidated the STag already.
    fn release(&mut self) {
        if self.stag != 0 {
            self.revoke();
            self.context.regions.release(self.stag);
            self.stag = 0;
        }
    }
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mr")
            .field("stag", &format_args!("{:#010x}", self.stag))
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.release();
    }
}
