//! Memory regions.

mod mr_options;
mod owned;
mod region;
mod remote;

use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::AsFd;

use ferrowarp_proto::ddp::atomic::{ATOMIC_LEN, AtomicOp};
use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::ddp::regions::{AccessScope, Stag};

pub use self::mr_options::{MrOptions, ReregOptions};
pub use self::owned::{OwnedMr, SharedMr};
pub use self::region::Region;
pub use self::remote::{RemoteAddr, RemoteMr};
use crate::error::{MemoryError, RegisterRefused};
use crate::handle::mr::region::UNMAPPED;
use crate::handle::pd::Pd;
use crate::handle::qp::Qp;
use crate::memory::{Buffer, Span, check_mapped};

/// Panic message for a misaligned word.
const UNALIGNED: &str = "a word's address is a multiple of eight";

/// Memory region of a [`Buffer`], or of memory that the caller guarantees.
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
/// The STag stays valid until [`Region::revoke`] or the drop. One registered for a single queue
/// pair ([`Pd::register_for`](crate::Pd::register_for)) can also be invalidated by a request of
/// that queue pair or by a Send with Invalidate of its peer. [`Mr::enable`] assigns a new STag. The
/// application advertises address, STag and length to the peer: the protocol has no message for
/// that. The methods for names and for reading are those of [`Region`].
// req: RDMAP-011, DDP-008
#[doc(alias = "ibv_mr")]
pub struct Mr {
    region: Region,
    /// `None` for memory of the caller.
    buffer: Option<Buffer>,
}

impl Pd {
    /// Registers a buffer for all queue pairs of the domain. The local stack may always read it;
    /// the options grant further rights: [`Access`] alone or [`MrOptions`]. No peer can invalidate
    /// the region, because it is shared.
    ///
    /// # Errors
    /// [`MemoryError::Register`] if the region table is full or the options have an `iova` that is
    /// too high, [`MemoryError::Limit`]; all return the buffer.
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "rdma_reg_msgs")]
    #[doc(alias = "rdma_reg_read")]
    #[doc(alias = "rdma_reg_write")]
    pub fn register(
        &self,
        buffer: Buffer,
        options: impl Into<MrOptions>,
    ) -> Result<Mr, RegisterRefused> {
        self.register_buffer(self.id().into(), buffer, options.into())
    }

    /// Registers a buffer for one queue pair of the domain only: no other can access it, locally or
    /// remotely. If the options grant any remote right, its peer can invalidate the STag with a
    /// Send with Invalidate.
    ///
    /// # Errors
    /// As [`Pd::register`]; [`MemoryError::Foreign`] if the queue pair is of another domain or
    /// context.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_for(
        &self,
        qp: &Qp,
        buffer: Buffer,
        options: impl Into<MrOptions>,
    ) -> Result<Mr, RegisterRefused> {
        match qp.access_scope_in(self) {
            Ok(scope) => self.register_buffer(scope, buffer, options.into()),
            Err(error) => Err(RegisterRefused { error, buffer }),
        }
    }

    fn register_buffer(
        &self,
        scope: AccessScope,
        buffer: Buffer,
        options: MrOptions,
    ) -> Result<Mr, RegisterRefused> {
        match Region::register(self, scope, buffer.span(), options) {
            Ok(region) => Ok(Mr { region, buffer: Some(buffer) }),
            Err(error) => Err(RegisterRefused { error, buffer }),
        }
    }

    /// Registers arbitrary memory: `len` bytes at `start`. Regions may overlap, and may be empty.
    ///
    /// # Errors
    /// [`MemoryError::NotMapped`] if a page of the range is not mapped, or the range exceeds the
    /// address space (`EFAULT` of verbs); otherwise as [`Pd::register`].
    ///
    /// # Safety
    /// Until the region is dropped (forever, if it is leaked) the bytes must stay mapped and
    /// readable; and writable, if the region is ever granted a right to write, or a method of it
    /// that writes is called. No Rust reference to them may be used while peers with access to them
    /// are connected or requests that name them are outstanding: they change at any moment. Nor may
    /// one be used across a call of a method of the region that copies to or from it, or be passed
    /// to one: `region.read(0, &mut the_registered_bytes)` is undefined.
    ///
    /// Where page faults are caught ([`Config::catch_page_faults`]) the bytes may be unmapped or
    /// protected, as long as nothing else comes to lie there: peers would read and write that.
    ///
    /// [`Config::catch_page_faults`]: crate::Config::catch_page_faults
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_raw(
        &self,
        start: *mut u8,
        len: usize,
        options: impl Into<MrOptions>,
    ) -> Result<Mr, MemoryError> {
        check_mapped(start, len)?;
        // SAFETY: the caller guarantees what `Span::new` requires.
        let span = unsafe { Span::new(start, len) };
        let region = Region::register(self, self.id().into(), span, options.into())?;
        Ok(Mr { region, buffer: None })
    }
}

impl Mr {
    /// Copies `bytes` to `offset`; the last byte becomes visible last.
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.region.span(offset, bytes.len()).write(bytes).expect(UNMAPPED);
    }

    /// Sets `len` bytes at `offset` to `byte`.
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        self.region.span(offset, len).fill(byte).expect(UNMAPPED);
    }

    /// Reads `len` bytes from a file, at `position`, straight to `offset` (`pread`). Returns the
    /// number of bytes read, fewer at the end of the file. With `O_DIRECT` no byte is copied by a
    /// processor: the memory of a [`Buffer`] begins with a page.
    ///
    /// ```
    /// # use std::fs::File;
    /// # use ferrowarp::*;
    /// # fn example(disk: &Mr, file: &File) -> std::io::Result<()> {
    /// let count = disk.pread(file, 0, 4096, 1 << 20)?;
    /// assert_eq!(disk.pwrite(file, 0, count, 0)?, count);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error of the system call; `EOVERFLOW` if `position` is 2^63 or more.
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn pread(
        &self,
        fd: impl AsFd,
        offset: usize,
        len: usize,
        position: u64,
    ) -> io::Result<usize> {
        self.region.span(offset, len).pread(fd.as_fd(), position)
    }

    /// Returns a pointer to the first byte, for system calls and libraries that access memory by
    /// address: `readv`, `io_uring`, a device of your own.
    ///
    /// Three rules apply to code that uses it:
    ///
    /// - Make no reference of it, `&[u8]` neither, while peers or posted requests may write the
    ///   bytes. Access them as other processes would: by system calls, volatile or atomic accesses.
    /// - Whatever races with another access reads, or leaves, any mixture of old and new bytes.
    ///   A completion or [`Mr::load_last`] says that the peer's bytes are there.
    /// - The region outlives every access, also one in the background: [`Region::revoke`] and the
    ///   drop wait for the stack, not for your `io_uring`.
    #[must_use]
    pub const fn as_mut_ptr(&self) -> *mut u8 {
        self.region.as_ptr().cast_mut()
    }

    /// Loads the byte at `offset`, with acquire: if it is the last byte of an RDMA Write of the
    /// peer, the bytes before it are placed, too.
    ///
    /// # Panics
    /// If it is outside the region.
    #[must_use]
    #[inline]
    pub fn load_last(&self, offset: usize) -> u8 {
        self.region.span(offset, 1).load_acquire().expect(UNMAPPED)
    }

    /// Stores the byte at `offset`, with release.
    ///
    /// # Panics
    /// If it is outside the region.
    #[inline]
    pub fn store_release(&self, offset: usize, byte: u8) {
        self.region.span(offset, 1).store_release(byte).expect(UNMAPPED);
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
        self.region.span(offset, ATOMIC_LEN).atomic(op).expect(UNMAPPED).expect(UNALIGNED)
    }

    /// Loads the word of eight bytes at `offset` atomically, with acquire: writes of a thread or a
    /// peer before its atomic operation on the word are visible, too.
    ///
    /// # Panics
    /// As [`Mr::atomic`].
    #[must_use]
    pub fn load_word(&self, offset: usize) -> u64 {
        self.region.span(offset, ATOMIC_LEN).load_word().expect(UNMAPPED).expect(UNALIGNED)
    }

    /// Assigns the region a new STag, not predictable from the old one, after the old one was
    /// invalidated by any means; if it is still valid, it is revoked first. The local stack may
    /// always read, `access` grants further rights.
    ///
    /// # Panics
    /// Never: a region can be enabled as long as it exists.
    // req: RDMAP-007, RDMAP-280
    pub fn enable(&mut self, access: Access) -> Stag {
        self.region.enable(access)
    }

    /// Registers the region again, with other rights, another protection domain or other addresses
    /// in requests. It has a new STag from now on, as after [`Mr::enable`]; advertise it again.
    ///
    /// The region is revoked first. A request that names the old STag and was not executed yet
    /// completes with [`WcStatus::LocalProtection`](crate::WcStatus::LocalProtection), and its
    /// connection ends, as does that of a peer which uses the old STag. So call this when the
    /// requests that name the region have completed.
    ///
    /// # Errors
    /// [`MemoryError::WindowsBound`] if a window is bound to the region (`EBUSY` of verbs; a queued
    /// request to bind one fails later); [`MemoryError::Foreign`] if the domain is of another
    /// context, or the region is that of one queue pair; [`MemoryError::Register`] if `iova` is too
    /// high; [`MemoryError::Limit`]; [`MemoryError::Ended`] in a child made by `fork`. If it fails,
    /// the region is as before and the STag stays valid.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn reregister(&mut self, options: &ReregOptions<'_>) -> Result<Stag, MemoryError> {
        self.region.reregister(None, options)
    }

    /// As [`Mr::reregister`], with another buffer. Returns the previous one; `None` if that memory
    /// was the caller's.
    ///
    /// # Errors
    /// As [`Mr::reregister`]; they return the new buffer.
    #[doc(alias = "IBV_REREG_MR_CHANGE_TRANSLATION")]
    pub fn reregister_buffer(
        &mut self,
        buffer: Buffer,
        options: &ReregOptions<'_>,
    ) -> Result<Option<Buffer>, RegisterRefused> {
        match self.region.reregister(Some(buffer.span()), options) {
            Ok(_) => Ok(self.buffer.replace(buffer)),
            Err(error) => Err(RegisterRefused { error, buffer }),
        }
    }

    /// As [`Mr::reregister_buffer`], with arbitrary memory.
    ///
    /// # Errors
    /// As [`Mr::reregister`]; [`MemoryError::NotMapped`].
    ///
    /// # Safety
    /// As for [`Pd::register_raw`], from now on. The previous memory is free once this has returned
    /// without an error.
    #[doc(alias = "IBV_REREG_MR_CHANGE_TRANSLATION")]
    pub unsafe fn reregister_raw(
        &mut self,
        start: *mut u8,
        len: usize,
        options: &ReregOptions<'_>,
    ) -> Result<Option<Buffer>, MemoryError> {
        check_mapped(start, len)?;
        // SAFETY: the caller guarantees what `Span::new` requires.
        let span = unsafe { Span::new(start, len) };
        self.region.reregister(Some(span), options)?;
        Ok(self.buffer.take())
    }

    /// Deregisters and returns the buffer; `None` if the memory is the caller's.
    #[doc(alias = "ibv_dereg_mr")]
    #[doc(alias = "rdma_dereg_mr")]
    #[must_use]
    pub fn deregister(self) -> Option<Buffer> {
        let Self { region, buffer } = self;
        drop(region);
        buffer
    }
}

impl Deref for Mr {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mr").field(&self.region).finish()
    }
}
