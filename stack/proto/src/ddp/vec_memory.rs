//! Registered memory for tests and simulations: a byte arena in safe Rust.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use crate::ddp::atomic::{ATOMIC_LEN, AtomicOp, apply};
use crate::ddp::memory::{Access, Memory, MemoryRange, PageFault};
use crate::ddp::regions::{RegionTable, Registration, Stag, StreamId};

/// Byte arena. Its regions are ranges of the arena, addressed by their offset.
pub struct VecMemory {
    bytes: RefCell<Vec<u8>>,
    /// Bytes that were unmapped, if any were.
    unmapped: RefCell<Range<usize>>,
    has_unmapped: Cell<bool>,
    regions: RegionTable,
}

impl VecMemory {
    /// Creates an arena of `len` zero bytes.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self {
            bytes: RefCell::new(vec![0; len]),
            unmapped: RefCell::default(),
            has_unmapped: Cell::new(false),
            regions: RegionTable::new(64, 0x5eed),
        }
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

    /// Unmaps these bytes, and maps those that were unmapped before: accesses of the stack to them
    /// are page faults.
    pub fn unmap(&self, bytes: Range<usize>) {
        self.has_unmapped.set(!bytes.is_empty());
        *self.unmapped.borrow_mut() = bytes;
    }

    fn check_mapped(&self, range: &MemoryRange) -> Result<(), PageFault> {
        if !self.has_unmapped.get() {
            return Ok(());
        }
        let (start, unmapped) = (start_of(range), self.unmapped.borrow());
        let is_mapped = start + range.len() <= unmapped.start || start >= unmapped.end;
        if is_mapped || range.is_empty() { Ok(()) } else { Err(PageFault) }
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

    fn place(&self, range: MemoryRange, bytes: &[u8]) -> Result<(), PageFault> {
        assert_eq!(range.len(), bytes.len(), "range and data differ in length");
        self.check_mapped(&range)?;
        self.write(start_of(&range), bytes);
        Ok(())
    }

    fn fetch(&self, range: MemoryRange, out: &mut [u8]) -> Result<(), PageFault> {
        assert_eq!(range.len(), out.len(), "range and buffer differ in length");
        self.check_mapped(&range)?;
        let start = start_of(&range);
        out.copy_from_slice(&self.bytes.borrow()[start..start + out.len()]);
        Ok(())
    }

    fn atomic(&self, range: MemoryRange, op: AtomicOp) -> Result<Option<u64>, PageFault> {
        assert_eq!(range.len(), ATOMIC_LEN, "a word has eight bytes");
        self.check_mapped(&range)?;
        let start = start_of(&range);
        if !start.is_multiple_of(ATOMIC_LEN) {
            return Ok(None);
        }
        let mut bytes = self.bytes.borrow_mut();
        let Some((word, _)) = bytes[start..].split_first_chunk_mut() else { return Ok(None) };
        let original = u64::from_ne_bytes(*word);
        *word = apply(op, original).to_ne_bytes();
        Ok(Some(original))
    }
}

impl<M: Memory + ?Sized> Memory for std::rc::Rc<M> {
    fn regions(&self) -> &RegionTable {
        (**self).regions()
    }

    fn place(&self, range: MemoryRange, bytes: &[u8]) -> Result<(), PageFault> {
        (**self).place(range, bytes)
    }

    fn fetch(&self, range: MemoryRange, out: &mut [u8]) -> Result<(), PageFault> {
        (**self).fetch(range, out)
    }

    fn atomic(&self, range: MemoryRange, op: AtomicOp) -> Result<Option<u64>, PageFault> {
        (**self).atomic(range, op)
    }
}
