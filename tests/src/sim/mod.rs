//! Two engines on a bad wire in virtual time, all of it decided by one seed.
//!
//! - [`end_checks`]: what has to be at the end.
//! - [`exchange`]: requests and responses over a wire that loses, measured.
//! - [`extensions`]: atomic operations and Immediate Data on connections that end in mid-flight.
//! - [`frames`]: heap frames and pools that run dry.
//! - [`link`]: the wire and its faults, a package of its own.
//! - [`fault_schedule`]: what happens for a while: a cut, a drained pool, an end that stands still.
//! - [`goodput`]: bulk transfers and lost tails, measured.
//! - [`segment_mutator`]: segments forged on their way.
//! - [`pairs`]: connected queue pairs for tests that tell a story.
//! - [`chaos`]: work on connections that may end at any time.
//! - [`world`]: both ends, the clock, and how time moves on.
//! - [`wire_invariants`]: looks at every segment on the wire, and objects.
//! - [`seeds`]: many seeds over all cores; a failing one is named and captured.
//! - `words`: atomic operations and their oracle; `linearizability`: its part for words that many
//!   use.
//! - [`workload`]: random work on random connections, and the oracles that watch it.

mod atomic_oracle;
pub mod chaos;
pub mod end_checks;
pub mod exchange;
pub mod extensions;
pub mod fault_schedule;
pub mod fragmenter;
pub mod frames;
pub mod goodput;
mod linearizability;
mod mw_workload;
pub mod pairs;
pub mod router;
pub mod seeds;
pub mod segment_mutator;
pub mod wire_invariants;
pub mod workload;
pub mod world;

pub use ferrowarp_link as link;
