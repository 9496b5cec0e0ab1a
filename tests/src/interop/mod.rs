//! Interoperability tests of the stack against Linux's siw in a guest, and of the stack over
//! emulated cards in a guest, run by `scripts/interop`.
//!
//! - [`case`]: a case, its path between both ends, and the error of an operation.
//! - [`guest`]: the guest, and commands in it.
//! - [`testbed`]: the guest, our programs and the network between them.
//! - [`tcp_analysis`]: checks a case's packets with Wireshark's dissectors.
//! - [`cards`], `cards_bulk`, `cards_failure`, `cards_refused`: the stack over cards, those of
//!   `card`; they need another guest.
//! - [`matrix`]: all cases, by group in the other modules.
//! - [`run`]: runs cases.

pub mod bulk;
mod card;
pub mod cards;
mod cards_bulk;
mod cards_failure;
mod cards_refused;
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
