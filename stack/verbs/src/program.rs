//! Memory of the program, as it passes it to verbs.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::sync::LazyLock;

use ferrowarp::{Access, MemoryError, Mr, MrOptions, Pd, ReregOptions};

use crate::abi::{ibv_async_event, ibv_query_device_ex_input};
use crate::errno::{Errno, Outcome};

/// Writes to a place of the program.
///
/// # Errors
/// `EINVAL` for a null pointer.
pub(crate) fn write<T>(place: *mut T, value: T) -> Outcome {
    write_prefix(place, &value, size_of::<T>())
}

/// Writes the first `len` bytes of a value: all that the program knows of the struct. If it knows
/// more than there is, the rest is zero.
///
/// # Errors
/// As [`write`].
pub(crate) fn write_prefix<T>(place: *mut T, value: &T, len: usize) -> Outcome {
    if place.is_null() {
        return Err(Errno::EINVAL);
    }
    let known = len.min(size_of::<T>());
    // SAFETY: the program passes a place of `len` bytes.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), place.cast(), known) };
    let rest = place.cast::<u8>().wrapping_add(known);
    // SAFETY: as above.
    unsafe { rest.write_bytes(0, len - known) };
    Ok(())
}

/// Writes bytes to a place of the program.
///
/// # Errors
/// As [`write`].
pub(crate) fn write_bytes(place: *mut c_char, bytes: &[u8]) -> Outcome {
    if place.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the program passes a place for them.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast(), bytes.len()) };
    Ok(())
}

/// A path that the program passes.
///
/// # Errors
/// `EINVAL` for a null pointer.
pub(crate) fn path<'a>(text: *const c_char) -> Outcome<&'a Path> {
    if text.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the program passes a text that ends with a zero.
    let text = unsafe { CStr::from_ptr(text) };
    Ok(Path::new(OsStr::from_bytes(text.to_bytes())))
}

/// Has `at_exit` called when the process ends by `exit`.
pub(crate) fn call_at_exit(at_exit: extern "C" fn()) {
    // SAFETY: the object is never unloaded (`-z nodelete`).
    let _ = unsafe { libc::atexit(at_exit) };
}

/// The object that an event is about.
pub(crate) fn event_element(event: &ibv_async_event) -> *mut c_void {
    // SAFETY: a pointer, or a number and the zeros beside it (`AsyncEvent::public`).
    unsafe { event.element.cq }.cast()
}

/// What an extended query asks for; a null pointer asks for nothing.
pub(crate) fn comp_mask_of(input: *const ibv_query_device_ex_input) -> u32 {
    // SAFETY: the program passes a null pointer, or a struct.
    unsafe { input.as_ref() }.map_or(0, |input| input.comp_mask)
}

/// A struct that the program has passed, as `'a` allows: for the time of a call.
///
/// # Errors
/// `EINVAL` for a null pointer.
pub(crate) fn at<'a, T>(place: *mut T) -> Outcome<&'a mut T> {
    // SAFETY: the program passes a null pointer, or a struct that is its own until the call
    // returns.
    unsafe { place.as_mut() }.ok_or(Errno::EINVAL)
}

/// Registers `len` bytes at `addr`.
///
/// # Errors
/// Those of the stack; `EFAULT` if the right to write is asked for memory that is read-only.
pub(crate) fn register(pd: &Pd, addr: *mut c_void, len: usize, options: MrOptions) -> Outcome<Mr> {
    let writes = options.access.allows(Access::LOCAL_WRITE);
    // SAFETY: `ibv_reg_mr` demands of the program what this demands, but that the bytes stay
    // mapped: page faults are caught (`engine::config`).
    let region = unsafe { pd.register_raw(addr.cast(), len, options) }?;
    if writes && len > 0 && is_read_only(addr.addr(), len) {
        return Err(Errno(libc::EFAULT));
    }
    Ok(region)
}

/// True if the first or the last page of mapped memory is read-only. Asks the kernel to make these
/// pages present for writing, as pinning does for a card; before Linux 5.14 it cannot be asked.
fn is_read_only(start: usize, len: usize) -> bool {
    const PAGE: usize = 4096;
    static CAN_ASK: LazyLock<bool> = LazyLock::new(|| {
        let own = 0_u8;
        populate(ptr::from_ref(&own).addr() & !(PAGE - 1)) == 0
    });
    let populate_fails = |address: usize| populate(address & !(PAGE - 1)) != 0;
    *CAN_ASK && (populate_fails(start) || populate_fails(start.saturating_add(len - 1)))
}

/// Makes a page present for writing; returns 0 on success.
fn populate(page: usize) -> c_int {
    // SAFETY: changes no byte; what is not mapped is refused.
    unsafe { libc::madvise(ptr::without_provenance_mut(page), 1, libc::MADV_POPULATE_WRITE) }
}

/// Registers a region anew; `moved`: with other memory.
pub(crate) fn reregister(
    region: &mut Mr,
    moved: Option<(*mut c_void, usize)>,
    options: &ReregOptions<'_>,
) -> Result<(), MemoryError> {
    match moved {
        None => region.reregister(options).map(drop),
        // SAFETY: as in `register`.
        Some((addr, len)) => unsafe { region.reregister_raw(addr.cast(), len, options) }.map(drop),
    }
}
