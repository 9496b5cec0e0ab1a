//! Slot of the table of regions: a sequence lock whose writers never wait.
//!
//! The state word holds the valid STag and a version that every change of the slot increments.
//! Fields are written only while no STag is valid, after a release fence. A lookup reads the state,
//! then the fields, then the state again after an acquire fence. If both reads of the state agree,
//! all fields are those that were published with that STag, even if another shard bound it and the
//! same STag was bound before. If they differ, the lookup fails; it does not retry.

// The standard library's primitives, or loom's.
#[cfg(not(loom))]
pub(super) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(super) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(super) use std::sync::{Mutex, MutexGuard};

use super::allocator::Occupant;
use super::{ResolvedRegion, Stag};
use crate::ddp::access::{Access, AccessScope, StreamId};
use crate::ddp::memory::MemoryFault;

/// Slot of one STag.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct Slot {
    /// [`State`].
    pub(super) state: AtomicU64,
    /// [`Owner`].
    pub(super) owner: AtomicU64,
    pub(super) base: AtomicU64,
    pub(super) len: AtomicU64,
    pub(super) backing: AtomicU64,
    /// The stream to which the STag is bound, if `owner` is QP bound.
    pub(super) stream: AtomicU64,
    /// The region or window in the slot, valid or not: see [`Occupant`].
    pub(super) occupant: AtomicU32,
    /// Window: its previous tag, which queued requests may still have.
    pub(super) prev_occupant: AtomicU32,
    /// Window: slot index of its region.
    pub(super) parent: AtomicU32,
    /// Region: number of windows bound to it, and [`EVER_BOUND`].
    pub(super) bound_windows: AtomicU32,
}

/// A window has been bound to the region since its STag became valid.
pub(super) const EVER_BOUND: u32 = 1 << 31;

/// Version (high half) and valid STag (low half). The STag is 0 while no access is allowed; the
/// version is odd while a writer owns the slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct State(pub(super) u64);

impl State {
    const VERSION: u64 = 1 << 32;

    pub(super) fn stag(self) -> Stag {
        let [_, _, _, _, a, b, c, d] = self.0.to_be_bytes();
        Stag::from_be_bytes([a, b, c, d])
    }

    pub(super) fn is_valid(self) -> bool {
        self.stag() != 0
    }

    const fn is_claimed(self) -> bool {
        self.0 & Self::VERSION != 0
    }

    /// Returns the next version, with this STag.
    const fn next(self, stag: Stag) -> Self {
        let version = self.0 & !(Self::VERSION - 1);
        Self(version.wrapping_add(Self::VERSION) | stag as u64)
    }
}

impl Slot {
    pub(super) fn state(&self) -> State {
        State(self.state.load(Ordering::Acquire))
    }

    /// Returns the state if this STag is valid in it.
    #[inline]
    pub(super) fn valid_state(&self, stag: Stag) -> Option<State> {
        let state = self.state();
        // req: DDP-058, DDP-155, DDP-171
        (stag != 0 && state.stag() == stag).then_some(state)
    }

    /// True if the fields read since `state` was read belong to it.
    #[inline]
    pub(super) fn is_unchanged_since(&self, state: State) -> bool {
        fence(Ordering::Acquire);
        self.state.load(Ordering::Relaxed) == state.0
    }

    /// Takes exclusive ownership of an invalid slot, to write its fields and [`Slot::publish`];
    /// `None` if it is valid or claimed.
    pub(super) fn claim(&self) -> Option<State> {
        let state = self.state();
        if state.is_valid() || state.is_claimed() {
            return None;
        }
        let claimed = state.next(0);
        self.exchange(state, claimed).then(|| {
            // A lookup that reads a field written after this also sees the changed state.
            fence(Ordering::Release);
            claimed
        })
    }

    /// Makes the STag valid, with the fields written since the slot was claimed.
    pub(super) fn publish(&self, claimed: State, stag: Stag) {
        self.state.store(claimed.next(stag).0, Ordering::Release);
    }

    /// Invalidates the STag of `state`; false if the state has changed, whatever is valid now.
    pub(super) fn invalidate(&self, state: State) -> bool {
        // Two versions on: odd versions are claims.
        self.exchange(state, state.next(0).next(0))
    }

    fn exchange(&self, from: State, to: State) -> bool {
        self.state.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub(super) fn owner(&self) -> Owner {
        Owner(self.owner.load(Ordering::Relaxed))
    }

    pub(super) fn occupant(&self) -> Occupant {
        Occupant(self.occupant.load(Ordering::Acquire))
    }

    pub(super) fn prev_occupant(&self) -> Occupant {
        Occupant(self.prev_occupant.load(Ordering::Acquire))
    }

    /// True if the STag is bound to the stream of `scope`.
    pub(super) fn is_qp_bound_to(&self, owner: Owner, scope: AccessScope) -> bool {
        owner.association() == Owner::QP_BOUND | u64::from(scope.pd)
            && self.stream.load(Ordering::Relaxed) == scope.stream.0
    }

    /// True if the STag, whatever its key, is the occupant of this slot, or the previous tag of its
    /// window.
    pub(super) fn is_occupied_by(&self, stag: Stag) -> bool {
        let (occupant, previous) = (self.occupant(), self.prev_occupant());
        occupant == Occupant::region(stag)
            || [occupant, previous].contains(&Occupant::window(stag))
            || previous == Occupant::retired(stag)
    }

    /// Checks association and access rights of an access.
    #[inline(always)]
    pub(super) fn check_access(
        &self,
        stag: Stag,
        scope: AccessScope,
        needed: Access,
    ) -> Result<ResolvedRegion, MemoryFault> {
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
        let [base, len, backing] =
            [&self.base, &self.len, &self.backing].map(|field| field.load(Ordering::Relaxed));
        Ok(ResolvedRegion { stag, base, len, backing })
    }

    /// Sets protection domain, rights and stream.
    pub(super) fn set_owner(&self, owner: Owner, stream: StreamId) {
        self.owner.store(owner.0, Ordering::Relaxed);
        self.stream.store(stream.0, Ordering::Relaxed);
    }

    /// Sets the range: base offset, length in bytes, backing memory.
    pub(super) fn set_range(&self, base: u64, len: u64, backing: u64) {
        self.base.store(base, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.backing.store(backing, Ordering::Relaxed);
    }

    /// Returns the number of windows bound to the region.
    pub(super) fn window_count(&self) -> u32 {
        self.bound_windows.load(Ordering::Acquire) & !EVER_BOUND
    }
}

/// Access rights, the QP bound flag and the protection domain, in one word.
#[derive(Clone, Copy)]
pub(super) struct Owner(pub(super) u64);

impl Owner {
    /// The STag is valid for one stream only.
    const QP_BOUND: u64 = 1 << 32;
    const ACCESS_SHIFT: u32 = 40;

    pub(super) fn new(pd: u32, access: Access, is_qp_bound: bool) -> Self {
        let qp_bound = if is_qp_bound { Self::QP_BOUND } else { 0 };
        Self(u64::from(access.bits()) << Self::ACCESS_SHIFT | qp_bound | u64::from(pd))
    }

    pub(super) const fn access(self) -> Access {
        Access::from_bits(self.0.to_be_bytes()[2])
    }

    /// Returns the protection domain and the QP bound flag.
    pub(super) const fn association(self) -> u64 {
        self.0 & (Self::QP_BOUND | u32::MAX as u64)
    }

    pub(super) const fn is_qp_bound(self) -> bool {
        self.0 & Self::QP_BOUND != 0
    }

    /// Returns the protection domain.
    pub(super) fn pd(self) -> u32 {
        let [_, _, _, _, a, b, c, d] = self.0.to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }
}
