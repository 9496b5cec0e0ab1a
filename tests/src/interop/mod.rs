//! The stack against Linux's siw, which runs in a guest: what `scripts/interop` runs.
//!
//! - [`case`]: what a case is.
//! - [`guest`]: the guest, and commands in it.
//! - [`testbed`]: the guest, our programs and the wire between them, as a case sees them.
//! - [`tcp_analysis`]: what Wireshark's dissectors say of a case's packets.
//! - [`matrix`]: all cases; the modules below it hold them by group.
//! - [`run`]: runs cases.

pub mod bulk;
pub mod case;
pub mod faults;
pub mod guest;
pub mod matrix;
pub mod peer_failure;
pub mod ping;
pub mod run;
pub mod startup;
pub mod tcp_analysis;
pub mod testbed;
