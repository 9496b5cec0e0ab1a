//! iwperf: bandwidth and latency tests, modeled on perftest.
//!
//! [`iwperf_options`] is the command line, with [`queue_options`], [`length_options`] and
//! [`perftest_options`], and [`control`] the control exchange; [`session`] holds one side's
//! connections and memory; [`test_run`] is one run, with [`active`] and [`passive`] halves for
//! bandwidth, and [`latency`]; [`client`] and [`server`] run the sequence of runs; [`report`],
//! [`hdr`], [`interval_lines`] and [`progress`] produce the output.

pub mod active;
pub mod client;
mod client_params;
mod client_sessions;
pub mod clients;
mod codec;
pub mod control;
pub mod hdr;
pub mod interval_lines;
pub mod iwperf_options;
pub mod iwperf_program;
pub mod kind;
pub mod latency;
pub mod latency_stats;
pub mod length_options;
pub mod limits;
pub mod passive;
pub mod peak;
pub mod perftest_options;
pub mod private_data;
pub mod progress;
pub mod queue_options;
pub mod receives;
pub mod report;
pub mod server;
mod server_session;
pub mod session;
pub mod shard_report;
pub mod slots;
pub mod test_run;
pub mod worker;
