//! Files of sysfs, which some programs read by functions of libibverbs. None is of this device.

use std::ffi::{CStr, c_char, c_int};
use std::fs::File;
use std::io::Read as _;

use crate::errno::{Errno, run};
use crate::program;

#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    const PATH: &CStr = c"/sys";
    PATH.as_ptr()
}

/// Returns the number of bytes read, without a newline at their end; or -1.
#[unsafe(no_mangle)]
extern "C" fn ibv_read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    out: *mut c_char,
    size: usize,
) -> c_int {
    let read = run(|| {
        let path = program::path(folder)?.join(program::path(file)?);
        let mut bytes = Vec::new();
        File::open(path)?.take(size as u64).read_to_end(&mut bytes)?;
        let len = bytes.strip_suffix(b"\n").map_or(bytes.len(), <[u8]>::len);
        let mut text = bytes[..len].to_vec();
        text.resize(size, 0);
        program::write_bytes(out, &text)?;
        c_int::try_from(len).map_err(|_| Errno::EINVAL)
    });
    read.unwrap_or(-1)
}
