//! Memory for registration: mappings of 2 MiB hugepages if available, of ordinary pages otherwise,
//! suballocated into buffers.

use std::collections::BTreeMap;
use std::io;
use std::ops::{Deref, DerefMut};
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use memmap2::{Advice, MmapMut, MmapOptions};

use crate::fork::is_child;
use crate::memory::Span;

/// Size of a hugepage, and of the mappings for small buffers.
const HUGE_PAGE_LEN: usize = 2 << 20;
const HUGE_PAGE_BITS: u8 = 21;
/// Alignment and granularity of buffers: a page, so that two regions never share one.
const PAGE_LEN: usize = 4096;

/// Allocator of buffers.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Mappings for small buffers; each is unmapped with its last buffer.
    mappings: Vec<Weak<Mapping>>,
}

/// A mapping and its free ranges.
#[derive(Debug)]
struct Mapping {
    /// Keeps the memory mapped. Its bytes are accessed through `span`, and those of a buffer as a
    /// slice.
    _map: MmapMut,
    span: Span,
    free: Mutex<FreeList>,
}

/// Free ranges, lengths by offset; never empty, never adjacent.
#[derive(Debug)]
struct FreeList(BTreeMap<usize, usize>);

/// Memory that can be registered: zeroed, page-aligned, in hugepages if available.
///
/// Until it is registered, and again once it was deregistered ([`Mr::deregister`]), it is a slice
/// of bytes of its owner.
///
/// [`Mr::deregister`]: crate::Mr::deregister
#[derive(Debug)]
pub struct Buffer {
    mapping: Arc<Mapping>,
    offset: usize,
    len: usize,
}

impl Arena {
    /// Allocates a zeroed buffer of `len` bytes; it occupies at least one page.
    ///
    /// # Errors
    /// The error of the operating system if it maps no more memory.
    pub(crate) fn allocate(&self, len: usize) -> io::Result<Buffer> {
        let size =
            len.max(1).checked_next_multiple_of(PAGE_LEN).ok_or(io::ErrorKind::OutOfMemory)?;
        // The lock is not held while memory is mapped, which takes a second for some GiB.
        if size >= HUGE_PAGE_LEN {
            let mapping = Arc::new(Mapping::map(size)?);
            return Ok(Buffer::alloc_from(mapping, size, len).expect("the mapping is large enough"));
        }
        let mut state = lock(&self.state);
        state.mappings.retain(|mapping| mapping.strong_count() > 0);
        let found = state
            .mappings
            .iter()
            .filter_map(Weak::upgrade)
            .find_map(|mapping| Buffer::alloc_from(mapping, size, len));
        drop(state);
        if let Some(buffer) = found {
            buffer.span().fill(0).map_err(io::Error::other)?;
            return Ok(buffer);
        }
        let mapping = Arc::new(Mapping::map(HUGE_PAGE_LEN)?);
        let shared = Arc::downgrade(&mapping);
        let buffer = Buffer::alloc_from(mapping, size, len).expect("the mapping is large enough");
        lock(&self.state).mappings.push(shared);
        Ok(buffer)
    }
}

impl Mapping {
    /// Maps at least `len` bytes, with all pages present.
    fn map(len: usize) -> io::Result<Self> {
        static WARNED: Once = Once::new();
        let len = len.checked_next_multiple_of(HUGE_PAGE_LEN).ok_or(io::ErrorKind::OutOfMemory)?;
        let huge = MmapOptions::new().len(len).huge(Some(HUGE_PAGE_BITS)).map_anon();
        let mut map = match huge.and_then(populate) {
            Ok(map) => map,
            Err(error) => {
                WARNED.call_once(|| {
                    let hint =
                        hugepage_hint(len / HUGE_PAGE_LEN, hugepages("nr"), hugepages("free"));
                    tracing::warn!(
                        %error,
                        "no hugepages for {} MiB of registered memory; ordinary pages are used \
                         ({hint})",
                        len >> 20
                    );
                });
                let map = MmapOptions::new().len(len).map_anon()?;
                // Both are only optimizations; a kernel that does not support them maps on demand.
                let _ = map.advise(Advice::HugePage);
                let _ = map.advise(Advice::PopulateWrite);
                map
            }
        };
        // SAFETY: the mapping is kept next to the span. A slice is made only of the bytes of a
        // buffer, while it is not registered: only its owner can access them then.
        let span = unsafe { Span::new(map.as_mut_ptr(), len) };
        let free = Mutex::new(FreeList(BTreeMap::from([(0, len)])));
        Ok(Self { _map: map, span, free })
    }
}

/// Reads a count of 2 MiB pages from the kernel: `nr`, all of them, or `free`. `None` if it has no
/// such pages.
fn hugepages(which: &str) -> Option<usize> {
    let file = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{which}_hugepages");
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Returns advice for a failed allocation of `needed` pages, from the kernel's counts of them.
fn hugepage_hint(needed: usize, all: Option<usize>, free: Option<usize>) -> String {
    let (Some(all), Some(free)) = (all, free) else {
        return format!("{needed} pages of 2 MiB are needed; this kernel has none");
    };
    let counts = format!("{needed} pages of 2 MiB are needed, {free} of {all} are free");
    if free >= needed {
        // A control group, a memory policy or a limit of the process prevents their use.
        return format!("{counts}, but this process may not have them");
    }
    format!("{counts}: sysctl vm.nr_hugepages={}", all - free.min(all) + needed)
}

/// Faults the pages in now. Mapping hugepages only reserves them: if the control group or the
/// memory policy of the process grants none, the first access would end the process with SIGBUS.
fn populate(map: MmapMut) -> io::Result<MmapMut> {
    match map.advise(Advice::PopulateWrite) {
        // Kernels before 5.14 do not support the advice.
        Err(error) if error.raw_os_error() != Some(libc::EINVAL) => Err(error),
        _ => Ok(map),
    }
}

impl FreeList {
    /// First fit.
    fn alloc(&mut self, len: usize) -> Option<usize> {
        let (&offset, &size) = self.0.iter().find(|&(_, &size)| size >= len)?;
        self.0.remove(&offset);
        if size > len {
            self.0.insert(offset + len, size - len);
        }
        Some(offset)
    }

    fn free(&mut self, mut offset: usize, mut len: usize) {
        if let Some(size) = self.0.remove(&(offset + len)) {
            len += size;
        }
        if let Some((&before, &size)) = self.0.range(..offset).next_back()
            && before + size == offset
        {
            offset = before;
            len += size;
        }
        self.0.insert(offset, len);
    }
}

impl Buffer {
    fn alloc_from(mapping: Arc<Mapping>, size: usize, len: usize) -> Option<Self> {
        let offset = lock(&mapping.free).alloc(size)?;
        Some(Self { mapping, offset, len })
    }

    /// Returns the bytes as a span, valid while the buffer lives.
    pub(crate) fn span(&self) -> Span {
        self.mapping.span.slice(self.offset, self.len)
    }
}

/// The bytes, of which there are as many as were requested: no peer can reach them.
impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are mapped and were zeroed, and stay so while the buffer lives. They
        // belong to this buffer alone, and neither an engine nor another thread writes to them: an
        // `Mr` takes the buffer, and gives it back once no poll can use its STag any more.
        unsafe { slice::from_raw_parts(self.span().as_mut_ptr(), self.len) }
    }
}

/// As above.
impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; and nobody reads them, because the buffer is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.span().as_mut_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if is_child() {
            // The lock may have been held at the fork, and the list be in any state.
            std::mem::forget(Arc::clone(&self.mapping));
            return;
        }
        let size = self.len.max(1).next_multiple_of(PAGE_LEN);
        lock(&self.mapping.free).free(self.offset, size);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_buffers_share_a_mapping_and_come_back_zeroed() {
        let arena = Arena::default();
        let mut first = arena.allocate(100).unwrap();
        let second = arena.allocate(5_000).unwrap();
        assert!(Arc::ptr_eq(&first.mapping, &second.mapping));
        assert_eq!(second.offset, PAGE_LEN);
        first[96..].copy_from_slice(b"abcd");
        drop(first);
        let again = arena.allocate(100).unwrap();
        assert_eq!(again.offset, 0);
        assert_eq!(again[..], [0; 100]);
    }

    #[test]
    fn large_buffers_have_mappings_of_their_own() {
        let arena = Arena::default();
        let small = arena.allocate(1).unwrap();
        let large = arena.allocate(HUGE_PAGE_LEN + 1).unwrap();
        assert!(!Arc::ptr_eq(&small.mapping, &large.mapping));
        assert_eq!((large.len(), large.mapping.span.len()), (HUGE_PAGE_LEN + 1, 2 * HUGE_PAGE_LEN));
        assert_eq!(large.span().addr() % PAGE_LEN as u64, 0);
    }

    #[test]
    fn large_buffer_waits_for_no_other_thread() {
        let arena = Arena::default();
        // As while another thread maps memory; this would deadlock.
        let _mapping = lock(&arena.state);
        assert!(arena.allocate(HUGE_PAGE_LEN).is_ok());
    }

    #[test]
    fn freed_ranges_merge_on_both_sides() {
        let arena = Arena::default();
        let mut buffers: Vec<_> = (0..512).map(|_| arena.allocate(PAGE_LEN).ok()).collect();
        let mapping = Arc::clone(&buffers[0].as_ref().unwrap().mapping);
        assert!(lock(&mapping.free).0.is_empty());
        for index in [7, 5, 6] {
            buffers[index] = None;
        }
        assert_eq!(lock(&mapping.free).0, BTreeMap::from([(5 * PAGE_LEN, 3 * PAGE_LEN)]));
        buffers.clear();
        assert_eq!(lock(&mapping.free).0, BTreeMap::from([(0, HUGE_PAGE_LEN)]));
    }

    #[test]
    fn the_hint_counts_hugepages_needed_and_free() {
        let hint = |needed, all, free| hugepage_hint(needed, Some(all), Some(free));
        let hinted = hint(820, 1024, 512);
        assert_eq!(
            hinted,
            "820 pages of 2 MiB are needed, 512 of 1024 are free: sysctl vm.nr_hugepages=1332"
        );
        assert!(hint(1, 0, 0).ends_with("sysctl vm.nr_hugepages=1"));
        assert!(hint(8, 8, 8).ends_with("this process may not have them"));
        assert!(hugepage_hint(3, None, None).starts_with("3 pages of 2 MiB are needed"));
    }

    #[test]
    fn length_that_overflows_is_an_error() {
        assert!(Arena::default().allocate(usize::MAX).is_err());
    }
}
