//! iwperf: bandwidth and latency, in the manner of perftest.
//!
//! [`options`] and [`control`] say what is asked for; [`session`] holds one end's connections and
//! memory; [`test_run`] is one run, with [`active`] and [`passive`] halves for bandwidth, and
//! [`latency`]; [`client`] and [`server`] lead an end through its runs; [`report`], [`hdr`] and
//! [`progress`] tell.

pub mod active;
pub mod client;
mod codec;
pub mod control;
pub mod hdr;
pub mod kind;
pub mod latency;
pub mod latency_stats;
mod limits;
pub mod options;
pub mod passive;
pub mod peak;
pub mod private_data;
pub mod program;
pub mod progress;
pub mod report;
pub mod server;
pub mod session;
pub mod slots;
pub mod test_run;
