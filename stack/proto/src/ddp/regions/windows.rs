//! Memory windows, and who may invalidate an STag.
//!
//! A window (verbs: type 2) is an STag of its own over a part of a region. A posted request binds
//! it to a range, with rights and a key of the consumer's choice, for the stream of that queue
//! pair alone; a posted request, the peer's Send with Invalidate, or the end of its region takes
//! it back, and it can be bound again.
//!
//! Binding and invalidating by request happen in the pass of the shard that owns the stream, and
//! only that stream gets past the check of association: no other look-up uses fields that change
//! under it.

use core::sync::atomic::Ordering;

use super::stag::Name;
use super::{Owner, Reach, RegionTable, RegisterError, Stag, StreamId};
use crate::ddp::memory::{Access, MemoryFault};

/// A request to bind a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The window: its STag as allocated but for the low 8 bits, which are the key from now on.
    /// Choose another one than before: what the peer knew then stays unusable.
    pub rkey: Stag,
    /// The region, which must grant [`Access::WINDOW_BIND`].
    pub lkey: Stag,
    /// First octet, counted as the region's.
    pub addr: u64,
    /// Octets.
    pub len: u64,
    /// Remote rights; local ones are dropped. Rights to write need a region with
    /// [`Access::LOCAL_WRITE`].
    pub access: Access,
    /// The peer counts from 0 rather than from `addr`.
    pub zero_based: bool,
}

/// Why an STag may not be invalidated by a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidateFault {
    /// It names nothing, or what was invalidated already.
    Unknown,
    /// It belongs to another domain or to another stream.
    Foreign,
    /// It is good for all streams of its domain, or windows are bound to it.
    Shared,
}

impl RegionTable {
    /// A window of a domain, not bound: nothing can be reached by it.
    ///
    /// # Errors
    /// `TableFull`.
    pub fn allocate_window(&self, pd: u32) -> Result<Stag, RegisterError> {
        let stag = self.draw()?;
        let slot = self.slot(stag);
        slot.owner.store(Owner::new(pd, Access::default(), true).0, Ordering::Relaxed);
        slot.stream.store(StreamId::NONE.0, Ordering::Relaxed);
        slot.name.store(Name::window(stag).0, Ordering::Release);
        Ok(stag)
    }

    /// Binds a window for the stream that asks.
    ///
    /// # Errors
    /// `InvalidStag`: no such window, it is bound already, or no such region; else what the region
    /// refuses.
    pub fn bind(&self, bind: &Bind, reach: Reach) -> Result<(), MemoryFault> {
        let window = self.slot(bind.rkey);
        if window.name.load(Ordering::Acquire) != Name::window(bind.rkey).0
            || window.stag.load(Ordering::Acquire) != 0
        {
            return Err(MemoryFault::InvalidStag);
        }
        if Owner(window.owner.load(Ordering::Relaxed)).pd() != reach.pd {
            return Err(MemoryFault::NotAssociated);
        }
        let mut needed = Access::WINDOW_BIND;
        if bind.access.intersects(Access::REMOTE_CHANGE) {
            needed = needed | Access::LOCAL_WRITE;
        }
        let len = usize::try_from(bind.len).map_err(|_| MemoryFault::Bounds)?;
        let place = self.resolve(bind.lkey, reach, needed, bind.addr, len)?;
        let owner = Owner::new(reach.pd, bind.access.remote(), true);
        window.owner.store(owner.0, Ordering::Relaxed);
        window.stream.store(reach.stream.0, Ordering::Relaxed);
        let base = if bind.zero_based { 0 } else { bind.addr };
        window.base.store(base, Ordering::Relaxed);
        window.len.store(bind.len, Ordering::Relaxed);
        window.backing.store(place.backing() + place.offset(), Ordering::Relaxed);
        window.parent.store((bind.lkey >> 8) & self.index_mask, Ordering::Relaxed);
        self.slot(bind.lkey).windows.fetch_add(1, Ordering::AcqRel);
        window.stag.store(bind.rkey, Ordering::Release);
        Ok(())
    }

    /// Invalidates at the request of the stream that the STag is for: a window bound through it,
    /// or a region registered for it. One that is invalid already, perhaps by the peer a moment
    /// ago, stays so.
    ///
    /// # Errors
    /// `InvalidStag`: nothing has that name, or another key is valid; `NotAssociated`: it is not
    /// for this stream alone; `AccessRights`: windows are bound to the region.
    pub fn invalidate_local(&self, stag: Stag, reach: Reach) -> Result<(), MemoryFault> {
        let slot = self.slot(stag);
        let name = slot.name.load(Ordering::Acquire);
        if name != Name::region(stag).0 && name != Name::window(stag).0 {
            return Err(MemoryFault::InvalidStag);
        }
        let owner = Owner(slot.owner.load(Ordering::Relaxed));
        if !slot.is_tied_to(owner, reach) {
            return Err(MemoryFault::NotAssociated);
        }
        let valid = slot.stag.load(Ordering::Acquire);
        if valid != 0 && valid != stag {
            return Err(MemoryFault::InvalidStag);
        }
        if slot.windows.load(Ordering::Acquire) > 0 {
            return Err(MemoryFault::AccessRights);
        }
        self.invalidate(stag);
        Ok(())
    }

    /// Whether a peer's Send with Invalidate may name the STag on this stream.
    ///
    /// # Errors
    /// [`InvalidateFault`].
    // req: RDMAP-182, RDMAP-265, RDMAP-266, RDMAP-282
    pub fn check_invalidate(&self, stag: Stag, reach: Reach) -> Result<(), InvalidateFault> {
        let slot = self.slot(stag);
        if stag == 0 || slot.stag.load(Ordering::Acquire) != stag {
            return Err(InvalidateFault::Unknown);
        }
        let owner = Owner(slot.owner.load(Ordering::Relaxed));
        if slot.is_tied_to(owner, reach) {
            let has_windows = slot.windows.load(Ordering::Acquire) > 0;
            return if has_windows { Err(InvalidateFault::Shared) } else { Ok(()) };
        }
        let is_shared = owner.pd() == reach.pd && !owner.is_tied();
        Err(if is_shared { InvalidateFault::Shared } else { InvalidateFault::Foreign })
    }

    /// Windows bound to a region.
    #[must_use]
    pub fn window_count(&self, region: Stag) -> u32 {
        self.slot(region).windows.load(Ordering::Acquire)
    }

    /// Invalidates every window bound to a region that was invalidated, and says whether there was
    /// one. The caller guarantees that no binding begun before the invalidation is under way.
    /// Looks at the whole table if there was one.
    pub fn invalidate_windows(&self, region: Stag) -> bool {
        if self.window_count(region) == 0 {
            return false;
        }
        let index = (region >> 8) & self.index_mask;
        for slot in &self.slots {
            let is_window = Name(slot.name.load(Ordering::Acquire)).is_window();
            if is_window && slot.parent.load(Ordering::Acquire) == index {
                self.invalidate(slot.stag.load(Ordering::Acquire));
            }
        }
        true
    }

    /// Ends a window: it cannot be bound any more. The caller then waits until no pass that may be
    /// binding it is under way, calls [`RegionTable::unbind`], waits again for look-ups, and
    /// releases it.
    pub fn retire_window(&self, window: Stag) {
        self.slot(window).name.store(Name::retired(window).0, Ordering::Release);
    }

    /// Invalidates a window whatever its key. True if it was bound.
    pub fn unbind(&self, window: Stag) -> bool {
        let slot = self.slot(window);
        self.invalidate(slot.stag.load(Ordering::Acquire))
    }
}
