//! Deterministic simulation: two ends on a lossy link in virtual time, reproducible from one seed.
//!
//! - `atomic_oracle`: atomic operations on shared words, and the oracle that checks their results;
//!   `linearizability`: the check for words that several connections use.
//! - `end`: one end, with one engine or the engines of several shards.
//! - [`exchange`]: request/response traffic over a lossy link, measured.
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
//! - [`steering`]: delivery of frames to the queues of several shards.
//! - [`wire_invariants`]: asserts the rules that hold for every segment on the wire.
//! - [`workload`]: random work on connections that complete, fail or are ended, and its oracle.
//! - [`world`]: both ends, the clock, and the event loop.

mod atomic_oracle;
mod end;
pub mod exchange;
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
pub mod steering;
pub mod wire_invariants;
pub mod workload;
pub mod world;

pub use ferrowarp_link as link;
