//! Memory windows.

use std::fmt;
use std::sync::Arc;

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::ddp::regions::{Bind, Stag, WindowKeys};
use ferrowarp_proto::verbs::wr::Operation;

use crate::context::ContextInner;
use crate::error::MemoryError;
use crate::invalidation;
use crate::mr::Mr;

/// A memory window (verbs: type 2): an STag that shows a part of a region to the peer of one queue
/// pair, for as long as it is bound.
///
/// Binding is a request ([`Mw::bind`] makes it) that a queue pair carries out in posting order;
/// what is posted after it may tell the peer the STag. It ends with a posted
/// [`Operation::Invalidate`], with the peer's Send with Invalidate, with [`Mw::revoke`], or when
/// the region is revoked or dropped. A window whose queue pair is gone can be reached by nobody.
///
/// It holds no memory: its region may be dropped at any time.
pub struct Mw {
    context: Arc<ContextInner>,
    /// The STag of the request made last.
    stag: Stag,
    /// The tag that the next request gets is this one's.
    tag: Stag,
    keys: WindowKeys,
}

impl Mw {
    pub(crate) fn allocate(context: &Arc<ContextInner>, pd: u32) -> Result<Self, MemoryError> {
        let stag = context.regions.allocate_window(pd)?;
        let keys = context.regions.window_keys();
        Ok(Self { context: Arc::clone(context), stag, tag: stag, keys })
    }

    /// The STag of the binding made last, for the peer.
    #[must_use]
    pub const fn rkey(&self) -> Stag {
        self.stag
    }

    /// A request to bind the window to bytes `offset..offset + len` of a region that was
    /// registered with [`Access::WINDOW_BIND`], under another STag, which those before do not tell:
    /// [`Mw::rkey`] has it from now on. The peer counts from the byte's address, as in the region,
    /// or from 0.
    ///
    /// The window must not be bound, and the region be of the same domain and give this end the
    /// right to write if the peer gets it; else the request completes with
    /// [`WcStatus::Bind`](crate::WcStatus::Bind) and the connection ends. So does one that is still
    /// queued when [`Mw::revoke`] is called, or when 256 more were made.
    ///
    /// # Panics
    /// If the bytes leave the region.
    // req: RDMAP-283
    #[must_use]
    pub fn bind(
        &mut self,
        region: &Mr,
        offset: usize,
        len: usize,
        access: Access,
        zero_based: bool,
    ) -> Operation {
        let addr = region.addr_of(offset, len);
        self.stag = self.keys.next(&self.context.regions, self.tag);
        self.tag = self.stag;
        let (rkey, lkey) = (self.stag, region.lkey());
        Operation::Bind(Bind { rkey, lkey, addr, len: len as u64, access, zero_based })
    }

    /// Takes the window back whatever its queue pair does: after this nobody reaches the memory
    /// through it, and requests to bind it that are queued still fail. Waits until no pass uses it
    /// any more. True if it was bound.
    pub fn revoke(&mut self) -> bool {
        let ContextInner { regions, shard, .. } = &*self.context;
        let wait = || shard.synchronize();
        let (tag, was_bound) = invalidation::revoke_window(regions, &mut self.keys, self.tag, wait);
        self.tag = tag;
        was_bound
    }
}

impl fmt::Debug for Mw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stag = format_args!("{:#010x}", self.stag);
        f.debug_struct("Mw").field("stag", &stag).finish_non_exhaustive()
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        let ContextInner { regions, shard, .. } = &*self.context;
        invalidation::dealloc_window(regions, self.tag, || shard.synchronize());
    }
}
