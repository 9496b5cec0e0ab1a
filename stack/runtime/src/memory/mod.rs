//! Registered memory as raw bytes, and the copies in and out of it.
//!
//! No Rust reference to registered memory exists: the peer may write there at any moment, as with
//! DMA by a NIC. All access is through bounds-checked copies of raw bytes, for which any mixture of
//! old and new bytes is a valid result; [`opaque`] explains why these copies may race.

mod arena;
mod direct_io;
mod mapped;
pub(crate) mod opaque;
mod owner;
pub(crate) mod page_faults;

use std::ptr;
use std::sync::Arc;

use ferrowarp_proto::ddp::atomic::{ATOMIC_LEN, AtomicOp, execute};
use ferrowarp_proto::ddp::memory::{Memory, MemoryRange, PageFault};
use ferrowarp_proto::ddp::regions::RegionTable;

pub(crate) use arena::Arena;
pub use arena::Buffer;
pub(crate) use mapped::check_mapped;
pub(crate) use owner::{Exclusive, Shared};

/// Range of raw bytes that stays mapped as guaranteed by the caller of [`Span::new`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    start: *mut u8,
    len: usize,
}

// SAFETY: a span is an address and a length; the bytes behind it are only copied, never borrowed,
// and the guarantee of `Span::new` is not tied to a thread.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Span {
    /// # Safety
    /// While the span or a copy of it is used, `start..start + len` is mapped and readable, and no
    /// Rust reference to it is used for which that would be undefined. If it is used to write, the
    /// bytes are writable, too.
    pub(crate) const unsafe fn new(start: *mut u8, len: usize) -> Self {
        Self { start, len }
    }

    pub(crate) const fn len(self) -> usize {
        self.len
    }

    /// Returns a pointer to the first byte.
    pub(crate) const fn as_mut_ptr(self) -> *mut u8 {
        self.start
    }

    /// Returns the address, for the region table; [`HostMemory`] turns it into a pointer again.
    pub(crate) fn addr(self) -> u64 {
        self.start.expose_provenance() as u64
    }

    /// Returns bytes `offset..offset + len` of this span.
    ///
    /// # Panics
    /// If the range is not within the span.
    #[inline]
    pub(crate) fn slice(self, offset: usize, len: usize) -> Self {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "bytes {offset}..+{len} leave a region of {}",
            self.len
        );
        Self { start: self.start.wrapping_add(offset), len }
    }

    /// Copies `bytes` here; the last byte becomes visible last.
    ///
    /// # Errors
    /// [`PageFault`]; a part may have been copied.
    #[inline]
    pub(crate) fn write(self, bytes: &[u8]) -> Result<(), PageFault> {
        assert_eq!(self.len, bytes.len(), "lengths differ");
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: `Span::new` guarantees the destination; the source is a slice that cannot overlap
        // memory to which no reference is used.
        unsafe { opaque::place(bytes.as_ptr(), self.start, bytes.len()) }
    }

    /// Copies the bytes to `out`, reading each of them once.
    ///
    /// # Errors
    /// [`PageFault`]; a part may have been copied.
    #[inline]
    pub(crate) fn read(self, out: &mut [u8]) -> Result<(), PageFault> {
        assert_eq!(self.len, out.len(), "lengths differ");
        // SAFETY: `Span::new` guarantees the source; the destination is a slice that cannot overlap
        // memory to which no reference is used.
        unsafe { opaque::copy(self.start.cast_const(), out.as_mut_ptr(), self.len) }
    }

    /// Sets every byte.
    ///
    /// # Errors
    /// [`PageFault`]; a part may have been set.
    pub(crate) fn fill(self, byte: u8) -> Result<(), PageFault> {
        // SAFETY: `Span::new` guarantees the destination.
        unsafe { opaque::fill(self.start, byte, self.len) }
    }

    /// Loads the first byte, with acquire.
    ///
    /// # Errors
    /// [`PageFault`].
    ///
    /// # Panics
    /// If the span is empty.
    #[inline]
    pub(crate) fn load_acquire(self) -> Result<u8, PageFault> {
        assert!(self.len > 0, "an empty span has no bytes");
        // SAFETY: `Span::new` guarantees that the byte is readable while the span is used.
        unsafe { opaque::load_acquire(self.start.cast_const()) }
    }

    /// Stores the first byte, with release.
    ///
    /// # Errors
    /// [`PageFault`].
    ///
    /// # Panics
    /// If the span is empty.
    #[inline]
    pub(crate) fn store_release(self, byte: u8) -> Result<(), PageFault> {
        assert!(self.len > 0, "an empty span has no bytes");
        // SAFETY: `Span::new` guarantees that the byte is writable while the span is used.
        unsafe { opaque::store_release(self.start, byte) }
    }

    /// Executes an atomic operation on the span's bytes as one word, with the processor's atomic
    /// instructions; returns the previous value. `None` if the address is not a multiple of eight.
    ///
    /// # Errors
    /// [`PageFault`]; nothing was changed.
    ///
    /// # Panics
    /// If the length is not eight bytes.
    pub(crate) fn atomic(self, op: AtomicOp) -> Result<Option<u64>, PageFault> {
        let Some(word) = self.word() else { return Ok(None) };
        // Without masks one instruction, however often others change the word.
        match op {
            // SAFETY: `Span::new` guarantees that the word is accessible while the span is used.
            AtomicOp::FetchAdd { add, boundaries: 0 } => unsafe {
                return opaque::fetch_add(word, add).map(Some);
            },
            // SAFETY: as above.
            AtomicOp::Swap { swap, mask: u64::MAX } => unsafe {
                return opaque::swap(word, swap).map(Some);
            },
            _ => {}
        }
        let compare_exchange = |current, new| {
            // SAFETY: `Span::new` guarantees that the word is accessible while the span is used.
            unsafe { opaque::compare_exchange(word, current, new) }
        };
        // SAFETY: as above.
        let original = unsafe { opaque::load_word(word) }?;
        execute(op, original, compare_exchange).map(Some)
    }

    /// Loads the span's bytes as one word, with acquire. `None`, errors and panics as
    /// [`Span::atomic`].
    #[inline]
    pub(crate) fn load_word(self) -> Result<Option<u64>, PageFault> {
        let Some(word) = self.word() else { return Ok(None) };
        // SAFETY: as in `atomic`.
        unsafe { opaque::load_word(word) }.map(Some)
    }

    /// Returns the span as a word if it is aligned.
    #[inline]
    fn word(self) -> Option<*mut u64> {
        assert_eq!(self.len, ATOMIC_LEN, "a word has eight bytes");
        let start = self.start.cast::<u64>();
        start.is_aligned().then_some(start)
    }
}

/// Registered memory as the engine uses it: the regions of a context, and copies by address.
#[derive(Clone)]
pub(crate) struct HostMemory {
    regions: Arc<RegionTable>,
}

impl HostMemory {
    pub(crate) const fn new(regions: Arc<RegionTable>) -> Self {
        Self { regions }
    }

    /// Returns the span of a range that [`RegionTable::resolve`] has just checked.
    #[inline]
    fn span(place: &MemoryRange) -> Span {
        let start = usize::try_from(place.backing()).expect("registered from a pointer");
        let offset = usize::try_from(place.offset()).expect("inside the region");
        let start = ptr::with_exposed_provenance_mut::<u8>(start).wrapping_add(offset);
        // SAFETY: the region table holds only regions whose memory is kept until they, and the
        // windows bound to them, are invalidated and every poll that may have resolved a range has
        // ended (`Mr`). A range is used within the poll that resolved it, and is inside its region:
        // a window's range was checked against it when the window was bound.
        unsafe { Span::new(start, place.len()) }
    }
}

impl Memory for HostMemory {
    #[inline]
    fn regions(&self) -> &RegionTable {
        &self.regions
    }

    #[inline]
    fn place(&self, range: MemoryRange, bytes: &[u8]) -> Result<(), PageFault> {
        Self::span(&range).write(bytes)
    }

    #[inline]
    fn fetch(&self, range: MemoryRange, out: &mut [u8]) -> Result<(), PageFault> {
        Self::span(&range).read(out)
    }

    fn atomic(&self, range: MemoryRange, op: AtomicOp) -> Result<Option<u64>, PageFault> {
        Self::span(&range).atomic(op)
    }
}

#[cfg(test)]
mod tests {
    use ferrowarp_proto::ddp::memory::Access;
    use ferrowarp_proto::ddp::regions::Registration;

    use super::*;

    fn span_of(bytes: &mut [u8]) -> Span {
        // SAFETY: the tests use the span while the vector lives, and access it only through the
        // span.
        unsafe { Span::new(bytes.as_mut_ptr(), bytes.len()) }
    }

    #[test]
    fn copies_stay_inside_their_range() {
        let mut bytes = vec![0; 8];
        let span = span_of(&mut bytes);
        span.slice(2, 3).write(&[1, 2, 3]).unwrap();
        span.slice(8, 0).write(&[]).unwrap();
        let mut out = [9; 8];
        span.read(&mut out).unwrap();
        assert_eq!(out, [0, 0, 1, 2, 3, 0, 0, 0]);
        assert_eq!(span.slice(4, 1).load_acquire().unwrap(), 3);
    }

    #[test]
    fn copies_of_every_length_and_alignment_move_just_their_bytes() {
        let from: Vec<u8> = (0..700_u16).map(|at| (at % 251) as u8 + 1).collect();
        opaque::select();
        for offset in [0, 1, 7, 8, 31, 32, 63] {
            for len in 0..from.len() {
                let mut bytes = vec![0xee; offset + len + 3];
                let span = span_of(&mut bytes).slice(offset, len);
                span.write(&from[..len]).unwrap();
                let mut out = vec![0xdd; len];
                span.read(&mut out).unwrap();
                assert_eq!(out, from[..len]);
                let (before, rest) = bytes.split_at(offset);
                assert!(before.iter().chain(&rest[len..]).all(|&byte| byte == 0xee));
                span_of(&mut bytes).slice(offset, len).fill(7).unwrap();
                let (before, rest) = bytes.split_at(offset);
                assert!(rest[..len].iter().all(|&byte| byte == 7));
                assert!(before.iter().chain(&rest[len..]).all(|&byte| byte == 0xee));
            }
        }
    }

    /// Under a sanitizer or an interpreter this shows whether the racing accesses are sound.
    #[test]
    fn last_byte_is_visible_last_under_racing_accesses() {
        const LEN: usize = 200;
        let mut words = [0_u64; LEN / 8];
        // SAFETY: the test uses the span while the array lives, and accesses it only through the
        // span.
        let span = unsafe { Span::new(words.as_mut_ptr().cast(), LEN) };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for round in 1..=200 {
                    span.write(&[round; LEN]).unwrap();
                    while span.slice(0, 1).load_acquire().unwrap() == round {
                        std::thread::yield_now();
                    }
                }
            });
            scope.spawn(move || {
                for _ in 0..200 {
                    assert!(span.slice(8, 8).load_word().unwrap().is_some());
                    assert!(span.slice(16, 8).atomic(AtomicOp::swap(3)).unwrap().is_some());
                    span.slice(24, 8).fill(9).unwrap();
                }
            });
            for round in 1..=200 {
                while span.slice(LEN - 1, 1).load_acquire().unwrap() != round {
                    std::thread::yield_now();
                }
                let mut out = [0; LEN];
                span.read(&mut out).unwrap();
                assert!(out[32..].iter().all(|&byte| byte == round), "round {round}: {out:?}");
                span.slice(0, 1).store_release(0).unwrap();
            }
        });
    }

    #[test]
    #[should_panic(expected = "leave a region of 8")]
    fn range_outside_the_span_panics() {
        span_of(&mut [0; 8]).slice(usize::MAX, 2);
    }

    #[test]
    fn unaligned_atomic_word_is_refused() {
        let mut words = [0_u64; 2];
        // SAFETY: the test uses the span while the array lives, and accesses it only through the
        // span.
        let span = unsafe { Span::new(words.as_mut_ptr().cast(), 16) };
        assert_eq!(span.slice(8, 8).atomic(AtomicOp::fetch_add(7)), Ok(Some(0)));
        assert_eq!(span.slice(8, 8).load_word(), Ok(Some(7)));
        assert_eq!(span.slice(4, 8).atomic(AtomicOp::swap(1)), Ok(None));
        assert_eq!(span.slice(4, 8).load_word(), Ok(None));
        assert_eq!(span.slice(0, 8).load_word(), Ok(Some(0)));
    }

    #[test]
    fn place_and_fetch_reach_registered_memory() {
        let mut bytes = vec![0; 64];
        let span = span_of(&mut bytes);
        let regions = Arc::new(RegionTable::new(2, 1));
        let memory = HostMemory::new(Arc::clone(&regions));
        let what = Registration {
            pd: 1,
            stream: None,
            base: 0x5000,
            len: 64,
            access: Access::ALL,
            backing: span.addr(),
        };
        let stag = regions.register(&what).unwrap();
        let resolve = || regions.resolve(stag, 1, Access::LOCAL_WRITE, 0x5000 + 60, 4).unwrap();
        memory.place(resolve(), b"last").unwrap();
        let mut out = [0; 4];
        memory.fetch(resolve(), &mut out).unwrap();
        assert_eq!(&out, b"last");
        assert_eq!(span.slice(63, 1).load_acquire().unwrap(), b't');
    }
}
