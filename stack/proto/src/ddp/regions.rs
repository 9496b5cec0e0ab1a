//! STags and the table of regions and windows behind them, shared by all shards of a context.
//!
//! An STag is good for every stream of its protection domain, or for one stream alone
//! (RFC 5041 section 8.2): regions are registered either way, windows are always bound to the one
//! stream whose queue pair bound them. Only an STag of one stream can be invalidated by a peer.

mod slot;
mod stag;
mod sync;
mod window_keys;
mod windows;

use self::slot::{EVER_BOUND, Owner, Slot};
use self::stag::{Occupant, StagAllocator};
use self::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use crate::ddp::memory::{Access, MemoryFault, MemoryRange};

pub use self::window_keys::WindowKeys;
pub use self::windows::{Bind, InvalidateFault};

/// A steering tag: names a region or a window to both ends. Low 8 bits are the key, the rest
/// choose a slot and guard it with random bits. 0 is never issued. iWARP has one STag where verbs
/// has an lkey and an rkey.
pub type Stag = u32;

/// Names a stream to the table: one queue pair of one of the engines that share it. Drawn by
/// [`RegionTable::new_stream_id`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamId(pub u64);

impl StreamId {
    /// No stream: reaches what is good for a whole protection domain and nothing else.
    pub const NONE: Self = Self(u64::MAX);
}

/// Who asks for memory: a protection domain, and a stream in it. Both are local values that no
/// peer can set.
// req: DDP-189
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessScope {
    /// Protection domain.
    pub pd: u32,
    /// Stream.
    pub stream: StreamId,
}

/// The domain alone, without a stream.
impl From<u32> for AccessScope {
    fn from(pd: u32) -> Self {
        Self { pd, stream: StreamId::NONE }
    }
}

/// What to register.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    /// Protection domain.
    pub pd: u32,
    /// The only stream of the domain that the STag is good for, or `None` for all.
    pub stream: Option<StreamId>,
    /// Tagged offset of the region's first byte (verbs: its virtual address).
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// Rights.
    pub access: Access,
    /// Handed back in [`MemoryRange::backing`].
    pub backing: u64,
}

/// Why a region could not be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// Every slot is taken.
    #[error(
        "the table of regions is full; raise `regions_max` of the configuration, or deregister some"
    )]
    TableFull,
    /// `base + len` wraps 64 bits.
    #[error("the region's end wraps 64 bits")]
    Wrap,
}

/// All regions and windows of a context. Look-up is a mask and a comparison; it takes no lock.
pub struct RegionTable {
    slots: Box<[Slot]>,
    index_mask: u32,
    allocator: Mutex<StagAllocator>,
    next_stream: AtomicU64,
}

impl RegionTable {
    /// A table for `capacity` regions and windows (rounded up to a power of two, at most 2^20),
    /// with STags drawn from `seed`. Production takes the seed from the operating system: STags
    /// must be hard to guess (RFC 5042 section 7.1.1).
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

    /// A name for a stream that no other stream of any engine over this table has or had.
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
        if registration.base.checked_add(registration.len).is_none() {
            return Err(RegisterError::Wrap);
        }
        let stag = self.alloc_stag()?;
        let slot = self.slot(stag);
        let claimed = slot.claim().expect("a free slot is valid for nobody");
        // req: DDP-192, DDP-198, RDMAP-325, RDMAP-326
        let owner = Owner::new(registration.pd, registration.access, registration.stream.is_some());
        slot.set_owner(owner, registration.stream.unwrap_or(StreamId::NONE));
        // req: RDMAP-042
        slot.set_range(registration.base, registration.len, registration.backing);
        slot.bound_windows.fetch_and(!EVER_BOUND, Ordering::Relaxed);
        slot.occupant.store(Occupant::region(stag).0, Ordering::Release);
        slot.publish(claimed, stag);
        Ok(stag)
    }

    /// Makes the STag unusable at once for every later look-up, whoever may use it. The slot stays
    /// taken until [`RegionTable::release`]. True if the STag was valid.
    // req: DDP-197, RDMAP-323
    pub fn invalidate(&self, stag: Stag) -> bool {
        let slot = self.slot(stag);
        slot.valid_state(stag).is_some_and(|state| self.invalidate_slot(slot, state))
    }

    /// Makes an invalidated region usable again with these rights, under an STag of the same slot
    /// that cannot be told from the one before; that one stays unusable. The caller guarantees that
    /// no look-up begun before the invalidation is still using the region. `None` if it is no
    /// region, or is valid.
    // req: RDMAP-280, RDMAP-283, RDMAP-323
    pub fn enable(&self, stag: Stag, access: Access) -> Option<Stag> {
        let slot = self.slot(stag);
        if slot.occupant() != Occupant::region(stag) {
            return None;
        }
        let claimed = slot.claim()?;
        let next = self.lock().retag(stag, self.index_mask);
        let owner = slot.owner();
        let owner = Owner::new(owner.pd(), access, owner.is_qp_bound());
        slot.owner.store(owner.0, Ordering::Relaxed);
        slot.bound_windows.fetch_and(!EVER_BOUND, Ordering::Relaxed);
        slot.occupant.store(Occupant::region(next).0, Ordering::Release);
        slot.publish(claimed, next);
        Some(next)
    }

    /// Gives the slot of an invalidated region or window back. The caller guarantees that no
    /// look-up begun before the invalidation is still using it, and that no window is bound to it.
    pub fn release(&self, stag: Stag) {
        let slot = self.slot(stag);
        slot.prev_occupant.store(0, Ordering::Release);
        slot.occupant.store(0, Ordering::Release);
        self.lock().release(self.index(stag));
    }

    /// Checks an access of `len` bytes at `to`, in the order of [`MemoryFault`], and returns the
    /// place if every check passed. Some nanoseconds, no lock.
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
        let slot = self.slot(stag);
        // req: DDP-058, DDP-155, DDP-171
        let Some(state) = slot.valid_state(stag) else {
            return Err(MemoryFault::InvalidStag);
        };
        let found = slot.check_access(scope.into(), needed, to, len);
        // Last: what was read may be a mixture if the STag has come to mean something else.
        if slot.is_unchanged_since(state) { found } else { Err(MemoryFault::InvalidStag) }
    }

    /// The protection domain of a valid STag.
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

    /// An STag for a free slot, now taken.
    fn alloc_stag(&self) -> Result<Stag, RegisterError> {
        self.lock().alloc(self.index_mask).ok_or(RegisterError::TableFull)
    }

    fn lock(&self) -> MutexGuard<'_, StagAllocator> {
        self.allocator.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// How many bits of an STag are guessed only by chance: tag and key.
    #[must_use]
    pub const fn random_bits(&self) -> u32 {
        self.index_mask.leading_zeros()
    }
}

impl Slot {
    /// Checks an access against the fields.
    #[inline]
    fn check_access(
        &self,
        scope: AccessScope,
        needed: Access,
        to: u64,
        len: usize,
    ) -> Result<MemoryRange, MemoryFault> {
        let owner = self.owner();
        // req: DDP-173, DDP-188, DDP-190, DDP-205, DDP-206, RDMAP-276, RDMAP-277, DDP-187
        // req: RDMAP-271, RDMAP-327, RDMAP-332
        if owner.association() != u64::from(scope.pd) && !self.is_qp_bound_to(owner, scope) {
            return Err(MemoryFault::NotAssociated);
        }
        // req: DDP-156, DDP-209
        if !owner.access().allows(needed) {
            return Err(MemoryFault::AccessRights);
        }
        // req: DDP-185
        let end = to.checked_add(len as u64).ok_or(MemoryFault::Wrap)?;
        let base = self.base.load(Ordering::Relaxed);
        // Fields of two bindings do not belong together: their sum may wrap.
        let region_end = base.wrapping_add(self.len.load(Ordering::Relaxed));
        // req: DDP-157, DDP-158, DDP-172, DDP-195, DDP-207, RDMAP-272, RDMAP-273, RDMAP-278
        if to < base || end > region_end {
            return Err(MemoryFault::Bounds);
        }
        Ok(MemoryRange::new(self.backing.load(Ordering::Relaxed), to - base, len))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
