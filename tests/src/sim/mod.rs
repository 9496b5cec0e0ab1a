//! Deterministic simulation: two engines on a lossy link in virtual time, reproducible from one
//! seed.
//!
//! - `atomic_oracle`: atomic operations on shared words, and the oracle that checks their results;
//!   `linearizability`: the check for words that several connections use.
//! - [`chaos`]: random work on connections that may end at any time.
//! - [`end_checks`]: checks at the end of a run.
//! - [`exchange`]: request/response traffic over a lossy link, measured.
//! - [`extensions`]: atomic operations and Immediate Data on connections that end with work in
//!   flight.
//! - [`fault_schedule`]: temporary faults: link down, empty pools, a paused engine.
//! - [`fragmenter`]: IP fragmentation on the link.
//! - [`frames`]: heap frames and pools that run empty.
//! - [`goodput`]: bulk transfers and tail losses, measured.
//! - [`link`]: the link emulator and its faults, a package of its own.
//! - `mw_workload`: Remote Invalidate of memory windows.
//! - [`pairs`]: connected queue pairs for scripted tests.
//! - [`router`]: a link with a smaller, changing MTU, and its ICMP errors.
//! - [`seeds`]: runs many seeds on all cores; reports and captures a failing one.
//! - [`segment_mutator`]: segments modified in flight.
//! - [`wire_invariants`]: asserts the rules that hold for every segment on the wire.
//! - [`workload`]: random work on random connections, and its oracles.
//! - [`world`]: both ends, the clock, and the event loop.

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
