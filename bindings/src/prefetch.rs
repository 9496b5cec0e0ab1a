//! Hints to load cache lines ahead of their use (`rte_prefetch0`, `rte_prefetch0_write`), so that
//! the misses of several overlap.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use core::arch::asm;

/// Bytes that one prefetch fetches.
const CACHE_LINE: usize = 64;

/// Loads the cache lines of a value while the program goes on.
#[inline(always)]
pub fn prefetch_read<T: ?Sized>(value: &T) {
    let start: *const u8 = core::ptr::from_ref(value).cast();
    lines(start, size_of_val(value)).for_each(read);
}

/// Loads the cache lines of `len` bytes, which need not exist, for writing.
#[inline(always)]
pub(crate) fn prefetch_write(start: *const u8, len: usize) {
    lines(start, len).for_each(write);
}

/// Returns an address in each cache line of a range.
#[inline(always)]
fn lines(start: *const u8, len: usize) -> impl Iterator<Item = *const u8> {
    let first = start.map_addr(|address| address & !(CACHE_LINE - 1));
    let span = start.addr() - first.addr() + len;
    (0..span).step_by(CACHE_LINE).map(move |offset| first.wrapping_add(offset))
}

#[inline(always)]
fn read(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch changes nothing that the program can observe, and faults on no address.
    unsafe {
        asm!("prefetcht0 [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}

/// Machine code, because compilers emit this instruction for newer processors only; on older ones
/// it does nothing.
#[inline(always)]
fn write(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `read`.
    unsafe {
        asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as in `read`.
    unsafe {
        asm!("prfm pstl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Aligned([u8; 192]);

    #[test]
    fn each_line_of_a_range_is_loaded_once() {
        let bytes = Aligned([0; 192]);
        let start = bytes.0.as_ptr();
        for (offset, len, expected) in [
            (0, 64, &[0][..]),
            (0, 65, &[0, 64]),
            (63, 2, &[0, 64]),
            (60, 80, &[0, 64, 128]),
            (8, 0, &[0]),
        ] {
            let found: Vec<usize> = lines(start.wrapping_add(offset), len)
                .map(|line| line.addr() - start.addr())
                .collect();
            assert_eq!(found, expected, "{len} bytes at {offset}");
        }
        prefetch_read(&bytes.0);
        prefetch_write(core::ptr::null(), 64);
    }
}
