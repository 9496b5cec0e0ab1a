//! A region that was looked up, for several accesses of one stream in the same pass.

use crate::ddp::memory_range::{MemoryFault, MemoryRange};
use crate::ddp::stag::Stag;

/// Region or window whose STag, association and access rights were checked:
/// `RegionTable::resolve_region`. Used within the pass that resolved it, as a [`MemoryRange`] is.
#[derive(Debug)]
pub struct ResolvedRegion {
    pub(super) stag: Stag,
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) backing: u64,
}

impl ResolvedRegion {
    /// Checks the bounds of an access of `len` bytes at `to`.
    ///
    /// # Errors
    /// [`MemoryFault::Wrap`] or [`MemoryFault::Bounds`].
    #[inline(always)]
    pub fn range(&self, to: u64, len: usize) -> Result<MemoryRange, MemoryFault> {
        let offset = to.wrapping_sub(self.base);
        // `base + self.len` does not wrap, so `to + len` does not either if this holds.
        // req: DDP-157, DDP-158, DDP-172, DDP-195, DDP-207, RDMAP-272, RDMAP-273, RDMAP-278
        if len as u64 <= self.len && offset <= self.len - len as u64 {
            return Ok(MemoryRange::new(self.backing, offset, len));
        }
        // req: DDP-185
        Err(if to.checked_add(len as u64).is_none() {
            MemoryFault::Wrap
        } else {
            MemoryFault::Bounds
        })
    }
}

/// The region that was resolved last, for a run of accesses in which most name the same one:
/// `RegionTable::resolve_in_run`. It lives within a pass, and only while nothing else is done that
/// may invalidate an STag.
#[derive(Debug)]
pub struct LastRegion(pub(super) ResolvedRegion);

impl LastRegion {
    /// No region: the first access is a lookup. No region has STag 0, and this one has no byte.
    pub const NONE: Self = Self(ResolvedRegion { stag: 0, base: 0, len: 0, backing: 0 });
}
