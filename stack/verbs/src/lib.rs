//! The interfaces of libibverbs and librdmacm over ferrowarp: one shared object takes the place of
//! both libraries, so that programs of others run unchanged.
//!
//! `stack/verbs/link` links the object, `libibverbs.so.1`; `librdmacm.so.1` is a symbolic link to
//! it. [`abi/versions.map`][map] lists the functions and their versions.
//!
//! [map]: https://github.com/ferrowarp/ferrowarp/blob/main/stack/verbs/abi/versions.map

#[allow(dead_code, reason = "the whole of the headers")]
mod abi;
mod cm;
mod config;
mod dispatcher;
mod engine;
mod errno;
mod event_queue;
mod fork;
mod names;
mod object;
mod objects;
mod out;
mod poll;
mod post;
mod program;
mod rates;
mod report;
#[cfg(test)]
mod stock;
mod sysfs;
mod wait;
