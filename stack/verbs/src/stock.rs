//! The stock libraries, which tests compare ours to.

use std::ffi::{CStr, c_char, c_int, c_void};

pub(crate) const LIBIBVERBS: &CStr = c"libibverbs.so.1";
pub(crate) const LIBRDMACM: &CStr = c"librdmacm.so.1";

/// A stock library. It stays loaded.
pub(crate) struct Stock(*mut c_void);

impl Stock {
    /// Opens the library. Says so where it is absent.
    pub(crate) fn open(name: &CStr) -> Option<Self> {
        // SAFETY: the name ends with a NUL, and the library's constructors start nothing.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            println!("skipped: no {}", name.to_string_lossy());
            return None;
        }
        Some(Self(handle))
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is open, and the name ends with a NUL.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "the library has {}", name.to_string_lossy());
        symbol
    }

    /// Returns a function of a number, such as an enumeration, that returns one.
    pub(crate) fn int_function(&self, name: &CStr) -> impl Fn(c_int) -> c_int + use<> {
        // SAFETY: the functions that tests name have this type.
        let function: extern "C" fn(c_int) -> c_int =
            unsafe { std::mem::transmute(self.symbol(name)) };
        move |argument| function(argument)
    }

    /// Returns a function of a number that returns its name.
    pub(crate) fn name_function(&self, name: &CStr) -> impl Fn(c_int) -> String + use<> {
        // SAFETY: the functions that tests name have this type.
        let function: extern "C" fn(c_int) -> *const c_char =
            unsafe { std::mem::transmute(self.symbol(name)) };
        move |argument| text(function(argument))
    }
}

/// Returns the text that a function has returned.
pub(crate) fn text(name: *const c_char) -> String {
    // SAFETY: the names of both libraries are constants that end with a NUL.
    unsafe { CStr::from_ptr(name) }.to_str().expect("ASCII").to_owned()
}
