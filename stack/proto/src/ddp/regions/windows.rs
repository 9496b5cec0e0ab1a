//! Memory windows, and invalidation of STags.
//!
//! A window has an STag of its own for a part of a region. A posted Bind request binds it to a
//! range, with rights and a key chosen by the consumer.
//!
//! - Type 2 (2B of verbs): for the stream of that queue pair only (QP bound). A posted Invalidate
//!   request, the peer's Send with Invalidate, or the invalidation of its region invalidates it; it
//!   can then be bound again.
//! - Type 1: for all streams of its protection domain. Another Bind request replaces the binding,
//!   or ends it if it has no bytes; the invalidation of its region ends it as well. No Invalidate
//!   does, of either end, because several streams share the STag.
//!
//! A binding claims the slot while it writes the fields, and a lookup that meets a claimed slot
//! fails (see `slot`): binding and lookup may be on different shards.

use super::allocator::{Occupant, StagRng};
use super::slot::{EVER_BOUND, Ordering, Owner, Slot, State};
use super::{AccessScope, RegionTable, RegisterError, Stag, StreamId};
use crate::ddp::access::Access;
use crate::ddp::memory::MemoryFault;

/// Number of keys under one tag.
const KEY_COUNT: usize = 256;

/// Type of a memory window.
#[doc(alias = "ibv_mw_type")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwType {
    /// For all queue pairs of its protection domain, and bound again without being invalidated.
    #[doc(alias = "IBV_MW_TYPE_1")]
    Type1,
    /// For the queue pair that binds it. The peer can invalidate it.
    #[doc(alias = "IBV_MW_TYPE_2")]
    Type2,
}

/// Request to bind a window (verbs: `ibv_mw_bind_info` and `rkey` of `IBV_WR_BIND_MW`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The window: its STag as allocated or retagged ([`RegionTable::retag_window`]), except for
    /// the low 8 bits, which are the key of this binding. [`WindowKeys`] generates keys. Use a new
    /// key for each binding: STags that the peer knows from earlier bindings then stay invalid.
    pub rkey: Stag,
    /// The region, which must grant [`Access::WINDOW_BIND`].
    pub lkey: Stag,
    /// Tagged offset of the first byte in the region.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Remote rights; local ones are ignored. Rights to modify need a region with
    /// [`Access::LOCAL_WRITE`].
    pub access: Access,
    /// Tagged offsets of the window start at 0 instead of `addr`.
    pub zero_based: bool,
}

/// Reason why a peer may not invalidate an STag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidateFault {
    /// No region or window has the STag, or it was invalidated already.
    Unknown,
    /// It belongs to another protection domain or to another stream.
    Foreign,
    /// It is valid for all streams of its domain, or windows are bound to it.
    Shared,
    /// It grants no remote rights: a sink of RDMA Reads, whose STag the peer has from the Read
    /// Request.
    NotRemote,
}

impl RegionTable {
    /// Allocates a window of type 2 in a protection domain, not bound: it gives no access.
    ///
    /// # Errors
    /// `TableFull`.
    pub fn allocate_window(&self, pd: u32) -> Result<Stag, RegisterError> {
        self.allocate_window_of(pd, MwType::Type2)
    }

    /// As [`RegionTable::allocate_window`], of any type.
    ///
    /// # Errors
    /// `TableFull`.
    pub fn allocate_window_of(&self, pd: u32, mw_type: MwType) -> Result<Stag, RegisterError> {
        let stag = self.alloc_stag()?;
        let slot = self.slot(stag);
        let claimed = slot.claim().expect("a free slot is never valid");
        let is_qp_bound = mw_type == MwType::Type2;
        slot.set_owner(Owner::new(pd, Access::default(), is_qp_bound), StreamId::NONE);
        slot.occupant.store(Occupant::window(stag).0, Ordering::Release);
        slot.publish(claimed, 0);
        self.lock().windows.insert(self.index(stag));
        Ok(stag)
    }

    /// Returns keys for a window of this table, in an unpredictable order.
    #[must_use]
    pub fn window_keys(&self) -> WindowKeys {
        WindowKeys::new(self.lock().fork_rng())
    }

    /// Gives a window a new tag, for requests to bind it from now on; a current binding is not
    /// affected. With `revoke` queued requests with the previous tag fail, without it they still
    /// bind the window. Returns an STag with the new tag; its key was never valid.
    // req: RDMAP-283
    pub fn retag_window(&self, window: Stag, revoke: bool) -> Stag {
        let slot = self.slot(window);
        let mut control = self.lock();
        let before = slot.occupant();
        let retagged = control.retag(before.stag(), self.index_mask);
        let previous = if revoke { Occupant::retired(before.stag()) } else { before };
        slot.prev_occupant.store(previous.0, Ordering::Release);
        slot.occupant.store(Occupant::window(retagged).0, Ordering::Release);
        retagged
    }

    /// Executes a request of the stream of `scope` to bind a window: one of type 2 to that stream.
    /// One of type 1 loses its previous binding, and has none afterwards if the length is 0.
    ///
    /// # Errors
    /// `InvalidStag`: no such window, it is of type 2 and bound already, or no such region;
    /// `NotAssociated`: the window is of another protection domain; otherwise the fault of the
    /// region. A binding of type 1 stays as it is. It may be lost if another shard changes the
    /// window at the same moment, which also is `InvalidStag`.
    pub fn bind(&self, bind: &Bind, scope: AccessScope) -> Result<(), MemoryFault> {
        let window = self.slot(bind.rkey);
        let asked = Occupant::window(bind.rkey);
        if window.occupant() != asked && window.prev_occupant() != asked {
            return Err(MemoryFault::InvalidStag);
        }
        // A window keeps the flag and the domain of its allocation, whoever binds it meanwhile.
        let (bound, owner) = (window.state(), window.owner());
        let is_type_2 = owner.is_qp_bound();
        if is_type_2 && bound.is_valid() {
            return Err(MemoryFault::InvalidStag);
        }
        if owner.pd() != scope.pd {
            return Err(MemoryFault::NotAssociated);
        }
        if !is_type_2 && bind.len == 0 {
            if bound.is_valid() {
                self.invalidate_slot(window, bound);
            }
            return Ok(());
        }
        // A region of one stream is not shown to the others of the domain.
        let region_scope = if is_type_2 { scope } else { scope.pd.into() };
        let mut needed = Access::WINDOW_BIND;
        // req: DDP-216
        if bind.access.intersects(Access::REMOTE_MODIFY) {
            needed = needed | Access::LOCAL_WRITE;
        }
        let len = usize::try_from(bind.len).map_err(|_| MemoryFault::Bounds)?;
        // req: DDP-216
        let range = self.resolve(bind.lkey, region_scope, needed, bind.addr, len)?;
        if bound.is_valid() {
            self.invalidate_slot(window, bound);
        }
        // Another shard may be binding it concurrently.
        let claimed = window.claim().ok_or(MemoryFault::InvalidStag)?;
        window.set_owner(Owner::new(scope.pd, bind.access.remote(), is_type_2), scope.stream);
        let base = if bind.zero_based { 0 } else { bind.addr };
        window.set_range(base, bind.len, range.backing() + range.offset());
        window.parent.store(self.index(bind.lkey), Ordering::Relaxed);
        let region = self.slot(bind.lkey);
        if region.bound_windows.fetch_add(1, Ordering::AcqRel) & EVER_BOUND == 0 {
            region.bound_windows.fetch_or(EVER_BOUND, Ordering::AcqRel);
        }
        window.publish(claimed, bind.rkey);
        Ok(())
    }

    /// Invalidates an STag at the request of its own stream: a window bound through it, or a region
    /// registered for it. An STag that is already invalid, perhaps by the peer just before, stays
    /// invalid.
    ///
    /// # Errors
    /// `InvalidStag`: no region or window has the STag, or another key is valid; `NotAssociated`:
    /// it is not bound to this stream; `AccessRights`: windows are bound to the region.
    pub fn invalidate_local(&self, stag: Stag, scope: AccessScope) -> Result<(), MemoryFault> {
        let slot = self.slot(stag);
        if !slot.is_occupied_by(stag) {
            return Err(MemoryFault::InvalidStag);
        }
        let state = slot.state();
        if !slot.is_qp_bound_to(slot.owner(), scope) {
            return Err(MemoryFault::NotAssociated);
        }
        if state.is_valid() && state.stag() != stag {
            return Err(MemoryFault::InvalidStag);
        }
        if slot.window_count() > 0 {
            return Err(MemoryFault::AccessRights);
        }
        if state.is_valid() {
            self.invalidate_slot(slot, state);
        }
        Ok(())
    }

    /// Checks that the peer of this stream may invalidate the STag by Send with Invalidate.
    ///
    /// # Errors
    /// [`InvalidateFault`].
    // req: RDMAP-182, RDMAP-265, RDMAP-266, RDMAP-282
    pub fn check_invalidate(&self, stag: Stag, scope: AccessScope) -> Result<(), InvalidateFault> {
        self.invalidatable(stag, scope).map(|_| ())
    }

    /// Invalidates an STag for the peer of this stream, if the peer may: see
    /// [`RegionTable::check_invalidate`]. True if the STag was valid.
    pub fn invalidate_remote(&self, stag: Stag, scope: AccessScope) -> bool {
        let valid = self.invalidatable(stag, scope);
        valid.is_ok_and(|state| self.invalidate_slot(self.slot(stag), state))
    }

    fn invalidatable(&self, stag: Stag, scope: AccessScope) -> Result<State, InvalidateFault> {
        let slot = self.slot(stag);
        let state = slot.valid_state(stag).ok_or(InvalidateFault::Unknown)?;
        let owner = slot.owner();
        let is_qp_bound = slot.is_qp_bound_to(owner, scope);
        if !slot.is_unchanged_since(state) {
            return Err(InvalidateFault::Unknown);
        }
        if is_qp_bound && owner.access().remote() == Access::default() {
            return Err(InvalidateFault::NotRemote);
        }
        if is_qp_bound {
            let has_windows = slot.window_count() > 0;
            return if has_windows { Err(InvalidateFault::Shared) } else { Ok(state) };
        }
        let is_shared = owner.pd() == scope.pd && !owner.is_qp_bound();
        Err(if is_shared { InvalidateFault::Shared } else { InvalidateFault::Foreign })
    }

    /// Returns the number of windows bound to a region.
    #[must_use]
    pub fn window_count(&self, region: Stag) -> u32 {
        self.slot(region).window_count()
    }

    /// Invalidates every window bound to an invalidated region. True if any window has been bound
    /// since the region's STag became valid, even one that was invalidated before: a lookup by it
    /// may still be in progress. The caller guarantees that no binding begun before the region's
    /// invalidation is in progress. Scans all windows of the table if there was one.
    pub fn invalidate_windows(&self, region: Stag) -> bool {
        if self.slot(region).bound_windows.load(Ordering::Acquire) & EVER_BOUND == 0 {
            return false;
        }
        let parent = self.index(region);
        for &index in &self.lock().windows {
            let slot = &self.slots[index as usize];
            loop {
                let state = slot.state();
                // If it is bound to another region meanwhile, the state has changed.
                let is_ours = slot.parent.load(Ordering::Relaxed) == parent;
                if !state.is_valid() || !is_ours || self.invalidate_slot(slot, state) {
                    break;
                }
            }
        }
        true
    }

    /// Retires a window: it cannot be bound again. The caller then waits until no pass that may be
    /// binding it is in progress, calls [`RegionTable::unbind`], waits again for lookups, and
    /// releases it.
    pub fn retire_window(&self, window: Stag) {
        let slot = self.slot(window);
        slot.prev_occupant.store(0, Ordering::Release);
        slot.occupant.store(Occupant::retired(slot.occupant().stag()).0, Ordering::Release);
    }

    /// Invalidates a window whatever its key. True if it was bound.
    pub fn unbind(&self, window: Stag) -> bool {
        let slot = self.slot(window);
        let state = slot.state();
        state.is_valid() && self.invalidate_slot(slot, state)
    }

    /// Invalidates the STag of `state`, and decrements the count of its region if it is a window.
    /// False if the state has changed, whatever is valid now.
    pub(super) fn invalidate_slot(&self, slot: &Slot, state: State) -> bool {
        let is_window = slot.occupant().is_window();
        // Belongs to `state`: otherwise the exchange fails.
        let parent = slot.parent.load(Ordering::Relaxed);
        let invalidated = slot.invalidate(state);
        if invalidated && is_window {
            self.slots[parent as usize].bound_windows.fetch_sub(1, Ordering::AcqRel);
        }
        invalidated
    }
}

/// STags of one window, one for each binding (verbs: the consumer owns the low 8 bits).
///
/// Each of the 256 keys of a tag is used once, in random order; then the window gets a new random
/// tag. A peer that has seen any number of the window's STags cannot predict the next one, and an
/// invalidated STag does not become valid again with a later binding under the same tag.
// req: RDMAP-283
pub struct WindowKeys {
    rng: StagRng,
    /// The first `used` keys were issued; the others were not.
    keys: [u8; KEY_COUNT],
    used: usize,
}

impl WindowKeys {
    pub(super) fn new(rng: StagRng) -> Self {
        let mut keys = [0; KEY_COUNT];
        keys.iter_mut().zip(0..=u8::MAX).for_each(|(key, value)| *key = value);
        Self { rng, keys, used: 0 }
    }

    /// Returns the STag with a key that the consumer has chosen for the next request to bind
    /// `window`. [`WindowKeys::next`] does not choose that key for the same tag.
    pub fn choose(&mut self, window: Stag, key: u8) -> Stag {
        let left = &self.keys[self.used..];
        if let Some(at) = left.iter().position(|&other| other == key) {
            self.keys.swap(self.used, self.used + at);
            self.used += 1;
        }
        window & !0xff | Stag::from(key)
    }

    /// Returns the STag for the next request to bind `window`. `window` has the tag of the previous
    /// request.
    pub fn next(&mut self, table: &RegionTable, window: Stag) -> Stag {
        let mut window = window;
        if self.used == KEY_COUNT {
            window = table.retag_window(window, false);
            self.used = 0;
        }
        // One step of a Fisher-Yates shuffle.
        let pick = self.used + self.rng.below(KEY_COUNT - self.used);
        self.keys.swap(self.used, pick);
        self.used += 1;
        window & !0xff | Stag::from(self.keys[self.used - 1])
    }

    /// Gives the window a new tag now: queued requests to bind it fail. Returns an STag with the
    /// new tag.
    pub fn revoke(&mut self, table: &RegionTable, window: Stag) -> Stag {
        self.used = 0;
        table.retag_window(window, true)
    }
}
