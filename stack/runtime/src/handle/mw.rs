//! Memory windows.

use std::fmt;

use ferrowarp_lockfree::invalidation;
use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::ddp::regions::{Bind, Stag, WindowKeys};

use crate::context::ContextInner;
use crate::error::MemoryError;
use crate::fork::{check_process, is_child};
use crate::handle::mr::Region;
use crate::handle::pd::Pd;

/// Memory window (verbs: type 2): an STag that gives the peer of one queue pair access to a part of
/// a region, while it is bound.
///
/// Binding is a request (made by [`Mw::bind`]) that a queue pair executes in posting order; a later
/// request may send the STag to the peer. The binding ends with a posted [`Post::invalidate`], with
/// the peer's Send with Invalidate, with [`Mw::revoke`], or when the region is revoked or dropped.
/// A window whose queue pair is destroyed is inaccessible.
///
/// It does not keep memory alive: its region may be dropped at any time.
///
/// [`Post::invalidate`]: crate::Post::invalidate
#[doc(alias = "ibv_mw")]
pub struct Mw {
    pd: Pd,
    /// STag of the latest bind request.
    stag: Stag,
    /// STag whose tag the next bind request keeps.
    tag: Stag,
    keys: WindowKeys,
}

impl Pd {
    /// Allocates a memory window, not bound.
    ///
    /// # Errors
    /// [`MemoryError::Register`] if the region table is full; [`MemoryError::Ended`] in a child
    /// made by `fork`.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn allocate_window(&self) -> Result<Mw, MemoryError> {
        // In a child the lock of the table may have been held at the fork.
        check_process()?;
        let context = self.context();
        let stag = context.regions.allocate_window(self.id())?;
        let keys = context.regions.window_keys();
        Ok(Mw { pd: self.clone(), stag, tag: stag, keys })
    }
}

impl Mw {
    /// STag of the latest bind request, for the peer.
    #[must_use]
    pub const fn rkey(&self) -> Stag {
        self.stag
    }

    /// Returns a request, for [`Post::bind`](crate::Post::bind), to bind the window to bytes
    /// `offset..offset + len` of a region that was registered with [`Access::WINDOW_BIND`]. It has
    /// a new STag, not predictable from earlier ones; [`Mw::rkey`] returns it from now on. Tagged
    /// offsets start at that of the first byte in the region, or at 0 if `zero_based`.
    ///
    /// The window must not be bound. The region must be of the same domain, and must grant local
    /// write access if `access` grants remote write access. Otherwise the request completes with
    /// [`WcStatus::Bind`](crate::WcStatus::Bind) and the connection ends. So does a request that is
    /// still queued when [`Mw::revoke`] is called, or when 256 more have been made.
    ///
    /// # Panics
    /// If the range is not within the region.
    // req: RDMAP-283
    #[doc(alias = "ibv_bind_mw")]
    #[doc(alias = "ibv_mw_bind_info")]
    #[must_use]
    pub fn bind(
        &mut self,
        region: &Region,
        offset: usize,
        len: usize,
        access: Access,
        zero_based: bool,
    ) -> Bind {
        let addr = region.iova_of(offset, len);
        if !is_child() {
            self.stag = self.keys.next(&self.pd.context().regions, self.tag);
            self.tag = self.stag;
        }
        let (rkey, lkey) = (self.stag, region.lkey());
        Bind { rkey, lkey, addr, len: len as u64, access, zero_based }
    }

    /// Revokes the window, whatever its queue pair does: after this no memory is accessible through
    /// it, and queued requests to bind it fail. Waits until no poll uses it any more. True if it
    /// was bound.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn revoke(&mut self) -> bool {
        if is_child() {
            return false;
        }
        let ContextInner { regions, shards, .. } = &**self.pd.context();
        let wait = || shards.synchronize();
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
        if is_child() {
            // The window is the parent's.
            return;
        }
        let ContextInner { regions, shards, .. } = &**self.pd.context();
        invalidation::dealloc_window(regions, self.tag, || shards.synchronize());
    }
}
