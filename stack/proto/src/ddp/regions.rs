//! STags and the table of regions and windows that they name, shared by all shards of a context.
//!
//! An STag is valid for every stream of its protection domain, or for one stream only (RFC 5041
//! section 8.2). Regions are registered either way, and windows have two types. A peer can only
//! invalidate an STag that is bound to one stream.

mod allocator;
mod slot;
mod windows;

use self::allocator::{Occupant, StagAllocator};
use self::slot::{AtomicU64, EVER_BOUND, Mutex, MutexGuard, Ordering, Owner, Slot, State};
use crate::ddp::access::Access;
use crate::ddp::memory::{MemoryFault, MemoryRange};

pub use self::windows::{Bind, InvalidateFault, MwType, WindowKeys};
pub use crate::ddp::access::{AccessScope, StreamId};

/// Steering tag (STag): identifies a region or a window, locally and at the peer. The low 8 bits
/// are the key; the others are the slot index and random tag bits. 0 is never issued. iWARP has one
/// STag where verbs has an lkey and an rkey.
pub type Stag = u32;

/// Attributes of a region to register.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    /// Protection domain.
    pub pd: u32,
    /// The only stream for which the STag is valid, or `None` for all streams of the domain.
    pub stream: Option<StreamId>,
    /// Tagged offset of the region's first byte (verbs: its virtual address).
    pub base: u64,
    /// Length in bytes.
    pub len: u64,
    /// Access rights.
    pub access: Access,
    /// Returned by [`MemoryRange::backing`].
    pub backing: u64,
}

/// Reason why a region could not be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// Every slot is in use.
    #[error(
        "the table of regions is full; raise `regions_max` of the configuration, or deregister some"
    )]
    TableFull,
    /// `base + len` wraps 64 bits.
    #[error("the addresses of the region exceed 64 bits: choose a lower `iova`, or fewer bytes")]
    Wrap,
}

impl Registration {
    /// Checks the range.
    ///
    /// # Errors
    /// [`RegisterError::Wrap`].
    pub fn check(&self) -> Result<(), RegisterError> {
        self.base.checked_add(self.len).map(drop).ok_or(RegisterError::Wrap)
    }
}

/// All regions and windows of a context. A lookup is a mask and a comparison, without a lock.
pub struct RegionTable {
    slots: Box<[Slot]>,
    index_mask: u32,
    allocator: Mutex<StagAllocator>,
    next_stream: AtomicU64,
}

impl RegionTable {
    /// Creates a table for `capacity` regions and windows (rounded up to a power of two, at most
    /// 2^20), with STags generated from `seed`. Production takes the seed from the operating
    /// system: STags must be hard to guess (RFC 5042 section 7.1.1).
    #[must_use]
    pub fn new(capacity: usize, seed: u64) -> Self {
        let capacity = capacity.clamp(2, 1 << 20).next_power_of_two();
        let count = u32::try_from(capacity).expect("at most 2^20");
        Self {
            slots: (0..capacity).map(|_| Slot::default()).collect(),
            index_mask: count - 1,
            allocator: Mutex::new(StagAllocator::new(count, seed)),
            next_stream: AtomicU64::new(0),
        }
    }

    /// Returns a stream ID that is unique over all engines of this table and never reused.
    // req: DDP-189
    #[must_use]
    pub fn new_stream_id(&self) -> StreamId {
        StreamId(self.next_stream.fetch_add(1, Ordering::Relaxed))
    }

    /// Registers a region in a randomly chosen free slot, with a random tag and key.
    ///
    /// # Errors
    /// [`RegisterError`].
    // req: DDP-196, DDP-208, RDMAP-279, RDMAP-283, RDMAP-284
    pub fn register(&self, registration: &Registration) -> Result<Stag, RegisterError> {
        registration.check()?;
        let stag = self.alloc_stag()?;
        let slot = self.slot(stag);
        let claimed = slot.claim().expect("a free slot is never valid");
        Self::publish_region(slot, claimed, stag, registration);
        Ok(stag)
    }

    /// Makes a region of a claimed slot.
    fn publish_region(slot: &Slot, claimed: State, stag: Stag, registration: &Registration) {
        // req: DDP-192, DDP-198, RDMAP-325, RDMAP-326
        let owner = Owner::new(registration.pd, registration.access, registration.stream.is_some());
        slot.set_owner(owner, registration.stream.unwrap_or(StreamId::NONE));
        // req: RDMAP-042
        slot.set_range(registration.base, registration.len, registration.backing);
        slot.bound_windows.fetch_and(!EVER_BOUND, Ordering::Relaxed);
        slot.occupant.store(Occupant::region(stag).0, Ordering::Release);
        slot.publish(claimed, stag);
    }

    /// Invalidates the STag for every later lookup, from any stream. The slot stays in use until
    /// [`RegionTable::release`]. True if the STag was valid.
    #[doc(alias = "STag invalidation")]
    // req: DDP-197, RDMAP-323
    pub fn invalidate(&self, stag: Stag) -> bool {
        let slot = self.slot(stag);
        slot.valid_state(stag).is_some_and(|state| self.invalidate_slot(slot, state))
    }

    /// Makes an invalidated region valid again with these attributes, under a new STag of the same
    /// slot that cannot be predicted from the previous one; the previous STag stays invalid. The
    /// caller guarantees that no lookup begun before the invalidation is still using the region.
    /// `None` if `stag` is not a region, or is valid, or if the range fails
    /// [`Registration::check`].
    // req: RDMAP-280, RDMAP-283, RDMAP-323
    pub fn reregister(&self, stag: Stag, registration: &Registration) -> Option<Stag> {
        let slot = self.slot(stag);
        if slot.occupant() != Occupant::region(stag) || registration.check().is_err() {
            return None;
        }
        let claimed = slot.claim()?;
        let next = self.lock().retag(stag, self.index_mask);
        Self::publish_region(slot, claimed, next, registration);
        Some(next)
    }

    /// Frees the slot of an invalidated region or window. The caller guarantees that no lookup
    /// begun before the invalidation is still using it, and that no window is bound to it.
    pub fn release(&self, stag: Stag) {
        let slot = self.slot(stag);
        slot.prev_occupant.store(0, Ordering::Release);
        slot.occupant.store(0, Ordering::Release);
        self.lock().release(self.index(stag));
    }

    /// STag validation (RFC 5041 section 7.1): checks an access of `len` bytes at `to`, in the
    /// order of [`MemoryFault`], and returns the range if every check passed. Takes a few
    /// nanoseconds and no lock.
    ///
    /// # Errors
    /// The first [`MemoryFault`] that applies.
    #[inline]
    pub fn resolve(
        &self,
        stag: Stag,
        scope: impl Into<AccessScope>,
        needed: Access,
        to: u64,
        len: usize,
    ) -> Result<MemoryRange, MemoryFault> {
        self.resolve_region(stag, scope, needed)?.range(to, len)
    }

    /// First part of [`RegionTable::resolve`]: all checks but those of the range. For several
    /// accesses in the same pass.
    ///
    /// # Errors
    /// The first [`MemoryFault`] that applies.
    #[inline(always)]
    pub fn resolve_region(
        &self,
        stag: Stag,
        scope: impl Into<AccessScope>,
        needed: Access,
    ) -> Result<ResolvedRegion, MemoryFault> {
        let slot = self.slot(stag);
        let Some(state) = slot.valid_state(stag) else {
            return Err(MemoryFault::InvalidStag);
        };
        let found = slot.check_access(stag, scope.into(), needed);
        // Last: if the slot has changed meanwhile, the fields read may be of different
        // registrations.
        if slot.is_unchanged_since(state) { found } else { Err(MemoryFault::InvalidStag) }
    }

    /// As [`RegionTable::resolve`] for at least one byte, with a lookup only if the previous call
    /// with `last` had another `stag`. `scope` and `needed` are the same in each call. `None` if
    /// the access is not allowed; [`RegionTable::resolve`] returns the fault.
    #[inline(always)]
    pub fn resolve_in_run(
        &self,
        last: &mut LastRegion,
        stag: Stag,
        scope: AccessScope,
        needed: Access,
        to: u64,
        len: usize,
    ) -> Option<MemoryRange> {
        let LastRegion(region) = last;
        if region.stag != stag {
            *region = self.resolve_region(stag, scope, needed).ok()?;
        }
        region.range(to, len).ok()
    }

    /// Returns the protection domain of a valid STag.
    #[must_use]
    pub fn pd_of(&self, stag: Stag) -> Option<u32> {
        let slot = self.slot(stag);
        let state = slot.valid_state(stag)?;
        let owner = slot.owner();
        slot.is_unchanged_since(state).then(|| owner.pd())
    }

    fn index(&self, stag: Stag) -> u32 {
        (stag >> 8) & self.index_mask
    }

    fn slot(&self, stag: Stag) -> &Slot {
        &self.slots[self.index(stag) as usize]
    }

    /// Allocates a free slot and an STag for it.
    fn alloc_stag(&self) -> Result<Stag, RegisterError> {
        self.lock().alloc(self.index_mask).ok_or(RegisterError::TableFull)
    }

    fn lock(&self) -> MutexGuard<'_, StagAllocator> {
        self.allocator.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Returns the number of unpredictable bits in an STag: tag and key.
    #[must_use]
    pub const fn random_bits(&self) -> u32 {
        self.index_mask.leading_zeros()
    }
}

/// Region or window whose STag, association and access rights were checked:
/// `RegionTable::resolve_region`. Used within the pass that resolved it, as a [`MemoryRange`] is.
#[derive(Debug)]
pub struct ResolvedRegion {
    stag: Stag,
    base: u64,
    len: u64,
    backing: u64,
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
pub struct LastRegion(ResolvedRegion);

impl LastRegion {
    /// No region: the first access is a lookup. No region has STag 0, and this one has no byte.
    pub const NONE: Self = Self(ResolvedRegion { stag: 0, base: 0, len: 0, backing: 0 });
}

#[cfg(all(test, not(loom)))]
mod tests;
