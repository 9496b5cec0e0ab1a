//! Protection domains: which regions a queue pair reaches.

use std::sync::Arc;

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::verbs::cm::CmError;

use crate::arena::Buffer;
use crate::context::{Context, Inner};
use crate::error::MemoryError;
use crate::memory::Span;
use crate::mr::Mr;
use crate::qp::{Qp, QpOptions};

/// A protection domain. Clones name the same one.
#[derive(Clone)]
pub struct Pd {
    context: Arc<Inner>,
    id: u32,
}

impl Pd {
    pub(crate) const fn new(context: Arc<Inner>, id: u32) -> Self {
        Self { context, id }
    }

    pub(crate) const fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn belongs_to(&self, context: &Arc<Inner>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// Registers a buffer. The local stack may always read it; `access` says what else.
    ///
    /// # Errors
    /// [`MemoryError::Register`] if the table of regions is full.
    pub fn register(&self, buffer: Buffer, access: Access) -> Result<Mr, MemoryError> {
        Mr::register(&self.context, self.id, buffer.span(), Some(buffer), access)
    }

    /// Registers any memory: `len` octets at `start`.
    ///
    /// # Errors
    /// [`MemoryError::Register`].
    ///
    /// # Safety
    /// Until the region is dropped (for good, if it is leaked) the octets must stay mapped,
    /// readable and writable, and no Rust reference to them may be used while peers with access to
    /// them are connected or requests that name them are outstanding: they change at any moment.
    /// Nor may one be used across a call of a method of the region that copies to or from it, or
    /// be given to one: `region.read(0, &mut the_registered_octets)` is undefined.
    pub unsafe fn register_raw(
        &self,
        start: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Mr, MemoryError> {
        // SAFETY: what `Span::new` asks is what the caller promises.
        let span = unsafe { Span::new(start, len) };
        Mr::register(&self.context, self.id, span, None, access)
    }

    /// Creates a queue pair that reaches the regions of this domain.
    ///
    /// # Errors
    /// `NoResources` if there are as many as the context allows; `Gone` if a completion queue or
    /// the domain is of another context, or the context is closed.
    pub fn create_qp(&self, context: &Context, options: &QpOptions<'_>) -> Result<Qp, CmError> {
        Qp::create(self, context, options)
    }
}
