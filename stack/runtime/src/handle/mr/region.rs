//! State and methods that all kinds of memory regions have.

use std::fmt;
use std::io;
use std::os::fd::AsFd;

use ferrowarp_lockfree::invalidation;
use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::ddp::regions::{AccessScope, Registration, Stag, StreamId};
use ferrowarp_proto::verbs::wr::Sge;

use crate::context::ContextInner;
use crate::error::MemoryError;
use crate::fork::{check_process, is_child};
use crate::handle::mr::mr_options::{MrOptions, ReregOptions};
use crate::handle::mr::remote::RemoteMr;
use crate::handle::pd::Pd;
use crate::limits::{Permit, Resource};
use crate::memory::Span;

/// Panic message for a page fault, where those are caught.
pub(super) const UNMAPPED: &str = "the memory of a region is mapped until it is deregistered";

/// Names and bytes of a memory region: [`Mr`] and the other kinds of regions deref to it.
///
/// Address, length and STag name memory in requests. [`Region::sge`] has them for local requests,
/// [`Region::remote`] for those of the peer.
///
/// [`Mr`]: crate::Mr
pub struct Region {
    pd: Pd,
    stag: Stag,
    span: Span,
    registration: Registration,
    permit: Permit,
}

impl Region {
    /// Registers memory. Its owner keeps it until the region is dropped.
    pub(crate) fn register(
        pd: &Pd,
        scope: AccessScope,
        span: Span,
        options: MrOptions,
    ) -> Result<Self, MemoryError> {
        // In a child the lock of the table may have been held at the fork.
        check_process()?;
        let context = pd.context();
        let permit = context.limits.acquire(Resource::RegisteredBytes, span.len())?;
        let registration = Registration {
            pd: scope.pd,
            stream: (scope.stream != StreamId::NONE).then_some(scope.stream),
            base: options.iova.unwrap_or_else(|| span.addr()),
            len: span.len() as u64,
            access: options.access | Access::LOCAL_READ,
            backing: span.addr(),
        };
        let stag = context.regions.register(&registration)?;
        Ok(Self { pd: pd.clone(), stag, span, registration, permit })
    }

    /// Address of the first byte in memory.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.span.addr()
    }

    /// Address of the first byte in requests: its tagged offset. The address in memory unless
    /// [`MrOptions::iova`] is set.
    #[must_use]
    pub const fn iova(&self) -> u64 {
        self.registration.base
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

    /// Rights that the region grants.
    #[must_use]
    pub const fn access(&self) -> Access {
        self.registration.access
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
    pub const fn remote(&self) -> RemoteMr {
        RemoteMr { addr: self.iova(), len: self.registration.len, rkey: self.stag }
    }

    /// Returns the address in requests of bytes `offset..offset + len`.
    pub(crate) fn iova_of(&self, offset: usize, len: usize) -> u64 {
        let _in_range = self.span.slice(offset, len);
        self.iova() + offset as u64
    }

    /// Returns bytes `offset..offset + len` as a scatter/gather element.
    ///
    /// # Panics
    /// If the range is not within the region.
    #[doc(alias = "ibv_sge")]
    #[must_use]
    pub fn sge(&self, offset: usize, len: u32) -> Sge {
        Sge { addr: self.iova_of(offset, len as usize), len, lkey: self.stag }
    }

    /// Copies the bytes at `offset` to `out`.
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.span.slice(offset, out.len()).read(out).expect(UNMAPPED);
    }

    /// Writes `len` bytes at `offset` to a file, at `position`, without a copy to another buffer
    /// (`pwrite`). Returns the number of bytes written. If a peer changes them meanwhile, the file
    /// may have any mixture of old and new bytes.
    ///
    /// # Errors
    /// The error of the system call; `EOVERFLOW` if `position` is 2^63 or more.
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn pwrite(
        &self,
        fd: impl AsFd,
        offset: usize,
        len: usize,
        position: u64,
    ) -> io::Result<usize> {
        self.span(offset, len).pwrite(fd.as_fd(), position)
    }

    /// Returns a pointer to the first byte, for system calls and libraries that read memory by
    /// address. [`Mr::as_mut_ptr`](crate::Mr::as_mut_ptr) has the rules. Nobody may write through
    /// this one.
    #[must_use]
    pub const fn as_ptr(&self) -> *const u8 {
        self.span.as_mut_ptr().cast_const()
    }

    /// Revokes all access immediately, including that of windows bound to the region. Waits until
    /// no poll uses the memory, so when this returns no peer reads or writes it. Local requests
    /// that name the region fail, and a peer's request that names it ends the connection.
    pub fn revoke(&self) {
        if !is_child() {
            let ContextInner { regions, shards, .. } = &**self.pd.context();
            // req: DDP-210, RDMAP-043, RDMAP-281
            invalidation::revoke_region(regions, self.stag, || shards.synchronize());
        }
    }

    /// [`Mr::enable`](crate::Mr::enable).
    pub(crate) fn enable(&mut self, access: Access) -> Stag {
        if !is_child() {
            self.replace(Registration { access: access | Access::LOCAL_READ, ..self.registration });
        }
        self.stag
    }

    /// Registers the region again with these changes, and other memory if `span` is given. The
    /// owner of the previous memory keeps it until this returns. If it fails, nothing has changed.
    pub(crate) fn reregister(
        &mut self,
        span: Option<Span>,
        options: &ReregOptions<'_>,
    ) -> Result<Stag, MemoryError> {
        check_process()?;
        let pd = options.pd.unwrap_or(&self.pd).clone();
        let is_bound_elsewhere = self.registration.stream.is_some() && pd.id() != self.pd.id();
        if !pd.belongs_to(self.pd.context()) || is_bound_elsewhere {
            return Err(MemoryError::Foreign);
        }
        let mut next = Registration { pd: pd.id(), ..self.registration };
        if let Some(span) = span {
            next.len = span.len() as u64;
            (next.base, next.backing) = (span.addr(), span.addr());
        }
        next.base = options.iova.unwrap_or(next.base);
        next.access = options.access.map_or(next.access, |access| access | Access::LOCAL_READ);
        next.check()?;
        if self.window_count() > 0 {
            return Err(MemoryError::WindowsBound);
        }
        let span = span.unwrap_or(self.span);
        self.permit.grow(span.len().saturating_sub(self.len()))?;
        self.replace(next);
        self.permit.shrink_to(span.len());
        (self.pd, self.span) = (pd, span);
        Ok(self.stag)
    }

    /// Revokes the region and gives it other attributes and another STag.
    fn replace(&mut self, next: Registration) {
        self.revoke();
        let again = self.pd.context().regions.reregister(self.stag, &next);
        self.stag = again.expect("the slot is a region until it is released");
        self.registration = next;
    }

    /// Number of memory windows bound to the region now.
    #[must_use]
    pub fn window_count(&self) -> u32 {
        self.pd.context().regions.window_count(self.stag)
    }

    /// Returns the bytes `offset..offset + len`.
    ///
    /// # Panics
    /// If the range is not within the region.
    #[inline]
    pub(crate) fn span(&self, offset: usize, len: usize) -> Span {
        self.span.slice(offset, len)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("stag", &format_args!("{:#010x}", self.stag))
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("iova", &format_args!("{:#x}", self.iova()))
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// After this the memory is inaccessible. The peer may have invalidated the STag already.
impl Drop for Region {
    fn drop(&mut self) {
        // The region is the parent's in a child.
        if !is_child() {
            self.revoke();
            self.pd.context().regions.release(self.stag);
        }
    }
}
