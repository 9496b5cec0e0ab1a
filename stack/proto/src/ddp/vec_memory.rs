//! Registered memory for tests and simulations: a byte arena in safe Rust.

use std::cell::RefCell;

use crate::ddp::atomic::{ATOMIC_LEN, AtomicOp, apply};
use crate::ddp::memory::{Access, Memory, MemoryRange};
use crate::ddp::regions::{RegionTable, Registration, Stag, StreamId};

/// Byte arena. Its regions are ranges of the arena, addressed by their offset.
pub struct VecMemory {
    bytes: RefCell<Vec<u8>>,
    regions: RegionTable,
}

impl VecMemory {
    /// Creates an arena of `len` zero bytes.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { bytes: RefCell::new(vec![0; len]), regions: RegionTable::new(64, 0x5eed) }
    }

    /// Registers `len` bytes at `start`; the region's base is `start`.
    ///
    /// # Panics
    /// If the range leaves the arena or the table of 64 regions is full.
    #[must_use]
    pub fn register(&self, start: u64, len: u64, access: Access, pd: u32) -> Stag {
        self.insert(start, len, access, pd, None)
    }

    /// Registers a region that is bound to one stream of the protection domain.
    ///
    /// # Panics
    /// As [`VecMemory::register`].
    #[must_use]
    pub fn register_for(
        &self,
        start: u64,
        len: u64,
        access: Access,
        pd: u32,
        stream: StreamId,
    ) -> Stag {
        self.insert(start, len, access, pd, Some(stream))
    }

    fn insert(
        &self,
        start: u64,
        len: u64,
        access: Access,
        pd: u32,
        stream: Option<StreamId>,
    ) -> Stag {
        assert!(start + len <= self.bytes.borrow().len() as u64, "region outside the arena");
        let registration = Registration { pd, stream, base: start, len, access, backing: start };
        self.regions.register(&registration).expect("fewer than 64 regions")
    }

    /// Copies `bytes` into the arena.
    ///
    /// # Panics
    /// If the range leaves the arena.
    pub fn write(&self, start: usize, bytes: &[u8]) {
        self.bytes.borrow_mut()[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Returns a copy of `len` bytes at `start`.
    ///
    /// # Panics
    /// If the range leaves the arena.
    #[must_use]
    pub fn read(&self, start: usize, len: usize) -> Vec<u8> {
        self.bytes.borrow()[start..start + len].to_vec()
    }
}

fn start_of(range: &MemoryRange) -> usize {
    usize::try_from(range.backing() + range.offset()).expect("inside the arena")
}

impl Memory for VecMemory {
    fn regions(&self) -> &RegionTable {
        &self.regions
    }

    fn place(&self, range: MemoryRange, bytes: &[u8]) {
        assert_eq!(range.len(), bytes.len(), "range and data differ in length");
        self.write(start_of(&range), bytes);
    }

    fn fetch(&self, range: MemoryRange, out: &mut [u8]) {
        assert_eq!(range.len(), out.len(), "range and buffer differ in length");
        let start = start_of(&range);
        out.copy_from_slice(&self.bytes.borrow()[start..start + out.len()]);
    }

    fn atomic(&self, range: MemoryRange, op: AtomicOp) -> Option<u64> {
        assert_eq!(range.len(), ATOMIC_LEN, "a word has eight bytes");
        let start = start_of(&range);
        if !start.is_multiple_of(ATOMIC_LEN) {
            return None;
        }
        let mut bytes = self.bytes.borrow_mut();
        let (word, _) = bytes[start..].split_first_chunk_mut()?;
        let original = u64::from_ne_bytes(*word);
        *word = apply(op, original).to_ne_bytes();
        Some(original)
    }
}

impl<M: Memory + ?Sized> Memory for std::rc::Rc<M> {
    fn regions(&self) -> &RegionTable {
        (**self).regions()
    }

    fn place(&self, range: MemoryRange, bytes: &[u8]) {
        (**self).place(range, bytes);
    }

    fn fetch(&self, range: MemoryRange, out: &mut [u8]) {
        (**self).fetch(range, out);
    }

    fn atomic(&self, range: MemoryRange, op: AtomicOp) -> Option<u64> {
        (**self).atomic(range, op)
    }
}
