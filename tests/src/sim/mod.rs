//! Two engines on a bad wire in virtual time, all of it decided by one seed.
//!
//! - [`frames`]: heap frames and pools that run dry.
//! - [`link`]: the wire and its faults, a package of its own.
//! - [`world`]: both ends, the clock, and how time moves on.
//! - [`workload`]: random work on random connections, and the oracles that watch it.

pub mod cut;
pub mod frames;
pub mod router;
pub mod workload;
pub mod world;

pub use ferrowarp_link as link;
