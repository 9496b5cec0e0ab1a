//! STags and the table of regions behind them, shared by all shards of a context.

use core::hash::Hasher as _;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Mutex;

use siphasher::sip::SipHasher13;

use crate::ddp::memory::{Access, MemoryFault, Place};

/// A steering tag: names a region to both ends. Low 8 bits are the key, the rest choose a slot
/// and guard it with random bits. 0 is never issued. iWARP has one STag where verbs has an lkey
/// and an rkey.
pub type Stag = u32;

/// What to register.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    /// Protection domain.
    pub pd: u32,
    /// Tagged offset of the region's first octet (verbs: its virtual address).
    pub base: u64,
    /// Octets.
    pub len: u64,
    /// Rights.
    pub access: Access,
    /// Handed back in [`Place::backing`].
    pub backing: u64,
}

/// Why a region could not be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// Every slot is taken.
    #[error("the table of regions is full; raise the limit of regions or deregister some")]
    TableFull,
    /// `base + len` wraps 64 bits.
    #[error("the region's end wraps 64 bits")]
    Wrap,
}

/// Fields are written while `stag` is 0 and published by storing the STag last.
#[derive(Default)]
struct Slot {
    stag: AtomicU32,
    access_and_pd: AtomicU64,
    base: AtomicU64,
    len: AtomicU64,
    backing: AtomicU64,
}

/// All regions of a context. Look-up is a mask and a comparison; it takes no lock.
pub struct RegionTable {
    slots: Box<[Slot]>,
    index_mask: u32,
    index_bits: u32,
    control: Mutex<Control>,
}

/// Free slots and the chance that picks them; control path only.
struct Control {
    free: Vec<u32>,
    key: u64,
    count: u64,
}

impl RegionTable {
    /// A table for `capacity` regions (rounded up to a power of two, at most 2^20), with STags
    /// drawn from `seed`. Production takes the seed from the operating system: STags must be hard
    /// to guess (RFC 5042 section 7.1.1).
    #[must_use]
    pub fn new(capacity: usize, seed: u64) -> Self {
        let capacity = capacity.clamp(2, 1 << 20).next_power_of_two();
        let count = u32::try_from(capacity).expect("at most 2^20");
        Self {
            slots: (0..capacity).map(|_| Slot::default()).collect(),
            index_mask: count - 1,
            index_bits: count.trailing_zeros(),
            control: Mutex::new(Control { free: (0..count).collect(), key: seed, count: 0 }),
        }
    }

    /// Registers a region in a randomly chosen free slot, with a random key.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn register(&self, what: &Registration) -> Result<Stag, RegisterError> {
        if what.base.checked_add(what.len).is_none() {
            return Err(RegisterError::Wrap);
        }
        let mut control = self.lock();
        if control.free.is_empty() {
            return Err(RegisterError::TableFull);
        }
        let pick = usize::try_from(control.draw() % control.free.len() as u64)
            .expect("below the length of a Vec");
        let index = control.free.swap_remove(pick);
        let stag = loop {
            let [tag_and_key, _] = halves(control.draw());
            let tag = (tag_and_key >> 8) & !self.index_mask;
            let stag = ((tag | index) << 8) | (tag_and_key & 0xff);
            if stag != 0 {
                break stag;
            }
        };
        let slot = &self.slots[index as usize];
        let rights = u64::from(what.access.bits());
        slot.access_and_pd.store((rights << 32) | u64::from(what.pd), Ordering::Relaxed);
        slot.base.store(what.base, Ordering::Relaxed);
        slot.len.store(what.len, Ordering::Relaxed);
        slot.backing.store(what.backing, Ordering::Relaxed);
        slot.stag.store(stag, Ordering::Release);
        Ok(stag)
    }

    /// Makes the STag unusable at once for every later look-up. The slot stays taken until
    /// [`RegionTable::release`]. True if the STag was valid.
    pub fn invalidate(&self, stag: Stag) -> bool {
        stag != 0
            && self
                .slot(stag)
                .stag
                .compare_exchange(stag, 0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Gives the slot of an invalidated region back. The caller guarantees that no look-up begun
    /// before the invalidation is still using the region.
    pub fn release(&self, stag: Stag) {
        let index = (stag >> 8) & self.index_mask;
        self.lock().free.push(index);
    }

    /// Checks an access of `len` octets at `to`, in the order of [`MemoryFault`], and returns the
    /// place if every check passed. Some nanoseconds, no lock.
    ///
    /// # Errors
    /// The first [`MemoryFault`] that applies.
    pub fn resolve(
        &self,
        stag: Stag,
        pd: u32,
        needed: Access,
        to: u64,
        len: usize,
    ) -> Result<Place, MemoryFault> {
        let slot = self.slot(stag);
        // req: DDP-155, DDP-171
        if stag == 0 || slot.stag.load(Ordering::Acquire) != stag {
            return Err(MemoryFault::InvalidStag);
        }
        let [access, region_pd] = halves(slot.access_and_pd.load(Ordering::Relaxed));
        // req: DDP-173, DDP-188, DDP-205
        if region_pd != pd {
            return Err(MemoryFault::NotAssociated);
        }
        // req: DDP-156, DDP-209
        if !Access::from_bits(access.to_le_bytes()[0]).allows(needed) {
            return Err(MemoryFault::AccessRights);
        }
        let end = to.checked_add(len as u64).ok_or(MemoryFault::Wrap)?;
        let base = slot.base.load(Ordering::Relaxed);
        let region_end = base + slot.len.load(Ordering::Relaxed);
        // req: DDP-157, DDP-158, DDP-172, DDP-195, DDP-207
        if to < base || end > region_end {
            return Err(MemoryFault::Bounds);
        }
        Ok(Place::new(slot.backing.load(Ordering::Relaxed), to - base, len))
    }

    /// The protection domain of a valid STag.
    #[must_use]
    pub fn pd_of(&self, stag: Stag) -> Option<u32> {
        let slot = self.slot(stag);
        if stag == 0 || slot.stag.load(Ordering::Acquire) != stag {
            return None;
        }
        let [_, pd] = halves(slot.access_and_pd.load(Ordering::Relaxed));
        Some(pd)
    }

    fn slot(&self, stag: Stag) -> &Slot {
        &self.slots[((stag >> 8) & self.index_mask) as usize]
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// How many bits of an STag are guessed only by chance: tag and key.
    #[must_use]
    pub const fn random_bits(&self) -> u32 {
        32 - self.index_bits
    }
}

impl Control {
    /// A keyed pseudo-random function of a counter: who has seen some STags learns nothing of the
    /// next ones.
    fn draw(&mut self) -> u64 {
        self.count += 1;
        let mut hasher = SipHasher13::new_with_keys(self.key, !self.key);
        hasher.write_u64(self.count);
        hasher.finish()
    }
}

/// High and low half.
fn halves(word: u64) -> [u32; 2] {
    let b = word.to_be_bytes();
    [u32::from_be_bytes([b[0], b[1], b[2], b[3]]), u32::from_be_bytes([b[4], b[5], b[6], b[7]])]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const WHAT: Registration =
        Registration { pd: 3, base: 0x1000, len: 0x100, access: Access::ALL, backing: 77 };

    #[test]
    fn each_fault_is_reported_in_order() {
        let table = RegionTable::new(8, 1);
        let only_read = Registration { access: Access::REMOTE_READ, ..WHAT };
        let stag = table.register(&only_read).unwrap();
        let read = Access::REMOTE_READ;
        let ask = |stag, pd, need, to, len| table.resolve(stag, pd, need, to, len).unwrap_err();
        assert_eq!(ask(0, 3, read, 0x1000, 1), MemoryFault::InvalidStag);
        assert_eq!(ask(stag ^ 1, 3, read, 0x1000, 1), MemoryFault::InvalidStag);
        assert_eq!(ask(stag, 4, Access::REMOTE_WRITE, u64::MAX, 9), MemoryFault::NotAssociated);
        assert_eq!(ask(stag, 3, Access::REMOTE_WRITE, u64::MAX, 9), MemoryFault::AccessRights);
        assert_eq!(ask(stag, 3, read, u64::MAX, 9), MemoryFault::Wrap);
        assert_eq!(ask(stag, 3, read, 0xfff, 1), MemoryFault::Bounds);
        assert_eq!(ask(stag, 3, read, 0x10ff, 2), MemoryFault::Bounds);
        let place = table.resolve(stag, 3, read, 0x10ff, 1).unwrap();
        assert_eq!((place.backing(), place.offset(), place.len()), (77, 0xff, 1));
    }

    #[test]
    fn an_invalidated_stag_is_dead_at_once_and_its_slot_comes_back() {
        let table = RegionTable::new(2, 9);
        let first = table.register(&WHAT).unwrap();
        let second = table.register(&WHAT).unwrap();
        assert_eq!(table.register(&WHAT), Err(RegisterError::TableFull));
        assert!(table.invalidate(first));
        assert!(!table.invalidate(first));
        assert!(table.resolve(first, 3, Access::LOCAL_READ, 0x1000, 1).is_err());
        assert!(table.resolve(second, 3, Access::LOCAL_READ, 0x1000, 1).is_ok());
        table.release(first);
        let third = table.register(&WHAT).unwrap();
        assert_ne!(third, first);
        assert!(table.resolve(first, 3, Access::LOCAL_READ, 0x1000, 1).is_err());
    }

    #[test]
    fn stags_are_not_sequential() {
        let table = RegionTable::new(1024, 5);
        let stags: Vec<_> = (0..1000).map(|_| table.register(&WHAT).unwrap()).collect();
        assert_eq!(stags.iter().collect::<HashSet<_>>().len(), 1000);
        let steps: HashSet<_> = stags.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
        assert!(steps.len() > 990, "steps between STags repeat: {}", steps.len());
    }
}
