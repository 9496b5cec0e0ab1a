//! Memory windows.

use std::fmt;

use ferrowarp_lockfree::invalidation;
use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::ddp::regions::{Bind, MwType, Stag, WindowKeys};

use crate::context::ContextInner;
use crate::error::MemoryError;
use crate::fork::{check_process, is_child};
use crate::handle::mr::Region;
use crate::handle::pd::Pd;

/// Memory window: an STag that gives peers access to a part of a region, while it is bound.
///
/// Binding is a request (made by [`Mw::bind`]) that a queue pair executes in posting order; a later
/// request may send the STag to the peer. Every binding ends with [`Mw::revoke`], and when the
/// region is revoked or dropped. The rest depends on the type:
///
/// | | Type 2 | Type 1 |
/// |---|---|---|
/// | Access for | the peer of the queue pair that binds it | all peers of the domain |
/// | Another bind while it is bound | fails | replaces the binding |
/// | A bind of no bytes | grants nothing | ends the binding |
/// | [`Post::invalidate`], the peer's Send with Invalidate | end the binding | fail |
/// | The queue pair is destroyed | the window is inaccessible | the binding stays |
/// | Region registered for one queue pair | that one binds it | the bind fails |
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
    mw_type: MwType,
}

impl Pd {
    /// Allocates a memory window of type 2, not bound.
    ///
    /// # Errors
    /// [`MemoryError::Register`] if the region table is full; [`MemoryError::Ended`] in a child
    /// made by `fork`.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn allocate_window(&self) -> Result<Mw, MemoryError> {
        self.allocate_window_of(MwType::Type2)
    }

    /// Allocates a memory window of either type, not bound.
    ///
    /// # Errors
    /// As [`Pd::allocate_window`].
    #[doc(alias = "ibv_alloc_mw")]
    pub fn allocate_window_of(&self, mw_type: MwType) -> Result<Mw, MemoryError> {
        // In a child the lock of the table may have been held at the fork.
        check_process()?;
        let context = self.context();
        let stag = context.regions.allocate_window_of(self.id(), mw_type)?;
        let keys = context.regions.window_keys();
        Ok(Mw { pd: self.clone(), stag, tag: stag, keys, mw_type })
    }
}

impl Mw {
    /// STag of the latest bind request, for the peer.
    #[must_use]
    pub const fn rkey(&self) -> Stag {
        self.stag
    }

    /// Type of the window.
    #[must_use]
    pub const fn mw_type(&self) -> MwType {
        self.mw_type
    }

    /// Returns a request, for [`Post::bind`](crate::Post::bind), to bind the window to bytes
    /// `offset..offset + len` of a region that was registered with [`Access::WINDOW_BIND`]. It has
    /// a new STag, not predictable from earlier ones; [`Mw::rkey`] returns it from now on. Tagged
    /// offsets start at that of the first byte in the region, or at 0 if `zero_based`.
    ///
    /// A window of type 2 must not be bound. The region must be of the same domain, and must grant
    /// local write access if `access` grants remote write access. Otherwise the request completes
    /// with [`WcStatus::Bind`](crate::WcStatus::Bind) and the connection ends. So does a request
    /// that is still queued when [`Mw::revoke`] is called, or when 256 more have been made. One
    /// queue pair at a time executes requests for a window: wait for the completion of one before
    /// you post the next to another.
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
        if !is_child() {
            self.stag = self.keys.next(&self.pd.context().regions, self.tag);
            self.tag = self.stag;
        }
        self.request(region, offset, len, access, zero_based)
    }

    /// As [`Mw::bind`], with a key of your choice: the low 8 bits of the STag. The others stay, and
    /// change only after [`Mw::revoke`], or when `bind` has used up the keys.
    ///
    /// Use each key once if you can. A peer that has an earlier STag with the same key has access
    /// again, and keys in counting order can be guessed.
    ///
    /// # Panics
    /// If the range is not within the region.
    #[doc(alias = "ibv_bind_mw")]
    #[doc(alias = "ibv_inc_rkey")]
    #[must_use]
    pub fn bind_with_key(
        &mut self,
        key: u8,
        region: &Region,
        offset: usize,
        len: usize,
        access: Access,
        zero_based: bool,
    ) -> Bind {
        if !is_child() {
            self.stag = self.keys.choose(self.tag, key);
        }
        self.request(region, offset, len, access, zero_based)
    }

    /// Returns a request with the current STag.
    fn request(
        &self,
        region: &Region,
        offset: usize,
        len: usize,
        access: Access,
        zero_based: bool,
    ) -> Bind {
        let (addr, len) = (region.iova_of(offset, len), len as u64);
        Bind { rkey: self.stag, lkey: region.lkey(), addr, len, access, zero_based }
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
        let mut debug = f.debug_struct("Mw");
        debug.field("stag", &stag).field("mw_type", &self.mw_type).finish_non_exhaustive()
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
