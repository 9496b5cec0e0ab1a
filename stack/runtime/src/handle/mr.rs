//! Memory regions.

use std::fmt;

use ferrowarp_lockfree::invalidation;
use ferrowarp_proto::ddp::atomic::{ATOMIC_LEN, AtomicOp};
use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::ddp::regions::{AccessScope, Registration, Stag, StreamId};
use ferrowarp_proto::verbs::wr::Sge;

use crate::context::ContextInner;
use crate::error::{MemoryError, RegisterRefused};
use crate::fork::{check_process, is_child};
use crate::handle::pd::Pd;
use crate::handle::qp::Qp;
use crate::limits::{Permit, Resource};
use crate::memory::Buffer;
use crate::memory::Span;

/// Panic message for a misaligned word.
const UNALIGNED: &str = "a word's address is a multiple of eight";
/// Panic message for a page fault, where those are caught.
const UNMAPPED: &str = "the memory of a region is mapped until it is deregistered";

/// Memory region.
///
/// Its bytes are copied in and out; no reference to them exists, because the peer may write there
/// at any moment, and so may other threads: a copy that races with another one has any mixture of
/// old and new bytes. Dropping the region invalidates the STag and every window bound to it, waits
/// until no poll uses the memory any more (at most two polls and the beginning of the next of the
/// slowest shard), and frees the memory.
///
/// Where page faults are caught ([`Config::catch_page_faults`](crate::Config::catch_page_faults)),
/// the methods that copy from or to memory that has vanished panic.
///
/// The STag stays valid until [`Mr::revoke`] or the drop. One registered for a single queue pair
/// ([`Pd::register_for`](crate::Pd::register_for)) can also be invalidated by a request of that
/// queue pair or by a Send with Invalidate of its peer. [`Mr::enable`] assigns a new STag. The
/// application advertises address, STag and length to the peer: the protocol has no message for
/// that.
// req: RDMAP-011, DDP-008
#[doc(alias = "ibv_mr")]
pub struct Mr {
    pd: Pd,
    stag: Stag,
    span: Span,
    /// `None` for memory of the caller.
    buffer: Option<Buffer>,
    _permit: Permit,
}

/// Place in the peer's memory (verbs: `remote_addr` and `rkey`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Address: the tagged offset.
    pub addr: u64,
    /// STag at the peer.
    pub rkey: Stag,
}

/// A region or a part of one as its owner advertises it to the peer: the protocol has no message
/// for that, so [`RemoteMr::to_bytes`] goes into private data or a Send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMr {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// STag.
    pub rkey: Stag,
}

impl RemoteMr {
    /// Length of [`RemoteMr::to_bytes`].
    pub const WIRE_LEN: usize = 20;

    /// The place `offset` bytes behind the first. An offset beyond the region is refused by the
    /// peer.
    #[must_use]
    pub const fn at(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.addr.wrapping_add(offset), rkey: self.rkey }
    }

    /// Returns address, length and STag, in network byte order.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::WIRE_LEN] {
        let mut bytes = [0; Self::WIRE_LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }

    /// Reads what [`RemoteMr::to_bytes`] returned, from the beginning of `bytes`; `None` if they
    /// are fewer.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (addr, rest) = bytes.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let rkey = rest.first_chunk()?;
        let (addr, len) = (u64::from_be_bytes(*addr), u64::from_be_bytes(*len));
        Some(Self { addr, len, rkey: Stag::from_be_bytes(*rkey) })
    }
}

impl From<RemoteMr> for RemoteAddr {
    fn from(remote: RemoteMr) -> Self {
        remote.at(0)
    }
}

impl Pd {
    /// Registers a buffer for all queue pairs of the domain. The local stack may always read it;
    /// `access` grants further rights. No peer can invalidate the region, because it is shared.
    ///
    /// # Errors
    /// [`MemoryError::Register`] if the region table is full, [`MemoryError::Limit`]; both return
    /// the buffer.
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "rdma_reg_msgs")]
    #[doc(alias = "rdma_reg_read")]
    #[doc(alias = "rdma_reg_write")]
    pub fn register(&self, buffer: Buffer, access: Access) -> Result<Mr, RegisterRefused> {
        self.register_buffer(self.id().into(), buffer, access)
    }

    /// Registers a buffer for one queue pair of the domain only: no other can access it, locally or
    /// remotely. If `access` grants any remote right, its peer can invalidate the STag with a Send
    /// with Invalidate.
    ///
    /// # Errors
    /// As [`Pd::register`]; [`MemoryError::Foreign`] if the queue pair is of another domain or
    /// context.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_for(
        &self,
        qp: &Qp,
        buffer: Buffer,
        access: Access,
    ) -> Result<Mr, RegisterRefused> {
        match qp.access_scope_in(self) {
            Ok(scope) => self.register_buffer(scope, buffer, access),
            Err(error) => Err(RegisterRefused { error, buffer }),
        }
    }

    fn register_buffer(
        &self,
        scope: AccessScope,
        buffer: Buffer,
        access: Access,
    ) -> Result<Mr, RegisterRefused> {
        match Mr::register(self, scope, buffer.span(), access) {
            Ok(mr) => Ok(mr.with_buffer(buffer)),
            Err(error) => Err(RegisterRefused { error, buffer }),
        }
    }

    /// Registers arbitrary memory: `len` bytes at `start`.
    ///
    /// # Errors
    /// [`MemoryError::Register`].
    ///
    /// # Safety
    /// Until the region is dropped (forever, if it is leaked) the bytes must stay mapped, readable
    /// and writable. No Rust reference to them may be used while peers with access to them are
    /// connected or requests that name them are outstanding: they change at any moment. Nor may one
    /// be used across a call of a method of the region that copies to or from it, or be passed to
    /// one: `region.read(0, &mut the_registered_bytes)` is undefined.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_raw(
        &self,
        start: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Mr, MemoryError> {
        // SAFETY: the caller guarantees what `Span::new` requires.
        let span = unsafe { Span::new(start, len) };
        Mr::register(self, self.id().into(), span, access)
    }
}

impl Mr {
    fn register(
        pd: &Pd,
        scope: AccessScope,
        span: Span,
        access: Access,
    ) -> Result<Self, MemoryError> {
        // In a child the lock of the table may have been held at the fork.
        check_process()?;
        let context = pd.context();
        let permit = context.limits.acquire(Resource::RegisteredBytes, span.len())?;
        let stag = context.regions.register(&Registration {
            pd: scope.pd,
            stream: (scope.stream != StreamId::NONE).then_some(scope.stream),
            base: span.addr(),
            len: span.len() as u64,
            access: access | Access::LOCAL_READ,
            backing: span.addr(),
        })?;
        Ok(Self { pd: pd.clone(), stag, span, buffer: None, _permit: permit })
    }

    /// Stores the buffer that was registered in the region.
    fn with_buffer(self, buffer: Buffer) -> Self {
        let mut kept = self;
        kept.buffer = Some(buffer);
        kept
    }

    /// Address of the first byte; also its tagged offset for peers.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.span.addr()
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.span.len()
    }

    /// True if the length is 0.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.span.len() == 0
    }

    /// STag, for local requests. In iWARP it is both lkey and rkey.
    #[must_use]
    pub const fn lkey(&self) -> Stag {
        self.stag
    }

    /// STag, for peers.
    #[must_use]
    pub const fn rkey(&self) -> Stag {
        self.stag
    }

    /// Returns the region as its peer needs it: its address, length and STag.
    #[must_use]
    pub fn remote(&self) -> RemoteMr {
        RemoteMr { addr: self.addr(), len: self.len() as u64, rkey: self.stag }
    }

    /// Returns the address of bytes `offset..offset + len`.
    pub(crate) fn addr_of(&self, offset: usize, len: usize) -> u64 {
        self.span.slice(offset, len).addr()
    }

    /// Returns bytes `offset..offset + len` as a scatter/gather element.
    ///
    /// # Panics
    /// If the range is not within the region.
    #[doc(alias = "ibv_sge")]
    #[must_use]
    pub fn sge(&self, offset: usize, len: u32) -> Sge {
        let piece = self.span.slice(offset, len as usize);
        Sge { addr: piece.addr(), len, lkey: self.stag }
    }

    /// Copies `bytes` to `offset`; the last byte becomes visible last.
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.span.slice(offset, bytes.len()).write(bytes).expect(UNMAPPED);
    }

    /// Copies the bytes at `offset` to `out`.
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.span.slice(offset, out.len()).read(out).expect(UNMAPPED);
    }

    /// Sets `len` bytes at `offset` to `byte`.
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        self.span.slice(offset, len).fill(byte).expect(UNMAPPED);
    }

    /// Loads the byte at `offset`, with acquire: if it is the last byte of an RDMA Write of the
    /// peer, the bytes before it are placed, too.
    ///
    /// # Panics
    /// If it is outside the region.
    #[must_use]
    #[inline]
    pub fn load_last(&self, offset: usize) -> u8 {
        self.span.slice(offset, 1).load_acquire().expect(UNMAPPED)
    }

    /// Stores the byte at `offset`, with release.
    ///
    /// # Panics
    /// If it is outside the region.
    #[inline]
    pub fn store_release(&self, offset: usize, byte: u8) {
        self.span.slice(offset, 1).store_release(byte).expect(UNMAPPED);
    }

    /// Executes an atomic operation on the word of eight bytes at `offset`, in the byte order of
    /// this machine, and returns the previous value.
    ///
    /// Atomic with respect to everything that uses atomic instructions on the word: this method on
    /// other threads, an `AtomicU64` over memory passed to
    /// [`Pd::register_raw`](crate::Pd::register_raw), and the atomic operations of peers on any
    /// queue pair. It is not with respect to plain copies, including those of RDMA Writes and of
    /// [`Mr::write`].
    ///
    /// # Panics
    /// If the word is not within the region, or its address is not a multiple of eight.
    pub fn atomic(&self, offset: usize, op: AtomicOp) -> u64 {
        self.span.slice(offset, ATOMIC_LEN).atomic(op).expect(UNMAPPED).expect(UNALIGNED)
    }

    /// Loads the word of eight bytes at `offset` atomically, with acquire: writes of a thread or a
    /// peer before its atomic operation on the word are visible, too.
    ///
    /// # Panics
    /// As [`Mr::atomic`].
    #[must_use]
    pub fn load_word(&self, offset: usize) -> u64 {
        self.span.slice(offset, ATOMIC_LEN).load_word().expect(UNMAPPED).expect(UNALIGNED)
    }

    /// Revokes all access immediately, including that of windows bound to the region. Waits until
    /// no poll uses the memory, so when this returns no peer reads or writes it. Local requests
    /// that name the region fail, and a peer's request that names it ends the connection.
    pub fn revoke(&mut self) {
        if !is_child() {
            let ContextInner { regions, shards, .. } = &**self.pd.context();
            // req: DDP-210, RDMAP-043, RDMAP-281
            invalidation::revoke_region(regions, self.stag, || shards.synchronize());
        }
    }

    /// Assigns the region a new STag, not predictable from the old one, after the old one was
    /// invalidated by any means; if it is still valid, it is revoked first. The local stack may
    /// always read, `access` grants further rights.
    ///
    /// # Panics
    /// Never: a region can be enabled as long as it exists.
    // req: RDMAP-007, RDMAP-280
    #[doc(alias = "ibv_rereg_mr")]
    pub fn enable(&mut self, access: Access) -> Stag {
        if is_child() {
            return self.stag;
        }
        self.revoke();
        let enabled = self.pd.context().regions.enable(self.stag, access | Access::LOCAL_READ);
        self.stag = enabled.expect("the slot is a region until it is released");
        self.stag
    }

    /// Number of memory windows bound to the region now.
    #[must_use]
    pub fn window_count(&self) -> u32 {
        self.pd.context().regions.window_count(self.stag)
    }

    /// Deregisters and returns the buffer; `None` if the memory is the caller's.
    #[doc(alias = "ibv_dereg_mr")]
    #[doc(alias = "rdma_dereg_mr")]
    #[must_use]
    pub fn deregister(mut self) -> Option<Buffer> {
        self.release();
        self.buffer.take()
    }

    /// After this the memory is inaccessible. The peer may have invalidated the STag already.
    fn release(&mut self) {
        // The region is the parent's in a child.
        if self.stag != 0 && !is_child() {
            self.revoke();
            self.pd.context().regions.release(self.stag);
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
