//! The stack against Linux's siw, which runs in a guest: what `scripts/interop` runs.
//!
//! - [`case`]: what a case is.
//! - [`guest`]: the guest, and commands in it.
//! - [`lab`]: the guest, our programs and the wire between them, as a case sees them.
//! - [`verdict`]: what Wireshark's dissectors say of a case's packets.
//! - [`matrix`]: all cases; the modules below it hold them by group.
//! - [`run`]: runs cases.

pub mod bulk;
pub mod case;
pub mod deaths;
pub mod faults;
pub mod guest;
pub mod lab;
pub mod matrix;
pub mod ping;
pub mod run;
pub mod startup;
pub mod verdict;
