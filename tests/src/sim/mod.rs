//! Deterministic simulation: two ends on a lossy link in virtual time, reproducible from one seed.
//!
//! - `atomic_oracle`: atomic operations on shared words, and the oracle that checks their results;
//!   `linearizability`: the check for words that several connections use.
//! - [`bulk_transfer`]: bulk transfers and tail losses, measured.
//! - `end`: one end, with one engine or the engines of several shards.
//! - [`fault_schedule`]: temporary faults: link down, empty pools, a paused engine.
//! - [`fragmenter`]: IP fragmentation on the link.
//! - [`heap_device`]: heap frames and pools that run empty.
//! - [`link`]: the link emulator and its faults, a package of its own.
//! - `mw_workload`: Remote Invalidate of memory windows.
//! - [`pairs`]: connected queue pairs for scripted tests.
//! - [`request_response`]: request/response traffic over a lossy link, measured.
//! - [`router`]: a link with a smaller, changing MTU, and its ICMP errors.
//! - [`seeds`]: runs many seeds on all cores; reports and captures a failing one.
//! - [`segment_mutator`]: segments modified in flight.
//! - [`sim_port`]: delivery of frames to the queues of several shards.
//! - [`wire_invariants`]: asserts the rules that hold for every segment on the wire.
//! - [`workload`]: random work on connections that complete, fail or are ended, and its oracle.
//! - [`world`]: both ends, the clock, and the event loop.

mod atomic_oracle;
pub mod bulk_transfer;
mod end;
pub mod fault_schedule;
pub mod fragmenter;
pub mod heap_device;
mod linearizability;
mod mw_workload;
pub mod pairs;
pub mod request_response;
pub mod router;
pub mod seeds;
pub mod segment_mutator;
pub mod sim_port;
pub mod wire_invariants;
pub mod workload;
pub mod world;

pub use ferrowarp_link as link;
