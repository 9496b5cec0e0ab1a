//! Protection domains.

use std::fmt;
use std::sync::Arc;

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::ddp::regions::AccessScope;

use crate::arena::Buffer;
use crate::context::{Context, ContextInner};
use crate::error::{CreateError, MemoryError, RegisterRefused};
use crate::memory::Span;
use crate::mr::Mr;
use crate::mw::Mw;
use crate::qp::{Qp, QpOptions};
use crate::srq::Srq;

/// Protection domain: its queue pairs can access only its own regions. Clones refer to the same
/// one.
#[derive(Clone)]
pub struct Pd {
    context: Arc<ContextInner>,
    id: u32,
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pd").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Pd {
    pub(crate) const fn new(context: Arc<ContextInner>, id: u32) -> Self {
        Self { context, id }
    }

    pub(crate) const fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn belongs_to(&self, context: &Arc<ContextInner>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// Registers a buffer for all queue pairs of the domain. The local stack may always read it;
    /// `access` grants further rights. No peer can invalidate the region, because it is shared.
    ///
    /// # Errors
    /// [`MemoryError::Register`] if the region table is full, [`MemoryError::Limit`]; both return
    /// the buffer.
    pub fn register(&self, buffer: Buffer, access: Access) -> Result<Mr, RegisterRefused> {
        self.register_buffer(self.id.into(), buffer, access)
    }

    /// Registers a buffer for one queue pair of the domain only: no other can access it, locally or
    /// remotely. If `access` grants any remote right, its peer can invalidate the STag with a Send
    /// with Invalidate.
    ///
    /// # Errors
    /// As [`Pd::register`]; [`MemoryError::Foreign`] if the queue pair is of another domain or
    /// context.
    pub fn register_for(
        &self,
        qp: &Qp,
        buffer: Buffer,
        access: Access,
    ) -> Result<Mr, RegisterRefused> {
        match qp.access_scope_in(self) {
            Some(reach) => self.register_buffer(reach, buffer, access),
            None => Err(RegisterRefused { error: MemoryError::Foreign, buffer }),
        }
    }

    fn register_buffer(
        &self,
        reach: AccessScope,
        buffer: Buffer,
        access: Access,
    ) -> Result<Mr, RegisterRefused> {
        match Mr::register(&self.context, reach, buffer.span(), access) {
            Ok(mr) => Ok(mr.with_buffer(buffer)),
            Err(error) => Err(RegisterRefused { error, buffer }),
        }
    }

    /// Allocates a memory window, not bound.
    ///
    /// # Errors
    /// [`MemoryError::Register`] if the region table is full.
    pub fn allocate_window(&self) -> Result<Mw, MemoryError> {
        Mw::allocate(&self.context, self.id)
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
    pub unsafe fn register_raw(
        &self,
        start: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Mr, MemoryError> {
        // SAFETY: the caller guarantees what `Span::new` requires.
        let span = unsafe { Span::new(start, len) };
        Mr::register(&self.context, self.id.into(), span, access)
    }

    /// Creates a queue pair that can access the regions of this domain.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create_qp(&self, context: &Context, options: &QpOptions<'_>) -> Result<Qp, CreateError> {
        Qp::create(self, context, options, None)
    }

    /// Creates a queue pair that takes its receive buffers from a shared receive queue of this
    /// domain; `max_recv_wr` is ignored.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create_qp_with_srq(
        &self,
        context: &Context,
        options: &QpOptions<'_>,
        srq: &Srq,
    ) -> Result<Qp, CreateError> {
        Qp::create(self, context, options, Some(srq))
    }

    /// Creates a shared receive queue for at most `max_wr` buffers, for queue pairs of this domain.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create_srq(&self, max_wr: usize) -> Result<Srq, CreateError> {
        Srq::create(&self.context, self.id, max_wr)
    }
}
