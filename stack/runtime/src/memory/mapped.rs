//! Check that memory is mapped before it is registered.

use std::io;

use crate::error::MemoryError;

/// Fails if a page of `start..start + len` is not mapped. The protection of pages is not checked.
///
/// An RNIC pins the pages, so verbs reports this at registration. `msync` with `MS_ASYNC` writes
/// nothing back and goes through mappings, not pages: it takes as long for a page as for a GiB.
pub(crate) fn check_mapped(start: *mut u8, len: usize) -> Result<(), MemoryError> {
    let addr = start.addr();
    let refused = MemoryError::NotMapped { addr, len };
    // The kernel rounds up to pages, which may overflow to none. No object is as long.
    if isize::try_from(len).is_err() || addr.checked_add(len).is_none() {
        return Err(refused);
    }
    if len == 0 {
        return Ok(());
    }
    let offset = addr % page_len();
    let page = start.wrapping_sub(offset).cast();
    // SAFETY: the call changes no memory, whatever the range.
    if unsafe { libc::msync(page, offset + len, libc::MS_ASYNC) } == 0 {
        return Ok(());
    }
    // Other errors say nothing about the range.
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENOMEM) { Err(refused) } else { Ok(()) }
}

/// Returns the size of a page.
fn page_len() -> usize {
    // SAFETY: the call has no preconditions.
    let len = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(len).expect("every system has a page size")
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use memmap2::MmapOptions;

    use super::*;

    #[test]
    fn exactly_mapped_ranges_pass() {
        let page = page_len();
        let mut map = MmapOptions::new().len(3 * page).map_anon().unwrap();
        let start = map.as_mut_ptr();
        let check = |offset, len| check_mapped(start.wrapping_add(offset), len).is_ok();
        assert!(check(0, 3 * page) && check(1, 3 * page - 1) && check(3 * page - 1, 1));
        // SAFETY: nothing else uses the page in the middle.
        assert_eq!(unsafe { libc::munmap(start.wrapping_add(page).cast(), page) }, 0);
        assert!(check(0, page) && check(2 * page, page) && check(page, 0));
        assert!(!check(0, page + 1) && !check(2 * page - 1, 2) && !check(0, 3 * page));
        // Both remaining pages; the mapping would unmap the hole, which may be another's by then.
        std::mem::forget(map);
        for offset in [0, 2 * page] {
            // SAFETY: nothing else uses the page.
            assert_eq!(unsafe { libc::munmap(start.wrapping_add(offset).cast(), page) }, 0);
        }
    }

    #[test]
    fn ranges_outside_the_address_space_are_refused() {
        let mut byte = 0_u8;
        let here = ptr::from_mut(&mut byte);
        let top = ptr::without_provenance_mut(usize::MAX);
        for (start, len) in [
            (ptr::null_mut(), 1),
            (ptr::null_mut(), usize::MAX),
            (here, 1 << 62),
            (here, usize::MAX),
            (here, usize::MAX - here.addr()),
            (top, 1),
            (top, 0x1000),
            (ptr::without_provenance_mut(usize::MAX & !0xfff), 0xfff),
        ] {
            let refused = check_mapped(start, len);
            assert!(matches!(refused, Err(MemoryError::NotMapped { .. })), "{start:?} {len:#x}");
        }
        for start in [ptr::null_mut(), here, top] {
            assert!(check_mapped(start, 0).is_ok(), "an empty range is everywhere");
        }
    }
}
