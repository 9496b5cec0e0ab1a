//! What many connections cost: beside a busy one, in memory, in set-up and end, to control calls of
//! several shards, and over hours.

pub mod allocations;
pub mod busy;
pub mod control;
pub mod ends;
pub mod idle;
pub mod json;
pub mod many;
pub mod memory;
pub mod plot;
pub mod report;
pub mod results;
pub mod setup_rate;
pub mod soak;
